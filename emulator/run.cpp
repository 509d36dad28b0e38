#include "emulator/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "core/device_profiles.hpp"
#include "core/error.hpp"
#include "emulator/tensor_map.hpp"

namespace flashwright::emulator {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxSharedBytes = 227 * 1024;  // the largest block of any architecture
constexpr int kMaxCluster = 8;

// `most_shared` bytes: of a block of the target.
void check_limits(const LaunchStep& step, int most_shared) {
  if (step.threads < 32 || step.threads > kMaxThreads || step.threads % 32 != 0)
    throw Error(Status::unsupported,
                fmt::format("emulator: {}: {} threads; expected whole warps, at most {} threads",
                            step.entry, step.threads, kMaxThreads));
  if (step.smem_bytes < 0 || step.smem_bytes > most_shared)
    throw Error(Status::unsupported,
                fmt::format("emulator: {}: {} bytes of shared memory; expected at most {}",
                            step.entry, step.smem_bytes, most_shared));
}

// What the compiler may give a thread at the start.
int first_registers(int threads, int blocks_per_sm) {
  constexpr int kRegisters = 65536, kMost = 256;
  return std::min(kMost, kRegisters / (threads * std::max(1, blocks_per_sm)) / 8 * 8);
}

void register_tensors(const Arguments& arguments, bool backward, GlobalMemory& memory) {
  constexpr auto kInput = GlobalMemory::Use::input, kOutput = GlobalMemory::Use::output;
  const auto given = [&](const char* name, const std::optional<TensorView>& view,
                         GlobalMemory::Use use) {
    if (view) memory.add(name, *view, use);
  };
  memory.add("q", arguments.q, kInput);
  memory.add("k", arguments.k, kInput);
  memory.add("v", arguments.v, kInput);
  memory.add("o", arguments.o, backward ? kInput : kOutput);
  given("lse", arguments.lse, backward ? kInput : kOutput);
  given("alibi_slopes", arguments.alibi_slopes, kInput);
  given("d_o", arguments.d_o, kInput);
  given("d_lse", arguments.d_lse, kInput);
  given("dq", arguments.dq, kOutput);
  given("dk", arguments.dk, kOutput);
  given("dv", arguments.dv, kOutput);
}

void register_lists(const Arguments& arguments, bool backward, GlobalMemory& memory) {
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
  if (!backward) return;
  const std::int64_t columns = lists.batch * lists.heads * lists.key_blocks();
  const std::int64_t partial_rows = lists.partial_query_offsets[columns];
  list("full_query_offsets", lists.full_query_offsets, columns + 1);
  list("full_query_rows", lists.full_query_rows, lists.full_query_offsets[columns]);
  list("partial_query_offsets", lists.partial_query_offsets, columns + 1);
  list("partial_query_rows", lists.partial_query_rows, partial_rows);
  list("partial_query_places", lists.partial_query_places, partial_rows);
}

// The memory of the host plays that of the device.
Arguments as_on_device(Arguments arguments, BackendKind backend) {
  for (TensorView* view : {&arguments.q, &arguments.k, &arguments.v, &arguments.o})
    view->device = backend;
  for (std::optional<TensorView>* view :
       {&arguments.lse, &arguments.alibi_slopes, &arguments.d_o, &arguments.d_lse, &arguments.dq,
        &arguments.dk, &arguments.dv})
    if (*view) (*view)->device = backend;
  return arguments;
}

struct Totals {
  Findings findings;
  Conflicts conflicts;
};

// Clusters are handed out in order; each thread has a machine of its own.
void run_step(const HostUnit& unit, const LaunchStep& step, std::int64_t blocks, const void* params,
              GlobalMemory& memory, const RunOptions& options, Totals& totals, RunReport& report) {
  const HostUnit::Entry entry = unit.entry(step.entry);
  const int cluster = unit.cluster_blocks(step.entry);
  if (cluster < 1 || cluster > kMaxCluster || blocks % cluster != 0)
    throw Error(Status::unsupported,
                fmt::format("emulator: {}: {} blocks in clusters of {}; expected whole clusters of "
                            "at most {}",
                            step.entry, blocks, cluster, kMaxCluster));
  const BlockShape shape{step.threads, step.smem_bytes, cluster,
                         first_registers(step.threads, unit.blocks_per_sm(step.entry)), blocks};
  // Where blocks take work from a counter, those that run first may do the work of all.
  const std::int64_t share = unit.translation().variables.empty() ? 1 : blocks / cluster;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t steps = options.max_steps > kMost / share ? kMost : options.max_steps * share;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  const auto work = [&] {
    Machine machine(unit.translation(), memory, shape,
                    {options.mode, options.races, options.seed, steps});
    for (std::int64_t i = next++; i < blocks / cluster; i = next++)
      machine.run_cluster(entry, params, i * cluster);
    const std::scoped_lock lock(mutex);
    totals.findings.merge(machine.findings());
    for (const auto& [site, count] : machine.conflicts()) totals.conflicts[site] += count;
    report.steps += machine.steps();
    report.stopped_blocks += machine.stopped_blocks();
  };
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::jthread> helpers;
  for (int i = 1; i < options.threads && i < blocks / cluster; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();
  report.blocks += blocks;
  report.run_ms +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// As a module has them once it is loaded.
void start_variables(const HostUnit& unit, GlobalMemory& memory) {
  for (const HostUnit::Variable& variable : unit.variables()) {
    std::memset(variable.data, 0, variable.bytes);
    memory.add(variable.name, variable.data, variable.bytes, GlobalMemory::Use::sums);
  }
}

// The next launch finds what this one has left: it has to be what the first one found.
void check_variables(const HostUnit& unit, const RunReport& report, Findings& findings) {
  if (report.stopped_blocks > 0) return;
  std::uint64_t place = 0;
  for (const HostUnit::Variable& variable : unit.variables()) {
    const auto* bytes = static_cast<const unsigned char*>(variable.data);
    const auto* left = std::find_if(bytes, bytes + variable.bytes, [](auto b) { return b != 0; });
    ++place;
    if (left == bytes + variable.bytes) continue;
    findings.add(Kind::variable_not_reset, place, [&] {
      return fmt::format("byte {} of the variable {} is not 0 behind the launch, as it was before",
                         left - bytes, variable.name);
    });
  }
}

void fill_report(const Totals& totals, const Translation& translation, RunReport& report) {
  report.findings = totals.findings.all();
  // First where nobody can go on: whoever is stuck is the reason of much that is found behind.
  std::stable_partition(report.findings.begin(), report.findings.end(), [](const Finding& finding) {
    return finding.kind == Kind::deadlock || finding.kind == Kind::early_exit;
  });
  for (const auto& [site, count] : totals.conflicts) {
    report.bank_conflicts += count;
    report.conflict_places.push_back({describe(translation, site), count});
  }
  std::stable_sort(
      report.conflict_places.begin(), report.conflict_places.end(),
      [](const ConflictPlace& a, const ConflictPlace& b) { return a.passes > b.passes; });
}

}  // namespace

RunReport run(const HostUnit& unit, const Config& config, const Problem& problem,
              const Arguments& arguments, const RunOptions& options) {
  const LaunchPlan& plan = unit.translation().plan;
  const ResolvedArguments resolved =
      resolve(config, problem, as_on_device(arguments, problem.target.backend));
  RunReport report;
  if (resolved.empty) return report;
  const int most_shared = assumed_device(problem.target).smem_per_block;
  for (const LaunchStep& step : plan.steps) check_limits(step, most_shared);
  GlobalMemory memory;
  const bool backward = problem.direction == Direction::backward;
  register_tensors(arguments, backward, memory);
  register_lists(arguments, backward, memory);
  const std::size_t workspace_bytes =
      plan.workspace == nullptr ? 0
                                : static_cast<std::size_t>(Rule(*plan.workspace, rule_variables())(
                                      resolved.rule_values.data()));
  std::vector<std::uint64_t> workspace((workspace_bytes + 7) / 8 + 32, ~std::uint64_t{0});
  const auto address = (reinterpret_cast<std::uintptr_t>(workspace.data()) + 255) / 256 * 256;
  ParamValues values = resolved.values;
  values.set_pointer(Param::workspace, reinterpret_cast<const void*>(address));
  memory.add("workspace", reinterpret_cast<const void*>(address), workspace_bytes,
             GlobalMemory::Use::workspace);
  start_variables(unit, memory);
  alignas(kTensorMapAlignment) unsigned char params[kMaxParamBytes];
  fill_params(
      plan.params, plan.boxes, values,
      [](const TensorMapSpec& spec, void* map, const void*) { encode_tensor_map(spec, map); },
      nullptr, params);

  Totals totals;
  for (const LaunchStep& step : plan.steps) {
    const auto blocks =
        static_cast<std::int64_t>(Rule(*step.grid, rule_variables())(resolved.rule_values.data()));
    run_step(unit, step, blocks, params, memory, options, totals, report);
  }
  check_variables(unit, report, totals.findings);
  fill_report(totals, unit.translation(), report);
  return report;
}

RunReport run_entry(const HostUnit& unit, const EntryLaunch& launch, GlobalMemory& memory,
                    const RunOptions& options) {
  LaunchStep step = unit.translation().plan.steps.at(0);
  step.threads = launch.threads;
  step.smem_bytes = launch.smem_bytes;
  check_limits(step, kMaxSharedBytes);
  start_variables(unit, memory);
  RunReport report;
  Totals totals;
  run_step(unit, step, launch.blocks, launch.params, memory, options, totals, report);
  fill_report(totals, unit.translation(), report);
  return report;
}

}  // namespace flashwright::emulator
