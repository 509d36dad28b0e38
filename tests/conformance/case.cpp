#include "tests/conformance/case.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/sha256.hpp"
#include "tests/conformance/values.hpp"
#include "tests/support/wrapper_kernel.hpp"

namespace flashwright::conformance {
namespace {

constexpr const char* kFunctions = R"(
struct Params {
  const unsigned char* in;
  unsigned char* out;
  TensorMap map;
};

__device__ __forceinline__ u32 input_word(const Params& params, int i) {
  return load_global(reinterpret_cast<const u32*>(params.in) + i);
}

__device__ __forceinline__ float input_float(const Params& params, int i) {
  return bits_float(input_word(params, i));
}

__device__ __forceinline__ void output_word(const Params& params, int i, u32 value) {
  store_global(reinterpret_cast<u32*>(params.out) + i, value);
}

__device__ __forceinline__ void output_float(const Params& params, int i, float value) {
  output_word(params, i, float_bits(value));
}

// Bytes of the input to shared memory, by all threads of the block.
__device__ __forceinline__ void fill_shared(const Params& params, u32 shared, int from, int bytes) {
  for (int i = thread_index() * 4; i < bytes; i += kThreads * 4)
    store_shared_u32(shared + i, load_global(reinterpret_cast<const u32*>(params.in + from + i)));
}

// Bytes of shared memory to the output, by all threads of the block.
__device__ __forceinline__ void dump_shared(const Params& params, u32 shared, i64 to, int bytes) {
  for (int i = thread_index() * 16; i < bytes; i += kThreads * 16)
    store_global(reinterpret_cast<Bytes16*>(params.out + to + i), load_shared_16(shared + i));
}
)";

// The body's lines with two spaces before each.
std::string indented(const std::string& body) {
  std::string text;
  std::size_t at = body.find_first_not_of('\n');
  while (at < body.size()) {
    const std::size_t end = std::min(body.find('\n', at), body.size());
    if (end > at) text += "  " + body.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return text;
}

bool word_differs(double bound, std::uint32_t expected, std::uint32_t got) {
  if (expected == got) return false;
  if (bound == 0 || is_nan(expected) || is_nan(got)) return true;
  return !(std::fabs(static_cast<double>(float_of(expected)) - float_of(got)) <= bound);
}

bool is_nan_at(const Case& c, const Bytes& bytes, std::size_t at) {
  if (c.nan_bytes == 4) return is_nan(value_at<std::uint32_t>(bytes, at));
  return std::isnan(decode(c.dtype, value_at<std::uint16_t>(bytes, at)));
}

}  // namespace

std::string full_name(const Case& c) { return c.group + "/" + c.name; }

const char* to_string(Needs needs) { return needs == Needs::sm_80 ? "sm_80" : "sm_90a"; }

std::string kernel_text(const Case& c) {
  std::string bounds = "kThreads";
  if (c.blocks_per_sm != 0) bounds += fmt::format(", {}", c.blocks_per_sm);
  const std::string text = fmt::format(
      "constexpr int kThreads = {};\n{}\nextern \"C\" __global__ void {}__launch_bounds__({})\n"
      "    {}(const __grid_constant__ Params params) {{\n{}}}\n",
      c.threads, kFunctions, c.attributes.empty() ? "" : c.attributes + " ", bounds, kEntry,
      indented(c.body));
  return testing::wrapper_kernel(text, c.dtype, c.products);
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    for (const auto& part : {math_cases, memory_cases, matrix_cases, threads_cases, tma_cases,
                             wgmma_cases, barrier_cases})
      for (Case& c : part()) all.push_back(std::move(c));
    return all;
  }();
  return cases;
}

std::string digest_of(const Case& c) {
  std::string launch = fmt::format("{} {} {} {} {} {}", static_cast<int>(c.dtype), c.threads,
                                   c.smem_bytes, c.blocks, c.output.size(), c.attributes);
  if (c.map) {
    const TensorMapSpec& s = c.map->spec;
    launch += fmt::format(" {} {} {} {} {}", c.map->of_output, c.map->offset,
                          static_cast<int>(s.dtype), s.rank, s.swizzle);
    for (const std::int64_t extent : s.shape) launch += fmt::format(" {}", extent);
    for (const std::int64_t stride : s.stride_bytes) launch += fmt::format(" {}", stride);
    for (const int side : s.box) launch += fmt::format(" {}", side);
  }
  const std::string_view input(reinterpret_cast<const char*>(c.input.data()), c.input.size());
  const std::string_view output(reinterpret_cast<const char*>(c.output.data()), c.output.size());
  return to_hex(sha256_of({c.body, launch, input, output})).substr(0, 16);
}

std::string difference(const Case& c, const Bytes& expected, const Bytes& got) {
  if (expected.size() > got.size())
    return fmt::format("{} bytes, expected {}", got.size(), expected.size());
  std::size_t count = 0, first = 0;
  for (std::size_t at = 0; at < expected.size(); at += 4) {
    const std::size_t word = at / 4;
    bool differs = false;
    if (at + 4 > expected.size())
      differs = !std::equal(expected.begin() + static_cast<std::ptrdiff_t>(at), expected.end(),
                            got.begin() + static_cast<std::ptrdiff_t>(at));
    else
      differs =
          word_differs(word < c.bound.size() ? c.bound[word] : 0,
                       value_at<std::uint32_t>(expected, at), value_at<std::uint32_t>(got, at));
    if (differs && count++ == 0) first = at;
  }
  if (count == 0) return {};
  const auto word = [&](const Bytes& bytes) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes.data() + first, std::min<std::size_t>(4, bytes.size() - first));
    return value;
  };
  return fmt::format("byte {}: expected {:08x} ({}), got {:08x} ({}); {} of {} words differ", first,
                     word(expected), float_of(word(expected)), word(got), float_of(word(got)),
                     count, (expected.size() + 3) / 4);
}

std::string difference_from_manual(const Case& c, const Bytes& got) {
  if (c.expected.empty()) return {};
  Bytes plain = got;
  const auto width = static_cast<std::size_t>(c.nan_bytes);
  for (std::size_t at = 0; width != 0 && at + width <= plain.size(); at += width)
    if (is_nan_at(c, c.expected, at) && is_nan_at(c, got, at))
      std::copy_n(c.expected.begin() + static_cast<std::ptrdiff_t>(at), width,
                  plain.begin() + static_cast<std::ptrdiff_t>(at));
  return difference(c, c.expected, plain);
}

}  // namespace flashwright::conformance
