#include "generator/sm80/family_sm80.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/dtype.hpp"
#include "core/traffic.hpp"
#include "generator/sm80/backward_sm80.hpp"
#include "generator/sm80/emit_sm80.hpp"
#include "generator/sm80/layout_sm80.hpp"
#include "generator/sm80/model_sm80.hpp"
#include "generator/verdict.hpp"

namespace flashwright {
namespace {

constexpr int kMaxRegisters = 255;   // per thread, by the instruction encoding
constexpr int kReservedSmem = 1024;  // the system takes this of every resident block

// Registers that the compiler may give a thread so that `blocks` blocks fit.
int register_cap(int threads, int blocks, int registers_per_sm) {
  return std::min(kMaxRegisters, registers_per_sm / (threads * blocks) / 8 * 8);
}

// A thread keeps to one column of 16-byte chunks when it copies a tile.
void check_threads(Verdict& verdict, const Problem& problem, const Schedule& s) {
  const int chunks = std::max(sm80::row_chunks(problem.dtype, problem.head_dim),
                              sm80::row_chunks(problem.dtype, problem.head_dim_v));
  verdict.require(
      32 * s.warps >= chunks,
      fmt::format("{} threads cannot copy a row of {} chunks at once", 32 * s.warps, chunks));
}

void check_knobs(Verdict& verdict, const Problem& problem, const Schedule& s) {
  verdict.require(s.keys_per_block == 0 && s.query_step == 0 && s.split_keys == 0,
                  "keys_per_block, query_step and split_keys are knobs of the backward pass");
  verdict.one_of("warps", s.warps, {1, 2, 4, 8});
  verdict.one_of("stages", s.stages, {1, 2, 3});
  verdict.one_of("q_in_registers", s.q_in_registers, {0, 1});
  verdict.require(s.q_in_registers == 0 || problem.dtype != DType::fp32,
                  "q_in_registers is 1; allowed with fp32: 0");
  verdict.one_of("lazy_rescale", s.lazy_rescale, {0, 1});
  verdict.one_of("blocks_per_sm", s.blocks_per_sm, {1, 2, 3, 4, 5, 6, 7, 8});
  if (!verdict.legal()) return;
  verdict.require(s.tile_q == 16 * s.warps || s.tile_q == 32 * s.warps,
                  fmt::format("tile_q is {}; allowed: 16 or 32 rows for each of the {} warps",
                              s.tile_q, s.warps));
  // A keep word of the dropout holds 32 keys and is drawn by the tile that it lies in.
  const bool whole_words = !problem.dropout || s.tile_kv == 16 || s.tile_kv % 32 == 0;
  verdict.require(
      s.tile_kv >= 16 && s.tile_kv <= 256 && s.tile_kv % 16 == 0 && whole_words,
      fmt::format("tile_kv is {}; allowed: {}", s.tile_kv,
                  problem.dropout ? "16 and 32..256 in steps of 32" : "16..256 in steps of 16"));
}

void check_foreign_knobs(Verdict& verdict, const Schedule& s) {
  verdict.require(s.ping_pong == 0 && s.persistent == 0 && s.longest_first == 0 &&
                      s.half_tiles == 0 && s.query_prefetch == 0 && s.pack_heads == 0 &&
                      s.cluster == 0 && s.emulated_exp2 == 0 && s.late_lse == 0 &&
                      s.add_queries == 0,
                  "ping_pong, persistent, longest_first, half_tiles, query_prefetch, pack_heads, "
                  "cluster, emulated_exp2, late_lse and add_queries "
                  "are knobs of sm90; allowed: 0");
  verdict.require(
      s.key_block == 0 && s.dim_block == 0 && s.unroll == 0 && s.tasks == 0 && s.query_tiles == 0,
      "key_block, dim_block, unroll, tasks and query_tiles are knobs of the CPU");
}

int shared_bytes(const Problem& problem, const Schedule& s) {
  if (problem.direction == Direction::backward) {
    const sm80::BackwardLayout sizes = sm80::backward_layout(problem, s);
    return std::max(sizes.dq_bytes, sizes.dk_dv_bytes);
  }
  if (problem.algorithm == Algorithm::unfused) {
    const sm80::UnfusedLayout sizes = sm80::unfused_layout(problem, s);
    return std::max(sizes.scores_bytes, sizes.output_bytes);
  }
  return sm80::layout(problem, s).smem_bytes;
}

void check_device(Verdict& verdict, const Problem& problem, const DeviceInfo& device,
                  const Schedule& s, const Estimate& estimate) {
  const ArchInfo& arch = arch_info(problem.target);
  verdict.require(estimate.smem_bytes <= device.smem_per_block,
                  fmt::format("needs {} bytes of shared memory; a block has {}",
                              estimate.smem_bytes, device.smem_per_block));
  verdict.require(
      s.blocks_per_sm * (estimate.smem_bytes + kReservedSmem) <= device.smem_per_sm,
      fmt::format("{} blocks need {} bytes of shared memory each; a multiprocessor has {}",
                  s.blocks_per_sm, estimate.smem_bytes + kReservedSmem, device.smem_per_sm));
  verdict.require(s.blocks_per_sm * estimate.threads <= arch.threads_per_sm,
                  fmt::format("{} blocks of {} threads; a multiprocessor has {}", s.blocks_per_sm,
                              estimate.threads, arch.threads_per_sm));
  const int cap = register_cap(estimate.threads, s.blocks_per_sm, arch.registers_per_sm);
  verdict.require(estimate.registers <= cap,
                  fmt::format("needs about {} registers per thread; {} blocks leave {}",
                              estimate.registers, s.blocks_per_sm, cap));
}

constexpr std::array<int, 6> kBlocksPerSm = {1, 2, 3, 4, 6, 8};  // of the space

// With the same register cap, asking for more resident blocks gives the same code: keep the
// largest of the space.
void check_twins(Verdict& verdict, const Problem& problem, const DeviceInfo& device,
                 const Schedule& s, const Estimate& estimate) {
  const auto* const next =
      std::upper_bound(kBlocksPerSm.begin(), kBlocksPerSm.end(), s.blocks_per_sm);
  if (!verdict.legal() || next == kBlocksPerSm.end()) return;
  Verdict twin;
  Schedule more = s;
  more.blocks_per_sm = *next;
  check_device(twin, problem, device, more, estimate);
  const int registers = arch_info(problem.target).registers_per_sm;
  verdict.require(
      !twin.legal() || register_cap(estimate.threads, s.blocks_per_sm, registers) !=
                           register_cap(estimate.threads, more.blocks_per_sm, registers),
      fmt::format("the same code as with {} blocks per multiprocessor", more.blocks_per_sm));
}

Candidate examine(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                  const Schedule& s, bool drop_twins) {
  Candidate out;
  out.schedule = s;
  Verdict verdict;
  check_foreign_knobs(verdict, s);
  if (problem.direction == Direction::backward) {
    sm80::check_backward_knobs(verdict, problem, s);
  } else {
    check_knobs(verdict, problem, s);
  }
  if (verdict.legal()) check_threads(verdict, problem, s);
  if (verdict.legal()) {
    out.estimate.threads = 32 * s.warps;
    out.estimate.smem_bytes = shared_bytes(problem, s);
    out.estimate.registers = sm80::estimate_registers(problem, s);
    check_device(verdict, problem, device, s, out.estimate);
    if (drop_twins) check_twins(verdict, problem, device, s, out.estimate);
  }
  out.rejected = verdict.reason();
  if (verdict.legal()) out.estimate.time_us = sm80::model_time_us(problem, device, shape, s);
  return out;
}

// Good schedules found by measurement (docs/performance.md), tried in order until one is legal. None of them spills
// on any known architecture, but fp32 with head dims above 128 sometimes one register: a test compiles them all.
enum class Use {
  unbiased,         // as plain, without ALiBi
  narrow_values,    // as plain, and values no wider than keys
  plain,            // 16 bits, neither dropout nor block lists
  not_both,         // 16 bits, not dropout and block lists together
  any,              // 16 bits
  single_not_both,  // fp32, not dropout and block lists together
  single,           // fp32
};
struct Seed {
  int max_head_dim;  // of keys or values
  Use use;
  const char* schedule;
};
// clang-format off
constexpr std::array<Seed, 23> kSeeds = {{
    {64, Use::unbiased, "q128.kv96.w4.st2.b2"},
    {64, Use::not_both, "q128.kv64.w4.st2.b2"},
    {64, Use::not_both, "q128.kv64.w4.st1.b2"},
    {64, Use::any, "q64.kv64.w4.st2.b2"},
    {64, Use::any, "q64.kv64.w4.st1.b2"},
    {96, Use::plain, "q128.kv48.w4.st2.b2"},
    {96, Use::not_both, "q128.kv32.w4.st2.b2"},
    {128, Use::narrow_values, "q128.kv32.w4.st2.b2.lz1"},
    {128, Use::plain, "q128.kv32.w4.st1.b2.lz1"},
    {128, Use::any, "q64.kv128.w4.st1.b2"},
    {128, Use::any, "q64.kv64.w4.st1.b2"},
    {128, Use::any, "q64.kv64.w4.st1.qr1.b2"},
    {192, Use::not_both, "q64.kv96.w4.st1.b2"},
    {192, Use::any, "q64.kv64.w4.st1.b2"},
    {192, Use::any, "q64.kv32.w4.st1.b1"},
    {256, Use::plain, "q64.kv64.w4.st1.b2"},
    {256, Use::plain, "q64.kv64.w4.st1.b1"},
    {256, Use::any, "q64.kv32.w4.st1.b2"},
    {256, Use::any, "q64.kv32.w4.st1.b1"},
    {64, Use::single, "q64.kv64.w4.st1.b2"},
    {64, Use::single, "q64.kv32.w4.st1.b2"},
    {128, Use::single_not_both, "q64.kv32.w4.st1.b1.lz1"},
    {256, Use::single, "q64.kv16.w4.st1.b1.lz1"},
}};
constexpr std::array<Seed, 4> kShortSeeds = {{  // for a few query rows
    {128, Use::any, "q16.kv64.w1.st2.b4"},
    {256, Use::any, "q16.kv32.w1.st2.b2"},
    {128, Use::single, "q16.kv32.w1.st1.b4"},
    {256, Use::single, "q16.kv16.w1.st1.b1.lz1"},
}};
constexpr std::array<Seed, 3> kUnfusedSeeds = {{
    {64, Use::any, "q128.kv64.w4.st1.b1"},
    {256, Use::any, "q64.kv64.w4.st1.b1"},
    {256, Use::single, "q32.kv32.w2.st1.b1"},
}};
// clang-format on

bool meant_for(const Seed& seed, const Problem& problem) {
  const bool blocks = problem.mask == Mask::Kind::blocks;
  const bool for_single = seed.use == Use::single_not_both || seed.use == Use::single;
  const bool not_both = seed.use == Use::not_both || seed.use == Use::single_not_both;
  const bool plain =
      seed.use == Use::plain || seed.use == Use::unbiased || seed.use == Use::narrow_values;
  if (plain && (problem.dropout || blocks)) return false;
  if (seed.use == Use::unbiased && problem.alibi) return false;
  if (seed.use == Use::narrow_values && problem.head_dim_v > problem.head_dim) return false;
  if (not_both && problem.dropout && blocks) return false;
  return std::max(problem.head_dim, problem.head_dim_v) <= seed.max_head_dim &&
         for_single == (problem.dtype == DType::fp32);
}
constexpr std::int64_t kFewRows = 16;

}  // namespace

std::vector<std::string> FamilySm80::reasons_against(const Problem& problem) const {
  std::vector<std::string> reasons;
  const ArchInfo& arch = arch_info(problem.target);
  if (problem.target.backend != BackendKind::cuda || arch.major < 8)
    reasons.push_back(fmt::format("target is {}; allowed: compute capability 8.0 and newer",
                                  to_string(problem.target)));
  if (problem.algorithm == Algorithm::unfused && problem.mask == Mask::Kind::blocks)
    reasons.push_back("mask is blocks; the unfused yardstick knows none, causal, window");
  if (problem.algorithm == Algorithm::unfused && (problem.softcap || problem.alibi))
    reasons.push_back("the unfused yardstick knows neither softcap nor alibi");
  if (problem.algorithm == Algorithm::unfused && problem.direction == Direction::backward)
    reasons.push_back("direction is backward; the unfused yardstick knows forward");
  return reasons;
}

Source FamilySm80::emit(const Problem& problem, const Schedule& schedule) const {
  return make_source(sm80::emission(problem, schedule), problem.target);
}

std::vector<Candidate> FamilySm80::space(const Problem& problem, const DeviceInfo& device,
                                         const Shape& shape) const {
  std::vector<Candidate> out;
  if (problem.direction == Direction::backward) {
    for (Schedule s : sm80::backward_schedules(problem))
      for (const int blocks : kBlocksPerSm) {
        s.blocks_per_sm = blocks;
        out.push_back(examine(problem, device, shape, s, true));
      }
    return out;
  }
  Schedule s;
  for (const int warps : {1, 2, 4, 8})
    for (const int row_tiles : {1, 2})
      for (const int tile_kv : {16, 32, 48, 64, 80, 96, 128, 160, 192, 256})
        for (const int stages : {1, 2})
          for (const int q_in_registers : {0, 1})
            for (const int lazy_rescale : {0, 1})
              for (const int blocks : kBlocksPerSm) {
                s.warps = warps;
                s.tile_q = 16 * warps * row_tiles;
                s.tile_kv = tile_kv;
                s.stages = stages;
                s.q_in_registers = q_in_registers;
                s.lazy_rescale = lazy_rescale;
                s.blocks_per_sm = blocks;
                out.push_back(examine(problem, device, shape, s, true));
              }
  return out;
}

Candidate FamilySm80::consider(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                               const Schedule& schedule) const {
  return examine(problem, device, shape, schedule, false);
}

Schedule FamilySm80::default_schedule(const Problem& problem, const DeviceInfo& device,
                                      const Shape& shape) const {
  const auto first_legal = [&](const auto& seeds, Schedule& found) {
    for (const Seed& seed : seeds) {
      if (!meant_for(seed, problem)) continue;
      found = parse_schedule(seed.schedule);
      if (examine(problem, device, shape, found, false).rejected.empty()) return true;
    }
    return false;
  };
  Schedule found;
  if (problem.direction == Direction::backward)
    for (const Schedule& seed : sm80::backward_seeds(problem))
      if (examine(problem, device, shape, seed, false).rejected.empty()) return seed;
  if (problem.direction == Direction::forward && problem.algorithm == Algorithm::unfused &&
      first_legal(kUnfusedSeeds, found))
    return found;
  if (problem.direction == Direction::forward) {
    const bool few = shape.seq_q > 0 && shape.seq_q <= kFewRows;
    if (few && first_legal(kShortSeeds, found)) return found;
    if (first_legal(kSeeds, found)) return found;
  }
  // No seed fits this device: the fastest legal schedule by the model.
  double best = 0;
  for (const Candidate& candidate : space(problem, device, shape)) {
    if (!candidate.rejected.empty() || (best != 0 && candidate.estimate.time_us >= best)) continue;
    best = candidate.estimate.time_us;
    found = candidate.schedule;
  }
  return found;
}

std::optional<double> FamilySm80::traffic_bytes(const Problem& problem, const Schedule& schedule,
                                                const Shape& shape) const {
  if (problem.direction == Direction::forward)
    return forward_block_bytes(problem, shape, schedule.tile_q, schedule.tile_kv);
  BackwardBlocks blocks;
  blocks.queries = schedule.tile_q;
  blocks.key_step = schedule.tile_kv;
  blocks.keys = schedule.keys_per_block;
  blocks.query_step = schedule.query_step;
  blocks.query_walks = schedule.split_keys != 0 ? 2 : 1;
  blocks.row_bytes = sm80::kStatisticsBytes;
  return backward_block_bytes(problem, shape, blocks);
}

}  // namespace flashwright
