// Every refused call names the argument, what was given and what is allowed (cases C32, C73, C110); everything
// that the interface promises to accept passes, and its values arrive in the parameter table.
#include "core/arguments.hpp"

#include <cmath>

#include "core/philox.hpp"
#include "tests/core/call.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

float as_float(std::uint64_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}

}  // namespace

TEST_CASE("tensors of the wrong rank, type, device or shape are refused by name") {
  const std::vector<Refused> table = {
      {"q of rank 3",
       [](Call& c) { c.args.q.ndim = 3; },
       {"q", "rank 3", "rank 4", "(batch, seq, heads, dim)"}},
      {"lse of rank 4",
       [](Call& c) { c.args.lse->ndim = 4; },
       {"lse", "rank 4", "rank 3", "heads_q"}},
      {"k of another type", [](Call& c) { c.args.k.dtype = DType::fp16; }, {"k", "fp16", "bf16"}},
      {"o of another type", [](Call& c) { c.args.o.dtype = DType::fp32; }, {"o", "fp32", "bf16"}},
      {"lse in 16 bits", [](Call& c) { c.args.lse->dtype = DType::bf16; }, {"lse", "bf16", "fp32"}},
      {"v in host memory",
       [](Call& c) { c.args.v.device = BackendKind::cpu; },
       {"v", "memory of cpu", "memory of cuda"}},
      {"k on another device",
       [](Call& c) { c.args.k.device_index = 1; },
       {"k", "device 1", "device 0"}},
      {"lse on another device",
       [](Call& c) { c.args.lse->device_index = 3; },
       {"lse", "device 3", "device 0"}},
      {"negative extent",
       [](Call& c) { c.args.v.shape[1] = -7; },
       {"v", "-7", "no negative extent"}},
      {"null data", [](Call& c) { c.args.k.data = nullptr; }, {"k", "null pointer", "address"}},
      {"misaligned",
       [](Call& c) { c.args.q.data = reinterpret_cast<void*>(0x100001); },
       {"q", "0x100001", "multiple of 2"}},
      {"last stride",
       [](Call& c) { c.args.v.stride[3] = 2; },
       {"v", "stride 2", "last dimension", "stride 1"}},
      {"last stride 0", [](Call& c) { c.args.q.stride[3] = 0; }, {"q", "stride 0", "stride 1"}},
      {"head dim of q",
       [](Call& c) { c.args.q.shape[3] = 8; },
       {"q", "(2, 5, 6, 8)", "head_dim = 16", "dimension 3"}},
      {"head dims of q and k",
       [](Call& c) { c.args.k.shape[3] = 24; },
       {"k", "(2, 7, 2, 24)", "head_dim = 16"}},
      {"head dim of v",
       [](Call& c) { c.args.v.shape[3] = 16; },
       {"v", "(2, 7, 2, 16)", "head_dim_v = 24"}},
      {"head dim of o",
       [](Call& c) { c.args.o.shape[3] = 16; },
       {"o", "(2, 5, 6, 16)", "head_dim_v = 24"}},
      {"lengths of k and v",
       [](Call& c) { c.args.v.shape[1] = 6; },
       {"v", "(2, 6, 2, 24)", "seq_kv of k = 7"}},
      {"heads of k and v",
       [](Call& c) { c.args.v.shape[2] = 3; },
       {"v", "(2, 7, 3, 24)", "heads of k = 2"}},
      {"batch of k",
       [](Call& c) { c.args.k.shape[0] = 1; },
       {"k", "(1, 7, 2, 16)", "batch of q = 2"}},
      {"length of o",
       [](Call& c) { c.args.o.shape[1] = 4; },
       {"o", "(2, 4, 6, 24)", "seq_q of q = 5"}},
      {"heads of o",
       [](Call& c) { c.args.o.shape[2] = 2; },
       {"o", "(2, 5, 2, 24)", "heads of q = 6"}},
      {"lse as (b, s, h)",
       [](Call& c) { std::swap(c.args.lse->shape[1], c.args.lse->shape[2]); },
       {"lse", "(2, 5, 6)", "heads of q = 6", "dimension 1"}},
      {"no lists",
       [](Call& c) { c.args.blocks = Call::lists(); },
       {"blocks", "block lists", "'causal'"}}};
  for (const Refused& row : table) check_refused(Call(), row);
  for (const Refused& row :
       {Refused{"fp32",
                [](Call& c) { c.args.q.data = reinterpret_cast<void*>(0x100002); },
                {"q", "0x100002", "multiple of 4"}}})
    check_refused(Call(DType::fp32), row);
}

