#include "generator/sm90/layout_sm90.hpp"

#include <algorithm>

namespace flashwright::sm90 {
namespace {

constexpr int kElementBytes = 2;
constexpr int kAlignment = 1024;  // of a swizzled tile
constexpr int kRows = 64;         // of a consumer

int aligned(int bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

// Whole slabs of 128 bytes: narrower ones come in more boxes, and where rows start between two sectors each
// box reads one more. Columns behind the head dim are zeros that no product reads. With 192 columns two
// tiles of 128 keys would not fit, which 144 and 160 do better without.
Slabs slabs(int head_dim) {
  if (head_dim == 144 || head_dim == 160) return {160, 64};
  return {(head_dim + 63) / 64 * 64, 128};
}

// The compiler gives each thread an equal share at the start, a multiple of 8; what the roles take in
// the end is at most that, or a consumer waits for ever.
Registers registers(const Problem& problem, int consumers) {
  // Walking through block lists takes a producer some more.
  const bool blocks = problem.mask == Mask::Kind::blocks;
  switch (consumers) {
    case 1:
      return {40, 216};  // of two blocks on a multiprocessor
    case 2:
      return blocks ? Registers{56, 224} : Registers{40, 232};
    default:
      return blocks ? Registers{56, 152} : Registers{32, 160};
  }
}

Layout layout(const Problem& problem, const Schedule& schedule) {
  Layout out;
  const int dim = slabs(problem.head_dim).columns, dim_v = slabs(problem.head_dim_v).columns;
  out.consumers = schedule.tile_q / kRows;
  out.queries_bytes = kRows * dim * kElementBytes;
  out.own_bytes = aligned(std::max(out.queries_bytes, kRows * dim_v * kElementBytes));
  out.keys_bytes = schedule.tile_kv * dim * kElementBytes;
  out.values_bytes = schedule.tile_kv * dim_v * kElementBytes;
  out.keys_offset = (1 + schedule.query_prefetch) * out.consumers * out.own_bytes;
  out.values_offset = out.keys_offset + schedule.stages * aligned(out.keys_bytes);
  out.barriers_offset = out.values_offset + schedule.stages * aligned(out.values_bytes);
  out.work_offset = out.barriers_offset;
  const bool blocks = problem.mask == Mask::Kind::blocks;
  out.work_bytes = blocks ? 32 : 16;
  out.tiles_offset = out.work_offset + out.work_bytes * (1 + schedule.query_prefetch);
  out.barriers_offset = out.tiles_offset + (blocks ? 32 * schedule.stages : 0);
  out.smem_bytes = out.barriers_offset +
                   8 * (2 * (1 + schedule.query_prefetch) * out.consumers + 4 * schedule.stages);
  return out;
}

int consumer_registers(const Problem& problem, const Schedule& schedule) {
  constexpr int kOther = 28, kCausal = 4, kWindow = 20, kDropout = 20, kBlocks = 16, kAlibi = 4;
  int registers = schedule.tile_kv / 2 + schedule.tile_kv / 4 + problem.head_dim_v / 2 + kOther;
  if (schedule.q_in_registers != 0) registers += (problem.head_dim + 15) / 16 * 4;
  if (problem.mask == Mask::Kind::causal) registers += kCausal;
  if (problem.mask == Mask::Kind::window) registers += kWindow;
  if (problem.mask == Mask::Kind::blocks) registers += kBlocks;
  if (problem.dropout) registers += kDropout;
  if (problem.alibi) registers += kAlibi;
  return registers;
}

}  // namespace flashwright::sm90
