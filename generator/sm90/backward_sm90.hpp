// The backward kernels of sm90: their sizes and how they are put together. Two kernels compute gradients,
// one with keys of its own that meet the queries, one with queries of its own that meet the keys; both
// have the same consumers.
#pragma once

#include "core/device.hpp"
#include "generator/compose.hpp"
#include "generator/family.hpp"
#include "generator/sm90/layout_sm90.hpp"

namespace flashwright::sm90 {

// Values of the knob add_queries: consumers add up gradients of queries in turn, or a warpgroup of its own
// does.
constexpr int kInTurn = 1, kByAdder = 2;

// Bytes of shared memory from its start. `own`: the two tiles that a consumer keeps; `step`: a stage of
// those that it meets.
struct KernelLayout {
  int own_first_stride = 0, own_second_offset = 0, own_second_stride = 0;
  int step_first_offset = 0, step_first_stride = 0, step_second_offset = 0, step_second_stride = 0;
  int first_stages = 0, second_stages = 0;
  int rows_offset = 0, rows_stride = 0;  // numbers of query rows, of a stage
  int told_offset = 0, flag_offset = 0;  // what the producer tells of the stages; of the whole
  // What consumers share, in one or two slots: gradients of scores, or weights. And what a consumer adds to
  // sums.
  int slots = 0, shared_offset = 0, shared_stride = 0, sums_offset = 0, sums_stride = 0;
  int barriers_offset = 0;
  int smem_bytes = 0;
};
KernelLayout keys_layout(const Problem& problem, const Schedule& schedule);
KernelLayout queries_layout(const Problem& problem, const Schedule& schedule);
int convert_bytes(const Problem& problem);  // of the kernel that rounds summed gradients of queries

// Whether one consumer computes gradients of keys and another those of the values: no one can hold the sums
// of both.
bool apart(const Problem& problem);
// Whether consumers tell each other weights or gradients of scores.
bool shares(const Problem& problem, const Schedule& schedule);
// Keys of a block of the first kernel.
int keys_per_block(const Problem& problem, const Schedule& schedule);

// Queries of a step whose scores are computed at once: all, or half of a long step.
int part_queries(const Problem& problem, const Schedule& schedule);

// Registers that a consumer of either kernel needs, about.
int keys_registers(const Problem& problem, const Schedule& schedule);
int queries_registers(const Problem& problem, const Schedule& schedule);
// Those of a thread of each role.
struct BackwardRegisters : Registers {
  int adder = 0;
};
BackwardRegisters backward_registers(const Problem& problem, const Schedule& schedule);

// What a family answers, for the backward pass.
Candidate examine_backward(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                           const Schedule& schedule);
std::vector<Candidate> backward_space(const Problem& problem, const DeviceInfo& device,
                                      const Shape& shape);
Schedule backward_default(const Problem& problem, const DeviceInfo& device, const Shape& shape);

Emission backward_emission(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright::sm90
