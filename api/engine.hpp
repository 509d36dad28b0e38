// The engine behind the C interface: devices, stores, loaded kernels, and the way from a Config to
// a kernel.
#pragma once

#include <array>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "api/selection.hpp"
#include "cache/artifacts.hpp"
#include "cache/flight.hpp"
#include "cache/trials.hpp"
#include "runtime/loaded_kernel.hpp"
#include "tuner/bench.hpp"
#include "tuner/builder.hpp"
#include "tuner/session.hpp"

namespace flashwright {

enum class Effort : int { loaded = 0, cached = 1, compile = 2, tune = 3 };
std::optional<Effort> parse_effort(std::string_view text);

// Compiled and loaded code; shared by all Configs that differ in run-time values only.
struct Code {
  Problem problem;
  DeviceInfo device;
  const Family* family = nullptr;
  Built built;  // schedule, source, binary
  std::unique_ptr<LoadedKernel> loaded;
};

// What a caller holds: code, and the values of its Config.
struct Kernel {
  Config config;
  std::shared_ptr<const Code> code;
  Selection selection;
  mutable std::atomic<int> references{1};
};
void retain(const Kernel* kernel);
void release(const Kernel* kernel);

struct EngineOptions {
  StoreOptions artifacts, tuning;
  Effort effort = Effort::tune;      // the most any call may spend
  int jobs = 0;                      // threads that compile; 0: default_jobs()
  std::optional<DeviceInfo> device;  // that every Config is meant for; see api/named_device
};
EngineOptions engine_options_from_json(std::string_view json);

// A Config made ready: what it means on which device.
struct Request {
  Config config;
  DeviceInfo device;
  Problem problem;
  const Family* family = nullptr;
};

// Every reason why a Config cannot be served here, the machine's and the kernel families' alike. `named`
// is the option `device`, or null.
std::vector<std::string> reasons_against_config(std::string_view json,
                                                const DeviceInfo* named = nullptr);

// One line: compiler and date-free facts of this build.
std::string build_info();

// Called with done of total and a line of JSON; false asks to stop.
using PrepareProgress =
    std::function<bool(std::int64_t done, std::int64_t total, const std::string& event)>;

class Engine {
 public:
  explicit Engine(EngineOptions options);
  ~Engine();

  // Throws Error(bad_argument) or Error(unsupported) with every reason. `named` (may be null) goes before
  // the engine's own device.
  Request prepare_request(std::string_view json, const DeviceInfo* named = nullptr) const;

  // The one of the options, or null.
  const DeviceInfo* device() const { return options_.device ? &*options_.device : nullptr; }

  // A retained kernel, fast for `shape` (null: no particular one) and right for any. Equal texts in
  // the same bucket are served from a table.
  const Kernel* get_kernel(std::string_view json, const Shape* shape, Effort effort);

  Selection select(const Request& request, const Shape& shape);

  // Searches and stores; `device` (may be null) goes before the engine's own.
  TuneReport tune(std::string_view json, const Shape& shape, const DeviceInfo* device,
                  TuneOptions options);

  // The binary of a request, from the store or compiled and stored; for any known target.
  Built compile(const Request& request, const Schedule& schedule);

  // Times the kernel of a Config, with the unfused computation beside it when asked.
  BenchReport bench(std::string_view json, const Shape& shape, bool against_unfused,
                    double seconds);

  // Gets the kernels of a JSON array of Configs in parallel; a report as JSON. One failure does not
  // stop the rest.
  std::string prepare(std::string_view configs, Effort effort, const PrepareProgress& progress);

  ArtifactStore& artifacts() { return artifacts_; }
  TuningStore& tuning() { return tuning_; }

 private:
  // Kernels of one Config text, by bucket; the last place is for calls without a shape.
  struct Entry {
    int sm_count = 0;
    std::array<std::atomic<const Kernel*>, kBuckets + 1> kernels{};
  };
  using CodePointer = std::shared_ptr<const Code>;

  Effort limit(Effort effort) const;
  void require_present(const Request& request, const char* who) const;
  const Kernel* find(std::string_view json, const Shape* shape);
  std::shared_ptr<const Code> code_for(const Request& request, const Schedule& schedule,
                                       Effort effort);
  CodePointer make_code(const Request& request, const Schedule& schedule, Effort effort);
  void forget_requests();  // the next get_kernel chooses anew

  const EngineOptions options_;
  ArtifactStore artifacts_;
  TuningStore tuning_;
  Flight flight_;

  std::shared_mutex entries_mutex_;
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries_;

  // Code by problem, schedule and device. The future lets callers of one key wait for one
  // compilation.
  std::mutex code_mutex_;
  std::map<std::string, std::shared_future<CodePointer>> code_;
};

// The engine of the process. Never destroyed: kernels may be launched while the process ends.
Engine& default_engine();

}  // namespace flashwright
