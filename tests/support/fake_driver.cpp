#include "tests/support/fake_driver.hpp"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>

namespace flashwright::testing {
namespace {

using cuda::Result;

constexpr Result kInvalidValue = 1, kInvalidContext = 201, kNotFound = 500;

std::unique_ptr<FakeDriver>& holder() {
  static std::unique_ptr<FakeDriver> instance = std::make_unique<FakeDriver>();
  return instance;
}

// Objects of the driver: addresses that are unique and never dereferenced by the library.
struct Object {
  std::string entry;    // of a kernel
  double recorded = 0;  // of an event
};
Object& object_of(void* handle) { return *static_cast<Object*>(handle); }
template <typename Handle>
Handle make_object(std::string entry = {}) {
  static std::deque<Object> objects;  // few, and kept, so that no address stands for two
  return reinterpret_cast<Handle>(&objects.emplace_back(Object{std::move(entry)}));
}

double& clock_ms() {
  static double now = 0;
  return now;
}

// Counts a call, and says whether it is the one to fail.
class Call {
 public:
  explicit Call(const char* name) : driver_(FakeDriver::state()), lock_(driver_.mutex) {
    driver_.calls.emplace_back(name);
    const int number = static_cast<int>(driver_.calls.size()), at = driver_.fail_at;
    if (number == at || (driver_.dies && at != 0 && number > at)) failed_ = driver_.failure;
  }
  bool fails() const { return failed_ != 0; }
  Result result() const { return failed_; }
  FakeDriver* operator->() const { return &driver_; }
  Result refuse(Result result, const std::string& why) const {
    driver_.complaints.push_back(driver_.calls.back() + ": " + why);
    return result;
  }

