// The parts of an emitted CUDA file that are printed for each kernel: banner, named constants, the parameter
// struct and the functions of the mask.
#pragma once

#include <string>
#include <vector>

#include "core/problem.hpp"
#include "core/schedule.hpp"
#include "generator/specialise.hpp"

namespace flashwright {

// One named constant; `value` may be a formula over earlier ones.
struct Constant {
  std::string declaration;  // "constexpr int kTileQ = 128"
  std::string comment;
};

// The constants, comments aligned. An empty declaration starts a new group.
std::vector<Line> print_constants(const std::vector<Constant>& constants);

// `struct Params` for the rows of the layout, and the element type.
std::vector<Line> print_params(const ParamLayout& layout, DType dtype);

// keep() and visible_keys() of a mask that is no list of blocks.
std::vector<Line> print_mask(Mask::Kind mask);

// The head of the file. `about_tiles` is the family's sentence on tiles and shared memory.
std::vector<Line> print_banner(const Problem& problem, const Schedule& schedule,
                               const std::string& about_tiles, const LaunchPlan& plan);

// Lines joined to a text that ends with a newline.
std::string join(const std::vector<Line>& lines);

// The whole way from a template to a Source: resolve, prune, and the banner on top.
Source emit_template(std::string_view path, std::string name, const Problem& problem, const Options& options,
                     const Printed& printed, const std::vector<Line>& banner, const LaunchPlan& plan);

// The command line that emits this kernel again.
std::string emit_command(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright
