// The sm90 family as values: slabs, registers of the roles, what is refused, and printed products.
#include <fmt/format.h>

#include <cmath>

#include "core/device_profiles.hpp"
#include "core/error.hpp"
#include "generator/sm90/backward_sm90.hpp"
#include "generator/sm90/layout_sm90.hpp"
#include "generator/sm90/print_wgmma.hpp"
#include "tests/support/emitted.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

constexpr Shape kLong{4, 16, 16, 4096, 4096};

Problem problem_of(const std::string& json) {
  return normalise(config_from_json(json), parse_target("sm_90a"));
}

std::string text_of(const sm90::ProductShape& shape, DType dtype) {
  std::string text;
  for (const Line& line : sm90::print_product(shape, dtype)) text += line.text + "\n";
  return text;
}

std::string rejected(const Problem& problem, const char* schedule) {
  return sm90_family()
      .consider(problem, assumed_device(problem.target), kLong, parse_schedule(schedule))
      .rejected;
}

}  // namespace

TEST_CASE("slabs are whole and hold every step of the tensor core") {
  for (int dim = 8; dim <= 256; dim += 8) {
    const sm90::Slabs slabs = sm90::slabs(dim);
    CAPTURE(dim);
    CHECK(slabs.columns >= (dim + 15) / 16 * 16);
    CHECK(slabs.columns < dim + slabs.swizzle / 2);
    CHECK(slabs.columns * 2 % slabs.swizzle == 0);
  }
  CHECK(sm90::slabs(80).columns == 128);
  CHECK(sm90::slabs(80).swizzle == 128);
  CHECK(sm90::slabs(160).columns == 160);
  CHECK(sm90::slabs(160).swizzle == 64);
}

TEST_CASE("the roles take no more registers than a block begins with") {
  for (const char* mask : {"none", "causal", "window:3,4", "blocks"})
    for (const int consumers : {1, 2, 3}) {
      const Problem problem = problem_of(std::string(R"({"head_dim":64,"mask":")") + mask + "\"}");
      const sm90::Registers share = sm90::registers(problem, consumers);
      const int blocks = consumers == 1 ? 2 : 1, threads = 128 * (consumers + 1);
      const int first =
          65536 / (threads * blocks) / 8 * 8;  // what the compiler may give each thread
      CAPTURE(consumers);
      CHECK(share.producer + consumers * share.consumer <= (consumers + 1) * first);
      CHECK(share.producer % 8 == 0);
      CHECK(share.consumer % 8 == 0);
      CHECK(share.producer >= 24);
      CHECK(share.consumer <= 256);
    }
}

