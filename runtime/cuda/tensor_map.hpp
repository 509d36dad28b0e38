// Tensor maps of TMA, encoded by the driver.
#pragma once

#include "core/tensor_map.hpp"
#include "runtime/cuda/driver.hpp"

namespace flashwright::cuda {

// Writes the 128 bytes of a kernel's `TensorMap` to `map`, which is aligned to 64 bytes. What lies
// outside of the tensor reads as zeros. Throws Error(bad_argument) that says what is wrong with the
// spec, Error(unavailable) without a driver that can encode maps.
void encode_tensor_map(const TensorMapSpec& spec, void* map);

// Through another driver table.
void encode_tensor_map(const Driver& driver, const TensorMapSpec& spec, void* map);

}  // namespace flashwright::cuda
