// A Config with every default made explicit and every run-time value taken out: exactly what
// decides the text of a kernel. The only input of `choose` and `emit` besides the Schedule.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.hpp"
#include "flashwright/config.hpp"

namespace flashwright {

// `backward` gives the gradients of q, k and v from those of the outputs.
enum class Direction : std::uint8_t { forward, backward };
const char* to_string(Direction direction);

// How the answer is computed. `unfused` keeps all scores in memory: three passes, the computation
// that tiled attention replaces. It is the yardstick of `bench --against unfused`.
enum class Algorithm : std::uint8_t { tiled, unfused };

struct Problem {
  Direction direction = Direction::forward;
  Algorithm algorithm = Algorithm::tiled;
  DType dtype = DType::bf16;
  int head_dim = 0;
  int head_dim_v = 0;
  Mask::Kind mask = Mask::Kind::none;
  bool dropout = false;
  bool softcap = false;
  bool alibi = false;
  Target target;
  bool negative_scale = false;  // GPU, forward: the smallest score has the largest weight
  bool deterministic = false;   // GPU, backward: no sum in the order in which blocks arrive

  std::strong_ordering operator<=>(const Problem&) const = default;
  bool operator==(const Problem&) const = default;
};

// The canonical text, used in keys and messages: "forward bf16 d128 causal sm_90a".
std::string to_string(const Problem& problem);

// Reads the JSON of a Config. Throws Error(bad_argument) naming the field, its value and what is
// allowed; an unknown field is an error.
Config config_from_json(std::string_view json);

// Every reason why a Config is not allowed or not supported by any kernel family, each naming the
// field, its value and what is allowed; empty when the Config is fine. Knows no hardware.
std::vector<std::string> config_faults(const Config& config);

// Throws Error(bad_argument) with all of config_faults.
Problem normalise(const Config& config, const Target& target);

// So that the cap, its inverse and what kernels derive from them are ordinary floats.
constexpr double kMinSoftcap = 1e-18, kMaxSoftcap = 1e18;
constexpr int kMinHeadDim = 8;
constexpr int kMaxHeadDim = 256;
constexpr int kHeadDimStep = 8;

}  // namespace flashwright
