#include "core/log.hpp"

#include <unistd.h>

#include <thread>
#include <vector>

#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// Restores the log at the end.
struct Restore {
  ~Restore() {
    set_log_sink({});
    set_log_level(LogLevel::warn);
  }
};

// What a child process writes to its standard error.
std::string stderr_of(const std::function<void()>& body) {
  const test::Folder folder;
  const std::string file = folder / "stderr";
  const int status = test::in_child([&] {
    if (std::freopen(file.c_str(), "w", stderr) == nullptr) return 1;
    body();
    std::fflush(stderr);
    return 0;
  });
  CHECK(status == 0);
  return test::read_file(file);
}

}  // namespace

TEST_CASE("lines up to the level reach the sink, the others do not") {
  const Restore restore;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, const std::string& line) {
    lines.push_back(std::to_string(static_cast<int>(level)) + line);
  });
  set_log_level(LogLevel::info);
  CHECK(log_enabled(LogLevel::info));
  CHECK(!log_enabled(LogLevel::debug));
  log(LogLevel::error, "a");
  log(LogLevel::warn, "b");
  log(LogLevel::info, "c");
  log(LogLevel::debug, "d");
  set_log_level(LogLevel::error);
  log(LogLevel::warn, "e");
  CHECK(lines == std::vector<std::string>{"0a", "1b", "2c"});
}

TEST_CASE("without a sink warnings go to stderr, and nothing else is ever printed") {
  const Restore restore;
  set_log_sink({});
  set_log_level(LogLevel::warn);
  CHECK(stderr_of([] { log(LogLevel::warn, "disk is full"); }) ==
        "flashwright: warn: disk is full\n");
  CHECK(stderr_of([] { log(LogLevel::info, "compiled"); }) == "");
}

TEST_CASE("a sink may change the sink, and log itself") {
  const Restore restore;
  int calls = 0;
  set_log_level(LogLevel::warn);
  set_log_sink([&](LogLevel, const std::string& line) {
    ++calls;
    if (line == "first") {
      set_log_sink([&](LogLevel, const std::string&) { calls += 10; });
      log(LogLevel::warn, "second");
    }
  });
  log(LogLevel::warn, "first");
  CHECK(calls == 11);
}

TEST_CASE("many threads log while the sink is replaced") {
  const Restore restore;
  std::atomic<int> calls{0};
  set_log_level(LogLevel::warn);
  set_log_sink([&](LogLevel, const std::string&) { ++calls; });
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([] {
        for (int n = 0; n < 1000; ++n) log(LogLevel::warn, "line");
      });
    for (int n = 0; n < 100; ++n) set_log_sink([&](LogLevel, const std::string&) { ++calls; });
  }
  CHECK(calls == 4000);
}
