#include "tests/emulator/emulated.hpp"

#include "tests/support/testing.hpp"

namespace flashwright::testing {

bool compiler_here(const char* test) {
  if (!emulator::host_compiler().empty()) return true;
  skip(test, "no host compiler");
  return false;
}

std::unique_ptr<emulator::HostUnit> compile_text(const std::string& text) {
  return std::make_unique<emulator::HostUnit>(emulator::translate(text, "kernel.cu"));
}

std::unique_ptr<HostProblem> problem_for(const Problem& problem, const Shape& shape, Layout layout,
                                         std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const bool backward = problem.direction == Direction::backward;
  Config config;
  config.direction = to_string(problem.direction);
  config.deterministic = problem.deterministic;
  config.dtype = problem.dtype;
  config.head_dim = problem.head_dim;
  config.head_dim_v = problem.head_dim_v;
  config.mask.kind = problem.mask;
  if (problem.mask == Mask::Kind::window) {
    config.mask.left = static_cast<std::int64_t>(random() % 60) - 1;
    config.mask.right = static_cast<std::int64_t>(random() % 40) - 1;
  }
  if (problem.dropout) config.dropout = 0.25;
  if (problem.softcap) config.softcap = random() % 2 == 0 ? 0.8 : 20.0;
  config.alibi = problem.alibi;
  if (problem.negative_scale || (backward && random() % 4 == 0)) config.softmax_scale = -0.2;
  auto host = std::make_unique<HostProblem>(config, shape, layout, seed % 1000);
  if (problem.mask == Mask::Kind::blocks)
    host->use_random_blocks(16 << random() % 3, 32 << random() % 2, random() % 2 == 0, random());
  const bool positions = problem.mask == Mask::Kind::causal || problem.mask == Mask::Kind::window;
  if ((positions || problem.alibi) && random() % 2 == 0)
    host->arguments.q_position = static_cast<std::int64_t>(random() % 100) - 20;
  if (backward) host->fill_forward();
  return host;
}

std::int64_t matrix_conflicts(const emulator::RunReport& report) {
  std::int64_t passes = 0;
  for (const emulator::ConflictPlace& place : report.conflict_places)
    if (contains(place.text, "_matrices")) passes += place.passes;
  return passes;
}

std::string text_of(const emulator::RunReport& report) {
  std::string text;
  for (const emulator::Finding& finding : report.findings)
    text += std::string(emulator::to_string(finding.kind)) + ": " + finding.text + " (" +
            std::to_string(finding.count) + " times)\n";
  return text;
}

}  // namespace flashwright::testing
