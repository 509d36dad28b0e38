// Seeded bugs of kernels for sm_90a: one edit of a good kernel each. The emulator has to name every one
// of them, in every mode.
#include <algorithm>
#include <atomic>
#include <thread>

#include "core/error.hpp"
#include "tests/emulator/emulated.hpp"
#include "tests/emulator/sm90_kernels.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using emulator::Kind;

namespace {

// What may catch a bug: findings by name, since some bugs stop a kernel in one order of threads and let
// it go wrong in another; or the comparison with float64 alone.
constexpr std::uint64_t kNumbers = 0;
constexpr std::uint64_t by(Kind kind) { return std::uint64_t{1} << static_cast<int>(kind); }

// Which of the two depends on who waits where.
constexpr std::uint64_t kStuck = by(Kind::deadlock) | by(Kind::early_exit);

struct Bug {
  const char* name;
  const char* kernel;  // of sm90_kernels()
  const char *from, *to;
  std::uint64_t caught_by;
};

constexpr Bug kDescriptorBugs[] = {
    {"steps along k as if read across", "gemm_128", "along_rows(a, k, kTileM)", "a + k * kSwizzle",
     kNumbers},
    {"steps across as if read along k", "gemm_64_across", "(b + k * kSwizzle,", "(b + k * 2,",
     by(Kind::descriptor)},
    {"too few bytes to the next slab", "gemm_64_across", "8 * kSwizzle, kTileK * kSwizzle);",
     "8 * kSwizzle, kTileK / 2 * kSwizzle);", kNumbers},
    {"no bytes to the next slab", "gemm_32_across", "8 * kSwizzle, kTileK * kSwizzle);",
     "8 * kSwizzle, 0);", by(Kind::descriptor)},
    {"too few bytes to the next slab of values", "pipeline", "1024, kTileKv * 128)", "1024, 1024)",
     kNumbers},
    {"too few bytes to the next eight rows", "gemm_128", "along_rows(b, k, kTileN), 8 * kSwizzle",
     "along_rows(b, k, kTileN), 4 * kSwizzle", kNumbers},
    {"no bytes to the next eight rows", "pipeline", "(keys + k * 2, 1024, 0)",
     "(keys + k * 2, 0, 0)", by(Kind::descriptor)},
    {"slabs of 64 rows where there are 128", "gemm_64", "k / kSlab * rows * kSwizzle",
     "k / kSlab * 64 * kSwizzle", kNumbers},
    {"a wider swizzle than the tile has", "gemm_64", "tile_descriptor<kSwizzle>(along_rows(b",
     "tile_descriptor<128>(along_rows(b", by(Kind::shared_uninitialised)},
    {"a narrower swizzle than the tile has", "cluster", "tile_descriptor<128>(b + k * 2, 1024, 0)",
     "tile_descriptor<64>(b + k * 2, 1024, 0)", by(Kind::descriptor)},
    {"an output tile with another swizzle than its map", "gemm_128", "(chunk ^ row % 8)",
     "(chunk ^ row % 4)", kNumbers},
    {"a tile that begins within the pattern of the swizzle", "gemm_128",
     "  const u32 b = stage + kBytesA;\n", "  const u32 b = stage + kBytesA + 128;\n",
     by(Kind::tile_alignment)},
    {"memory that is aligned to less than a tile needs", "gemm_128",
     "const u32 memory = swizzled_memory();", "const u32 memory = shared_memory();",
     by(Kind::shared_alignment)},
    {"bytes that are no map", "pipeline", "kKeysBytes, params.k, full",
     "kKeysBytes, reinterpret_cast<const TensorMap&>(params.q.word[8]), full",
     by(Kind::tensor_map)},
    {"a box at the wrong place", "gemm_128", "column + 64, row, 0, 0", "column + 128, row, 0, 0",
     kNumbers},
    {"a tile of the other operand's rows", "cluster", "column + rank * kHalfB, 0, 0, kBoth",
     "column, 0, 0, kBoth", kNumbers},
};

constexpr const char* kReleaseStage =
    "  wait_products<0>();\n  hold(d);\n"
    "  if (thread_index() % 128 == 0) arrive(memory + kEmpty + ring.stage * 8);\n";
constexpr const char* kReleaseValues =
    "    wait_products<0>();\n    hold(out);\n"
    "    release(memory + kValuesEmpty + values.stage * 8);\n";

constexpr Bug kBarrierBugs[] = {
    {"another stage than the one that is full", "gemm_128",
     "stage = memory + ring.stage * kStageBytes;\n  const u32 a",
     "stage = memory + (kStages - 1 - ring.stage) * kStageBytes;\n  const u32 a", by(Kind::race)},
    {"no wait for an empty stage", "gemm_128",
     "      wait_barrier(memory + kEmpty + ring.stage * 8, ring.parity ^ 1);\n", "",
     by(Kind::barrier_misuse)},
    {"no wait for a full stage", "gemm_128",
     "  wait_barrier(memory + kFull + ring.stage * 8, ring.parity);\n", "", by(Kind::race)},
    {"the parity of the last phase, when waiting for a full stage", "gemm_128",
     "kFull + ring.stage * 8, ring.parity)", "kFull + ring.stage * 8, ring.parity ^ 1)",
     by(Kind::race) | kStuck},
    {"the parity of the last phase, when waiting for an empty stage", "gemm_128",
     "kEmpty + ring.stage * 8, ring.parity ^ 1)", "kEmpty + ring.stage * 8, ring.parity)",
     by(Kind::deadlock)},
    {"a parity that does not change with the phase", "gemm_128", "    parity ^= 1;\n", "",
     by(Kind::barrier_misuse)},
    {"a stage given back before its products are done", "gemm_128", kReleaseStage,
     "  if (thread_index() % 128 == 0) arrive(memory + kEmpty + ring.stage * 8);\n"
     "  wait_products<0>();\n  hold(d);\n",
     by(Kind::race)},
    {"values given back before their products are done", "pipeline", kReleaseValues,
     "    release(memory + kValuesEmpty + values.stage * 8);\n"
     "    wait_products<0>();\n    hold(out);\n",
     by(Kind::race)},
    {"queries given back before the last tile of keys", "pipeline",
     "  for (int key = kTileKv; key < params.seq_kv; key += kTileKv) {\n    wait_barrier",
     "  release(memory + kQueriesEmpty);\n"
     "  for (int key = kTileKv; key < params.seq_kv; key += kTileKv) {\n    wait_barrier",
     by(Kind::race)},
    {"one warpgroup alone gives stages back", "gemm_128", "if (thread_index() % 128 == 0) arrive(",
     "if (thread_index() == 0) arrive(", by(Kind::deadlock)},
    {"every warp gives stages back", "gemm_128", "if (thread_index() % 128 == 0) arrive(",
     "if (thread_index() % 32 == 0) arrive(", by(Kind::barrier_misuse)},
    {"barriers that are not published", "gemm_128", "  publish_barriers();\n", "",
     by(Kind::barrier_misuse)},
    {"a barrier that is not made", "gemm_128",
     "    init_barrier(memory + kEmpty + stage * 8, kGroups);\n",
     "    if (stage > 0) init_barrier(memory + kEmpty + stage * 8, kGroups);\n",
     by(Kind::barrier_misuse)},
    {"a barrier that is used before it is made", "gemm_128",
     "  if (thread_index() == 0) make_barriers(memory);\n  synchronize_block();\n",
     "  if (thread_index() == 0) make_barriers(memory);\n",
     by(Kind::barrier_misuse) | by(Kind::race)},
    {"a barrier that waits for too few", "gemm_128", "kEmpty + stage * 8, kGroups)",
     "kEmpty + stage * 8, 1)", by(Kind::barrier_misuse)},
    {"a barrier that waits for too many", "gemm_128", "kEmpty + stage * 8, kGroups)",
     "kEmpty + stage * 8, kGroups + 1)", by(Kind::deadlock)},
    {"sums of rows in place of a barrier", "reduce", "store_shared_float(memory + kSums + (row",
     "store_shared_float(memory + kFull + 0 * (row", by(Kind::barrier_misuse)},
    {"fewer bytes expected than come", "gemm_128", "arrive_expecting(full, kStageBytes)",
     "arrive_expecting(full, kStageBytes - 16)", by(Kind::transaction_bytes)},
    {"more bytes expected than come", "gemm_128", "arrive_expecting(full, kStageBytes)",
     "arrive_expecting(full, kStageBytes + 16)", by(Kind::transaction_bytes)},
    {"bytes of one slab expected where two come", "pipeline",
     "arrive_expecting(full, kValuesBytes)", "arrive_expecting(full, kValuesBytes / 2)",
     by(Kind::transaction_bytes)},
    {"loads that nobody waits for", "gemm_128",
     "    for (int k = 0; k < params.depth; k += kTileK) {\n",
     "    for (int k = 0; k < params.depth + kTileK; k += kTileK) {\n",
     by(Kind::copy_not_waited_for)},
    {"no wait for the factors", "reduce", "  wait_barrier(memory + kFactorsFull, 0);\n", "",
     by(Kind::race)},
    {"a parity that changes with every tile", "reduce", "static_cast<u32>(tile / 2 % 2)",
     "static_cast<u32>(tile % 2)", by(Kind::copy_in_flight) | by(Kind::race) | kStuck},
    {"a named barrier for more threads than come", "gemm_128", "synchronize_named<2, 128>",
     "synchronize_named<2, 256>", by(Kind::deadlock)},
    {"threads that expect different numbers at a named barrier", "gemm_128",
     "synchronize_named<2, 128>", "synchronize_named<1, 256>",
     by(Kind::divergent_barrier) | kStuck},
    {"two warpgroups at one named barrier", "gemm_128", "synchronize_named<2, 128>",
     "synchronize_named<1, 128>", by(Kind::divergent_barrier)},
    {"threads that come twice to a named barrier", "pipeline",
     "    arrive_named(2 - group, 256);\n",
     "    arrive_named(2 - group, 256);\n    arrive_named(2 - group, 256);\n",
     by(Kind::divergent_barrier)},
    {"no first turn", "pipeline", "  if (group == 1) arrive_named(1, 256);  // the first turn\n",
     "", by(Kind::deadlock)},
};

constexpr const char* kWaitAndPack =
    "    wait_products<0>();\n    hold(out);\n"
    "    release(memory + kValuesEmpty + values.stage * 8);\n    values.advance();\n"
    "    pack_weights(weights, scores);\n    rescale_output(out, rescale);\n";

constexpr Bug kProductBugs[] = {
    {"a wait one too lax, for a sum", "gemm_128", "wait_products<0>();", "wait_products<1>();",
     by(Kind::accumulator_in_flight)},
    {"a wait one too lax, for a stage", "gemm_128", "wait_products<0>();", "wait_products<1>();",
     by(Kind::race)},
    {"scores read before the wait", "pipeline", "    wait_products<1>();\n    hold(scores);\n",
     "    wait_products<2>();\n", by(Kind::accumulator_in_flight)},
    {"scores read before the wait for both products", "pipeline", "    wait_products<1>();\n", "",
     by(Kind::accumulator_in_flight)},
    {"output rescaled while products add to it", "pipeline", kWaitAndPack,
     "    rescale_output(out, rescale);\n    wait_products<0>();\n    hold(out);\n"
     "    release(memory + kValuesEmpty + values.stage * 8);\n    values.advance();\n"
     "    pack_weights(weights, scores);\n",
     by(Kind::accumulator_in_flight)},
    {"weights overwritten while a product reads them", "pipeline", kWaitAndPack,
     "    pack_weights(weights, scores);\n    wait_products<0>();\n    hold(out);\n"
     "    release(memory + kValuesEmpty + values.stage * 8);\n    values.advance();\n"
     "    rescale_output(out, rescale);\n",
     by(Kind::operand_in_flight)},
    {"no fence before a product", "gemm_128", "  fence_products();\n", "", by(Kind::product_fence)},
    {"no fence before the first product of an item", "pipeline",
     "  fence_products();\n  start_scores", "  start_scores", by(Kind::product_fence)},
    {"no commit", "gemm_128", "  commit_products();\n", "", by(Kind::accumulator_in_flight)},
    {"two products in one group", "pipeline",
     "      wgmma_ss_n64_kk(scores, a, b);\n  }\n  commit_products();\n",
     "      wgmma_ss_n64_kk(scores, a, b);\n  }\n", by(Kind::accumulator_in_flight)},
    {"a last product that nobody waits for", "gemm_128",
     "    store_output(params, d, memory + kOut + group * kOutBytes, tile, group);\n",
     "    fence_products();\n    multiply_step<false>(d, memory, memory, 0);\n"
     "    commit_products();\n",
     by(Kind::products_not_waited_for)},
    {"a product that three warps start", "gemm_128", "  multiply_step<kFirst>(d, a, b, 0);\n",
     "  if (warp_index() % 4 < 3) multiply_step<kFirst>(d, a, b, 0);\n",
     by(Kind::divergent_collective)},
    {"a product in a branch of half a warp", "gemm_128", "  multiply_step<kFirst>(d, a, b, 0);\n",
     "  if (lane_index() < 16) multiply_step<kFirst>(d, a, b, 0);\n",
     by(Kind::divergent_collective)},
    {"always the sums of before", "gemm_128", "multiply_stage<false>(d, memory, ring, group);",
     "multiply_stage<true>(d, memory, ring, group);", kNumbers},
    {"another order of weights", "pipeline", "weights[i / 4][i % 4] = pack_pair",
     "weights[i / 4][i % 4 ^ 1] = pack_pair", kNumbers},
    {"more registers than there are", "gemm_128", "take_registers<240>", "take_registers<248>",
     by(Kind::deadlock)},
    {"too few registers given", "gemm_128", "give_registers<24>", "give_registers<32>",
     by(Kind::deadlock)},
    {"registers for one warp of four", "gemm_128", "  take_registers<240>();\n",
     "  if (warp_index() % 4 == 0) take_registers<240>();\n",
     by(Kind::register_count) | by(Kind::divergent_collective)},
    {"registers taken where fewer are wanted", "gemm_128", "give_registers<24>",
     "take_registers<24>", by(Kind::register_count)},
};

constexpr const char* kElect = "if (warp_index() % 4 == 0 && elect_lane()) load_tiles";

constexpr Bug kAsyncBugs[] = {
    {"no fence before a store", "gemm_128", "  fence_async_shared();\n", "", by(Kind::async_proxy)},
    {"a fence of half the warps", "gemm_128", "  fence_async_shared();\n",
     "  if (warp_index() % 4 < 2) fence_async_shared();\n", by(Kind::async_proxy)},
    {"an operand written without a fence", "gemm_128",
     "  fence_products();\n  multiply_step<kFirst>",
     "  if (thread_index() % 128 == 0) store_shared_u32(a, 0u);\n"
     "  synchronize_named(3 + group, 128);\n  fence_products();\n  multiply_step<kFirst>",
     by(Kind::async_proxy)},
    {"a fence of the storing thread alone", "gemm_128",
     "  fence_async_shared();\n  synchronize_group(group);\n  if (!leader) return;\n",
     "  synchronize_group(group);\n  if (!leader) return;\n  fence_async_shared();\n",
     by(Kind::async_proxy)},
    {"no barrier before a store", "gemm_128",
     "  fence_async_shared();\n  synchronize_group(group);\n", "  fence_async_shared();\n",
     by(Kind::race)},
    {"output in memory that is still being stored", "gemm_128",
     "  if (leader) wait_stores_read<0>();\n", "", by(Kind::race)},
    {"another thread waits for the stores", "gemm_128", "  if (leader) wait_stores_read<0>();\n",
     "  if (thread_index() % 128 == 32) wait_stores_read<0>();\n", by(Kind::race)},
    {"another lane than the elected one waits for the stores", "gemm_128",
     "  if (leader) wait_stores_read<0>();\n",
     "  if (thread_index() % 128 == 0) wait_stores_read<0>();\n", by(Kind::race)},
    {"stores that nobody waits for", "gemm_128",
     "  if (warp_index() % 4 == 0 && elect_lane()) wait_stores<0>();\n", "",
     by(Kind::store_not_waited_for)},
    {"stores in no group", "gemm_128", "  commit_stores();\n", "", by(Kind::store_not_waited_for)},
    {"a wait for stores one too lax", "reduce", "wait_stores_read<1>", "wait_stores_read<2>",
     by(Kind::race)},
    {"sums added without a fence", "reduce", "    fence_async_shared();\n", "",
     by(Kind::async_proxy)},
    {"no barrier between a tile's readers and what is loaded there", "reduce",
     "    synchronize_block();\n    if (leader) add_tile", "    if (leader) add_tile",
     by(Kind::race)},
    {"a box that begins within 16 bytes of its row", "gemm_128", "k + slab * kSlab, row, 0, 0",
     "k + slab * kSlab + 4, row, 0, 0", by(Kind::global_alignment)},
    {"a box that begins within 16 bytes outside of the tensor", "gemm_128",
     "k + slab * kSlab, row, 0, 0", "k + slab * kSlab - 1000 * kTileK - 1, row, 0, 0",
     by(Kind::global_alignment)},
    {"a box for several blocks that begins within 16 bytes", "cluster", "params.b, full, k,",
     "params.b, full, k + 1,", by(Kind::global_alignment)},
    {"a box of five dimensions that begins within 16 bytes", "reduce", "params.in, full, column, 0",
     "params.in, full, column - 2, 0", by(Kind::global_alignment)},
    {"a stored box that begins within 16 bytes", "gemm_128", "params.c, out, column, row",
     "params.c, out, column + 4, row", by(Kind::global_alignment)},
    {"an added box that begins within 16 bytes", "reduce", "column * kColumns, row * kRows, 0, 0",
     "column * kColumns + 2, row * kRows, 0, 0", by(Kind::global_alignment)},
    {"a stored box that begins before the tensor", "gemm_128", "params.c, out, column, row",
     "params.c, out, column - 4096, row", by(Kind::global_bounds)},
    {"an added box that begins before the tensor", "reduce", "column * kColumns, row * kRows, 0, 0",
     "column * kColumns, row * kRows, 0, -1", by(Kind::global_bounds)},
    {"a row that is no multiple of 16 bytes", "reduce", "sums, kRows * 4);\n  store_row",
     "sums, kRows * 4 - 4);\n  store_row", by(Kind::global_alignment)},
    {"a row stored behind the end of memory", "reduce",
     "params.own_row_sums + (block_index() * params.row_tiles + row) * kRows",
     "params.own_row_sums + (block_index() * params.row_tiles + row + 1) * kRows",
     by(Kind::global_bounds)},
    {"a lane elected in half a warp", "gemm_128", kElect,
     "if (warp_index() % 4 == 0 && lane_index() < 16 && elect_lane()) load_tiles",
     by(Kind::early_exit)},
    {"every lane loads", "gemm_128", kElect, "if (warp_index() % 4 == 0) load_tiles",
     by(Kind::barrier_misuse)},
    {"a multicast to one block", "cluster", "kBoth = 3", "kBoth = 1", by(Kind::transaction_bytes)},
    {"a stage given back to the own block alone", "cluster", "static_cast<u32>(thread_index())))",
     "cluster_rank()))", by(Kind::race)},
    {"an address without its block", "cluster",
     "arrive_remote(address_in_block(memory + kEmpty + ring.stage * 8,\n"
     "                                   static_cast<u32>(thread_index())));",
     "arrive_remote(memory + kEmpty + ring.stage * 8);", by(Kind::race)},
    {"a barrier that does not count the peer", "cluster", "kEmpty + stage * 8, kBlocks)",
     "kEmpty + stage * 8, 1)", by(Kind::barrier_misuse)},
    {"a barrier used before the peer has made it", "cluster", "  }\n  synchronize_cluster();\n}",
     "  }\n  synchronize_block();\n}", by(Kind::barrier_misuse) | by(Kind::race)},
    {"a block that exits while its peer goes on", "cluster",
     "its peer.\n  synchronize_cluster();\n", "its peer.\n", by(Kind::peer_exited)},
};

Sm90Size size_of(const Sm90Kernel& kernel) {
  const std::string file = kernel.file;
  if (file == "gemm") return {100, 200, 330, 1};
  if (file == "cluster") return {128, 100, 330, 0};
  if (file == "pipeline") return {140, 1, 260, 1};
  return {70, 100, 2, 0};
}

// "" or why a bug escapes in one mode.
std::string escape_of(const Bug& bug, const emulator::HostUnit& unit, const Sm90Problem& problem,
                      emulator::Mode mode) {
  const emulator::RunReport report = run(unit, problem, {mode, true, test_seed(), 1'000'000, 1});
  const std::string where = std::string(emulator::to_string(mode)) + ": ";
  if (bug.caught_by == kNumbers) {
    if (!report.findings.empty()) return where + text_of(report);
    return problem.fault().empty() ? where + "the numbers are right\n" : "";
  }
  for (const emulator::Finding& finding : report.findings)
    if ((by(finding.kind) & bug.caught_by) != 0) return {};
  return where + (report.findings.empty() ? "nothing found\n" : text_of(report));
}

// "" or why a bug escapes.
std::string escape_of(const Bug& bug) {
  const Sm90Kernel& kernel = sm90_kernel(bug.kernel);
  std::string body = body_of(kernel);
  const std::size_t at = body.find(bug.from);
  if (at == std::string::npos) return "the kernel no longer holds the text of the edit";
  body.replace(at, std::string(bug.from).size(), bug.to);
  std::string escapes;
  try {
    const emulator::HostUnit unit(
        emulator::translate_entry(text_of(kernel, body), "kernel.cu", entry_of(kernel)));
    const Sm90Problem problem = make_problem(kernel, size_of(kernel), 3);
    for (const emulator::Mode mode : kModes) escapes += escape_of(bug, unit, problem, mode);
  } catch (const Error& error) {
    return error.message + '\n' + error.detail;
  }
  return escapes;
}

// Compiling takes most of the time, so all cores share the bugs.
template <std::size_t kCount>
void check_bugs(const Bug (&bugs)[kCount]) {
  std::vector<std::string> escapes(kCount);
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < kCount; at = next++) escapes[at] = escape_of(bugs[at]);
    });
  threads.clear();
  for (std::size_t i = 0; i < kCount; ++i) {
    CAPTURE(std::string(bugs[i].name));
    CHECK(escapes[i] == "");
  }
  MESSAGE(kCount << " bugs");
}

}  // namespace

