// The layout must be the one that a C compiler gives `struct Params` of an emitted file.
#include "core/params.hpp"
#include <algorithm>

#include <cstddef>
#include <cstring>
#include <set>
#include <string>

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// Fields in an order that needs padding in the middle and at the end.
struct Mixed {
  int seq_q;
  const void* q;
  float scale_log2;
  long long q_batch_stride;
  int batch, heads_q;
  unsigned drop_threshold;
  unsigned long long dropout_key;
  float keep_scale;
};
const std::vector<std::pair<Param, std::size_t>> kMixed = {
    {Param::seq_q, offsetof(Mixed, seq_q)},
    {Param::q, offsetof(Mixed, q)},
    {Param::scale_log2, offsetof(Mixed, scale_log2)},
    {Param::q_batch_stride, offsetof(Mixed, q_batch_stride)},
    {Param::batch, offsetof(Mixed, batch)},
    {Param::heads_q, offsetof(Mixed, heads_q)},
    {Param::drop_threshold, offsetof(Mixed, drop_threshold)},
    {Param::dropout_key, offsetof(Mixed, dropout_key)},
    {Param::keep_scale, offsetof(Mixed, keep_scale)}};

// Fields of one size, without any padding between them.
struct Plain {
  const void *q, *k, *v;
  void *o, *lse;
  int seq_q, seq_kv;
};
const std::vector<std::pair<Param, std::size_t>> kPlain = {
    {Param::q, offsetof(Plain, q)},          {Param::k, offsetof(Plain, k)},
    {Param::v, offsetof(Plain, v)},          {Param::o, offsetof(Plain, o)},
    {Param::lse, offsetof(Plain, lse)},      {Param::seq_q, offsetof(Plain, seq_q)},
    {Param::seq_kv, offsetof(Plain, seq_kv)}};

ParamLayout layout_of(const std::vector<std::pair<Param, std::size_t>>& rows) {
  ParamLayout layout;
  for (const auto& [param, offset] : rows) layout.add(param);
  return layout;
}

}  // namespace

TEST_CASE("every field lies where a C struct has it") {
  for (const auto* rows : {&kMixed, &kPlain}) {
    const ParamLayout layout = layout_of(*rows);
    REQUIRE(layout.fields().size() == rows->size());
    for (std::size_t i = 0; i < rows->size(); ++i) {
      INFO(info((*rows)[i].first).name);
      CHECK(layout.fields()[i].param == (*rows)[i].first);
      CHECK(layout.fields()[i].offset == static_cast<int>((*rows)[i].second));
    }
  }
  CHECK(layout_of(kMixed).size() == sizeof(Mixed));
  CHECK(layout_of(kPlain).size() == sizeof(Plain));
}

TEST_CASE("values arrive in the fields of the struct") {
  ParamValues values;
  int target = 0;
  values.set_int(Param::seq_q, -5);
  values.set_pointer(Param::q, &target);
  values.set_float(Param::scale_log2, -1.5f);
  values.set_int(Param::q_batch_stride, std::int64_t{1} << 40);
  values.set_int(Param::batch, 7);
  values.set_int(Param::heads_q, 70000);
  values.set_int(Param::drop_threshold, 255);
  values.at(Param::dropout_key) = 0xfedcba9876543210u;
  values.set_float(Param::keep_scale, 256.0f);
  alignas(8) unsigned char block[kMaxParamBytes];
  std::memset(block, 0xA5, sizeof block);
  layout_of(kMixed).fill(values, block);
  Mixed mixed;
  std::memcpy(&mixed, block, sizeof mixed);
  CHECK(mixed.seq_q == -5);
  CHECK(mixed.q == &target);
  CHECK(mixed.scale_log2 == -1.5f);
  CHECK(mixed.q_batch_stride == std::int64_t{1} << 40);
  CHECK(mixed.batch == 7);
  CHECK(mixed.heads_q == 70000);
  CHECK(mixed.drop_threshold == 255);
  CHECK(mixed.dropout_key == 0xfedcba9876543210u);
  CHECK(mixed.keep_scale == 256.0f);
  CHECK(block[sizeof(Mixed)] == 0xA5);
}

TEST_CASE("the table has one row for each parameter, under a name of its own") {
  std::set<std::string> names;
  for (int i = 0; i < kParamCount; ++i) {
    const ParamInfo& row = info(static_cast<Param>(i));
    CHECK(row.id == static_cast<Param>(i));
    names.insert(row.name);
  }
  CHECK(static_cast<int>(names.size()) == kParamCount);
}

TEST_CASE("all parameters together fit into the block of a launch") {
  ParamLayout everything;
  for (int i = 0; i < kParamCount; ++i) everything.add(static_cast<Param>(i));
  CHECK(everything.size() <= kMaxParamBytes);
  CHECK(everything.size() <= 4096);  // what CUDA allows a kernel
  property("any order", [] {
    ParamLayout layout;
    int end = 0;
    for (const int i : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, kParamCount))) {
      const auto& fields = layout.fields();
      if (std::any_of(fields.begin(), fields.end(), [i](const ParamLayout::Field& field) {
            return field.param == static_cast<Param>(i);
          }))
        continue;
      layout.add(static_cast<Param>(i));
      const ParamLayout::Field& field = layout.fields().back();
      const int size = size_of(field.type);
      RC_ASSERT(field.offset % alignment_of(field.type) == 0);
      RC_ASSERT(field.offset >= end);
      RC_ASSERT(field.offset < end + alignment_of(field.type));
      end = field.offset + size;
    }
    RC_ASSERT(layout.size() >= end);
    RC_ASSERT(layout.size() % 8 == 0);
    RC_ASSERT(layout.size() <= kMaxParamBytes);
  });
}
