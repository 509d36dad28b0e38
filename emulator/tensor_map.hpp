// Tensor maps as the emulator keeps them in the 128 bytes of a kernel's `TensorMap`.
#pragma once

#include "core/tensor_map.hpp"

namespace flashwright::emulator {

constexpr int kTensorMapBytes = 128;

// Throws Error(bad_argument) for what the hardware does not take.
void encode_tensor_map(const TensorMapSpec& spec, void* map);

// False when the bytes are no map of this emulator.
bool decode_tensor_map(const void* map, TensorMapSpec& spec);

}  // namespace flashwright::emulator