 private:
  FakeDriver& driver_;
  std::scoped_lock<std::mutex> lock_;
  Result failed_ = 0;
};

cuda::Context context_of(int device) {
  return reinterpret_cast<cuda::Context>(static_cast<std::intptr_t>(device) + 1000);
}

Result error_text(Result result, const char** text) {
  *text = result == 2 ? "out of memory" : "fake failure";
  return 0;
}

Result device_count(int* count) {
  const Call call("cuDeviceGetCount");
  *count = static_cast<int>(call->devices.size());
  return call.result();
}

Result device_get(cuda::Device* device, int ordinal) {
  const Call call("cuDeviceGet");
  *device = ordinal;
  return call.result();
}

Result device_name(char* name, int size, cuda::Device device) {
  const Call call("cuDeviceGetName");
  if (!call.fails())
    std::strncpy(name, call->devices.at(static_cast<std::size_t>(device)).name.c_str(),
                 static_cast<std::size_t>(size));
  return call.result();
}

Result device_attribute(int* value, int attribute, cuda::Device device) {
  const Call call("cuDeviceGetAttribute");
  const FakeDevice& d = call->devices.at(static_cast<std::size_t>(device));
  switch (attribute) {
    case cuda::kComputeMajor:
      *value = d.major;
      break;
    case cuda::kComputeMinor:
      *value = d.minor;
      break;
    case cuda::kSmCount:
      *value = d.sm_count;
      break;
    case cuda::kSmemPerBlockOptin:
      *value = d.smem_per_block;
      break;
    case cuda::kSmemPerSm:
      *value = d.smem_per_sm;
      break;
    case cuda::kL2CacheSize:
      *value = 40 << 20;
      break;
    case cuda::kClockRate:
      *value = 1410000;
      break;
    case cuda::kMemoryClockRate:
      *value = 1512000;
      break;
    case cuda::kMemoryBusWidth:
      *value = 5120;
      break;
    default:
      return call.refuse(kInvalidValue, "attribute " + std::to_string(attribute));
  }
  return call.result();
}

Result primary_retain(cuda::Context* context, cuda::Device device) {
  const Call call("cuDevicePrimaryCtxRetain");
  if (call.fails()) return call.result();
  ++call->retained[device];
  *context = context_of(device);
  return 0;
}

Result ctx_current(cuda::Context* context) {
  const Call call("cuCtxGetCurrent");
  *context = call->current.empty() ? nullptr : context_of(call->current.back());
  return call.result();
}

Result ctx_device(cuda::Device* device) {
  const Call call("cuCtxGetDevice");
  if (call->current.empty()) return call.refuse(kInvalidContext, "no context");
  *device = call->current.back();
  return call.result();
}

Result ctx_push(cuda::Context context) {
  const Call call("cuCtxPushCurrent");
  if (!call.fails())
    call->current.push_back(static_cast<int>(reinterpret_cast<std::intptr_t>(context) - 1000));
  return call.result();
}

Result ctx_pop(cuda::Context* context) {
  const Call call("cuCtxPopCurrent");
  if (call->current.empty()) return call.refuse(kInvalidContext, "no context");
  *context = context_of(call->current.back());
  call->current.pop_back();  // even when it says that it failed
  return call.result();
}

Result exchange_mode(int* mode) {
  const Call call("cuThreadExchangeStreamCaptureMode");
  std::swap(*mode, call->capture_mode);
  return call.result();
}

Result stream_synchronize(cuda::Stream) { return Call("cuStreamSynchronize").result(); }

Result event_create(cuda::Event* event, unsigned) {
  const Call call("cuEventCreate");
  if (call.fails()) return call.result();
  *event = make_object<cuda::Event>();
  call->events.insert(*event);
  return 0;
}

Result event_record(cuda::Event event, cuda::Stream) {
  const Call call("cuEventRecord");
  object_of(event).recorded = clock_ms();
  return call.result();
}

Result event_synchronize(cuda::Event) { return Call("cuEventSynchronize").result(); }

Result event_elapsed(float* milliseconds, cuda::Event start, cuda::Event end) {
  const Call call("cuEventElapsedTime");
  *milliseconds = static_cast<float>(object_of(end).recorded - object_of(start).recorded);
  return call.result();
}

Result event_destroy(cuda::Event event) {
  const Call call("cuEventDestroy");
  if (call->events.erase(event) == 0) return call.refuse(kInvalidValue, "no such event");
  return call.result();
}

Result mem_alloc(cuda::DevicePointer* pointer, std::size_t bytes) {
  const Call call("cuMemAlloc");
  if (call.fails()) return call.result();
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  *pointer = reinterpret_cast<cuda::DevicePointer>(memory);
  call->memory[*pointer] = bytes;
  return 0;
}

Result mem_free(cuda::DevicePointer pointer) {
  const Call call("cuMemFree");
  if (call.fails()) return call.result();
  if (call->memory.erase(pointer) == 0) return call.refuse(kInvalidValue, "no such memory");
  std::free(reinterpret_cast<void*>(pointer));
  return call.result();
}

bool inside(FakeDriver* driver, cuda::DevicePointer pointer, std::size_t bytes) {
  for (const auto& [start, size] : driver->memory)
    if (pointer >= start && pointer + bytes <= start + size) return true;
  return false;
}

Result copy_in(cuda::DevicePointer to, const void* from, std::size_t bytes) {
  const Call call("cuMemcpyHtoD");
  if (call.fails()) return call.result();
  if (!inside(call.operator->(), to, bytes))
    return call.refuse(kInvalidValue, "outside of any memory");
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}

Result copy_out(void* to, cuda::DevicePointer from, std::size_t bytes) {
  const Call call("cuMemcpyDtoH");
  if (call.fails()) return call.result();
  if (!inside(call.operator->(), from, bytes))
    return call.refuse(kInvalidValue, "outside of any memory");
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}

Result library_load(cuda::Library* library, const void* code, void*, void*, unsigned, void*, void*,
                    unsigned) {
  const Call call("cuLibraryLoadData");
  if (call.fails()) return call.result();
  if (code == nullptr) return call.refuse(kInvalidValue, "no code");
  *library = make_object<cuda::Library>();
  call->libraries.insert(*library);
  return 0;
}

Result library_unload(cuda::Library library) {
  const Call call("cuLibraryUnload");
  if (call->libraries.erase(library) == 0) return call.refuse(kInvalidValue, "no such library");
  return call.result();
}

Result library_kernel(cuda::Kernel* kernel, cuda::Library library, const char* name) {
  const Call call("cuLibraryGetKernel");
  if (call.fails()) return call.result();
  if (call->libraries.count(library) == 0) return call.refuse(kInvalidValue, "no such library");
  for (const std::string& entry : call->entries)
    if (entry == name) {
      *kernel = make_object<cuda::Kernel>(name);
      return 0;
    }
  return kNotFound;
}

Result kernel_attribute(int attribute, int value, cuda::Kernel kernel, cuda::Device device) {
  const Call call("cuKernelSetAttribute");
  if (call.fails()) return call.result();
  const FakeDevice& d = call->devices.at(static_cast<std::size_t>(device));
  if (attribute != cuda::kMaxDynamicSmem || value > d.smem_per_block)
    return call.refuse(kInvalidValue,
                       "attribute " + std::to_string(attribute) + " = " + std::to_string(value));
  call->smem_allowed[{kernel, device}] = value;
  return 0;
}

Result launch(const cuda::LaunchConfig* config, cuda::Kernel kernel, void** params, void** extra) {
  const Call call("cuLaunchKernelEx");
  if (call.fails()) return call.result();
  if (call->current.empty()) return call.refuse(kInvalidContext, "no context");
  const int device = call->current.back();
  const auto found = call->smem_allowed.find({kernel, device});
  const unsigned allowed =
      found == call->smem_allowed.end() ? 48 * 1024 : static_cast<unsigned>(found->second);
  if (config->smem_bytes > allowed) return call.refuse(kInvalidValue, "shared memory");
  if (config->grid[0] < 1 || config->grid[1] != 1 || config->grid[2] != 1)
    return call.refuse(kInvalidValue, "grid");
  if (config->block[0] < 1 || config->block[0] > 1024) return call.refuse(kInvalidValue, "block");
  if (params == nullptr || extra != nullptr) return call.refuse(kInvalidValue, "parameters");
  bool early = false;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    if (config->attributes[i].id != cuda::kProgrammaticStreamSerialization)
      return call.refuse(kInvalidValue, "launch attribute");
    early = config->attributes[i].value == 1;
  }
  const auto* const block = static_cast<const unsigned char*>(params[0]);
  call->launches.push_back(
      {*config, object_of(kernel).entry, device, {block, block + call->param_bytes}, early});
  clock_ms() += call->launch_ms;
  return 0;
}

Result encode_map(void* map, int type, unsigned rank, void* base, const unsigned long long* shape,
                  const unsigned long long* strides, const unsigned* box, const unsigned* steps,
                  int interleave, int swizzle, int promotion, int fill) {
  const Call call("cuTensorMapEncodeTiled");
  if (call.fails()) return call.result();
  if (call->current.empty()) return call.refuse(kInvalidContext, "no context");
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0)
    return call.refuse(kInvalidValue, "map is not aligned to 64 bytes");
  call->maps.push_back({type,
                        interleave,
                        swizzle,
                        promotion,
                        fill,
                        base,
                        {shape, shape + rank},
                        {strides, strides + rank - 1},
                        {box, box + rank},
                        {steps, steps + rank}});
  std::memset(map, 0x5a, 128);
  return 0;
}

}  // namespace

