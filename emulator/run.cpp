#include "emulator/run.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/error.hpp"

namespace flashwright::emulator {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxSharedBytes = 227 * 1024;  // the largest block of any architecture

void check_limits(const LaunchStep& step) {
  if (step.threads < 32 || step.threads > kMaxThreads || step.threads % 32 != 0)
    throw Error(Status::unsupported,
                fmt::format("emulator: {}: {} threads; expected whole warps, at most {} threads",
                            step.entry, step.threads, kMaxThreads));
  if (step.smem_bytes < 0 || step.smem_bytes > kMaxSharedBytes)
    throw Error(Status::unsupported,
                fmt::format("emulator: {}: {} bytes of shared memory; expected at most {}",
                            step.entry, step.smem_bytes, kMaxSharedBytes));
}

void register_arguments(const Arguments& arguments, GlobalMemory& memory) {
  memory.add("q", arguments.q, GlobalMemory::Use::input);
  memory.add("k", arguments.k, GlobalMemory::Use::input);
  memory.add("v", arguments.v, GlobalMemory::Use::input);
  memory.add("o", arguments.o, GlobalMemory::Use::output);
  if (arguments.lse) memory.add("lse", *arguments.lse, GlobalMemory::Use::output);
  const auto list = [&](const char* name, const auto* values, std::int64_t count) {
    memory.add(name, values, static_cast<std::size_t>(count) * sizeof *values,
               GlobalMemory::Use::input);
  };
  if (arguments.rng_state != nullptr) list("rng_state", arguments.rng_state, 2);
  if (!arguments.blocks) return;
  const BlockLists& lists = *arguments.blocks;
  const std::int64_t rows = lists.batch * lists.heads * lists.query_blocks();
  const std::int64_t partial = lists.partial_offsets[rows];
  list("full_offsets", lists.full_offsets, rows + 1);
  list("full_columns", lists.full_columns, lists.full_offsets[rows]);
  list("partial_offsets", lists.partial_offsets, rows + 1);
  list("partial_columns", lists.partial_columns, partial);
  list("partial_bits", lists.partial_bits, partial * lists.block_q * ((lists.block_kv + 31) / 32));
}

// The memory of the host plays that of the device.
Arguments as_on_device(Arguments arguments, BackendKind backend) {
  for (TensorView* view : {&arguments.q, &arguments.k, &arguments.v, &arguments.o})
    view->device = backend;
  if (arguments.lse) arguments.lse->device = backend;
  return arguments;
}

// Blocks are handed out in order; each thread has a machine of its own.
void run_step(const HostUnit& unit, const LaunchStep& step, std::int64_t blocks, const void* params,
              GlobalMemory& memory, const RunOptions& options, Findings& findings,
              Conflicts& conflicts, RunReport& report) {
  const HostUnit::Entry entry = unit.entry(step.entry);
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  const auto work = [&] {
    Machine machine(unit.translation(), memory, step,
                    {options.mode, options.races, options.seed, options.max_steps});
    for (std::int64_t block = next++; block < blocks; block = next++)
      machine.run_block(entry, params, block);
    const std::scoped_lock lock(mutex);
    findings.merge(machine.findings());
    for (const auto& [site, count] : machine.conflicts()) conflicts[site] += count;
    report.steps += machine.steps();
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < options.threads && i < blocks; ++i) helpers.emplace_back(work);
  work();
}

}  // namespace

RunReport run(const HostUnit& unit, const Config& config, const Problem& problem,
              const Arguments& arguments, std::size_t workspace_bytes, const RunOptions& options) {
  const LaunchPlan& plan = unit.translation().plan;
  const ResolvedArguments resolved =
      resolve(config, problem, as_on_device(arguments, problem.target.backend));
  RunReport report;
  if (resolved.empty) return report;
  for (const LaunchStep& step : plan.steps) check_limits(step);
  GlobalMemory memory;
  register_arguments(arguments, memory);
  std::vector<std::uint64_t> workspace((workspace_bytes + 7) / 8 + 32, ~std::uint64_t{0});
  const auto address = (reinterpret_cast<std::uintptr_t>(workspace.data()) + 255) / 256 * 256;
  ParamValues values = resolved.values;
  values.set_pointer(Param::workspace, reinterpret_cast<const void*>(address));
  memory.add("workspace", reinterpret_cast<const void*>(address), workspace_bytes,
             GlobalMemory::Use::workspace);
  alignas(8) unsigned char params[kMaxParamBytes];
  plan.params.fill(values, params);

  Findings findings;
  Conflicts conflicts;
  const auto start = std::chrono::steady_clock::now();
  for (const LaunchStep& step : plan.steps) {
    const auto blocks =
        static_cast<std::int64_t>(Rule(*step.grid, rule_variables())(resolved.rule_values.data()));
    report.blocks += blocks;
    run_step(unit, step, blocks, params, memory, options, findings, conflicts, report);
  }
  report.run_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  report.findings = findings.all();
  for (const auto& [site, count] : conflicts) {
    report.bank_conflicts += count;
    report.conflict_places.push_back(
        fmt::format("{}: {} extra passes", describe(unit.translation(), site), count));
  }
  return report;
}

}  // namespace flashwright::emulator
