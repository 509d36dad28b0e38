// Processes that are killed, that fork, and that come all at once.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "cache/trials.hpp"
#include "tests/cache/faulty_vfs.hpp"
#include "tests/cache/support.hpp"

using namespace flashwright;
using namespace flashwright::test;
using namespace std::chrono_literals;

namespace {

// A number that a child writes and its parent reads after the child's death.
class SharedNumber {
 public:
  SharedNumber()
      : value_(new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   std::atomic<int>(0)) {}
  ~SharedNumber() { munmap(value_, 4096); }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;
  std::atomic<int>& operator*() { return *value_; }

 private:
  std::atomic<int>* value_;
};

Trial trial_number(int i) {
  Trial trial;
  trial.schedule = fmt::format("q{}", i);
  trial.baseline = "q1";
  trial.at = i + 1;
  summarise(trial, {100.0 + i, 101.0 + i, 102.0 + i}, {100, 101, 103});
  return trial;
}

const Slot kSlot{"device", "problem", "bucket", "eager"};

void check_sound(const Folder& folder, int acknowledged) {
  {
    ArtifactStore store(in_folder(folder));
    for (int i = 0; i < acknowledged; ++i) CHECK(has_number(store, i, 20000));
    const ArtifactStore::Verdict verdict = store.verify();
    CHECK(verdict.bad == 0);
    CHECK(verdict.file.empty());
    TuningStore tuning(in_folder(folder));
    CHECK(static_cast<int>(tuning.trials(kSlot).size()) >= acknowledged);
    CHECK(static_cast<int>(tuning.trials(kSlot).size()) <= acknowledged + 1);
  }
  CHECK(integrity(database_file(folder)) == "ok");
  for (const std::string& name : files_in(folder)) CHECK(name.find(".bad-") == std::string::npos);
}

}  // namespace

TEST_CASE("a process that is killed at any time leaves all that it was told is stored") {
  std::mt19937 random(99);
  int total = 0;
  for (const char* journal : {"delete", "wal"}) {
    for (int round = 0; round < 20; ++round) {
      const Folder folder;
      SharedNumber acknowledged;
      StoreOptions options = in_folder(folder);
      options.journal = journal;
      const pid_t child = start([&] {
        ArtifactStore store(options);
        TuningStore tuning(options);
        for (int i = 0; i < 100000; ++i) {
          put_number(store, i, 20000);
          tuning.add_trials(kSlot, {trial_number(i)});
          *acknowledged = i + 1;
        }
        return 0;
      });
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 120000));
      kill(child, SIGKILL);
      CHECK(wait_for(child) == 1000 + SIGKILL);
      total += *acknowledged;
      check_sound(folder, *acknowledged);
    }
  }
  MESSAGE(fmt::format("{} acknowledged rows, none lost", total));
}

TEST_CASE("a process that dies at the n-th change of a file leaves the file sound") {
  FaultyVfs vfs;
  for (int n = 1, done = 0; done == 0; ++n) {
    REQUIRE(n < 300);
    const Folder folder;
    SharedNumber acknowledged;
    INFO("change ", n);
    const int status = in_child([&] {
      vfs.before(n, [] { raise(SIGKILL); });
      for (int i = 0; i < 2; ++i) {
        ArtifactStore store(in_folder(folder));
        TuningStore tuning(in_folder(folder));
        put_number(store, i, 20000);
        tuning.add_trials(kSlot, {trial_number(i)});
        *acknowledged = i + 1;
      }
      return 0;
    });
    done = status == 0 ? 1 : 0;
    check_sound(folder, *acknowledged);
  }
}

TEST_CASE("many processes open and fill a store that is not there yet") {
  for (int round = 0; round < 6; ++round) {
    const Folder folder;
    std::vector<pid_t> children;
    for (int i = 0; i < 24; ++i)
      children.push_back(start([&, i] {
        const Log log;
        ArtifactStore store(in_folder(folder));
        put_number(store, i);
        if (!has_number(store, i)) return 1;
        return log.warnings().empty() && !store.status().path.empty() ? 0 : 2;
      }));
    for (const pid_t child : children) CHECK(wait_for(child) == 0);
    ArtifactStore store(in_folder(folder));
    CHECK(store.list().size() == 24);
    CHECK(store.compiles() == 24);
  }
}

