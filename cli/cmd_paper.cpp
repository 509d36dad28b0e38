// `flashwright bench paper`: the comparison of the FlashAttention paper on the device at hand. For each length, what
// the computation that stores all scores and the tiled one compute, what they move, and how long they take.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "cli/config_flags.hpp"
#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/ncu.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

struct PaperOptions {
  ConfigFlags config;
  std::optional<std::string> lengths, batch, heads, heads_kv, measure;
  std::string seconds = "1s";
};

struct Plan {
  Json config;
  std::vector<std::string> directions;
  std::vector<std::int64_t> lengths;
  std::optional<std::int64_t> batch;
  std::int64_t heads = 0, heads_kv = 0;
  double seconds = 0;
  bool measure = false;
  Json device;

  bool on_cpu() const { return device.value("target", "").starts_with("cpu"); }

  // Long sequences come in small batches: on a GPU always about as many queries.
  flashwright_shape shape(std::int64_t seq) const {
    constexpr std::int64_t kQueries = 16384;
    const std::int64_t usual = on_cpu() ? 1 : std::max<std::int64_t>(1, kQueries / seq);
    return {batch.value_or(usual), heads, heads_kv, seq, seq};
  }
};

std::string text_of(const Json& config) {
  ConfigInput input;
  input.config = config;
  return input.text();
}

std::vector<std::int64_t> lengths_of(const std::string& text) {
  std::vector<std::int64_t> lengths;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    lengths.push_back(int_value("--seq", text.substr(at, comma - at), 1, 1 << 24));
    at = comma + 1;
  }
  return lengths;
}

// The layer of the paper, GPT-2 medium: 16 heads of 64.
Plan plan_of(Context& context, const PaperOptions& options) {
  Plan plan;
  ConfigFlags flags = options.config;
  if (!flags.direction || *flags.direction == "both")
    plan.directions = {"forward", "backward"};
  else
    plan.directions = {*flags.direction};
  for (const std::string& direction : plan.directions)
    if (direction != "forward" && direction != "backward")
      bad_value("--direction", direction, "forward, backward or both");
  flags.direction = plan.directions.front();
  const ConfigInput input = read_config(flags);
  if (input.mask() != "none" && input.mask() != "causal")
    bad_value("--mask", input.mask(), "none or causal: others hide what their values say");
  if (options.measure && *options.measure != "ncu") bad_value("--measure", *options.measure, "ncu");
  plan.config = input.config;
  if (!plan.config.contains("head_dim")) plan.config["head_dim"] = 64;
  const auto extent = [](const char* flag, const std::optional<std::string>& text,
                         std::int64_t usual) {
    return text ? int_value(flag, *text, 1, 1 << 24) : usual;
  };
  if (options.batch) plan.batch = extent("--batch", options.batch, 1);
  plan.heads = extent("--heads", options.heads, 16);
  plan.heads_kv = extent("--heads-kv", options.heads_kv, plan.heads);
  plan.seconds = seconds_value("--seconds", options.seconds);
  Json asked = plan.config;  // whether there is a backward pass is seen later
  asked["direction"] = "forward";
  plan.device = ask([&](char** text) {
    return flashwright_explain(context.engine(), text_of(asked).c_str(), nullptr, text);
  })["device"];
  if (!plan.config.contains("dtype") && plan.on_cpu()) plan.config["dtype"] = "fp32";
  plan.measure = options.measure.has_value();
  if (plan.measure && plan.on_cpu())
    bad_value("--measure", "ncu", "a CUDA device, as ncu knows no other");
  plan.lengths = lengths_of(options.lengths.value_or(
      plan.on_cpu() ? "256,512,1024,2048" : "512,1024,2048,4096,8192,16384"));
  return plan;
}

// What ncu counts for the kernels of one `bench`, which runs with the schedule that was timed here.
void add_measured(const Context& context, Json config, const flashwright_shape& shape, Json& tiled,
                  Json& unfused) {
  config["schedule"] = tiled["schedule"];
  const bool both = unfused.contains("time_us");
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                                      "bench", "--json"};
  const auto add = [&](const char* flag, const std::string& value) {
    command.insert(command.end(), {flag, value});
  };
  add("--config", text_of(config));
  add("--batch", std::to_string(shape.batch));
  add("--heads", std::to_string(shape.heads_q));
  add("--heads-kv", std::to_string(shape.heads_kv));
  add("--seq", std::to_string(shape.seq_q));
  add("--seconds", "1ms");
  if (both) add("--against", "unfused");
  for (const std::string& word : context.engine_flags()) command.push_back(word);
  double of_tiled = 0, of_unfused = 0;
  for (const auto& [kernel, bytes] : profile_with_ncu(command)) {
    const bool pass = kernel == "fw_scores" || kernel == "fw_softmax" || kernel == "fw_output";
    (pass ? of_unfused : of_tiled) += bytes;
  }
  tiled["measured_bytes"] = of_tiled;
  if (both) unfused["measured_bytes"] = of_unfused;
}

