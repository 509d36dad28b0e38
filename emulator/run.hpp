// A launch of a translated kernel: every block of every step, and what was found.
#pragma once

#include <string>
#include <vector>

#include "core/arguments.hpp"
#include "emulator/finding.hpp"
#include "emulator/global_memory.hpp"
#include "emulator/host_unit.hpp"
#include "emulator/machine.hpp"

namespace flashwright::emulator {

struct RunOptions {
  Mode mode = Mode::early;
  bool races = false;
  std::uint64_t seed = 0;
  std::int64_t max_steps = 200'000'000;  // wrapper calls of one block
  int threads = 1;                       // of the host; each takes blocks in turn
};

struct ConflictPlace {
  std::string text;  // "load_matrices in f, line 7"
  std::int64_t passes = 0;
};

struct RunReport {
  std::vector<Finding> findings;
  std::int64_t blocks = 0, steps = 0;
  std::int64_t stopped_blocks = 0;  // before their end, so that their outputs mean nothing
  std::int64_t bank_conflicts = 0;  // extra passes over shared memory, in all
  std::vector<ConflictPlace> conflict_places;  // the most first
  double run_ms = 0;
};

// Registers what `arguments` name, in host memory, and runs the plan of the emitted file. Its workspace
// holds no value at the start. Throws Error(unsupported) for a kernel beyond the limits of a block.
RunReport run(const HostUnit& unit, const Config& config, const Problem& problem,
              const Arguments& arguments, const RunOptions& options);

// A launch of translate_entry(): the memory that it may touch is what was added to `memory`. Blocks of
// a cluster (`__cluster_dims__`) run together.
struct EntryLaunch {
  int threads = 0;
  int smem_bytes = 0;
  std::int64_t blocks = 1;
  const void* params = nullptr;
};
RunReport run_entry(const HostUnit& unit, const EntryLaunch& launch, GlobalMemory& memory,
                    const RunOptions& options);

}  // namespace flashwright::emulator
