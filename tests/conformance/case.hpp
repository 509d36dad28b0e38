// One kernel of the conformance suite. A case is a plain value: the text of a small kernel over the
// wrappers of templates/ptx/, what it reads, and what the PTX manual says it has to write. A device
// and the emulator run the same cases.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "core/tensor_map.hpp"
#include "generator/sm90/print_wgmma.hpp"

namespace flashwright::conformance {

using Bytes = std::vector<std::uint8_t>;

enum class Needs : std::uint8_t { sm_80, sm_90a };
const char* to_string(Needs needs);

// A tensor in the input or the output; `spec.base` is filled in where the case runs.
struct CaseMap {
  bool of_output = false;
  std::size_t offset = 0;  // bytes from the start of it; a multiple of 16
  TensorMapSpec spec;
};

struct Case {
  std::string group, name;
  std::string covers;  // the wrappers that it is about, separated by spaces
  Needs needs = Needs::sm_80;
  DType dtype = DType::bf16;
  // The statements of the kernel; `params.in`, `params.out` and `params.map` are there, and the
  // functions of kernel_text().
  std::string body;
  std::string attributes;  // of the kernel, besides its bounds
  int blocks_per_sm = 0;   // in the launch bounds; 0: none
  std::vector<sm90::ProductShape> products;
  int threads = 32, smem_bytes = 0;
  std::int64_t blocks = 1;
  Bytes input;
  Bytes output;                // what the output holds before the launch
  bool reads_output = false;   // a sum is added to it
  std::optional<CaseMap> map;  // params.map
  // What the output has to be, from the layouts of the PTX manual; empty where only a device can tell.
  Bytes expected;
  // The manual leaves open which NaN an instruction gives: in `expected`, an element of so many bytes that
  // is a NaN stands for any. A device and the emulator have to agree on its bits all the same.
  int nan_bytes = 0;
  // By how much each 32-bit word of the output, a float, may differ; 0: not at all. Empty: no byte may
  // differ.
  std::vector<double> bound;
};

constexpr const char* kEntry = "conformance";
constexpr std::uint8_t kUntouched = 0xa5;  // bytes of an output that nothing has written

// The CUDA text of the whole file, with the wrappers that it uses.
std::string kernel_text(const Case& c);

// `struct Params` of the kernel.
struct alignas(64) Params {
  const void* in;
  void* out;
  alignas(64) unsigned char map[128];
};
static_assert(sizeof(Params) == 192);

// "math/exp2"
std::string full_name(const Case& c);

// All cases, by group and in the order in which they run: what can hang comes last.
const std::vector<Case>& all_cases();

// Identity of what ran: body, input and launch, but not the text of the wrappers.
std::string digest_of(const Case& c);

// "" or the first difference in words, and how many there are. `expected` may be the beginning of an
// output.
std::string difference(const Case& c, const Bytes& expected, const Bytes& got);
// The same against what the manual says; "" where that is nothing.
std::string difference_from_manual(const Case& c, const Bytes& got);

// The files that make the table.
std::vector<Case> threads_cases();
std::vector<Case> math_cases();
std::vector<Case> memory_cases();
std::vector<Case> matrix_cases();
std::vector<Case> tma_cases();
std::vector<Case> wgmma_cases();
std::vector<Case> barrier_cases();

}  // namespace flashwright::conformance
