// In the place of api/devices.cpp: one GPU whose kernels are the real texts of the sm80 family, and do nothing.
#include <cstdlib>
#include <mutex>

#include "api/devices.hpp"
#include "core/device_profiles.hpp"
#include "generator/emit.hpp"
#include "generator/sm80/family_sm80.hpp"

namespace flashwright {
namespace {

struct NullBackend final : Backend {
  BackendKind kind() const override { return BackendKind::cuda; }
  std::string compiler_missing() override { return {}; }
  std::string device_missing() override { return {}; }
  std::vector<DeviceInfo> describe() override { return present_devices(BackendKind::cuda); }
  std::string toolchain(const Target&) override { return "null"; }
  Binary::Kind binary_kind(const Target&) const override { return Binary::Kind::cubin; }
  Binary compile(const Source& source) override {
    Binary binary;
    binary.bytes = source.name;
    return binary;
  }
  std::unique_ptr<Module> load(const Binary&, const LaunchPlan&, int) override {
    return std::make_unique<Module>();
  }
  void launch(const Module&, std::span<const StepLaunch>, const void*, int, void*) override {}
  double time(int, void*, const std::function<void()>&) override { return 0; }
  void synchronize(int, void*) override {}
  void* allocate(int, std::size_t bytes) override { return std::malloc(bytes); }
  void deallocate(int, void* memory) override { std::free(memory); }
  void copy_in(int, void*, const void*, std::size_t) override {}
  void copy_out(int, void*, const void*, std::size_t) override {}
};

}  // namespace

Backend& backend_for(BackendKind) {
  static NullBackend backend;
  return backend;
}

const std::vector<DeviceInfo>& present_devices(BackendKind) {
  static const std::vector<DeviceInfo> devices = [] {
    DeviceInfo device = assumed_device({BackendKind::cuda, "sm_90a"});
    device.present = true;
    return std::vector<DeviceInfo>{device};
  }();
  return devices;
}

DeviceInfo device_for(const std::string&) { return present_devices(BackendKind::cuda).front(); }

void ensure_families(BackendKind) {
  static const FamilySm80 sm80;
  static std::once_flag once;
  std::call_once(once, [] { register_family(BackendKind::cuda, &sm80); });
}

}  // namespace flashwright
