// `flashwright doctor`: what this machine has, problems first.
#include <fmt/format.h>

#include "cli/console.hpp"
#include "cli/context.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

struct Problem {
  std::string what, consequence;
};

void add_store_problem(const Json& store, const char* name, const char* consequence,
                       std::vector<Problem>& problems) {
  if (const std::string trouble = store.value("trouble", ""); !trouble.empty())
    problems.push_back(
        {fmt::format("store of {}: {}", name, trouble),
         fmt::format("{} {} names another folder.", consequence, store.value("variable", ""))});
}

std::vector<Problem> problems_of(const Json& report) {
  std::vector<Problem> problems;
  const auto missing = [&](const char* part, const char* name, const char* consequence) {
    if (const std::string why = report[part].value("missing", ""); !why.empty())
      problems.push_back({fmt::format("{}: {}", name, why), consequence});
  };
  missing("driver", "CUDA driver", "No kernel runs on a GPU; emitting and compiling for one work.");
  missing("nvrtc", "NVRTC", "CUDA kernels are emitted, but not compiled.");
  missing("cpu", "CPU backend", "Nothing runs on the CPU.");
  add_store_problem(report["stores"]["kernels"], "kernels",
                    "Compiled kernels are kept for this process only.", problems);
  add_store_problem(report["stores"]["tuning"], "tuning results",
                    "What is tuned is kept for this process only.", problems);
  for (const Json& name : report["unknown_variables"])
    problems.push_back({fmt::format("environment: nothing reads {}", name.get<std::string>()),
                        "It is misspelled, or of another version."});
  return problems;
}

std::string memory_of(const Json& device) {
  std::string text;
  const auto add = [&](const char* field, const char* name) {
    if (const double bytes = device.value(field, 0.0); bytes > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes_text(bytes));
  };
  add("smem_per_block_bytes", "shared");
  add("l1_bytes", "L1");
  add("l2_bytes", "L2");
  return text;
}

void print_devices(const Json& devices) {
  Table table({"target", "name", ">cores", "on-chip memory", ">GHz"});
  for (const Json& device : devices) {
    const double clock = device.value("clock_ghz", 0.0);
    table.add({device.value("target", ""), device.value("name", ""),
               std::to_string(device.value("sm_count", 0)), memory_of(device),
               clock > 0 ? fmt::format("{:.2f}", clock) : "?"});
  }
  print(fmt::format("\nDevices\n{}", table.empty() ? "  none\n" : table.text(2)));
}

// The words of a toolchain's name that people compare; --json has the processor's features as well.
std::string without_features(const std::string& toolchain) {
  return toolchain.substr(0, toolchain.find(" +"));
}

void print_compilers(const Json& report) {
  print("\nCompilers\n");
  const Json& nvrtc = report["nvrtc"];
  if (nvrtc.value("missing", "").empty())
    print(fmt::format("  CUDA  NVRTC {}, {}\n", nvrtc.value("version", "?"),
                      nvrtc.value("path", "")));
  if (const Json& cpu = report["cpu"];
      cpu.contains("toolchain") && cpu.value("missing", "").empty())
    print(fmt::format("  CPU   {}\n", without_features(cpu.value("toolchain", ""))));
  if (report["driver"].value("missing", "").empty())
    print(fmt::format("  CUDA driver {}\n", report["driver"]["version"].dump()));
}

void print_stores(const Json& stores) {
  print("\nStores\n");
  const Json& kernels = stores["kernels"];
  print(fmt::format("  kernels  {}  {} of {}{}\n", kernels.value("path", ""),
                    bytes_text(kernels.value("bytes", 0.0)),
                    bytes_text(kernels.value("max_bytes", 0.0)),
                    kernels.value("writable", true) ? "" : ", not writable"));
  const Json& tuning = stores["tuning"];
  print(fmt::format("  tuning   {}{}\n", tuning.value("path", ""),
                    tuning.value("writable", true) ? "" : "  not writable"));
}

void print_environment(const Json& variables) {
  Table table({"variable", "value", "meaning"});
  for (const Json& variable : variables) {
    const std::string value = variable.value("value", "");
    table.add({variable.value("name", ""), value.empty() ? "-" : value,
               fmt::format("{} (default: {})", variable.value("meaning", ""),
                           variable.value("default", ""))});
  }
  print("\nEnvironment\n" + table.text(2));
}

Exit run_doctor(Context& context) {
  const Json report = ask([&](char** text) { return flashwright_doctor(context.engine(), text); });
  const std::vector<Problem> problems = problems_of(report);
  if (context.json) {
    Json out = report;
    out["problems"] = Json::array();
    for (const Problem& problem : problems) out["problems"].push_back(problem.what);
    print_json(out);
    return Exit::ok;
  }
  print(std::string(flashwright_build_info()) + "\n\n");
  if (problems.empty()) print("Problems: none.\n");
  if (!problems.empty()) print("Problems\n");
  for (const Problem& problem : problems)
    print(fmt::format("  {}\n    {}\n", problem.what, problem.consequence));
  print_devices(report["devices"]);
  print_compilers(report);
  print_stores(report["stores"]);
  print_environment(report["environment"]);
  print(fmt::format("\nProfiles of devices that need not be here (--device): {}\n",
                    fmt::join(report["known_devices"].get<std::vector<std::string>>(), ", ")));
  return Exit::ok;
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  CLI::App* const command = context.add_command(
      app, "doctor", "Devices, compilers, stores and environment of this machine");
  command->callback([&context] { context.action = [&context] { return run_doctor(context); }; });
}

}  // namespace cli
