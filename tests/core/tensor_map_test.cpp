#include "core/tensor_map.hpp"

#include <functional>

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

TensorMapSpec some_spec() {
  TensorMapSpec spec;
  spec.dtype = DType::fp32;
  spec.rank = 5;
  spec.base = reinterpret_cast<void*>(std::uintptr_t{0x1000});
  spec.shape = {100, 10, 3, 2, 7};
  spec.stride_bytes = {400, 4000, 12000, 24000};
  spec.box = {32, 8, 1, 1, 1};
  return spec;
}

using Change = std::function<void(TensorMapSpec&)>;

std::string fault_after(const Change& change) {
  TensorMapSpec spec = some_spec();
  change(spec);
  return tensor_map_fault(spec);
}

}  // namespace

TEST_CASE("a good tensor map has no fault") { CHECK(tensor_map_fault(some_spec()) == ""); }

TEST_CASE("the largest and smallest values that are allowed") {
  const Change changes[] = {
      [](TensorMapSpec& s) { s.rank = 1; },
      [](TensorMapSpec& s) { s.shape[0] = std::int64_t{1} << 32; },
      [](TensorMapSpec& s) { s.shape[4] = 1; },
      [](TensorMapSpec& s) { s.stride_bytes[3] = (std::int64_t{1} << 40) - 16; },
      [](TensorMapSpec& s) { s.stride_bytes[0] = 0; },
      [](TensorMapSpec& s) { s.box[1] = 256; },
      [](TensorMapSpec& s) { s.box[1] = 1; },
      [](TensorMapSpec& s) { s.box[0] = 4; },
      [](TensorMapSpec& s) { s.swizzle = 64, s.box[0] = 16; },
      [](TensorMapSpec& s) { s.swizzle = 32, s.box[0] = 8; },
      [](TensorMapSpec& s) { s.swizzle = 0, s.box[0] = 256; },
      [](TensorMapSpec& s) { s.dtype = DType::bf16, s.box[0] = 64; },
      [](TensorMapSpec& s) { s.base = reinterpret_cast<void*>(std::uintptr_t{16}); },
  };
  for (const Change& change : changes) CHECK(fault_after(change) == "");
}

TEST_CASE("one step beyond each limit is named, with the value") {
  const std::pair<Change, const char*> changes[] = {
      {[](TensorMapSpec& s) { s.rank = 0; }, "rank is 0; allowed: 1 to 5"},
      {[](TensorMapSpec& s) { s.rank = 6; }, "rank is 6; allowed: 1 to 5"},
      {[](TensorMapSpec& s) { s.base = nullptr; }, "base is 0x0"},
      {[](TensorMapSpec& s) { s.base = reinterpret_cast<void*>(std::uintptr_t{0x1008}); },
       "base is 0x1008"},
      {[](TensorMapSpec& s) { s.swizzle = 16; }, "swizzle is 16"},
      {[](TensorMapSpec& s) { s.swizzle = 256; }, "swizzle is 256"},
      {[](TensorMapSpec& s) { s.shape[2] = 0; }, "shape[2] is 0"},
      {[](TensorMapSpec& s) { s.shape[1] = (std::int64_t{1} << 32) + 1; },
       "shape[1] is 4294967297"},
      {[](TensorMapSpec& s) { s.box[3] = 0; }, "box[3] is 0"},
      {[](TensorMapSpec& s) { s.box[1] = 257; }, "box[1] is 257"},
      {[](TensorMapSpec& s) { s.stride_bytes[2] = 24008; }, "stride_bytes[2] is 24008"},
      {[](TensorMapSpec& s) { s.stride_bytes[0] = -16; }, "stride_bytes[0] is -16"},
      {[](TensorMapSpec& s) { s.stride_bytes[3] = std::int64_t{1} << 40; },
       "stride_bytes[3] is 1099511627776"},
      {[](TensorMapSpec& s) { s.box[0] = 3; }, "box[0] is 12 bytes; allowed: multiples of 16"},
      {[](TensorMapSpec& s) { s.box[0] = 36; }, "box[0] is 144 bytes"},
      {[](TensorMapSpec& s) { s.swizzle = 64, s.box[0] = 20; }, "box[0] is 80 bytes"},
      {[](TensorMapSpec& s) { s.swizzle = 32, s.box[0] = 12; }, "box[0] is 48 bytes"},
  };
  for (const auto& [change, words] : changes) {
    const std::string fault = fault_after(change);
    CAPTURE(fault);
    CAPTURE(std::string(words));
    CHECK(contains(fault, words));
  }
}

TEST_CASE("dimensions beyond the rank are not looked at") {
  CHECK(fault_after([](TensorMapSpec& s) { s.rank = 2, s.shape[2] = 0, s.box[4] = 0; }) == "");
}

TEST_CASE("a box moves its elements") {
  CHECK(box_bytes(some_spec()) == 32 * 8 * 4);
  TensorMapSpec spec = some_spec();
  spec.dtype = DType::fp16;
  spec.rank = 1;
  CHECK(box_bytes(spec) == 64);
}
