#include <algorithm>

#include "generator/sm90/backward_sm90.hpp"

namespace flashwright::sm90 {
namespace {

constexpr int kElementBytes = 2, kRows = 64;  // of a consumer
constexpr int kAlignment = 1024;              // of a swizzled tile
constexpr int kToldBytes = 32;                // of a stage

int tile_bytes(int rows, int columns) {
  return (rows * columns * kElementBytes + kAlignment - 1) / kAlignment * kAlignment;
}

// `row_numbers`: 32-bit words beside the tiles of a stage.
KernelLayout layout_of(const Problem& problem, const Schedule& schedule, int step,
                       int row_numbers) {
  const int consumers = schedule.tile_q / kRows;
  const int dim = slabs(problem.head_dim).columns, dim_v = slabs(problem.head_dim_v).columns;
  KernelLayout out;
  out.own_first_stride = tile_bytes(kRows, dim);
  out.own_second_stride = tile_bytes(kRows, dim_v);
  out.step_first_stride = tile_bytes(step, dim);
  out.step_second_stride = tile_bytes(step, dim_v);
  out.own_second_offset = consumers * out.own_first_stride;
  out.step_first_offset = out.own_second_offset + consumers * out.own_second_stride;
  out.step_second_offset = out.step_first_offset + schedule.stages * out.step_first_stride;
  out.rows_offset = out.step_second_offset + schedule.stages * out.step_second_stride;
  out.rows_stride = row_numbers * 4;
  out.told_offset = out.rows_offset + schedule.stages * out.rows_stride;
  out.flag_offset = out.told_offset + schedule.stages * kToldBytes;
  out.barriers_offset = out.flag_offset + 16;
  out.smem_bytes = out.barriers_offset + 8 * (1 + 4 * schedule.stages);
  return out;
}

// Beside sums and packed operands.
int other_registers(const Problem& problem) {
  int registers = 32;
  if (problem.mask == Mask::Kind::window || problem.mask == Mask::Kind::blocks) registers += 8;
  if (problem.dropout) registers += 8;
  if (problem.alibi) registers += 4;
  return registers;
}

}  // namespace

KernelLayout keys_layout(const Problem& problem, const Schedule& schedule) {
  const int words = problem.dropout ? schedule.tile_q / 32 : 0;  // for a query
  return layout_of(problem, schedule, schedule.step_q, schedule.step_q * (2 + words));
}

KernelLayout queries_layout(const Problem& problem, const Schedule& schedule) {
  return layout_of(problem, schedule, schedule.tile_kv, 0);
}

bool apart(const Problem& problem) {
  constexpr int kTogether = 288;  // sums of a consumer's 64 keys, over its threads
  return problem.head_dim + problem.head_dim_v > kTogether;
}

int keys_registers(const Problem& problem, const Schedule& schedule) {
  const int products = schedule.step_q * (problem.softcap ? 3 : 2) / 2;
  const int sums = apart(problem) ? std::max(problem.head_dim, problem.head_dim_v)
                                  : problem.head_dim + problem.head_dim_v;
  return sums / 2 + products + other_registers(problem);
}

int queries_registers(const Problem& problem, const Schedule& schedule) {
  const int sums = schedule.tile_kv * (problem.softcap ? 3 : 2) / 2;
  return problem.head_dim / 2 + sums + schedule.tile_kv / 4 + other_registers(problem);
}

}  // namespace flashwright::sm90
