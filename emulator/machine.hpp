// A block of a launch, or the blocks of a cluster: their threads as fibers, their shared memory, and the
// rules of the wrappers. A machine belongs to one thread of the host and is used for one cluster after
// another.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_map.hpp"
#include "emulator/async.hpp"
#include "emulator/bank_counter.hpp"
#include "emulator/fiber.hpp"
#include "emulator/finding.hpp"
#include "emulator/global_memory.hpp"
#include "emulator/host_unit.hpp"
#include "emulator/races.hpp"

namespace flashwright::emulator {

// In which order threads run and what is asynchronous happens, all within what the hardware may do.
//   early    warps in order; copies and products happen when they are issued
//   late     warps in reverse order; they happen when they are waited for
//   random   warps take turns at random; they happen at any time between
//   skew     one warp runs as far ahead as it can; they happen when they are waited for
enum class Mode : std::uint8_t { early, late, random, skew };
const char* to_string(Mode mode);

struct BlockOptions {
  Mode mode = Mode::early;
  bool races = false;
  std::uint64_t seed = 0;
  std::int64_t max_steps = 0;  // wrapper calls of one cluster
};

// What a launch gives to each block.
struct BlockShape {
  int threads = 0, smem_bytes = 0;
  int cluster = 1;          // blocks that run together
  int registers = 255;      // of a thread at the start
  std::int64_t blocks = 1;  // of the grid
};

class Machine {
 public:
  Machine(const Translation& translation, GlobalMemory& memory, const BlockShape& shape,
          const BlockOptions& options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // `block` is the first of its cluster.
  void run_cluster(HostUnit::Entry entry, const void* params, std::int64_t block);

  const Findings& findings() const { return findings_; }
  const Conflicts& conflicts() const { return conflicts_; }
  std::int64_t steps() const { return all_steps_; }
  std::int64_t stopped_blocks() const { return stopped_blocks_; }  // of all clusters

  // What the wrappers call, in the fiber of the thread that calls.
  static Machine& current();
  static void tick();
  int thread_in_block() const { return thread_ % shape_.threads; }
  int thread() const { return thread_; }
  int block_in_cluster() const { return thread_ / shape_.threads; }
  std::int64_t block() const { return block_ + block_in_cluster(); }
  std::int64_t blocks_of_grid() const { return shape_.blocks; }
  unsigned shared_begin() const { return shared_begin_; }
  void count_step(std::uint32_t site);
  void maybe_yield();
  // Meets the other lanes of a warp, or the other threads of a warpgroup; the last one runs `all` for
  // every one, on what each has given.
  using Operands = std::span<void* const>;
  using Together = void (*)(Machine&, const Operands&);
  void meet(std::uint32_t site, void* operands, Together all);
  void meet_warpgroup(std::uint32_t site, void* operands, Together all);
  void join_warp();                  // the clocks of the running warp
  void touched(std::uint32_t site);  // a register of a product that is under way was used

  // machine_memory.cpp
  void load_shared(void* value, unsigned address, int bytes, std::uint32_t site, int thread);
  void store_shared(unsigned address, const void* value, int bytes, std::uint32_t site, int thread);
  void count_banks(unsigned address, int bytes, std::uint32_t site);
  void load_global(void* value, const void* address, int bytes, std::uint32_t site);
  void store_global(void* address, const void* value, int bytes, std::uint32_t site);
  std::uint64_t compare_and_swap(unsigned long long* address, std::uint64_t expected,
                                 std::uint64_t value, std::uint32_t site);
  std::uint32_t increment_within(std::uint32_t* address, std::uint32_t last, std::uint32_t site);
  void copy_async(unsigned shared, const void* global, bool valid, std::uint32_t site);
  void commit_copies(std::uint32_t site);
  void wait_copies(int pending, std::uint32_t site);
  void add_conflicts(std::uint32_t site, int count) { conflicts_[site] += count; }

  // machine_barriers.cpp
  void synchronize_block(std::uint32_t site);
  void synchronize_named(int barrier, int threads, std::uint32_t site);
  void arrive_named(int barrier, int threads, std::uint32_t site);
  void synchronize_cluster(std::uint32_t site);
  unsigned address_in_block(unsigned address, unsigned rank, std::uint32_t site);
  void init_barrier(unsigned address, int count, std::uint32_t site);
  void publish_barriers(std::uint32_t site);
  void arrive(unsigned address, int bytes, bool remote, std::uint32_t site);
  void wait_barrier(unsigned address, unsigned parity, std::uint32_t site);
  void set_registers(int registers, bool more, std::uint32_t site);
  int elected_lane() const;

  // machine_bulk.cpp
  void fence_async_shared(std::uint32_t site);
  void load_box(unsigned shared, const void* map, unsigned barrier, const int* at, int rank,
                unsigned blocks, std::uint32_t site);
  void load_row(unsigned shared, const void* global, int bytes, unsigned barrier,
                std::uint32_t site);
  void store_box(const void* map, unsigned shared, const int* at, int rank, bool add,
                 std::uint32_t site);
  void store_row(void* global, unsigned shared, int bytes, bool add, std::uint32_t site);
  void commit_stores(std::uint32_t site);
  void wait_stores(int pending, std::uint32_t site);

  // machine_products.cpp
  void fence_products(std::uint32_t site);
  void start_product(const Product& shape, float* d, const std::uint32_t* a_registers,
                     std::uint32_t site);
  void commit_products(std::uint32_t site);
  void wait_products(int pending, std::uint32_t site);

 private:
  static constexpr int kRemoteShift = 24;  // addresses of other blocks hold rank + 1 above
  static constexpr int kWarpgroup = 128, kAgents = 96, kNamedBarriers = 16;
  enum class State : std::uint8_t {
    ready,
    at_meeting,
    at_barrier,
    at_named_barrier,
    at_cluster_barrier,
    at_memory_barrier,
    at_registers,
    exited
  };
  enum class Use : std::uint8_t { read, write, both };
  enum class Byte : std::uint8_t { uninitialised, initialised, in_flight, barrier };

  struct Copy {
    unsigned place;
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
    std::vector<BulkStore> open_stores;
    std::deque<std::vector<BulkStore>> store_groups;
    std::vector<std::pair<unsigned, int>> unfenced;  // places and bytes it has written
    unsigned barrier = 0;                            // the place of the one it waits at
    unsigned parity = 0;
    int named = 0;  // the named barrier it waits at
  };
  struct Meeting {
    int arrived = 0;
    std::uint32_t site = 0;
    std::vector<void*> operands;
  };
  struct Warp {
    Meeting meeting;
    int priority = 0;
  };
  struct NamedBarrier {
    int expected = 0, arrived = 0;
    std::uint32_t site = 0;  // of the first
    std::vector<bool> here;  // by thread of the block
    Clock gathering, ended;  // what was handed on: in all, and up to the last meeting
  };
  struct Block {
    int at_barrier = 0;
    std::uint32_t barrier_site = 0;
    int exited = 0;
    std::array<NamedBarrier, kNamedBarriers> named;
    int free_registers = 0;
    std::vector<Access> from_peers;  // what other blocks of the cluster did to its memory
    std::vector<Access> loads;       // its own, as far as they have arrived
  };

  static void begin_thread();
  void reset(std::int64_t block);
  void schedule();
  int choose_warp();
  void shuffle_priorities();
  void enter(int thread);
  void leave();  // to another lane, or to the scheduler
  void stop();   // for good: after a finding that leaves nothing to go on with
  void wait_in(State state);
  void finish_cluster();  // what has to hold when all have exited
  void finish_thread(int thread);
  void finish_block(int block);
  void note_peer(int block, int slot, std::uint32_t site);
  void report_stuck();  // nobody can go on
  std::string waiting_text() const;
  std::string wait_text(const Thread& thread) const;
  std::string who(int thread) const;
  std::string at(std::uint32_t site) const { return describe(translation_, site); }
  std::string address_text(unsigned place) const;
  void meet_all(Meeting& meeting, int first, int count, std::uint32_t site, void* operands,
                Together all);

  // Where an address lies in the memory of the cluster; nothing, and a finding, when it is outside.
  std::optional<unsigned> place_of(unsigned address, int bytes, int alignment, bool remote,
                                   std::uint32_t site, int thread);
  void check_values(unsigned place, int bytes, std::uint32_t site, int thread);
  bool check_no_barrier(unsigned place, int bytes, std::uint32_t site, int thread);
  void report_race(const Access* earlier, const char* access, std::uint32_t site, int thread,
                   unsigned place);
  bool check_global(const void* address, int bytes, std::uint32_t site, Use use);
  bool check_range(const void* address, int bytes, std::uint32_t site, Use use);  // aligned or not
  void wrote(unsigned place, int bytes, int thread);
  void set_bytes(unsigned place, int bytes, Byte state);
  void arrive(Copy& copy);
  void complete_oldest(Thread& thread);

  MemoryBarrier* barrier_at(unsigned address, bool remote, unsigned& place, std::uint32_t site);
  void end_phase_if_complete(unsigned place, MemoryBarrier& barrier);
  void misuse(std::uint32_t site, const std::string& text);
  NamedBarrier& come_to(int barrier, int threads, std::uint32_t site);
  void end_named(NamedBarrier& barrier, int number);
  void report_bytes();

  bool check_async_read(unsigned place, int bytes, std::uint32_t site);
  bool async_pending() const { return !loads_.empty(); }
  void start_load(const std::vector<Piece>& pieces, const SharedTile& tile, unsigned barrier,
                  unsigned blocks, std::uint32_t site);
  void start_load_in(int block, const std::vector<Piece>& pieces, unsigned barrier,
                     std::int64_t bytes, std::uint32_t site);
  void complete_load(std::size_t index);
  bool complete_some_load();
  void start_store(std::vector<Piece> pieces, const SharedTile& tile, AddType add,
                   std::uint32_t site);
  void complete_store(BulkStore& store);
  void end_store(BulkStore& store, int thread);
  bool decode(const void* map, int rank, std::uint32_t site, TensorMapSpec& spec);
  void check_box_start(const TensorMapSpec& spec, int x, std::uint32_t site);
  void check_stored_box(const TensorMapSpec& spec, const int* at_element, std::uint32_t site);
  bool place_pieces(std::vector<Piece>& pieces, const SharedTile& tile, std::uint32_t site);

  // Four warps of one block; the last of a block may have fewer.
  int warpgroup_index() const {
    return block_in_cluster() * warpgroups_per_block_ + thread_in_block() / kWarpgroup;
  }
  int warpgroup_begin() const {
    return block_in_cluster() * shape_.threads + thread_in_block() / kWarpgroup * kWarpgroup;
  }
  int warpgroup_size() const {
    return std::min(kWarpgroup, (block_in_cluster() + 1) * shape_.threads - warpgroup_begin());
  }
  Warpgroup& warpgroup() { return warpgroups_[static_cast<std::size_t>(warpgroup_index())]; }
  int warpgroup_agent() const;
  void begin_product(Product product, float* const* d);
  bool find_places(Product& product, std::uint64_t descriptor, bool k_major, int rows);
  void read_operand(std::uint64_t descriptor, bool k_major, int rows, bool bf16, float* to);
  void complete_product(Product& product);
  void retire_product(Product& product);
  void complete_products(std::size_t groups_left);

  Warp& warp() { return warps_[static_cast<std::size_t>(thread_ / 32)]; }
  Thread& self() { return threads_[static_cast<std::size_t>(thread_)]; }
  Block& own_block() { return blocks_[static_cast<std::size_t>(block_in_cluster())]; }
  bool chance(int one_in) { return random_() % static_cast<std::uint64_t>(one_in) == 0; }

  const Translation& translation_;
  GlobalMemory& memory_;
  const BlockShape shape_;
  const BlockOptions options_;
  // Not 0, so that an address computed from 0 is noticed; aligned as the kernel asks and no more.
  const unsigned shared_begin_;
  Findings findings_;
  Conflicts conflicts_;
  BankCounter banks_;
  Stacks stacks_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  int warpgroups_per_block_;
  std::vector<Warpgroup> warpgroups_;
  std::vector<Meeting> warpgroup_meetings_;
  std::vector<Block> blocks_;
  std::vector<unsigned char> shared_;
  std::vector<Byte> bytes_;
  std::vector<std::uint16_t>
      unfenced_;  // by byte: the thread that wrote it without a fence since, + 1
  std::map<unsigned, MemoryBarrier> barriers_;  // by place
  std::vector<BulkLoad> loads_;                 // on their way
  Races races_;
  std::mt19937_64 random_;
  HostUnit::Entry entry_ = nullptr;
  const void* params_ = nullptr;
  Fiber scheduler_ = nullptr;
  std::int64_t block_ = 0, steps_ = 0, all_steps_ = 0, ticks_ = 0, stopped_blocks_ = 0;
  int thread_ = 0;
  int at_cluster_barrier_ = 0;
  bool stopped_ = false;
};

// The table of functions that units are bound to.
const FwEmulator& interface();

}  // namespace flashwright::emulator
