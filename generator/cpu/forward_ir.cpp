#include "generator/cpu/forward_ir.hpp"

#include <fmt/format.h>

#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/cpu/kernel.hpp"
#include "generator/cpu/module.hpp"

namespace flashwright {

using namespace ir;

namespace {

ParamLayout forward_params(const Problem& problem) {
  const MaskInfo& mask = info(problem.mask);
  using enum Param;
  ParamLayout layout = common_params();
  if (!mask.lists) layout.add(heads_kv);
  if (mask.lists || problem.dropout) layout.add(heads_q);
  if (problem.softcap)
    for (const Param param : {softcap_log2, tanh_scale}) layout.add(param);
  if (problem.alibi)
    for (const Param param : {alibi_slopes, alibi_batch_stride, alibi_head_stride})
      layout.add(param);
  if (problem.alibi || (!mask.lists && problem.mask != Mask::Kind::none)) layout.add(q_position);
  for (const std::string& name : mask.parameters) layout.add(param_named(name));
  if (problem.dropout)
    for (const Param param : {drop_threshold, keep_scale, dropout_key, rng_state})
      layout.add(param);
  if (mask.lists)
    for (const Param param : {block_q, block_kv, query_blocks, mask_batch, mask_heads, full_offsets,
                              full_columns, partial_offsets, partial_columns, partial_bits})
      layout.add(param);
  return layout;
}

class ForwardKernel {
 public:
  ForwardKernel(Kernel& kernel) : k(kernel), ir(kernel.ir), t(kernel.tiling) {}

  void emit() {
    const bool lists = info(k.problem.mask).lists;
    rows_ = lists ? decode_task_of_lists(k) : decode_task(k);
    k.flush_denormals();
    fill_row_tables(k, rows_, true, true);
    pack_queries(k);
    clear_outputs(k);
    if (k.problem.dropout) read_dropout_key();
    lists ? walk_lists() : walk_range();
    store_outputs(k);
    store_lse(k, rows_);
    k.restore_denormals();
  }

 private:
  // What decides about masking one tile.
  struct Test {
    V needed;               // whether elements have to be looked at
    V bits, words_per_row;  // with block lists: where the bits are
  };

  void read_dropout_key() {
    ir.phase("dropout.key", "The seed of the dropout bits: from memory when a state was given.");
    const V state = k.param(Param::rng_state);
    const V given = negate_bit(equal(state, ir.null())).named("state.given");
    // Read from the parameters themselves when there is no state, so that no branch is needed.
    const V from = select(given, state, ir.params());
    const V seed = ir.load({Kind::i64}, from, 8).named("seed");
    const V offset = ir.load({Kind::i64}, ir.offset(from, 8), 8).named("offset");
    constexpr std::uint64_t kOffsetFactor = 0x9E3779B97F4A7C15u;
    const V key = seed + offset * static_cast<std::int64_t>(kOffsetFactor);
    dropout_.key = select(given, key, k.param(Param::dropout_key)).named("dropout.key");
    dropout_.threshold = k.param(Param::drop_threshold);
  }

  void walk_range() {
    ir.phase("keys", "The keys that some row of this tile may see.");
    const KeyRange range = key_range(k, rows_);
    ir.loop("key.tile", range.begin, range.end, t.tile_kv, [&](V first) {
      const V count = smaller(range.end - first, ir.i64(t.tile_kv)).named("key.count");
      const V inside =
          less_equal(range.full_begin, first) & less_equal(first + count, range.full_end);
      tile(first, count, {negate_bit(inside).named("on.boundary"), {}, {}});
    });
  }

  void walk_lists() {
    ir.phase("lists",
             "The key blocks of this query block: first the partial ones, then the full ones.");
    const V seq_kv = k.param(Param::seq_kv), block_kv = k.param(Param::block_kv);
    const auto entry = [&](Param list, V index) {
      return widen_signed(ir.load({Kind::i32}, ir.element(k.param(list), Kind::i32, index), 4),
                          Kind::i64);
    };
    const V partial_first = entry(Param::partial_offsets, rows_.block_row).named("partial.first");
    const V partial_end = entry(Param::partial_offsets, rows_.block_row + 1);
    const V full_first = entry(Param::full_offsets, rows_.block_row).named("full.first");
    const V full_end = entry(Param::full_offsets, rows_.block_row + 1);
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
      const V bit_row = (place * k.param(Param::block_q) + rows_.row_in_block) * words;
      ir.loop("key.tile", start, end, t.tile_kv, [&](V first) {
        const V count = smaller(end - first, ir.i64(t.tile_kv)).named("key.count");
        const V word = bit_row + shift_right(first - start, 5);
        tile(first, count,
             {partial, ir.element(k.param(Param::partial_bits), Kind::i32, word), words});
      });
    });
  }

  void tile(V first, V count, const Test& test) {
    const V steps = divide_unsigned(count + (t.key_step() - 1), ir.i64(t.key_step()));
    const V padded = (steps * t.key_step()).named("padded.count");
    ir.phase("scores",
             "Scores, transposed: (key, row) = sum over dims of k * q. Maxima on the way.");
    k.each_vector("max.start", [&](V column) {
      const V old = k.load_floats(ir.element(k.buffer(t.at.row_max), Kind::f32, column));
      k.store_floats(old, ir.element(k.buffer(t.at.tile_max), Kind::f32, column));
    });
    if (k.problem.alibi) fill_distances(k, first);
    const V scores = k.buffer(t.at.scores);
    multiply_keys(k, tile_rows(Param::k, Param::k_batch_stride, first), scores, count, padded,
                  true);
    const V padding = less(count, padded).named("has.padding");
    ir.when("hide", test.needed | padding, [&] {
      if (test.bits) {
        mask_tile_by_bits(k, scores, test.needed, test.bits, test.words_per_row, rows_.count, count,
                          padded);
      } else {
        mask_tile(k, scores, first, count, padded);
      }
    });
    ir.phase("weights", "Weights 2^(score - max) in place of the scores, and what they sum to.");
    if (k.problem.dropout) {
      softmax_tile_with_dropout(k, dropout_, first, count);
    } else {
      softmax_rows(k, scores, padded);
    }
    ir.phase("outputs",
             "Outputs, transposed: (dim, row) = alpha * itself + sum over keys of v * weight.");
    multiply_values(k, tile_rows(Param::v, Param::v_batch_stride, first), scores, count, true);
  }

  TileRows tile_rows(Param base, Param strides, V first) {
    const V stride = k.param(static_cast<Param>(static_cast<int>(strides) + 1));
    return {k.row_of(base, strides, rows_.batch, first, rows_.head_kv), stride};
  }

  Kernel& k;
  Builder& ir;
  const Tiling& t;
  TaskRows rows_;
  Dropout dropout_;
};

}  // namespace

Source emit_tiled(const Problem& problem, const Schedule& schedule) {
  const Tiling tiling(problem, schedule);
  Source source = new_source(problem);
  source.plan.params = forward_params(problem);
  Builder ir("fw_forward", module_target(problem), banner(problem, schedule, tiling));
  ir.begin_function("fw_forward");
  Kernel kernel(ir, problem, tiling, source.plan.params);
  ForwardKernel(kernel).emit();
  ir.end_function();
  source.text = ir.print();
  source.plan.steps = {{"fw_forward", 0, tiling.scratch_bytes, task_rule(problem, tiling)}};
  return source;
}

}  // namespace flashwright
