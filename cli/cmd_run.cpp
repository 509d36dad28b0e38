// `flashwright run`: attention on arrays from .npy files.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/npy.hpp"
#include "cli/run_call.hpp"
#include "cli/tuning.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTuneSeconds = 20;  // of --effort tune, where nothing was measured yet

struct RunOptions {
  ConfigFlags config;
  ShapeFlags shape;
  RunFiles files;
  std::string output, lse;  // of a forward run; a backward one reads --lse
  std::string dq, dk, dv;
  std::optional<std::string> effort, q_position, offset, check_rows;
  std::string repeat = "1";
  bool check = false;
};

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

flashwright_effort effort_of(const std::optional<std::string>& text) {
  if (!text || *text == "compile") return FLASHWRIGHT_COMPILE;
  if (*text == "loaded") return FLASHWRIGHT_LOADED;
  if (*text == "cached") return FLASHWRIGHT_CACHED;
  if (*text == "tune") return FLASHWRIGHT_TUNE;
  bad_value("--effort", *text, "loaded, cached, compile, tune");
}

Json check(const std::string& config, Call& call, std::int64_t rows) {
  return ask(
      [&](char** text) { return flashwright_check(config.c_str(), call.on_host(), rows, text); });
}

// Gets the kernel of a Config, launches it and brings the outputs to the host; `report` learns what is known about it.
void compute(Context& context, const RunOptions& options, const RunInputs& inputs,
             const std::string& config, Call& call, Json& report) {
  const std::int64_t repeat = int_value("--repeat", options.repeat, 1, 1000000);
  const flashwright_effort effort = effort_of(options.effort);
  const std::optional<flashwright_shape> shape = inputs.shape();
  Place place;
  place.engine = context.engine(options.effort);
  place.target = inputs.config.config.value("target", "");
  if (effort == FLASHWRIGHT_TUNE && shape) tune_if_untuned(context, config, *shape, kTuneSeconds);

  // Loading the backend and looking at the devices happens once in a process, whatever is asked first.
  Clock::time_point start = Clock::now();
  ask([&](char** text) { return flashwright_normalise(place.engine, config.c_str(), text); });
  report["start_us"] = microseconds_since(start);
  start = Clock::now();
  flashwright_kernel* handle = nullptr;
  flashwright::check(
      flashwright_get_kernel(place.engine, config.c_str(), pointer_to(shape), effort, &handle));
  const flashwright::Kernel kernel(handle);
  report["get_kernel_us"] = microseconds_since(start);
  report["kernel"] = Json::parse(kernel.describe());
  const flashwright::Kernel::Device device = kernel.device();
  place.on_host = !device.cuda;
  place.device_index = device.index;

  const flashwright_arguments* const arguments = call.on_device(place);
  std::size_t bytes = 0;
  flashwright::check(flashwright_kernel_workspace_bytes(kernel.get(), arguments, &bytes));
  report["workspace_bytes"] = bytes;
  const DeviceMemory workspace(place, bytes);
  std::vector<double> times;
  for (std::int64_t i = 0; i < repeat; ++i) {
    const Clock::time_point launched = Clock::now();
    flashwright::check(
        flashwright_kernel_launch(kernel.get(), arguments, workspace.get(), nullptr));
    flashwright::check(flashwright_synchronize(place.engine, place.name(), nullptr));
    times.push_back(microseconds_since(launched));
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  report["time_us"] = times[times.size() / 2];
  report["launches"] = repeat;
  call.fetch_outputs(place);
}

HostBuffer output_bytes(const Tensor& o, const std::string& type) {
  const flashwright::DType to = type == "<f4" ? flashwright::DType::fp32 : o.dtype;
  HostBuffer bytes(o.elements() * bytes_of(to));
  convert(o.dtype, o.host.data(), to, bytes.data(), o.elements());
  return bytes;
}

// What a run writes, and where to.
struct Output {
  const char* flag;
  const std::string* path;
  Tensor* tensor;
  bool in_type_of_inputs;  // otherwise fp32
};

std::vector<Output> outputs_of(const RunOptions& options, RunInputs& inputs) {
  std::vector<Output> all;
  if (!inputs.backward()) {
    all = {{"-o", &options.output, &inputs.o, true}, {"--lse", &options.lse, &inputs.lse, false}};
  } else {
    if (inputs.dq) all.push_back({"--dq", &options.dq, &*inputs.dq, true});
    if (inputs.dk) all.push_back({"--dk", &options.dk, &*inputs.dk, true});
    if (inputs.dv) all.push_back({"--dv", &options.dv, &*inputs.dv, true});
  }
  std::erase_if(all, [](const Output& output) { return output.path->empty(); });
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (*all[i].path == *all[j].path)
        bad_value(all[i].flag, *all[i].path,
                  fmt::format("another file than that of {}", all[j].flag));
  return all;
}

// All outputs are complete before the first takes its name.
void write_outputs(const std::vector<Output>& outputs, const RunInputs& inputs,
                   std::vector<OutputFile>& files) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& tensor = *outputs[i].tensor;
    if (outputs[i].in_type_of_inputs)
      write_npy(files[i], inputs.output_type, tensor.shape,
                output_bytes(tensor, inputs.output_type));
    else
      write_npy(files[i], "<f4", tensor.shape, tensor.host);
  }
  for (OutputFile& file : files) file.commit();
}

