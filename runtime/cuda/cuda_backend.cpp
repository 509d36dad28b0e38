#include "runtime/cuda/cuda_backend.hpp"

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "core/error.hpp"
#include "runtime/cuda/arch_choice.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/cuda/tensor_map.hpp"

namespace flashwright {
namespace {

using cuda::Driver;

// Dense matrix operations per cycle of one multiprocessor with mma.sync and fp32 accumulation, and
// of its plain fp32 units: NVIDIA's architecture white papers.
struct Rate {
  int major, minor;
  double half_flop, single_flop;
};
constexpr std::array<Rate, 9> kRates = {{{8, 0, 2048, 128},
                                         {8, 6, 1024, 256},
                                         {8, 7, 2048, 256},
                                         {8, 9, 1024, 256},
                                         {9, 0, 4096, 256},
                                         {10, 0, 8192, 256},
                                         {10, 3, 8192, 256},
                                         {12, 0, 1024, 256},
                                         {12, 1, 1024, 256}}};

constexpr unsigned kSmemForAll = 48 * 1024;  // bytes that a block may use without being asked for

// Makes a device's primary context current for a scope, unless a context of that device already is.
class DeviceScope {
 public:
  DeviceScope(const Driver& driver, int device_index, cuda::Context primary) : driver_(driver) {
    cuda::Context current = nullptr;
    cuda::Device device = -1;
    check(driver_, driver_.CtxGetCurrent(&current), "cuCtxGetCurrent");
    if (current != nullptr && driver_.CtxGetDevice(&device) == 0 && device == device_index) return;
    check(driver_, driver_.CtxPushCurrent(primary), "cuCtxPushCurrent");
    pushed_ = true;
  }
  ~DeviceScope() {
    cuda::Context popped;
    if (pushed_) driver_.CtxPopCurrent(&popped);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

class CudaModule final : public Module {
 public:
  CudaModule(const Driver& driver, cuda::Library library) : driver_(driver), library_(library) {}
  ~CudaModule() override { driver_.LibraryUnload(library_); }
  CudaModule(const CudaModule&) = delete;
  CudaModule& operator=(const CudaModule&) = delete;

  struct Entry {
    cuda::Kernel kernel = nullptr;
    unsigned threads = 0;
    unsigned smem_bytes = 0;
    bool early = false;
  };
  std::vector<Entry> entries;

  // Asks for the shared memory that a kernel does not get by itself; each device has to be asked
  // once. Called before every launch.
  void prepare(int device_index) const;

 private:
  const Driver& driver_;
  cuda::Library library_;
  mutable std::atomic<std::uint64_t> prepared_{0};  // a bit for each of the first devices
};

void CudaModule::prepare(int device_index) const {
  const std::uint64_t bit = device_index < 64 ? std::uint64_t{1} << device_index : 0;
  if ((prepared_.load(std::memory_order_acquire) & bit) != 0) return;
  for (const Entry& entry : entries)
    if (entry.smem_bytes > kSmemForAll)
      check(driver_,
            driver_.KernelSetAttribute(cuda::kMaxDynamicSmem, static_cast<int>(entry.smem_bytes),
                                       entry.kernel, device_index),
            "cuKernelSetAttribute");
  prepared_.fetch_or(bit, std::memory_order_release);
}

// While it lives, this thread may load code although a stream of its own is being captured into a graph.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() { driver_.ThreadExchangeStreamCaptureMode(&mode_); }

  const Driver& driver_;
  int mode_ = cuda::kCaptureModeRelaxed;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const Driver* driver, std::string missing)
      : driver_(driver), missing_(std::move(missing)) {}

  BackendKind kind() const override { return BackendKind::cuda; }
  std::string compiler_missing() override { return nvrtc::missing(); }
  std::string device_missing() override { return driver_ == nullptr ? missing_ : std::string(); }
  std::vector<DeviceInfo> describe() override;
  std::string toolchain(const Target&) override { return nvrtc::fingerprint(); }
  Binary::Kind binary_kind(const Target& target) const override {
    return nvrtc::binary_kind(target);
  }
  Binary compile(const Source& source) override { return nvrtc::compile(source); }
  std::unique_ptr<Module> load(const Binary& binary, const LaunchPlan& plan,
                               int device_index) override;
  void launch(const Module& module, std::span<const StepLaunch> steps, const void* params,
              int device_index, void* stream) override;
  void encode_tensor_map(const TensorMapSpec& spec, void* map, int device_index) override {
    // The driver encodes on the host, yet only while a context is current.
    const DeviceScope scope(usable(), device_index, primary(device_index));
    cuda::encode_tensor_map(usable(), spec, map);
  }
  double time(int device_index, void* stream, const std::function<void()>& run) override;
  void synchronize(int device_index, void* stream) override;
  void* allocate(int device_index, std::size_t bytes) override;
  void deallocate(int device_index, void* memory) override;
  void copy_in(int device_index, void* memory, const void* host, std::size_t bytes) override;
  void copy_out(int device_index, void* host, const void* memory, std::size_t bytes) override;

