// A kernel of the made-up device and tensors for it, through the C interface alone.
#pragma once

#include <cstdint>
#include <vector>

#include "flashwright/flashwright.h"

namespace flashwright::testing {

constexpr std::int64_t kBatch = 2, kSeq = 9, kKeys = 12, kHeads = 4, kHeadsKv = 2, kDim = 16;

// One call with tensors in host memory, which the made-up device uses as its own.
struct Call {
  std::vector<float> q, k, v, o, lse;
  std::int64_t q_shape[4] = {kBatch, kSeq, kHeads, kDim},
               k_shape[4] = {kBatch, kKeys, kHeadsKv, kDim};
  std::int64_t lse_shape[3] = {kBatch, kHeads, kSeq};
  flashwright_tensor tq, tk, tv, to, tl;
  flashwright_arguments args{};
  flashwright_engine* engine = nullptr;
  flashwright_kernel* kernel = nullptr;

  Call();
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  flashwright_status launch() { return flashwright_kernel_launch(kernel, &args, nullptr, nullptr); }
};

}  // namespace flashwright::testing
