#include "core/log.hpp"

#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>

#include "core/env.hpp"

namespace flashwright {
namespace {

constexpr std::array kNames = {"error", "warn", "info", "debug"};

int level_from_environment() {
  const std::string text = env::get(env::Variable::log);
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (text == kNames[i]) return static_cast<int>(i);
  return static_cast<int>(LogLevel::warn);
}

std::atomic<int>& level_limit() {
  static std::atomic<int> limit{level_from_environment()};
  return limit;
}

struct SinkHolder {
  std::mutex mutex;
  std::shared_ptr<LogSink> sink;
};

SinkHolder& holder() {
  static SinkHolder* const instance = new SinkHolder;  // outlives every static destructor that logs
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) { level_limit() = static_cast<int>(level); }

bool log_enabled(LogLevel level) { return static_cast<int>(level) <= level_limit(); }

void set_log_sink(LogSink sink) {
  const std::scoped_lock lock(holder().mutex);
  holder().sink = sink ? std::make_shared<LogSink>(std::move(sink)) : nullptr;
}

void log(LogLevel level, const std::string& line) {
  if (!log_enabled(level)) return;
  std::shared_ptr<LogSink> sink;
  {
    const std::scoped_lock lock(holder().mutex);
    sink = holder().sink;
  }
  if (sink) {
    (*sink)(level, line);
  } else {
    std::fprintf(stderr, "flashwright: %s: %s\n", kNames[static_cast<std::size_t>(level)],
                 line.c_str());
  }
}

}  // namespace flashwright
