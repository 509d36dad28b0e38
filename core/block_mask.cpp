#include "core/block_mask.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/mask.hpp"

namespace flashwright {
namespace {

// Looks at one block and files it as absent, full or partial.
void add_block(BlockMask& mask, const std::uint8_t* keep, std::int64_t first_q,
               std::int64_t first_kv, std::int32_t column) {
  const BlockLists& l = mask.lists;
  const std::int64_t rows = std::min(l.block_q, l.seq_q - first_q);
  const std::int64_t keys = std::min(l.block_kv, l.seq_kv - first_kv);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < keys; ++j)
      count += keep[(first_q + i) * l.seq_kv + first_kv + j] != 0;
  if (count == 0) return;
  if (count == rows * keys) {
    mask.full_columns.push_back(column);
    return;
  }
  mask.partial_columns.push_back(column);
  const std::int64_t words = (l.block_kv + 31) / 32;
  const std::size_t start = mask.partial_bits.size();
  mask.partial_bits.resize(start + static_cast<std::size_t>(l.block_q * words));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < keys; ++j)
      if (keep[(first_q + i) * l.seq_kv + first_kv + j] != 0)
        mask.partial_bits[start + static_cast<std::size_t>(i * words + j / 32)] |= 1u << (j % 32);
}

}  // namespace

BlockMask block_mask_from_dense(const std::uint8_t* keep, std::int64_t batch, std::int64_t heads,
                                std::int64_t seq_q, std::int64_t seq_kv, std::int64_t block_q,
                                std::int64_t block_kv) {
  if (block_q < 1 || block_kv < 1 || block_q >= kMaxSequence || block_kv >= kMaxSequence)
    throw Error(
        Status::bad_argument,
        fmt::format("block size: given {} x {}; expected at least 1 x 1", block_q, block_kv));
  if (batch < 1 || heads < 1 || seq_q < 0 || seq_kv < 0)
    throw Error(
        Status::bad_argument,
        fmt::format("mask: given shape ({}, {}, {}, {}); expected at least one batch entry and "
                    "one head",
                    batch, heads, seq_q, seq_kv));
  BlockMask mask;
  BlockLists& lists = mask.lists;
  lists.seq_q = seq_q;
  lists.seq_kv = seq_kv;
  lists.block_q = block_q;
  lists.block_kv = block_kv;
  lists.batch = batch;
  lists.heads = heads;
  mask.full_offsets.push_back(0);
  mask.partial_offsets.push_back(0);
  for (std::int64_t matrix = 0; matrix < batch * heads; ++matrix) {
    const std::uint8_t* const elements = keep + matrix * seq_q * seq_kv;
    for (std::int64_t first_q = 0; first_q < seq_q; first_q += block_q) {
      for (std::int64_t first_kv = 0; first_kv < seq_kv; first_kv += block_kv)
        add_block(mask, elements, first_q, first_kv,
                  static_cast<std::int32_t>(first_kv / block_kv));
      mask.full_offsets.push_back(static_cast<std::int32_t>(mask.full_columns.size()));
      mask.partial_offsets.push_back(static_cast<std::int32_t>(mask.partial_columns.size()));
    }
  }
  lists.full_offsets = mask.full_offsets.data();
  lists.full_columns = mask.full_columns.data();
  lists.partial_offsets = mask.partial_offsets.data();
  lists.partial_columns = mask.partial_columns.data();
  lists.partial_bits = mask.partial_bits.data();
  return mask;
}

bool visible(const BlockLists& l, std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) {
  const std::int64_t row =
      ((b % l.batch) * l.heads + h % l.heads) * l.query_blocks() + q / l.block_q;
  const std::int64_t column = kv / l.block_kv;
  for (std::int32_t i = l.full_offsets[row]; i < l.full_offsets[row + 1]; ++i)
    if (l.full_columns[i] == column) return true;
  const std::int64_t words = (l.block_kv + 31) / 32;
  const std::int64_t key = kv % l.block_kv;
  for (std::int32_t i = l.partial_offsets[row]; i < l.partial_offsets[row + 1]; ++i)
    if (l.partial_columns[i] == column)
      return (l.partial_bits[(i * l.block_q + q % l.block_q) * words + key / 32] >> (key % 32) &
              1u) != 0;
  return false;
}

}  // namespace flashwright
