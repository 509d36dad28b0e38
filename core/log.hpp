// Log lines go to a callback; by default warnings and errors go to stderr. The library never prints
// in any other way.
#pragma once

#include <functional>
#include <string>

namespace flashwright {

enum class LogLevel : int { error = 0, warn = 1, info = 2, debug = 3 };

using LogSink = std::function<void(LogLevel, const std::string& line)>;

void log(LogLevel level, const std::string& line);
void set_log_sink(LogSink sink);  // empty restores stderr
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

}  // namespace flashwright
