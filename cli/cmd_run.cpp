// `flashwright run`: attention on arrays from .npy files.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/npy.hpp"
#include "cli/run_inputs.hpp"
#include "cli/tuning.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTuneSeconds = 20;  // of --effort tune, where nothing was measured yet

struct Options {
  ConfigFlags config;
  ShapeFlags shape;
  RunFiles files;
  std::string output, lse;
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

// The tensors of one run with the struct that the library takes.
class Call {
 public:
  Call(RunInputs& inputs, const Options& options) : inputs_(inputs) {
    o_.dtype = inputs.dtype;
    o_.shape = {inputs.q.shape[0], inputs.q.shape[1], inputs.q.shape[2], inputs.v.shape[3]};
    o_.allocate();
    lse_.shape = {inputs.q.shape[0], inputs.q.shape[2], inputs.q.shape[1]};
    lse_.allocate();
    arguments_.size = sizeof arguments_;
    arguments_.seed = inputs.config.seed;
    if (options.offset) arguments_.offset = seed_value("--offset", *options.offset);
    if (options.q_position) {
      arguments_.has_q_position = 1;
      constexpr std::int64_t kMost = std::int64_t{1} << 40;  // the library's own limit is lower
      arguments_.q_position = int_value("--q-position", *options.q_position, -kMost, kMost);
    }
  }

  // Arguments in host memory, or in that of the kernel. Valid until the next call of either.
  const flashwright_arguments* on_host() {
    const std::array<flashwright_tensor, 5> views = {inputs_.q.host_view(), inputs_.k.host_view(),
                                                     inputs_.v.host_view(), o_.host_view(),
                                                     lse_.host_view()};
    if (inputs_.alibi_slopes) slopes_ = inputs_.alibi_slopes->host_view();
    return bind(views, inputs_.blocks.get());
  }
  const flashwright_arguments* on_device(const Place& place) {
    for (Tensor* tensor : all()) tensor->to_device(place);
    if (inputs_.alibi_slopes) {
      inputs_.alibi_slopes->to_device(place);
      slopes_ = inputs_.alibi_slopes->view(place);
    }
    if (inputs_.blocks) blocks_.emplace(place, *inputs_.blocks);
    const std::array<flashwright_tensor, 5> views = {inputs_.q.view(place), inputs_.k.view(place),
                                                     inputs_.v.view(place), o_.view(place),
                                                     lse_.view(place)};
    return bind(views, blocks_ ? blocks_->get() : nullptr);
  }
  void fetch_outputs(const Place& place) {
    o_.from_device(place);
    lse_.from_device(place);
  }
  Tensor& o() { return o_; }
  Tensor& lse() { return lse_; }

 private:
  std::array<Tensor*, 5> all() { return {&inputs_.q, &inputs_.k, &inputs_.v, &o_, &lse_}; }
  const flashwright_arguments* bind(const std::array<flashwright_tensor, 5>& views,
                                    const flashwright_blocks* blocks) {
    views_ = views;
    arguments_.q = &views_[0];
    arguments_.k = &views_[1];
    arguments_.v = &views_[2];
    arguments_.o = &views_[3];
    arguments_.lse = &views_[4];
    arguments_.blocks = blocks;
    arguments_.alibi_slopes = inputs_.alibi_slopes ? &slopes_ : nullptr;
    return &arguments_;
  }

  RunInputs& inputs_;
  Tensor o_, lse_;
  std::array<flashwright_tensor, 5> views_{};
  flashwright_tensor slopes_{};
  std::optional<PlacedBlocks> blocks_;
  flashwright_arguments arguments_{};
};

Json check(const std::string& config, Call& call, std::int64_t rows) {
  return ask(
      [&](char** text) { return flashwright_check(config.c_str(), call.on_host(), rows, text); });
}

// Gets the kernel, launches it, and brings the outputs to the host; what is known about it goes to `report`.
void compute(Context& context, const Options& options, const RunInputs& inputs, Call& call,
             Json& report) {
  const std::int64_t repeat = int_value("--repeat", options.repeat, 1, 1000000);
  const flashwright_effort effort = effort_of(options.effort);
  const std::string config = inputs.config.text();
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

// Both outputs are complete before the first takes its name.
void write_outputs(const Options& options, const RunInputs& inputs, Call& call,
                   std::vector<OutputFile>& files) {
  std::size_t next = 0;
  if (!options.output.empty())
    write_npy(files[next++], inputs.output_type, call.o().shape,
              output_bytes(call.o(), inputs.output_type));
  if (!options.lse.empty()) write_npy(files[next++], "<f4", call.lse().shape, call.lse().host);
  for (OutputFile& file : files) file.commit();
}

std::string check_text(const Json& check) {
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

Exit run_run(Context& context, const Options& options) {
  if (!options.output.empty() && options.output == options.lse)
    bad_value("--lse", options.lse, "another file than that of -o");
  const std::int64_t rows =
      options.check_rows ? int_value("--check-rows", *options.check_rows, 1, 1 << 30) : 1000;
  RunInputs inputs = read_inputs(options.files, options.config, options.shape);
  for (const std::string& text : inputs.notes) note(context, text);
  Call call(inputs, options);
  std::vector<OutputFile>
      files;  // opened before the work, so that a folder that cannot be written fails early
  if (!options.output.empty()) files.emplace_back("-o", options.output);
  if (!options.lse.empty()) files.emplace_back("--lse", options.lse);
  // The reference makes the checks of a launch; shapes that do not fit are refused before anything is compiled.
  if (inputs.q.elements() > 0) check(inputs.config.text(), call, 1);

  Json report;
  compute(context, options, inputs, call, report);
  if (options.check || options.check_rows)
    report["check"] = check(inputs.config.text(), call, rows);
  const bool passed = !report.contains("check") || report["check"].value("passed", false);
  if (passed) write_outputs(options, inputs, call, files);
  if (passed)
    for (const OutputFile& file : files) report["outputs"].push_back(file.path());
  if (context.json) {
    report["notes"] = inputs.notes;
    print_json(report);
    return passed ? Exit::ok : Exit::check_failed;
  }
  print_report(report, inputs);
  if (passed && !options.output.empty())
    print_field("wrote", fmt::format("{} {} '{}'", options.output,
                                     shape_text(call.o().shape.data(), call.o().shape.size()),
                                     inputs.output_type));
  if (passed && !options.lse.empty())
    print_field("wrote", fmt::format("{} {} '<f4'", options.lse,
                                     shape_text(call.lse().shape.data(), call.lse().shape.size())));
  if (!passed && !files.empty()) print_field("outputs", "not written, as the check failed");
  return passed ? Exit::ok : Exit::check_failed;
}

}  // namespace

void add_run(CLI::App& app, Context& context) {
  CLI::App* const command =
      context.add_command(app, "run", "Compute attention on .npy arrays (batch, seq, heads, dim)");
  const auto options = std::make_shared<Options>();
  options->config.add_to(*command);
  options->shape.add_to(*command);
  command->add_option("--q", options->files.q, "queries")->type_name("FILE")->required();
  command->add_option("--k", options->files.k, "keys")->type_name("FILE")->required();
  command->add_option("--v", options->files.v, "values")->type_name("FILE")->required();
  command
      ->add_option("-o,--output", options->output, "file for the output (batch, seq, heads, dim)")
      ->type_name("FILE");
  command->add_option("--lse", options->lse, "file for the log-sum-exp (batch, heads, seq), fp32")
      ->type_name("FILE");
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
