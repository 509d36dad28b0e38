#include "tests/conformance/run_device.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <iostream>
#include <thread>

#include "core/error.hpp"
#include "core/expr_parse.hpp"
#include "runtime/cuda/nvrtc.hpp"

namespace flashwright::conformance {
namespace {

// Memory of a device with a copy of some bytes.
class DeviceBytes {
 public:
  DeviceBytes(Backend& backend, const Bytes& bytes, int device)
      : backend_(backend), device_(device), memory_(backend.allocate(device, bytes.size())) {
    backend.copy_in(device, memory_, bytes.data(), bytes.size());
  }
  ~DeviceBytes() {
    try {
      backend_.deallocate(device_, memory_);
    } catch (const Error&) {
      // The context is dead, and its memory with it; what killed it is on its way to the caller.
    }
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  unsigned char* get() const { return static_cast<unsigned char*>(memory_); }

 private:
  Backend& backend_;
  int device_;
  void* memory_;
};

// Runs a compiled case and waits for it.
Bytes output_of(Backend& backend, const DeviceCase& compiled, int device) {
  const Case& c = *compiled.of;
  const DeviceBytes in(backend, c.input, device), out(backend, c.output, device);
  Params params{};
  params.in = in.get();
  params.out = out.get();
  if (c.map) {
    TensorMapSpec spec = c.map->spec;
    spec.base = (c.map->of_output ? out.get() : in.get()) + c.map->offset;
    backend.encode_tensor_map(spec, params.map, device);
  }
  const std::unique_ptr<Module> module =
      backend.load(compiled.binary, compiled.source.plan, device);
  const std::array<StepLaunch, 1> steps = {{{0, c.blocks}}};
  backend.launch(*module, steps, &params, device, nullptr);
  backend.synchronize(device, nullptr);
  Bytes result(c.output.size());
  backend.copy_out(device, result.data(), out.get(), result.size());
  return result;
}

std::string text_of(const Error& error) {
  return error.detail.empty() ? error.message : error.message + "\n" + error.detail;
}

}  // namespace

Source source_of(const Case& c, const std::string& arch) {
  Source source;
  source.target = {BackendKind::cuda, arch};
  source.name = c.name + ".cu";
  source.text = kernel_text(c);
  source.plan.steps = {{kEntry, c.threads, c.smem_bytes, parse_expr(std::to_string(c.blocks))}};
  return source;
}

bool fits(const Case& c, const std::string& arch) {
  return c.needs == Needs::sm_80 || arch == to_string(c.needs);
}

std::vector<DeviceCase> compile_for_device(const std::vector<const Case*>& cases,
                                           const std::string& arch) {
  std::vector<DeviceCase> compiled(cases.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < cases.size(); i = next++) try {
        compiled[i].of = cases[i];
        compiled[i].source = source_of(*cases[i], arch);
        compiled[i].binary = nvrtc::compile(compiled[i].source);
      } catch (const Error& error) {
        compiled[i].fault = text_of(error);
      }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  threads.clear();
  return compiled;
}

DeviceRun run_on_device(Backend& backend, const std::vector<DeviceCase>& cases, int device,
                        GoldenWriter& writer) {
  DeviceRun run;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& c = *cases[i].of;
    writer.begin(c);
    std::cerr << full_name(c) << std::endl;
    if (!cases[i].fault.empty()) {
      run.faults.push_back(fmt::format("{}: not compiled: {}", full_name(c), cases[i].fault));
      continue;
    }
    try {
      const Bytes output = output_of(backend, cases[i], device);
      ++run.ran;
      writer.add(c, output);
      if (const std::string fault = difference_from_manual(c, output); !fault.empty())
        run.faults.push_back(fmt::format("{}: not what the manual says: {}", full_name(c), fault));
    } catch (const Error& error) {
      std::string text = fmt::format("{}: failed on the device: {}", full_name(c), text_of(error));
      if (i + 1 < cases.size()) text += "\nnot run behind it:";
      while (++i < cases.size()) text += "\n  " + full_name(*cases[i].of);
      run.faults.push_back(text);
      return run;
    }
  }
  writer.finish();
  return run;
}

}  // namespace flashwright::conformance
