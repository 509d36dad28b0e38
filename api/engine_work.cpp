// The parts of the engine that work on Configs without handing out a kernel.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "api/devices.hpp"
#include "api/engine.hpp"
#include "api/named_device.hpp"
#include "core/build_id.hpp"
#include "core/error.hpp"
#include "core/traffic.hpp"
#include "generator/emit.hpp"
#include "tuner/space.hpp"

namespace flashwright {

using nlohmann::json;

std::vector<std::string> reasons_against_config(std::string_view text, const DeviceInfo* named) {
  const Config config = config_from_json(text);
  std::vector<std::string> reasons = config_faults(config);
  if (!reasons.empty()) return reasons;
  try {
    const DeviceInfo device = device_for(config.target, named);
    ensure_families(device.target.backend);
    const Problem problem = normalise(config, device.target);
    reasons = reasons_against(problem);
    if (!reasons.empty()) return reasons;
    // Yes means that a schedule fits this device, the pinned one if there is one.
    const Shape shape = typical_shape();
    const Family& family = choose_family(problem, device, shape, config.schedule);
    const Schedule schedule = config.schedule.empty()
                                  ? family.default_schedule(problem, device, shape)
                                  : parse_schedule(config.schedule);
    const Candidate candidate = family.consider(problem, device, shape, schedule);
    if (!candidate.rejected.empty())
      reasons.push_back(fmt::format("schedule {} on {}: {}", to_string(schedule), device.name,
                                    candidate.rejected));
  } catch (const Error& error) {
    reasons.push_back(error.message);
  }
  return reasons;
}

std::string build_info() { return kBuildId; }

Built Engine::compile(const Request& request, const Schedule& schedule) {
  Backend& backend = backend_for(request.problem.target.backend);
  Built built = emit_candidate(*request.family, request.problem, schedule, backend);
  if (fetch(built, artifacts_)) return built;
  if (const std::string missing = backend.compiler_missing(); !missing.empty())
    throw Error(Status::unavailable, missing);
  flashwright::compile(built, request.problem, backend);
  keep(built, request.problem, artifacts_);
  return built;
}

BenchReport Engine::bench(std::string_view text, const Shape& shape, bool against_unfused,
                          double seconds) {
  const Request request = prepare_request(text);
  require_present(request, "bench");
  std::vector<BenchEntry> entries;
  const Selection selection = select(request, shape);
  entries.push_back({"tiled", request.problem, compile(request, selection.schedule),
                     request.family->traffic_bytes(request.problem, selection.schedule, shape)});
  if (against_unfused) {
    Request other = request;
    other.problem.algorithm = Algorithm::unfused;
    other.family = &choose_family(other.problem);
    const Schedule schedule = other.family->default_schedule(other.problem, other.device, shape);
    entries.push_back(
        {"unfused", other.problem, compile(other, schedule), unfused_bytes(other.problem, shape)});
  }
  return flashwright::bench(request.config, shape, std::move(entries),
                            backend_for(request.problem.target.backend), request.device.index,
                            seconds);
}

std::string Engine::prepare(std::string_view text, Effort effort, const PrepareProgress& progress) {
  json list;
  try {
    list = json::parse(text);
  } catch (const json::exception& error) {
    throw Error(Status::bad_argument, fmt::format("configs: not JSON: {}", error.what()));
  }
  if (!list.is_array())
    throw Error(Status::bad_argument, "configs: given no JSON array; expected an array of Configs");
  std::mutex mutex;
  std::size_t next = 0;
  std::int64_t done = 0;
  bool stop = false;
  json report = json::array();
  for (std::size_t i = 0; i < list.size(); ++i) report.push_back({});
  const auto work = [&] {
    while (true) {
      std::size_t index = 0;
      {
        const std::scoped_lock lock(mutex);
        if (stop || next == list.size()) return;
        index = next++;
      }
      const std::string config = list[index].dump();
      json row = {{"config", list[index]}};
      try {
        const Kernel* const kernel = get_kernel(config, nullptr, effort);
        row["status"] = "ready";
        row["schedule"] = to_string(kernel->code->built.schedule);
        row["from_store"] = kernel->code->built.from_store;
        row["compile_ms"] = kernel->code->built.binary.compile_ms;
        release(kernel);
      } catch (const Error& error) {
        row["status"] = "failed";
        row["why"] = error.message;
      }
      const std::scoped_lock lock(mutex);
      report[index] = row;
      if (!progress(++done, static_cast<std::int64_t>(list.size()), row.dump())) stop = true;
    }
  };
  {
    std::vector<std::jthread> threads;
    const int jobs = std::min<int>(options_.jobs > 0 ? options_.jobs : default_jobs(),
                                   static_cast<int>(list.size()));
    for (int i = 0; i < jobs; ++i) threads.emplace_back(work);
  }
  if (stop)
    throw Error(Status::interrupted,
                fmt::format("prepare: stopped after {} of {}", done, list.size()));
  return report.dump();
}

}  // namespace flashwright