 private:
  const Driver& usable() const {
    if (driver_ == nullptr) throw Error(Status::unavailable, missing_);
    return *driver_;
  }
  // The primary context of a device, retained for the life of the process.
  cuda::Context primary(int device_index);

  const Driver* driver_;
  std::string missing_;
  std::mutex mutex_;
  std::map<int, cuda::Context> primaries_;
};

cuda::Context CudaBackend::primary(int device_index) {
  const std::scoped_lock lock(mutex_);
  cuda::Context& context = primaries_[device_index];
  if (context == nullptr)
    check(usable(), usable().DevicePrimaryCtxRetain(&context, device_index),
          "cuDevicePrimaryCtxRetain");
  return context;
}

std::vector<DeviceInfo> CudaBackend::describe() {
  std::vector<DeviceInfo> devices;
  if (driver_ == nullptr) return devices;
  const Driver& d = *driver_;
  int count = 0;
  check(d, d.DeviceGetCount(&count), "cuDeviceGetCount");
  // Without a compiler, stored kernels still run: those of the newest compiler we know.
  const std::pair<int, int> nvrtc_version =
      nvrtc::missing().empty() ? nvrtc::identity().version : std::pair{99, 0};
  for (int index = 0; index < count; ++index) {
    cuda::Device device = 0;
    check(d, d.DeviceGet(&device, index), "cuDeviceGet");
    const auto attribute = [&](cuda::DeviceAttribute which) {
      int value = 0;
      check(d, d.DeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
      return value;
    };
    DeviceInfo info;
    std::array<char, 128> name{};
    d.DeviceGetName(name.data(), static_cast<int>(name.size()) - 1, device);
    info.name = name.data();
    info.index = index;
    info.present = true;
    const std::pair capability{attribute(cuda::kComputeMajor), attribute(cuda::kComputeMinor)};
    const auto choices = cuda::arch_choices(capability, nvrtc_version);
    if (choices.empty() || capability.first < 8) continue;  // older than every kernel family
    info.target = {BackendKind::cuda, choices.front().arch};
    info.sm_count = attribute(cuda::kSmCount);
    info.smem_per_block = attribute(cuda::kSmemPerBlockOptin);
    info.smem_per_sm = attribute(cuda::kSmemPerSm);
    info.l2_bytes = attribute(cuda::kL2CacheSize);
    info.clock_ghz = attribute(cuda::kClockRate) * 1e-6;
    info.memory_gbps =
        2.0 * attribute(cuda::kMemoryClockRate) * attribute(cuda::kMemoryBusWidth) / 8 * 1e-6;
    for (const Rate& rate : kRates) {
      if (std::pair(rate.major, rate.minor) > capability)
        continue;  // the last one that is not above it
      const double scale = info.sm_count * info.clock_ghz * 1e-3;
      info.peak_tflops = {{"fp16", rate.half_flop * scale},
                          {"bf16", rate.half_flop * scale},
                          {"fp32", rate.single_flop * scale}};
    }
    devices.push_back(std::move(info));
  }
  return devices;
}

std::unique_ptr<Module> CudaBackend::load(const Binary& binary, const LaunchPlan& plan,
                                          int device_index) {
  const Driver& d = usable();
  const DeviceScope scope(d, device_index, primary(device_index));
  const RelaxedCapture relaxed(d);
  cuda::Library library = nullptr;
  check(d,
        d.LibraryLoadData(&library, binary.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData");
  auto module = std::make_unique<CudaModule>(d, library);
  for (const LaunchStep& step : plan.steps) {
    CudaModule::Entry entry;
    entry.threads = static_cast<unsigned>(step.threads);
    entry.smem_bytes = static_cast<unsigned>(step.smem_bytes);
    entry.early = step.early;
    check(d, d.LibraryGetKernel(&entry.kernel, library, step.entry.c_str()), "cuLibraryGetKernel");
    module->entries.push_back(entry);
  }
  module->prepare(device_index);
  return module;
}

void CudaBackend::launch(const Module& module, std::span<const StepLaunch> steps,
                         const void* params, int device_index, void* stream) {
  const Driver& d = usable();
  const DeviceScope scope(d, device_index, primary(device_index));
  const auto& code = static_cast<const CudaModule&>(module);
  code.prepare(device_index);
  constexpr std::int64_t kMaxGrid = 2147483647;
  for (const StepLaunch& step : steps)  // before the first one is on its way
    if (step.grid > kMaxGrid)
      throw Error(Status::bad_argument,
                  fmt::format("the launch needs {} blocks; a grid holds {}: split the batch",
                              step.grid, kMaxGrid));
  void* arguments[] = {const_cast<void*>(params)};
  for (const StepLaunch& step : steps) {
    const CudaModule::Entry& entry = code.entries[static_cast<std::size_t>(step.entry)];
    cuda::LaunchAttribute early{cuda::kProgrammaticStreamSerialization, 0, {1}};
    const cuda::LaunchConfig config = {{static_cast<unsigned>(step.grid), 1, 1},
                                       {entry.threads, 1, 1},
                                       entry.smem_bytes,
                                       static_cast<cuda::Stream>(stream),
                                       entry.early ? &early : nullptr,
                                       entry.early ? 1u : 0u};
    check(d, d.LaunchKernelEx(&config, entry.kernel, arguments, nullptr), "cuLaunchKernelEx");
  }
}

double CudaBackend::time(int device_index, void* stream, const std::function<void()>& run) {
  const Driver& d = usable();
  const DeviceScope scope(d, device_index, primary(device_index));
  struct Events {
    const Driver& driver;
    std::array<cuda::Event, 2> event{};
    ~Events() {
      for (const cuda::Event e : event)
        if (e != nullptr) driver.EventDestroy(e);
    }
  } events{d};
  for (cuda::Event& event : events.event) check(d, d.EventCreate(&event, 0), "cuEventCreate");
  const auto on = static_cast<cuda::Stream>(stream);
  check(d, d.EventRecord(events.event[0], on), "cuEventRecord");
  run();
  check(d, d.EventRecord(events.event[1], on), "cuEventRecord");
  check(d, d.EventSynchronize(events.event[1]), "cuEventSynchronize");
  float milliseconds = 0;
  check(d, d.EventElapsedTime(&milliseconds, events.event[0], events.event[1]),
        "cuEventElapsedTime");
  return milliseconds * 1e3;
}

void CudaBackend::synchronize(int device_index, void* stream) {
  const Driver& d = usable();
  const DeviceScope scope(d, device_index, primary(device_index));
  check(d, d.StreamSynchronize(static_cast<cuda::Stream>(stream)), "cuStreamSynchronize");
}

void* CudaBackend::allocate(int device_index, std::size_t bytes) {
  const Driver& d = usable();
  const DeviceScope scope(d, device_index, primary(device_index));
  cuda::DevicePointer pointer = 0;
  const cuda::Result result = d.MemAlloc(&pointer, std::max<std::size_t>(bytes, 1));
  if (result == cuda::kOutOfMemory)
    throw Error(Status::device_error,
                fmt::format("cuMemAlloc: no {} bytes of device memory", bytes));
  check(d, result, "cuMemAlloc");
  return reinterpret_cast<void*>(pointer);
}

void CudaBackend::deallocate(int device_index, void* memory) {
  if (memory == nullptr) return;
  const Driver& d = usable();
  const DeviceScope scope(d, device_index, primary(device_index));
  check(d, d.MemFree(reinterpret_cast<cuda::DevicePointer>(memory)), "cuMemFree");
}

void CudaBackend::copy_in(int device_index, void* memory, const void* host, std::size_t bytes) {
  const Driver& d = usable();
  const DeviceScope scope(d, device_index, primary(device_index));
  if (bytes != 0)
    check(d, d.MemcpyHtoD(reinterpret_cast<cuda::DevicePointer>(memory), host, bytes),
          "cuMemcpyHtoD");
}

void CudaBackend::copy_out(int device_index, void* host, const void* memory, std::size_t bytes) {
  const Driver& d = usable();
  const DeviceScope scope(d, device_index, primary(device_index));
  if (bytes != 0)
    check(d, d.MemcpyDtoH(host, reinterpret_cast<cuda::DevicePointer>(memory), bytes),
          "cuMemcpyDtoH");
}

}  // namespace

Backend& cuda_backend() {
  static Backend* const instance = new CudaBackend(cuda::driver(), cuda::missing());
  return *instance;
}

std::unique_ptr<Backend> make_cuda_backend(const Driver* driver) {
  return std::make_unique<CudaBackend>(driver, "no driver");
}

}  // namespace flashwright
