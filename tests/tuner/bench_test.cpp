#include "tuner/bench.hpp"

#include <nlohmann/json.hpp>

#include "core/mask.hpp"
#include "core/traffic.hpp"
#include "tests/support/testing.hpp"
#include "tests/tuner/landscape.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace gen = rc::gen;

namespace {

BenchEntry entry(Rig& rig, const char* name, const std::string& schedule) {
  return {name,
          rig.problem,
          build(rig.family, rig.problem, parse_schedule(schedule), rig.backend, nullptr),
          {}};
}

}  // namespace

TEST_CASE("kernels are timed side by side, in ratios to the first") {
  Rig rig;
  const BenchReport report =
      bench(rig.config, rig.shape,
            {entry(rig, "tiled", schedule_names()[1]), entry(rig, "unfused", schedule_names()[10])},
            rig.backend, 0, 0);
  REQUIRE(report.rows.size() == 2);
  CHECK(report.rows[0].name == "tiled");
  CHECK(report.rows[0].median_us == doctest::Approx(81));
  CHECK(report.rows[0].ratio == 1);
  CHECK(report.rows[1].ratio == doctest::Approx(250.0 / 81));
  CHECK(report.rows[0].samples >= 5);
  CHECK(report.rows[0].low_us <= report.rows[0].median_us);
  CHECK(report.rows[0].high_us >= report.rows[0].median_us);
  // Two products of 2 d operations for each of the pairs of two heads.
  CHECK(report.rows[0].tflops == doctest::Approx(2 * 2 * 40 * 50 * 32 / 81e-6 * 1e-12));
  const nlohmann::json json = nlohmann::json::parse(to_json(report));
  CHECK(json["kernels"].size() == 2);
  CHECK(json["kernels"][1]["name"] == "unfused");
  CHECK(rig.backend.alive == 0);
  CHECK(rig.backend.memory_blocks == 0);
}

TEST_CASE("a report says what is computed and moved, and the same of the unfused computation") {
  Rig rig;
  BenchEntry tiled = entry(rig, "tiled", schedule_names()[1]);
  tiled.traffic_bytes = 12345;
  const BenchEntry uncounted = entry(rig, "unfused", schedule_names()[2]);
  const BenchReport report = bench(rig.config, rig.shape, {tiled, uncounted}, rig.backend, 0, 0);
  CHECK(report.rows[0].flops == 2 * 2 * 40 * 50 * (16 + 16));
  CHECK(report.unfused_flops == report.rows[0].flops);  // no mask
  const nlohmann::json json = nlohmann::json::parse(to_json(report));
  CHECK(json["kernels"][0]["traffic_bytes"] == 12345);
  CHECK_FALSE(json["kernels"][1].contains("traffic_bytes"));
  CHECK(json["unfused"]["flops"] == report.unfused_flops);
  CHECK(json["unfused"]["traffic_bytes"] == unfused_bytes(rig.problem, rig.shape));
  CHECK(json["tensor_bytes"] == tensor_bytes(rig.problem, rig.shape));
}

TEST_CASE("a wrong result is no benchmark") {
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[2]].right = false;
  Rig rig(landscape);
  const Error error = error_of([&] {
    bench(rig.config, rig.shape, {entry(rig, "tiled", schedule_names()[2])}, rig.backend, 0, 0);
  });
  CHECK(contains(error.message, "tiled"));
  CHECK(contains(error.message, "wrong result"));
  CHECK(rig.backend.memory_blocks == 0);
}

TEST_CASE("a kernel is judged as the problem that it is: unfused passes store scores of 16 bits") {
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[2]].lse_error = 1e-3f;  // within half of a score's last place
  Rig rig(landscape);
  rig.config.dtype = DType::bf16;
  rig.problem = normalise(rig.config, rig.problem.target);
  const BenchEntry tiled = entry(rig, "tiled", schedule_names()[1]);
  const BenchEntry off = entry(rig, "off", schedule_names()[2]);
  rig.problem.algorithm = Algorithm::unfused;
  const BenchEntry unfused = entry(rig, "unfused", schedule_names()[2]);
  CHECK(bench(rig.config, rig.shape, {tiled, unfused}, rig.backend, 0, 0).rows.size() == 2);
  const Error error = error_of([&] {
    bench(rig.config, rig.shape, {tiled, off}, rig.backend, 0, 0);
  });
  CHECK(contains(error.message, "bench: off"));
  CHECK(contains(error.message, "LSE off"));
}

TEST_CASE("a kernel that was not built is no benchmark") {
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[2]].compiles = false;
  Rig rig(landscape);
  const Error error = error_of([&] {
    bench(rig.config, rig.shape, {entry(rig, "tiled", schedule_names()[2])}, rig.backend, 0, 0);
  });
  CHECK(error.status == Status::compile_failed);
  CHECK(contains(error.message, "is not wanted"));
}

TEST_CASE("pairs of query and key are counted as the mask shows them") {
  property("by the test of one element", [] {
    Config config;
    config.head_dim = 8;
    config.mask = *gen::element(Mask::none(), Mask::causal(), Mask::window(3, 0),
                                Mask::window(-1, 4), Mask::window(2, -1), Mask::window(0, 0));
    const Shape shape{1, 1, 1, *gen::inRange(0, 30), *gen::inRange(0, 30)};
    Arguments args;
    if (*gen::arbitrary<bool>()) args.q_position = *gen::inRange(-20, 40);
    const std::int64_t offset = args.q_position.value_or(shape.seq_kv - shape.seq_q);
    double pairs = 0;
    for (std::int64_t i = 0; i < shape.seq_q; ++i)
      for (std::int64_t j = 0; j < shape.seq_kv; ++j)
        pairs += evaluate(*info(config.mask.kind).keep, [&](std::string_view name) -> double {
          if (name == "kv") return static_cast<double>(j);
          if (name == "q") return static_cast<double>(i + offset);
          const std::int64_t side = name == "window_left" ? config.mask.left : config.mask.right;
          return static_cast<double>(side < 0 ? kUnboundedWindow : side);
        });
    // By custom a causal square counts as half of all.
    if (config.mask.kind == Mask::Kind::causal && shape.seq_q == shape.seq_kv && !args.q_position)
      pairs = static_cast<double>(shape.seq_q * shape.seq_kv) / 2;
    RC_ASSERT(visible_pairs(config, shape, args) == pairs);
  });
}
