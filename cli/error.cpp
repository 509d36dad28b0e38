#include "cli/error.hpp"

#include <fmt/format.h>

namespace cli {

Exit exit_of(flashwright_status status) {
  switch (status) {
    case FLASHWRIGHT_OK:
      return Exit::ok;
    case FLASHWRIGHT_BAD_ARGUMENT:
      return Exit::bad_input;
    case FLASHWRIGHT_UNSUPPORTED:
      return Exit::unsupported;
    case FLASHWRIGHT_NOT_CACHED:
      return Exit::not_cached;
    case FLASHWRIGHT_COMPILE_FAILED:
      return Exit::compile_failed;
    case FLASHWRIGHT_UNAVAILABLE:
      return Exit::unavailable;
    case FLASHWRIGHT_CAPTURING:
    case FLASHWRIGHT_DEVICE_ERROR:
      return Exit::device_error;
    case FLASHWRIGHT_IO_ERROR:
      return Exit::io_error;
    case FLASHWRIGHT_INTERRUPTED:
      return Exit::interrupted;
    default:
      return Exit::internal;
  }
}

const char* name_of(Exit code) {
  switch (code) {
    case Exit::ok:
      return "ok";
    case Exit::internal:
      return "internal";
    case Exit::bad_input:
      return "bad_input";
    case Exit::unsupported:
      return "unsupported";
    case Exit::not_cached:
      return "not_cached";
    case Exit::compile_failed:
      return "compile_failed";
    case Exit::unavailable:
      return "unavailable";
    case Exit::device_error:
      return "device_error";
    case Exit::io_error:
      return "io_error";
    case Exit::check_failed:
      return "check_failed";
    case Exit::interrupted:
      return "interrupted";
  }
  return "internal";
}

void bad_value(const std::string& flag, const std::string& given, const std::string& expected) {
  throw Error(Exit::bad_input, fmt::format("{}: given '{}'; expected {}", flag, given, expected));
}

}  // namespace cli
