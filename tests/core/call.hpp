// A call in which all is well, for tests that spoil it.
#pragma once

#include <functional>

#include "core/arguments.hpp"
#include "tests/support/testing.hpp"

namespace flashwright::testing {

constexpr std::int64_t kBatch = 2, kHeadsQ = 6, kHeadsKv = 2, kSeqQ = 5, kSeqKv = 7, kDim = 16,
                       kDimV = 24;

// Nothing is read through the pointers.
struct Call {
  Config config;
  Problem problem;
  Arguments args;

  explicit Call(DType dtype = DType::bf16, const Mask& mask = Mask::causal()) {
    config.dtype = dtype;
    config.head_dim = kDim;
    config.head_dim_v = kDimV;
    config.mask = mask;
    problem = normalise(config, {BackendKind::cuda, "sm_80"});
    args.q = tensor(1, dtype, {kBatch, kSeqQ, kHeadsQ, kDim});
    args.k = tensor(2, dtype, {kBatch, kSeqKv, kHeadsKv, kDim});
    args.v = tensor(3, dtype, {kBatch, kSeqKv, kHeadsKv, kDimV});
    args.o = tensor(4, dtype, {kBatch, kSeqQ, kHeadsQ, kDimV});
    args.lse = tensor(5, DType::fp32, {kBatch, kHeadsQ, kSeqQ, 1});
    args.lse->ndim = 3;
    args.lse->stride = {kHeadsQ * kSeqQ, kSeqQ, 1, 0};
    if (mask.kind == Mask::Kind::blocks) args.blocks = lists();
  }

  // The same as a backward call that wants everything.
  static Call backward(const Mask& mask = Mask::causal()) {
    Call call(DType::bf16, mask);
    call.config.direction = "backward";
    call.problem = normalise(call.config, call.problem.target);
    Arguments& args = call.args;
    args.d_o = tensor(6, DType::bf16, {kBatch, kSeqQ, kHeadsQ, kDimV});
    args.d_lse = args.lse;
    args.dq = tensor(7, DType::bf16, {kBatch, kSeqQ, kHeadsQ, kDim});
    args.dk = tensor(8, DType::bf16, {kBatch, kSeqKv, kHeadsKv, kDim});
    args.dv = tensor(9, DType::bf16, {kBatch, kSeqKv, kHeadsKv, kDimV});
    if (args.blocks)
      args.blocks->full_query_offsets = args.blocks->partial_query_offsets =
          args.blocks->full_offsets;
    return call;
  }

  static TensorView tensor(std::uintptr_t place, DType dtype, std::array<std::int64_t, 4> shape) {
    TensorView view = dense_view(reinterpret_cast<void*>(place << 20), dtype, shape);
    view.device = BackendKind::cuda;
    return view;
  }

  static BlockLists lists() {
    static const std::int32_t offsets[64] = {};
    BlockLists out;
    out.seq_q = kSeqQ;
    out.seq_kv = kSeqKv;
    out.block_q = out.block_kv = 4;
    out.full_offsets = out.partial_offsets = offsets;
    return out;
  }

  ResolvedArguments resolve() const { return flashwright::resolve(config, problem, args); }
  std::int64_t value(Param param) const {
    return static_cast<std::int64_t>(resolve().values.at(param));
  }
};

struct Refused {
  const char* what;
  std::function<void(Call&)> spoil;
  std::vector<std::string> named;  // the argument first
};

inline void check_refused(Call call, const Refused& row) {
  INFO(row.what);
  row.spoil(call);
  const Error error = error_of([&] { call.resolve(); });
  INFO(error.message);
  CHECK(error.status == Status::bad_argument);
  CHECK(error.message.starts_with(row.named.front() + ": given "));
  CHECK(contains(error.message, "; expected "));
  for (const std::string& part : row.named) CHECK(contains(error.message, part));
}

}  // namespace flashwright::testing
