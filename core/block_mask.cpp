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

// The query blocks of each key block, in rising order, and where each entry stands in the lists by rows.
void transpose_one(const BlockLists& lists, const std::vector<std::int32_t>& offsets,
                   const std::vector<std::int32_t>& columns, std::vector<std::int32_t>& out_offsets,
                   std::vector<std::int32_t>& out_rows, std::vector<std::int32_t>* out_places) {
  const std::int64_t query_blocks = lists.query_blocks(), key_blocks = lists.key_blocks();
  out_offsets.push_back(0);
  for (std::int64_t matrix = 0; matrix < lists.batch * lists.heads; ++matrix) {
    std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> entries(
        static_cast<std::size_t>(key_blocks));
    for (std::int64_t row = 0; row < query_blocks; ++row) {
      const auto at = static_cast<std::size_t>(matrix * query_blocks + row);
      for (std::int32_t i = offsets[at]; i < offsets[at + 1]; ++i)
        if (const std::int32_t column = columns[static_cast<std::size_t>(i)]; column >= 0)
          entries[static_cast<std::size_t>(column)].emplace_back(static_cast<std::int32_t>(row), i);
    }
    for (const auto& column : entries) {
      for (const auto& [row, place] : column) {
        out_rows.push_back(row);
        if (out_places != nullptr) out_places->push_back(place);
      }
      out_offsets.push_back(static_cast<std::int32_t>(out_rows.size()));
    }
  }
}

void transpose(BlockMask& mask) {
  transpose_one(mask.lists, mask.full_offsets, mask.full_columns, mask.full_query_offsets,
                mask.full_query_rows, nullptr);
  transpose_one(mask.lists, mask.partial_offsets, mask.partial_columns, mask.partial_query_offsets,
                mask.partial_query_rows, &mask.partial_query_places);
}

void point_to_vectors(BlockMask& mask) {
  BlockLists& lists = mask.lists;
  lists.full_offsets = mask.full_offsets.data();
  lists.full_columns = mask.full_columns.data();
  lists.partial_offsets = mask.partial_offsets.data();
  lists.partial_columns = mask.partial_columns.data();
  lists.partial_bits = mask.partial_bits.data();
  lists.full_query_offsets = mask.full_query_offsets.data();
  lists.full_query_rows = mask.full_query_rows.data();
  lists.partial_query_offsets = mask.partial_query_offsets.data();
  lists.partial_query_rows = mask.partial_query_rows.data();
  lists.partial_query_places = mask.partial_query_places.data();
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
  transpose(mask);
  point_to_vectors(mask);
  return mask;
}

BlockMask transposed_lists(const BlockLists& lists) {
  if (lists.full_offsets == nullptr || lists.partial_offsets == nullptr)
    throw Error(Status::bad_argument,
                "blocks: given no offsets; expected full_offsets and partial_offsets");
  if (lists.block_q < 1 || lists.block_kv < 1 || lists.batch < 1 || lists.heads < 1 ||
      lists.seq_q < 0 || lists.seq_kv < 0)
    throw Error(
        Status::bad_argument,
        fmt::format("blocks: given blocks of {} x {}, batch {}, heads {}; expected at least 1 "
                    "of each",
                    lists.block_q, lists.block_kv, lists.batch, lists.heads));
  BlockMask mask;
  mask.lists = lists;
  const std::int64_t rows = lists.batch * lists.heads * lists.query_blocks();
  const auto copy = [&](const std::int32_t* offsets, const std::int32_t* columns,
                        std::vector<std::int32_t>& out_offsets,
                        std::vector<std::int32_t>& out_columns) {
    out_offsets.assign(offsets, offsets + rows + 1);
    for (std::int64_t row = 0; row < rows; ++row)
      if (offsets[row] < 0 || offsets[row + 1] < offsets[row])
        throw Error(Status::bad_argument,
                    fmt::format("blocks: given offsets {} and {} for row {}; expected offsets that "
                                "do not fall",
                                offsets[row], offsets[row + 1], row));
    for (std::int32_t i = 0; i < offsets[rows]; ++i)
      if (columns[i] >= lists.key_blocks())
        throw Error(Status::bad_argument,
                    fmt::format("blocks: given key block {}; expected one below {}", columns[i],
                                lists.key_blocks()));
    out_columns.assign(columns, columns + offsets[rows]);
  };
  copy(lists.full_offsets, lists.full_columns, mask.full_offsets, mask.full_columns);
  copy(lists.partial_offsets, lists.partial_columns, mask.partial_offsets, mask.partial_columns);
  const std::int64_t words = (lists.block_kv + 31) / 32;
  mask.partial_bits.assign(
      lists.partial_bits, lists.partial_bits + lists.partial_offsets[rows] * lists.block_q * words);
  transpose(mask);
  point_to_vectors(mask);
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
