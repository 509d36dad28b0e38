#include "tests/conformance/run_emulator.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "core/error.hpp"
#include "emulator/tensor_map.hpp"

namespace flashwright::conformance {
namespace {

struct Freed {
  void operator()(std::uint8_t* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::uint8_t, Freed>;

// As a device aligns its memory.
Memory aligned_copy(const Bytes& bytes) {
  constexpr std::size_t kAlignment = 256;
  const std::size_t size = (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
  Memory memory(static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, size + kAlignment)));
  std::copy(bytes.begin(), bytes.end(), memory.get());
  return memory;
}

}  // namespace

std::unique_ptr<emulator::HostUnit> compile_for_host(const Case& c) {
  return std::make_unique<emulator::HostUnit>(
      emulator::translate_entry(kernel_text(c), c.name + ".cu", kEntry));
}

std::vector<CompiledCase> compile_for_host(const std::vector<const Case*>& cases) {
  std::vector<CompiledCase> compiled(cases.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < cases.size(); i = next++) try {
        compiled[i].unit = compile_for_host(*cases[i]);
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

Emulated emulate(const Case& c, const emulator::HostUnit& unit, emulator::Mode mode) {
  const Memory in = aligned_copy(c.input), out = aligned_copy(c.output);
  emulator::GlobalMemory memory;
  memory.add("in", in.get(), c.input.size(), emulator::GlobalMemory::Use::input);
  memory.add("out", out.get(), c.output.size(), emulator::GlobalMemory::Use::output);
  if (c.reads_output) memory.write(out.get(), static_cast<int>(c.output.size()));
  Params params{};
  params.in = in.get();
  params.out = out.get();
  if (c.map) {
    TensorMapSpec spec = c.map->spec;
    spec.base = (c.map->of_output ? out.get() : in.get()) + c.map->offset;
    emulator::encode_tensor_map(spec, params.map);
  }
  const emulator::EntryLaunch launch{c.threads, c.smem_bytes, c.blocks, &params};
  emulator::RunOptions options;
  options.mode = mode;
  options.races = true;
  options.seed = 1;
  options.max_steps = 20'000'000;
  const emulator::RunReport report = run_entry(unit, launch, memory, options);
  Emulated result{Bytes(out.get(), out.get() + c.output.size()), {}};
  for (const emulator::Finding& finding : report.findings)
    result.findings += fmt::format("{}: {} ({} times)\n", emulator::to_string(finding.kind),
                                   finding.text, finding.count);
  return result;
}

}  // namespace flashwright::conformance