TEST_CASE("slopes are asked for by the Config, and have to fit") {
  const std::vector<Refused> table = {
      {"none", [](Call& c) { c.args.alibi_slopes.reset(); }, {"alibi_slopes", "none", "alibi"}},
      {"fp16",
       [](Call& c) { c.args.alibi_slopes->dtype = DType::fp16; },
       {"alibi_slopes", "fp16", "fp32"}},
      {"host memory",
       [](Call& c) { c.args.alibi_slopes->device = BackendKind::cpu; },
       {"alibi_slopes", "memory of cpu", "memory of cuda"}},
      {"another device",
       [](Call& c) { c.args.alibi_slopes->device_index = 2; },
       {"alibi_slopes", "device 2", "device 0"}},
      {"heads of keys",
       [](Call& c) { c.args.alibi_slopes->shape[1] = kHeadsKv; },
       {"alibi_slopes", "(2, 2)", "(6) or (2, 6)"}},
      {"transposed",
       [](Call& c) { std::swap(c.args.alibi_slopes->shape[0], c.args.alibi_slopes->shape[1]); },
       {"alibi_slopes", "(6, 2)", "(heads_q) or (batch, heads_q)"}},
      {"a scalar",
       [](Call& c) {
         c.args.alibi_slopes->ndim = 1;
         c.args.alibi_slopes->shape[0] = 1;
       },
       {"alibi_slopes", "(1)", "(6) or (2, 6)"}},
      {"rank 3",
       [](Call& c) { c.args.alibi_slopes->ndim = 3; },
       {"alibi_slopes", "(2, 6, 1)", "(6) or (2, 6)"}},
      {"null data",
       [](Call& c) { c.args.alibi_slopes->data = nullptr; },
       {"alibi_slopes", "null pointer", "address"}},
      {"misaligned",
       [](Call& c) { c.args.alibi_slopes->data = reinterpret_cast<void*>(0x100002); },
       {"alibi_slopes", "0x100002", "multiple of 4"}}};
  Call call;
  call.config.alibi = true;
  call.problem = normalise(call.config, call.problem.target);
  call.args.alibi_slopes = Call::tensor(6, DType::fp32, {kBatch, kHeadsQ, 1, 1});
  call.args.alibi_slopes->ndim = 2;
  call.args.alibi_slopes->stride = {-9, 3, 1, 1};
  for (const Refused& row : table) check_refused(call, row);
  check_refused(Call(), {"not asked for",
                         [&](Call& c) { c.args.alibi_slopes = call.args.alibi_slopes; },
                         {"alibi_slopes", "slopes", "no alibi"}});
  CHECK(call.value(Param::alibi_slopes) == 6 << 20);
  CHECK(call.value(Param::alibi_batch_stride) == -9);
  CHECK(call.value(Param::alibi_head_stride) == 3);
  call.args.alibi_slopes->ndim = 1;
  call.args.alibi_slopes->shape[0] = kHeadsQ;
  CHECK(call.value(Param::alibi_batch_stride) == 0);
  CHECK(call.value(Param::alibi_head_stride) == -9);
}

TEST_CASE("factors of the scores, with and without a cap and slopes") {
  Call call;
  call.config.softmax_scale = -0.5;
  call.config.softcap = 30;
  call.problem = normalise(call.config, call.problem.target);
  const ParamValues capped = call.resolve().values;
  CHECK(as_float(capped.at(Param::softcap_log2)) == doctest::Approx(30 / std::log(2.0)));
  CHECK(as_float(capped.at(Param::tanh_scale)) == doctest::Approx(-0.5 / 30));
  // A slope is divided by the factor of the scores, which therefore is no smaller than this.
  Call flat;
  flat.config.alibi = true;
  flat.config.softmax_scale = 0;
  flat.problem = normalise(flat.config, flat.problem.target);
  flat.args.alibi_slopes = Call::tensor(6, DType::fp32, {kHeadsQ, 1, 1, 1});
  flat.args.alibi_slopes->ndim = 1;
  CHECK(as_float(flat.resolve().values.at(Param::scale_log2)) ==
        doctest::Approx(0x1p-80 / std::log(2.0)));
}

TEST_CASE("head counts that do not divide are refused with both numbers") {  // C32
  for (const auto& [heads_q, heads_kv] : {std::pair{3, 2}, {33, 2}, {2, 3}, {4, 0}}) {
    Call call;
    call.args.q.shape[2] = call.args.o.shape[2] = call.args.lse->shape[1] = heads_q;
    call.args.k.shape[2] = call.args.v.shape[2] = heads_kv;
    for (TensorView* view : {&call.args.q, &call.args.k, &call.args.v, &call.args.o})
      *view = Call::tensor(reinterpret_cast<std::uintptr_t>(view->data) >> 20, view->dtype,
                           view->shape);
    call.args.lse->stride = {heads_q * kSeqQ, kSeqQ, 1, 0};
    check_refused(call, {"heads",
                         [](Call&) {},
                         {"k", std::to_string(heads_q) + " q heads",
                          std::to_string(heads_kv) + " kv heads", "divisible"}});
  }
}