std::string gradients_text(const Json& check) {
  std::string text = check.value("passed", false) ? "passed" : "FAILED";
  for (const auto& [name, one] : check["gradients"].items())
    text += fmt::format("; {}: largest error {:.2e}, tolerance {:.2e}{}, {}", name,
                        one.value("error", 0.0), one.value("tolerance", 0.0),
                        one.value("finite", true) ? "" : ", NaN or infinity in other places",
                        counted(one.value("rows", std::int64_t{0}), "row"));
  return text + "; against float64";
}

std::string check_text(const Json& check) {
  if (check.contains("gradients")) return gradients_text(check);
  const std::int64_t rows = check.value("rows", 0);
  if (!check.value("finite", true)) {
    const auto inputs = check.value("non_finite_inputs", std::vector<std::string>());
    const bool values = std::find(inputs.begin(), inputs.end(), "v") != inputs.end();
    return fmt::format(
        "FAILED: NaN or infinity where the reference has none, or the other way round ({}){}",
        counted(rows, "row"),
        inputs.empty() ? ""
                       : fmt::format("; {} hold{} NaN or infinity{}", fmt::join(inputs, ", "),
                                     inputs.size() == 1 ? "s" : "",
                                     values ? ": values have to be finite also where the mask "
                                              "hides their keys"
                                            : ""));
  }
  return fmt::format(
      "{}: largest error {:.2e}, tolerance {:.2e}; lse {} of its bound; {} against float64",
      check.value("passed", false) ? "passed" : "FAILED", check.value("error", 0.0),
      check.value("tolerance", 0.0), percent_text(check.value("lse_error_over_bound", 0.0)),
      counted(rows, "row"));
}

