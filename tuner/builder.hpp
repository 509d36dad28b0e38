// Candidates to binaries, in parallel: emits, looks in the store, compiles.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cache/artifacts.hpp"
#include "generator/family.hpp"
#include "runtime/backend.hpp"

namespace flashwright {

struct Built {
  Schedule schedule;
  Source source;
  Digest key{};
  Digest base{};
  Binary binary;
  bool from_store = false;
  std::string failure;  // of the compiler, in one line; empty when there is a binary
  std::string detail;   // of a failure: the compiler's log
};

// Emits one schedule and works out the keys of its binary. Without a compiler there is one key:
// that of any toolchain.
Built emit_candidate(const Family& family, const Problem& problem, const Schedule& schedule,
                     Backend& backend);

// Fetches the binary from the store; false when it is not there.
bool fetch(Built& built, ArtifactStore& store);

// Compiles what was emitted; every compilation of the library is this one. Leaves files in the
// folder that FLASHWRIGHT_DUMP_DIR names (tuner/dump), and names the source there in the detail of an
// Error(compile_failed).
void compile(Built& built, const Problem& problem, Backend& backend);

// All of it, the compilation included; what goes wrong ends in `failure`. Losers of a search are
// not stored, so storing is up to the caller. The store may be null.
Built build(const Family& family, const Problem& problem, const Schedule& schedule,
            Backend& backend, ArtifactStore* store);

// Stores a binary that was compiled here.
void keep(const Built& built, const Problem& problem, ArtifactStore& store);

// Builds schedules in the given order on several threads. Results come in the order in which they
// are ready.
class BuildQueue {
 public:
  BuildQueue(const Family& family, const Problem& problem, std::vector<Schedule> schedules,
             Backend& backend, ArtifactStore* store, int threads);
  ~BuildQueue();  // drops what has not started
  BuildQueue(const BuildQueue&) = delete;
  BuildQueue& operator=(const BuildQueue&) = delete;

  // The next result; waits for it unless `wait` is false. Null when there is none (yet).
  std::unique_ptr<Built> take(bool wait);
  int unfinished();
  void stop();  // drops what has not started

 private:
  void work();

  const Family& family_;
  const Problem problem_;
  Backend& backend_;
  ArtifactStore* const store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Schedule> waiting_;
  std::deque<std::unique_ptr<Built>> done_;
  int running_ = 0;
  std::vector<std::jthread> threads_;
};

// Threads for compiling: FLASHWRIGHT_JOBS, else the cores this process may use.
int default_jobs();

}  // namespace flashwright
