// How tiles lie in shared memory: rows in slabs, with or without a swizzle. By the rule that the PTX
// manual's figures of the swizzle modes follow: with 128 bytes, the number of a 16-byte chunk in its row
// is combined by xor with the number of the row, counted from a multiple of 1024 bytes.
#pragma once

#include "tests/conformance/values.hpp"

namespace flashwright::conformance {

// Where the byte at `offset` of a tile without swizzle lies; offsets count from a multiple of 1024.
inline std::size_t swizzled(std::size_t offset, int swizzle) {
  const std::size_t chunk = offset / 16 % 8, row_of_128 = offset / 128;
  const std::size_t mask = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return row_of_128 * 128 + (chunk ^ (row_of_128 & mask)) * 16 + offset % 16;
}

inline std::size_t round_up(std::size_t value, std::size_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace flashwright::conformance