TEST_CASE("sizes that no kernel can count are refused") {
  const std::vector<Refused> table = {
      {"seq_kv",
       [](Call& c) { c.args.k.shape[1] = c.args.v.shape[1] = std::int64_t{1} << 30; },
       {"k", "seq_kv 1073741824", "below 1073741824"}},
      {"q_position",
       [](Call& c) { c.args.q_position = std::int64_t{1} << 31; },
       {"q_position", "2147483648", "below"}},
      {"q_position",
       [](Call& c) { c.args.q_position = -(std::int64_t{1} << 30); },
       {"q_position", "-1073741824", "below"}}};
  for (const Refused& row : table) check_refused(Call(), row);
  const auto with_batch = [](std::int64_t batch) {
    Call call;
    for (TensorView* view :
         {&call.args.q, &call.args.k, &call.args.v, &call.args.o, &*call.args.lse})
      view->shape[0] = batch;
    return call;
  };
  check_refused(with_batch(std::int64_t{1} << 31),
                {"batch", [](Call&) {}, {"q", "batch 2147483648", "below 2147483648"}});
  check_refused(with_batch(std::int64_t{1} << 29),
                {"b * h", [](Call&) {}, {"q", "batch * heads 3221225472", "below"}});
}

TEST_CASE("an output whose elements would overlap is refused; an input may repeat itself") {
  const std::vector<Refused> table = {
      {"rows on top of each other",
       [](Call& c) { c.args.o.stride[1] = 0; },
       {"o", "stride 0", "dimension 1", "overlap"}},
      {"rows too close",
       [](Call& c) { c.args.o.stride[2] = kDimV - 1; },
       {"o", "stride 23", "dimension 2", "overlap"}},
      {"batch", [](Call& c) { c.args.o.stride[0] = 1; }, {"o", "overlap"}},
      {"lse",
       [](Call& c) { c.args.lse->stride[1] = 0; },
       {"lse", "stride 0", "dimension 1", "overlap"}}};
  for (const Refused& row : table) check_refused(Call(), row);
  Call call;
  call.args.q.stride = call.args.k.stride = call.args.v.stride = {0, 0, 0, 1};
  CHECK(call.value(Param::k_row_stride) == 0);
}

TEST_CASE("block lists that do not fit are refused") {  // C73
  const std::vector<Refused> table = {
      {"none", [](Call& c) { c.args.blocks.reset(); }, {"blocks", "none", "'blocks'"}},
      {"longer",
       [](Call& c) { c.args.blocks->seq_q = c.args.blocks->seq_kv = 4096; },
       {"blocks", "mask of length 4096 x 4096", "sequence length 5 x 7"}},
      {"shorter", [](Call& c) { c.args.blocks->seq_kv = 6; }, {"blocks", "5 x 6", "5 x 7"}},
      {"block size",
       [](Call& c) { c.args.blocks->block_kv = 0; },
       {"blocks", "4 x 0", "at least 1 x 1"}},
      {"block size",
       [](Call& c) { c.args.blocks->block_q = -4; },
       {"blocks", "-4 x 4", "at least 1 x 1"}},
      {"batch", [](Call& c) { c.args.blocks->batch = 3; }, {"blocks", "batch 3", "1 or 2"}},
      {"heads", [](Call& c) { c.args.blocks->heads = kHeadsKv; }, {"blocks", "heads 2", "1 or 6"}},
      {"offsets",
       [](Call& c) { c.args.blocks->full_offsets = nullptr; },
       {"blocks", "no offsets", "one entry more"}}};
  for (const Refused& row : table) check_refused(Call(DType::bf16, Mask::blocks()), row);
  Call(DType::bf16, Mask::blocks()).resolve();
}

TEST_CASE("strides of any kind are accepted and arrive as they are") {
  Call call;
  const std::int64_t far = std::int64_t{1} << 33;  // more than 2^31 elements away
  call.args.q.stride = {far, 3, 5 * far, 1};
  call.args.k.stride = {-400, -40, 1000, 1};
  call.args.v.stride = {0, kDimV * 3, kDimV, 1};
  call.args.o.stride = {far, -kDimV * 7, kDimV, 1};
  call.args.lse->stride = {1, 100, 9, 0};
  call.args.lse->stride[2] = 1;
  call.args.lse->stride[0] = far;
  CHECK(call.value(Param::q_batch_stride) == far);
  CHECK(call.value(Param::q_row_stride) == 3);
  CHECK(call.value(Param::q_head_stride) == 5 * far);
  CHECK(call.value(Param::k_batch_stride) == -400);
  CHECK(call.value(Param::k_row_stride) == -40);
  CHECK(call.value(Param::v_batch_stride) == 0);
  CHECK(call.value(Param::o_row_stride) == -kDimV * 7);
  CHECK(call.value(Param::lse_batch_stride) == far);
  CHECK(call.value(Param::lse_head_stride) == 100);
}

