// Legality: schedules that cannot run are refused with the reason before anything is compiled, and something is
// always left (cases C100, C112, C113).
#include <fmt/format.h>

#include <map>
#include <set>

#include "core/device_profiles.hpp"
#include "core/dtype.hpp"
#include "generator/emit.hpp"
#include "tests/support/emitted.hpp"
#include "tests/support/random.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

constexpr Shape kLong{4, 16, 16, 4096, 4096}, kFewRows{64, 32, 8, 1, 8192},
    kMiddle{1, 8, 8, 200, 200};

std::vector<Target> cuda_targets() {
  std::vector<Target> targets;
  for (const ArchInfo& arch : known_architectures())
    if (arch.target.backend == BackendKind::cuda) targets.push_back(arch.target);
  return targets;
}

std::vector<std::pair<int, int>> all_head_dims() {
  std::vector<std::pair<int, int>> dims = {{64, 128}, {128, 64}, {192, 128},
                                           {8, 256},  {256, 8},  {72, 40}};
  for (int head_dim = kMinHeadDim; head_dim <= kMaxHeadDim; head_dim += kHeadDimStep)
    dims.emplace_back(head_dim, head_dim);
  return dims;
}

template <typename Visit>
void each_problem(const Target& target, const Visit& visit) {
  for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32})
    for (const auto& [head_dim, head_dim_v] : all_head_dims())
      for (const auto kind :
           {Mask::Kind::none, Mask::Kind::causal, Mask::Kind::window, Mask::Kind::blocks})
        for (const bool dropout : {false, true})
          for (const bool modified : {false, true})
            for (const Direction direction : {Direction::forward, Direction::backward})
              visit(Problem{direction, Algorithm::tiled, dtype, head_dim, head_dim_v, kind, dropout,
                            modified, modified, target});
}

// What a multiprocessor has, by the programming guide, and what a candidate asks of it.
bool fits(const Candidate& c, const DeviceInfo& device) {
  const ArchInfo& arch = arch_info(device.target);
  const int blocks = c.schedule.blocks_per_sm;
  return c.estimate.smem_bytes <= device.smem_per_block &&
         blocks * (c.estimate.smem_bytes + 1024) <= device.smem_per_sm &&
         c.estimate.threads <= 1024 && blocks * c.estimate.threads <= arch.threads_per_sm &&
         c.estimate.registers <= 255 &&
         blocks * c.estimate.threads * c.estimate.registers <= arch.registers_per_sm;
}

