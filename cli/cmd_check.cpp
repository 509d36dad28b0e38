// `flashwright check`: the emitted kernel in the emulator, on a machine without a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "cli/config_flags.hpp"
#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/values.hpp"
#include "emulator/check.hpp"

namespace cli {
namespace {

using flashwright::emulator::CheckFailure;
using flashwright::emulator::CheckMode;
using flashwright::emulator::CheckReport;
using flashwright::emulator::CheckRequest;

struct CheckOptions {
  ConfigFlags config;
  ShapeFlags shape;
  std::string modes;
  std::optional<std::string> max_steps;
  bool races = false;
};

std::vector<std::string> modes_of(const std::string& text) {
  const auto& known = flashwright::emulator::mode_names();
  if (text.empty()) return known;
  std::vector<std::string> modes;
  std::istringstream in(text);
  for (std::string name; std::getline(in, name, ',');) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      bad_value("--mode", text, fmt::format("a list of {}", fmt::join(known, ",")));
    modes.push_back(name);
  }
  return modes;
}

// Small, since every thread of the GPU is stepped through: a few tiles of queries and keys.
flashwright_shape default_shape() { return {1, 2, 1, 150, 200}; }

CheckRequest request_of(Context& context, const CheckOptions& options) {
  const ConfigInput input = read_config(options.config);
  if (!input.config.contains("target"))
    throw Error(Exit::bad_input, "--target: none given; expected that of a GPU, e.g. sm_80");
  const flashwright_shape shape = read_shape(options.shape).value_or(default_shape());
  CheckRequest request;
  request.config = input.text();
  request.modes = modes_of(options.modes);
  request.races = options.races;
  request.seed = input.seed;
  if (options.max_steps)
    request.max_steps = int_value("--max-steps", *options.max_steps, 1, std::int64_t{1} << 40);
  request.batch = shape.batch;
  request.heads_q = shape.heads_q;
  request.heads_kv = shape.heads_kv;
  request.seq_q = shape.seq_q;
  request.seq_kv = shape.seq_kv;
  char* emitted = nullptr;
  flashwright::check(flashwright_emit(context.engine(), request.config.c_str(), &shape, &emitted));
  request.text = flashwright::take(emitted);
  return request;
}

Json to_json(const CheckMode& mode) {
  Json findings = Json::array();
  for (const auto& finding : mode.findings)
    findings.push_back({{"kind", finding.kind}, {"text", finding.text}, {"count", finding.count}});
  return {{"mode", mode.mode},
          {"passed", mode.passed},
          {"findings", findings},
          {"judged", mode.judged},
          {"error", mode.error},
          {"tolerance", mode.tolerance},
          {"lse_error_over_bound", mode.lse_error_over_bound},
          {"finite", mode.finite},
          {"rows", mode.rows},
          {"blocks", mode.blocks},
          {"steps", mode.steps},
          {"stopped_blocks", mode.stopped_blocks},
          {"bank_conflicts", mode.bank_conflicts},
          {"bank_conflict_places", mode.conflict_places},
          {"run_ms", mode.run_ms}};
}

void print_mode(const CheckMode& mode) {
  std::string text =
      fmt::format("{} in {}: ", mode.passed ? "passed" : "FAILED", time_text(mode.run_ms * 1e3));
  if (mode.stopped_blocks > 0) {
    text += fmt::format("stopped in {} of {}, so the numbers mean nothing", mode.stopped_blocks,
                        counted(mode.blocks, "block"));
  } else if (!mode.finite) {
    text += "NaN or infinity where the reference has none, or the other way round";
  } else {
    text += fmt::format("largest error of {} {:.2e}, tolerance {:.2e}", mode.judged, mode.error,
                        mode.tolerance);
    if (mode.judged == "o")
      text += fmt::format("; lse {} of its bound", percent_text(mode.lse_error_over_bound));
  }
  if (mode.stopped_blocks == 0)
    text += fmt::format("; {} against float64, {}", counted(mode.rows, "row"),
                        counted(mode.blocks, "block"));
  for (const auto& finding : mode.findings)
    text += fmt::format("\n{}: {}{}", finding.kind, finding.text,
                        finding.count > 1 ? fmt::format(" ({} times)", finding.count) : "");
  for (const std::string& place : mode.conflict_places) text += "\nbank conflicts: " + place;
  print_field(mode.mode, text);
}

void print_report(const CheckRequest& request, const CheckReport& report) {
  print_field("shape",
              fmt::format("batch {}, heads {} (keys: {}), queries {}, keys {}", request.batch,
                          request.heads_q, request.heads_kv, request.seq_q, request.seq_kv));
  print_field("compiled",
              fmt::format("by {} in {}", report.compiler, time_text(report.compile_ms * 1e3)));
  print_field("races", request.races ? "looked for" : "not looked for (--race)");
  print_field("seed", std::to_string(request.seed));
  for (const CheckMode& mode : report.modes) print_mode(mode);
}

Exit run_check(Context& context, const CheckOptions& options) {
  const CheckRequest request = request_of(context, options);
  CheckReport report;
  try {
    report = flashwright::emulator::check(request);
  } catch (const CheckFailure& failure) {
    throw Error(exit_of(static_cast<flashwright_status>(failure.status)),
                failure.detail.empty() ? failure.message : failure.message + "\n" + failure.detail);
  }
  if (context.json) {
    Json modes = Json::array();
    for (const CheckMode& mode : report.modes) modes.push_back(to_json(mode));
    print_json({{"passed", report.passed},
                {"compiler", report.compiler},
                {"compile_ms", report.compile_ms},
                {"races", request.races},
                {"seed", request.seed},
                {"modes", modes}});
  } else {
    print_report(request, report);
  }
  return report.passed ? Exit::ok : Exit::check_failed;
}

}  // namespace

void add_check(CLI::App& app, Context& context) {
  CLI::App* const command = context.add_command(
      app, "check",
      "Run the emitted CUDA in the emulator: numbers, barriers, races. Needs no GPU, but g++ or "
      "clang++");
  const auto options = std::make_shared<CheckOptions>();
  options->config.add_to(*command);
  options->shape.add_to(*command);
  context.add_device(*command);
  command
      ->add_option("--mode", options->modes,
                   "orders of threads and copies: early,late,random,skew (default: all)")
      ->type_name("NAMES");
  command->add_flag("--race", options->races, "look for races on shared memory");
  command
      ->add_option("--max-steps", options->max_steps,
                   "wrapper calls after which a block is stopped (default 200000000)")
      ->type_name("N");
  command->callback([&context, options] {
    context.action = [&context, options] { return run_check(context, *options); };
  });
}

}  // namespace cli
