// A case on a GPU.
#pragma once

#include "core/source.hpp"
#include "tests/conformance/case.hpp"

namespace flashwright::conformance {

// The case as the text of a program for "sm_80" or "sm_90a".
Source source_of(const Case& c, const std::string& arch);

// Whether code for `arch` may hold what the case needs.
bool fits(const Case& c, const std::string& arch);

// Runs a compiled case on a device and waits for it.
Bytes run_on_device(const Case& c, const Source& source, const Binary& binary, int device);

}  // namespace flashwright::conformance