TEST_CASE("strides of dimensions with one element or none do not matter") {
  Call call;
  for (TensorView* view : {&call.args.q, &call.args.k, &call.args.v, &call.args.o}) {
    view->shape[0] = 1;
    view->stride[0] = 12345;  // frameworks leave anything there
  }
  call.args.lse->shape[0] = 1;
  call.args.lse->stride[0] = 0;
  CHECK(call.resolve().shape.batch == 1);
  CHECK(call.value(Param::aligned) == 1);
}

TEST_CASE("the aligned path is taken exactly when every row starts on 16 bytes") {
  const std::vector<std::pair<std::string, std::function<void(Call&)>>> misaligned = {
      {"q address", [](Call& c) { c.args.q.data = reinterpret_cast<void*>((1 << 20) + 8); }},
      {"k row", [](Call& c) { c.args.k.stride[1] += 4; }},
      {"v head", [](Call& c) { c.args.v.stride[2] += 4; }},
      {"o batch", [](Call& c) { c.args.o.stride[0] += 4; }}};
  CHECK(Call().value(Param::aligned) == 1);
  for (const auto& [what, spoil] : misaligned) {
    INFO(what);
    Call call;
    spoil(call);
    CHECK(call.value(Param::aligned) == 0);
  }
}

TEST_CASE("values of the launch arrive") {
  Call call(DType::bf16, Mask::window(3, -1));
  call.config.dropout = 0.5;
  call.args.seed = 7;
  call.args.offset = 9;
  const ResolvedArguments r = call.resolve();
  CHECK(r.shape == Shape{kBatch, kHeadsQ, kHeadsKv, kSeqQ, kSeqKv});
  CHECK(!r.empty);
  CHECK(call.value(Param::group) == 3);
  CHECK(call.value(Param::pack_shift) == 0);
  CHECK(pack_shift({1, 8, 8, 1, 1}) == 0);
  CHECK(pack_shift({1, 12, 2, 1, 1}) == 1);
  CHECK(pack_shift({1, 32, 8, 1, 1}) == 2);
  CHECK(pack_shift({1, 64, 1, 1, 1}) == 3);
  CHECK(pack_shift({1, 0, 0, 1, 1}) == 0);
  CHECK(call.value(Param::q_position) == kSeqKv - kSeqQ);
  CHECK(call.value(Param::window_left) == 3);
  CHECK(call.value(Param::window_right) == 1 << 30);
  CHECK(call.value(Param::drop_threshold) == 128);
  CHECK(as_float(r.values.at(Param::keep_scale)) == 2.0f);
  CHECK(r.values.at(Param::dropout_key) == dropout_key(7, 9));
  CHECK(as_float(r.values.at(Param::scale_log2)) == doctest::Approx(0.25 / std::log(2.0)));
  CHECK(r.rule_values == std::array<double, kRuleVariables>{kBatch, kHeadsQ, kHeadsKv, kSeqQ,
                                                            kSeqKv, 0, 0, 0, 0, 0, 0, 1});
  call.args.q_position = -3;
  call.config.softmax_scale = -2.0;
  CHECK(static_cast<std::int32_t>(call.value(Param::q_position)) == -3);
  CHECK(as_float(call.resolve().values.at(Param::scale_log2)) ==
        doctest::Approx(-2 / std::log(2.0)));
  Call blocks(DType::bf16, Mask::blocks());
  CHECK(blocks.value(Param::query_blocks) == 2);
  CHECK(blocks.resolve().rule_values[5] == 2);
  CHECK(blocks.resolve().rule_values[6] == 4);
  CHECK(blocks.resolve().rule_values[7] == 4);
}

TEST_CASE("empty tensors need no memory, and a call without outputs has nothing to do") {
  Call no_keys;
  no_keys.args.k.shape[1] = no_keys.args.v.shape[1] = 0;
  no_keys.args.k.data = no_keys.args.v.data = nullptr;
  CHECK(!no_keys.resolve().empty);  // the outputs become zeros
  Call no_queries;
  no_queries.args.q.shape[1] = no_queries.args.o.shape[1] = no_queries.args.lse->shape[2] = 0;
  no_queries.args.q.data = no_queries.args.o.data = no_queries.args.lse->data = nullptr;
  CHECK(no_queries.resolve().empty);
  Call no_lse;
  no_lse.args.lse.reset();
  CHECK(no_lse.value(Param::lse) == 0);
  // Devices of tensors without elements do not count.
  no_keys.args.k.device_index = 1;
  CHECK(!no_keys.resolve().empty);
}
