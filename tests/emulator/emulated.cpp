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
  Config config;
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
  if (problem.negative_scale) config.softmax_scale = -0.2;
  auto host = std::make_unique<HostProblem>(config, shape, layout, seed % 1000);
  if (problem.mask == Mask::Kind::blocks)
    host->use_random_blocks(16 << random() % 3, 32 << random() % 2, random() % 2 == 0, random());
  const bool positions = problem.mask == Mask::Kind::causal || problem.mask == Mask::Kind::window;
  if ((positions || problem.alibi) && random() % 2 == 0)
    host->arguments.q_position = static_cast<std::int64_t>(random() % 100) - 20;
  return host;
}

std::size_t workspace_bytes(const Source& source, const HostProblem& host) {
  if (source.plan.workspace == nullptr) return 0;
  const Shape& s = host.shape;
  const double values[] = {static_cast<double>(s.batch),
                           static_cast<double>(s.heads_q),
                           static_cast<double>(s.heads_kv),
                           static_cast<double>(s.seq_q),
                           static_cast<double>(s.seq_kv),
                           0,
                           0};
  return static_cast<std::size_t>(Rule(*source.plan.workspace, rule_variables())(values));
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