FakeDriver& FakeDriver::state() { return *holder(); }

FakeDriver& FakeDriver::fresh() {
  holder() = std::make_unique<FakeDriver>();
  return *holder();
}

const cuda::Driver& fake_driver_table() {
  static const cuda::Driver table = [] {
    cuda::Driver d{};
    d.GetErrorString = &error_text;
    d.DeviceGetCount = &device_count;
    d.DeviceGet = &device_get;
    d.DeviceGetName = &device_name;
    d.DeviceGetAttribute = &device_attribute;
    d.DevicePrimaryCtxRetain = &primary_retain;
    d.CtxGetCurrent = &ctx_current;
    d.CtxGetDevice = &ctx_device;
    d.CtxPushCurrent = &ctx_push;
    d.CtxPopCurrent = &ctx_pop;
    d.ThreadExchangeStreamCaptureMode = &exchange_mode;
    d.StreamSynchronize = &stream_synchronize;
    d.EventCreate = &event_create;
    d.EventRecord = &event_record;
    d.EventSynchronize = &event_synchronize;
    d.EventElapsedTime = &event_elapsed;
    d.EventDestroy = &event_destroy;
    d.MemAlloc = &mem_alloc;
    d.MemFree = &mem_free;
    d.MemcpyHtoD = &copy_in;
    d.MemcpyDtoH = &copy_out;
    d.LibraryLoadData = &library_load;
    d.LibraryUnload = &library_unload;
    d.LibraryGetKernel = &library_kernel;
    d.KernelSetAttribute = &kernel_attribute;
    d.LaunchKernelEx = &launch;
    d.TensorMapEncodeTiled = &encode_map;
    return d;
  }();
  return table;
}

}  // namespace flashwright::testing
