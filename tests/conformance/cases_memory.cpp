// Memory: memory.cuh and async_copy.cuh.
#include <fmt/format.h>

#include "tests/conformance/case.hpp"
#include "tests/conformance/values.hpp"

namespace flashwright::conformance {
namespace {

using Words = std::vector<std::uint32_t>;

Case memory_case(const std::string& name, const std::string& covers, const std::string& body) {
  Case c;
  c.group = "memory";
  c.name = name;
  c.covers = covers;
  c.body = body;
  c.threads = 64;
  return c;
}

// Sixteen bytes are written by one thread and read by its neighbour in single words.
Case shared_sixteen() {
  Case c = memory_case("shared_sixteen", "store_shared_16", R"(
const u32 shared = shared_memory();
const int me = thread_index(), other = me ^ 1;
u32 words[4];
for (int i = 0; i < 4; ++i) words[i] = input_word(params, 4 * me + i);
store_shared_16(shared + 16 * me, words);
synchronize_block();
for (int i = 0; i < 4; ++i)
  output_word(params, 4 * me + i, float_bits(load_shared_float(shared + 16 * other + 4 * i)));
)");
  const Words in = random_words(21, 4 * 64);
  Words out(in.size());
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i ^ 4];
  c.smem_bytes = 16 * 64;
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// Each width is written by one thread and read by its neighbour in another width.
Case shared_widths() {
  Case c = memory_case(
      "shared_widths",
      "shared_memory load_shared_float load_shared_u16 load_shared_16 store_shared_float "
      "store_shared_float2 store_shared_u16 store_shared_u32",
      R"(
const u32 shared = shared_memory();
const int me = thread_index(), other = me ^ 1;
store_shared_u32(shared + 32 * me, input_word(params, 8 * me));
store_shared_float(shared + 32 * me + 4, input_float(params, 8 * me + 1));
store_shared_float2(shared + 32 * me + 8, input_float(params, 8 * me + 2),
                    input_float(params, 8 * me + 3));
for (int i = 0; i < 8; ++i)
  store_shared_u16(shared + 32 * me + 16 + 2 * i,
                   static_cast<u16>(input_word(params, 8 * me + 4 + i / 2) >> 16 * (i % 2)));
synchronize_block();
const Bytes16 low = load_shared_16(shared + 32 * other);
for (int i = 0; i < 4; ++i) output_word(params, 8 * me + i, low.word[i]);
for (int i = 0; i < 2; ++i)
  output_float(params, 8 * me + 4 + i, load_shared_float(shared + 32 * other + 16 + 4 * i));
for (int i = 0; i < 2; ++i)
  output_word(params, 8 * me + 6 + i, load_shared_u16(shared + 32 * other + 24 + 2 * i));
)");
  const Words in = random_words(20, 8 * 64);
  Words out(in.size());
  for (std::size_t thread = 0; thread < 64; ++thread) {
    const std::uint32_t* const from = &in[8 * (thread ^ 1u)];
    for (std::size_t i = 0; i < 6; ++i) out[8 * thread + i] = from[i];
    out[8 * thread + 6] = from[6] & 0xffffu;
    out[8 * thread + 7] = from[6] >> 16;
  }
  c.smem_bytes = 32 * 64;
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

Case global_widths() {
  Case c = memory_case("global_widths", "load_global store_global", R"(
const int me = thread_index();
store_global(reinterpret_cast<Bytes16*>(params.out) + 2 * me,
             load_global(reinterpret_cast<const Bytes16*>(params.in) + 2 * me));
for (int i = 0; i < 4; ++i)
  store_global(reinterpret_cast<u16*>(params.out) + 16 * me + 8 + i,
               load_global(reinterpret_cast<const u16*>(params.in) + 16 * me + 8 + i));
store_global(reinterpret_cast<u64*>(params.out) + 4 * me + 3,
             load_global(reinterpret_cast<const u64*>(params.in) + 4 * me + 3));
)");
  c.input = bytes_of(random_words(21, 8 * 64));
  c.expected = c.input;
  return c;
}

// Three groups of copies; every third chunk is zeros, and nothing is read for it. All chunks are dumped by
// other threads, the last group's when it may no longer be in flight.
Case asynchronous_copies() {
  Case c = memory_case("copy_async", "copy_async_16 commit_copies wait_copies", R"(
const u32 shared = shared_memory();
const int me = thread_index();
for (int group = 0; group < 3; ++group) {
  for (int i = 0; i < 2; ++i) {
    const int chunk = group * 128 + i * 64 + me;
    const bool valid = chunk % 3 != 0;
    copy_async_16(shared + 16 * (chunk ^ 5), params.in + (valid ? 16 * chunk : -65536), valid);
  }
  commit_copies();
}
wait_copies<1>();
synchronize_block();
dump_shared(params, shared, 0, 2 * 128 * 16);
wait_copies<0>();
synchronize_block();
dump_shared(params, shared + 2 * 128 * 16, 2 * 128 * 16, 128 * 16);
)");
  c.smem_bytes = 3 * 128 * 16;
  c.input = bytes_of(random_words(22, 3 * 128 * 4));
  c.expected = Bytes(c.input.size());
  for (std::size_t chunk = 0; chunk < 384; ++chunk)
    if (chunk % 3 != 0) std::memcpy(&c.expected[16 * (chunk ^ 5u)], &c.input[16 * chunk], 16);
  return c;
}

// A group without copies counts as one, so the first group is not among the last two.
Case empty_groups() {
  Case c = memory_case("copy_async_empty_groups", "copy_async_16 commit_copies wait_copies", R"(
const u32 shared = shared_memory();
const int me = thread_index();
copy_async_16(shared + 16 * me, params.in + 16 * me, true);
commit_copies();
commit_copies();
commit_copies();
wait_copies<2>();
synchronize_block();
dump_shared(params, shared, 0, 64 * 16);
)");
  c.smem_bytes = 64 * 16;
  c.input = bytes_of(random_words(23, 64 * 4));
  c.expected = c.input;
  return c;
}

}  // namespace

std::vector<Case> memory_cases() {
  std::vector<Case> cases = {shared_widths(), shared_sixteen(), global_widths(),
                             asynchronous_copies(), empty_groups()};
  for (Case& c : cases) c.output = untouched(c.expected.size());
  return cases;
}

}  // namespace flashwright::conformance
