#include "tests/cpu/runner.hpp"

#include <map>

#include "core/env.hpp"
#include "core/error.hpp"
#include "generator/cpu/family_cpu.hpp"
#include "runtime/cpu/cpu_backend.hpp"

namespace flashwright::testing {

Problem problem_for(const Config& config, const How& how) {
  const Target target{BackendKind::cpu, how.rung.empty() ? host_cpu_rung() : how.rung};
  Problem problem = normalise(config, target);
  problem.algorithm = how.algorithm;
  return problem;
}

DeviceInfo device_here() { return cpu::cpu_backend().describe().at(0); }

std::shared_ptr<const LoadedKernel> kernel_for(const Config& config, const Shape& shape,
                                               const How& how) {
  static std::map<std::pair<Problem, Schedule>, std::shared_ptr<const LoadedKernel>> kept;
  const Problem problem = problem_for(config, how);
  const Family& family = cpu_family();
  const Schedule schedule =
      how.schedule ? *how.schedule : family.default_schedule(problem, device_here(), shape);
  std::shared_ptr<const LoadedKernel>& kernel = kept[{problem, schedule}];
  if (!kernel) {
    Backend& backend = cpu::cpu_backend();
    const Source source = family.emit(problem, schedule);
    kernel = std::make_shared<const LoadedKernel>(backend, backend.compile(source), source.plan, 0);
  }
  return kernel;
}

void run(const Config& config, const Arguments& arguments, const How& how) {
  const ResolvedArguments resolved = resolve(config, problem_for(config, how), arguments);
  const auto kernel = kernel_for(config, resolved.shape, how);
  Backend& backend = cpu::cpu_backend();
  const std::size_t bytes = kernel->workspace_bytes(resolved);
  void* const workspace = bytes == 0 ? nullptr : backend.allocate(0, bytes);
  kernel->launch(resolved, workspace, nullptr);
  backend.deallocate(0, workspace);
}

void run_forward(HostProblem& host) {
  Config config = host.config;
  config.direction = "forward";
  Arguments arguments = host.arguments;
  for (std::optional<TensorView>* tensor :
       {&arguments.d_o, &arguments.d_lse, &arguments.dq, &arguments.dk, &arguments.dv})
    tensor->reset();
  run(config, arguments);
}

std::string run_and_judge(HostProblem& host, const How& how, std::int64_t max_rows) {
  const Problem problem = problem_for(host.config, how);
  run(host.config, host.arguments, how);
  const std::string fault = host.fault(problem, max_rows);
  if (fault.empty()) return {};
  return to_string(problem) + " " + to_string(host.shape) + " " +
         (how.schedule ? to_string(*how.schedule) : "default schedule") + ": " + fault;
}

Schedule any_schedule(const Problem& problem, const Shape& shape, std::uint64_t draw) {
  std::vector<Schedule> legal;
  for (const Candidate& candidate : cpu_family().space(problem, device_here(), shape))
    if (candidate.rejected.empty()) legal.push_back(candidate.schedule);
  if (legal.empty()) throw Error(Status::internal, "no legal schedule for " + to_string(problem));
  return legal[draw % legal.size()];
}

bool can_run(const std::string& rung) {
  const std::string best = host_cpu_rung();
  return best == rung || (best == "avx512" && rung == "avx2");
}

}  // namespace flashwright::testing
