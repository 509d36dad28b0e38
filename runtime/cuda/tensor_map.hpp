// Tensor maps of TMA, encoded by the driver.
#pragma once

#include "core/tensor_map.hpp"
#include "runtime/cuda/driver.hpp"

namespace flashwright::cuda {

// Writes the 128 bytes of a kernel's `TensorMap` to `map`, which is aligned to 64 bytes. What lies
// outside of the tensor reads as zeros. Needs a current context. Throws Error(bad_argument) that
// says what is wrong with the spec, Error(unavailable) if the driver cannot encode maps.
void encode_tensor_map(const Driver& driver, const TensorMapSpec& spec, void* map);

}  // namespace flashwright::cuda
