// Failures on their way to Python: flashwright::Failure of the C++ layer, and errors of type.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>

#include "flashwright/flashwright.hpp"

namespace fwpy {

namespace nb = nanobind;

// Becomes flashwright.FlashwrightTypeError.
struct TypeFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Becomes flashwright.FlashwrightValueError.
struct ValueFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Both say "NAME: given GIVEN; expected EXPECTED", as the library does.
[[noreturn]] void bad_type(const std::string& name, const std::string& given,
                           const std::string& expected);
[[noreturn]] void bad_value(const std::string& name, const std::string& given,
                            const std::string& expected);

// From now on the classes of flashwright._errors are raised.
void register_errors();

// What json.loads makes of a text that the library handed out.
nb::object loads(char* text);

}  // namespace fwpy
