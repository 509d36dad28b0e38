// fw_conformance: runs the cases on a device or in the emulator, and compares.
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <thread>

#include "core/error.hpp"
#include "runtime/cuda/cuda_backend.hpp"
#include "runtime/cuda/nvrtc.hpp"
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
)";

struct Options {
  bool list = false, device = false, emulate = false;
  std::string out, compare, only;
};

std::string full_name(const Case& c) { return c.group + "/" + c.name; }

std::vector<const Case*> selected(const Options& options) {
  std::vector<const Case*> cases;
  for (const Case& c : all_cases())
    if (full_name(c).find(options.only) != std::string::npos) cases.push_back(&c);
  return cases;
}

int list(const std::vector<const Case*>& cases) {
  for (const Case* c : cases)
    fmt::print("{:52} {:6}  {}\n", full_name(*c), to_string(c->needs), c->covers);
  fmt::print("{} cases\n", cases.size());
  return 0;
}

// One file for each group, written as soon as the group is complete.
class Writer {
 public:
  Writer(std::string folder, GoldenFile header)
      : folder_(std::move(folder)), file_(std::move(header)) {}
  void add(const Case& c, const Bytes& output) {
    if (c.group != file_.group) finish();
    file_.group = c.group;
    file_.cases[c.name] = golden_case(c, output);
  }
  void finish() {
    if (!file_.cases.empty()) write_golden(folder_, file_);
    file_.cases.clear();
  }

 private:
  std::string folder_;
  GoldenFile file_;
};

// Compiles on all cores; a fault is thrown when its case is asked for.
struct Compiled {
  Source source;
  Binary binary;
  std::string fault;
};
std::vector<Compiled> compile_all(const std::vector<const Case*>& cases, const std::string& arch) {
  std::vector<Compiled> compiled(cases.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < cases.size(); i = next++) try {
        compiled[i].source = source_of(*cases[i], arch);
        compiled[i].binary = nvrtc::compile(compiled[i].source);
      } catch (const Error& error) {
        compiled[i].fault = error.message + "\n" + error.detail;
      }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  threads.clear();
  return compiled;
}

int run_device(const Options& options) {
  const std::vector<DeviceInfo> devices = cuda_backend().describe();
  if (devices.empty()) throw Error(Status::unavailable, cuda_backend().device_missing());
  const DeviceInfo& device = devices.front();
  std::vector<const Case*> cases = selected(options);
  std::erase_if(cases, [&](const Case* c) { return !fits(*c, device.target.arch); });
  if (cases.empty()) throw Error(Status::unsupported, "no such case for " + device.target.arch);
  const std::vector<Compiled> compiled = compile_all(cases, device.target.arch);
  Writer writer(options.out, {"",
                              device.name,
                              device.target.arch,
                              "CUDA " + cuda::version(),
                              compiled.front().binary.toolchain,
                              {}});
  int failed = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = *cases[i];
    std::cerr << full_name(c) << std::endl;  // so that a kernel that hangs is known by its name
    if (!compiled[i].fault.empty()) throw Error(Status::compile_failed, compiled[i].fault);
    const Bytes output = run_on_device(c, compiled[i].source, compiled[i].binary, device.index);
    writer.add(c, output);
    if (const std::string fault = difference_from_manual(c, output); !fault.empty()) {
      ++failed;
      fmt::print("{}: not what the manual says: {}\n", full_name(c), fault);
    }
  }
  writer.finish();
  fmt::print("{} cases on {} ({}), {} not as expected\n", cases.size(), device.name,
             device.target.arch, failed);
  return failed == 0 ? 0 : 1;
}

// The result in the emulator's plainest mode; findings are faults.
Emulated run_compiled(const Case& c, const CompiledCase& compiled) {
  if (!compiled.fault.empty()) return {{}, compiled.fault};
  return emulate(c, *compiled.unit, emulator::Mode::early);
}

int run_emulator(const Options& options) {
  const std::vector<const Case*> cases = selected(options);
  const std::vector<CompiledCase> compiled = compile_for_host(cases);
  Writer writer(options.out, {"", "emulator", "sm_90a", "", emulator::host_compiler(), {}});
  int failed = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = *cases[i];
    const Emulated result = run_compiled(c, compiled[i]);
    std::string fault = result.findings;
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
