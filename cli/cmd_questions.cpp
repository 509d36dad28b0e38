// `flashwright supports` and `flashwright explain`: what can be done, and which kernel does it and why.
#include <fmt/format.h>

#include <memory>

#include "cli/config_flags.hpp"
#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

struct QuestionsOptions {
  ConfigFlags config;
  ShapeFlags shape;
};

Exit run_supports(Context& context, const QuestionsOptions& options) {
  const ConfigInput input = read_config(options.config);
  const Json reasons = ask([&](char** text) {
    return flashwright_supports(context.engine(), input.text().c_str(), text);
  });
  if (context.json) {
    print_json({{"supported", reasons.empty()}, {"reasons", reasons}});
  } else if (reasons.empty()) {
    print("yes\n");
  } else {
    print("no\n");
    for (const Json& reason : reasons) print(fmt::format("  {}\n", reason.get<std::string>()));
  }
  return reasons.empty() ? Exit::ok : Exit::unsupported;
}

std::string evidence_text(const Json& evidence, const std::string& bucket) {
  std::string text =
      fmt::format("{} for {}: {} candidates measured, {} failed", evidence.value("grade", ""),
                  bucket, evidence.value("measured", 0), evidence.value("failed", 0));
  const bool from_elsewhere = evidence.value("measured", 0) == 0;
  if (evidence.value("grade", "") == "predicted")
    text = fmt::format("predicted by the model for {}; {} faster than the default {}", bucket,
                       percent_text(evidence.value("gain", 0.0)), evidence.value("default", ""));
  else if (from_elsewhere && evidence.value("gain", 0.0) > 0)
    text = fmt::format("measured elsewhere for {}; {} faster than the default {}", bucket,
                       percent_text(evidence.value("gain", 0.0)), evidence.value("default", ""));
  else if (from_elsewhere)
    text = fmt::format("measured elsewhere for {}: the default won", bucket);
  else if (evidence.value("schedule", "") != evidence.value("default", ""))
    text += fmt::format("; {} faster than the default {} (95 %: {} .. {})",
                        percent_text(evidence.value("gain", 0.0)), evidence.value("default", ""),
                        percent_text(evidence.value("gain_low", 0.0)),
                        percent_text(evidence.value("gain_high", 0.0)));
  if (!evidence.value("confident", true)) text += "; the device was disturbed, so measure again";
  return text;
}

void print_alternatives(const Json& report) {
  const Json alternatives = report.value("alternatives", Json::array());
  if (alternatives.empty()) return;
  if (alternatives.front().contains("model_us")) {
    Table table({"schedule", ">model's time"});
    for (const Json& row : alternatives)
      table.add({row.value("schedule", ""), time_text(row.value("model_us", 0.0))});
    print(
        "\nAlternatives, in the order in which tuning would try them (nothing was measured yet)\n" +
        table.text(2));
  } else {
    Table table({"schedule", ">time", ">to default", "status"});
    for (const Json& row : alternatives) {
      const bool timed = row.contains("time_us");
      const std::string detail = row.value("detail", "");
      table.add({row.value("schedule", ""), timed ? time_text(row.value("time_us", 0.0)) : "-",
                 timed ? fmt::format("{:.3f}", row.value("ratio_to_default", 0.0)) : "-",
                 detail.empty() ? row.value("status", "") : detail});
    }
    print("\nAlternatives, as measured\n" + table.text(2));
  }
  if (!report.contains("legal")) return;
  print(fmt::format("\n{} schedules are legal on this device. Not legal:\n",
                    report.value("legal", 0)));
  for (const auto& [reason, count] : report["rejected"].items())
    print(fmt::format("  {:5d}  {}\n", count.get<int>(), reason));
}

Exit run_explain(Context& context, const QuestionsOptions& options) {
  const ConfigInput input = read_config(options.config);
  const std::optional<flashwright_shape> shape = read_shape(options.shape);
  const Json report = ask([&](char** text) {
    return flashwright_explain(context.engine(), input.text().c_str(), pointer_to(shape), text);
  });
  if (context.json) {
    print_json(report);
    return Exit::ok;
  }
  const Json& device = report["device"];
  print_field("problem", report.value("problem", ""));
  print_field("shape", report.value("shape", "") + (shape ? "" : " (assumed: no shape was given)"));
  print_field("device",
              fmt::format("{} ({}){}", device.value("name", ""), device.value("target", ""),
                          device.value("present", false) ? ""
                          : context.names_device()       ? ", not present"
                                                   : ", not present; --device names another"));
  print_field("kernel", fmt::format("family {}, schedule {}", report.value("family", ""),
                                    report.value("schedule", "")));
  print_field("why", report.value("why", ""));
  for (const Json& schedule : report.value("passed_over", Json::array()))
    print_field("not", schedule.get<std::string>());
  for (const Json& launch : report.value("slow", Json::array()))
    print_field("slow", launch.get<std::string>());
  if (report.contains("evidence"))
    print_field("evidence", evidence_text(report["evidence"], report.value("evidence_bucket", "")));
  print_field("from", report.value("in_store", false)
                          ? fmt::format("the store, key {}", report.value("key", "").substr(0, 16))
                          : "nowhere yet: it is compiled on first use");
  const Json& estimate = report["estimate"];
  std::string takes =
      fmt::format("{} of on-chip memory", bytes_text(estimate.value("smem_bytes", 0.0)));
  if (estimate.value("threads", 0) > 0)
    takes = fmt::format("{} threads, {}", estimate.value("threads", 0), takes);
  print_field("takes", fmt::format("{}, {} registers; by the model {}", takes,
                                   estimate.value("registers", 0),
                                   time_text(estimate.value("time_us", 0.0))));
  if (report.contains("traffic_bytes"))
    print_field("moves", fmt::format("{} to and from its tiles; its tensors once are {}",
                                     bytes_text(report.value("traffic_bytes", 0.0)),
                                     bytes_text(report.value("tensor_bytes", 0.0))));
  print_alternatives(report);
  return Exit::ok;
}

}  // namespace

void add_supports(CLI::App& app, Context& context) {
  CLI::App* const command = context.add_command(
      app, "supports", "Whether a Config can be served: yes, or every reason why not");
  const auto options = std::make_shared<QuestionsOptions>();
  options->config.add_to(*command);
  context.add_device(*command);
  command->callback([&context, options] {
    context.action = [&context, options] { return run_supports(context, *options); };
  });
}

void add_explain(CLI::App& app, Context& context) {
  CLI::App* const command = context.add_command(
      app, "explain",
      "Which kernel serves a Config and shape, from where, why, and the alternatives");
  const auto options = std::make_shared<QuestionsOptions>();
  options->config.add_to(*command);
  context.add_device(*command);
  options->shape.add_to(*command);
  command->callback([&context, options] {
    context.action = [&context, options] { return run_explain(context, *options); };
  });
}

}  // namespace cli
