// The header-only C++ interface over a made-up device. Its names are those of modules too, so no header of theirs
// is included here.
#include <cmath>

#include "flashwright/flashwright.hpp"
#include "tests/api/call.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright::testing;

TEST_CASE("the C++ interface is the C interface with lifetimes") {
  Call call;
  {
    flashwright::Kernel kernel(call.kernel);
    call.kernel = nullptr;
    flashwright::Kernel copy = kernel;
    flashwright::Kernel moved = std::move(kernel);
    CHECK(contains(copy.source(), "q64.kv64.w4.st2"));
    CHECK(contains(copy.describe(), "fw_fake"));
    CHECK(moved.binary().size() == moved.source().size());
    using flashwright::DType;
    using flashwright::Tensor;
    flashwright::Arguments arguments{
        Tensor(call.q.data(), DType::fp32, {kBatch, kSeq, kHeads, kDim}, true),
        Tensor(call.k.data(), DType::fp32, {kBatch, kKeys, kHeadsKv, kDim}, true),
        Tensor(call.v.data(), DType::fp32, {kBatch, kKeys, kHeadsKv, kDim}, true),
        Tensor(call.o.data(), DType::fp32, {kBatch, kSeq, kHeads, kDim}, true),
        Tensor(call.lse.data(), DType::fp32, {kBatch, kHeads, kSeq}, true)};
    CHECK(copy.workspace_bytes(arguments) == 0);
    moved.launch(arguments);
  }
  CHECK(std::isfinite(call.lse.front()));
  CHECK(call.lse.front() != -1.0f);
  flashwright::Config config;
  config.head_dim = 3;
  try {
    flashwright::get_kernel(config, flashwright::Effort::compile, std::nullopt, call.engine);
    FAIL_CHECK("no failure");
  } catch (const flashwright::Failure& failure) {
    CHECK(failure.status == FLASHWRIGHT_BAD_ARGUMENT);
    CHECK(contains(failure.what(), "head_dim is 3"));
  }
  CHECK(contains(flashwright::supports(config, call.engine), "head_dim is 3"));
}
