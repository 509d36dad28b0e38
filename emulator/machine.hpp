// One block of a launch: its threads as fibers, its shared memory, and the rules of the wrappers. A
// machine belongs to one thread of the host and is used for one block after another.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "emulator/fiber.hpp"
#include "emulator/finding.hpp"
#include "emulator/global_memory.hpp"
#include "emulator/host_unit.hpp"
#include "emulator/races.hpp"
#include "emulator/tensor_core.hpp"

namespace flashwright::emulator {

// In which order threads run and asynchronous copies arrive, all within what the hardware may do.
//   early    warps in order; a copy arrives when it is issued
//   late     warps in reverse order; a copy arrives when it is waited for
//   random   warps take turns at random; a copy arrives at issue or at a wait
//   skew     one warp runs as far ahead as it can; a copy arrives when it is waited for
enum class Mode : std::uint8_t { early, late, random, skew };
const char* to_string(Mode mode);

struct BlockOptions {
  Mode mode = Mode::early;
  bool races = false;
  std::uint64_t seed = 0;
  std::int64_t max_steps = 0;  // wrapper calls of one block
};

class Machine {
 public:
  Machine(const Translation& translation, GlobalMemory& memory, const LaunchStep& step,
          const BlockOptions& options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  void run_block(HostUnit::Entry entry, const void* params, std::int64_t block);

  const Findings& findings() const { return findings_; }
  const Conflicts& conflicts() const { return conflicts_; }
  std::int64_t steps() const { return all_steps_; }

  // What the wrappers call, in the fiber of the thread that calls.
  static Machine& current();
  static void tick();
  int thread() const { return thread_; }
  std::int64_t block() const { return block_; }
  unsigned shared_begin() const { return kSharedBegin; }
  void synchronize_block(std::uint32_t site);
  // Meets the other lanes; the last one runs `all` for every lane, on what each has given.
  using Operands = std::array<void*, 32>;
  void meet(std::uint32_t site, void* operands, void (*all)(Machine&, const Operands&));
  void load_shared(void* value, unsigned address, int bytes, std::uint32_t site, int thread);
  void store_shared(unsigned address, const void* value, int bytes, std::uint32_t site);
  void load_global(void* value, const void* address, int bytes, std::uint32_t site);
  void store_global(void* address, const void* value, int bytes, std::uint32_t site);
  void copy_async(unsigned shared, const void* global, bool valid, std::uint32_t site);
  void commit_copies(std::uint32_t site);
  void wait_copies(int pending, std::uint32_t site);
  void count_step(std::uint32_t site);
  void maybe_yield();
  void add_conflicts(std::uint32_t site, int count) { conflicts_[site] += count; }
  void join_warp();  // the clocks of the running warp

 private:
  static constexpr unsigned kSharedBegin = 1024;  // so that an address computed from 0 is noticed
  enum class State : std::uint8_t { ready, at_meeting, at_barrier, exited };
  enum class Byte : std::uint8_t { uninitialised, initialised, in_flight };

  struct Copy {
    unsigned shared;
    const void* global;  // null: zeros
    std::uint32_t site;
    bool arrived;
  };
  struct Thread {
    Fiber fiber = nullptr;
    State state = State::ready;
    std::uint32_t site = 0;  // of the latest wrapper
    std::vector<Copy> open;  // not yet committed
    std::deque<std::vector<Copy>> groups;
  };
  struct Warp {
    int arrived = 0;
    std::uint32_t site = 0;
    Operands operands{};
    int priority = 0;
  };

  static void begin_thread();
  void reset(std::int64_t block);
  void schedule();
  int choose_warp();
  void shuffle_priorities();
  void enter(int thread);
  void leave();         // to another lane, or to the scheduler
  void stop();          // for good: after a finding that leaves nothing to go on with
  void finish_block();  // what has to hold when all have exited
  void report_stuck();  // nobody can go on
  std::string waiting_text() const;
  std::string who(int thread) const;
  std::string at(std::uint32_t site) const { return describe(translation_, site); }
  bool check_shared(unsigned address, int bytes, std::uint32_t site, int thread);
  void check_values(unsigned offset, int bytes, std::uint32_t site, int thread);
  void report_race(const Access* earlier, const char* access, std::uint32_t site, int thread,
                   unsigned address);
  bool check_global(const void* address, int bytes, std::uint32_t site, bool write);
  void arrive(Copy& copy);
  void complete_oldest(Thread& thread);
  Warp& warp() { return warps_[static_cast<std::size_t>(thread_ / 32)]; }
  Thread& self() { return threads_[static_cast<std::size_t>(thread_)]; }

  const Translation& translation_;
  GlobalMemory& memory_;
  const LaunchStep& step_;
  const BlockOptions options_;
  Findings findings_;
  Conflicts conflicts_;
  Stacks stacks_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned char> shared_;
  std::vector<Byte> bytes_;
  Races races_;
  std::mt19937_64 random_;
  HostUnit::Entry entry_ = nullptr;
  const void* params_ = nullptr;
  Fiber scheduler_ = nullptr;
  std::int64_t block_ = 0, steps_ = 0, all_steps_ = 0, ticks_ = 0;
  int thread_ = 0;
  int at_barrier_ = 0;
  std::uint32_t barrier_site_ = 0;
  bool stopped_ = false;
};

// The table of functions that units are bound to.
const FwEmulator& interface();

}  // namespace flashwright::emulator
