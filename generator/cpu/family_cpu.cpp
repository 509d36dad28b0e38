#include "generator/cpu/family_cpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "core/mask.hpp"
#include "generator/cpu/backward_ir.hpp"
#include "generator/cpu/forward_ir.hpp"

namespace flashwright {
namespace {

constexpr int kMostTasks = 1024, kMostTiles = 16;

// A block of results in registers. With few query vectors more keys and dims have to share one, so that
// enough multiply-adds are independent of each other.
struct RegisterTile {
  int query_vectors, key_block, dim_block, tile_kv, unroll;
};

// Register tiles without spills, from the widest to the narrowest.
const std::vector<RegisterTile>& register_tiles(const ArchInfo& arch) {
  static const std::vector<RegisterTile> avx512 = {
      {4, 6, 4, 96, 4}, {2, 8, 8, 64, 4}, {1, 8, 8, 128, 4}};
  static const std::vector<RegisterTile> avx2 = {
      {3, 4, 4, 64, 4}, {2, 4, 4, 64, 4}, {1, 8, 8, 128, 2}};
  static const std::vector<RegisterTile> neon = {
      {4, 4, 4, 64, 4}, {2, 8, 8, 64, 4}, {1, 8, 8, 128, 4}};
  if (arch.vector_registers < 32) return avx2;
  return arch.vector_bytes >= 64 ? avx512 : neon;
}

// Rows that one key head has to serve: what a tile can be filled with.
std::int64_t rows_of(const Problem& problem, const Shape& shape) {
  const std::int64_t group =
      shape.heads_kv > 0 && !info(problem.mask).lists ? shape.heads_q / shape.heads_kv : 1;
  return std::max<std::int64_t>(1, group) * shape.seq_q;
}

// What a pinned schedule of the backward pass aims at when it does not say.
constexpr int kPinnedTasks = 8;
// More of them leave too little of the second cache to keys and their sums.
constexpr int kQueryTiles = 2;

// Two tasks for each core, so that the last ones do not leave the others idle for long; more would only cost memory
// and the time to add up their sums.
int tasks_for(const Problem& problem, const DeviceInfo& device) {
  if (problem.direction == Direction::forward) return 0;
  int tasks = 4;
  while (tasks < 2 * device.sm_count && tasks < kMostTasks) tasks *= 2;
  return tasks;
}

// A register tile cuts the keys of a tile into whole blocks.
void fit_key_block(Schedule& schedule) {
  constexpr int kAlwaysDivides = 4;
  if (schedule.tile_kv % schedule.key_block != 0) schedule.key_block = kAlwaysDivides;
}

Schedule schedule_of(const Problem& problem, const RegisterTile& tile) {
  Schedule schedule;
  schedule.tile_q = tile.query_vectors * arch_info(problem.target).vector_bytes / 4;
  schedule.tile_kv = tile.tile_kv;
  schedule.key_block = tile.key_block;
  schedule.dim_block = tile.dim_block;
  schedule.unroll = tile.unroll;
  if (problem.direction == Direction::backward) {
    schedule.tasks = kPinnedTasks;
    schedule.query_tiles = info(problem.mask).lists ? 1 : kQueryTiles;
    schedule.dim_block = tile.key_block;  // which need not divide the head dim here
  }
  return schedule;
}

bool is_cpu_knob(const Knob& knob) {
  for (int Schedule::*const value :
       {&Schedule::tile_q, &Schedule::tile_kv, &Schedule::key_block, &Schedule::dim_block,
        &Schedule::unroll, &Schedule::tasks, &Schedule::query_tiles})
    if (knob.value == value) return true;
  return false;
}

// Fills in the knobs that a pinned schedule leaves open.
Schedule completed(const Problem& problem, const Schedule& given) {
  const ArchInfo& arch = arch_info(problem.target);
  const std::vector<RegisterTile>& tiles = register_tiles(arch);
  RegisterTile tile = tiles.front();
  for (const RegisterTile& other : tiles)
    if (given.tile_q == other.query_vectors * arch.vector_bytes / 4) tile = other;
  const Schedule filler = schedule_of(problem, tile);
  Schedule out = given;
  for (const Knob& knob : knobs())
    if (is_cpu_knob(knob) && out.*knob.value == 0) out.*knob.value = filler.*knob.value;
  if (given.key_block == 0) fit_key_block(out);
  return out;
}

std::string wrong_knob(const char* name, int value, const std::string& allowed) {
  return fmt::format("{} is {}; allowed: {}", name, value, allowed);
}

// Rules on single knobs.
std::string knob_fault(const Problem& problem, const Schedule& s) {
  const int lanes = arch_info(problem.target).vector_bytes / 4;
  for (const Knob& knob : knobs())
    if (s.*knob.value != 0 && !is_cpu_knob(knob))
      return wrong_knob(knob.name, s.*knob.value, "0, as it is a knob of GPU kernels");
  constexpr int kMostVectors = 8, kMostKeys = 1024, kMostRows = 16, kMostTurns = 8, kKeyUnit = 32;
  if (s.tile_q % lanes != 0 || s.tile_q < lanes || s.tile_q > kMostVectors * lanes)
    return wrong_knob("tile_q", s.tile_q,
                      fmt::format("multiples of {} up to {}", lanes, kMostVectors * lanes));
  if (s.tile_kv % kKeyUnit != 0 || s.tile_kv < kKeyUnit || s.tile_kv > kMostKeys)
    return wrong_knob("tile_kv", s.tile_kv,
                      fmt::format("multiples of {} up to {}", kKeyUnit, kMostKeys));
  if (s.key_block < 1 || s.key_block > kMostRows || s.tile_kv % s.key_block != 0)
    return wrong_knob("key_block", s.key_block,
                      fmt::format("divisors of tile_kv = {} up to {}", s.tile_kv, kMostRows));
  const bool backward = problem.direction == Direction::backward;
  if (!backward && s.tasks != 0)
    return wrong_knob("tasks", s.tasks, "0, as it is a knob of the backward pass");
  if (!backward && s.query_tiles != 0)
    return wrong_knob("query_tiles", s.query_tiles, "0, as it is a knob of the backward pass");
  const int most_tiles = info(problem.mask).lists ? 1 : kMostTiles;
  if (backward && (s.query_tiles < 1 || s.query_tiles > most_tiles))
    return wrong_knob("query_tiles", s.query_tiles, fmt::format("1..{}", most_tiles));
  if (backward && (s.tasks < 1 || s.tasks > kMostTasks))
    return wrong_knob("tasks", s.tasks, fmt::format("1..{}", kMostTasks));
  if (backward && (s.dim_block < 1 || s.dim_block > kMostRows))
    return wrong_knob("dim_block", s.dim_block, fmt::format("1..{}", kMostRows));
  const Tiling tiling(problem, s);
  if (!backward && (s.dim_block < 1 || s.dim_block > kMostRows || tiling.panel % s.dim_block != 0))
    return wrong_knob("dim_block", s.dim_block, fmt::format("divisors of {}", tiling.panel));
  if (s.unroll < 1 || s.unroll > kMostTurns || (s.unroll & (s.unroll - 1)) != 0)
    return wrong_knob("unroll", s.unroll, "1, 2, 4, 8");
  return {};
}

// Rules on what the knobs take together.
std::string budget_fault(const Tiling& t, const DeviceInfo& device) {
  if (t.live_registers() > t.registers)
    return fmt::format(
        "register budget: {} x {} accumulators and their operands take {} vector registers "
        "of {}",
        std::max(t.key_block, t.dim_block), t.query_vectors, t.live_registers(), t.registers);
  const std::int64_t weights = std::int64_t{4} * t.tile_kv * t.tile_q;
  if (device.l1_bytes > 0 && weights > 2 * device.l1_bytes)
    return fmt::format("L1: the weights of a tile take {} bytes; allowed: twice the cache of {}",
                       weights, device.l1_bytes);
  if (device.l2_bytes > 0 && t.scratch_bytes > device.l2_bytes)
    return fmt::format("L2: scratch takes {} bytes of a cache of {}", t.scratch_bytes,
                       device.l2_bytes);
  return {};
}

// As many tiles of queries at once as the cache holds.
void fit_query_tiles(const Problem& problem, const DeviceInfo& device, Schedule& schedule) {
  if (problem.direction == Direction::forward) return;
  schedule.query_tiles = info(problem.mask).lists ? 1 : kQueryTiles;
  while (schedule.query_tiles > 1 && !budget_fault(Tiling(problem, schedule), device).empty())
    schedule.query_tiles /= 2;
}

class CpuFamily : public Family {
 public:
  std::string name() const override { return "cpu"; }