// A candidate without the one knob that only bounds registers.
Schedule without_blocks(Schedule schedule) {
  schedule.blocks_per_sm = 0;
  return schedule;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("every supported problem has a default schedule that can run on its device") {
  for (const Target& target : cuda_targets()) {
    const DeviceInfo device = assumed_device(target);
    INFO(to_string(target));
    std::string illegal;
    each_problem(target, [&](const Problem& problem) {
      REQUIRE(sm80_family().reasons_against(problem).empty());
      for (const Shape& shape : {kLong, kFewRows, kMiddle}) {
        const Schedule schedule = sm80_family().default_schedule(problem, device, shape);
        const Candidate candidate = sm80_family().consider(problem, device, shape, schedule);
        if (!candidate.rejected.empty() || !fits(candidate, device))
          illegal +=
              "\n" + to_string(problem) + " " + to_string(schedule) + ": " + candidate.rejected;
      }
    });
    INFO(illegal);
    CHECK(illegal.empty());
  }
}

TEST_CASE("legal candidates fit the device, and each rejection says why") {  // C100
  const std::map<std::string, int> limits = {{"sm_80", 166912},  {"sm_86", 101376},
                                             {"sm_89", 101376},  {"sm_90", 232448},
                                             {"sm_100", 232448}, {"sm_120", 101376}};
  for (const auto& [name, limit] : limits) {
    const Target target = parse_target(name);
    const DeviceInfo device = assumed_device(target);
    CHECK(device.smem_per_block == limit);
    for (const int head_dim : {64, 128, 256}) {
      const Problem problem{Direction::forward,
                            Algorithm::tiled,
                            DType::bf16,
                            head_dim,
                            head_dim,
                            Mask::Kind::causal,
                            false,
                            false,
                            false,
                            target};
      int legal = 0, too_large = 0, wrong = 0;
      for (const Candidate& candidate : sm80_family().space(problem, device, kLong)) {
        legal += candidate.rejected.empty();
        wrong += candidate.rejected.empty() && !fits(candidate, device);
        if (candidate.estimate.smem_bytes > limit) {
          ++too_large;
          wrong += !contains(candidate.rejected, std::to_string(candidate.estimate.smem_bytes)) ||
                   !contains(candidate.rejected, std::to_string(limit));
        }
      }
      INFO(name << " d" << head_dim);
      CHECK(wrong == 0);
      CHECK(legal > 5);
      CHECK((too_large > 0 || head_dim == 64));
    }
  }
}

TEST_CASE(
    "the filter follows the limits of the device it is given, not those of the architecture") {
  const Problem problem =
      normalise(config_from_json(R"({"head_dim":128})"), parse_target("sm_90a"));
  const Schedule schedule = parse_schedule("q128.kv64.w4.st2.b1");
  DeviceInfo device = assumed_device(problem.target);
  const int need = sm80_family().consider(problem, device, kLong, schedule).estimate.smem_bytes;
  CHECK(need > 48 * 1024);
  for (const int limit : {need - 1, need, need + 1}) {
    device.smem_per_block = limit;
    const std::string rejected = sm80_family().consider(problem, device, kLong, schedule).rejected;
    CHECK(rejected.empty() == (limit >= need));
    if (limit < need) CHECK(contains(rejected, std::to_string(need) + " bytes"));
  }
  device.smem_per_block = need;
  device.smem_per_sm = need + 1023;  // the system keeps 1 KiB of each block
  CHECK(contains(sm80_family().consider(problem, device, kLong, schedule).rejected,
                 "multiprocessor"));
}

TEST_CASE("a schedule outside the rules is refused with the knob, its value and what is allowed") {
  const Problem problem =
      normalise(config_from_json(R"({"head_dim":64,"dropout":0.1})"), parse_target("sm_80"));
  const DeviceInfo device = assumed_device(problem.target);
  const std::vector<std::pair<std::string, std::vector<std::string>>> table = {
      {"", {"warps", "0", "1, 2, 4, 8"}},
      {"q64.kv64.w3.st2.b1", {"warps is 3", "1, 2, 4, 8"}},
      {"q64.kv64.w4.st4.b1", {"stages is 4", "1, 2, 3"}},
      {"q64.kv64.w4.st2.qr2.b1", {"q_in_registers is 2", "0, 1"}},
      {"q64.kv64.w4.st2", {"blocks_per_sm is 0"}},
      {"q48.kv64.w4.st2.b1", {"tile_q is 48", "16 or 32 rows", "4 warps"}},
      {"q64.kv48.w4.st2.b1", {"tile_kv is 48", "steps of 32"}},
      {"q64.kv288.w4.st1.b1", {"tile_kv is 288", "32..256"}},
      {"q64.kv64.w4.st2.b1.mk4", {"key_block", "CPU"}},
      {"q64.kv64.w4.st2.b8", {"8 blocks", "multiprocessor"}}};
  for (const auto& [text, named] : table) {
    INFO(text);
    const std::string rejected =
        sm80_family().consider(problem, device, kLong, parse_schedule(text)).rejected;
    INFO(rejected);
    CHECK(!rejected.empty());
    for (const std::string& part : named) CHECK(contains(rejected, part));
  }
}

TEST_CASE(
    "a backward schedule outside the rules is refused with the knob, its value and what is "
    "allowed") {
  const Problem problem =
      normalise(config_from_json(R"({"direction":"backward","head_dim":64,"dropout":0.1})"),
                parse_target("sm_80"));
  const DeviceInfo device = assumed_device(problem.target);
  const std::vector<std::pair<std::string, std::vector<std::string>>> table = {
      {"q64.kv64.w4.st2.b1", {"keys_per_block is 0", "16 or 32 rows", "4 warps"}},
      {"q64.kv64.w4.st2.b1.kb48.qs32", {"keys_per_block is 48", "16 or 32 rows"}},
      {"q64.kv64.w4.st2.b1.kb64.qs24", {"query_step is 24", "16..128 in steps of 16"}},
      {"q64.kv48.w4.st2.b1.kb64.qs32", {"tile_kv is 48", "16, 32, 64, 96, 128"}},
      {"q64.kv64.w4.st2.b1.kb64.qs32.sk2", {"split_keys is 2", "0, 1"}},
      {"q64.kv64.w4.st2.b1.kb64.qs32.lz1", {"lazy_rescale", "forward"}},
      {"q64.kv64.w4.st2.b1.kb64.qs128", {"registers"}},
      {"q64.kv64.w4.st2.b1.kb64.qs32.tk4", {"tasks", "CPU"}}};
  for (const auto& [text, named] : table) {
    INFO(text);
    const std::string rejected =
        sm80_family().consider(problem, device, kLong, parse_schedule(text)).rejected;
    INFO(rejected);
    CHECK(!rejected.empty());
    for (const std::string& part : named) CHECK(contains(rejected, part));
  }
  const Problem forward = normalise(config_from_json(R"({"head_dim":64})"), parse_target("sm_80"));
  CHECK(
      contains(sm80_family()
                   .consider(forward, device, kLong, parse_schedule("q64.kv64.w4.st2.b1.kb64.qs32"))
                   .rejected,
               "knobs of the backward pass"));
}

// So that wide heads have gradients on RTX cards too.
TEST_CASE("wide heads have backward schedules in 99 KiB, with and without every feature") {
  for (const char* name : {"sm_86", "sm_89", "sm_120"})
    for (const DType dtype : {DType::bf16, DType::fp32})
      for (const int head_dim : {128, 160, 192, 256})
        for (const bool all : {false, true}) {
          const Problem problem{Direction::backward,
                                Algorithm::tiled,
                                dtype,
                                head_dim,
                                head_dim,
                                all ? Mask::Kind::blocks : Mask::Kind::causal,
                                all,
                                all,
                                all,
                                parse_target(name)};
          const DeviceInfo device = assumed_device(problem.target);
          int legal = 0;
          for (const Candidate& c : sm80_family().space(problem, device, kLong))
            legal += c.rejected.empty() && fits(c, device) && c.estimate.smem_bytes <= 99 * 1024;
          INFO(to_string(problem));
          CHECK(legal >= 1);
        }
}

TEST_CASE("only the kernels of the gradients that are wanted are launched") {
  const char* const config = R"({"direction":"backward","head_dim":64,"mask":"blocks"})";
  const Problem problem = normalise(config_from_json(config), parse_target("sm_80"));
  for (const char* schedule :
       {"q64.kv64.w4.st1.b1.kb64.qs32", "q64.kv64.w4.st1.b1.kb64.qs32.sk1"}) {
    const LaunchPlan plan = sm80_family().emit(problem, parse_schedule(schedule)).plan;
    for (int part = 1; part < 8; ++part) {
      const double wanted[] = {part & 1 ? 1.0 : 0.0, part & 2 ? 1.0 : 0.0, part & 4 ? 1.0 : 0.0};
      // Of 2 x 4 / 2 heads, 100 queries in blocks of 40 and 200 keys in blocks of 70.
      const double values[] = {2, 4, 2, 100, 200, 3, 40, 70, wanted[0], wanted[1], wanted[2]};
      for (const LaunchStep& step : plan.steps) {
        const double grid = Rule(*step.grid, rule_variables())(values);
        const double keys = 3 * 2 * 2 * 2;  // three mask blocks of two tiles each
        const std::map<std::string, double> expected = {
            {"fw_statistics", 50},
            {"fw_dq", 3 * 4 * 2 * wanted[0]},
            {"fw_dk", keys * wanted[1]},
            {"fw_dv", keys * wanted[2]},
            {"fw_dk_dv", keys * std::max(wanted[1], wanted[2])}};
        INFO(step.entry);
        CHECK(grid == expected.at(step.entry));
      }
      CHECK(Rule(*plan.workspace, rule_variables())(values) == 2 * 4 * 100 * 16);
    }
  }
}

TEST_CASE("the space holds each schedule once, and agrees with a look at one schedule") {
  std::set<std::string> problems;
  std::vector<NamedKernel> kernels = random_kernels(test_seed(), 12);
  for (NamedKernel& kernel : random_kernels(test_seed(), 6, sm80_family(), Direction::backward))
    kernels.push_back(std::move(kernel));
  for (const NamedKernel& kernel : kernels) {
    const DeviceInfo device = assumed_device(kernel.problem.target);
    const std::vector<Candidate> space = sm80_family().space(kernel.problem, device, kLong);
    std::set<Schedule> seen;
    std::string trouble;
    for (const Candidate& c : space) {
      if (!seen.insert(c.schedule).second) trouble += "\ntwice: " + to_string(c.schedule);
      const Candidate alone = sm80_family().consider(kernel.problem, device, kLong, c.schedule);
      if (c.rejected.empty() &&
          (!alone.rejected.empty() || alone.estimate.smem_bytes != c.estimate.smem_bytes))
        trouble += "\ndiffers: " + to_string(c.schedule);
      if (c.rejected.empty() && !(c.estimate.time_us > 0))
        trouble += "\nno time: " + to_string(c.schedule);
    }
    INFO(to_string(kernel.problem) << trouble);
    CHECK(trouble.empty());
  }
}

TEST_CASE("what is dropped as the same code as another candidate has that other one in the space") {
  std::string lost;
  for (const char* name : {"sm_80", "sm_86", "sm_90a"})
    for (const int head_dim : {16, 64, 128, 256})
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        Problem problem = normalise(config_from_json(R"({"head_dim":64})"), parse_target(name));
        problem.head_dim = problem.head_dim_v = head_dim;
        problem.direction = direction;
        const std::vector<Candidate> space =
            sm80_family().space(problem, assumed_device(problem.target), kLong);
        std::set<Schedule> legal;
        for (const Candidate& c : space)
          if (c.rejected.empty()) legal.insert(without_blocks(c.schedule));
        for (const Candidate& c : space)
          if (c.rejected.starts_with("the same code as") &&
              legal.count(without_blocks(c.schedule)) == 0 && lost.size() < 2000)
            lost += "\n" + to_string(problem) + " " + to_string(c.schedule) + ": " + c.rejected;
      }
  INFO(lost);
  CHECK(lost.empty());
}

TEST_CASE(
    "the default depends on the shape only through its sizes' classes, and the model on all of "
    "it") {
  const Problem problem =
      normalise(config_from_json(R"({"head_dim":128,"mask":"causal"})"), parse_target("sm_90a"));
  const DeviceInfo device = assumed_device(problem.target);
  const Schedule schedule = sm80_family().default_schedule(problem, device, {1, 8, 8, 1000, 1000});
  for (std::int64_t length = 1000; length <= 1100; ++length)  // C104
    for (std::int64_t batch = 1; batch <= 8; ++batch)
      CHECK(sm80_family().default_schedule(problem, device, {batch, 8, 8, length, length}) ==
            schedule);
  const auto time = [&](const Shape& shape) {
    return sm80_family().consider(problem, device, shape, schedule).estimate.time_us;
  };
  CHECK(time({4, 16, 16, 8192, 8192}) > 2 * time({4, 16, 16, 4096, 4096}));
  CHECK(time({1, 1, 1, 0, 0}) > 0);
}

TEST_CASE("a problem that no family can do is refused with every reason") {
  const FamilySm80& family = sm80_family();
  register_family(BackendKind::cuda, &family);
  CHECK(choose_family(normalise(config_from_json(R"({"head_dim":64})"), parse_target("sm_80")))
            .name() == "sm80");
  const Problem cpu = normalise(config_from_json(R"({"head_dim":64})"), {BackendKind::cpu, "avx2"});
  CHECK(reasons_against(cpu) ==
        std::vector<std::string>{"no kernel family for cpu:avx2 is present"});
  const Error error = error_of([&] { choose_family(cpu); });
  CHECK(error.status == Status::unsupported);
  CHECK(contains(error.message, to_string(cpu)));
  Problem unfused =
      normalise(config_from_json(R"({"head_dim":64,"mask":"blocks"})"), parse_target("sm_80"));
  unfused.algorithm = Algorithm::unfused;
  CHECK(reasons_against(unfused).size() == 1);
  CHECK(contains(reasons_against(unfused).front(), "sm80: mask is blocks"));
  unfused.mask = Mask::Kind::none;
  unfused.direction = Direction::backward;
  CHECK(
      reasons_against(unfused) ==
      std::vector<std::string>{"sm80: direction is backward; the unfused yardstick knows forward"});
}

