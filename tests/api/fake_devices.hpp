// Stands in for api/devices.cpp: one device per backend, with the backends and families of tests/support.
#pragma once

#include <memory>

#include "api/engine.hpp"
#include "tests/support/fake_backend.hpp"

namespace flashwright::testing {

// The machine that the engine sees. CUDA has a device, the CPU has none.
struct Machine {
  FakeBackend cuda, cpu;
  std::unique_ptr<Family> family;
  std::vector<DeviceInfo> devices;  // of CUDA
  explicit Machine(const Landscape& landscape = {});
};
// A new one in the place of the last, which must not be in use.
Machine& fresh_machine(const Landscape& landscape = {});
Machine& machine();

// What most tests ask for.
inline const char* const kConfig = R"({"dtype":"fp32","head_dim":16})";
inline const std::vector<std::string> kSchedules = {"q64.kv64.w4.st2", "q128.kv64.w4.st2",
                                                    "q64.kv32.w4.st2"};

// Stores in memory, or in a folder.
EngineOptions in_memory();
EngineOptions in_folder(const std::string& folder);

// A kernel that is released at the end.
class Held {
 public:
  explicit Held(const Kernel* kernel) : kernel_(kernel) {}
  ~Held() { release(kernel_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  const Kernel* operator->() const { return kernel_; }
  const Kernel* get() const { return kernel_; }
  std::string schedule() const { return to_string(kernel_->code->built.schedule); }

 private:
  const Kernel* kernel_;
};

}  // namespace flashwright::testing