TEST_CASE("bugs of descriptors, tiles and maps are named in every mode") {
  if (compiler_here("seeded bugs of sm_90a: descriptors")) check_bugs(kDescriptorBugs);
}

TEST_CASE("bugs of barriers are named in every mode") {
  if (compiler_here("seeded bugs of sm_90a: barriers")) check_bugs(kBarrierBugs);
}

TEST_CASE("bugs of products and registers are named in every mode") {
  if (compiler_here("seeded bugs of sm_90a: products")) check_bugs(kProductBugs);
}

TEST_CASE("a tensor whose rows no box may be stored into is named") {
  if (!compiler_here("stores into rows that are no multiples of 16 bytes")) return;
  const Sm90Kernel& kernel = sm90_kernel("gemm_128");
  const emulator::HostUnit unit(
      emulator::translate_entry(text_of(kernel, body_of(kernel)), "kernel.cu", entry_of(kernel)));
  const Sm90Problem problem = make_problem(kernel, {100, 203, 330, 1}, 3);
  const emulator::RunReport report =
      run(unit, problem, {emulator::Mode::early, true, test_seed(), 1'000'000, 1});
  CHECK(contains(text_of(report), "stores a box into rows of 406 bytes; allowed: multiples of 16"));
}

TEST_CASE("bugs of copies, fences and clusters are named in every mode") {
  if (compiler_here("seeded bugs of sm_90a: copies")) check_bugs(kAsyncBugs);
}
