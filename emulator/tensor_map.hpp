// Tensor maps as the emulator keeps them in the 128 bytes of a kernel's `TensorMap`.
#pragma once

#include <vector>

#include "core/params.hpp"
#include "core/tensor_map.hpp"
#include "emulator/async.hpp"

namespace flashwright::emulator {

// Throws Error(bad_argument) for what the hardware does not take.
void encode_tensor_map(const TensorMapSpec& spec, void* map);

// False when the bytes are no map of this emulator.
bool decode_tensor_map(const void* map, TensorMapSpec& spec);

// The box that begins at `at`, in pieces of 16 bytes. `place` counts from the start of the tile, before
// the swizzle.
std::vector<Piece> box_pieces(const TensorMapSpec& spec, const int* at);

// A row of bytes in pieces.
std::vector<Piece> row_pieces(const void* global, int bytes);

}  // namespace flashwright::emulator