TEST_CASE("every problem of the family has a schedule, and tiles that do not overlap") {
  for (const char* dtype : {"fp16", "bf16"})
    for (const char* mask : {"none", "causal", "window:3,4", "blocks"})
      for (const char* options : {"", R"("dropout":0.1,)", R"("alibi":true,)"})
        for (int dim = 8; dim <= 256; dim += 8)
          for (const int dim_v : {dim, 8, 128, 256}) {
            const Problem problem =
                problem_of(std::string(R"({"dtype":")") + dtype + R"(","mask":")" + mask + R"(",)" +
                           options + R"("head_dim":)" + std::to_string(dim) + R"(,"head_dim_v":)" +
                           std::to_string(dim_v) + "}");
            CAPTURE(to_string(problem));
            REQUIRE(sm90_family().reasons_against(problem).empty());
            const DeviceInfo device = assumed_device(problem.target);
            const Schedule schedule = sm90_family().default_schedule(problem, device, kLong);
            CAPTURE(to_string(schedule));
            REQUIRE(sm90_family().consider(problem, device, kLong, schedule).rejected == "");
            const sm90::Layout layout = sm90::layout(problem, schedule);
            CHECK(layout.own_bytes >= layout.queries_bytes);
            CHECK(layout.keys_offset ==
                  (1 + schedule.query_prefetch) * layout.consumers * layout.own_bytes);
            CHECK(layout.values_offset - layout.keys_offset >= schedule.stages * layout.keys_bytes);
            CHECK(layout.work_offset - layout.values_offset >=
                  schedule.stages * layout.values_bytes);
            CHECK(layout.values_offset % 1024 == 0);
            CHECK(layout.work_offset % 1024 == 0);
            CHECK(layout.barriers_offset % 8 == 0);
          }
}

TEST_CASE("what the family refuses, with the value and what is allowed") {
  const Problem problem = problem_of(R"({"head_dim":128})");
  CHECK(rejected(problem, "q128.kv128.w12.st2.b1") == "");
  CHECK(contains(rejected(problem, "q96.kv128.w12.st2.b1"), "tile_q is 96; allowed: 64, 128, 192"));
  CHECK(contains(rejected(problem, "q128.kv128.w8.st2.b1"), "warps is 8"));
  CHECK(contains(rejected(problem, "q128.kv120.w12.st2.b1"), "tile_kv is 120"));
  CHECK(contains(rejected(problem, "q128.kv128.w12.st5.b1"), "stages is 5"));
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b2"), "blocks_per_sm is 2"));
  CHECK(contains(rejected(problem, "q64.kv64.w8.st2.b2.pp1"), "ping_pong is 1"));
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b1.pb9999"), "persistent is 9999"));
  CHECK(contains(rejected(problem, "q128.kv128.w12.st4.b1"), "bytes of shared memory"));
  CHECK(contains(rejected(problem, "q128.kv240.w12.st1.b1"), "registers"));
  CHECK(contains(rejected(problem_of(R"({"head_dim":256})"), "q64.kv16.w8.st2.b2"),
                 "a thread begins with 128"));
  CHECK(sm90_family().reasons_against(problem).empty());
  CHECK(sm90_family().reasons_against(problem_of(R"({"dtype":"fp32","head_dim":64})")).size() == 1);
  CHECK(
      sm90_family()
          .reasons_against(normalise(config_from_json(R"({"head_dim":64})"), parse_target("sm_90")))
          .size() == 1);
}

TEST_CASE("backward: every problem has a schedule, in shared memory and registers that there are") {
  for (const char* mask : {"none", "causal", "window:3,4", "blocks"})
    for (const char* more : {"", R"(,"dropout":0.1)", R"(,"softcap":9,"alibi":true)"})
      for (int dim = 8; dim <= 256; dim += 8)
        for (const bool deterministic : {false, true}) {
          const Problem problem =
              problem_of(std::string(R"({"direction":"backward","head_dim":)") +
                         std::to_string(dim) + R"(,"mask":")" + mask + "\"" + more +
                         (deterministic ? R"(,"deterministic":true})" : "}"));
          const DeviceInfo device = assumed_device(problem.target);
          CAPTURE(to_string(problem));
          CHECK(sm90_family().reasons_against(problem).empty());
          const Schedule schedule = sm90_family().default_schedule(problem, device, kLong);
          CHECK(rejected(problem, to_string(schedule).c_str()) == "");
          const sm90::Registers share = sm90::backward_registers(problem, schedule);
          CHECK(share.producer + 2 * share.consumer <= 3 * (65536 / 384 / 8 * 8));
          CHECK(sm90::keys_layout(problem, schedule).smem_bytes <= device.smem_per_block);
          CHECK(sm90::queries_layout(problem, schedule).smem_bytes <= device.smem_per_block);
          if (deterministic)
            for (const Candidate& candidate : sm90_family().space(problem, device, kLong))
              if (candidate.rejected.empty()) CHECK(candidate.schedule.add_queries == 0);
        }
}

