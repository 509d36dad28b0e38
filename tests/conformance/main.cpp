// fw_conformance: runs the cases on a device or in the emulator, and compares.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "core/error.hpp"
#include "runtime/cuda/cuda_backend.hpp"
#include "tests/conformance/golden.hpp"
#include "tests/conformance/run_device.hpp"
#include "tests/conformance/run_emulator.hpp"

namespace flashwright::conformance {
namespace {

constexpr const char* kUsage = R"(fw_conformance: small kernels over every wrapper of templates/ptx/

  --list                    the cases: group/name, what they need, the wrappers they are about
  --device --out FOLDER     runs them on the first GPU; writes a golden file for each group
  --emulate --out FOLDER    the same in the emulator
  --compare FILE|FOLDER     the emulator against golden files; exit status 1 when a case differs
  --only TEXT               those whose group/name holds the text
  --skip GROUP/NAME         all but this one; may be repeated
)";

struct Options {
  bool list = false, device = false, emulate = false;
  std::string out, compare, only;
  std::vector<std::string> skip;
};

std::vector<const Case*> selected(const Options& options) {
  std::vector<const Case*> cases;
  for (const Case& c : all_cases()) {
    const std::string name = full_name(c);
    const bool skipped =
        std::find(options.skip.begin(), options.skip.end(), name) != options.skip.end();
    if (!skipped && name.find(options.only) != std::string::npos) cases.push_back(&c);
  }
  return cases;
}

int list(const std::vector<const Case*>& cases) {
  for (const Case* c : cases)
    fmt::print("{:52} {:6}  {}\n", full_name(*c), to_string(c->needs), c->covers);
  fmt::print("{} cases\n", cases.size());
  return 0;
}

int run_device(const Options& options) {
  const std::vector<DeviceInfo> devices = cuda_backend().describe();
  if (devices.empty()) throw Error(Status::unavailable, cuda_backend().device_missing());
  const DeviceInfo& device = devices.front();
  std::vector<const Case*> cases = selected(options);
  std::erase_if(cases, [&](const Case* c) { return !fits(*c, device.target.arch); });
  if (cases.empty()) throw Error(Status::unsupported, "no such case for " + device.target.arch);
  const std::vector<DeviceCase> compiled = compile_for_device(cases, device.target.arch);
  GoldenWriter writer(options.out, {"",
                                    device.name,
                                    device.target.arch,
                                    "CUDA " + cuda::version(),
                                    compiled.front().binary.toolchain,
                                    {}});
  const DeviceRun result = run_on_device(cuda_backend(), compiled, device.index, writer);
  for (const std::string& fault : result.faults) fmt::print("{}\n", fault);
  fmt::print("{} of {} cases on {} ({}), {} not as expected\n", result.ran, cases.size(),
             device.name, device.target.arch, result.faults.size());
  return result.faults.empty() ? 0 : 1;
}

// The result in the emulator's plainest mode; findings are faults.
Emulated run_compiled(const Case& c, const CompiledCase& compiled) {
  if (!compiled.fault.empty()) return {{}, compiled.fault};
  return emulate(c, *compiled.unit, emulator::Mode::early);
}

int run_emulator(const Options& options) {
  const std::vector<const Case*> cases = selected(options);
  const std::vector<CompiledCase> compiled = compile_for_host(cases);
  GoldenWriter writer(options.out, {"", "emulator", "sm_90a", "", emulator::host_compiler(), {}});
  int failed = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = *cases[i];
    const Emulated result = run_compiled(c, compiled[i]);
    std::string fault = result.findings;
    writer.begin(c);
    if (fault.empty()) {
      writer.add(c, result.output);
      fault = difference_from_manual(c, result.output);
    }
    if (!fault.empty()) fmt::print("{}: {}\n", full_name(c), fault);
    failed += fault.empty() ? 0 : 1;
  }
  writer.finish();
  fmt::print("{} cases, {} not as expected\n", cases.size(), failed);
  return failed == 0 ? 0 : 1;
}

int compare(const Options& options) {
  int compared = 0, failed = 0;
  for (const GoldenFile& file : read_golden(options.compare)) {
    std::vector<const Case*> cases = selected(options);
    std::erase_if(cases,
                  [&](const Case* c) { return c->group != file.group || !fits(*c, file.target); });
    const std::vector<CompiledCase> compiled = compile_for_host(cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Emulated result = run_compiled(*cases[i], compiled[i]);
      const std::string fault =
          result.findings.empty() ? difference(*cases[i], file, result.output) : result.findings;
      ++compared;
      if (fault.empty()) continue;
      ++failed;
      fmt::print("{}: {}\n", full_name(*cases[i]), fault);
    }
  }
  fmt::print("{} cases compared, {} differ\n", compared, failed);
  return failed == 0 && compared > 0 ? 0 : 1;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const bool last = i + 1 == argc;
    if (name == "--list")
      options.list = true;
    else if (name == "--device")
      options.device = true;
    else if (name == "--emulate")
      options.emulate = true;
    else if (name == "--out" && !last)
      options.out = argv[++i];
    else if (name == "--compare" && !last)
      options.compare = argv[++i];
    else if (name == "--only" && !last)
      options.only = argv[++i];
    else if (name == "--skip" && !last)
      options.skip.emplace_back(argv[++i]);
    else
      return false;
  }
  const int wanted = options.list + options.device + options.emulate + !options.compare.empty();
  return wanted == 1 && (options.device || options.emulate) == !options.out.empty();
}

int run(const Options& options) {
  if (options.list) return list(selected(options));
  if (selected(options).empty())
    throw Error(Status::bad_argument, "--only " + options.only + ": no such case; see --list");
  if (options.device) return run_device(options);
  if (emulator::host_compiler().empty())
    throw Error(Status::unavailable, "the emulator needs g++ or clang++");
  return options.emulate ? run_emulator(options) : compare(options);
}

}  // namespace
}  // namespace flashwright::conformance

int main(int argc, char** argv) {
  using namespace flashwright::conformance;
  Options options;
  if (!parse(argc, argv, options)) {
    std::cerr << kUsage;
    return 2;
  }
  try {
    return run(options);
  } catch (const flashwright::Error& error) {
    std::cerr << "fw_conformance: " << error.message << "\n" << error.detail;
    return 1;
  }
}
