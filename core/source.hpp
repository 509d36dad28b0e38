// What a generator hands to a compiler, and what a compiler gives back. Text is the border between
// the two: a Source can be printed, mailed and compiled elsewhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.hpp"
#include "core/expr.hpp"
#include "core/params.hpp"
#include "core/tensor_map.hpp"

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
  // GPU: may start while the kernel before it in the stream still runs. The kernel waits for that one
  // itself (griddepcontrol.wait) before it touches global memory.
  bool early = false;
};

// A tensor that the kernel moves in boxes: rows of the sequence by columns of the head dimension, of one
// head of one batch entry.
struct BoxRule {
  Param map = Param::q_map;
  DType dtype = DType::bf16;
  int head_dim = 0;           // of the tensor
  int rows = 0, columns = 0;  // of a box
  int swizzle = 128;          // bytes
  bool packed = false;        // the rows are shared by the query heads that a tile joins
  bool operator==(const BoxRule&) const = default;
};

struct LaunchPlan {
  ParamLayout params;
  std::vector<BoxRule> boxes;     // one for each tensor map of `params`
  std::vector<LaunchStep> steps;  // in order, on one stream
  ExprPtr workspace;              // bytes; null means none
};

// Writes a tensor map.
using MapEncoder = void (*)(const TensorMapSpec& spec, void* map, const void* context);

// The tensor that a rule describes, in one launch.
TensorMapSpec map_spec(const BoxRule& rule, const ParamValues& values);

// Fills the parameter block, aligned to 64 bytes. In a kernel that moves boxes `aligned` tells whether TMA can address
// every tensor with a rule, whatever the others are; gradients that nobody wants (null) have no map and do not count.
void fill_params(const ParamLayout& params, const std::vector<BoxRule>& boxes, ParamValues values,
                 MapEncoder encode, const void* context, unsigned char* block);

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