void print_report(const Json& report, const RunInputs& inputs) {
  const Json& kernel = report["kernel"];
  print_field("kernel",
              fmt::format("{}, family {}, schedule {}", kernel.value("problem", ""),
                          kernel.value("family", ""), kernel["selection"].value("schedule", "")));
  print_field("device",
              fmt::format("{} ({})", kernel.value("device", ""), kernel.value("target", "")));
  const bool stored = kernel.value("from_store", false);
  print_field("from",
              fmt::format("{} in {} ({}); starting the backend took {}",
                          stored ? "the store" : "the compiler",
                          time_text(report.value("get_kernel_us", 0.0)),
                          kernel.value("toolchain", ""), time_text(report.value("start_us", 0.0))));
  print_field("chosen", choice_text(kernel["selection"].value("chosen_by", "")));
  print_field(
      "shape",
      fmt::format("batch {}, heads {} (keys: {}), queries {}, keys {}, dims {} and {}",
                  inputs.q.shape[0], inputs.q.shape[2], inputs.k.shape[2], inputs.q.shape[1],
                  inputs.k.shape[1], inputs.q.shape[3], inputs.v.shape[3]));
  const std::int64_t launches = report.value("launches", 1);
  print_field("time", fmt::format("{}{}, workspace {}", time_text(report.value("time_us", 0.0)),
                                  launches > 1 ? fmt::format(", median of {}", launches) : "",
                                  bytes_text(report.value("workspace_bytes", 0.0))));
  if (report.contains("check")) print_field("check", check_text(report["check"]));
}

void refuse(const char* flag, const std::string& given, const char* expected) {
  if (!given.empty()) bad_value(flag, given, expected);
}

// Which files belong to which direction.
RunFiles files_of(const RunOptions& options, bool backward) {
  RunFiles files = options.files;
  if (!backward) {
    constexpr const char* kNothing = "nothing, as the direction is forward";
    refuse("--do", files.d_o, kNothing);
    refuse("--d-lse", files.d_lse, kNothing);
    refuse("--o", files.o, "nothing, as the direction is forward; the output is written to -o");
    refuse("--dq", options.dq, kNothing);
    refuse("--dk", options.dk, kNothing);
    refuse("--dv", options.dv, kNothing);
    return files;
  }
  refuse("-o", options.output, "nothing, as the direction is backward; --o is read");
  if (files.d_o.empty()) bad_value("--do", "", "the gradient of the output, a .npy file");
  files.lse = options.lse;
  if (files.o.empty() != files.lse.empty())
    bad_value(files.o.empty() ? "--o" : "--lse", "",
              "a file, since the other one was given; without both they are computed");
  return files;
}

void set_launch_options(const RunOptions& options, RunInputs& inputs) {
  if (options.offset) inputs.offset = seed_value("--offset", *options.offset);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // the library's own limit is lower
  if (options.q_position)
    inputs.q_position = int_value("--q-position", *options.q_position, -kMost, kMost);
  if (!inputs.backward()) return;
  // Without a file all gradients are computed, to be timed and checked.
  const bool all = options.dq.empty() && options.dk.empty() && options.dv.empty();
  const auto want = [&](const std::string& path, const Tensor& like) {
    std::optional<Tensor> out;
    if (path.empty() && !all) return out;
    out.emplace();
    out->dtype = like.dtype;
    out->shape = like.shape;
    out->allocate();
    return out;
  };
  inputs.dq = want(options.dq, inputs.q);
  inputs.dk = want(options.dk, inputs.k);
  inputs.dv = want(options.dv, inputs.v);
}

