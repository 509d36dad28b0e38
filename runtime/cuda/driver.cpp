#include "runtime/cuda/driver.hpp"

#include <fmt/format.h>

#include "core/error.hpp"
#include "runtime/library_search.hpp"

namespace flashwright::cuda {
namespace {

constexpr const char* kCaptureAdvice =
    "; a stream is being captured: get kernels, tune, allocate, copy and wait before the capture "
    "begins, and only launch during it";

struct Loaded {
  SharedLibrary library;
  Driver driver{};
  int version = 0;
  std::string failure;
};

// Fills the table; remembers the first function that the library lacks.
struct Finder {
  const SharedLibrary& library;
  const char* lacking = nullptr;

  template <typename Function>
  void operator()(Function& function, const char* name) {
    function = reinterpret_cast<Function>(library.symbol(name));
    if (function == nullptr && lacking == nullptr) lacking = name;
  }
  // One that most kernels do without.
  template <typename Function>
  void optional(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(library.symbol(name));
  }
};

const char* find_all(const SharedLibrary& library, Driver& d) {
  Finder find{library};
  find(d.Init, "cuInit");
  find(d.DriverGetVersion, "cuDriverGetVersion");
  find(d.GetErrorString, "cuGetErrorString");
  find(d.DeviceGetCount, "cuDeviceGetCount");
  find(d.DeviceGet, "cuDeviceGet");
  find(d.DeviceGetName, "cuDeviceGetName");
  find(d.DeviceGetAttribute, "cuDeviceGetAttribute");
  find(d.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(d.CtxGetCurrent, "cuCtxGetCurrent");
  find(d.CtxGetDevice, "cuCtxGetDevice");
  find(d.CtxPushCurrent, "cuCtxPushCurrent_v2");
  find(d.CtxPopCurrent, "cuCtxPopCurrent_v2");
  find(d.ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  find(d.StreamSynchronize, "cuStreamSynchronize");
  find(d.EventCreate, "cuEventCreate");
  find(d.EventRecord, "cuEventRecord");
  find(d.EventSynchronize, "cuEventSynchronize");
  find(d.EventElapsedTime, "cuEventElapsedTime");
  find(d.EventDestroy, "cuEventDestroy_v2");
  find(d.MemAlloc, "cuMemAlloc_v2");
  find(d.MemFree, "cuMemFree_v2");
  find(d.MemcpyHtoD, "cuMemcpyHtoD_v2");
  find(d.MemcpyDtoH, "cuMemcpyDtoH_v2");
  find(d.LibraryLoadData, "cuLibraryLoadData");
  find(d.LibraryUnload, "cuLibraryUnload");
  find(d.LibraryGetKernel, "cuLibraryGetKernel");
  find(d.KernelSetAttribute, "cuKernelSetAttribute");
  find(d.LaunchKernelEx, "cuLaunchKernelEx");
  find.optional(d.TensorMapEncodeTiled, "cuTensorMapEncodeTiled");
  return find.lacking;
}

Loaded* load() {
  auto* const out = new Loaded{};  // kept for the life of the process, as the driver is
  out->library = SharedLibrary(driver_candidates());
  if (!out->library) {
    out->failure = fmt::format("the CUDA driver was not found ({})", out->library.failure());
    return out;
  }
  if (const char* lacking = find_all(out->library, out->driver)) {
    out->failure =
        fmt::format("the CUDA driver at {} lacks {}; needed: a driver for CUDA 12.0 or newer",
                    out->library.path(), lacking);
    return out;
  }
  out->driver.DriverGetVersion(&out->version);
  const Result result = out->driver.Init(0);
  int count = 0;
  if (result != 0 || out->driver.DeviceGetCount(&count) != 0 || count == 0) {
    const char* text = nullptr;
    if (result != 0) out->driver.GetErrorString(result, &text);
    out->failure = fmt::format("the CUDA driver found no device{}{}", text != nullptr ? ": " : "",
                               text != nullptr ? text : "");
  }
  return out;
}

const Loaded& loaded() {
  static const Loaded* const instance = load();
  return *instance;
}

}  // namespace

const Driver* driver() { return loaded().failure.empty() ? &loaded().driver : nullptr; }

std::string missing() { return loaded().failure; }

std::string version() {
  const int number = loaded().version;
  return number == 0 ? std::string() : fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

void check(const Driver& driver, Result result, const char* call) {
  if (result == 0) return;
  const char* text = nullptr;
  driver.GetErrorString(result, &text);
  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED to CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD.
  const bool capturing = result >= 900 && result <= 908;
  throw Error(capturing ? Status::capturing : Status::device_error,
              fmt::format("{}: {} (error {}){}", call, text != nullptr ? text : "unknown", result,
                          capturing ? kCaptureAdvice : ""));
}

}  // namespace flashwright::cuda
