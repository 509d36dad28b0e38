// Stands in for libcuda: all functions are there and do nothing. FAKE_CUDA_DEVICES says how many devices it counts,
// FAKE_CUDA_INIT what cuInit returns.
#include <cstdlib>

namespace {

int number(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return number("FAKE_CUDA_INIT"); }
int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "system not yet initialized";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = number("FAKE_CUDA_DEVICES");
  return 0;
}
int cuDeviceGet() { return 0; }
int cuDeviceGetName() { return 0; }
int cuDeviceGetAttribute() { return 0; }
int cuDevicePrimaryCtxRetain() { return 0; }
int cuCtxGetCurrent() { return 0; }
int cuCtxGetDevice() { return 0; }
int cuCtxPushCurrent_v2() { return 0; }
int cuCtxPopCurrent_v2() { return 0; }
int cuThreadExchangeStreamCaptureMode() { return 0; }
int cuStreamSynchronize() { return 0; }
int cuEventCreate() { return 0; }
int cuEventRecord() { return 0; }
int cuEventSynchronize() { return 0; }
int cuEventElapsedTime() { return 0; }
int cuEventDestroy_v2() { return 0; }
int cuMemAlloc_v2() { return 0; }
int cuMemFree_v2() { return 0; }
int cuMemcpyHtoD_v2() { return 0; }
int cuMemcpyDtoH_v2() { return 0; }
int cuLibraryLoadData() { return 0; }
int cuLibraryUnload() { return 0; }
int cuLibraryGetKernel() { return 0; }
int cuKernelSetAttribute() { return 0; }
int cuLaunchKernelEx() { return 0; }

}  // extern "C"