TEST_CASE("backward: what the family refuses, with the value and what is allowed") {
  const std::string start = R"({"direction":"backward","head_dim":64)";
  const Problem plain = problem_of(start + "}");
  const struct {
    Problem problem;
    const char* schedule;
    std::vector<std::string> named;
  } table[] = {
      {plain, "q64.kv64.w8.st2.b1.qs64", {"tile_q is 64", "128, 192"}},
      {plain, "q128.kv64.w8.st2.b1.qs64", {"warps is 8", "4 that produce"}},
      {plain, "q128.kv64.w12.st2.b1.qs24", {"query_step is 24", "16..128 in steps of 16"}},
      {plain, "q128.kv64.w12.st2.b1.qs64.pp1", {"pp1", "does not have"}},
      {plain,
       "q128.kv64.w12.st2.b1.qs48.aq1",
       {"query_step is 48", "with add_queries: multiples of 64"}},
      {problem_of(start + R"(,"dropout":0.1})"), "q128.kv48.w12.st2.b1.qs64", {"tile_kv is 48"}},
      {problem_of(start + R"(,"deterministic":true})"),
       "q128.kv64.w12.st2.b1.qs64.aq1",
       {"add_queries is 1", "deterministic"}},
      {problem_of(start + R"(,"mask":"blocks"})"),
       "q128.kv64.w12.st2.b1.qs64.aq1",
       {"add_queries is 1", "block lists"}},
      {problem_of(R"({"direction":"backward","head_dim":256})"),
       "q128.kv16.w12.st1.b1.qs64.aq1",
       {"add_queries is 1", "another those of the values"}},
      {problem_of(R"({"direction":"backward","head_dim":256})"),
       "q192.kv16.w16.st2.b1.qs16",
       {"tile_q is 192", "values: 128"}},
      {problem_of(R"({"direction":"backward","head_dim":256})"),
       "q128.kv16.w12.st1.b1.qs16",
       {"stages is 1", "2, 3"}},
      {problem_of(R"({"head_dim":64})"), "q128.kv64.w12.st2.b1.qs64", {"knobs of the backward"}},
  };
  for (const auto& [problem, schedule, named] : table) {
    INFO(schedule);
    const std::string why = rejected(problem, schedule);
    INFO(why);
    CHECK(!why.empty());
    for (const std::string& part : named) CHECK(contains(why, part));
  }
}

TEST_CASE("blocks that take turns are so many that they fill their rounds") {
  const auto blocks = [](double batch, double seq_q, const char* mask) {
    const Problem problem = problem_of(fmt::format(R"({{"head_dim":128,"mask":"{}"}})", mask));
    const LaunchPlan plan =
        sm90_family().emit(problem, parse_schedule("q128.kv128.w12.st2.b1.pb132.qp1")).plan;
    // Sizes with 16 heads, in the order of rule_variables(); nothing of blocks or gradients.
    const double values[] = {batch, 16, 16, seq_q, seq_q, 0, 1, 1, 0, 0, 0, 1};
    return Rule(*plan.steps.front().grid, rule_variables())(values);
  };
  CHECK(blocks(2, 8192, "none") == 128);  // 2048 tiles in 16 rounds
  CHECK(blocks(1, 1024, "none") == 128);  // in one
  CHECK(blocks(1, 1152, "none") == 72);   // 144 tiles: in two, whatever the blocks
  CHECK(blocks(1, 1152 + 1, "none") == 80);
  CHECK(blocks(64, 129, "none") == 132);  // short tiles: more of them than rows make up
  CHECK(blocks(1, 0, "none") == 0);
  CHECK(blocks(2, 8192, "causal") == 132);  // who is done takes the next
}

