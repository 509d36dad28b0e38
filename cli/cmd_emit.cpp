// `flashwright emit` and `flashwright compile`: the text of a kernel, and what a compiler makes of it.
#include <fmt/format.h>

#include <memory>

#include "cli/config_flags.hpp"
#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/files.hpp"
#include "cli/tuning.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

struct EmitOptions {
  ConfigFlags config;
  ShapeFlags shape;
  std::string output;
};

std::shared_ptr<EmitOptions> add_options(Context& context, CLI::App* command, const char* output) {
  auto options = std::make_shared<EmitOptions>();
  options->config.add_to(*command);
  options->shape.add_to(*command);
  context.add_device(*command);
  command->add_option("-o,--output", options->output, output)->type_name("FILE");
  return options;
}

Exit run_emit(Context& context, const EmitOptions& options) {
  const ConfigInput input = read_config(options.config);
  const std::optional<flashwright_shape> shape = read_shape(options.shape);
  char* emitted = nullptr;
  flashwright::check(
      flashwright_emit(context.engine(), input.text().c_str(), pointer_to(shape), &emitted));
  const std::string text = flashwright::take(emitted);
  if (!options.output.empty()) write_file("-o", options.output, text);
  if (context.json) {
    Json out = {{"config", ask([&](char** answer) {
                   return flashwright_normalise(context.engine(), input.text().c_str(), answer);
                 })},
                {"bytes", text.size()}};
    if (options.output.empty()) out["text"] = text;
    if (!options.output.empty()) out["file"] = options.output;
    print_json(out);
  } else if (options.output.empty()) {
    print(text);
  } else {
    print(fmt::format("wrote {} ({})\n", options.output,
                      bytes_text(static_cast<double>(text.size()))));
  }
  return Exit::ok;
}

void print_compiled(const Json& report, const std::string& output) {
  const Json& resources = report["resources"];
  const auto bytes = [&](const char* name) { return bytes_text(resources.value(name, 0.0)); };
  print_field("kernel", fmt::format("{}, schedule {}", report.value("problem", ""),
                                    report.value("schedule", "")));
  print_field("chosen", choice_text(report.value("chosen_by", "")));
  const bool stored = report.value("from_store", false);
  print_field("compiler", report.value("toolchain", ""));
  print_field("time", stored ? fmt::format("served from the store; compiled once in {}",
                                           time_text(report.value("compile_ms", 0.0) * 1e3))
                             : fmt::format("compiled in {}",
                                           time_text(report.value("compile_ms", 0.0) * 1e3)));
  if (report.value("target", "").starts_with("cpu")) {
    print_field("resources", fmt::format("vector spills {}, stack {}", bytes("spill_bytes"),
                                         bytes("stack_bytes")));
  } else {
    print_field(
        "resources",
        fmt::format("{} registers a thread, spills {}, stack {}, shared memory {}",
                    resources.value("registers", 0), bytes("spill_bytes"), bytes("stack_bytes"),
                    bytes_text(resources.value("static_smem_bytes", 0.0) +
                               resources.value("dynamic_smem_bytes", 0.0))));
  }
  print_field("binary", fmt::format("{}, {}, key {}", report.value("kind", ""),
                                    bytes_text(report.value("bytes", 0.0)),
                                    report.value("key", "").substr(0, 16)));
  for (const Json& warning : report["warnings"]) print_field("warning", warning.get<std::string>());
  if (report["warnings"].empty()) print_field("warnings", "none");
  if (!output.empty()) print_field("wrote", output);
}

Exit run_compile(Context& context, const EmitOptions& options) {
  const ConfigInput input = read_config(options.config);
  const std::optional<flashwright_shape> shape = read_shape(options.shape);
  char* binary = nullptr;
  std::size_t bytes = 0;
  Json report = ask([&](char** text) {
    return flashwright_compile(context.engine(), input.text().c_str(), pointer_to(shape), text,
                               options.output.empty() ? nullptr : &binary, &bytes);
  });
  const std::unique_ptr<char, decltype(&flashwright_free)> owned(binary, &flashwright_free);
  if (!options.output.empty()) write_file("-o", options.output, {binary, bytes});
  if (context.json) {
    if (!options.output.empty()) report["file"] = options.output;
    print_json(report);
  } else {
    print_compiled(report, options.output);
  }
  return Exit::ok;
}

}  // namespace

void add_emit(CLI::App& app, Context& context) {
  CLI::App* const command = context.add_command(
      app, "emit",
      "Print the kernel: CUDA C++, or LLVM IR for a CPU. Needs no GPU and no compiler");
  const auto options =
      add_options(context, command, "file for the text (default: standard output)");
  command->callback([&context, options] {
    context.action = [&context, options] { return run_emit(context, *options); };
  });
}

void add_compile(CLI::App& app, Context& context) {
  CLI::App* const command = context.add_command(
      app, "compile",
      "Compile the kernel for any known target: registers, spills, shared memory, time");
  const auto options = add_options(context, command, "file for the machine code");
  command->callback([&context, options] {
    context.action = [&context, options] { return run_compile(context, *options); };
  });
}

}  // namespace cli
