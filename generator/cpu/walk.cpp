// Which keys a tile of rows meets: those of a mask's range, or those of its block lists, a tile at a time.
#include "core/mask.hpp"
#include "generator/cpu/kernel.hpp"

namespace flashwright {

using namespace ir;

namespace {

void walk_range(Kernel& k, const TaskRows& rows, const TileBody& body) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  ir.phase("keys", "The keys that some row of this tile may see.");
  const KeyRange range = key_range(k, rows);
  ir.loop("key.tile", range.begin, range.end, t.tile_kv, [&](V first) {
    const V count = smaller(range.end - first, ir.i64(t.tile_kv)).named("key.count");
    const V inside =
        less_equal(range.full_begin, first) & less_equal(first + count, range.full_end);
    body(first, count, {negate_bit(inside).named("on.boundary"), {}, {}});
  });
}

void walk_lists(Kernel& k, const TaskRows& rows, const TileBody& body) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  ir.phase("lists",
           "The key blocks of this query block: first the partial ones, then the full ones.");
  const V seq_kv = k.param(Param::seq_kv), block_kv = k.param(Param::block_kv);
  const auto entry = [&](Param list, V index) {
    return widen_signed(ir.load({Kind::i32}, ir.element(k.param(list), Kind::i32, index), 4),
                        Kind::i64);
  };
  const V partial_first = entry(Param::partial_offsets, rows.block_row).named("partial.first");
  const V partial_end = entry(Param::partial_offsets, rows.block_row + 1);
  const V full_first = entry(Param::full_offsets, rows.block_row).named("full.first");
  const V full_end = entry(Param::full_offsets, rows.block_row + 1);
  const V partial_count = (partial_end - partial_first).named("partial.count");
  const V words = shift_right(block_kv + 31, 5).named("words.per.row");
  const V total = (partial_count + (full_end - full_first)).named("blocks");
  ir.loop("block", ir.i64(0), total, 1, [&](V index) {
    const V partial = less(index, partial_count).named("partial");
    const V list = select(partial, k.param(Param::partial_columns), k.param(Param::full_columns));
    const V place = select(partial, partial_first + index, full_first + (index - partial_count));
    const V column =
        widen_signed(ir.load({Kind::i32}, ir.element(list, Kind::i32, place), 4), Kind::i64)
            .named("column");
    const V start = (column * block_kv).named("block.first.key");
    // A negative column is padding and holds no key.
    const V end = select(less(column, std::int64_t{0}), start, smaller(start + block_kv, seq_kv));
    const V bit_row = (place * k.param(Param::block_q) + rows.row_in_block) * words;
    ir.loop("key.tile", start, end, t.tile_kv, [&](V first) {
      const V count = smaller(end - first, ir.i64(t.tile_kv)).named("key.count");
      const V word = bit_row + shift_right(first - start, 5);
      body(first, count,
           {partial, ir.element(k.param(Param::partial_bits), Kind::i32, word), words});
    });
  });
}

}  // namespace

void walk_keys(Kernel& k, const TaskRows& rows, const TileBody& body) {
  info(k.problem.mask).lists ? walk_lists(k, rows, body) : walk_range(k, rows, body);
}

void hide_keys(Kernel& k, const TaskRows& rows, V scores, V first, V count, V padded,
               const TileTest& test) {
  const V padding = less(count, padded).named("has.padding");
  k.ir.when("hide", test.needed | padding, [&] {
    if (test.bits) {
      mask_tile_by_bits(k, scores, test.needed, test.bits, test.words_per_row, rows.count, count,
                        padded);
    } else {
      mask_tile(k, scores, first, count, padded);
    }
  });
}

Dropout read_dropout_key(Kernel& k) {
  Builder& ir = k.ir;
  Dropout dropout;
  ir.phase("dropout.key", "The seed of the dropout bits: from memory when a state was given.");
  const V state = k.param(Param::rng_state);
  const V given = negate_bit(equal(state, ir.null())).named("state.given");
  // Read from the parameters themselves when there is no state, so that no branch is needed.
  const V from = select(given, state, ir.params());
  const V seed = ir.load({Kind::i64}, from, 8).named("seed");
  const V offset = ir.load({Kind::i64}, ir.offset(from, 8), 8).named("offset");
  constexpr std::uint64_t kOffsetFactor = 0x9E3779B97F4A7C15u;
  const V key = seed + offset * static_cast<std::int64_t>(kOffsetFactor);
  dropout.key = select(given, key, k.param(Param::dropout_key)).named("dropout.key");
  dropout.threshold = k.param(Param::drop_threshold);
  return dropout;
}

}  // namespace flashwright