  std::vector<std::string> reasons_against(const Problem& problem) const override {
    std::vector<std::string> reasons;
    if (problem.target.backend != BackendKind::cpu) {
      reasons.push_back(fmt::format("target {} is no CPU", to_string(problem.target)));
      return reasons;
    }
    if (problem.algorithm == Algorithm::unfused) {
      if (info(problem.mask).lists)
        reasons.push_back(
            "the unfused computation knows no block lists; allowed masks: none, causal, window");
      if (problem.direction == Direction::backward)
        reasons.push_back("the unfused computation knows no backward pass");
      if (problem.dropout) reasons.push_back("the unfused computation knows no dropout");
      if (problem.softcap || problem.alibi)
        reasons.push_back("the unfused computation knows neither softcap nor alibi");
    }
    return reasons;
  }

  std::vector<Candidate> space(const Problem& problem, const DeviceInfo& device,
                               const Shape& shape) const override {
    const int lanes = arch_info(problem.target).vector_bytes / 4;
    std::vector<Candidate> all;
    Schedule s;
    s.tasks = tasks_for(problem, device);
    for (const int vectors : {1, 2, 3, 4, 6})
      for (const int keys : {32, 64, 96, 128, 256})
        for (const int key_block : {2, 3, 4, 6, 8, 12})
          for (const int dim_block : {2, 4, 6, 8})
            for (const int unroll : {2, 4}) {
              // Other pairs lose on one product what they gain on the other.
              if (key_block > 2 * dim_block || dim_block > 2 * key_block) continue;
              s.tile_q = vectors * lanes;
              s.tile_kv = keys;
              s.key_block = key_block;
              s.dim_block = dim_block;
              s.unroll = unroll;
              if (knob_fault(problem, completed(problem, s)).empty())
                fit_query_tiles(problem, device, s);
              all.push_back(consider(problem, device, shape, s));
            }
    return all;
  }

