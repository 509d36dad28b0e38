// The parts of an emitted CUDA file that are printed for each kernel: banner, named constants, the
// parameter struct and the functions of the mask.
#pragma once

#include <string>
#include <vector>

#include "core/problem.hpp"
#include "core/schedule.hpp"
#include "generator/specialise.hpp"

namespace flashwright {

// One named constant; `value` may be a formula over earlier ones.
struct Constant {
  std::string declaration;  // "constexpr int kTileQ = 128"; empty starts a new group
  std::string comment;
};
Constant int_constant(const char* name, int value, const char* comment);

// The constants, comments aligned.
std::vector<Line> print_constants(const std::vector<Constant>& constants);

// Adds lines behind an empty one.
void append(std::vector<Line>& lines, const std::vector<Line>& more);

// `struct Params` for the rows of the layout, and the element type.
std::vector<Line> print_params(const ParamLayout& layout, DType dtype);

// keep() and visible_keys() of a mask that is no list of blocks.
std::vector<Line> print_mask(Mask::Kind mask);

// visible_rows() of a mask that is no list of blocks, for kernels that walk over the queries of some keys.
std::vector<Line> print_query_ranges(Mask::Kind mask);

// modified(): what happens to a score between product and mask, in units that make the factor of the
// softmax that of the launch.
std::vector<Line> print_score(const Problem& problem);

// derivative(): by how much a score grows in modified(), where that is not 1.
std::vector<Line> print_derivative(const Problem& problem);

// Rows of the parameter table that print_score() and the templates need beside those of the plain kernel.
void add_score_params(const Problem& problem, ParamLayout& params);

// The head of the file. `about_tiles` is the family's sentence on tiles and shared memory.
std::vector<Line> print_banner(const Problem& problem, const Schedule& schedule,
                               const std::string& about_tiles, const LaunchPlan& plan);

// Lines joined to a text that ends with a newline.
std::string join(const std::vector<Line>& lines);

// All that makes a Source: the template, the options that decide its conditionals, and what is
// printed into it.
struct Emission {
  std::string path;  // "sm80/forward.cu"
  std::string name;  // of the program in compiler messages: "fw_forward.cu"
  Options options;
  Printed printed;
  std::vector<Line> banner;
  LaunchPlan plan;
};
Source make_source(const Emission& emission, const Target& target);

// The command line that emits this kernel again.
std::string emit_command(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright
