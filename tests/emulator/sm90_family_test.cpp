// Kernels of the sm90 family where consumers and producer wait for each other most: with one stage, in
// turn, under masks that leave some consumers without keys that others see. And seeded bugs of what is
// theirs alone.
#include <algorithm>

#include "core/device_profiles.hpp"
#include "core/problem.hpp"
#include "tests/emulator/emulated.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using emulator::Kind;

namespace {

struct Fixed {
  const char *config, *schedule;
  Shape shape;
};

// Consumers that see nothing of a tile pass it on while others compute with it.
constexpr Fixed kWindow = {
    R"({"target":"sm_90a","dtype":"fp16","head_dim":256,"mask":"window:0,0","dropout":0.25})",
    "q128.kv16.w12.st1.b1.lz1.pp1",
    {1, 1, 1, 100, 65}};
constexpr Fixed kPersistent = {
    R"({"target":"sm_90a","dtype":"bf16","head_dim":64,"mask":"window:0,0"})",
    "q128.kv32.w12.st1.b1.pp1.pb1",
    {1, 2, 1, 260, 200}};
constexpr Fixed kPrefetched = {
    R"({"target":"sm_90a","dtype":"fp16","head_dim":64,"mask":"window:20,3"})",
    "q192.kv16.w16.st1.b1.pp1.pb2.qp1",
    {1, 2, 2, 400, 300}};
constexpr Fixed kUneven[] = {
    kWindow,
    kPersistent,
    kPrefetched,
    {R"({"target":"sm_90a","dtype":"bf16","head_dim":128,"mask":"causal"})",
     "q128.kv32.w12.st1.b1.pp1",
     {1, 1, 1, 200, 200}},
    {R"({"target":"sm_90a","dtype":"bf16","head_dim":64,"mask":"causal"})",
     "q192.kv16.w16.st1.b1.pp1.pb2",
     {1, 2, 1, 300, 170}},
    {R"({"target":"sm_90a","dtype":"fp16","head_dim":72,"mask":"causal"})",
     "q128.kv16.w12.st1.b1.pp1.pb1.lf1.qp1",
     {2, 1, 1, 150, 140}},
    {R"({"target":"sm_90a","dtype":"bf16","head_dim":96,"mask":"window:70,0"})",
     "q192.kv32.w16.st1.b1.pp1",
     {1, 1, 1, 230, 230}}};

// Everything that a launch needs, for the text of a kernel.
struct Launch {
  Config config;
  Problem problem;
  std::string text;

  explicit Launch(const Fixed& fixed)
      : config(config_from_json(fixed.config)),
        problem(normalise(config, parse_target(config.target))) {
    const Schedule schedule = parse_schedule(fixed.schedule);
    CHECK(sm90_family()
              .consider(problem, assumed_device(problem.target), fixed.shape, schedule)
              .rejected == "");
    text = sm90_family().emit(problem, schedule).text;
  }
};

std::string to_string(const Fixed& fixed) {
  return std::string(fixed.config) + " " + fixed.schedule;
}

// Each result by mode: findings and what is wrong with the numbers.
template <typename Visit>
void run_modes(const Launch& launch, const Shape& shape, Visit&& visit) {
  const auto unit = compile_text(launch.text);
  HostProblem host(launch.config, shape, Layout::rows_of_heads, 3);
  for (const emulator::Mode mode : kModes) {
    CAPTURE(std::string(emulator::to_string(mode)));
    host.poison_outputs();
    const emulator::RunReport report = run(*unit, host.config, launch.problem, host.arguments,
                                           {mode, true, test_seed(), 20'000'000, 1});
    visit(report, host.fault(launch.problem, 64));
  }
}

struct Bug {
  const char* name;
  const Fixed* kernel;
  const char *from, *to;
  Kind caught_by;
};

constexpr const char* kTurnFirst = R"(      take_turn(group);
      pass_turn(group);
      if (thread_index() % 128 == 0) {
        wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
        arrive_empty(barriers.keys_empty + walk.at.stage * 8);
        wait_barrier(barriers.values_full + walk.at.stage * 8, walk.at.parity);
        arrive_empty(barriers.values_empty + walk.at.stage * 8);
      }
)";
constexpr const char* kTurnLast = R"(      if (thread_index() % 128 == 0) {
        wait_barrier(barriers.keys_full + walk.at.stage * 8, walk.at.parity);
        arrive_empty(barriers.keys_empty + walk.at.stage * 8);
        wait_barrier(barriers.values_full + walk.at.stage * 8, walk.at.parity);
        arrive_empty(barriers.values_empty + walk.at.stage * 8);
      }
      take_turn(group);
      pass_turn(group);
)";
constexpr const char* kClear =
    "      if (thread_index() % 128 == 0) wait_stores_read<0>();\n"
    "      arrive(output_sent);\n";

