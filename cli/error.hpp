// Exit codes of the command line, and the exception that carries one.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "flashwright/flashwright.h"

namespace cli {

// docs/cli.md lists these for users; scripts rely on the numbers.
enum class Exit : int {
  ok = 0,
  internal = 1,
  bad_input = 2,
  unsupported = 3,
  not_cached = 4,
  compile_failed = 5,
  unavailable = 6,
  device_error = 7,
  io_error = 8,
  check_failed = 9,  // the result is not what it should be: run --check, cache verify
  interrupted = 130,
};

Exit exit_of(flashwright_status status);
const char* name_of(Exit code);  // "bad_input", as in the JSON of an error

// What goes wrong outside the library: flags and files.
class Error : public std::exception {
 public:
  Error(Exit code, std::string text) : code_(code), text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  Exit code() const { return code_; }

 private:
  Exit code_;
  std::string text_;
};

// "--budget: given 'soon'; expected a time, e.g. 90, 60s or 2m"
[[noreturn]] void bad_value(const std::string& flag, const std::string& given,
                            const std::string& expected);

}  // namespace cli
