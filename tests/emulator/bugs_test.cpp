// Seeded bugs: one edit of a good kernel each. The emulator has to name every one of them, in every mode.
#include <algorithm>

#include "tests/emulator/emulated.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using emulator::Kind;

namespace {

// What must catch a bug: a finding by name, or the comparison with float64 alone.
constexpr int kNumbers = -1;

struct Bug {
  const char* name;
  const char* kernel;  // of named_kernels()
  const char *from, *to;
  int caught_by;
  Layout layout = Layout::rows_of_heads;
};
constexpr int by(Kind kind) { return static_cast<int>(kind); }

constexpr const char* kTwoStages = "sm80_bf16_d64_causal_dropout";
constexpr const char* kOneStage = "sm80_fp16_d72_window";
constexpr const char* kInRegisters = "sm80_bf16_d128_queries_in_registers";
constexpr const char* kTf32 = "sm80_fp32_d64_causal";
constexpr const char* kUnfused = "sm80_bf16_d64_causal_unfused";

constexpr const char* kWait = "    wait_copies<kStages - 2>();\n    synchronize_block();\n";
constexpr const char* kLastWait = "  wait_copies<0>();\n  synchronize_block();\n  write_output";

constexpr Bug kBugs[] = {
    {"no barrier after the wait", kTwoStages, kWait, "    wait_copies<kStages - 2>();\n",
     by(Kind::race)},
    {"the barrier before the wait", kTwoStages, kWait,
     "    synchronize_block();\n    wait_copies<kStages - 2>();\n", by(Kind::race)},
    {"a wait one too lax", kTwoStages, "wait_copies<kStages - 2>", "wait_copies<kStages - 1>",
     by(Kind::race)},
    {"a wait one too lax, seen by its own thread", kTwoStages, "wait_copies<kStages - 2>",
     "wait_copies<kStages - 1>", by(Kind::copy_in_flight)},
    {"no barrier behind the last tile", kTwoStages, kLastWait,
     "  wait_copies<0>();\n  write_output", by(Kind::race)},
    {"no barrier between output in registers and in memory", kTwoStages,
     "  synchronize_block();\n  store_tile", "  store_tile", by(Kind::race)},
    {"no barrier between keys and values in turns", kOneStage,
     "    wait_copies<0>();\n    synchronize_block();\n    loads.advance",
     "    wait_copies<0>();\n    loads.advance", by(Kind::race)},
    {"warps write the same rows", kTwoStages, "(warp_index() * kRowTiles + m) * 16 + half",
     "m * 16 + half", by(Kind::race)},
    {"no commit", kTwoStages, "    }\n    commit_copies();\n    stage = stage",
     "    }\n    stage = stage", by(Kind::copy_in_flight)},
    {"no commit, at the end", kTwoStages, "    }\n    commit_copies();\n    stage = stage",
     "    }\n    stage = stage", by(Kind::copy_not_waited_for)},
    {"no wait for the queries", kInRegisters, "  commit_copies();\n  wait_copies<0>();\n",
     "  commit_copies();\n", by(Kind::copy_in_flight)},
    {"the stage that is being filled", kTwoStages, "tile_keys = keys + stage * kKeysBytes",
     "tile_keys = keys + (kStages - 1 - stage) * kKeysBytes", by(Kind::copy_in_flight)},
    {"always the first stage", kTwoStages, "stage = stage + 1 == kStages ? 0 : stage + 1",
     "stage = 0", kNumbers},
    {"keys read with the columns of another row", kTwoStages, "lane / 8 % 2 * 16;",
     "(lane / 8 % 2 ^ lane % 8 / 4) * 16;", kNumbers},
    {"another word of a fragment", kTwoStages, "multiply_add(scores[m][n], a[m], b[0], b[1])",
     "multiply_add(scores[m][n], a[m], b[0], b[2])", kNumbers},
    {"another order of weights", kTf32, "packed[m][n][1] = float_bits(weights[m][n][2])",
     "packed[m][n][1] = float_bits(weights[m][n][1])", kNumbers},
    {"a product of low halves instead of high ones", kTf32,
     "multiply_add_tf32(d, high, first.high, second.high)",
     "multiply_add_tf32(d, high, first.high, second.low)", kNumbers},
    {"a warp returns before a barrier", kTwoStages, kWait,
     "    if (warp_index() == 3 && tiles.first == 0) return;\n"
     "    wait_copies<kStages - 2>();\n    synchronize_block();\n",
     by(Kind::early_exit)},
    {"a lane returns before a collective", kTwoStages, "    online_softmax(scores",
     "    if (lane_index() == 7) return;\n    online_softmax(scores", by(Kind::early_exit)},
    {"a shuffle in a branch", kTwoStages, "  value = larger_float(value, shuffle_xor(value, 1));",
     "  if (lane_index() < 16) value = larger_float(value, shuffle_xor(value, 1));",
     by(Kind::divergent_collective)},
    {"a lane leaves a load of matrices out", kTwoStages, "      load_matrices(a[m]",
     "      if (lane_index() != 5) load_matrices(a[m]", by(Kind::divergent_collective)},
    {"a barrier for one warp", kTwoStages, kWait,
     "    if (warp_index() == 0) synchronize_block();\n"
     "    wait_copies<kStages - 2>();\n    synchronize_block();\n",
     by(Kind::divergent_barrier)},
    {"half a warp at a barrier", kTwoStages, "    online_softmax(scores",
     "    if (lane_index() < 16) synchronize_block();\n    online_softmax(scores",
     by(Kind::deadlock)},
    {"a loop without an end", kTwoStages, "for (; !tiles.done; tiles.advance(params))",
     "for (; !tiles.done;)", by(Kind::step_budget)},
    {"a loop without an end or a call", kTwoStages, "    online_softmax(scores",
     "    volatile int spin = 1;\n    while (spin != 0) {\n    }\n    online_softmax(scores",
     by(Kind::step_budget)},
    {"shared memory behind its end", kTwoStages,
     "multiply_weights_values(out, weights, value_address<kHeadDimV>(tile_values))",
     "multiply_weights_values(out, weights, value_address<kHeadDimV>(tile_values + kValuesBytes))",
     by(Kind::shared_bounds)},
    {"a misaligned row", kTwoStages, "lane / 8 % 2 * 16;", "lane / 8 % 2 * 8;",
     by(Kind::shared_alignment)},
    {"rows that were never loaded", kTwoStages,
     "    for (int row = 0; row < kRows; row += kRowsPerPass) {\n      if",
     "    for (int row = 0; row < kRows - kRowsPerPass; row += kRowsPerPass) {\n      if",
     by(Kind::shared_uninitialised)},
    {"keys behind the end of memory", kTwoStages, "inside && row + first_row < rows", "inside",
     by(Kind::global_bounds)},
    {"rows written behind the end of memory", kTwoStages,
     "      if (row >= rows) break;\n      Element* target", "      Element* target",
     by(Kind::global_bounds)},
    {"an LSE one place too far", kTwoStages, "work.row_begin + row,\n",
     "work.row_begin + row + 1,\n", by(Kind::global_bounds)},
    {"wide copies from rows that start anywhere", kTwoStages,
     "  if (aligned) {\n    // A thread keeps", "  if (true) {\n    // A thread keeps",
     by(Kind::global_alignment), Layout::shifted},
    {"scores that were never written", kUnfused,
     "kv >= params.seq_kv) continue;\n        float first",
     "kv >= params.seq_kv - 8) continue;\n        float first", by(Kind::global_uninitialised)},
};

const NamedKernel& named(const std::string& name) {
  const auto& all = named_kernels();
  return *std::find_if(all.begin(), all.end(),
                       [&](const NamedKernel& k) { return k.name == name; });
}

Shape shape_of(const Bug& bug) {
  return {1, 2, 2, 100, bug.kernel == std::string(kOneStage) ? 300 : 250};
}

void check_bug(const Bug& bug) {
  CAPTURE(std::string(bug.name));
  const NamedKernel& kernel = named(bug.kernel);
  const Source source = sm80_family().emit(kernel.problem, kernel.schedule);
  std::string text = source.text;
  const std::size_t at = text.find(bug.from);
  REQUIRE_MESSAGE(at != std::string::npos, "the kernel no longer holds the text of the edit");
  text.replace(at, std::string(bug.from).size(), bug.to);
  const auto unit = compile_text(text);
  const auto host = problem_for(kernel.problem, shape_of(bug), bug.layout, 3);
  host->arguments.q_position.reset();
  for (const emulator::Mode mode : kModes) {
    CAPTURE(std::string(emulator::to_string(mode)));
    host->poison_outputs();
    const emulator::RunReport report = run(*unit, host->config, kernel.problem, host->arguments,
                                           {mode, true, test_seed(), 1'000'000, 1});
    CAPTURE(text_of(report));
    if (bug.caught_by == kNumbers) {
      CHECK(report.findings.empty());
      CHECK(host->fault(kernel.problem, 64) != "");
      continue;
    }
    const bool named_it = std::any_of(
        report.findings.begin(), report.findings.end(),
        [&](const emulator::Finding& finding) { return by(finding.kind) == bug.caught_by; });
    CHECK(named_it);
  }
}

}  // namespace

