#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "generator/sm90/backward_sm90.hpp"
#include "generator/verdict.hpp"

namespace flashwright::sm90 {
namespace {

constexpr int kReservedSmem = 1024;  // the system takes this of every resident block
constexpr int kRows = 64;            // of a consumer
constexpr int kAdderDims = 80;       // whose sums fit its registers

void check_knobs(Verdict& verdict, const Problem& problem, const Schedule& s) {
  verdict.one_of("tile_q", s.tile_q, {128, 192});
  verdict.require(
      s.warps == s.tile_q / 16 + 4,
      fmt::format("warps is {}; allowed: 4 for every 64 of the {} rows, and 4 that produce",
                  s.warps, s.tile_q));
  verdict.one_of("stages", s.stages, {1, 2, 3});
  verdict.require(s.blocks_per_sm == 1,
                  fmt::format("blocks_per_sm is {}; allowed: 1", s.blocks_per_sm));
  Schedule known;  // the knobs that a backward kernel has
  known.tile_q = s.tile_q;
  known.tile_kv = s.tile_kv;
  known.query_step = s.query_step;
  known.warps = s.warps;
  known.stages = s.stages;
  known.blocks_per_sm = s.blocks_per_sm;
  known.add_queries = s.add_queries;
  verdict.require(known == s, fmt::format("{} has knobs that the backward pass of this family does "
                                          "not have; allowed: q, kv, w, st, b, qs, aq",
                                          to_string(s)));
  const auto step = [&](const char* name, int value, bool whole_words) {
    verdict.require(
        value >= 16 && value <= 128 && value % 16 == 0 &&
            (!whole_words || value == 16 || value % 32 == 0),
        fmt::format("{} is {}; allowed: {}", name, value,
                    whole_words ? "16 and 32..128 in steps of 32" : "16..128 in steps of 16"));
  };
  verdict.one_of("add_queries", s.add_queries, {0, kInTurn, kByAdder});
  if (s.add_queries != 0) {
    const auto refuse_where = [&](bool here, const char* where) {
      verdict.require(!here, fmt::format("add_queries is {}; allowed {}: 0", s.add_queries, where));
    };
    refuse_where(problem.deterministic, "with deterministic");
    refuse_where(problem.mask == Mask::Kind::blocks, "with block lists");
    refuse_where(apart(problem),
                 "where one consumer computes gradients of keys and another those of the values");
    verdict.require(s.query_step % kRows == 0,
                    fmt::format("query_step is {}; allowed with add_queries: multiples of {}",
                                s.query_step, kRows));
    verdict.require(s.add_queries != kByAdder || problem.head_dim <= kAdderDims,
                    fmt::format("add_queries is {}; allowed with head_dim {}: 0, {}", s.add_queries,
                                problem.head_dim, kInTurn));
    verdict.require(s.add_queries != kByAdder || s.tile_q == 2 * kRows,
                    fmt::format("tile_q is {}; allowed with add_queries {}: {}", s.tile_q, kByAdder,
                                2 * kRows));
  }
  if (apart(problem)) {
    verdict.require(s.tile_q == 2 * kRows,
                    fmt::format("tile_q is {}; allowed where one consumer computes gradients of "
                                "keys and another those of the values: {}",
                                s.tile_q, 2 * kRows));
    verdict.require(s.stages >= 2,
                    fmt::format("stages is {}; allowed where the consumer of values is a step "
                                "ahead of that of keys: 2, 3",
                                s.stages));
  }
  step("query_step", s.query_step, false);
  step("tile_kv", s.tile_kv, problem.dropout);
}

void check_device(Verdict& verdict, const Problem& problem, const DeviceInfo& device,
                  const Schedule& s, const Estimate& estimate) {
  verdict.require(estimate.smem_bytes <= device.smem_per_block,
                  fmt::format("needs {} bytes of shared memory; a block has {}",
                              estimate.smem_bytes, device.smem_per_block));
  verdict.require(estimate.smem_bytes + kReservedSmem <= device.smem_per_sm,
                  fmt::format("a block needs {} bytes of shared memory; a multiprocessor has {}",
                              estimate.smem_bytes + kReservedSmem, device.smem_per_sm));
  // One product takes its sums and some more from what a thread has before the roles divide.
  constexpr int kBesideSums = 30;
  const int first = 65536 / estimate.threads / 8 * 8;
  const int sums = std::max({s.tile_kv, s.query_step, problem.head_dim, problem.head_dim_v}) / 2;
  verdict.require(
      sums + kBesideSums <= first,
      fmt::format("a product with {} sums per thread needs about {} registers; a thread begins "
                  "with {}",
                  sums, sums + kBesideSums, first));
  const int limit = backward_registers(problem, s).consumer;
  verdict.require(estimate.registers <= limit,
                  fmt::format("needs about {} registers per thread of a consumer; there are {}",
                              estimate.registers, limit));
}

// Scores per cycle of a multiprocessor that two warpgroups turn into gradients of scores while the tensor
// cores run, about.
constexpr double kScoresPerCycle = 7;
constexpr double kClockGhz = 1.65, kFullClockGhz = 1.98;  // under load, of the fastest
constexpr double kStepLatency = 700, kTileCycles = 3000;

// Share of all pairs of queries and keys that the mask leaves.
double density(const Problem& problem, const Shape& shape) {
  if (problem.mask == Mask::Kind::none) return 1;
  const auto q = static_cast<double>(std::max<std::int64_t>(shape.seq_q, 1)),
             kv = static_cast<double>(std::max<std::int64_t>(shape.seq_kv, 1));
  if (problem.mask != Mask::Kind::causal) return 0.5;
  return q <= kv ? 1 - q / kv / 2 : kv / q / 2;
}

// Cycles of a kernel whose blocks own `own` rows and meet `step` rows in each of their steps.
double kernel_cycles(double heads, double own_rows, double step_rows, int own, int step,
                     double product_dims, double share, int stages, int sm_count) {
  const double tiles = std::ceil(own_rows / own) * heads;
  const double steps = std::max(1.0, std::ceil(step_rows * share / step));
  const double scores = static_cast<double>(own) * step;
  const double products = scores * product_dims / 2048;
  const double latency = kStepLatency / stages;
  const double one = std::max(products / 0.9, scores / kScoresPerCycle) + latency;
  return std::ceil(tiles / sm_count) * (steps * one + kTileCycles);
}

double model_time_us(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Schedule& s) {
  const auto q = static_cast<double>(std::max<std::int64_t>(shape.seq_q, 1)),
             kv = static_cast<double>(std::max<std::int64_t>(shape.seq_kv, 1));
  const double heads = static_cast<double>(std::max<std::int64_t>(shape.batch * shape.heads_q, 1));
  const double d = problem.head_dim, dv = problem.head_dim_v, share = density(problem, shape);
  const double keys_dims = 2 * d + 2 * dv;
  const double keys = kernel_cycles(heads, kv, q, keys_per_block(problem, s), s.query_step,
                                    keys_dims, share, s.stages, device.sm_count);
  const double queries = s.add_queries != 0
                             ? keys * d / keys_dims
                             : kernel_cycles(heads, q, kv, s.tile_q, s.tile_kv, 2 * d + dv, share,
                                             s.stages, device.sm_count);
  const double clock = device.clock_ghz * kClockGhz / kFullClockGhz;
  return 8 + (keys + queries) / std::max(clock, 0.1) * 1e-3;
}

// What sweeps on an H200 found fastest, or close to it. The first row that fits and is legal counts.
enum class For : std::uint8_t { all, without_dropout, with_dropout, block_lists };
struct Seed {
  int max_head_dim, max_head_dim_v;
  std::int64_t max_seq_q;
  For problems;
  const char* schedule;
};
constexpr std::int64_t kAnyLength = std::numeric_limits<std::int64_t>::max();
// clang-format off
constexpr std::array kSeeds = {
    Seed{64, 64, kAnyLength, For::block_lists, "q128.kv128.w12.st2.b1.qs128"},
    Seed{64, 64, kAnyLength, For::without_dropout, "q128.kv64.w12.st3.b1.qs128.aq2"},
    Seed{64, 64, kAnyLength, For::all, "q128.kv64.w12.st2.b1.qs128.aq1"},
    Seed{64, 64, kAnyLength, For::all, "q128.kv64.w12.st3.b1.qs64.aq1"},
    Seed{64, 64, kAnyLength, For::without_dropout, "q192.kv64.w16.st2.b1.qs64"},
    Seed{64, 64, kAnyLength, For::all, "q128.kv128.w12.st2.b1.qs96"},
    Seed{80, 80, kAnyLength, For::without_dropout, "q128.kv64.w12.st3.b1.qs64.aq2"},
    Seed{96, 96, kAnyLength, For::all, "q128.kv64.w12.st2.b1.qs64.aq1"},
    Seed{80, 80, kAnyLength, For::without_dropout, "q128.kv64.w12.st3.b1.qs128"},
    Seed{96, 96, kAnyLength, For::without_dropout, "q128.kv128.w12.st2.b1.qs128"},
    Seed{96, 96, kAnyLength, For::all, "q128.kv64.w12.st2.b1.qs64"},
    Seed{112, 112, kAnyLength, For::all, "q128.kv64.w12.st2.b1.qs64.aq1"},
    Seed{120, 120, kAnyLength, For::all, "q128.kv64.w12.st2.b1.qs64"},
    Seed{128, 128, 512, For::without_dropout, "q128.kv64.w12.st2.b1.qs64"},
    Seed{128, 128, kAnyLength, For::all, "q128.kv64.w12.st2.b1.qs64.aq1"},
    Seed{128, 128, kAnyLength, For::all, "q128.kv64.w12.st2.b1.qs64"},
    Seed{192, 192, kAnyLength, For::all, "q128.kv64.w12.st3.b1.qs64"},
    Seed{192, 192, kAnyLength, For::all, "q128.kv64.w12.st2.b1.qs64"},
    Seed{208, 208, kAnyLength, For::with_dropout, "q128.kv64.w12.st2.b1.qs64"},
    Seed{256, 256, kAnyLength, For::with_dropout, "q128.kv32.w12.st2.b1.qs64"},
    Seed{256, 256, kAnyLength, For::all, "q128.kv64.w12.st3.b1.qs48"},
    Seed{256, 256, kAnyLength, For::all, "q128.kv32.w12.st3.b1.qs48"},
    Seed{256, 256, kAnyLength, For::all, "q128.kv48.w12.st2.b1.qs48"},
};
// clang-format on

bool meant_for(const Seed& seed, const Problem& problem) {
  switch (seed.problems) {
    case For::all:
      return true;
    case For::without_dropout:
      return !problem.dropout;
    case For::with_dropout:
      return problem.dropout;
    case For::block_lists:
      return problem.mask == Mask::Kind::blocks;
  }
  return false;
}

}  // namespace

Candidate examine_backward(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                           const Schedule& s) {
  Candidate out;
  out.schedule = s;
  Verdict verdict;
  check_knobs(verdict, problem, s);
  if (verdict.legal()) {
    out.estimate.threads = 32 * s.warps;
    out.estimate.smem_bytes =
        std::max(keys_layout(problem, s).smem_bytes, queries_layout(problem, s).smem_bytes);
    out.estimate.registers = std::max(keys_registers(problem, s), queries_registers(problem, s));
    check_device(verdict, problem, device, s, out.estimate);
  }
  out.rejected = verdict.reason();
  if (verdict.legal()) out.estimate.time_us = model_time_us(problem, device, shape, s);
  return out;
}

std::vector<Candidate> backward_space(const Problem& problem, const DeviceInfo& device,
                                      const Shape& shape) {
  std::vector<Candidate> out;
  for (const int tile_q : {128, 192})
    for (int tile_kv = 16; tile_kv <= 128; tile_kv += 16)
      for (int query_step = 16; query_step <= 128; query_step += 16)
        for (const auto& [stages, add_queries] :
             {std::pair{1, 0}, {2, 0}, {3, 0}, {1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}, {3, 2}}) {
          Schedule s;
          s.add_queries = add_queries;
          s.tile_q = tile_q;
          s.tile_kv = tile_kv;
          s.query_step = query_step;
          s.warps = tile_q / 16 + 4;
          s.stages = stages;
          s.blocks_per_sm = 1;
          out.push_back(examine_backward(problem, device, shape, s));
        }
  return out;
}

Schedule backward_default(const Problem& problem, const DeviceInfo& device, const Shape& shape) {
  for (const Seed& seed : kSeeds) {
    const Schedule schedule = parse_schedule(seed.schedule);
    if (problem.head_dim <= seed.max_head_dim && problem.head_dim_v <= seed.max_head_dim_v &&
        shape.seq_q <= seed.max_seq_q && meant_for(seed, problem) &&
        examine_backward(problem, device, shape, schedule).rejected.empty())
      return schedule;
  }
  Schedule best;
  double least = 0;
  for (const Candidate& candidate : backward_space(problem, device, shape)) {
    if (!candidate.rejected.empty()) continue;
    if (least != 0 && candidate.estimate.time_us >= least) continue;
    least = candidate.estimate.time_us;
    best = candidate.schedule;
  }
  return best;
}

}  // namespace flashwright::sm90
