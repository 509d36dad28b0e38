// The arithmetic that kernels bring along: measured against double precision on both instruction sets.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "core/dtype.hpp"
#include "core/philox.hpp"
#include "generator/cpu/kernel.hpp"
#include "generator/cpu/math_ir.hpp"
#include "generator/cpu/module.hpp"
#include "runtime/cpu/llvm.hpp"
#include "tests/cpu/runner.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using namespace flashwright::ir;

namespace {

// A kernel made of one operation: reads vectors from `params`, writes vectors to `scratch`, for as many
// vectors as `task` says.
class Operation {
 public:
  using Body = std::function<void(Builder& ir, V index, int lanes)>;
  Operation(const std::string& rung, const Body& body) {
    Problem problem;
    problem.target = {BackendKind::cpu, rung};
    lanes = arch_info(problem.target).vector_bytes / 4;
    Builder ir("operation", module_target(problem), "");
    ir.begin_function("operation");
    ir.loop("vector", ir.i64(0), ir.task(), 1, [&](V i) { body(ir, i * lanes, lanes); });
    ir.end_function();
    Source source = new_source(problem);
    source.text = ir.print();
    object_ = cpu::load_object(cpu::compile_module(source), {"operation"});
  }
  void operator()(const void* in, void* out, std::int64_t vectors) const {
    object_->entry(0)(in, vectors, out);
  }
  int lanes = 0;

 private:
  std::unique_ptr<cpu::LoadedObject> object_;
};

std::vector<std::string> rungs() {
  std::vector<std::string> out;
  for (const char* rung : {"avx512", "avx2", "neon"})
    if (can_run(rung)) out.push_back(rung);
  return out;
}

std::vector<float> apply(const Operation& operation, std::vector<float> in) {
  const auto lanes = static_cast<std::size_t>(operation.lanes);
  while (in.size() % lanes != 0) in.push_back(in.back());
  std::vector<float> out(in.size());
  operation(in.data(), out.data(), static_cast<std::int64_t>(in.size() / lanes));
  return out;
}

Operation on_floats(const std::string& rung, const std::function<V(V)>& function) {
  return {rung, [&](Builder& ir, V index, int lanes) {
            const V x = ir.load({Kind::f32, lanes}, ir.element(ir.params(), Kind::f32, index), 4);
            ir.store(function(x), ir.element(ir.scratch(), Kind::f32, index), 4);
          }};
}

double ulps(float given, double exact) {
  return std::fabs(given - exact) / ulp(DType::fp32, exact);
}

}  // namespace

TEST_CASE("exp2 to 2 ulp") {
  for (const std::string& rung : rungs()) {
    const Operation exp2 = on_floats(rung, [](V x) { return exp2_negative(x, 5); });
    const Operation short_exp2 = on_floats(rung, [](V x) { return exp2_negative(x, 4); });
    std::vector<float> in;
    // Every 97th float of (-126, 0], dense near 0 where most weights are.
    for (std::uint32_t bits = 0x80000000u; bits < std::bit_cast<std::uint32_t>(-125.99f);
         bits += 9973)
      in.push_back(std::bit_cast<float>(bits));
    const std::vector<float> out = apply(exp2, in), rough = apply(short_exp2, in);
    double worst = 0, relative = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const double exact = std::exp2(static_cast<double>(in[i]));
      worst = std::max(worst, ulps(out[i], exact));
      relative = std::max(relative, std::fabs(rough[i] / exact - 1));
    }
    CAPTURE(rung);
    CHECK(worst <= 2);
    CHECK(relative <= 4e-6);
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> special = apply(
        exp2, {0.0f, -0.0f, -1.0f, -126.0f, -151.0f, -1e4f, -3e38f, -infinity, std::nanf("")});
    CHECK(special[0] == 1.0f);
    CHECK(special[1] == 1.0f);
    CHECK(special[2] == 0.5f);
    CHECK(special[3] == std::exp2(-126.0f));
    for (const std::size_t i : {4u, 5u, 6u, 7u}) CHECK(special[i] == 0.0f);
    CHECK(std::isnan(special[8]));
  }
}

TEST_CASE("tanh to 4 ulp") {
  for (const std::string& rung : rungs()) {
    const Operation tangent = on_floats(rung, [](V x) { return tanh(x); });
    std::vector<float> in;
    for (std::uint32_t bits = 0x00800000u; bits < 0x41a00000u; bits += 9973) {
      in.push_back(std::bit_cast<float>(bits));
      in.push_back(-in.back());
    }
    const std::vector<float> out = apply(tangent, in);
    double worst = 0;
    for (std::size_t i = 0; i < in.size(); ++i)
      worst = std::max(worst, ulps(out[i], std::tanh(static_cast<double>(in[i]))));
    CAPTURE(rung);
    CHECK(worst <= 4);
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> special =
        apply(tangent, {0.0f, -0.0f, 1e4f, -3e38f, infinity, -infinity, std::nanf("")});
    for (const std::size_t i : {0u, 1u}) CHECK(special[i] == 0.0f);
    for (const std::size_t i : {2u, 4u}) CHECK(special[i] == 1.0f);
    for (const std::size_t i : {3u, 5u}) CHECK(special[i] == -1.0f);
    CHECK(std::isnan(special[6]));
  }
}

