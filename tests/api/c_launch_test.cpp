// Kernels and tensors at the C border: what a caller gives arrives, what is wrong is refused, results are right.
#include <functional>

#include "tests/api/call.hpp"
#include "tests/api/fake_devices.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright::testing;

namespace {

struct Refused {
  const char* what;
  std::function<void(Call&)> spoil;
  std::vector<std::string> named;
};

}  // namespace

TEST_CASE("a launch through the C interface computes attention") {
  Call call;
  CHECK(call.launch() == FLASHWRIGHT_OK);
  size_t workspace = 99;
  CHECK(flashwright_kernel_workspace_bytes(call.kernel, &call.args, &workspace) == FLASHWRIGHT_OK);
  CHECK(workspace == 0);
  // The check takes host memory.
  for (flashwright_tensor* tensor : {&call.tq, &call.tk, &call.tv, &call.to, &call.tl})
    tensor->device_type = 1;
  char* report = nullptr;
  REQUIRE(flashwright_check(kConfig, &call.args, 1000, &report) == FLASHWRIGHT_OK);
  CHECK(contains(report, "\"passed\":true"));
  CHECK(contains(report, "\"rows\":72"));
  flashwright_free(report);
  call.o[37] += 0.5f;
  REQUIRE(flashwright_check(kConfig, &call.args, 1000, &report) == FLASHWRIGHT_OK);
  CHECK(contains(report, "\"passed\":false"));
  flashwright_free(report);
  CHECK(flashwright_kernel_launch(call.kernel, &call.args, nullptr, nullptr) ==
        FLASHWRIGHT_BAD_ARGUMENT);
  CHECK(contains(flashwright_last_error(), "q: given memory of cpu"));
}

TEST_CASE("what a tensor of DLPack can say and a kernel cannot take is refused by name") {
  const std::vector<Refused> table = {
      {"no q", [](Call& c) { c.args.q = nullptr; }, {"q: given no tensor"}},
      {"no o", [](Call& c) { c.args.o = nullptr; }, {"o: given no tensor"}},
      {"integers",
       [](Call& c) { c.tk.type_code = 0; },
       {"k: given elements of DLPack code 0", "fp16, bf16, fp32"}},
      {"fp64", [](Call& c) { c.tv.type_bits = 64; }, {"v: given elements", "64 bits"}},
      {"vectors", [](Call& c) { c.tq.type_lanes = 4; }, {"q: given elements", "4 lanes"}},
      {"half q", [](Call& c) { c.tq.type_bits = 16; }, {"q: given fp16", "expected fp32"}},
      {"rank 5", [](Call& c) { c.tq.ndim = 5; }, {"q: given rank 5"}},
      {"rank 3", [](Call& c) { c.tq.ndim = 3; }, {"q: given rank 3", "rank 4"}},
      {"no shape", [](Call& c) { c.tk.shape = nullptr; }, {"k: given no shape"}},
      {"another vendor",
       [](Call& c) { c.tv.device_type = 10; },
       {"v: given DLPack device type 10"}},
      {"another device",
       [](Call& c) { c.tk.device_id = 1; },
       {"k: given device 1", "device 0, that of q"}},
      {"host memory", [](Call& c) { c.to.device_type = 1; }, {"o: given memory of cpu"}},
      {"heads", [](Call& c) { c.k_shape[2] = 3; }, {"3 kv heads for 4 q heads", "divisible"}},
      {"old struct",
       [](Call& c) { c.args.size -= 8; },
       {"arguments: given size", "of this version"}},
      {"blocks",
       [](Call& c) {
         static const flashwright_blocks blocks{};
         c.args.blocks = &blocks;
       },
       {"blocks: given size 0"}}};
  for (const Refused& row : table) {
    Call call;
    row.spoil(call);
    INFO(row.what);
    CHECK(call.launch() == FLASHWRIGHT_BAD_ARGUMENT);
    const std::string message = flashwright_last_error();
    INFO(message);
    for (const std::string& part : row.named) CHECK(contains(message, part));
    CHECK(contains(message, "expected"));
    CHECK(call.o.front() == -1.0f);  // untouched
    CHECK(machine().cuda.launches == 0);
  }
}

