// CUDA devices: compiles through NVRTC, launches through the driver.
#pragma once

#include <memory>

#include "runtime/backend.hpp"
#include "runtime/cuda/driver.hpp"

namespace flashwright {

// The backend over this machine's driver; one for the process.
Backend& cuda_backend();

// Over another driver table, for tests; null behaves like a machine without a driver.
std::unique_ptr<Backend> make_cuda_backend(const cuda::Driver* driver);

}  // namespace flashwright
