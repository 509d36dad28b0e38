// A case in the emulator.
#pragma once

#include <memory>

#include "emulator/run.hpp"
#include "tests/conformance/case.hpp"

namespace flashwright::conformance {

struct Emulated {
  Bytes output;
  std::string findings;  // one a line
};

// Throws Error(unsupported) for a wrapper that the emulator does not know.
std::unique_ptr<emulator::HostUnit> compile_for_host(const Case& c);
Emulated emulate(const Case& c, const emulator::HostUnit& unit, emulator::Mode mode);

// Compiles many cases, each on a core; a case that does not compile has no unit and a message.
struct CompiledCase {
  std::unique_ptr<emulator::HostUnit> unit;
  std::string fault;
};
std::vector<CompiledCase> compile_for_host(const std::vector<const Case*>& cases);

}  // namespace flashwright::conformance