Exit run_run(Context& context, const RunOptions& options) {
  const std::int64_t rows =
      options.check_rows ? int_value("--check-rows", *options.check_rows, 1, 1 << 30) : 1000;
  ConfigInput given = read_config(options.config);
  const bool backward = given.config.value("direction", Json()) == "backward";
  RunInputs inputs = read_inputs(files_of(options, backward), std::move(given), options.shape);
  for (const std::string& text : inputs.notes) note(context, text);
  set_launch_options(options, inputs);
  Call call(inputs, inputs.backward());
  const std::vector<Output> outputs = outputs_of(options, inputs);
  std::vector<OutputFile>
      files;  // opened before the work, so that a folder that cannot be written fails early
  for (const Output& output : outputs) files.emplace_back(output.flag, *output.path);
  // The reference makes the checks of a launch; shapes that do not fit are refused before anything is compiled.
  const std::string config = inputs.config.text();
  if (inputs.q.elements() > 0) check(config, call, 1);

  Json report;
  if (inputs.backward() && !inputs.forward_given) {
    Call forward(inputs, false);
    compute(context, options, inputs, inputs.forward_config(), forward, report["forward"]);
  }
  compute(context, options, inputs, config, call, report);
  if (options.check || options.check_rows) report["check"] = check(config, call, rows);
  const bool passed = !report.contains("check") || report["check"].value("passed", false);
  if (passed) write_outputs(outputs, inputs, files);
  if (passed)
    for (const OutputFile& file : files) report["outputs"].push_back(file.path());
  if (context.json) {
    report["notes"] = inputs.notes;
    print_json(report);
    return passed ? Exit::ok : Exit::check_failed;
  }
  print_report(report, inputs);
  for (const Output& output : outputs)
    if (passed)
      print_field("wrote",
                  fmt::format("{} {} '{}'", *output.path,
                              shape_text(output.tensor->shape.data(), output.tensor->shape.size()),
                              output.in_type_of_inputs ? inputs.output_type : "<f4"));
  if (!passed && !files.empty()) print_field("outputs", "not written, as the check failed");
  return passed ? Exit::ok : Exit::check_failed;
}

void add_backward(CLI::App& command, RunOptions& options) {
  const auto file = [&](const char* name, std::string& value, const char* about) {
    command.add_option(name, value, about)->group("Backward")->type_name("FILE");
  };
  file("--do", options.files.d_o, "gradient of the output, with --direction backward");
  file("--o", options.files.o, "output of the forward pass, with --lse; without both: computed");
  file("--d-lse", options.files.d_lse, "gradient of the log-sum-exp, fp32 (default: 0)");
  file("--dq", options.dq, "file for the gradient of the queries");
  file("--dk", options.dk, "file for the gradient of the keys");
  file("--dv", options.dv, "file for the gradient of the values; what has no file is not computed");
}

}  // namespace

void add_run(CLI::App& app, Context& context) {
  CLI::App* const command =
      context.add_command(app, "run", "Compute attention on .npy arrays (batch, seq, heads, dim)");
  const auto options = std::make_shared<RunOptions>();
  options->config.add_to(*command);
  options->shape.add_to(*command);
  command->add_option("--q", options->files.q, "queries")->type_name("FILE")->required();
  command->add_option("--k", options->files.k, "keys")->type_name("FILE")->required();
  command->add_option("--v", options->files.v, "values")->type_name("FILE")->required();
  command
      ->add_option("-o,--output", options->output, "file for the output (batch, seq, heads, dim)")
      ->type_name("FILE");
  command
      ->add_option("--lse", options->lse,
                   "file for the log-sum-exp (batch, heads, seq), fp32; read by a backward run")
      ->type_name("FILE");
  add_backward(*command, *options);
  command->add_flag("--check", options->check, "compare with the float64 reference");
  command
      ->add_option("--check-rows", options->check_rows,
                   "query rows to compare (default 1000); implies --check")
      ->type_name("N");
  command
      ->add_option("--q-position", options->q_position,
                   "position of query 0 among the keys (default: seq_kv - seq_q)")
      ->type_name("N");
  command
      ->add_option("--alibi-slopes", options->files.alibi_slopes,
                   "float32 slopes (heads) or (batch, heads); implies --alibi")
      ->type_name("FILE");
  command->add_option("--offset", options->offset, "of the dropout bits, beside --seed (default 0)")
      ->type_name("N");
  command
      ->add_option("--block-size", options->files.block_size,
                   "size of the blocks made of --mask blocks:FILE (default 128,128)")
      ->type_name("Q,KV");
  command
      ->add_option("--effort", options->effort,
                   "how far to go for the kernel: loaded, cached, compile, tune (default: compile)")
      ->type_name("NAME");
  command->add_option("--repeat", options->repeat, "launches to time (default 1)")->type_name("N");
  command->callback([&context, options] {
    context.action = [&context, options] { return run_run(context, *options); };
  });
}

}  // namespace cli