TEST_CASE("traffic: a block reads the keys that its tile of queries sees") {
  const Problem causal =
      normalise(config_from_json(R"({"head_dim":64,"mask":"causal"})"), parse_target("sm_90a"));
  const Problem windows =
      normalise(config_from_json(R"({"head_dim":64,"mask":"window:9,9"})"), parse_target("sm_90a"));
  const Shape shape{2, 3, 3, 300, 300};
  // Of a head: q and o once, keys of tiles of 128 for rows that end at 128, 256, 300; the LSE.
  const double expected = 6 * (2 * 128 * (300 + 128 + 256 + 300) + 4 * 300);
  for (const Family* family :
       std::initializer_list<const Family*>{&sm80_family(), &sm90_family()}) {
    const Schedule schedule = parse_schedule("q128.kv128");
    CHECK(family->traffic_bytes(causal, schedule, shape) == expected);
    CHECK_FALSE(family->traffic_bytes(windows, schedule, shape));
  }
}

TEST_CASE("traffic: gradients, with the tiles of a schedule") {
  const auto problem_of = [](const char* head_dim, const char* target) {
    return normalise(
        config_from_json(fmt::format(R"({{"head_dim":{},"direction":"backward"}})", head_dim)),
        parse_target(target));
  };
  const Shape shape{1, 2, 2, 300, 300};
  const auto count = [&](const Family& family, const char* head_dim, const char* schedule) {
    return *family.traffic_bytes(problem_of(head_dim, "sm_90a"), parse_schedule(schedule), shape);
  };
  // Of 2 heads. A pair: a row of two tensors; each of o, d_o, the LSE, dq and twice k, v, dk, dv.
  const double pair = 2 * 128, once = 300 * (2 * 128 + 4 + 128 + 2 * pair);
  // 16 bytes of each query; tiles of 64 queries and 128 keys, 5 and 3 of them.
  CHECK(count(sm80_family(), "64", "q64.kv32.w4.st2.b2.kb128.qs32") ==
        2 * (once + 300 * (16 + pair + 16) + 5 * 300 * pair + 3 * 300 * (pair + 16)));
  CHECK(count(sm80_family(), "64", "q64.kv32.w4.st2.b2.kb128.qs32.sk1") ==
        2 * (once + 300 * (16 + pair + 16 + pair) + 5 * 300 * pair + 6 * 300 * (pair + 16)));
  // 8 bytes of each query; tiles of 128 of both.
  CHECK(count(sm90_family(), "64", "q128.kv64.w12.st2.b1.qs64") ==
        2 * (once + 300 * (8 + pair + 8) + 3 * 300 * pair + 3 * 300 * (pair + 8)));
  CHECK(count(sm90_family(), "64", "q128.kv64.w12.st2.b1.qs64.aq1") ==
        2 * (once + 300 * (8 + 256 + 256) + 3 * 300 * (pair + 8 + 256)));
  // Where a consumer cannot hold the sums of both, a block has 64 keys.
  CHECK(count(sm90_family(), "256", "q128.kv48.w12.st2.b1.qs48") ==
        2 * (4 * once - 3 * 300 * 4 + 300 * (8 + 4 * pair + 8) + 3 * 300 * 4 * pair +
             5 * 300 * (4 * pair + 8)));
}

TEST_SUITE_END();