TEST_CASE("heads that share keys are joined in a tile where queries are few") {
  const Problem problem = problem_of(R"({"head_dim":128,"mask":"causal"})");
  const DeviceInfo device = assumed_device(problem.target);
  const auto joined = [&](const Problem& of, std::int64_t heads_kv, std::int64_t seq_q) {
    const Shape shape{8, 32, heads_kv, seq_q, 4096};
    return sm90_family().default_schedule(of, device, shape).pack_heads != 0;
  };
  CHECK(joined(problem, 8, 1));
  CHECK(joined(problem, 16, 64));
  CHECK(joined(problem, 1, 100));
  CHECK(!joined(problem, 32, 1));   // each has keys of its own
  CHECK(!joined(problem, 8, 128));  // tiles are full without
  CHECK(!joined(problem, 8, 4096));
  CHECK(!joined(problem_of(R"({"head_dim":128,"mask":"blocks"})"), 8, 1));
  CHECK(!joined(problem_of(R"({"head_dim":128,"alibi":true})"), 8, 1));
  CHECK(!joined(problem_of(R"({"head_dim":128,"dropout":0.1})"), 8, 1));
  CHECK(contains(
      rejected(problem_of(R"({"head_dim":128,"dropout":0.1})"), "q128.kv128.w12.st2.b1.ph1"),
      "pack_heads is 1; allowed with block lists, dropout or ALiBi: 0"));
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b1.lf1.ph1"), "pack_heads is 1"));
  const LaunchPlan plan =
      sm90_family().emit(problem, parse_schedule("q128.kv128.w12.st2.b1.ph1")).plan;
  const double values[] = {8, 32, 8, 33, 4096, 0, 0, 0, 0, 0, 0, 4};  // 132 rows for four heads
  CHECK(Rule(*plan.steps.front().grid, rule_variables())(values) == 2 * 8 * 8);
  CHECK(plan.boxes.front().packed);
  const auto predicted = [&](const char* schedule, std::int64_t heads_kv, std::int64_t seq_q) {
    return sm90_family()
        .consider(problem, device, {8, 32, heads_kv, seq_q, 4096}, parse_schedule(schedule))
        .estimate.time_us;
  };
  for (const std::int64_t seq_q : {1, 16, 32})
    CHECK(predicted("q128.kv128.w12.st2.b1.ph1", 8, seq_q) <
          0.5 * predicted("q128.kv128.w12.st2.b1", 8, seq_q));
  CHECK(predicted("q128.kv128.w12.st2.b1.ph1", 32, 1) == predicted("q128.kv128.w12.st2.b1", 32, 1));
}

TEST_CASE("clusters are whole, and each block brings its part of the keys") {
  const Problem problem = problem_of(R"({"head_dim":128})");
  const auto blocks = [&](const char* schedule, double seq_q, double batch) {
    const LaunchPlan plan = sm90_family().emit(problem, parse_schedule(schedule)).plan;
    const double values[] = {batch, 3, 3, seq_q, 4096, 0, 0, 0, 0, 0, 0, 1};
    return Rule(*plan.steps.front().grid, rule_variables())(values);
  };
  CHECK(blocks("q128.kv128.w12.st2.b1.cl2", 129, 1) == 2 * 3);
  CHECK(blocks("q128.kv128.w12.st2.b1.cl2", 257, 1) == 4 * 3);  // the last has no rows
  CHECK(blocks("q128.kv128.w12.st2.b1.pb132.cl2", 257, 1) == 4 * 3);
  // 240 tiles in two rounds.
  CHECK(blocks("q128.kv128.w12.st2.b1.pb132.cl2", 1024, 10) == 120);
  for (const double seq_q : {1.0, 100.0, 1000.0, 10000.0})
    CHECK(std::fmod(blocks("q128.kv128.w12.st2.b1.pb100.cl2", seq_q, 7), 2) == 0);
  const LaunchPlan plan =
      sm90_family().emit(problem, parse_schedule("q128.kv96.w12.st2.b1.cl2")).plan;
  for (const BoxRule& box : plan.boxes) {
    const bool part = box.map == Param::k_map || box.map == Param::v_map;
    CHECK(box.rows == (part ? 48 : 64));
  }
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b1.cl3"), "cluster is 3; allowed: 0, 2"));
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b1.pb131.cl2"), "cluster is 2"));
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b1.ph1.cl2"), "cluster is 2"));
  for (const char* mask : {"causal", "window:3,4", "blocks"})
    CHECK(contains(rejected(problem_of(std::string(R"({"head_dim":128,"mask":")") + mask + "\"}"),
                            "q128.kv128.w12.st2.b1.cl2"),
                   "cluster is 2; allowed with a mask"));
}

