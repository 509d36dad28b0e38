#include "tuner/builder.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "cache/key.hpp"
#include "core/env.hpp"
#include "core/error.hpp"
#include "tuner/dump.hpp"

namespace flashwright {

Built emit_candidate(const Family& family, const Problem& problem, const Schedule& schedule,
                     Backend& backend) {
  Built out;
  out.schedule = schedule;
  out.source = family.emit(problem, schedule);
  const Target& target = out.source.target;
  const Binary::Kind kind = backend.binary_kind(target);
  // Without a compiler here the binary of any one will do: the key is the base.
  const std::string toolchain =
      backend.compiler_missing().empty() ? backend.toolchain(target) : std::string();
  const ArtifactKeys keys = artifact_keys(out.source.text, target, kind, "", toolchain);
  out.base = keys.base;
  out.key = keys.key;
  return out;
}

bool fetch(Built& built, ArtifactStore& store) {
  std::optional<Binary> found =
      built.key == built.base ? store.get_any_toolchain(built.base) : store.get(built.key);
  if (!found) return false;
  built.binary = std::move(*found);
  built.from_store = true;
  return true;
}

void compile(Built& built, const Problem& problem, Backend& backend) {
  const Dump dump(built, problem);  // before the compiler, which may end the process
  try {
    built.binary = backend.compile(built.source);
  } catch (Error& error) {
    dump.failed(error);
    throw;
  }
  dump.compiled(built.binary);
}

Built build(const Family& family, const Problem& problem, const Schedule& schedule,
            Backend& backend, ArtifactStore* store) {
  Built out;
  out.schedule = schedule;
  try {
    out = emit_candidate(family, problem, schedule, backend);
    if (store == nullptr || !fetch(out, *store)) compile(out, problem, backend);
  } catch (const Error& error) {
    out.failure = error.message;
    out.detail = error.detail;
  }
  return out;
}

void keep(const Built& built, const Problem& problem, ArtifactStore& store) {
  if (built.from_store || !built.failure.empty()) return;
  store.put(built.key, built.base, built.binary,
            fmt::format("{} {}", to_string(problem), to_string(built.schedule)));
}

BuildQueue::BuildQueue(const Family& family, const Problem& problem,
                       std::vector<Schedule> schedules, Backend& backend, ArtifactStore* store,
                       int threads)
    : family_(family),
      problem_(problem),
      backend_(backend),
      store_(store),
      waiting_(schedules.begin(), schedules.end()) {
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { work(); });
}

BuildQueue::~BuildQueue() {
  stop();
  threads_.clear();  // joins
}

void BuildQueue::stop() {
  const std::scoped_lock lock(mutex_);
  waiting_.clear();
}

void BuildQueue::work() {
  while (true) {
    Schedule schedule;
    {
      const std::scoped_lock lock(mutex_);
      if (waiting_.empty()) return;
      schedule = waiting_.front();
      waiting_.pop_front();
      ++running_;
    }
    auto built = std::make_unique<Built>(build(family_, problem_, schedule, backend_, store_));
    {
      const std::scoped_lock lock(mutex_);
      --running_;
      done_.push_back(std::move(built));
    }
    changed_.notify_all();
  }
}

std::unique_ptr<Built> BuildQueue::take(bool wait) {
  std::unique_lock lock(mutex_);
  if (wait)
    changed_.wait(lock, [this] { return !done_.empty() || (waiting_.empty() && running_ == 0); });
  if (done_.empty()) return nullptr;
  std::unique_ptr<Built> built = std::move(done_.front());
  done_.pop_front();
  return built;
}

int BuildQueue::unfinished() {
  const std::scoped_lock lock(mutex_);
  return static_cast<int>(waiting_.size()) + running_;
}

int default_jobs() {
  const int asked = std::atoi(env::get(env::Variable::jobs).c_str());
  if (asked > 0) return asked;
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace flashwright
