// `flashwright bench`: times the kernel of a Config, on request beside the unfused computation.
#include <fmt/format.h>

#include <memory>

#include "cli/config_flags.hpp"
#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

struct BenchOptions {
  ConfigFlags config;
  ShapeFlags shape;
  std::string against;
  std::string seconds = "2s";
};

std::string ratio_text(const Json& row) {
  const double ratio = row.value("ratio", 1.0);
  if (!row.contains("ratio_margin") || !row["ratio_margin"].is_number())
    return fmt::format("{:.3f}", ratio);
  // The margin is one of the logarithm.
  return fmt::format("{:.3f} +- {:.3f}", ratio, ratio * row.value("ratio_margin", 0.0));
}

void print_bench(const Json& report) {
  print_field("shape", report.value("shape", ""));
  Table table({"kernel", "schedule", ">median", ">90 % lie in", ">TFLOP/s", ">relative time",
               ">workspace", ">samples"});
  for (const Json& row : report["kernels"])
    table.add(
        {row.value("name", ""), row.value("schedule", ""), time_text(row.value("time_us", 0.0)),
         fmt::format("{} .. {}", time_text(row.value("low_us", 0.0)),
                     time_text(row.value("high_us", 0.0))),
         fmt::format("{:.3g}", row.value("tflops", 0.0)), ratio_text(row),
         bytes_text(row.value("workspace_bytes", 0.0)), std::to_string(row.value("samples", 0))});
  print(table.text());
  if (report["kernels"].size() < 2) return;
  const Json &tiled = report["kernels"][0], &unfused = report["kernels"][1];
  print(
      fmt::format("\nThe tiled kernel is {:.2f} times as fast as the unfused computation and needs "
                  "{} of workspace "
                  "instead of {}.\n",
                  unfused.value("ratio", 1.0), bytes_text(tiled.value("workspace_bytes", 0.0)),
                  bytes_text(unfused.value("workspace_bytes", 0.0))));
}

Exit run_bench(Context& context, BenchOptions options) {
  const bool both = options.config.direction == "both";
  if (both) options.config.direction = "forward";
  ConfigInput input = read_config(options.config);
  note_unused_blocks(context, input);
  if (!options.against.empty() && options.against != "unfused")
    bad_value("--against", options.against, "unfused");
  const std::optional<flashwright_shape> shape = read_shape(options.shape);
  Json how = {{"seconds", seconds_value("--seconds", options.seconds)}};
  if (!options.against.empty()) how["against"] = options.against;
  Json reports = Json::array();
  for (int turn = 0; turn < (both ? 2 : 1); ++turn) {
    if (turn == 1) input.config["direction"] = "backward";
    reports.push_back(ask([&](char** text) {
      return flashwright_bench(context.engine(), input.text().c_str(), pointer_to(shape),
                               how.dump().c_str(), text);
    }));
    if (context.json) continue;
    if (both) print_field("direction", turn == 0 ? "forward" : "backward");
    print_bench(reports.back());
  }
  if (context.json) print_json(reports.size() == 1 ? reports[0] : reports);
  return Exit::ok;
}

}  // namespace

void add_bench(CLI::App& app, Context& context) {
  CLI::App* const command =
      context.add_command(app, "bench", "Time, rate, spread and workspace of the kernel");
  const auto options = std::make_shared<BenchOptions>();
  options->config.add_to(*command);
  options->shape.add_to(*command);
  context.add_device(*command);
  command
      ->add_option("--against", options->against,
                   "unfused: the computation that stores all scores, for comparison")
      ->type_name("NAME");
  command->add_option("--seconds", options->seconds, "time to measure for (default 2s)")
      ->type_name("TIME");
  const CLI::App* const paper = add_paper(*command, context);
  command->callback([&context, options, command, paper] {
    if (command->got_subcommand(paper)) return;
    context.action = [&context, options] { return run_bench(context, *options); };
  });
}

}  // namespace cli
