// The backend that runs kernels on this machine's processor.
#pragma once

#include "runtime/backend.hpp"

namespace flashwright::cpu {

// The one backend of the process.
Backend& cpu_backend();

// The rate of fused multiply-adds in 10^9 floating-point operations a second that `threads` threads
// reach together on registers alone: what a kernel's speed is a fraction of. Takes about
// `milliseconds`; clocks drift, so measure it next to the kernel.
double measure_fma_peak(int threads, double milliseconds);

}  // namespace flashwright::cpu
