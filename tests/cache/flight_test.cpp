#include "cache/flight.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "tests/cache/support.hpp"

using namespace flashwright;
using namespace flashwright::test;
using namespace std::chrono_literals;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What the engine does for one kernel, with a compiler that takes `compile_time`.
bool get_or_compile(const Folder& folder, int number, std::chrono::milliseconds compile_time,
                    std::chrono::milliseconds patience = 30s) {
  ArtifactStore store(in_folder(folder));
  const Digest key = key_of_number(number);
  if (has_number(store, number)) return true;
  const Flight flight(store.status().path);
  const Flight::Turn turn = flight.wait(
      key, "a kernel", [&] { return store.contains(key); }, patience);
  if (!store.get(key)) {
    std::this_thread::sleep_for(compile_time);
    put_number(store, number);
  }
  return has_number(store, number);
}

std::int64_t compiles(const Folder& folder) { return ArtifactStore(in_folder(folder)).compiles(); }

// Starts a process that takes the turn for a kernel and keeps it until it is killed; returns when it
// has it.
pid_t start_holder(const Folder& folder, int number) {
  const std::string mark = folder / "held";
  const pid_t holder = start([&] {
    ArtifactStore store(in_folder(folder));
    const Flight flight(store.status().path);
    const Flight::Turn turn = flight.wait(key_of_number(number), "", [] { return false; });
    write_file(mark, "");
    std::this_thread::sleep_for(60s);
    return 0;
  });
  while (access(mark.c_str(), F_OK) != 0) std::this_thread::sleep_for(1ms);
  return holder;
}

}  // namespace

TEST_CASE("many processes that want one kernel compile it once") {
  for (int round = 0; round < 5; ++round) {
    const Folder folder;
    const auto start_time = std::chrono::steady_clock::now();
    std::vector<pid_t> children;
    for (int i = 0; i < 32; ++i)
      children.push_back(start([&] { return get_or_compile(folder, 1, 300ms) ? 0 : 1; }));
    for (const pid_t child : children) CHECK(wait_for(child) == 0);
    CHECK(compiles(folder) == 1);
    CHECK(seconds_since(start_time) < 20);
    CHECK(integrity(database_file(folder)) == "ok");
  }
}

TEST_CASE("the next processes compile nothing") {
  const Folder folder;
  for (int i = 0; i < 3; ++i) {
    CHECK(in_child([&] { return get_or_compile(folder, 1, 1ms) ? 0 : 1; }) == 0);
    CHECK(compiles(folder) == 1);
  }
}

TEST_CASE("many processes with kernels of their own do not disturb each other") {
  const Folder folder;
  const int status = in_child([&] {
    std::vector<pid_t> children;
    for (int i = 0; i < 16; ++i)
      children.push_back(start([&, i] {
        const Log log;
        for (int k = 0; k < 4; ++k)
          if (!get_or_compile(folder, i * 4 + k, 1ms)) return 1;
        return log.warnings().empty() ? 0 : 2;
      }));
    int worst = 0;
    for (const pid_t child : children) worst = std::max(worst, wait_for(child));
    return worst;
  });
  CHECK(status == 0);
  CHECK(compiles(folder) == 64);
}

TEST_CASE("a holder that is killed is followed by another at once") {
  const Folder folder;
  const pid_t holder = start_holder(folder, 1);
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i)
    children.push_back(start([&] { return get_or_compile(folder, 1, 100ms) ? 0 : 1; }));
  std::this_thread::sleep_for(200ms);
  CHECK(compiles(folder) == 0);
  kill(holder, SIGKILL);
  const auto start_time = std::chrono::steady_clock::now();
  CHECK(wait_for(holder) == 1000 + SIGKILL);
  for (const pid_t child : children) CHECK(wait_for(child) == 0);
  CHECK(seconds_since(start_time) < 15);
  CHECK(compiles(folder) == 1);
}

TEST_CASE("a holder that is stopped is passed over, by one process") {
  const Folder folder;
  const pid_t holder = start_holder(folder, 1);
  kill(holder, SIGSTOP);
  std::vector<pid_t> children;
  const auto start_time = std::chrono::steady_clock::now();
  for (int i = 0; i < 12; ++i)
    children.push_back(start([&] { return get_or_compile(folder, 1, 300ms, 800ms) ? 0 : 1; }));
  for (const pid_t child : children) CHECK(wait_for(child) == 0);
  CHECK(seconds_since(start_time) < 15);
  CHECK(compiles(folder) <= 2);
  kill(holder, SIGKILL);
  wait_for(holder);
}

TEST_CASE("a long wait says what it waits for") {
  const Folder folder;
  const pid_t holder = start_holder(folder, 1);
  {
    const Log log;
    ArtifactStore store(in_folder(folder));
    const Flight flight(store.status().path);
    const auto start_time = std::chrono::steady_clock::now();
    bool ready = false;
    flight.wait(key_of_number(1), "forward bf16 d128", [&] {
      ready = seconds_since(start_time) > 5.5;
      return ready;
    });
    CHECK(ready);
    REQUIRE(log.warnings().size() == 1);
    CHECK(log.warnings()[0].find("forward bf16 d128") != std::string::npos);
  }
  kill(holder, SIGKILL);
  wait_for(holder);
}

TEST_CASE("threads of one process take turns as well") {
  const Folder folder;
  const Flight flight(folder / "artifacts-1.db");
  std::atomic<int> inside{0}, most{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const Flight::Turn turn = flight.wait(key_of_number(1), "", [] { return false; });
      most = std::max(most.load(), ++inside);
      std::this_thread::sleep_for(5ms);
      --inside;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(most == 1);
}

TEST_CASE("other kernels and other stores do not wait for each other") {
  const Folder folder;
  const Flight flight(folder / "artifacts-1.db"), other(folder / "another.db");
  const auto never = [] { return false; };
  const Flight::Turn one = flight.wait(key_of_number(1), "", never);
  CHECK(one.exclusive());
  CHECK(flight.wait(key_of_number(2), "", never).exclusive());
  CHECK(other.wait(key_of_number(1), "", never).exclusive());
  CHECK(!flight.wait(key_of_number(1), "", [] { return true; }).exclusive());
}

TEST_CASE("locks lie where the system wants them, or nowhere") {
  const Folder folder;
  chmod(folder.path().c_str(), 0755);
  {
    const Environment set(Variables{{"XDG_RUNTIME_DIR", folder.path()}});
    CHECK(Flight("").lock_file() == folder / "flashwright/compile.lock");
  }
  const Environment unset(Variables{{"XDG_RUNTIME_DIR", std::nullopt}});
  CHECK(Flight("").lock_file() == fmt::format("/dev/shm/flashwright-{}/compile.lock", geteuid()));
  // No lock at all: everybody may compile, nobody waits.
  Environment nowhere(Variables{{"XDG_RUNTIME_DIR", "/proc"}});
  const Flight flight("");
  const Flight::Turn turn = flight.wait(key_of_number(1), "", [] { return false; });
  CHECK(Flight("/nonexistent/x").lock_file().find("/nonexistent") == std::string::npos);
}
