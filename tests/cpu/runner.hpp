// Compiles and runs CPU kernels for the tests. Kernels are kept, since many tests use the same few.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/schedule.hpp"
#include "runtime/loaded_kernel.hpp"
#include "tests/support/host_problem.hpp"

namespace flashwright::testing {

struct How {
  std::optional<Schedule> schedule;  // otherwise the family's default
  Algorithm algorithm = Algorithm::tiled;
  std::string rung;  // otherwise the best one here
};

Problem problem_for(const Config& config, const How& how = {});
DeviceInfo device_here();

// A loaded kernel for the problem.
std::shared_ptr<const LoadedKernel> kernel_for(const Config& config, const Shape& shape,
                                               const How& how);

void run(const Config& config, const Arguments& arguments, const How& how = {});

// Fills o and lse of a backward problem by the forward kernel of the same Config.
void run_forward(HostProblem& host);

// Runs, then judges `max_rows` rows: "" when all is well, otherwise the fault with the problem's text.
std::string run_and_judge(HostProblem& host, const How& how = {}, std::int64_t max_rows = 48);

// A schedule that is legal for the problem, drawn from the family's space by a number.
Schedule any_schedule(const Problem& problem, const Shape& shape, std::uint64_t draw);

// True when this machine can run code for an instruction set.
bool can_run(const std::string& rung);

}  // namespace flashwright::testing