TEST_CASE("processes that meet a damaged file agree on one new one") {
  const Folder folder;
  write_file(database_file(folder), std::string(5000, 'x'));
  const Log log;
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i)
    children.push_back(start([&, i] {
      ArtifactStore store(in_folder(folder));
      put_number(store, i);
      if (!has_number(store, i)) return 1;
      return store.status().path.empty() ? 2 : 0;
    }));
  for (const pid_t child : children) CHECK(wait_for(child) == 0);
  CHECK(ArtifactStore(in_folder(folder)).list().size() == 16);
  CHECK(files_in(folder).size() == 2);
}

TEST_CASE("a store can be used on both sides of a fork, in the middle of writes") {
  for (const char* journal : {"delete", "wal"}) {
    const Folder folder;
    StoreOptions options = in_folder(folder);
    options.journal = journal;
    ArtifactStore store(options);
    put_number(store, 0);
    std::atomic<bool> stop{false};
    std::atomic<int> written{1};
    std::vector<std::thread> writers;
    for (int t = 0; t < 2; ++t)
      writers.emplace_back([&] {
        while (!stop) put_number(store, written++);
      });
    for (int round = 0; round < 15; ++round) {
      const pid_t child = start([&, round] {
        if (round % 3 == 0) return 0;  // a child that only ends
        for (int i = 0; i < 5; ++i) put_number(store, 10000 + round * 5 + i);
        for (int i = 0; i < 5; ++i)
          if (!has_number(store, 10000 + round * 5 + i)) return 1;
        return has_number(store, 0) && !store.status().path.empty() ? 0 : 2;
      });
      CHECK(wait_for(child) == 0);
    }
    stop = true;
    for (std::thread& writer : writers) writer.join();
    for (int i = 0; i < written; ++i) CHECK(store.contains(key_of_number(i)));
    for (int round = 0; round < 15; ++round)
      if (round % 3 != 0) CHECK(has_number(store, 10000 + round * 5));
    CHECK(store.verify().bad == 0);
    CHECK(store.verify().file.empty());
  }
}

TEST_CASE("a child made without the fork handlers leaves the parent's connection alone") {
  const Folder folder;
  ArtifactStore store(in_folder(folder));
  put_number(store, 1);
  const pid_t child = static_cast<pid_t>(syscall(SYS_fork));
  if (child == 0) {
    put_number(store, 2);
    _exit(has_number(store, 1) && has_number(store, 2) ? 0 : 1);
  }
  CHECK(wait_for(child) == 0);
  CHECK(has_number(store, 1));
  CHECK(has_number(store, 2));
  CHECK(integrity(database_file(folder)) == "ok");
}

TEST_CASE("rows in memory survive a fork on both sides") {
  StoreOptions options;
  options.directory = ":memory:";
  ArtifactStore store(options);
  put_number(store, 1);
  CHECK(in_child([&] {
          put_number(store, 2);
          return has_number(store, 1) && has_number(store, 2) ? 0 : 1;
        }) == 0);
  CHECK(has_number(store, 1));
  CHECK(!has_number(store, 2));
}

TEST_CASE("processes that tune one slot at the same time end with one winner") {
  const Folder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i)
    children.push_back(start([&, i] {
      TuningStore store(in_folder(folder));
      for (int k = 0; k < 3; ++k) {
        store.add_trials(kSlot, {trial_number(i * 3 + k)});
        store.decide(kSlot);
      }
      return 0;
    }));
  for (const pid_t child : children) CHECK(wait_for(child) == 0);
  TuningStore store(in_folder(folder));
  CHECK(store.trials(kSlot).size() == 24);
  const std::optional<Decision> decision = store.decision(kSlot);
  REQUIRE(decision);
  CHECK(decision->measured == 24);
  for (int i = 0; i < 8; ++i)
    CHECK(in_child([&] {
            return TuningStore(in_folder(folder)).decision(kSlot) == decision ? 0 : 1;
          }) == 0);
}
