// Block lists made from an element mask on the host, with storage of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "core/arguments.hpp"

namespace flashwright {

struct BlockMask {
  BlockLists lists;  // points into the vectors below
  std::vector<std::int32_t> full_offsets, full_columns, partial_offsets, partial_columns;
  std::vector<std::uint32_t> partial_bits;
  std::vector<std::int32_t> full_query_offsets, full_query_rows, partial_query_offsets;
  std::vector<std::int32_t> partial_query_rows, partial_query_places;

  BlockMask() = default;
  BlockMask(BlockMask&&) = default;  // moving a vector keeps its elements in place
  BlockMask& operator=(BlockMask&&) = default;
};

// `keep`: (batch, heads, seq_q, seq_kv), dense, non-zero where the key is visible; batch and heads
// may be 1. Throws Error(bad_argument) for sizes that do not fit.
BlockMask block_mask_from_dense(const std::uint8_t* keep, std::int64_t batch, std::int64_t heads,
                                std::int64_t seq_q, std::int64_t seq_kv, std::int64_t block_q,
                                std::int64_t block_kv);

// A copy of lists in host memory that has them by key blocks as well. Throws Error(bad_argument) for offsets that fall
// and for columns that lie outside of the mask.
BlockMask transposed_lists(const BlockLists& lists);

// Whether query `q` of batch entry `b` and head `h` sees key `kv`.
bool visible(const BlockLists& lists, std::int64_t b, std::int64_t h, std::int64_t q,
             std::int64_t kv);

}  // namespace flashwright
