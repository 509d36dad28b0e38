// What the driver is asked to encode, with a driver that runs nothing.
#include "runtime/cuda/tensor_map.hpp"

#include "tests/support/fake_driver.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

struct alignas(64) Map {
  unsigned char bytes[128];
};

TensorMapSpec some_spec() {
  TensorMapSpec spec;
  spec.dtype = DType::bf16;
  spec.rank = 3;
  spec.base = reinterpret_cast<void*>(std::uintptr_t{0x7000});
  spec.shape = {72, 10, 3};
  spec.stride_bytes = {160, 1600};
  spec.box = {64, 8, 1};
  spec.swizzle = 128;
  return spec;
}

// A driver with a current context, as encoding needs one.
FakeDriver& fresh_driver() {
  FakeDriver& fake = FakeDriver::fresh();
  fake.current = {0};
  return fake;
}

}  // namespace

TEST_CASE("a spec reaches the driver value by value") {
  FakeDriver& fake = fresh_driver();
  Map map{};
  cuda::encode_tensor_map(fake_driver_table(), some_spec(), &map);
  REQUIRE(fake.maps.size() == 1);
  const FakeMap& asked = fake.maps.front();
  CHECK(asked.base == some_spec().base);
  CHECK(asked.shape == std::vector<std::uint64_t>{72, 10, 3});
  CHECK(asked.strides == std::vector<std::uint64_t>{160, 1600});
  CHECK(asked.box == std::vector<unsigned>{64, 8, 1});
  CHECK(asked.steps == std::vector<unsigned>{1, 1, 1});
  CHECK(asked.interleave == 0);
  CHECK(asked.promotion == 0);
  CHECK(asked.fill == 0);
  CHECK(map.bytes[127] == 0x5a);
}

TEST_CASE("no more is fetched at once than rows have for themselves") {
  FakeDriver& fake = fresh_driver();
  Map map{};
  const auto promotion = [&](int row, std::int64_t stride, std::int64_t head, std::uintptr_t base) {
    TensorMapSpec spec = some_spec();
    spec.shape[0] = row;
    spec.stride_bytes = {stride, head};
    spec.base = reinterpret_cast<void*>(base);
    cuda::encode_tensor_map(fake_driver_table(), spec, &map);
    return fake.maps.back().promotion;
  };
  // Elements of a row, then bytes.
  CHECK(promotion(128, 4096, 256, 0x7000) == 3);
  CHECK(promotion(64, 4096, 128, 0x7000) == 2);
  CHECK(promotion(64, 4096, 128, 0x7040) == 1);
  CHECK(promotion(96, 6144, 192, 0x7000) == 1);
  CHECK(promotion(72, 4608, 144, 0x7000) == 0);
  CHECK(promotion(64, 128, 1280, 0x7010) == 3);
}

TEST_CASE("types and swizzles have the numbers of cuda.h") {
  FakeDriver& fake = fresh_driver();
  Map map{};
  for (const auto& [dtype, type] :
       {std::pair{DType::fp16, 6}, {DType::fp32, 7}, {DType::bf16, 9}}) {
    TensorMapSpec spec = some_spec();
    spec.dtype = dtype;
    spec.box[0] = 16;
    cuda::encode_tensor_map(fake_driver_table(), spec, &map);
    CHECK(fake.maps.back().type == type);
  }
  for (const auto& [bytes, swizzle] : {std::pair{0, 0}, {32, 1}, {64, 2}, {128, 3}}) {
    TensorMapSpec spec = some_spec();
    spec.swizzle = bytes;
    spec.box[0] = 16;
    cuda::encode_tensor_map(fake_driver_table(), spec, &map);
    CHECK(fake.maps.back().swizzle == swizzle);
  }
}

TEST_CASE("what cannot be encoded is said in words, and the driver is not asked") {
  FakeDriver& fake = fresh_driver();
  Map map{};
  TensorMapSpec spec = some_spec();
  spec.stride_bytes[0] = 100;
  const Error error = error_of([&] { cuda::encode_tensor_map(fake_driver_table(), spec, &map); });
  CHECK(error.status == Status::bad_argument);
  CHECK(contains(error.message, "stride_bytes[0] is 100"));
  CHECK(fake.calls.empty());
}

TEST_CASE("a driver that refuses, and one without tensor maps") {
  FakeDriver& fake = fresh_driver();
  Map map{};
  fake.fail_at = 1;
  const Error refused =
      error_of([&] { cuda::encode_tensor_map(fake_driver_table(), some_spec(), &map); });
  CHECK(refused.status == Status::device_error);
  CHECK(contains(refused.message, "cuTensorMapEncodeTiled"));
  cuda::Driver old = fake_driver_table();
  old.TensorMapEncodeTiled = nullptr;
  const Error lacking = error_of([&] { cuda::encode_tensor_map(old, some_spec(), &map); });
  CHECK(lacking.status == Status::unavailable);
  CHECK(contains(lacking.message, "lacks cuTensorMapEncodeTiled"));
}
