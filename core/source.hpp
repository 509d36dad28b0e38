// What a generator hands to a compiler, and what a compiler gives back. Text is the border between
// the two: a Source can be printed, mailed and compiled elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.hpp"
#include "core/expr.hpp"
#include "core/params.hpp"

namespace flashwright {

enum class Language : std::uint8_t { cuda, llvm_ir };

// Where a line of emitted text came from; an empty file name marks a line that was printed by code.
struct LineOrigin {
  std::string file;
  int line = 0;
};

// One entry of the binary and how to start it. `grid` and `workspace` are rules over
// rule_variables(), since shapes are known only at launch.
struct LaunchStep {
  std::string entry;
  int threads = 0;     // per block; CPU: 0
  int smem_bytes = 0;  // dynamic shared memory per block; CPU: scratch bytes per worker
  ExprPtr grid;        // blocks; CPU: tasks
};

struct LaunchPlan {
  ParamLayout params;
  std::vector<LaunchStep> steps;  // in order, on one stream
  ExprPtr workspace;              // bytes; null means none
};

// The shape names that rules may use, in the order in which a launch lists their values.
const std::vector<std::string>& rule_variables();

struct Source {
  Language language = Language::cuda;
  Target target;
  std::string name;  // "fw_forward.cu": the program name in compiler messages
  std::string text;
  std::vector<LineOrigin> lines;  // CUDA: one for each line of the text
  LaunchPlan plan;
};

// A compiler's message with every "name(line)" replaced by the template line it came from.
std::string rewrite_lines(const Source& source, const std::string& message);

// What the compiler says a kernel takes.
struct Resources {
  int registers = 0;    // per thread; CPU: 0
  int spill_bytes = 0;  // stores of spilled registers; CPU: vector spills found in the object
  int stack_bytes = 0;
  int static_smem_bytes = 0;
  int dynamic_smem_bytes = 0;
};

struct Binary {
  enum class Kind : std::uint8_t { cubin, ptx, object };
  Kind kind = Kind::cubin;
  Target target;
  std::string bytes;
  std::string toolchain;  // who made it, for people: "NVRTC 13.0", "LLVM 19.1.7 icelake-server"
  Resources resources;
  double compile_ms = 0;
  std::string log;  // warnings, with rewritten lines
};
const char* to_string(Binary::Kind kind);

}  // namespace flashwright
