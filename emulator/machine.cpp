#include "emulator/machine.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace flashwright::emulator {
namespace {

thread_local Machine* machine = nullptr;

}  // namespace

const char* to_string(Mode mode) {
  constexpr const char* kNames[] = {"early", "late", "random", "skew"};
  return kNames[static_cast<int>(mode)];
}

Machine& Machine::current() { return *machine; }

Machine::Machine(const Translation& translation, GlobalMemory& memory, const BlockShape& shape,
                 const BlockOptions& options)
    : translation_(translation),
      memory_(memory),
      shape_(shape),
      options_(options),
      shared_begin_(translation.swizzled ? 1024 : 1040),
      stacks_(shape.threads * shape.cluster),
      threads_(static_cast<std::size_t>(shape.threads * shape.cluster)),
      warps_(threads_.size() / 32),
      warpgroups_per_block_((shape.threads + kWarpgroup - 1) / kWarpgroup),
      warpgroups_(static_cast<std::size_t>(warpgroups_per_block_ * shape.cluster)),
      warpgroup_meetings_(warpgroups_.size()),
      blocks_(static_cast<std::size_t>(shape.cluster)),
      shared_(static_cast<std::size_t>(shape.smem_bytes * shape.cluster)),
      bytes_(shared_.size()),
      unfenced_(translation.asynchronous ? shared_.size() : 0) {}

Machine::~Machine() = default;

void Machine::reset(std::int64_t block) {
  block_ = block;
  steps_ = 0;
  ticks_ = 0;
  at_cluster_barrier_ = 0;
  stopped_ = false;
  random_.seed(options_.seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(block));
  std::fill(shared_.begin(), shared_.end(), static_cast<unsigned char>(0xff));
  std::fill(bytes_.begin(), bytes_.end(), Byte::uninitialised);
  std::fill(unfenced_.begin(), unfenced_.end(), std::uint16_t{0});
  if (options_.races)
    races_ = Races(static_cast<int>(threads_.size()), translation_.asynchronous ? kAgents : 0,
                   static_cast<int>(shared_.size()));
  banks_.clear();
  barriers_.clear();
  loads_.clear();
  std::fill(blocks_.begin(), blocks_.end(), Block());
  std::fill(warps_.begin(), warps_.end(), Warp());
  std::fill(warpgroup_meetings_.begin(), warpgroup_meetings_.end(), Meeting());
  std::fill(warpgroups_.begin(), warpgroups_.end(), Warpgroup());
  for (Warpgroup& group : warpgroups_) group.registers = shape_.registers;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i] = Thread();
    threads_[i].fiber = stacks_.prepare(static_cast<int>(i), &Machine::begin_thread);
  }
  for (std::size_t i = 0; i < warps_.size(); ++i)
    warps_[i].priority = static_cast<int>(options_.mode == Mode::late ? i : warps_.size() - i);
  if (options_.mode == Mode::skew) shuffle_priorities();
}

void Machine::run_cluster(HostUnit::Entry entry, const void* params, std::int64_t block) {
  reset(block);
  entry_ = entry;
  params_ = params;
  Machine* const before = machine;
  machine = this;
  schedule();
  machine = before;
  if (stopped_)
    stopped_blocks_ += shape_.cluster;
  else
    finish_cluster();
  all_steps_ += steps_;
}

void Machine::begin_thread() {
  Machine& self = *machine;
  self.entry_(self.params_);
  self.finish_thread(self.thread_);
  self.self().state = State::exited;
  if (++self.own_block().exited == self.shape_.threads) self.finish_block(self.block_in_cluster());
  self.leave();
}

void Machine::shuffle_priorities() {
  for (Warp& warp : warps_) warp.priority = static_cast<int>(random_() % 1000);
}

// The warp to run next: -1 when none can.
int Machine::choose_warp() {
  int best = -1, choices = 0;
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const auto first = threads_.begin() + static_cast<std::ptrdiff_t>(w * 32);
    if (std::none_of(first, first + 32, [](const Thread& t) { return t.state == State::ready; }))
      continue;
    const int candidate = static_cast<int>(w);
    if (options_.mode == Mode::random) {
      if (chance(++choices)) best = candidate;
    } else if (best < 0 || warps_[w].priority > warps_[static_cast<std::size_t>(best)].priority) {
      best = candidate;
    }
  }
  return best;
}

void Machine::schedule() {
  while (!stopped_) {
    if (options_.mode == Mode::random && !loads_.empty() && chance(4))
      complete_load(random_() % loads_.size());
    const int warp = choose_warp();
    if (warp < 0) {
      if (complete_some_load()) continue;
      break;
    }
    int lane = options_.mode == Mode::random ? static_cast<int>(random_() % 32) : 0;
    while (threads_[static_cast<std::size_t>(warp * 32 + lane)].state != State::ready)
      lane = (lane + 1) % 32;
    thread_ = warp * 32 + lane;
    switch_fiber(&scheduler_, self().fiber);
  }
  const auto exited = [](const Thread& t) { return t.state == State::exited; };
  if (!stopped_ && !std::all_of(threads_.begin(), threads_.end(), exited)) report_stuck();
}

