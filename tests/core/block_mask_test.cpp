#include "core/block_mask.hpp"

#include <random>

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace gen = rc::gen;

namespace {

// The blocks of a mask by key blocks, read off its lists by rows.
void check_transposed(const BlockLists& l) {
  const auto check = [&](const std::int32_t* offsets, const std::int32_t* columns,
                         const std::int32_t* query_offsets, const std::int32_t* rows,
                         const std::int32_t* places) {
    std::int32_t at = 0;
    for (std::int64_t matrix = 0; matrix < l.batch * l.heads; ++matrix)
      for (std::int64_t column = 0; column < l.key_blocks(); ++column) {
        const std::int64_t c = matrix * l.key_blocks() + column;
        REQUIRE(query_offsets[c] == at);
        for (std::int64_t row = 0; row < l.query_blocks(); ++row) {
          const std::int64_t r = matrix * l.query_blocks() + row;
          for (std::int32_t i = offsets[r]; i < offsets[r + 1]; ++i) {
            if (columns[i] != column) continue;
            REQUIRE(at < query_offsets[c + 1]);
            CHECK(rows[at] == row);
            if (places != nullptr) CHECK(places[at] == i);
            ++at;
          }
        }
        REQUIRE(query_offsets[c + 1] == at);
      }
  };
  check(l.full_offsets, l.full_columns, l.full_query_offsets, l.full_query_rows, nullptr);
  check(l.partial_offsets, l.partial_columns, l.partial_query_offsets, l.partial_query_rows,
        l.partial_query_places);
}

struct Dense {
  std::int64_t batch, heads, seq_q, seq_kv;
  std::vector<std::uint8_t> keep;
  bool sees(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    return keep[static_cast<std::size_t>((((b % batch) * heads + h % heads) * seq_q + q) * seq_kv +
                                         kv)] != 0;
  }
};

// Random elements in patches, so that some blocks are full, some empty and some mixed.
Dense random_mask() {
  Dense mask{
      *gen::inRange(1, 3), *gen::inRange(1, 3), *gen::inRange(0, 80), *gen::inRange(0, 80), {}};
  std::mt19937 random(*gen::arbitrary<unsigned>());
  const std::int64_t patch = *gen::inRange(1, 40);
  mask.keep.resize(static_cast<std::size_t>(mask.batch * mask.heads * mask.seq_q * mask.seq_kv));
  std::vector<unsigned> mood(100000);
  for (unsigned& m : mood) m = static_cast<unsigned>(random() % 3);
  for (std::size_t i = 0; i < mask.keep.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const auto place =
        static_cast<std::size_t>(at / mask.seq_kv / patch * 100 + at % mask.seq_kv / patch);
    const unsigned m = mood[place % mood.size()];
    mask.keep[i] = m == 0 ? 0 : m == 1 ? 255 : static_cast<std::uint8_t>(random() % 2 * 7);
  }
  return mask;
}

}  // namespace

TEST_CASE("lists made from an element mask show exactly its elements") {
  property("visible", [] {
    const Dense dense = random_mask();
    const std::int64_t block_q = *gen::element(1, 3, 16, 64),
                       block_kv = *gen::element(1, 5, 31, 32, 33, 64);
    const BlockMask made = block_mask_from_dense(dense.keep.data(), dense.batch, dense.heads,
                                                 dense.seq_q, dense.seq_kv, block_q, block_kv);
    // Batches and heads beyond those of the mask share its entries.
    for (std::int64_t b = 0; b < 2 * dense.batch; ++b)
      for (std::int64_t h = 0; h < 2 * dense.heads; ++h)
        for (std::int64_t q = 0; q < dense.seq_q; ++q)
          for (std::int64_t kv = 0; kv < dense.seq_kv; ++kv)
            if (b < dense.batch || h < dense.heads)
              RC_ASSERT(visible(made.lists, b, h, q, kv) == dense.sees(b, h, q, kv));
  });
}

