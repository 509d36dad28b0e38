// The disk fails: at every single write, because it is full, because it is limited, because it may
// not be written. A call never fails for it, and what is stored is never half there.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "cache/artifacts.hpp"
#include "cache/trials.hpp"
#include "tests/cache/faulty_vfs.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::test;

namespace {

// Puts and gets with a fault at the n-th change; true when there were fewer changes than that.
bool survives_fault(FaultyVfs& vfs, const char* journal, int n, int code, bool lasting,
                    bool fresh) {
  const Folder folder;
  const Log log;
  StoreOptions options = in_folder(folder);
  options.journal = journal;
  INFO("change ", n, " code ", code, " lasting ", lasting, " journal ", journal, " fresh ", fresh);
  if (!fresh) {
    ArtifactStore store(options);
    put_number(store, 1);
  }
  bool fired = false;
  {
    ArtifactStore store(options);
    vfs.fail(n, code, lasting);
    put_number(store, 2, 50000);
    put_number(store, 1);
    // A disk that fails for ever may take away what it had accepted; then it is compiled again.
    if (lasting && !store.contains(key_of_number(1))) put_number(store, 1);
    if (lasting && !store.contains(key_of_number(2))) put_number(store, 2, 50000);
    CHECK(has_number(store, 1));
    CHECK(has_number(store, 2, 50000));
    CHECK(store.list().size() >= 2);
    fired = vfs.fired();
    vfs.relent();
  }
  CHECK_MESSAGE(log.warnings().size() <= 1, log.all());
  for (const std::string& line : log.warnings())
    CHECK(line.find("set FLASHWRIGHT_CACHE_DIR") != std::string::npos);
  // Whatever happened, the next store finds a sound file, in which entries are right or absent.
  ArtifactStore store(options);
  if (!fresh) CHECK(has_number(store, 1));
  CHECK(store.get(key_of_number(2)).has_value() == has_number(store, 2, 50000));
  put_number(store, 3);
  CHECK(has_number(store, 3));
  CHECK(store.counters().bad == 0);
  CHECK(store.verify().file.empty());
  CHECK(store.status().writable);
  return !fired;
}

int count_warnings_and_numbers(const StoreOptions& options, const char* expected) {
  const Log log;
  ArtifactStore store(options);
  for (int i = 0; i < 5; ++i) put_number(store, i, 50000);
  for (int i = 0; i < 5; ++i)
    if (!has_number(store, i, 50000)) return 1;
  if (log.warnings().size() != 1) return 2;
  const std::string line = log.warnings()[0];
  for (const std::string& part :
       {options.directory, std::string("FLASHWRIGHT_CACHE_DIR"), std::string(expected)}) {
    if (line.find(part) != std::string::npos) continue;
    fmt::print(stderr, "no '{}' in: {}\n", part, line);
    return 3;
  }
  return 0;
}

}  // namespace

TEST_CASE("a fault at any write leaves results right and the file sound") {
  FaultyVfs vfs;
  for (const char* journal : {"delete", "wal"})
    for (const int code : {SQLITE_IOERR_WRITE, SQLITE_FULL})
      for (const bool lasting : {false, true})
        for (const bool fresh : {false, true})
          for (int n = 1; !survives_fault(vfs, journal, n, code, lasting, fresh); ++n)
            REQUIRE(n < 500);
}

TEST_CASE("a fault at any write of the tuning store loses no trial of the process") {
  FaultyVfs vfs;
  const Slot slot{"dev", "problem", "bucket", "eager"};
  for (int n = 1, done = 0; done == 0; ++n) {
    REQUIRE(n < 500);
    const Folder folder;
    const Log log;
    TuningStore store(in_folder(folder));
    vfs.fail(n, SQLITE_IOERR_FSYNC, false);
    for (int i = 0; i < 3; ++i) {
      Trial trial;
      trial.schedule = fmt::format("q{}", 16 << i);
      trial.baseline = "q16";
      summarise(trial, {100.0 - i, 101, 100}, {100, 100, 101});
      store.add_trials(slot, {trial});
    }
    CHECK(store.trials(slot).size() == 3);
    CHECK(store.decide(slot)->schedule == "q16");
    CHECK(log.warnings().size() <= 1);
    done = vfs.fired() ? 0 : 1;
    vfs.relent();
  }
}