TEST_CASE("log2 to 2 ulp") {
  for (const std::string& rung : rungs()) {
    const Operation log2 = on_floats(rung, [](V x) { return log2_positive(x); });
    std::vector<float> in;
    for (std::uint32_t bits = 0x00800000u; bits < 0x7f800000u; bits += 9973)
      in.push_back(std::bit_cast<float>(bits));
    const std::vector<float> out = apply(log2, in);
    double worst = 0;
    for (std::size_t i = 0; i < in.size(); ++i)
      worst = std::max(worst, ulps(out[i], std::log2(static_cast<double>(in[i]))));
    CAPTURE(rung);
    CHECK(worst <= 2);
    CHECK(apply(log2, {1.0f})[0] == 0.0f);
    CHECK(std::isnan(apply(log2, {std::nanf("")})[0]));
  }
}

TEST_CASE("conversions of every code") {
  for (const std::string& rung : rungs()) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
      const Operation load(rung, [&](Builder& ir, V index, int lanes) {
        const V x = load_elements(ir, ir.element(ir.params(), Kind::i16, index), dtype, lanes);
        ir.store(x, ir.element(ir.scratch(), Kind::f32, index), 4);
      });
      const Operation store(rung, [&](Builder& ir, V index, int lanes) {
        const V x = ir.load({Kind::f32, lanes}, ir.element(ir.params(), Kind::f32, index), 4);
        store_elements(ir, x, ir.element(ir.scratch(), Kind::i16, index), dtype, lanes);
      });
      std::vector<std::uint16_t> codes(65536);
      for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
      std::vector<float> floats(65536);
      load(codes.data(), floats.data(), 65536 / load.lanes);
      int wrong = 0;
      for (std::size_t i = 0; i < codes.size(); ++i) {
        const float expected = to_float(dtype, &codes[i]);
        wrong += std::isnan(expected) ? !std::isnan(floats[i]) : floats[i] != expected;
      }
      CHECK(wrong == 0);
      // Halfway cases and their neighbours: the code's value plus half a step, and one float either side.
      std::vector<float> halves;
      for (const float x : floats) {
        std::uint32_t bits =
            std::bit_cast<std::uint32_t>(x) + (dtype == DType::bf16 ? 0x8000u : 0x1000u);
        for (const std::uint32_t near : {bits - 1, bits, bits + 1})
          halves.push_back(std::bit_cast<float>(near));
      }
      std::vector<std::uint16_t> given(halves.size());
      store(halves.data(), given.data(), static_cast<std::int64_t>(halves.size()) / store.lanes);
      for (std::size_t i = 0; i < halves.size(); ++i) {
        std::uint16_t expected = 0;
        from_float(dtype, halves[i], &expected);
        const bool nan = std::isnan(halves[i]);
        wrong += nan ? !std::isnan(to_float(dtype, &given[i])) : given[i] != expected;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("transposition") {
  for (const std::string& rung : rungs()) {
    const Operation turn(rung, [](Builder& ir, V, int lanes) {
      Values rows;
      for (int i = 0; i < lanes; ++i)
        rows.push_back(ir.load({Kind::f32, lanes}, ir.offset(ir.params(), i * lanes * 4), 4));
      rows = transpose(rows);
      for (int i = 0; i < lanes; ++i)
        ir.store(rows[static_cast<std::size_t>(i)], ir.offset(ir.scratch(), i * lanes * 4), 4);
    });
    const auto lanes = static_cast<std::size_t>(turn.lanes);
    std::vector<float> in(lanes * lanes), out(lanes * lanes);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
    turn(in.data(), out.data(), 1);
    for (std::size_t r = 0; r < lanes; ++r)
      for (std::size_t c = 0; c < lanes; ++c) CHECK(out[c * lanes + r] == in[r * lanes + c]);
  }
}

TEST_CASE("keep words equal core/philox") {
  std::mt19937_64 random(5);
  for (const std::string& rung : rungs()) {
    struct Block {
      std::uint64_t key, word;
      std::uint32_t threshold, pad;
      std::uint32_t heads[16], queries[16];
    };
    const Operation words(rung, [](Builder& ir, V, int lanes) {
      const V p = ir.params();
      const KeepWords keep(ir, ir.load({Kind::i64}, p, 8),
                           ir.load({Kind::i32}, ir.offset(p, 16), 4), lanes);
      const Type type{Kind::i32, lanes};
      ir.store(keep(ir.load(type, ir.offset(p, 24), 4), ir.load(type, ir.offset(p, 88), 4),
                    ir.load({Kind::i64}, ir.offset(p, 8), 8)),
               ir.scratch(), 4);
    });
    for (int round = 0; round < 300; ++round) {
      Block block{random(), random() & 0xffffff, static_cast<std::uint32_t>(random() % 256), 0, {},
                  {}};
      for (auto& head : block.heads) head = static_cast<std::uint32_t>(random());
      for (auto& query : block.queries) query = static_cast<std::uint32_t>(random());
      std::uint32_t out[16] = {};
      words(&block, out, 1);
      for (int i = 0; i < words.lanes; ++i)
        REQUIRE(out[i] == keep_word(block.key, block.heads[i], block.queries[i],
                                    static_cast<std::uint32_t>(block.word), block.threshold));
    }
  }
}
