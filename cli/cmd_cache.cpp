// `flashwright cache`: work on the stores of kernels and of tuning results.
#include <fmt/format.h>

#include <memory>

#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

Json ask_cache(Context& context, const char* operation, const std::string& argument) {
  return ask([&](char** text) {
    return flashwright_cache(context.engine(), operation, argument.c_str(), text);
  });
}

void print_path(const Json& report) {
  for (const auto& [name, store] : report.items()) {
    const std::string trouble = store.value("trouble", "");
    print_field(name,
                fmt::format("{}{}", store.value("path", ""),
                            trouble.empty() ? "" : fmt::format(" (not in use: {})", trouble)));
  }
}

void print_list(const Json& report) {
  Table kernels({"key", "kernel", "kind", ">size", ">compiled in"});
  double bytes = 0;
  for (const Json& kernel : report["kernels"]) {
    kernels.add({kernel.value("key", "").substr(0, 12), kernel.value("label", ""),
                 kernel.value("kind", ""), bytes_text(kernel.value("bytes", 0.0)),
                 time_text(kernel.value("compile_ms", 0.0) * 1e3)});
    bytes += kernel.value("bytes", 0.0);
  }
  const auto count = static_cast<std::int64_t>(report["kernels"].size());
  print(fmt::format("{}, {}\n", counted(count, "kernel"), bytes_text(bytes)));
  if (!kernels.empty()) print(kernels.text(2));
  Table tuning({"slot", ">trials", "winner", ">gain", "grade"});
  for (const Json& slot : report["tuning"]) {
    const Json decision = slot.value("decision", Json::object());
    tuning.add({slot.value("slot", ""), std::to_string(slot.value("trials", 0)),
                decision.value("schedule", "-"),
                decision.contains("gain") ? percent_text(decision.value("gain", 0.0)) : "-",
                decision.value("grade", "-")});
  }
  print(fmt::format("\n{}\n",
                    counted(static_cast<std::int64_t>(report["tuning"].size()), "tuned slot")));
  if (!tuning.empty()) print(tuning.text(2));
}

void print_show(const Json& report) {
  for (const Json& kernel : report["kernels"]) {
    for (const char* name : {"key", "label", "target", "kind", "toolchain"})
      print_field(name, kernel.value(name, ""));
    print_field("size", bytes_text(kernel.value("bytes", 0.0)));
    print_field("compiled", "in " + time_text(kernel.value("compile_ms", 0.0) * 1e3));
    print("\n");
  }
}

void print_import(const Json& report) {
  for (const auto& [name, part] : report.items()) {
    print_field(name, fmt::format("{} added, {} known already, {} refused", part.value("added", 0),
                                  part.value("known", 0), part.value("refused", 0)));
    for (const Json& problem : part["problems"]) print_field("", problem.get<std::string>());
  }
}

Exit run_simple(Context& context, const char* operation, const std::string& argument,
                void (*show)(const Json&)) {
  const Json report = ask_cache(context, operation, argument);
  if (context.json) {
    print_json(report);
  } else {
    show(report);
  }
  return Exit::ok;
}

Exit run_verify(Context& context) {
  const Json report = ask_cache(context, "verify", "");
  const bool good = report.value("bad", 0) == 0 && report["file"].empty();
  if (context.json) {
    print_json(report);
    return good ? Exit::ok : Exit::check_failed;
  }
  print(fmt::format("{} intact, {} damaged{}\n", counted(report.value("good", 0), "kernel"),
                    report.value("bad", 0),
                    report.value("bad", 0) > 0
                        ? " and dropped; they are compiled again when they are needed"
                        : ""));
  for (const Json& line : report["file"]) print_field("file", line.get<std::string>());
  return good ? Exit::ok : Exit::check_failed;
}

Exit run_import(Context& context, const std::string& file) {
  const Json report = ask_cache(context, "import", file);
  bool refused = false;
  for (const auto& [name, part] : report.items()) refused = refused || part.value("refused", 0) > 0;
  if (context.json) {
    print_json(report);
  } else {
    print_import(report);
  }
  return refused ? Exit::check_failed : Exit::ok;
}

Exit run_prune(Context& context, const std::string& size) {
  const std::string keep = size.empty() ? "" : std::to_string(bytes_value("cache prune", size));
  return run_simple(context, "prune", keep, [](const Json& report) {
    print(fmt::format("dropped {}; {} remain\n", counted(report.value("dropped", 0), "kernel"),
                      bytes_text(report.value("bytes", 0.0))));
  });
}

Exit run_export(Context& context, const std::string& file, bool decisions) {
  if (decisions)
    return run_simple(context, "export-decisions", file, [](const Json& report) {
      print(fmt::format("exported {} of {}\n", counted(report.value("decisions", 0), "decision"),
                        report.value("device", "")));
    });
  return run_simple(context, "export", file, [](const Json& report) {
    print(fmt::format("exported {} and {}\n", counted(report.value("kernels", 0), "kernel"),
                      counted(report.value("tuning", 0), "tuning record")));
  });
}

}  // namespace

void add_cache(CLI::App& app, Context& context) {
  CLI::App* const cache =
      app.add_subcommand("cache", "The stores: path, ls, show, verify, prune, export, import");
  cache->require_subcommand(1);
  cache->add_flag("--json", context.json, "print JSON and nothing else");
  const auto argument = std::make_shared<std::string>();
  const auto add = [&](const char* name, const char* about, std::function<Exit()> action) {
    CLI::App* const command = context.add_command(*cache, name, about);
    command->callback([&context, action = std::move(action)] { context.action = action; });
    return command;
  };
  add("path", "Where the stores are",
      [&context] { return run_simple(context, "path", "", &print_path); });
  add("ls", "Kernels and tuning results",
      [&context] { return run_simple(context, "ls", "", &print_list); });
  add("show", "Kernels whose key begins with KEY",
      [&context, argument] { return run_simple(context, "show", *argument, &print_show); })
      ->add_option("key", *argument, "the start of a key, as `cache ls` prints it")
      ->required();
  add("verify", "Check every kernel against its digest; damaged ones are dropped",
      [&context] { return run_verify(context); });
  add("prune", "Drop the kernels that were not used for longest",
      [&context, argument] { return run_prune(context, *argument); })
      ->add_option("size", *argument,
                   "bytes to keep, e.g. 100M; 0 drops all (default: the store's limit)");
  const auto decisions = std::make_shared<bool>(false);
  CLI::App* const write =
      add("export", "Write both stores to a file of JSON lines",
          [&context, argument, decisions] { return run_export(context, *argument, *decisions); });
  write->add_option("file", *argument, "the file")->required();
  write->add_flag("--decisions", *decisions,
                  "only the measured winners of one device, one short line each, as share/tuned/ "
                  "holds them");
  context.add_device(*write);
  add("import",
      "Add the records of an exported file; nothing is executed or trusted beyond its digest",
      [&context, argument] { return run_import(context, *argument); })
      ->add_option("file", *argument, "the file")
      ->required();
}

}  // namespace cli