TEST_CASE("queries in registers and emulated exponentials") {
  const Problem problem = problem_of(R"({"head_dim":128,"mask":"causal"})");
  CHECK(rejected(problem, "q128.kv128.w12.st2.b1.qr1") == "");
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b1.qr2"), "q_in_registers is 2"));
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b1.qr1.ht1"), "allowed with half_tiles: 0"));
  CHECK(contains(rejected(problem, "q128.kv176.w12.st2.b1.qr1"), "registers per thread"));
  CHECK(rejected(problem, "q128.kv176.w12.st2.b1") == "");
  CHECK(rejected(problem, "q128.kv128.w12.st2.b1.ex8.ll1") == "");
  CHECK(contains(rejected(problem, "q128.kv128.w12.st2.b1.ex2"),
                 "emulated_exp2 is 2; allowed: 0, 4, 8"));
  // What was measured slower everywhere does not come before what is not.
  const DeviceInfo device = assumed_device(problem.target);
  const auto predicted = [&](const char* knob) {
    return sm90_family()
        .consider(problem, device, kLong,
                  parse_schedule("q128.kv128.w12.st2.b1" + std::string(knob)))
        .estimate.time_us;
  };
  for (const char* knob : {".qr1", ".ex8", ".ex4"}) CHECK(predicted(knob) > predicted(""));
}

TEST_CASE("steps of few keys are predicted slower, as they were measured") {
  const struct {
    const char* config;
    const char *slow, *fast;  // on an H200: 1.38 to 4.0 times, 1.6 and 1.9 times
  } rows[] = {
      {R"({"head_dim":64,"mask":"window:1023,0","dropout":0.1})", "q192.kv16.w16.st2.b1.lz1",
       "q128.kv128.w12.st2.b1.lz8.pp1.pb132.qp1"},
      {R"({"head_dim":128,"mask":"window:1023,0","dropout":0.1})", "q192.kv32.w16.st2.b1.lz1",
       "q128.kv128.w12.st2.b1.lz8.pb132.qp1"},
      {R"({"head_dim":256,"mask":"causal","dropout":0.1})", "q128.kv32.w12.st2.b1.pb132.lf1",
       "q128.kv64.w12.st2.b1.pb132.lf1"},
      {R"({"head_dim":192,"mask":"blocks"})", "q128.kv80.w12.st2.b1.lz1",
       "q128.kv64.w12.st2.b1.lz8.pb132"},
      {R"({"head_dim":192,"mask":"blocks"})", "q128.kv96.w12.st2.b1.lz8.pp1.pb132",
       "q128.kv64.w12.st2.b1.lz8.pb132"},
  };
  for (const auto& row : rows) {
    const Problem problem = problem_of(row.config);
    CAPTURE(row.config);
    const auto predicted = [&](const char* schedule) {
      return sm90_family()
          .consider(problem, assumed_device(problem.target), kLong, parse_schedule(schedule))
          .estimate.time_us;
    };
    CHECK(predicted(row.fast) > 0);
    CHECK(predicted(row.slow) > 1.05 * predicted(row.fast));
  }
}

TEST_CASE("printed products say what they are") {
  sm90::ProductShape shape;
  shape.n = 8;
  CHECK(text_of(shape, DType::fp16) ==
        R"(// d += a * b: 64 x 16, K-major, by 16 x 8, K-major.
__device__ __forceinline__ void wgmma_ss_n8_kk(float (&d)[4], u64 a, u64 b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.u32 accumulate, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
      "{%0, %1, %2, %3}, "
      "%4, %5, accumulate, 1, 1, 0, 0;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a), "l"(b)
      : "memory");
}
)");
  shape.a_in_registers = true;
  shape.b_k_major = false;
  shape.first = true;
  shape.n = 256;
  const std::string text = text_of(shape, DType::bf16);
  CHECK(contains(text, "wgmma_rs_n256_m_first(float (&d)[128], const u32 (&a)[4]"));
  CHECK(contains(text, "{%128, %129, %130, %131}, %132, accumulate, 1, 1, 1;"));
  CHECK(contains(text, "\"=f\"(d[127])"));
  for (const int n : {0, 4, 12, 264}) {
    shape.n = n;
    CHECK(error_of([&] { text_of(shape, DType::bf16); }).status == Status::internal);
  }
  shape.n = 64;
  CHECK(error_of([&] { text_of(shape, DType::fp32); }).status == Status::internal);
}
