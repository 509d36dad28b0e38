// The one exception type inside the library. A message says what happened, with which values, and
// what is allowed; `detail` holds long material such as a compiler's log.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace flashwright {

// The numbers are those of FLASHWRIGHT_STATUS in flashwright.h.
enum class Status : int {
  ok = 0,
  bad_argument = 1,    // a value given by the caller is not allowed
  unsupported = 2,     // no kernel family can do this problem; the message lists every reason
  not_cached = 3,      // the effort allowed was too small to get the kernel
  compile_failed = 4,  // the compiler refused an emitted kernel
  unavailable = 5,     // a driver, a compiler or a device is missing
  capturing = 6,       // the call cannot be made while a stream is being captured
  device_error = 7,    // the driver reported an error
  io_error = 8,        // a file could not be read or written
  interrupted = 9,     // a progress callback asked to stop
  internal = 10,       // a mistake of the library
};

// Visible, because it crosses from the CPU plugin into the library.
class __attribute__((visibility("default"))) Error : public std::exception {
 public:
  Error(Status code, std::string what_happened, std::string more = {})
      : status(code), message(std::move(what_happened)), detail(std::move(more)) {}
  const char* what() const noexcept override { return message.c_str(); }

  Status status;
  std::string message;
  std::string detail;
};

}  // namespace flashwright