TEST_CASE("strides, offsets and a missing LSE are taken as DLPack means them") {
  Call dense;
  CHECK(dense.launch() == FLASHWRIGHT_OK);
  Call call;
  // The same keys as (batch, heads, seq, dim) in memory, behind a few other bytes.
  std::vector<float> moved(call.k.size() + 4);
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t s = 0; s < kKeys; ++s)
      for (std::int64_t h = 0; h < kHeadsKv; ++h)
        for (std::int64_t d = 0; d < kDim; ++d)
          moved[static_cast<std::size_t>(4 + ((b * kHeadsKv + h) * kKeys + s) * kDim + d)] =
              call.k[static_cast<std::size_t>(((b * kKeys + s) * kHeadsKv + h) * kDim + d)];
  std::int64_t strides[4] = {kHeadsKv * kKeys * kDim, kDim, kKeys * kDim, 1};
  call.tk.data = moved.data();
  call.tk.byte_offset = 16;
  call.tk.strides = strides;
  call.args.lse = nullptr;
  CHECK(call.launch() == FLASHWRIGHT_OK);
  CHECK(call.o == dense.o);
  CHECK(call.lse.front() == -1.0f);
}

TEST_CASE("slopes of ALiBi come as a tensor, and only where the Config asks for them") {
  Call call;
  float slopes[kBatch * kHeads];
  for (std::size_t i = 0; i < kBatch * kHeads; ++i) slopes[i] = 0.1f * static_cast<float>(i);
  std::int64_t shape[2] = {kBatch, kHeads};
  flashwright_tensor tensor = {slopes, 2, 0, 2, 2, 32, 1, shape, nullptr, 0};
  call.args.alibi_slopes = &tensor;
  CHECK(call.launch() == FLASHWRIGHT_BAD_ARGUMENT);
  CHECK(contains(flashwright_last_error(), "alibi_slopes: given slopes; expected none"));

  flashwright_kernel_release(call.kernel);
  REQUIRE(flashwright_get_kernel(call.engine, R"({"dtype":"fp32","head_dim":16,"alibi":true})",
                                 nullptr, FLASHWRIGHT_COMPILE, &call.kernel) == FLASHWRIGHT_OK);
  CHECK(call.launch() == FLASHWRIGHT_OK);
  for (flashwright_tensor* view : {&call.tq, &call.tk, &call.tv, &call.to, &call.tl, &tensor})
    view->device_type = 1;
  const auto checked = [&] {
    char* report = nullptr;
    REQUIRE(flashwright_check(R"({"dtype":"fp32","head_dim":16,"alibi":true})", &call.args, 1000,
                              &report) == FLASHWRIGHT_OK);
    const bool passed = contains(report, "\"passed\":true");
    flashwright_free(report);
    return passed;
  };
  CHECK(checked());
  slopes[3] += 0.5f;  // of the last head
  CHECK(!checked());
  tensor.type_bits = 16;
  char* report = nullptr;
  CHECK(flashwright_check(R"({"dtype":"fp32","head_dim":16,"alibi":true})", &call.args, 1000,
                          &report) == FLASHWRIGHT_BAD_ARGUMENT);
  CHECK(contains(flashwright_last_error(), "alibi_slopes: given fp16; expected fp32"));
  call.args.alibi_slopes = nullptr;
  CHECK(flashwright_check(R"({"dtype":"fp32","head_dim":16,"alibi":true})", &call.args, 1000,
                          &report) == FLASHWRIGHT_BAD_ARGUMENT);
  CHECK(contains(flashwright_last_error(), "alibi_slopes: given none"));
}

TEST_CASE("block lists made from a mask carry their arrays") {
  const std::vector<std::uint8_t> keep(5 * 7, 1);
  flashwright_blocks* blocks = nullptr;
  REQUIRE(flashwright_blocks_from_mask(keep.data(), 1, 1, 5, 7, 4, 4, &blocks) == FLASHWRIGHT_OK);
  CHECK(blocks->size == sizeof(flashwright_blocks));
  CHECK(blocks->seq_q == 5);
  CHECK(blocks->full_offsets[2] == 4);
  CHECK(blocks->partial_offsets[2] == 0);
  flashwright_blocks_free(blocks);
  CHECK(flashwright_blocks_from_mask(keep.data(), 1, 1, 5, 7, 0, 4, &blocks) ==
        FLASHWRIGHT_BAD_ARGUMENT);
  CHECK(contains(flashwright_last_error(), "0 x 4"));
}
