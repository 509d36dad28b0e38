// How threads meet on sm_90a: mbarriers, named barriers, clusters, registers, kernels in a stream.
#include "tests/conformance/case.hpp"
#include "tests/conformance/values.hpp"

namespace flashwright::conformance {
namespace {

using Words = std::vector<std::uint32_t>;

Case barrier_case(const std::string& name, const std::string& covers, int threads,
                  const std::string& body) {
  Case c;
  c.group = "barriers";
  c.name = name;
  c.covers = covers;
  c.needs = Needs::sm_90a;
  c.threads = threads;
  c.body = body;
  return c;
}

// Five phases. In each, two threads write and arrive; all others wait for its parity and read. A new
// barrier counts as past a phase of parity 1, so the first wait returns at once.
Case parities() {
  Case c = barrier_case("parities", "init_barrier publish_barriers arrive wait_barrier", 96, R"(
const u32 slots = shared_memory(), barrier = slots + 64;
const int me = thread_index();
if (me == 0) {
  init_barrier(barrier, 2);
  publish_barriers();
}
synchronize_block();
wait_barrier(barrier, 1);
output_word(params, me, 1);
synchronize_block();
for (int phase = 0; phase < 5; ++phase) {
  if (me % 64 == 5) {
    store_shared_u32(slots + me / 64 * 4, input_word(params, 2 * phase + me / 64));
    arrive(barrier);
  }
  wait_barrier(barrier, phase & 1);
  output_float(params, (1 + phase) * kThreads + me, load_shared_float(slots + me % 2 * 4));
  synchronize_block();
}
)");
  c.smem_bytes = 128;
  const Words in = random_words(400, 10);
  Words out(96, 1);
  for (std::size_t phase = 0; phase < 5; ++phase)
    for (std::size_t me = 0; me < 96; ++me) out.push_back(in[2 * phase + me % 2]);
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// All threads arrive, for three phases without any other meeting between them.
Case many_arrivals() {
  Case c = barrier_case("many_arrivals", "arrive wait_barrier", 128, R"(
const u32 shared = shared_memory(), barrier = shared + 512;
const int me = thread_index();
if (me == 0) {
  init_barrier(barrier, kThreads);
  publish_barriers();
}
synchronize_block();
store_shared_u32(shared + 4 * me, input_word(params, me));
arrive(barrier);
wait_barrier(barrier, 0);
output_float(params, me, load_shared_float(shared + 4 * (me ^ 127)));
arrive(barrier);
wait_barrier(barrier, 1);
store_shared_u32(shared + 4 * me, input_word(params, 128 + me));
arrive(barrier);
wait_barrier(barrier, 0);
output_float(params, 128 + me, load_shared_float(shared + 4 * (me ^ 96)));
)");
  c.smem_bytes = 520;
  const Words in = random_words(401, 256);
  Words out(256);
  for (std::size_t me = 0; me < 128; ++me) {
    out[me] = in[me ^ 127u];
    out[128 + me] = in[128 + (me ^ 96u)];
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// Two warps write and go on, two wait and read, several times; then pairs of warps meet at barriers
// whose numbers they compute.
Case named_barriers() {
  Case c = barrier_case("named_barriers", "synchronize_named arrive_named", 128, R"(
const u32 shared = shared_memory();
const int me = thread_index(), pair = warp_index() / 2;
for (int round = 0; round < 3; ++round) {
  if (pair == 1) {
    if (round > 0) synchronize_named<15, 128>();
    store_shared_u32(shared + 4 * (me - 64), input_word(params, round * 64 + me - 64));
    arrive_named(1, 128);
  } else {
    synchronize_named<1, 128>();
    output_float(params, round * 64 + me, load_shared_float(shared + 4 * (me ^ 33)));
    if (round < 2) arrive_named(15, 128);
  }
}
synchronize_block();
store_shared_u32(shared + 4 * me, input_word(params, 192 + me));
synchronize_named(2 + pair, 64);
output_float(params, 192 + me, load_shared_float(shared + 4 * (me ^ 63)));
)");
  c.smem_bytes = 512;
  const Words in = random_words(402, 320);
  Words out(320);
  for (std::size_t i = 0; i < 192; ++i) out[i] = in[i / 64 * 64 + (i % 64 ^ 33u)];
  for (std::size_t me = 0; me < 128; ++me) out[192 + me] = in[192 + (me ^ 63u)];
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// One lane of each warp, and the same one again; which one is not said.
Case elected() {
  Case c = barrier_case("elect", "elect_lane", 96, R"(
const bool first = elect_lane();
float count = first ? 1.0f : 0.0f;
for (int bits = 16; bits > 0; bits /= 2) count = count + shuffle_xor(count, bits);
const bool again = elect_lane();
output_float(params, 2 * thread_index(), count);
output_word(params, 2 * thread_index() + 1, any_lane(first != again) ? 1 : 0);
)");
  Words out;
  for (int i = 0; i < 96; ++i) out.insert(out.end(), {bits_of(1.0f), 0});
  c.input = untouched(16);
  c.expected = bytes_of(out);
  return c;
}

// One warpgroup gives registers, two take them.
Case registers() {
  Case c = barrier_case("registers", "take_registers give_registers", 384, R"(
if (warp_index() < 4) {
  give_registers<40>();
  output_word(params, thread_index(), input_word(params, thread_index()) + 1);
} else {
  take_registers<232>();
  output_word(params, thread_index(), input_word(params, thread_index()) + 2);
}
)");
  c.blocks_per_sm = 1;
  Words in = random_words(403, 384), out = in;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] += i < 128 ? 1 : 2;
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

// Without another kernel in the stream both return at once.
Case neighbours() {
  Case c = barrier_case("kernels_in_a_stream", "start_next_kernel wait_for_previous_kernel", 64, R"(
start_next_kernel();
wait_for_previous_kernel();
output_word(params, thread_index(), input_word(params, thread_index()));
)");
  c.input = bytes_of(random_words(404, 64));
  c.expected = c.input;
  return c;
}

// Arrivals at the other block's barrier, then at the own one by the way of the cluster.
Case clusters() {
  Case c = barrier_case("clusters",
                        "cluster_rank address_in_block arrive_remote synchronize_cluster", 64, R"(
const u32 barrier = shared_memory(), rank = cluster_rank();
const int at = static_cast<int>(block_index()) * kThreads * 3 + thread_index();
if (thread_index() == 0) {
  init_barrier(barrier, 33);
  publish_barriers();
}
synchronize_cluster();
if (warp_index() == 0) arrive_remote(address_in_block(barrier, rank ^ 1));
if (thread_index() == 40) arrive(barrier);
wait_barrier(barrier, 0);
output_word(params, at, rank);
synchronize_block();
if (warp_index() == 1) arrive_remote(address_in_block(barrier, rank));
if (thread_index() == 3) arrive(barrier);
wait_barrier(barrier, 1);
output_word(params, at + kThreads, input_word(params, at));
synchronize_cluster();
output_word(params, at + 2 * kThreads, rank + 10);
)");
  c.attributes = "__cluster_dims__(2, 1, 1)";
  c.blocks = 4;
  c.smem_bytes = 16;
  const Words in = random_words(405, 4 * 192);
  Words out(in.size());
  for (std::uint32_t i = 0; i < out.size(); ++i) {
    const std::uint32_t block = i / 192, part = i % 192 / 64;
    out[i] = part == 0 ? block % 2 : part == 1 ? in[i - 64] : block % 2 + 10;
  }
  c.input = bytes_of(in);
  c.expected = bytes_of(out);
  return c;
}

}  // namespace

std::vector<Case> barrier_cases() {
  std::vector<Case> cases = {elected(),       neighbours(),     registers(), parities(),
                             many_arrivals(), named_barriers(), clusters()};
  for (Case& c : cases) c.output = untouched(c.expected.size());
  return cases;
}

}  // namespace flashwright::conformance