void Machine::enter(int thread) {
  Thread& from = self();
  thread_ = thread;
  switch_fiber(&from.fiber, self().fiber);
}

void Machine::leave() {
  const int first = thread_ / 32 * 32;
  for (int i = 1; i < 32; ++i) {
    const int other = first + (thread_ + i) % 32;
    if (threads_[static_cast<std::size_t>(other)].state == State::ready) return enter(other);
  }
  switch_fiber(&self().fiber, scheduler_);
}

void Machine::stop() {
  stopped_ = true;
  switch_fiber(&self().fiber, scheduler_);
}

void Machine::wait_in(State state) {
  self().state = state;
  leave();
}

void Machine::maybe_yield() {
  if (options_.mode != Mode::random || !chance(16)) return;
  switch_fiber(&self().fiber, scheduler_);
}

void Machine::count_step(std::uint32_t site) {
  self().site = site;
  if (++steps_ <= options_.max_steps) return;
  findings_.add(Kind::step_budget, 0, [&] {
    return fmt::format("block {} made more than {} wrapper calls and was stopped; {}", block_,
                       options_.max_steps, waiting_text());
  });
  stop();
}

// A budget of code beside that of calls, wide enough that only a loop without calls meets it.
void Machine::tick() {
  constexpr std::int64_t kPiecesPerTick = 1 << 20, kPiecesPerCall = 64;
  if (machine == nullptr) return;
  Machine& self = *machine;
  if (++self.ticks_ * kPiecesPerTick <= (self.options_.max_steps + kPiecesPerTick) * kPiecesPerCall)
    return;
  self.findings_.add(Kind::step_budget, 1, [&] {
    return fmt::format("block {} runs in a loop without wrapper calls and was stopped in {}; {}",
                       self.block_, self.who(self.thread_), self.waiting_text());
  });
  self.stop();
}

void Machine::meet(std::uint32_t site, void* operands, Together all) {
  meet_all(warp().meeting, thread_ / 32 * 32, 32, site, operands, all);
}

void Machine::meet_warpgroup(std::uint32_t site, void* operands, Together all) {
  meet_all(warpgroup_meetings_[static_cast<std::size_t>(warpgroup_index())], warpgroup_begin(),
           warpgroup_size(), site, operands, all);
}

void Machine::meet_all(Meeting& meeting, int first, int count, std::uint32_t site, void* operands,
                       Together all) {
  count_step(site);
  if (meeting.arrived == 0) meeting.site = site;
  if (meeting.site != site) {
    findings_.add(Kind::divergent_collective, site, [&] {
      return fmt::format("{} is at {}, while {} of its {} wait at {}", who(thread_), at(site),
                         meeting.arrived, count == 32 ? "warp" : "warpgroup", at(meeting.site));
    });
    return stop();
  }
  meeting.operands.resize(static_cast<std::size_t>(count));
  meeting.operands[static_cast<std::size_t>(thread_ - first)] = operands;
  if (++meeting.arrived < count) return wait_in(State::at_meeting);
  meeting.arrived = 0;
  if (all != nullptr) all(*this, meeting.operands);
  for (int i = 0; i < count; ++i)
    threads_[static_cast<std::size_t>(first + i)].state = State::ready;
  maybe_yield();
}

void Machine::join_warp() {
  if (options_.races) races_.join(thread_ / 32 * 32, 32);
}

void Machine::touched(std::uint32_t site) {
  findings_.add(Kind::accumulator_in_flight, site, [&] {
    return fmt::format("{} uses a sum of a product that was not waited for: {}", who(thread_),
                       at(site));
  });
}

std::string Machine::who(int thread) const {
  const int in_block = thread % shape_.threads;
  return fmt::format("thread {} (warp {}, lane {}) of block {}", in_block, in_block / 32,
                     in_block % 32, block_ + thread / shape_.threads);
}

std::string Machine::address_text(unsigned place) const {
  const auto bytes = static_cast<unsigned>(shape_.smem_bytes);
  if (shape_.cluster == 1) return fmt::format("shared address {}", place);
  return fmt::format("shared address {} of block {}", place % bytes, block_ + place / bytes);
}

// What a thread waits for, beyond its place in the file.
std::string Machine::wait_text(const Thread& thread) const {
  if (thread.state != State::at_memory_barrier) return {};
  const MemoryBarrier& barrier = barriers_.at(thread.barrier);
  return fmt::format(
      ", for parity {} of the barrier at {}: its phase {} lacks {} of {} arrivals and {} bytes",
      thread.parity, address_text(thread.barrier), barrier.phase, barrier.pending, barrier.count,
      barrier.expected - barrier.delivered);
}

