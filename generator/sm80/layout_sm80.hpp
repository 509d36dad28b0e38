// The numbers of an sm80 kernel that follow from Problem and Schedule: the tiles in shared memory
// and the registers. The emitted file states the same sizes as formulas and checks their value when
// it is compiled.
#pragma once

#include "core/problem.hpp"
#include "core/schedule.hpp"

namespace flashwright::sm80 {

// Depth of one tensor core step: elements of the contracted dimension.
int mma_depth(DType dtype);

// 16-byte chunks of a row, rounded up to whole tensor core steps.
int row_chunks(DType dtype, int columns);

// Bytes of a row in shared memory: whole tensor core steps, and an odd number of 16-byte chunks, so
// that the eight rows of a matrix start in different banks.
int row_bytes(DType dtype, int columns);

struct Layout {
  int row_tiles = 0;     // 16-row tiles of a warp
  int keys_bytes = 0;    // one stage
  int values_bytes = 0;  // one stage
  int keys_offset = 0;   // from the start of shared memory
  int values_offset = 0;
  int smem_bytes = 0;
};
Layout layout(const Problem& problem, const Schedule& schedule);

// Shared memory of the unfused passes: queries and keys, then weights and values.
struct UnfusedLayout {
  int scores_bytes = 0;
  int output_bytes = 0;
};
UnfusedLayout unfused_layout(const Problem& problem, const Schedule& schedule);

// Shared memory of the two backward kernels. Each has the rows that it owns first, then its stages.
struct BackwardLayout {
  int row_tiles = 0;      // 16-row tiles of a warp of fw_dq
  int key_row_tiles = 0;  // of fw_dk_dv
  int dq_bytes = 0;
  int dk_dv_bytes = 0;
};
BackwardLayout backward_layout(const Problem& problem, const Schedule& schedule);

// Of a query's statistics, in the workspace and in shared memory: so many that any of them starts a copy.
constexpr int kStatisticsBytes = 16;

// Lanes that share a row of the outputs when its statistics are computed.
int statistics_lanes(const Problem& problem);

// Registers per thread that the compiler needs at least, by the family's law: a schedule that asks for
// more than there are spills. Where there are more, the compiler takes up to 40 others. Fitted to its
// reports: docs/performance.md.
int estimate_registers(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright::sm80
