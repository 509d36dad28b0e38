// The CUDA driver, loaded at run time. Own declarations of the few functions used, so that the
// library builds and emits kernels on a machine that has never seen CUDA.
#pragma once

#include <cstddef>
#include <string>

namespace flashwright::cuda {

using Result = int;  // CUresult; 0 is success
constexpr Result kOutOfMemory = 2;
using Device = int;
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Library = struct CUlib_st*;
using Kernel = struct CUkern_st*;
using DevicePointer = unsigned long long;

// Values of enums in cuda.h.
enum DeviceAttribute : int {
  kClockRate = 13,
  kSmCount = 16,
  kMemoryClockRate = 36,
  kMemoryBusWidth = 37,
  kL2CacheSize = 38,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kSmemPerSm = 81,
  kSmemPerBlockOptin = 97,
};
enum FunctionAttribute : int { kMaxDynamicSmem = 8, kPreferredCarveout = 9 };
constexpr int kCaptureModeRelaxed = 2;

// CUlaunchAttribute, of which we set an integer.
struct LaunchAttribute {
  int id;
  int padding;
  union {
    int value;
    char room[64];
  };
};
constexpr int kProgrammaticStreamSerialization = 6;  // CU_LAUNCH_ATTRIBUTE_...

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3];
  unsigned block[3];
  unsigned smem_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// The functions, by their names in the driver less the prefix. A table of pointers, so that tests
// can put another driver in its place.
struct Driver {
  Result (*Init)(unsigned);
  Result (*DriverGetVersion)(int*);
  Result (*GetErrorString)(Result, const char**);
  Result (*DeviceGetCount)(int*);
  Result (*DeviceGet)(Device*, int);
  Result (*DeviceGetName)(char*, int, Device);
  Result (*DeviceGetAttribute)(int*, int, Device);
  Result (*DevicePrimaryCtxRetain)(Context*, Device);
  Result (*CtxGetCurrent)(Context*);
  Result (*CtxGetDevice)(Device*);
  Result (*CtxPushCurrent)(Context);
  Result (*CtxPopCurrent)(Context*);
  Result (*ThreadExchangeStreamCaptureMode)(int*);
  Result (*StreamSynchronize)(Stream);
  Result (*EventCreate)(Event*, unsigned);
  Result (*EventRecord)(Event, Stream);
  Result (*EventSynchronize)(Event);
  Result (*EventElapsedTime)(float*, Event, Event);
  Result (*EventDestroy)(Event);
  Result (*MemAlloc)(DevicePointer*, std::size_t);
  Result (*MemFree)(DevicePointer);
  Result (*MemcpyHtoD)(DevicePointer, const void*, std::size_t);
  Result (*MemcpyDtoH)(void*, DevicePointer, std::size_t);
  Result (*LibraryLoadData)(Library*, const void*, void*, void*, unsigned, void*, void*, unsigned);
  Result (*LibraryUnload)(Library);
  Result (*LibraryGetKernel)(Kernel*, Library, const char*);
  Result (*KernelSetAttribute)(int, int, Kernel, Device);
  Result (*LaunchKernelEx)(const LaunchConfig*, Kernel, void**, void**);
  // Null where the driver has none. The map, type, rank, base, shape, strides in bytes, box, steps,
  // interleave, swizzle, promotion, fill.
  Result (*TensorMapEncodeTiled)(void*, int, unsigned, void*, const unsigned long long*,
                                 const unsigned long long*, const unsigned*, const unsigned*, int,
                                 int, int, int);
};

// The driver of this machine, initialised. Null when there is none or it has no device; `missing()`
// says why.
const Driver* driver();
std::string missing();
std::string version();  // "13.0", as far as the driver supports CUDA; "" without a driver

// Throws Error(device_error) naming the call and the driver's own words, or Error(capturing) when the
// driver refuses because a stream is being captured.
void check(const Driver& driver, Result result, const char* call);

}  // namespace flashwright::cuda
