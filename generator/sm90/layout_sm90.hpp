// The numbers of an sm90 kernel that follow from Problem and Schedule: tiles and barriers in shared
// memory, registers of the two roles. The emitted file states the same sizes as formulas and checks
// their value when it is compiled.
#pragma once

#include "core/problem.hpp"
#include "core/schedule.hpp"

namespace flashwright::sm90 {

// How a head dimension lies in shared memory: in slabs as wide as the swizzle.
struct Slabs {
  int columns = 0;  // elements of a row, padded to whole slabs
  int swizzle = 0;  // bytes of a slab
};
Slabs slabs(int head_dim);

// Registers of a thread of the two roles, which together are those of the block.
struct Registers {
  int producer = 0, consumer = 0;
};
Registers registers(const Problem& problem, int consumers);

struct Layout {
  int consumers = 0;                     // warpgroups of 64 query rows
  int queries_bytes = 0;                 // of one consumer
  int own_bytes = 0;                     // of one consumer: its queries, later its output
  int keys_bytes = 0, values_bytes = 0;  // of one stage
  int keys_offset = 0, values_offset = 0, work_offset = 0, tiles_offset = 0, barriers_offset = 0;
  int work_bytes = 0;  // of a record
  int smem_bytes = 0;
};
Layout layout(const Problem& problem, const Schedule& schedule);

// Registers that a consumer needs: its scores, their weights, the output, and what else there is.
int consumer_registers(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright::sm90
