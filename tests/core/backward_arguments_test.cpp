// A backward launch: what it needs, what it refuses, and which values arrive.
#include "tests/core/call.hpp"

using namespace flashwright;
using namespace flashwright::testing;

TEST_CASE("a backward call lacks nothing that it needs, and a forward call has nothing of it") {
  const std::vector<Refused> table = {
      {"no lse", [](Call& c) { c.args.lse.reset(); }, {"lse", "no tensor", "backward"}},
      {"no d_o", [](Call& c) { c.args.d_o.reset(); }, {"d_o", "no tensor", "gradient of o"}},
      {"nothing wanted",
       [](Call& c) {
         c.args.dq.reset();
         c.args.dk.reset();
         c.args.dv.reset();
       },
       {"dq, dk, dv", "none of them", "at least one"}},
      {"d_o of another shape",
       [](Call& c) { c.args.d_o->shape[3] = 8; },
       {"d_o", "(2, 5, 6, 8)", "head_dim_v = 24"}},
      {"d_o of another type", [](Call& c) { c.args.d_o->dtype = DType::fp32; }, {"d_o", "bf16"}},
      {"d_lse in 16 bits", [](Call& c) { c.args.d_lse->dtype = DType::bf16; }, {"d_lse", "fp32"}},
      {"d_lse for other heads",
       [](Call& c) { c.args.d_lse->shape[1] = 2; },
       {"d_lse", "heads of q"}},
      {"dq of the keys", [](Call& c) { c.args.dq->shape[1] = kSeqKv; }, {"dq", "seq_q of q = 5"}},
      {"dk for all query heads",
       [](Call& c) { c.args.dk->shape[2] = kHeadsQ; },
       {"dk", "heads of k = 2"}},
      {"dv with the dims of k",
       [](Call& c) { c.args.dv->shape[3] = kDim; },
       {"dv", "head_dim_v = 24"}},
      {"dk that overlaps itself", [](Call& c) { c.args.dk->stride[1] = 0; }, {"dk", "overlap"}},
      {"dv on another device", [](Call& c) { c.args.dv->device_index = 1; }, {"dv", "device 1"}},
      {"dq without an address", [](Call& c) { c.args.dq->data = nullptr; }, {"dq", "null pointer"}},
      {"o of another shape", [](Call& c) { c.args.o.shape[2] = 2; }, {"o", "heads of q = 6"}},
  };
  for (const Refused& row : table) check_refused(Call::backward(), row);
  check_refused(Call::backward(Mask::blocks()),
                {"lists by rows alone",
                 [](Call& c) { c.args.blocks->full_query_offsets = nullptr; },
                 {"blocks", "no lists by key blocks", "flashwright_blocks_transpose"}});
  check_refused(Call(), {"a gradient in a forward call",
                         [](Call& c) { c.args.dk = c.args.k; },
                         {"dk", "a tensor", "none, as the direction is 'forward'"}});
}

TEST_CASE("values of a backward launch arrive, whatever part is wanted") {
  Call call = Call::backward();
  CHECK(!call.resolve().empty);
  CHECK(call.value(Param::o_given) == call.value(Param::o));
  CHECK(call.value(Param::lse_given) == call.value(Param::lse));
  CHECK(call.value(Param::d_lse) == call.value(Param::lse));
  CHECK(call.value(Param::d_lse_head_stride) == kSeqQ);
  CHECK(call.value(Param::dv_row_stride) == kHeadsKv * kDimV);
  CHECK(call.value(Param::d_o_head_stride) == kDimV);
  const auto wants = [&] {
    const auto rule = call.resolve().rule_values;
    return std::vector<double>(rule.begin() + 8, rule.begin() + 11);
  };
  CHECK(wants() == std::vector<double>{1, 1, 1});
  call.args.dk.reset();
  call.args.d_lse.reset();
  CHECK(wants() == std::vector<double>{1, 0, 1});
  CHECK(call.value(Param::dk) == 0);
  CHECK(call.value(Param::d_lse) == 0);
  // What is read may be spread out: overlapping rows of o and d_o are fine.
  call.args.o.stride[1] = call.args.d_o->stride[1] = call.args.lse->stride[1] = 0;
  CHECK(!call.resolve().empty);
  Call blocks = Call::backward(Mask::blocks());
  CHECK(blocks.value(Param::key_blocks) == 2);
  CHECK(blocks.value(Param::full_query_offsets) == blocks.value(Param::full_offsets));
}

TEST_CASE("without queries the gradients of keys and values are still written, as zeros") {
  Call call = Call::backward();
  for (TensorView* tensor : {&call.args.q, &call.args.o, &*call.args.d_o, &*call.args.dq})
    tensor->shape[1] = 0;
  call.args.lse->shape[2] = call.args.d_lse->shape[2] = 0;
  CHECK(!call.resolve().empty);
  CHECK(call.resolve().rule_values[8] == 0);  // dq has no element
  call.args.dk.reset();
  call.args.dv.reset();
  CHECK(call.resolve().empty);
}
