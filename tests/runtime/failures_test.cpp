// Every call to the driver is failed once: each failure is a typed error, or of no consequence, and nothing leaks.
#include <set>

#include "core/expr_parse.hpp"
#include "runtime/cuda/cuda_backend.hpp"
#include "tests/support/fake_driver.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// Calls whose failure changes nothing that the caller could act on.
const std::set<std::string> kHarmless = {
    "cuDeviceGetName", "cuCtxGetDevice", "cuThreadExchangeStreamCaptureMode",
    "cuCtxPopCurrent", "cuEventDestroy", "cuLibraryUnload"};

// Device memory that is given back whatever happens; a call that failed once may be tried again.
class Memory {
 public:
  Memory(Backend& backend, int device, std::size_t bytes)
      : backend_(backend), device_(device), address_(backend.allocate(device, bytes)) {}
  ~Memory() {
    if (address_ != nullptr) backend_.deallocate(device_, address_);
  }
  void release() {
    backend_.deallocate(device_, address_);
    address_ = nullptr;
  }
  void* address() const { return address_; }

 private:
  Backend& backend_;
  int device_;
  void* address_;
};

// All that a tuning session does, on the second device.
void everything(Backend& backend) {
  constexpr int kDevice = 1;
  const std::vector<DeviceInfo> devices = backend.describe();
  CHECK(devices.size() == 2);
  LaunchPlan plan;
  plan.params.add(Param::q);
  plan.steps = {{"fw_forward", 128, 100000, parse_expr("1")},
                {"fw_combine", 64, 0, parse_expr("1")}};
  Binary binary;
  binary.bytes = "code";
  const std::unique_ptr<Module> module = backend.load(binary, plan, kDevice);
  Memory memory(backend, kDevice, 64);
  char bytes[64] = {};
  backend.copy_in(kDevice, memory.address(), bytes, sizeof bytes);
  const std::array<StepLaunch, 2> steps = {{{0, 3}, {1, 1}}};
  const std::uint64_t params[1] = {};
  backend.launch(*module, steps, params, kDevice, nullptr);
  backend.launch(*module, steps, params, 0, nullptr);
  backend.time(kDevice, nullptr, [&] { backend.launch(*module, steps, params, kDevice, nullptr); });
  backend.synchronize(kDevice, nullptr);
  backend.copy_out(kDevice, bytes, memory.address(), sizeof bytes);
  memory.release();
}

FakeDriver& ready_driver() {
  FakeDriver& driver = FakeDriver::fresh();
  driver.entries = {"fw_forward", "fw_combine"};
  driver.current = {0};  // the caller works on the first device
  return driver;
}

}  // namespace

TEST_CASE("whichever call fails, the error is typed, nothing leaks and the context is restored") {
  FakeDriver& healthy = ready_driver();
  everything(*make_cuda_backend(&fake_driver_table()));
  const std::vector<std::string> calls = healthy.calls;
  REQUIRE(calls.size() > 40);
  CHECK(healthy.complaints.empty());
  std::set<std::string> failed;
  for (std::size_t n = 1; n <= calls.size(); ++n) {
    const std::string& name = calls[n - 1];
    INFO("call " << n << ", " << name);
    FakeDriver& driver = ready_driver();
    driver.fail_at = static_cast<int>(n);
    std::string message;
    try {
      everything(*make_cuda_backend(&fake_driver_table()));
    } catch (const Error& error) {
      CHECK(error.status == Status::device_error);
      message = error.message;
    }
    CHECK(contains(driver.calls[n - 1], name));
    CHECK(message.empty() == (kHarmless.count(name) == 1));
    if (!message.empty()) CHECK(contains(message, name));
    // What could not be given back by the failing call itself is the driver's.
    CHECK(driver.libraries.empty());
    CHECK(driver.events.empty());
    CHECK(driver.memory.empty());
    CHECK(driver.current == std::vector<int>{0});
    CHECK(driver.capture_mode == 0);
    for (const auto& [device, count] : driver.retained) CHECK(count == 1);
    failed.insert(name);
  }
  for (const char* name :
       {"cuDeviceGetCount", "cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelSetAttribute",
        "cuLaunchKernelEx", "cuMemAlloc", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuEventRecord",
        "cuEventElapsedTime", "cuCtxPushCurrent", "cuDevicePrimaryCtxRetain"})
    CHECK(failed.count(name) == 1);
}

TEST_CASE("whichever call a capture forbids, the status says so") {
  ready_driver();
  everything(*make_cuda_backend(&fake_driver_table()));
  const std::vector<std::string> calls = FakeDriver::state().calls;
  for (std::size_t n = 1; n <= calls.size(); ++n) {
    if (kHarmless.count(calls[n - 1]) == 1) continue;
    INFO("call " << n << ", " << calls[n - 1]);
    FakeDriver& driver = ready_driver();
    driver.fail_at = static_cast<int>(n);
    driver.failure = 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    const Error error = error_of([] { everything(*make_cuda_backend(&fake_driver_table())); });
    CHECK(error.status == Status::capturing);
    CHECK(contains(error.message, calls[n - 1] + ": fake failure (error 900)"));
    CHECK(contains(error.message, "before the capture begins"));
  }
}

TEST_CASE("after a failure the same objects work again") {
  FakeDriver& driver = ready_driver();
  const auto backend = make_cuda_backend(&fake_driver_table());
  for (int n = 1; n < 200; ++n) {
    driver.calls.clear();
    driver.fail_at = n;
    try {
      everything(*backend);
    } catch (const Error&) {
      // wanted; what counts is the next turn
    }
    driver.calls.clear();
    driver.fail_at = 0;
    everything(*backend);
  }
  CHECK(driver.complaints.empty());
  CHECK(driver.libraries.empty());
  CHECK(driver.memory.empty());
}

TEST_CASE("an error inside a timed run still gives the events back") {
  FakeDriver& driver = ready_driver();
  const auto backend = make_cuda_backend(&fake_driver_table());
  const Error error =
      error_of([&] { backend->time(0, nullptr, [] { throw Error(Status::internal, "inside"); }); });
  CHECK(error.message == "inside");
  CHECK(driver.events.empty());
  CHECK(driver.current == std::vector<int>{0});
}
