// The structs of the C interface as values of the library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/arguments.hpp"
#include "core/block_mask.hpp"
#include "flashwright/flashwright.h"

namespace flashwright {

// Throws Error(bad_argument) naming the tensor for what DLPack can say and we cannot read.
Arguments arguments_of(const flashwright_arguments* arguments);

BlockLists lists_of(const flashwright_blocks& blocks);

// Lists with their storage; given back to free_blocks.
flashwright_blocks* make_blocks(BlockMask mask);
void free_blocks(flashwright_blocks* blocks);

}  // namespace flashwright