TEST_CASE("a full disk turns the store into one in memory") {
  const Folder folder;
  if (mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k,mode=700") != 0) {
    testing::skip("a full disk turns the store into one in memory",
                  "no file system may be mounted here");
    return;
  }
  CHECK(count_warnings_and_numbers(in_folder(folder), "No space left on device") == 0);
  const int enlarged = mount("tmpfs", folder.path().c_str(), "tmpfs", MS_REMOUNT, "size=16m");
  if (enlarged == 0) {
    const Log log;
    ArtifactStore store(in_folder(folder));
    put_number(store, 1);
    CHECK(has_number(store, 1));
    CHECK(integrity(database_file(folder)) == "ok");
    CHECK(log.warnings().empty());
  }
  umount2(folder.path().c_str(), MNT_DETACH);
}

TEST_CASE("a disk that fills up in the middle keeps what was there") {
  const Folder folder;
  if (mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=400k,mode=700") != 0) {
    testing::skip("a disk that fills up in the middle keeps what was there",
                  "no file system may be mounted here");
    return;
  }
  {
    const Log log;
    ArtifactStore store(in_folder(folder));
    for (int i = 0; i < 20; ++i) put_number(store, i, 30000);
    for (int i = 0; i < 20; ++i) CHECK(has_number(store, i, 30000));
    CHECK(log.warnings().size() == 1);
  }
  CHECK(integrity(database_file(folder)) == "ok");
  ArtifactStore store(in_folder(folder));
  CHECK(has_number(store, 0, 30000));
  CHECK(store.verify().bad == 0);
  umount2(folder.path().c_str(), MNT_DETACH);
}

TEST_CASE("a limit on file sizes does not end the process") {
  for (const char* journal : {"delete", "wal"})
    for (const rlim_t bytes : {rlim_t{0}, rlim_t{100000}, rlim_t{180000}}) {
      const Folder folder;
      StoreOptions options = in_folder(folder);
      options.journal = journal;
      const int status = in_child([&] {
        const rlimit limit{bytes, bytes};
        setrlimit(RLIMIT_FSIZE, &limit);
        return count_warnings_and_numbers(options, "File too large");
      });
      CHECK(status == 0);
      ArtifactStore store(options);
      for (int i = 0; i < 5; ++i)
        CHECK(store.get(key_of_number(i)).has_value() == has_number(store, i, 50000));
      CHECK(store.verify().file.empty());
    }
}

TEST_CASE("a read-only store serves what it has and keeps the rest in memory") {
  const Folder folder;
  {
    ArtifactStore store(in_folder(folder));
    put_number(store, 1);
    put_number(store, 2);
  }
  const std::string before = read_file(database_file(folder));
  chmod(folder.path().c_str(), 0755);
  chmod(database_file(folder).c_str(), 0444);
  const auto work = [&folder] {
    const Log log;
    ArtifactStore store(in_folder(folder));
    if (!has_number(store, 1) || !has_number(store, 2)) return 1;
    if (!log.warnings().empty()) return 2;  // nothing is wrong yet
    put_number(store, 3);
    put_number(store, 4);
    if (!has_number(store, 3) || !has_number(store, 4) || store.list().size() != 4) return 3;
    if (store.prune(0) != 2) return 4;
    return log.warnings().size() == 1 ? 0 : 5;
  };
  const std::optional<int> status = as_nobody(work);
  if (status)
    CHECK(*status == 0);
  else
    testing::skip("a read-only store serves what it has and keeps the rest in memory",
                  "this process cannot become another user");
  CHECK(read_file(database_file(folder)) == before);
}

TEST_CASE("a store on a read-only file system is served, also when it has a write-ahead log") {
  for (const char* journal : {"delete", "wal"}) {
    const Folder folder;
    if (mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m,mode=700") != 0) {
      testing::skip(
          "a store on a read-only file system is served, also when it has a write-ahead log",
          "no file system may be mounted here");
      return;
    }
    StoreOptions options = in_folder(folder);
    options.journal = journal;
    {
      ArtifactStore store(options);
      put_number(store, 1);
    }
    REQUIRE(mount("tmpfs", folder.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0);
    const int status = in_child([&] {
      const Log log;
      ArtifactStore store(options);
      if (!has_number(store, 1)) return 1;
      put_number(store, 2);
      if (!has_number(store, 2)) return 2;
      return log.warnings().size() == 1 ? 0 : 3;
    });
    CHECK(status == 0);
    umount2(folder.path().c_str(), MNT_DETACH);
  }
}
