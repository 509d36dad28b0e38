#include "tests/api/fake_devices.hpp"

#include <mutex>

#include "api/devices.hpp"
#include "core/device_profiles.hpp"
#include "core/error.hpp"
#include "generator/emit.hpp"

namespace flashwright {
namespace testing {
namespace {

std::unique_ptr<Machine>& holder() {
  static std::unique_ptr<Machine> instance = std::make_unique<Machine>();
  return instance;
}

// The registry keeps families for ever: this one asks the machine of the moment.
struct Current final : Family {
  static const Family& now() { return *machine().family; }
  std::string name() const override { return now().name(); }
  std::vector<std::string> reasons_against(const Problem& p) const override {
    return now().reasons_against(p);
  }
  std::vector<Candidate> space(const Problem& p, const DeviceInfo& d,
                               const Shape& s) const override {
    return now().space(p, d, s);
  }
  Candidate consider(const Problem& p, const DeviceInfo& d, const Shape& s,
                     const Schedule& which) const override {
    return now().consider(p, d, s, which);
  }
  Schedule default_schedule(const Problem& p, const DeviceInfo& d, const Shape& s) const override {
    return now().default_schedule(p, d, s);
  }
  Source emit(const Problem& p, const Schedule& s) const override { return now().emit(p, s); }
};

}  // namespace

Machine::Machine(const Landscape& landscape)
    : cuda(BackendKind::cuda, landscape), cpu(BackendKind::cpu) {
  family = std::make_unique<FakeFamily>(kSchedules, landscape);
  devices = {fake_device()};
  cpu.device_lacks = "the plugin was not built";
}

Machine& machine() { return *holder(); }

Machine& fresh_machine(const Landscape& landscape) {
  holder() = std::make_unique<Machine>(landscape);
  return *holder();
}

EngineOptions in_memory() { return in_folder(":memory:"); }

EngineOptions in_folder(const std::string& folder) {
  EngineOptions options;
  options.artifacts.directory = options.tuning.directory = folder;
  options.jobs = 1;
  return options;
}

}  // namespace testing

Backend& backend_for(BackendKind kind) {
  return kind == BackendKind::cuda ? testing::machine().cuda : testing::machine().cpu;
}

const std::vector<DeviceInfo>& present_devices(BackendKind kind) {
  static const std::vector<DeviceInfo> none;
  return kind == BackendKind::cuda ? testing::machine().devices : none;
}

DeviceInfo device_for(const std::string& target) {
  if (target.empty() || target == "cuda") {
    if (!testing::machine().devices.empty()) return testing::machine().devices.front();
    throw Error(Status::unavailable, "target: no device of 'cuda': there is none");
  }
  if (target == "cpu")
    throw Error(Status::unavailable, "target: no device of 'cpu': the plugin was not built");
  const Target wanted = parse_target(target);
  for (const DeviceInfo& device : testing::machine().devices)
    if (device.target == wanted) return device;
  return assumed_device(wanted);
}

void ensure_families(BackendKind kind) {
  static const testing::Current family;
  static std::once_flag once;
  if (kind == BackendKind::cuda)
    std::call_once(once, [] { register_family(BackendKind::cuda, &family); });
}

}  // namespace flashwright
