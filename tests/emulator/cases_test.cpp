// The cases of tests/data/cases.json in the emulator, each in one of the modes.
#include <map>

#include "core/device_profiles.hpp"
#include "tests/emulator/emulated.hpp"
#include "tests/support/cases.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

constexpr std::int64_t kMostPairs = 300'000;  // of query and key, of all heads: a few seconds each

std::int64_t pairs(const CaseRun& run) {
  std::int64_t sum = 0;
  for (const Arguments& call : run.calls)
    sum += call.q.shape[0] * call.q.shape[2] * call.q.shape[1] * call.k.shape[1];
  return sum;
}

// Units by their text: many cases share a kernel.
using Units = std::map<std::string, std::unique_ptr<emulator::HostUnit>>;

// What was found in one call.
std::string run_call(const Config& config, const Arguments& call, const Family& family,
                     const Problem& problem, emulator::Mode mode, Units& units) {
  const Shape shape{call.q.shape[0], call.q.shape[2], call.k.shape[2], call.q.shape[1],
                    call.k.shape[1]};
  const Source source =
      family.emit(problem, family.default_schedule(problem, assumed_device(problem.target), shape));
  std::unique_ptr<emulator::HostUnit>& unit = units[source.text];
  if (unit == nullptr) unit = compile_text(source.text);
  return text_of(
      emulator::run(*unit, config, problem, call, {mode, true, test_seed(), 20'000'000, 1}));
}

std::string run_case(const GoldenCase& golden, CaseRun& run, const Family& family,
                     const Problem& problem, emulator::Mode mode, Units& units) {
  for (const Arguments& call : run.calls)
    if (std::string found = run_call(run.config, call, family, problem, mode, units);
        !found.empty())
      return found;
  return check_run(golden, run);
}

// The gradients of a case that ran forward.
std::string run_backward(const GoldenCase& golden, CaseRun& run, const Family& family,
                         const Target& target, emulator::Mode mode, Units& units) {
  Config config = run.config;
  config.direction = "backward";
  const Problem problem = normalise(config, target);
  for (const Arguments& call : run.backward_calls)
    if (std::string found = run_call(config, call, family, problem, mode, units); !found.empty())
      return found;
  return check_gradients(golden, run);
}

}  // namespace

TEST_CASE("cases are silent and right") {
  if (!compiler_here("cases in the emulator")) return;
  Units units;
  std::map<std::string, int> skipped;
  std::size_t ran = 0, ran_backward = 0, ran_on_hopper = 0;
  for (const GoldenCase& golden : read_cases(FW_SOURCE_DIR "/tests/data/cases.json")) {
    std::string why = golden.skip;
    CaseRun run;
    if (why.empty()) {
      make_run(golden, 4, 4, run);
      if (pairs(run) > kMostPairs) why = "too many pairs for the emulator";
    }
    if (!why.empty()) {
      ++skipped[why];
      continue;
    }
    CAPTURE(golden.id);
    const std::size_t turn = ran++ + test_seed();
    const Problem problem = normalise(run.config, parse_target("sm_80")),
                  hopper = normalise(run.config, parse_target("sm_90a"));
    CHECK(run_case(golden, run, sm80_family(), problem, kModes[turn % 4], units) == "");
    if (golden.gradients) {
      ++ran_backward;
      CHECK(run_backward(golden, run, sm80_family(), problem.target, kModes[turn / 4 % 4], units) ==
            "");
    }
    // Every third in the other family too: another third on another day.
    if (turn % 3 != 0 || !sm90_family().reasons_against(hopper).empty()) continue;
    ++ran_on_hopper;
    CaseRun again;
    make_run(golden, 4, 4, again);
    CHECK(run_case(golden, again, sm90_family(), hopper, kModes[turn / 3 % 4], units) == "");
  }
  for (const auto& [reason, count] : skipped) MESSAGE(count << " goldens skipped: " << reason);
  MESSAGE(ran << " goldens ran, " << ran_backward << " of them backward too, " << ran_on_hopper
              << " with sm90; " << units.size() << " kernels");
  CHECK(ran > 80);
  CHECK(ran_backward >= 40);
  CHECK(ran_on_hopper > 5);
}
