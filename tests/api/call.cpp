#include "tests/api/call.hpp"

#include "tests/api/fake_devices.hpp"
#include "tests/support/testing.hpp"
#include "tuner/workload.hpp"

namespace flashwright::testing {

Call::Call()
    : q(kBatch * kSeq * kHeads * kDim),
      k(kBatch * kKeys * kHeadsKv * kDim),
      v(k.size()),
      o(q.size(), -1.0f),
      lse(kBatch * kHeads * kSeq, -1.0f) {
  fresh_machine();
  std::uint64_t seed = 0;
  for (std::vector<float>* values : {&q, &k, &v})
    fill_normal(DType::fp32, values->data(), static_cast<std::int64_t>(values->size()), ++seed);
  tq = {q.data(), 2, 0, 4, 2, 32, 1, q_shape, nullptr, 0};
  tk = {k.data(), 2, 0, 4, 2, 32, 1, k_shape, nullptr, 0};
  tv = {v.data(), 2, 0, 4, 2, 32, 1, k_shape, nullptr, 0};
  to = {o.data(), 2, 0, 4, 2, 32, 1, q_shape, nullptr, 0};
  tl = {lse.data(), 2, 0, 3, 2, 32, 1, lse_shape, nullptr, 0};
  args.size = sizeof args;
  args.q = &tq;
  args.k = &tk;
  args.v = &tv;
  args.o = &to;
  args.lse = &tl;
  REQUIRE(flashwright_engine_create(R"({"cache_dir":":memory:","data_dir":":memory:"})", &engine) ==
          FLASHWRIGHT_OK);
  REQUIRE(flashwright_get_kernel(engine, kConfig, nullptr, FLASHWRIGHT_COMPILE, &kernel) ==
          FLASHWRIGHT_OK);
}

Call::~Call() {
  flashwright_kernel_release(kernel);
  flashwright_engine_release(engine);
}

}  // namespace flashwright::testing
