// `flashwright tune`: searches for the fastest schedule, shows what it tried, and stores what it learned.
#include <fmt/format.h>

#include <memory>

#include "cli/config_flags.hpp"
#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/tuning.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

struct TuneOptions {
  ConfigFlags config;
  ShapeFlags shape;
  std::string budget = "60s";
  std::optional<std::string> search_seed;
  bool all = false;
};

std::string outcome_text(const TuningResult& result) {
  const std::string use = "`run` and get_kernel use the winner from now on";
  if (!result.interrupted) return "trials and decision; " + use;
  if (!result.report.contains("decision"))
    return "before anything was measured; compiled kernels and the default are as they were";
  return "what was learned is kept; " + use + ", and the same command goes on from here";
}

Exit run_tune(Context& context, const TuneOptions& options) {
  const ConfigInput input = read_config(options.config);
  note_unused_blocks(context, input);
  const std::optional<flashwright_shape> shape = read_shape(options.shape);
  Json how = {{"budget_s", seconds_value("--budget", options.budget)}};
  if (options.search_seed)
    how["seed"] = int_value("--search-seed", *options.search_seed, 0, std::int64_t{1} << 52);
  const TuningResult result = tune_with_progress(context, input.text(), pointer_to(shape), how);
  if (context.json) {
    print_json(result.report);
  } else {
    print_tuning(result.report, options.all);
    print("\n");
    print_field(result.interrupted ? "stopped" : "stored", outcome_text(result));
  }
  return result.interrupted ? Exit::interrupted : Exit::ok;
}

}  // namespace

void add_tune(CLI::App& app, Context& context) {
  CLI::App* const command = context.add_command(
      app, "tune",
      "Search for the fastest tile sizes, verified and measured; ctrl-C keeps what was learned");
  const auto options = std::make_shared<TuneOptions>();
  options->config.add_to(*command);
  options->shape.add_to(*command);
  context.add_device(*command);
  command->add_option("--budget", options->budget, "time to spend, e.g. 60s or 2m (default 60s)")
      ->type_name("TIME");
  command
      ->add_option("--search-seed", options->search_seed, "of the order of the search (default 1)")
      ->type_name("N");
  command->add_flag("--all", options->all, "show every schedule that was tried");
  command->callback([&context, options] {
    context.action = [&context, options] { return run_tune(context, *options); };
  });
}

}  // namespace cli
