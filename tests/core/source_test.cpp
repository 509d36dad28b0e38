#include "core/source.hpp"

#include <array>
#include <cstring>

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Source three_lines() {
  Source source;
  source.name = "fw_forward.cu";
  source.text = "a\nb\nc\n";
  source.lines = {{"", 0}, {"sm80/forward.cu", 118}, {"ptx/math.cuh", 7}};
  return source;
}

}  // namespace

TEST_CASE("lines of the emitted file become lines of its templates") {
  const Source source = three_lines();
  const std::vector<std::pair<std::string, const char*>> table = {
      {"", ""},
      {"no line at all\n", "no line at all\n"},
      {"fw_forward.cu(2): error: x", "sm80/forward.cu:118 (emitted line 2): error: x"},
      {"fw_forward.cu(1): note", "fw_forward.cu:1: note"},  // printed by the generator: no template
      {"a fw_forward.cu(3) b fw_forward.cu(2) c",
       "a ptx/math.cuh:7 (emitted line 3) b sm80/forward.cu:118 (emitted line 2) c"},
      {"fw_forward.cu(2)fw_forward.cu(3)",
       "sm80/forward.cu:118 (emitted line 2)ptx/math.cuh:7 (emitted line 3)"},
      // What is no line of this file stays as it is.
      {"fw_forward.cu(4)", "fw_forward.cu(4)"},
      {"fw_forward.cu(0)", "fw_forward.cu(0)"},
      {"fw_forward.cu(-1)", "fw_forward.cu(-1)"},
      {"fw_forward.cu(2", "fw_forward.cu(2"},
      {"fw_forward.cu(2,5)", "fw_forward.cu(2,5)"},
      {"fw_forward.cu(99999999999999)", "fw_forward.cu(99999999999999)"},
      {"fw_forward.cu(", "fw_forward.cu("},
      {"other.cu(2)", "other.cu(2)"}};
  for (const auto& [given, expected] : table) CHECK(rewrite_lines(source, given) == expected);
}

TEST_CASE("kinds of binaries have names") {
  CHECK(std::string(to_string(Binary::Kind::cubin)) == "cubin");
  CHECK(std::string(to_string(Binary::Kind::ptx)) == "ptx");
  CHECK(std::string(to_string(Binary::Kind::object)) == "object");
}

namespace {

constexpr BoxRule kQueries{Param::q_map, DType::bf16, 64, 64, 64, 128},
    kOutputGradient{Param::d_o_map, DType::bf16, 32, 64, 32, 64},
    kKeyGradient{Param::dk_map, DType::bf16, 64, 64, 64, 128};

// What a launch on 2 batch entries of 4 query and 2 key heads, 100 queries and 200 keys fills in.
ParamValues some_values() {
  ParamValues values;
  values.set_int(Param::batch, 2);
  values.set_int(Param::heads_q, 4);
  values.set_int(Param::heads_kv, 2);
  values.set_int(Param::seq_q, 100);
  values.set_int(Param::seq_kv, 200);
  const auto dense = [&](Param data, std::uintptr_t address, int heads, int rows, int dim) {
    values.set_pointer(data, reinterpret_cast<const void*>(address));
    const int base = static_cast<int>(data == Param::q ? Param::q_batch_stride : data) +
                     (data == Param::q ? 0 : 1);
    values.set_int(static_cast<Param>(base), std::int64_t{heads} * rows * dim);
    values.set_int(static_cast<Param>(base + 1), std::int64_t{heads} * dim);
    values.set_int(static_cast<Param>(base + 2), dim);
  };
  dense(Param::q, 0x1000, 4, 100, 64);
  dense(Param::d_o, 0x200000, 4, 100, 32);
  dense(Param::dk, 0x300000, 2, 200, 64);
  values.set_int(Param::aligned, 1);
  return values;
}

// The bases of the maps that a launch encodes, by the byte behind them, and `aligned`.
struct Filled {
  std::vector<const void*> bases;
  int aligned = -1;
};
Filled fill(const ParamValues& values, const std::vector<BoxRule>& boxes) {
  ParamLayout layout;
  layout.add(Param::aligned);
  for (const BoxRule& box : boxes) layout.add(box.map);
  alignas(kTensorMapAlignment) unsigned char block[kMaxParamBytes] = {};
  fill_params(
      layout, boxes, values,
      [](const TensorMapSpec& spec, void* map, const void*) {
        std::memcpy(map, &spec.base, sizeof spec.base);
      },
      nullptr, block);
  Filled out;
  for (const ParamLayout::Field& field : layout.fields()) {
    if (field.type == ParamType::tensor_map) {
      out.bases.push_back(nullptr);
      std::memcpy(&out.bases.back(), block + field.offset, sizeof(void*));
    } else {
      std::memcpy(&out.aligned, block + field.offset, sizeof out.aligned);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("boxes of gradients are those of their tensors") {
  const ParamValues values = some_values();
  const TensorMapSpec d_o = map_spec(kOutputGradient, values);
  CHECK(d_o.base == reinterpret_cast<void*>(std::uintptr_t{0x200000}));
  CHECK(d_o.shape == std::array<std::int64_t, 5>{32, 100, 4, 2, 0});
  CHECK(d_o.stride_bytes == std::array<std::int64_t, 4>{256, 64, 25600, 0});
  const TensorMapSpec dk = map_spec(kKeyGradient, values);
  CHECK(dk.shape == std::array<std::int64_t, 5>{64, 200, 2, 2, 0});
  CHECK(dk.stride_bytes == std::array<std::int64_t, 4>{256, 128, 51200, 0});
}

TEST_CASE("in a kernel with boxes, aligned is that of their tensors") {
  const std::vector<BoxRule> boxes = {kQueries, kOutputGradient, kKeyGradient};
  ParamValues values = some_values();
  const Filled all = fill(values, boxes);
  CHECK(all.aligned == 1);
  for (const void* base : all.bases) CHECK(base != nullptr);
  values.set_int(Param::aligned, 0);  // some other tensor is not
  CHECK(fill(values, boxes).aligned == 1);
  CHECK(fill(values, {}).aligned == 0);
  values.set_int(Param::d_o_row_stride, 129);
  CHECK(fill(values, boxes).aligned == 0);
  CHECK(fill(values, boxes).bases == std::vector<const void*>(3));
  CHECK(fill(values, {kQueries}).aligned == 1);
}

TEST_CASE("a gradient that nobody wants has no map and keeps the others") {
  ParamValues values = some_values();
  values.set_pointer(Param::dk, nullptr);
  const Filled filled = fill(values, {kQueries, kKeyGradient});
  CHECK(filled.aligned == 1);
  CHECK(filled.bases[0] != nullptr);
  CHECK(filled.bases[1] == nullptr);
  values.set_pointer(Param::q, nullptr);
  CHECK(fill(values, {kQueries, kKeyGradient}).aligned == 0);
}
