// Kernels of the sm80 family in the emulator.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "emulator/run.hpp"
#include "tests/support/emitted.hpp"
#include "tests/support/host_problem.hpp"

namespace flashwright::testing {

constexpr emulator::Mode kModes[] = {emulator::Mode::early, emulator::Mode::late,
                                     emulator::Mode::random, emulator::Mode::skew};

// Skips the test case when no host compiler is here.
bool compiler_here(const char* test);

std::unique_ptr<emulator::HostUnit> compile_text(const std::string& text);

// A problem in host memory that fits what was compiled in.
std::unique_ptr<HostProblem> problem_for(const Problem& problem, const Shape& shape, Layout layout,
                                         std::uint64_t seed);

// Extra passes of loads and stores of matrices, which good kernels do not have. Narrow accesses at the
// edges of tensors may have some.
std::int64_t matrix_conflicts(const emulator::RunReport& report);

// All findings, one a line.
std::string text_of(const emulator::RunReport& report);

}  // namespace flashwright::testing
