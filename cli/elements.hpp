// Conversions between the element types of attention, to the nearest value, ties to even.
#pragma once

#include <cstddef>

#include "flashwright/config.hpp"

namespace cli {

std::size_t bytes_of(flashwright::DType dtype);

// `from` and `to` must not overlap.
void convert(flashwright::DType from, const void* in, flashwright::DType to, void* out,
             std::size_t count);

}  // namespace cli