// The rows of one length and direction: unfused and tiled.
Json compare(Context& context, const Plan& plan, const std::string& direction, std::int64_t seq) {
  const flashwright_shape shape = plan.shape(seq);
  Json config = plan.config;
  config["direction"] = direction;
  const auto row = [&](const char* kernel) {
    return Json{{"seq", seq},
                {"batch", shape.batch},
                {"heads", shape.heads_q},
                {"heads_kv", shape.heads_kv},
                {"direction", direction},
                {"kernel", kernel}};
  };
  Json unfused = row("unfused"), tiled = row("tiled");
  const Json reasons = ask([&](char** text) {
    return flashwright_supports(context.engine(), text_of(config).c_str(), text);
  });
  if (!reasons.empty()) {
    unfused["why"] = tiled["why"] =
        fmt::format("{}", fmt::join(reasons.get<std::vector<std::string>>(), "; "));
    return {unfused, tiled};
  }
  const auto bench = [&](const char* against) {
    const Json how = {{"seconds", plan.seconds}, {"against", against}};
    return ask([&](char** text) {
      return flashwright_bench(context.engine(), text_of(config).c_str(), &shape,
                               how.dump().c_str(), text);
    });
  };
  Json report;
  try {
    report = bench("unfused");
  } catch (const flashwright::Failure& failure) {
    unfused["why"] = failure.message;  // no such kernel, or no room for its scores
    report = bench("");
  }
  for (const Json& kernel : report["kernels"]) {
    Json& to = kernel["name"] == "tiled" ? tiled : unfused;
    for (const char* key : {"schedule", "flops", "time_us", "tflops", "workspace_bytes"})
      to[key] = kernel[key];
    if (kernel.contains("traffic_bytes")) to["predicted_bytes"] = kernel["traffic_bytes"];
  }
  unfused["flops"] = report["unfused"]["flops"];
  unfused["predicted_bytes"] = report["unfused"]["traffic_bytes"];
  unfused["tensor_bytes"] = tiled["tensor_bytes"] = report["tensor_bytes"];
  if (plan.measure) add_measured(context, config, shape, tiled, unfused);
  return {unfused, tiled};
}

std::string cell(const Json& row, const char* key, std::string (*text)(double)) {
  return row.contains(key) ? text(row[key].get<double>()) : "-";
}

void print_table(const Plan& plan, const Json& rows) {
  std::vector<std::string> headings = {"seq",    "batch",         "pass",      "kernel",
                                       ">GFLOP", ">tensors once", ">predicted"};
  if (plan.measure) headings.push_back(">measured");
  headings.insert(headings.end(), {">time", ">TFLOP/s"});
  Table table(headings);
  std::vector<std::string> notes;
  for (const Json& row : rows) {
    const std::string pass = row["direction"], kernel = row["kernel"];
    std::vector<std::string> cells = {
        row["seq"].dump(),
        row["batch"].dump(),
        pass,
        kernel,
        cell(row, "flops", [](double flops) { return fmt::format("{:.4g}", flops * 1e-9); }),
        cell(row, "tensor_bytes", bytes_text),
        cell(row, "predicted_bytes", bytes_text)};
    if (plan.measure) cells.push_back(cell(row, "measured_bytes", bytes_text));
    cells.push_back(cell(row, "time_us", time_text));
    cells.push_back(cell(row, "tflops", [](double rate) { return fmt::format("{:.3g}", rate); }));
    table.add(cells);
    if (!row.contains("why")) continue;
    const std::string note = fmt::format("{} {}: {}", pass, kernel, row["why"].get<std::string>());
    if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
  }
  print(table.text());
  for (const std::string& text : notes) print(fmt::format("\nnot measured: {}", text));
  if (!notes.empty()) print("\n");
}

Exit run_paper(Context& context, const PaperOptions& options) {
  const Plan plan = plan_of(context, options);
  Json rows = Json::array();
  {
    Progress progress(context.json);
    for (const std::int64_t seq : plan.lengths)
      for (const std::string& direction : plan.directions) {
        progress.set(fmt::format("{} of {}", direction, seq));
        for (const Json& row : compare(context, plan, direction, seq)) rows.push_back(row);
      }
    progress.finish();
  }
  if (context.json) {
    Json config = plan.config;
    config.erase("direction");
    print_json({{"device", plan.device}, {"config", config}, {"rows", rows}});
    return Exit::ok;
  }
  print_field("device", fmt::format("{} ({})", plan.device.value("name", ""),
                                    plan.device.value("target", "")));
  print_field("layer",
              fmt::format("{} heads of {}, {}, mask {}", plan.heads, plan.config["head_dim"].dump(),
                          plan.config.value("dtype", "bf16"), plan.config.value("mask", "none")));
  print_table(plan, rows);
  return Exit::ok;
}

}  // namespace

CLI::App* add_paper(CLI::App& bench, Context& context) {
  CLI::App* const command = context.add_command(
      bench, "paper", "The comparison of the FlashAttention paper: work, traffic and time");
  const auto options = std::make_shared<PaperOptions>();
  options->config.add_to(*command);
  const auto option = [&](const char* name, const char* type, std::optional<std::string>& value,
                          const char* about) {
    command->add_option(name, value, about)->type_name(type);
  };
  option("--seq", "N,N,...", options->lengths, "lengths (default: what suits the device)");
  option("--batch", "N", options->batch, "batch entries (default: CPU 1, GPU 16384 / length)");
  option("--heads", "N", options->heads, "query heads (default 16)");
  option("--heads-kv", "N", options->heads_kv, "key heads (default: as many as query heads)");
  option("--measure", "TOOL", options->measure,
         "ncu: measure the traffic with the memory of a GPU, too");
  context.add_device(*command);
  command->add_option("--seconds", options->seconds, "time to measure each pair for (default 1s)")
      ->type_name("TIME");
  command->callback([&context, options] {
    context.action = [&context, options] { return run_paper(context, *options); };
  });
  return command;
}

}  // namespace cli
