// Threads of a block and lanes of a warp: index.cuh.
#include "tests/conformance/case.hpp"
#include "tests/conformance/values.hpp"

namespace flashwright::conformance {
namespace {

using Words = std::vector<std::uint32_t>;

Case threads_case(const std::string& name, const std::string& covers, const std::string& body) {
  Case c;
  c.group = "threads";
  c.name = name;
  c.covers = covers;
  c.body = body;
  return c;
}

Case indices() {
  Case c = threads_case("indices", "thread_index lane_index warp_index block_index block_count", R"(
const int at = 5 * (static_cast<int>(block_index()) * kThreads + thread_index());
output_word(params, at, thread_index());
output_word(params, at + 1, lane_index());
output_word(params, at + 2, warp_index());
output_word(params, at + 3, static_cast<u32>(block_index()));
output_word(params, at + 4, static_cast<u32>(block_count()));
)");
  c.threads = 96;
  c.blocks = 3;
  Words out;
  for (std::uint32_t block = 0; block < 3; ++block)
    for (std::uint32_t thread = 0; thread < 96; ++thread)
      out.insert(out.end(), {thread, thread % 32, thread / 32, block, 3});
  c.input = untouched(16);
  c.expected = bytes_of(out);
  return c;
}

Case shuffles() {
  Case c = threads_case("shuffles", "shuffle shuffle_xor", R"(
const int lane = lane_index();
const u32 mine = input_word(params, thread_index());
for (int i = 0; i < 32; ++i) {
  const int at = 4 * (i * kThreads + thread_index());
  output_float(params, at, shuffle_xor(bits_float(mine), i));
  output_word(params, at + 1, shuffle(mine, i));
  output_word(params, at + 2, shuffle(mine, (lane * 7 + i) % 32));
  output_word(params, at + 3, shuffle(mine, lane + i));
}
)");
  c.threads = 64;
  const Words in = random_words(30, 64);
  Words out;
  for (std::uint32_t i = 0; i < 32; ++i)
    for (std::uint32_t thread = 0; thread < 64; ++thread) {
      const std::uint32_t lane = thread % 32;
      const std::uint32_t* const warp = &in[thread - lane];
      // A lane beyond the last counts from the first again.
      out.insert(out.end(),
                 {warp[lane ^ i], warp[i], warp[(lane * 7 + i) % 32], warp[(lane + i) % 32]});
    }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

Case votes() {
  Case c = threads_case("votes", "any_lane", R"(
const int me = thread_index();
for (int i = 0; i < 34; ++i)
  output_word(params, i * kThreads + me, any_lane((input_word(params, i) >> me % 32 & 1) != 0 &&
                                                  (i < 33 || warp_index() == 1)));
)");
  c.threads = 64;
  Words in(34, 0xffffffffu), out;
  for (std::size_t i = 0; i < 32; ++i) in[i] = 1u << i;
  in[32] = 0;
  for (std::size_t i = 0; i < 34; ++i)
    for (std::size_t thread = 0; thread < 64; ++thread)
      out.push_back(i < 32 || (i == 33 && thread >= 32) ? 1 : 0);
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// What the last warp writes before a barrier, the first reads behind it; and the same within a warp.
Case meetings() {
  Case c = threads_case("meetings", "synchronize_block synchronize_warp", R"(
const u32 shared = shared_memory();
const int me = thread_index();
store_shared_u32(shared + 4 * me, input_word(params, me));
synchronize_block();
output_float(params, me, load_shared_float(shared + 4 * (kThreads - 1 - me)));
synchronize_block();
store_shared_u32(shared + 4 * me, input_word(params, kThreads + me));
synchronize_warp();
output_float(params, kThreads + me, load_shared_float(shared + 4 * (me ^ 31)));
)");
  c.threads = 128;
  c.smem_bytes = 512;
  const Words in = random_words(31, 256);
  Words out(256);
  for (std::size_t i = 0; i < 128; ++i) {
    out[i] = in[127 - i];
    out[128 + i] = in[128 + (i ^ 31u)];
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// The threads of two blocks each take three numbers of 0 to 99, that begin again behind the last, and
// count how often each was taken. The grid's number is there until both blocks are done.
Case counters() {
  Case c = threads_case("counters", "grid_index compare_and_swap increment_within", R"(
u64* const owner = reinterpret_cast<u64*>(params.out);
u32* const words = reinterpret_cast<u32*>(params.out);
const u64 grid = grid_index() + 1;
const u64 found = compare_and_swap(owner, 0, grid);
if (found != 0 && found != grid) increment_within(words + 3, 999);
for (int i = 0; i < 3; ++i) increment_within(words + 4 + increment_within(words + 2, 99), 999);
synchronize_block();
if (thread_index() == 0 && increment_within(words + 104, 1) == 1) compare_and_swap(owner, grid, 0);
)");
  c.threads = 64;
  c.blocks = 2;
  c.reads_output = true;
  c.output = bytes_of(Words(108, 0));
  // 384 numbers: three of each, and some four times.
  Words out(108, 0);
  out[2] = 384 % 100;
  for (std::size_t i = 0; i < 100; ++i) out[4 + i] = i < 384 % 100 ? 4 : 3;
  c.input = untouched(16);
  c.expected = bytes_of(out);
  return c;
}

}  // namespace

std::vector<Case> threads_cases() {
  std::vector<Case> cases = {indices(), shuffles(), votes(), meetings(), counters()};
  for (Case& c : cases)
    if (c.output.empty()) c.output = untouched(c.expected.size());
  return cases;
}

}  // namespace flashwright::conformance