  Candidate consider(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Schedule& schedule) const override {
    Candidate candidate;
    candidate.schedule = completed(problem, schedule);
    candidate.rejected = knob_fault(problem, candidate.schedule);
    if (!candidate.rejected.empty()) return candidate;
    const Tiling tiling(problem, candidate.schedule);
    candidate.rejected = budget_fault(tiling, device);
    candidate.estimate.smem_bytes = tiling.scratch_bytes;
    candidate.estimate.registers = tiling.live_registers();
    candidate.estimate.time_us = model_time_us(problem, device, shape, tiling);
    return candidate;
  }

  Schedule default_schedule(const Problem& problem, const DeviceInfo& device,
                            const Shape& shape) const override {
    const std::vector<RegisterTile>& tiles = register_tiles(arch_info(problem.target));
    const std::int64_t rows = rows_of(problem, shape);
    std::size_t widest = 0;  // no wider than it takes to hold all rows
    while (widest + 1 < tiles.size() && rows <= schedule_of(problem, tiles[widest + 1]).tile_q)
      ++widest;
    // Small caches get fewer keys at a time, then fewer rows.
    Schedule schedule;
    for (std::size_t i = widest; i < tiles.size(); ++i) {
      for (const int keys : {tiles[i].tile_kv, 64, 32}) {
        schedule = schedule_of(problem, tiles[i]);
        schedule.tile_kv = std::min(schedule.tile_kv, keys);
        fit_key_block(schedule);
        schedule.tasks = tasks_for(problem, device);
        fit_query_tiles(problem, device, schedule);
        if (budget_fault(Tiling(problem, schedule), device).empty()) return schedule;
      }
    }
    return schedule;
  }

  std::optional<double> traffic_bytes(const Problem& problem, const Schedule& schedule,
                                      const Shape& shape) const override {
    return traffic_of(problem, shape, Tiling(problem, completed(problem, schedule)));
  }

  Source emit(const Problem& problem, const Schedule& given) const override {
    const Schedule schedule = completed(problem, given);
    const std::string fault = knob_fault(problem, schedule);
    if (!fault.empty())
      throw Error(Status::bad_argument, fmt::format("schedule {}: {}", to_string(schedule), fault));
    if (problem.direction == Direction::backward) return emit_backward(problem, schedule);
    return problem.algorithm == Algorithm::unfused ? emit_unfused(problem, schedule)
                                                   : emit_tiled(problem, schedule);
  }
};

}  // namespace

const Family& cpu_family() {
  static const CpuFamily* const family = new CpuFamily;
  return *family;
}

}  // namespace flashwright
