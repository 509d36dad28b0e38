#include "generator/sm90/family_sm90.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/dtype.hpp"
#include "core/traffic.hpp"
#include "generator/sm90/backward_sm90.hpp"
#include "generator/sm90/emit_sm90.hpp"
#include "generator/sm90/layout_sm90.hpp"
#include "generator/sm90/model_sm90.hpp"
#include "generator/verdict.hpp"

namespace flashwright {
namespace {

constexpr int kLateLseColumns = 192;  // of outputs, from which on it was found to pay
constexpr int kReservedSmem = 1024;   // the system takes this of every resident block

// What a query head has of its own besides its queries would have to be told for each row.
bool can_pack(const Problem& problem) {
  return problem.mask != Mask::Kind::blocks && !problem.dropout && !problem.alibi;
}

void check_knobs(Verdict& verdict, const Problem& problem, const Schedule& s) {
  verdict.one_of("tile_q", s.tile_q, {64, 128, 192});
  verdict.require(
      s.warps == s.tile_q / 16 + 4,
      fmt::format("warps is {}; allowed: 4 for every 64 of the {} query rows, and 4 that "
                  "produce",
                  s.warps, s.tile_q));
  verdict.one_of("stages", s.stages, {1, 2, 3, 4});
  verdict.one_of("lazy_rescale", s.lazy_rescale, {0, 1, 8});
  verdict.one_of("ping_pong", s.ping_pong, {0, 1});
  verdict.require(s.ping_pong == 0 || s.tile_q > 64,
                  "ping_pong is 1; allowed with one consumer: 0");
  verdict.one_of("blocks_per_sm", s.blocks_per_sm, {1, 2});
  verdict.require(
      s.tile_q == 64 ? s.blocks_per_sm == 2 : s.blocks_per_sm == 1,
      fmt::format("blocks_per_sm is {}; allowed: 2 with one consumer, else 1", s.blocks_per_sm));
  verdict.require(s.persistent >= 0,
                  fmt::format("persistent is {}; allowed: 0 and more", s.persistent));
  verdict.one_of("query_prefetch", s.query_prefetch, {0, 1});
  verdict.require(s.query_prefetch == 0 || s.persistent != 0,
                  "query_prefetch is 1; allowed where blocks take one query tile: 0");
  verdict.one_of("longest_first", s.longest_first, {0, 1});
  verdict.require(s.longest_first == 0 || problem.mask == Mask::Kind::causal,
                  "longest_first is 1; allowed without a causal mask: 0");
  verdict.one_of("half_tiles", s.half_tiles, {0, 1});
  verdict.require(s.half_tiles == 0 || (problem.mask == Mask::Kind::causal && s.tile_kv % 32 == 0),
                  "half_tiles is 1; allowed without a causal mask, or with a tile_kv that 32 does "
                  "not divide: 0");
  verdict.one_of("pack_heads", s.pack_heads, {0, 1});
  verdict.require(s.pack_heads == 0 || can_pack(problem),
                  "pack_heads is 1; allowed with block lists, dropout or ALiBi: 0");
  verdict.require(s.pack_heads == 0 || (s.longest_first == 0 && s.half_tiles == 0),
                  "pack_heads is 1; allowed with longest_first or half_tiles: 0");
  verdict.one_of("cluster", s.cluster, {0, 2});
  verdict.require(s.cluster == 0 || problem.mask == Mask::Kind::none,
                  "cluster is 2; allowed with a mask, where tiles differ in their keys: 0");
  verdict.require(s.cluster == 0 || (s.pack_heads == 0 && s.persistent % 2 == 0),
                  "cluster is 2; allowed with pack_heads or an odd number of persistent blocks: 0");
  verdict.one_of("emulated_exp2", s.emulated_exp2, {0, 4, 8});
  verdict.one_of("late_lse", s.late_lse, {0, 1});
  verdict.one_of("q_in_registers", s.q_in_registers, {0, 1});
  verdict.require(s.q_in_registers == 0 || s.half_tiles == 0,
                  "q_in_registers is 1; allowed with half_tiles: 0");
  verdict.require(
      s.keys_per_block == 0 && s.query_step == 0 && s.split_keys == 0 && s.add_queries == 0,
      "keys_per_block, query_step, split_keys and add_queries are knobs of the backward pass");
  verdict.require(
      s.key_block == 0 && s.dim_block == 0 && s.unroll == 0 && s.tasks == 0 && s.query_tiles == 0,
      "key_block, dim_block, unroll, tasks and query_tiles are knobs of the CPU");
  const bool whole_words = !problem.dropout || s.tile_kv == 16 || s.tile_kv % 32 == 0;
  verdict.require(
      s.tile_kv >= 16 && s.tile_kv <= 256 && s.tile_kv % 16 == 0 && whole_words,
      fmt::format("tile_kv is {}; allowed: {}", s.tile_kv,
                  problem.dropout ? "16 and 32..256 in steps of 32" : "16..256 in steps of 16"));
}

void check_device(Verdict& verdict, const Problem& problem, const DeviceInfo& device,
                  const Schedule& s, const Estimate& estimate) {
  verdict.require(estimate.smem_bytes <= device.smem_per_block,
                  fmt::format("needs {} bytes of shared memory; a block has {}",
                              estimate.smem_bytes, device.smem_per_block));
  verdict.require(
      s.blocks_per_sm * (estimate.smem_bytes + kReservedSmem) <= device.smem_per_sm,
      fmt::format("{} blocks need {} bytes of shared memory each; a multiprocessor has {}",
                  s.blocks_per_sm, estimate.smem_bytes + kReservedSmem, device.smem_per_sm));
  verdict.require(s.persistent <= device.sm_count * s.blocks_per_sm,
                  fmt::format("persistent is {}; allowed: 0 to {}, the blocks that run at once",
                              s.persistent, device.sm_count * s.blocks_per_sm));
  // One product takes its sums and some more from what a thread has before the roles divide.
  constexpr int kBesideSums = 30;
  const int first = 65536 / (estimate.threads * s.blocks_per_sm) / 8 * 8;
  const int sums = std::max(s.tile_kv, problem.head_dim_v) / 2;
  verdict.require(
      sums + kBesideSums <= first,
      fmt::format("a product with {} sums per thread needs about {} registers; a thread "
                  "begins with {}",
                  sums, sums + kBesideSums, first));
  const int limit = sm90::registers(problem, s.tile_q / 64).consumer;
  verdict.require(estimate.registers <= limit,
                  fmt::format("needs about {} registers per thread of a consumer; there are {}",
                              estimate.registers, limit));
}

Candidate examine(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                  const Schedule& s) {
  Candidate out;
  out.schedule = s;
  Verdict verdict;
  check_knobs(verdict, problem, s);
  if (verdict.legal()) {
    out.estimate.threads = 32 * s.warps;
    out.estimate.smem_bytes = sm90::layout(problem, s).smem_bytes;
    out.estimate.registers = sm90::consumer_registers(problem, s);
    check_device(verdict, problem, device, s, out.estimate);
  }
  out.rejected = verdict.reason();
  if (verdict.legal()) out.estimate.time_us = sm90::model_time_us(problem, device, shape, s);
  return out;
}

// What sweeps on an H200 found fastest (bench/results/h200), or close to it: what the tuner starts from and
// what runs until it has. The first row that fits and is legal counts. With block lists tiles divide the
// usual blocks of 128 keys.
struct Seed {
  int max_head_dim, max_head_dim_v;
  Mask::Kind mask;
  bool dropout;  // or without
  std::int64_t max_seq_q;
  const char* schedule;  // pb1: as many blocks as run at once
};
constexpr std::int64_t kAnyLength = std::numeric_limits<std::int64_t>::max();
using Kind = Mask::Kind;
// clang-format off
constexpr std::array kSeeds = {
    Seed{64, 64, Kind::none, false, kAnyLength, "q192.kv128.w16.st3.b1.pp1.pb1.qp1"},
    Seed{64, 64, Kind::causal, false, 1024, "q192.kv128.w16.st3.b1.pb1.lf1.ht1.qp1"},
    Seed{64, 64, Kind::causal, false, kAnyLength, "q192.kv128.w16.st3.b1.pp1.pb1.lf1.ht1.qp1"},
    Seed{64, 64, Kind::causal, true, kAnyLength, "q128.kv128.w12.st2.b1.pp1.pb1.lf1.qp1"},
    Seed{64, 64, Kind::window, false, kAnyLength, "q128.kv128.w12.st2.b1.pp1.pb1.qp1"},
    Seed{64, 64, Kind::window, true, kAnyLength, "q128.kv128.w12.st2.b1.pp1.lz8.pb1.qp1"},
    Seed{64, 64, Kind::blocks, false, kAnyLength, "q64.kv128.w8.st2.b2.pb1.qp1"},
    Seed{80, 80, Kind::none, false, 1024, "q128.kv128.w12.st2.b1.pb1.qp1"},
    Seed{80, 80, Kind::none, false, kAnyLength, "q192.kv112.w16.st2.b1.pp1"},
    Seed{80, 80, Kind::causal, false, 1024, "q128.kv128.w12.st2.b1.pb1.lf1.qp1"},
    Seed{80, 80, Kind::causal, false, kAnyLength, "q192.kv112.w16.st2.b1.pp1.lf1"},
    Seed{88, 88, Kind::none, false, kAnyLength, "q192.kv96.w16.st2.b1.pp1.lz8.pb1"},
    Seed{88, 88, Kind::causal, false, kAnyLength, "q192.kv96.w16.st2.b1.pp1.lz8.pb1.lf1"},
    Seed{96, 96, Kind::none, false, 1024, "q128.kv128.w12.st2.b1.pb1.qp1"},
    Seed{96, 96, Kind::none, false, kAnyLength, "q192.kv112.w16.st2.b1.pp1.lz8"},
    Seed{96, 96, Kind::causal, false, 1024, "q128.kv128.w12.st2.b1.pb1.lf1.qp1"},
    Seed{96, 96, Kind::causal, false, kAnyLength, "q192.kv96.w16.st2.b1.pp1.lz8.pb1.lf1"},
    Seed{96, 96, Kind::none, true, kAnyLength, "q128.kv128.w12.st2.b1.pp1.lz8.pb1"},
    Seed{104, 104, Kind::none, false, 2048, "q128.kv128.w12.st2.b1.pb1.qp1"},
    Seed{104, 104, Kind::none, false, kAnyLength, "q128.kv160.w12.st2.b1.pp1.lz8.pb1"},
    Seed{112, 112, Kind::none, false, kAnyLength, "q128.kv128.w12.st2.b1.pb1.qp1"},
    Seed{120, 120, Kind::none, false, 2048, "q128.kv128.w12.st2.b1.pb1.qp1"},
    Seed{120, 120, Kind::none, false, kAnyLength, "q128.kv160.w12.st2.b1.pp1.lz8.pb1"},
    Seed{128, 128, Kind::none, false, 4096, "q128.kv128.w12.st2.b1.pb1.qp1"},
    Seed{128, 128, Kind::none, false, kAnyLength, "q128.kv176.w12.st2.b1.pp1.lz8"},
    Seed{128, 128, Kind::causal, false, kAnyLength, "q128.kv128.w12.st2.b1.pb1.lf1.qp1"},
    Seed{128, 128, Kind::causal, true, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1.lf1.qp1"},
    Seed{128, 128, Kind::window, false, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1.qp1"},
    Seed{128, 128, Kind::window, true, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1.qp1"},
    Seed{96, 96, Kind::blocks, true, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1.qp1"},
    Seed{128, 128, Kind::blocks, true, kAnyLength, "q128.kv128.w12.st2.b1.pp1.lz8.pb1.qp1"},
    Seed{128, 128, Kind::blocks, false, kAnyLength, "q128.kv128.w12.st2.b1.pp1.lz8.pb1.qp1"},
    Seed{128, 128, Kind::none, true, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1.qp1"},
    Seed{192, 160, Kind::window, false, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1"},
    Seed{192, 160, Kind::blocks, false, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1"},
    Seed{192, 160, Kind::window, true, kAnyLength, "q128.kv96.w12.st2.b1.lz8.pb1"},
    Seed{192, 160, Kind::blocks, true, kAnyLength, "q128.kv64.w12.st2.b1.lz8.pb1"},
    Seed{192, 160, Kind::causal, true, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1.lf1"},
    Seed{192, 160, Kind::none, true, kAnyLength, "q128.kv128.w12.st2.b1.lz8.pb1"},
    Seed{192, 160, Kind::causal, false, kAnyLength, "q128.kv128.w12.st2.b1.pp1.lz8.pb1.lf1"},
    Seed{192, 160, Kind::none, false, kAnyLength, "q128.kv128.w12.st2.b1.pp1.lz8"},
    Seed{192, 192, Kind::window, false, kAnyLength, "q128.kv96.w12.st2.b1.pp1.lz8.pb1"},
    Seed{192, 192, Kind::blocks, false, kAnyLength, "q128.kv64.w12.st2.b1.lz8.pb1"},
    Seed{192, 192, Kind::causal, false, 1024, "q128.kv96.w12.st2.b1.pp1.lz8.pb1.lf1"},
    Seed{192, 192, Kind::none, false, 1024, "q128.kv96.w12.st2.b1.pp1.lz8.pb1"},
    Seed{192, 192, Kind::causal, false, kAnyLength, "q128.kv112.w12.st2.b1.pp1.lz8.pb1.lf1"},
    Seed{192, 192, Kind::none, false, kAnyLength, "q128.kv112.w12.st2.b1.pp1.lz8"},
    Seed{256, 256, Kind::window, false, kAnyLength, "q128.kv64.w12.st2.b1.lz8.pb1"},
    Seed{256, 256, Kind::blocks, false, kAnyLength, "q128.kv64.w12.st2.b1.lz8.pb1"},
    Seed{224, 224, Kind::window, true, kAnyLength, "q128.kv64.w12.st2.b1.lz8.pb1"},
    Seed{224, 224, Kind::blocks, true, kAnyLength, "q128.kv64.w12.st2.b1.lz8.pb1"},
    Seed{256, 256, Kind::window, true, kAnyLength, "q128.kv32.w12.st2.b1.lz8.pb1"},
    Seed{256, 256, Kind::blocks, true, kAnyLength, "q128.kv32.w12.st2.b1.lz8.pb1"},
    Seed{256, 256, Kind::causal, true, kAnyLength, "q128.kv64.w12.st2.b1.pp1.pb1.lf1"},
    Seed{256, 256, Kind::none, true, kAnyLength, "q128.kv64.w12.st2.b1.pb1"},
    Seed{256, 256, Kind::none, false, 512, "q128.kv64.w12.st2.b1.pp1.lz8.pb1.ll1"},
    Seed{256, 256, Kind::none, false, kAnyLength, "q128.kv80.w12.st2.b1.pp1.lz8.pb1.ll1"},
    Seed{256, 256, Kind::causal, false, 2048, "q128.kv64.w12.st2.b1.pp1.lz8.pb1.lf1.ht1.ll1"},
    Seed{256, 256, Kind::causal, false, kAnyLength, "q128.kv80.w12.st2.b1.pp1.lz8.pb1.lf1.ll1"},
};
// clang-format on

bool meant_for(const Seed& seed, const Problem& problem, const Shape& shape) {
  return problem.head_dim <= seed.max_head_dim && problem.head_dim_v <= seed.max_head_dim_v &&
         problem.mask == seed.mask && problem.dropout == seed.dropout &&
         shape.seq_q <= seed.max_seq_q;
}

// Tiles of 64 rows whose queries are few are filled by several heads.
bool packing_pays(const Schedule& s, const Shape& shape) {
  const std::int64_t packed = std::int64_t{1} << pack_shift(shape);
  const auto tiles = [&](std::int64_t rows) { return (rows + s.tile_q - 1) / s.tile_q; };
  return tiles(shape.seq_q * packed) * 10 < tiles(shape.seq_q) * packed * 9;
}

Schedule seed_schedule(const Seed& seed, const DeviceInfo& device) {
  Schedule schedule = parse_schedule(seed.schedule);
  schedule.persistent *= device.sm_count * schedule.blocks_per_sm;
  return schedule;
}

// The knobs beside the tiles: how blocks take query tiles, and how consumers take turns.
std::vector<Schedule> variants(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                               Schedule s) {
  const bool packs = can_pack(problem) && pack_shift(shape) > 0;
  std::vector<Schedule> out;
  const auto add = [&](Schedule variant) {
    out.push_back(variant);
    variant.late_lse = 1;
    if (problem.head_dim_v > kLateLseColumns) out.push_back(variant);
    variant.late_lse = 0;
    for (const auto& [q_in_registers, emulated_exp2] : {std::pair{1, 0}, {0, 8}, {0, 4}}) {
      if (variant.half_tiles + q_in_registers > 1) continue;
      variant.q_in_registers = q_in_registers;
      variant.emulated_exp2 = emulated_exp2;
      out.push_back(variant);
    }
  };
  const int resident = device.sm_count * s.blocks_per_sm;
  for (const int lazy_rescale : {0, 1, 8})
    for (const int ping_pong : {0, 1})
      for (const auto& [persistent, prefetch] : {std::pair{0, 0}, {resident, 0}, {resident, 1}})
        for (const auto& [longest_first, half_tiles] : {std::pair{0, 0}, {1, 0}, {0, 1}, {1, 1}}) {
          const bool causal = problem.mask == Mask::Kind::causal;
          if (ping_pong != 0 && s.tile_q == 64) continue;
          if (longest_first + half_tiles > 0 && !causal) continue;
          if (half_tiles != 0 && s.tile_kv % 32 != 0) continue;
          s.lazy_rescale = lazy_rescale;
          s.ping_pong = ping_pong;
          s.persistent = persistent;
          s.query_prefetch = prefetch;
          s.longest_first = longest_first;
          s.half_tiles = half_tiles;
          s.pack_heads = s.cluster = 0;
          add(s);
          s.cluster = 2;
          if (problem.mask == Mask::Kind::none && persistent % 2 == 0) add(s);
          s.cluster = 0;
          s.pack_heads = 1;
          if (packs && longest_first + half_tiles == 0) add(s);
        }
  return out;
}

}  // namespace

std::vector<std::string> FamilySm90::reasons_against(const Problem& problem) const {
  std::vector<std::string> reasons;
  if (to_string(problem.target) != "sm_90a")
    reasons.push_back(fmt::format("target is {}; allowed: sm_90a", to_string(problem.target)));
  if (problem.dtype == DType::fp32) reasons.push_back("dtype is fp32; allowed: fp16, bf16");
  if (problem.algorithm != Algorithm::tiled)
    reasons.push_back("the unfused yardstick belongs to sm80");
  // The smallest tile of keys has to leave room for the outputs.
  Schedule least;
  least.tile_q = 128;
  least.tile_kv = 16;
  const int most = sm90::registers(problem, 2).consumer,
            needed = sm90::consumer_registers(problem, least);
  if (problem.direction == Direction::forward && needed > most)
    reasons.push_back(
        fmt::format("head_dim_v is {}; allowed with dropout and block lists: up to {}",
                    problem.head_dim_v, problem.head_dim_v - (needed - most) * 2 / 8 * 8));
  return reasons;
}

std::vector<std::string> FamilySm90::slow_launches() const {
  return {
      "an address or a stride of q, k, v or o that is no multiple of 16 bytes: threads copy the "
      "rows "
      "element by element instead of TMA"};
}

Source FamilySm90::emit(const Problem& problem, const Schedule& schedule) const {
  return make_source(sm90::emission(problem, schedule), problem.target);
}

std::vector<Candidate> FamilySm90::space(const Problem& problem, const DeviceInfo& device,
                                         const Shape& shape) const {
  if (problem.direction == Direction::backward) return sm90::backward_space(problem, device, shape);
  std::vector<Candidate> out;
  for (const int tile_q : {64, 128, 192})
    for (int tile_kv = 16; tile_kv <= 256; tile_kv += 16)
      for (const int stages : {1, 2, 3, 4}) {
        Schedule s;
        s.tile_q = tile_q;
        s.tile_kv = tile_kv;
        s.warps = tile_q / 16 + 4;
        s.stages = stages;
        s.blocks_per_sm = tile_q == 64 ? 2 : 1;
        // What does not fit in its plainest form does in none.
        if (!examine(problem, device, shape, s).rejected.empty()) {
          out.push_back(examine(problem, device, shape, s));
          continue;
        }
        for (const Schedule& variant : variants(problem, device, shape, s))
          out.push_back(examine(problem, device, shape, variant));
      }
  return out;
}

Candidate FamilySm90::consider(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                               const Schedule& schedule) const {
  return problem.direction == Direction::backward
             ? sm90::examine_backward(problem, device, shape, schedule)
             : examine(problem, device, shape, schedule);
}

Schedule FamilySm90::default_schedule(const Problem& problem, const DeviceInfo& device,
                                      const Shape& shape) const {
  if (problem.direction == Direction::backward)
    return sm90::backward_default(problem, device, shape);
  for (const Seed& seed : kSeeds) {
    Schedule schedule = seed_schedule(seed, device);
    if (can_pack(problem) && packing_pays(schedule, shape)) {
      schedule.pack_heads = 1;
      schedule.longest_first = schedule.half_tiles = 0;
    }
    if (meant_for(seed, problem, shape) &&
        examine(problem, device, shape, schedule).rejected.empty())
      return schedule;
  }
  Schedule best;
  double least = 0;
  for (const Candidate& candidate : space(problem, device, shape)) {
    if (!candidate.rejected.empty()) continue;
    if (least != 0 && candidate.estimate.time_us >= least) continue;
    least = candidate.estimate.time_us;
    best = candidate.schedule;
  }
  return best;
}

std::optional<double> FamilySm90::traffic_bytes(const Problem& problem, const Schedule& schedule,
                                                const Shape& shape) const {
  if (problem.direction == Direction::forward)
    return forward_block_bytes(problem, shape, schedule.tile_q * std::max(1, schedule.cluster),
                               schedule.tile_kv);
  BackwardBlocks blocks;
  blocks.queries = schedule.tile_q;
  blocks.keys = sm90::keys_per_block(problem, schedule);
  blocks.key_step = schedule.tile_kv;
  blocks.query_step = schedule.query_step;
  blocks.adds_queries = schedule.add_queries != 0;
  blocks.row_bytes = 8;  // LSE and delta
  return backward_block_bytes(problem, shape, blocks);
}

}  // namespace flashwright
