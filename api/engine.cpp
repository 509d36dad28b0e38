#include "api/engine.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/devices.hpp"
#include "api/named_device.hpp"
#include "core/device_profiles.hpp"
#include "core/env.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "generator/emit.hpp"
#include "tuner/space.hpp"

namespace flashwright {
namespace {

constexpr double kQuickBudget = 20;  // seconds that get_kernel may spend on tuning

}  // namespace

std::optional<Effort> parse_effort(std::string_view text) {
  if (text == "loaded") return Effort::loaded;
  if (text == "cached") return Effort::cached;
  if (text == "compile") return Effort::compile;
  if (text == "tune") return Effort::tune;
  return std::nullopt;
}

EngineOptions engine_options_from_json(std::string_view text) {
  using nlohmann::json;
  EngineOptions options;
  const std::string from_environment = env::get(env::Variable::effort);
  std::string effort = from_environment.empty() ? "tune" : from_environment;
  const char* effort_from = "FLASHWRIGHT_EFFORT";
  try {
    const json object = text.empty() ? json::object() : json::parse(text);
    for (const auto& [name, value] : object.items()) {
      if (name == "cache_dir") {
        options.artifacts.directory = value.get<std::string>();
      } else if (name == "data_dir") {
        options.tuning.directory = value.get<std::string>();
      } else if (name == "max_bytes") {
        options.artifacts.max_bytes = value.get<std::int64_t>();
      } else if (name == "jobs") {
        options.jobs = value.get<int>();
      } else if (name == "device") {
        options.device = device_from_option(value.dump());
      } else if (name == "effort") {
        effort = value.get<std::string>();
        effort_from = "engine options: effort";
      } else {
        throw Error(
            Status::bad_argument,
            fmt::format(
                "engine options: unknown field '{}'; known: cache_dir, data_dir, max_bytes, "
                "effort, jobs, device",
                name));
      }
    }
  } catch (const json::exception& error) {
    throw Error(Status::bad_argument, fmt::format("engine options: {}", error.what()));
  }
  const std::optional<Effort> parsed = parse_effort(effort);
  if (!parsed)
    throw Error(
        Status::bad_argument,
        fmt::format("{} is '{}'; allowed: loaded, cached, compile, tune", effort_from, effort));
  options.effort = *parsed;
  return options;
}

void retain(const Kernel* kernel) { kernel->references.fetch_add(1, std::memory_order_relaxed); }

void release(const Kernel* kernel) {
  if (kernel->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete kernel;
}

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      artifacts_(options_.artifacts),
      tuning_(options_.tuning),
      flight_(artifacts_.status().path) {
  for (const std::string& name : env::unknown())
    log(LogLevel::warn,
        fmt::format("the environment sets {}, which nothing reads; `flashwright doctor` lists "
                    "what is read",
                    name));
}

Engine::~Engine() { forget_requests(); }

Effort Engine::limit(Effort effort) const { return std::min(effort, options_.effort); }

Request Engine::prepare_request(std::string_view json, const DeviceInfo* named) const {
  Request out;
  out.config = config_from_json(json);
  // Faults of the Config come before those of the machine.
  if (const std::vector<std::string> faults = config_faults(out.config); !faults.empty())
    throw Error(Status::bad_argument, fmt::format("config: {}", fmt::join(faults, "; ")));
  out.device = device_for(out.config.target, named != nullptr ? named : device());
  ensure_families(out.device.target.backend);
  out.problem = normalise(out.config, out.device.target);
  out.family = &choose_family(out.problem, out.device, typical_shape(), out.config.schedule);
  return out;
}

void Engine::require_present(const Request& request, const char* who) const {
  if (request.device.present) return;
  throw Error(
      Status::unavailable,
      fmt::format("{}: no device for '{}' is present{}; emit, compile and tune work without "
                  "one",
                  who, to_string(request.problem.target),
                  device() == nullptr ? "" : " of the class of " + device()->name));
}

Selection Engine::select(const Request& request, const Shape& shape) {
  return select_schedule(request.config, request.problem, request.device, shape, *request.family,
                         tuning_, shipped_decisions());
}

const Kernel* Engine::find(std::string_view json, const Shape* shape) {
  // The key lives in the calling thread, so that a lookup allocates nothing.
  thread_local std::string key;
  key.assign(json);
  const std::shared_lock lock(entries_mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  Entry& entry = *found->second;
  const int place = shape == nullptr ? kBuckets : bucket_index(*shape, entry.sm_count);
  const Kernel* const kernel =
      entry.kernels[static_cast<std::size_t>(place)].load(std::memory_order_acquire);
  if (kernel != nullptr) retain(kernel);
  return kernel;
}

const Kernel* Engine::get_kernel(std::string_view json, const Shape* shape, Effort effort) {
  if (const Kernel* const kernel = find(json, shape)) return kernel;
  effort = limit(effort);
  const Request request = prepare_request(json);
  require_present(request, "target");
  const Shape wanted = shape != nullptr ? *shape : typical_shape();
  Selection selection = select(request, wanted);
  if (effort == Effort::tune && selection.choice != Choice::config &&
      selection.choice != Choice::measured && selection.choice != Choice::shipped) {
    TuneOptions quick;
    quick.budget_s = kQuickBudget;
    tune(json, wanted, nullptr, quick);
    selection = select(request, wanted);
  }
  auto kernel = std::make_unique<Kernel>();
  kernel->config = request.config;
  kernel->code = code_for(request, selection.schedule, effort);
  kernel->selection = std::move(selection);

  const std::unique_lock lock(entries_mutex_);
  std::unique_ptr<Entry>& entry = entries_[std::string(json)];
  if (entry == nullptr) {
    entry = std::make_unique<Entry>();
    entry->sm_count = request.device.sm_count;
  }
  const int place = shape == nullptr ? kBuckets : bucket_index(*shape, entry->sm_count);
  std::atomic<const Kernel*>& slot = entry->kernels[static_cast<std::size_t>(place)];
  if (const Kernel* const other = slot.load()) {  // somebody was faster; all get the same
    retain(other);
    return other;
  }
  retain(kernel.get());
  slot.store(kernel.get(), std::memory_order_release);
  return kernel.release();
}

void Engine::forget_requests() {
  const std::unique_lock lock(entries_mutex_);
  for (auto& [text, entry] : entries_)
    for (std::atomic<const Kernel*>& slot : entry->kernels)
      if (const Kernel* const kernel = slot.exchange(nullptr)) release(kernel);
  entries_.clear();
}

std::shared_ptr<const Code> Engine::code_for(const Request& request, const Schedule& schedule,
                                             Effort effort) {
  const std::string key = fmt::format("{} {} device {}", to_string(request.problem),
                                      to_string(schedule), request.device.index);
  std::promise<CodePointer> promise;
  std::shared_future<CodePointer> future;
  bool mine = false;
  {
    const std::scoped_lock lock(code_mutex_);
    const auto found = code_.find(key);
    if (found != code_.end()) {
      future = found->second;
    } else if (effort == Effort::loaded) {
      throw Error(Status::not_cached,
                  fmt::format("{} {} is not loaded, and the effort allowed is 'loaded'",
                              to_string(request.problem), to_string(schedule)));
    } else {
      future = code_[key] = promise.get_future().share();
      mine = true;
    }
  }
  if (!mine) return future.get();
  try {
    promise.set_value(make_code(request, schedule, effort));
  } catch (...) {
    {  // waiters get the failure; the next caller tries again
      const std::scoped_lock lock(code_mutex_);
      code_.erase(key);
    }
    promise.set_exception(std::current_exception());
  }
  return future.get();
}

Engine::CodePointer Engine::make_code(const Request& request, const Schedule& schedule,
                                      Effort effort) {
  Backend& backend = backend_for(request.problem.target.backend);
  auto code = std::make_shared<Code>();
  code->problem = request.problem;
  code->device = request.device;
  code->family = request.family;
  code->built = emit_candidate(*request.family, request.problem, schedule, backend);
  Built& built = code->built;
  const std::string label = fmt::format("{} {}", to_string(request.problem), to_string(schedule));
  const auto load = [&] {
    code->loaded = std::make_unique<LoadedKernel>(backend, built.binary, built.source.plan,
                                                  request.device.index);
  };
  if (fetch(built, artifacts_)) {
    load();
    return code;
  }
  if (effort < Effort::compile)
    throw Error(Status::not_cached,
                fmt::format("{} is not in the store {}, and the effort allowed is 'cached'; "
                            "`flashwright compile` or prepare() puts it there",
                            label, artifacts_.status().place()));
  if (const std::string missing = backend.compiler_missing(); !missing.empty())
    throw Error(Status::unavailable,
                fmt::format("{} is not in the store and cannot be compiled: {}", label, missing));
  // One compilation for many processes that start cold together.
  const Flight::Turn turn =
      flight_.wait(built.key, label, [&] { return artifacts_.contains(built.key); });
  if (!fetch(built, artifacts_)) {
    flashwright::compile(built, request.problem, backend);
    log(LogLevel::info, fmt::format("compiled {} in {:.0f} ms", label, built.binary.compile_ms));
    keep(built, request.problem, artifacts_);
  }
  load();
  return code;
}

TuneReport Engine::tune(std::string_view json, const Shape& shape, const DeviceInfo* device,
                        TuneOptions options) {
  const Request request = prepare_request(json, device);
  if (options.jobs == 0) options.jobs = options_.jobs;
  Backend& backend = backend_for(request.problem.target.backend);
  if (!request.device.present && !backend.compiler_missing().empty())
    throw Error(Status::unavailable, backend.compiler_missing());
  TuneRequest what = {request.config, request.problem, *request.family,
                      backend,        request.device,  shape};
  const Slot slot = make_slot(request.problem, request.device, shape);
  if (const Shipped found = find_shipped(shipped_decisions(), slot); found.decision != nullptr)
    what.known = found.decision->schedule;
  TuneReport report = flashwright::tune(what, artifacts_, tuning_, options);
  forget_requests();
  return report;
}

Engine& default_engine() {
  static Engine* const engine = new Engine(engine_options_from_json(""));
  return *engine;
}

}  // namespace flashwright