// "96 threads wait at X; 32 threads have exited"
std::string Machine::waiting_text() const {
  std::map<std::pair<State, std::uint32_t>, std::vector<int>> groups;
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    const Thread& thread = threads_[i];
    groups[{thread.state, thread.state == State::exited ? 0 : thread.site}].push_back(
        static_cast<int>(i));
  }
  std::string text;
  for (const auto& [key, members] : groups) {
    constexpr const char* kWords[] = {
        "run, last seen at",       "wait for their warp or warpgroup at",
        "wait for the block at",   "wait at a named barrier at",
        "wait for the cluster at", "wait at",
        "wait for registers at",   "have exited"};
    if (!text.empty()) text += "; ";
    text += fmt::format("{} threads (first: {}) {}", members.size(), members.front(),
                        kWords[static_cast<int>(key.first)]);
    if (key.first == State::exited) continue;
    text += fmt::format(" {}{}", at(key.second),
                        wait_text(threads_[static_cast<std::size_t>(members.front())]));
  }
  return text;
}

// Threads that have exited are the cause where others meet; warps with roles of their own may exit while
// others wait for bytes.
void Machine::report_stuck() {
  bool exited = false, meeting = false;
  for (const Thread& thread : threads_) {
    exited = exited || thread.state == State::exited;
    meeting = meeting || thread.state == State::at_meeting || thread.state == State::at_barrier;
  }
  const bool early = exited && meeting;
  findings_.add(early ? Kind::early_exit : Kind::deadlock, 0, [&] {
    return fmt::format("block {}: nobody can go on{}: {}", block_,
                       early ? ", since some threads have exited" : "", waiting_text());
  });
  report_bytes();
  stopped_ = true;
}

void Machine::finish_thread(int index) {
  Thread& thread = threads_[static_cast<std::size_t>(index)];
  const bool open = !thread.open.empty();
  const Copy* copy = open ? &thread.open.front() : nullptr;
  for (const std::vector<Copy>& group : thread.groups)
    if (copy == nullptr && !group.empty()) copy = &group.front();
  if (copy != nullptr)
    findings_.add(Kind::copy_not_waited_for, copy->site, [&] {
      return fmt::format("{} exits with copies {}: {}", who(index),
                         open ? "that are in no group" : "in flight", at(copy->site));
    });
  const bool open_store = !thread.open_stores.empty();
  const BulkStore* unread = open_store ? &thread.open_stores.front() : nullptr;
  for (const std::vector<BulkStore>& group : thread.store_groups)
    if (unread == nullptr && !group.empty()) unread = &group.front();
  if (unread == nullptr) return;
  findings_.add(Kind::store_not_waited_for, unread->site, [&] {
    return fmt::format("{} exits with stores {}: {}", who(index),
                       open_store ? "that are in no group" : "that may still read shared memory",
                       at(unread->site));
  });
  for (auto& group : thread.store_groups)
    for (BulkStore& store : group) complete_store(store);
}

// Remembers what reaches into the memory of another block; that block has to know of it before it exits.
void Machine::note_peer(int block, int slot, std::uint32_t site) {
  Block& peer = blocks_[static_cast<std::size_t>(block)];
  if (peer.exited == shape_.threads)
    findings_.add(Kind::peer_exited, site, [&] {
      return fmt::format("{} reaches into block {}, whose threads have exited", at(site),
                         block_ + block);
    });
  if (!options_.races) return;
  Access access = races_.now(slot);
  access.site = site;
  peer.from_peers.push_back(access);
}

void Machine::finish_block(int block) {
  const int first = block * shape_.threads;
  for (const Access& access : blocks_[static_cast<std::size_t>(block)].loads) {
    if (races_.known_to_some(first, shape_.threads, access)) continue;
    findings_.add(Kind::copy_not_waited_for, access.site, [&] {
      return fmt::format(
          "block {} may exit before a copy arrives, for which no thread has waited: {}",
          block_ + block, at(access.site));
    });
  }
  for (const Access& access : blocks_[static_cast<std::size_t>(block)].from_peers) {
    if (races_.known_to_some(first, shape_.threads, access)) continue;
    findings_.add(Kind::peer_exited, access.site, [&] {
      return fmt::format("block {} may exit before {} reaches into it", block_ + block,
                         at(access.site));
    });
  }
}

void Machine::finish_cluster() {
  while (complete_some_load()) {
  }
  report_bytes();
  for (std::size_t i = 0; i < warpgroups_.size(); ++i) {
    const Warpgroup& group = warpgroups_[i];
    const Product* product = group.open.empty() ? nullptr : &group.open.front();
    for (const std::vector<Product>& committed : group.groups)
      if (product == nullptr && !committed.empty()) product = &committed.front();
    if (product == nullptr) continue;
    findings_.add(Kind::products_not_waited_for, product->site, [&] {
      return fmt::format("warpgroup {} exits with products {}: {}", i,
                         group.open.empty() ? "in flight" : "that are in no group",
                         at(product->site));
    });
  }
}

}  // namespace flashwright::emulator