constexpr Bug kBugs[] = {
    {"a tile passed on before the turn", &kWindow, kTurnFirst, kTurnLast, Kind::deadlock},
    {"a tile passed on before the turn, of many", &kPersistent, kTurnFirst, kTurnLast,
     Kind::deadlock},
    {"a place for queries that is never given back", &kPersistent, kClear,
     "      if (thread_index() % 128 == 0) wait_stores_read<0>();\n", Kind::deadlock},
    {"a place for queries given back while output leaves it", &kPersistent, kClear,
     "      arrive(output_sent);\n", Kind::race},
    {"a place for queries given back while output leaves it, with another one", &kPrefetched,
     kClear, "      arrive(output_sent);\n", Kind::race},
    {"a counter that is never given back", &kPersistent,
     "    if (taken == count - 1) compare_and_swap(&counter->grid, grid, 0);\n", "",
     Kind::variable_not_reset},
    {"a counter that goes on behind the last number", &kPersistent,
     "increment_within(&counter->taken, count - 1)", "increment_within(&counter->taken, count)",
     Kind::variable_not_reset},
    {"a tile told of once more behind its queries", &kPrefetched,
     "  tell_work(memory, walk.queries, work);\n"
     "  load_queries(params, work, memory, barriers, walk);\n",
     "  const RingPlace<kQueryStages> at = walk.queries;\n"
     "  tell_work(memory, at, work);\n"
     "  load_queries(params, work, memory, barriers, walk);\n"
     "  tell_work(memory, at, work);\n",
     Kind::race},
    {"an end told of behind its barrier", &kPersistent,
     "  tell_work(memory, at, {kNoTile, 0, 0, 0});\n  announce_work(barriers, at);\n",
     "  announce_work(barriers, at);\n  tell_work(memory, at, {kNoTile, 0, 0, 0});\n", Kind::race},
};

}  // namespace

TEST_CASE("consumers with unequal work, one stage and turns are silent and right in every mode") {
  if (!compiler_here("uneven consumers in the emulator")) return;
  for (const Fixed& fixed : kUneven) {
    CAPTURE(to_string(fixed));
    run_modes(Launch(fixed), fixed.shape,
              [](const emulator::RunReport& report, const std::string& fault) {
                CHECK(text_of(report) == "");
                CHECK(fault == "");
              });
  }
}

TEST_CASE("bugs between producer and consumers of the sm90 family are named in every mode") {
  if (!compiler_here("seeded bugs of the sm90 family")) return;
  for (const Bug& bug : kBugs) {
    CAPTURE(std::string(bug.name));
    Launch launch(*bug.kernel);
    const std::size_t at = launch.text.find(bug.from);
    REQUIRE_MESSAGE(at != std::string::npos, "the kernel no longer holds the text of the edit");
    launch.text.replace(at, std::string(bug.from).size(), bug.to);
    run_modes(launch, bug.kernel->shape,
              [&](const emulator::RunReport& report, const std::string&) {
                CAPTURE(text_of(report));
                const auto named = [&](const emulator::Finding& finding) {
                  return finding.kind == bug.caught_by;
                };
                CHECK(std::any_of(report.findings.begin(), report.findings.end(), named));
                // Whoever is stuck is told of first: all else may follow from it.
                if (bug.caught_by == Kind::deadlock && !report.findings.empty())
                  CHECK(report.findings.front().kind == Kind::deadlock);
                CHECK((report.stopped_blocks > 0) == (bug.caught_by == Kind::deadlock));
              });
  }
}