TEST_CASE("full blocks are listed as full and empty ones not at all") {
  property("sorted into the right list", [] {
    const Dense dense = random_mask();
    constexpr std::int64_t kBlock = 16;
    const BlockMask made = block_mask_from_dense(dense.keep.data(), dense.batch, dense.heads,
                                                 dense.seq_q, dense.seq_kv, kBlock, kBlock);
    const std::int64_t rows = dense.batch * dense.heads * made.lists.query_blocks();
    RC_ASSERT(static_cast<std::int64_t>(made.full_offsets.size()) == rows + 1);
    RC_ASSERT(static_cast<std::int64_t>(made.partial_offsets.size()) == rows + 1);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column * kBlock < dense.seq_kv; ++column) {
        const std::int64_t matrix = row / made.lists.query_blocks(),
                           first = row % made.lists.query_blocks() * kBlock;
        std::int64_t kept = 0, all = 0;
        for (std::int64_t q = first; q < std::min(first + kBlock, dense.seq_q); ++q)
          for (std::int64_t kv = column * kBlock;
               kv < std::min((column + 1) * kBlock, dense.seq_kv); ++kv, ++all)
            kept += dense.sees(matrix / dense.heads, matrix % dense.heads, q, kv);
        const auto count = [&](const auto& offsets, const auto& columns) {
          return std::count(columns.begin() + offsets[static_cast<std::size_t>(row)],
                            columns.begin() + offsets[static_cast<std::size_t>(row) + 1], column);
        };
        RC_ASSERT(count(made.full_offsets, made.full_columns) == (kept == all ? 1 : 0));
        RC_ASSERT(count(made.partial_offsets, made.partial_columns) ==
                  (kept > 0 && kept < all ? 1 : 0));
      }
  });
}

TEST_CASE("the lists stay valid when the mask moves") {
  const std::vector<std::uint8_t> keep(64, 1);
  BlockMask first = block_mask_from_dense(keep.data(), 1, 1, 8, 8, 4, 4);
  const BlockMask second = std::move(first);
  CHECK(second.lists.full_columns == second.full_columns.data());
  CHECK(visible(second.lists, 0, 0, 7, 7));
}

TEST_CASE("the same blocks are listed by keys") {
  property("transposed", [] {
    const Dense dense = random_mask();
    const std::int64_t block_q = *gen::element(1, 3, 16, 64), block_kv = *gen::element(1, 5, 32);
    const BlockMask made = block_mask_from_dense(dense.keep.data(), dense.batch, dense.heads,
                                                 dense.seq_q, dense.seq_kv, block_q, block_kv);
    check_transposed(made.lists);
    // Lists of a user have none, but perhaps padding.
    BlockLists plain = made.lists;
    plain.full_query_offsets = plain.full_query_rows = plain.partial_query_offsets =
        plain.partial_query_rows = plain.partial_query_places = nullptr;
    const BlockMask copied = transposed_lists(plain);
    check_transposed(copied.lists);
    RC_ASSERT(copied.partial_bits == made.partial_bits);
    RC_ASSERT(copied.full_query_rows == made.full_query_rows);
  });
  const std::int32_t offsets[] = {0, 3}, columns[] = {1, -1, 0}, none[] = {0, 0};
  BlockLists padded;
  padded.seq_q = 4;
  padded.seq_kv = 8;
  padded.block_q = padded.block_kv = 4;
  padded.full_offsets = offsets;
  padded.full_columns = columns;
  padded.partial_offsets = none;
  const BlockMask copied = transposed_lists(padded);
  CHECK(copied.full_query_offsets == std::vector<std::int32_t>{0, 1, 2});
  CHECK(copied.full_columns == std::vector<std::int32_t>{1, -1, 0});
  const std::int32_t outside[] = {2, 0, 0}, falling[] = {2, 1};
  padded.full_columns = outside;
  CHECK(contains(error_of([&] { transposed_lists(padded); }).message, "key block 2; expected one"));
  padded.full_offsets = falling;
  CHECK(contains(error_of([&] { transposed_lists(padded); }).message, "do not fall"));
  padded.block_q = 0;
  CHECK(contains(error_of([&] { transposed_lists(padded); }).message, "blocks of 0 x 4"));
}

TEST_CASE("sizes that make no mask are refused") {
  const std::uint8_t keep[4] = {};
  struct Row {
    std::int64_t batch, heads, seq_q, seq_kv, block_q, block_kv;
    std::vector<std::string> named;
  };
  const std::vector<Row> table = {
      {1, 1, 2, 2, 0, 4, {"block size", "0 x 4", "at least 1 x 1"}},
      {1, 1, 2, 2, 4, -1, {"block size", "4 x -1", "at least 1 x 1"}},
      {1, 1, 2, 2, 4, std::int64_t{1} << 40, {"block size", "1099511627776"}},
      {0, 1, 2, 2, 4, 4, {"mask", "(0, 1, 2, 2)", "at least one batch entry"}},
      {1, 1, -2, 2, 4, 4, {"mask", "(1, 1, -2, 2)"}}};
  for (const Row& r : table) {
    const Error error = error_of([&] {
      block_mask_from_dense(keep, r.batch, r.heads, r.seq_q, r.seq_kv, r.block_q, r.block_kv);
    });
    CHECK(error.status == Status::bad_argument);
    for (const std::string& part : r.named) CHECK(contains(error.message, part));
  }
}
