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

Machine::Machine(const Translation& translation, GlobalMemory& memory, const LaunchStep& step,
                 const BlockOptions& options)
    : translation_(translation),
      memory_(memory),
      step_(step),
      options_(options),
      stacks_(step.threads),
      threads_(static_cast<std::size_t>(step.threads)),
      warps_(static_cast<std::size_t>(step.threads / 32)),
      shared_(static_cast<std::size_t>(step.smem_bytes)),
      bytes_(shared_.size()) {}

Machine::~Machine() = default;

void Machine::reset(std::int64_t block) {
  block_ = block;
  steps_ = 0;
  ticks_ = 0;
  at_barrier_ = 0;
  stopped_ = false;
  random_.seed(options_.seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(block));
  std::fill(shared_.begin(), shared_.end(), static_cast<unsigned char>(0xff));
  std::fill(bytes_.begin(), bytes_.end(), Byte::uninitialised);
  if (options_.races) races_ = Races(step_.threads, step_.smem_bytes);
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i] = Thread();
    threads_[i].fiber = stacks_.prepare(static_cast<int>(i), &Machine::begin_thread);
  }
  std::fill(warps_.begin(), warps_.end(), Warp());
  for (std::size_t i = 0; i < warps_.size(); ++i)
    warps_[i].priority = static_cast<int>(options_.mode == Mode::late ? i : warps_.size() - i);
  if (options_.mode == Mode::skew) shuffle_priorities();
}

void Machine::run_block(HostUnit::Entry entry, const void* params, std::int64_t block) {
  reset(block);
  entry_ = entry;
  params_ = params;
  Machine* const before = machine;
  machine = this;
  schedule();
  machine = before;
  if (!stopped_) finish_block();
  all_steps_ += steps_;
}

void Machine::begin_thread() {
  Machine& self = *machine;
  self.entry_(self.params_);
  self.self().state = State::exited;
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
      if (random_() % static_cast<std::uint64_t>(++choices) == 0) best = candidate;
    } else if (best < 0 || warps_[w].priority > warps_[static_cast<std::size_t>(best)].priority) {
      best = candidate;
    }
  }
  return best;
}

void Machine::schedule() {
  while (!stopped_) {
    const int warp = choose_warp();
    if (warp < 0) break;
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

void Machine::maybe_yield() {
  if (options_.mode != Mode::random || random_() % 16 != 0) return;
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

void Machine::synchronize_block(std::uint32_t site) {
  count_step(site);
  if (at_barrier_ == 0) barrier_site_ = site;
  if (site != barrier_site_)
    findings_.add(Kind::divergent_barrier, site, [&] {
      return fmt::format("{} is at {}, while others wait at {}", who(thread_), at(site),
                         at(barrier_site_));
    });
  self().state = State::at_barrier;
  if (++at_barrier_ < step_.threads) return leave();
  at_barrier_ = 0;
  if (options_.races) races_.join(0, step_.threads);
  for (Thread& thread : threads_) thread.state = State::ready;
  if (options_.mode == Mode::skew) shuffle_priorities();
  maybe_yield();
}

void Machine::meet(std::uint32_t site, void* operands, void (*all)(Machine&, const Operands&)) {
  count_step(site);
  Warp& mine = warp();
  if (mine.arrived == 0) mine.site = site;
  if (mine.site != site) {
    findings_.add(Kind::divergent_collective, site, [&] {
      return fmt::format("{} is at {}, while {} of its warp wait at {}", who(thread_), at(site),
                         mine.arrived, at(mine.site));
    });
    return stop();
  }
  mine.operands[static_cast<std::size_t>(thread_ % 32)] = operands;
  if (++mine.arrived < 32) {
    self().state = State::at_meeting;
    return leave();
  }
  mine.arrived = 0;
  all(*this, mine.operands);
  const int first = thread_ / 32 * 32;
  for (int i = 0; i < 32; ++i) threads_[static_cast<std::size_t>(first + i)].state = State::ready;
  maybe_yield();
}

void Machine::join_warp() {
  if (options_.races) races_.join(thread_ / 32 * 32, 32);
}

std::string Machine::who(int thread) const {
  return fmt::format("thread {} (warp {}, lane {}) of block {}", thread, thread / 32, thread % 32,
                     block_);
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
    constexpr const char* kWords[] = {"run, last seen at", "wait for their warp at",
                                      "wait for the block at", "have exited"};
    if (!text.empty()) text += "; ";
    text += fmt::format("{} threads (first: {}) {}", members.size(), members.front(),
                        kWords[static_cast<int>(key.first)]);
    if (key.first != State::exited) text += fmt::format(" {}", at(key.second));
  }
  return text;
}

void Machine::report_stuck() {
  const bool early = std::any_of(threads_.begin(), threads_.end(),
                                 [](const Thread& t) { return t.state == State::exited; });
  findings_.add(early ? Kind::early_exit : Kind::deadlock, 0, [&] {
    return fmt::format("block {}: nobody can go on{}: {}", block_,
                       early ? ", since some threads have exited" : "", waiting_text());
  });
  stopped_ = true;
}

void Machine::finish_block() {
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    const Thread& thread = threads_[i];
    const bool open = !thread.open.empty();
    const Copy* copy = open ? &thread.open.front() : nullptr;
    for (const std::vector<Copy>& group : thread.groups)
      if (copy == nullptr && !group.empty()) copy = &group.front();
    if (copy == nullptr) continue;
    findings_.add(Kind::copy_not_waited_for, copy->site, [&] {
      return fmt::format("{} exits with copies {}: {}", who(static_cast<int>(i)),
                         open ? "that are in no group" : "in flight", at(copy->site));
    });
  }
}

}  // namespace flashwright::emulator
