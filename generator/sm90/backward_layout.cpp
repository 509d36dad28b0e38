#include <algorithm>

#include "generator/sm90/backward_sm90.hpp"

namespace flashwright::sm90 {
namespace {

constexpr int kElementBytes = 2, kRows = 64;  // of a consumer
constexpr int kAlignment = 1024;              // of a swizzled tile
constexpr int kToldBytes = 32;                // of a stage
constexpr int kMostBytes = 227 * 1024;        // of a block

int tile_bytes(int rows, int columns) {
  return (rows * columns * kElementBytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Stages of the first and of the second tile of a pair that consumers meet.
struct Rings {
  int first = 0, second = 0;
};

// `parts`: pairs of tiles of 64 rows that the consumers keep. `row_numbers`: 32-bit words beside the tiles
// of a stage.
KernelLayout layout_of(const Problem& problem, const Schedule& schedule, int parts, int step,
                       const Rings& rings, int row_numbers) {
  const int dim = slabs(problem.head_dim).columns, dim_v = slabs(problem.head_dim_v).columns;
  KernelLayout out;
  out.own_first_stride = tile_bytes(kRows, dim);
  out.own_second_stride = tile_bytes(kRows, dim_v);
  out.step_first_stride = tile_bytes(step, dim);
  out.step_second_stride = tile_bytes(step, dim_v);
  out.own_second_offset = parts * out.own_first_stride;
  out.step_first_offset = out.own_second_offset + parts * out.own_second_stride;
  out.step_second_offset = out.step_first_offset + rings.first * out.step_first_stride;
  out.rows_offset = out.step_second_offset + rings.second * out.step_second_stride;
  out.rows_stride = row_numbers * 4;
  out.told_offset = out.rows_offset + schedule.stages * out.rows_stride;
  out.flag_offset = out.told_offset + schedule.stages * kToldBytes;
  out.barriers_offset = out.flag_offset + 16;
  out.first_stages = rings.first;
  out.second_stages = rings.second;
  out.smem_bytes = out.barriers_offset + 8 * (1 + 4 * schedule.stages);
  return out;
}

// What consumers share and send, behind the stages of tiles, as these have to be aligned.
void add_slots(const Problem& problem, const Schedule& schedule, KernelLayout& out) {
  const int senders = schedule.add_queries == kByAdder ? 1 : schedule.tile_q / kRows;
  out.shared_stride = keys_per_block(problem, schedule) * schedule.query_step * kElementBytes;
  if (schedule.add_queries != 0) out.sums_stride = schedule.query_step * problem.head_dim * 4;
  const int beside = senders * out.sums_stride + 8 * 5;  // and the barriers
  out.slots = out.smem_bytes + beside + 2 * out.shared_stride <= kMostBytes ? 2 : 1;
  const int more = out.slots * out.shared_stride + senders * out.sums_stride;
  out.shared_offset = out.rows_offset;
  out.sums_offset = out.shared_offset + out.slots * out.shared_stride;
  for (int* offset : {&out.rows_offset, &out.told_offset, &out.flag_offset, &out.barriers_offset})
    *offset += more;
  out.smem_bytes += more + 8 * (1 + 2 * out.slots);
}

// Beside sums and packed operands.
int other_registers(const Problem& problem) {
  int registers = 32;
  if (problem.mask == Mask::Kind::window) registers += 8;
  if (problem.alibi) registers += 4;
  return registers;
}

}  // namespace

KernelLayout keys_layout(const Problem& problem, const Schedule& schedule) {
  const int keys = keys_per_block(problem, schedule);
  const int words = problem.dropout ? keys / 32 : 0;  // for a query
  KernelLayout out =
      layout_of(problem, schedule, keys / kRows, schedule.query_step,
                {schedule.stages, schedule.stages}, schedule.query_step * (2 + words));
  if (shares(problem, schedule)) add_slots(problem, schedule, out);
  return out;
}

KernelLayout queries_layout(const Problem& problem, const Schedule& schedule) {
  // Its barriers are made by the same function.
  const int more =
      shares(problem, schedule) ? 8 * (1 + 2 * keys_layout(problem, schedule).slots) : 0;
  Rings rings = {schedule.stages, schedule.stages};
  while (true) {
    KernelLayout out =
        layout_of(problem, schedule, schedule.tile_q / kRows, schedule.tile_kv, rings, 0);
    out.smem_bytes += more;
    if (out.smem_bytes <= kMostBytes || rings.first + rings.second == 2) return out;
    // Keys are read twice, values once: they can do with a stage less.
    --(rings.first == rings.second ? rings.second : rings.first);
  }
}

int convert_bytes(const Problem& problem) {
  return tile_bytes(kRows, slabs(problem.head_dim).columns);
}

bool apart(const Problem& problem) {
  constexpr int kTogether = 288;  // sums of a consumer's 64 keys, over its threads
  return problem.head_dim + problem.head_dim_v > kTogether;
}

bool shares(const Problem& problem, const Schedule& schedule) {
  return schedule.add_queries != 0 || apart(problem);
}

int keys_per_block(const Problem& problem, const Schedule& schedule) {
  return apart(problem) ? kRows : schedule.tile_q;
}

int part_queries(const Problem& problem, const Schedule& schedule) {
  const bool halves = schedule.query_step == 2 * kRows && !apart(problem);
  return halves ? kRows : schedule.query_step;
}

int keys_registers(const Problem& problem, const Schedule& schedule) {
  // A consumer of keys or of values has one product, and holds two sets of packed operands.
  if (apart(problem))
    return std::max(problem.head_dim, problem.head_dim_v) / 2 +
           schedule.query_step * (problem.softcap ? 4 : 2) / 2 + other_registers(problem);
  const int part = part_queries(problem, schedule);
  const int products = part < schedule.query_step ? part / 2 * (problem.softcap ? 4 : 3)
                                                  : part / 2 * (problem.softcap ? 3 : 2);
  const int sums = problem.head_dim + problem.head_dim_v;
  // Gradients of queries take the place of two products that are done with.
  const int adding = schedule.add_queries == kInTurn
                         ? std::max(0, problem.head_dim / 2 * (schedule.query_step / kRows) -
                                           schedule.query_step + 16)
                         : 0;
  return sums / 2 + products + adding + other_registers(problem);
}

int queries_registers(const Problem& problem, const Schedule& schedule) {
  const int sums = schedule.tile_kv * (problem.softcap ? 3 : 2) / 2;
  const int bits = problem.dropout ? 8 : 0;
  return problem.head_dim / 2 + sums + schedule.tile_kv / 4 + bits + other_registers(problem);
}

// A producer needs more to draw the bits of dropout or to walk through block lists, and can do with less
// where consumers have none to spare.
BackwardRegisters backward_registers(const Problem& problem, const Schedule& schedule) {
  if (schedule.add_queries == kByAdder) return {{24, 208}, 72};
  if (schedule.tile_q != 2 * kRows) return {{32, 160}};
  constexpr Registers kBusy = {56, 224}, kUsual = {40, 232}, kMost = {24, 240};
  const int needed =
      std::max(keys_registers(problem, schedule), queries_registers(problem, schedule));
  if (problem.mask == Mask::Kind::blocks) return {kBusy};
  if (problem.dropout && needed <= kBusy.consumer) return {kBusy};
  return {needed <= kUsual.consumer && !problem.dropout ? kUsual : kMost};
}

}  // namespace flashwright::sm90