TEST_CASE("every seeded bug is named in every mode") {
  if (!compiler_here("seeded bugs in the emulator")) return;
  for (const Bug& bug : kBugs) check_bug(bug);
  MESSAGE(std::size(kBugs) << " bugs");
}

TEST_CASE("rows without padding give the right numbers and bank conflicts") {
  if (!compiler_here("bank conflicts in the emulator")) return;
  const NamedKernel& kernel = named(kTwoStages);
  const Source source = sm80_family().emit(kernel.problem, kernel.schedule);
  std::string text = source.text;
  for (const auto& [from, to] :
       {std::pair{" / 16 | 1) * 16;", " / 16 | 0) * 16;"},
        std::pair{"static_assert(kSharedBytes == 46080", "static_assert(kSharedBytes <= 46080"}}) {
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::string(from).size(), to);
  }
  const auto unit = compile_text(text);
  const auto host = problem_for(kernel.problem, {1, 1, 1, 64, 64}, Layout::rows_of_heads, 3);
  const emulator::RunReport report = run(*unit, host->config, kernel.problem, host->arguments,
                                         {emulator::Mode::early, true, 0, 1'000'000, 1});
  CHECK(text_of(report) == "");
  CHECK(host->fault(kernel.problem, 64) == "");
  CHECK(matrix_conflicts(report) > 0);
  CHECK(report.bank_conflicts >= matrix_conflicts(report));
  REQUIRE(!report.conflict_places.empty());
  CHECK(contains(report.conflict_places.front().text, "load_matrices in "));
}

TEST_CASE("bugs that only some orders show without race detection") {
  if (!compiler_here("modes of the emulator")) return;
  // A missing barrier gives right numbers when warps run in a certain order: this is why there are modes.
  const NamedKernel& kernel = named(kTwoStages);
  const Source source = sm80_family().emit(kernel.problem, kernel.schedule);
  std::string text = source.text;
  const std::size_t at = text.find(kWait);
  REQUIRE(at != std::string::npos);
  text.replace(at, std::string(kWait).size(), "    wait_copies<kStages - 2>();\n");
  const auto unit = compile_text(text);
  const auto host = problem_for(kernel.problem, {1, 2, 2, 100, 250}, Layout::rows_of_heads, 3);
  int caught = 0;
  for (const emulator::Mode mode : kModes) {
    host->poison_outputs();
    const emulator::RunReport report =
        run(*unit, host->config, kernel.problem, host->arguments, {mode, false, 1, 1'000'000, 1});
    if (!report.findings.empty() || !host->fault(kernel.problem, 64).empty()) ++caught;
  }
  CHECK(caught > 0);
}
