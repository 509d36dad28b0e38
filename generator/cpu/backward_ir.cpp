#include "generator/cpu/backward_ir.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/cpu/backward.hpp"
#include "generator/cpu/math_ir.hpp"
#include "generator/cpu/module.hpp"

namespace flashwright {

using namespace ir;

namespace {

constexpr int kLeastTiles =
    4;  // of queries, that a task should have before a head is split further

ParamLayout backward_params(const Problem& problem) {
  using enum Param;
  ParamLayout layout;
  // clang-format off
  for (const Param param : {
           q, k, v, o_given, lse_given, d_o, d_lse, dq, dk, dv,
           q_batch_stride, q_row_stride, q_head_stride, k_batch_stride, k_row_stride, k_head_stride,
           v_batch_stride, v_row_stride, v_head_stride, o_batch_stride, o_row_stride, o_head_stride,
           lse_batch_stride, lse_head_stride, d_o_batch_stride, d_o_row_stride, d_o_head_stride,
           d_lse_batch_stride, d_lse_head_stride, dq_batch_stride, dq_row_stride, dq_head_stride,
           dk_batch_stride, dk_row_stride, dk_head_stride, dv_batch_stride, dv_row_stride, dv_head_stride,
           batch, heads_q, heads_kv, group, seq_q, seq_kv, softmax_scale, scale_log2, workspace})
    layout.add(param);
  // clang-format on
  add_feature_params(layout, problem);
  return layout;
}

// Query tiles of one key head, over all query heads that share it.
std::string tiles_rule(const Problem& problem, const Tiling& tiling) {
  if (info(problem.mask).lists)
    return fmt::format("ceil_div(block_q, {}) * query_blocks * floor_div(heads_q, heads_kv)",
                       tiling.tile_q);
  return fmt::format("ceil_div(floor_div(heads_q, heads_kv) * seq_q, {})", tiling.tile_q);
}

class BackwardKernel {
 public:
  BackwardKernel(Kernel& kernel) : k(kernel), ir(kernel.ir), t(kernel.tiling) {}

  void emit() {
    const V parts = integer_of(k, *parse_expr(backward_parts_rule(k.problem, t))).named("parts");
    const V heads_kv = k.param(Param::heads_kv);
    const V part = remainder_unsigned(ir.task(), parts).named("part");
    const V pair = divide_unsigned(ir.task(), parts).named("batch.and.head");
    rows_.batch = divide_unsigned(pair, heads_kv).named("b");
    rows_.head_kv = remainder_unsigned(pair, heads_kv).named("h_kv");
    k.flush_denormals();
    if (k.problem.dropout) dropout_ = read_dropout_key(k);
    wanted_ = read_wanted(k);
    const V heads = heads_kv * k.param(Param::batch);
    work_ = workspace_of(k, wanted_, heads, parts * heads);
    work_.k = row_at(work_.k, t.width, pair * work_.rows).named("keys");
    work_.v = row_at(work_.v, t.width_v, pair * work_.rows).named("values");
    clear_sums();
    const V tiles = integer_of(k, *parse_expr(tiles_rule(k.problem, t))).named("tiles");
    const int together = t.query_tiles;
    const V groups = divide_unsigned(tiles + (together - 1), ir.i64(together)).named("groups");
    // A task takes every so many groups, so that a causal mask gives all tasks about the same to do.
    const V turns = divide_unsigned(groups - part + (parts - 1), parts).named("turns");
    ir.loop("group", ir.i64(0), turns, 1, [&](V turn) {
      const V group = part + turn * parts;
      if (info(k.problem.mask).lists) return tile_of_lists(group);
      const V first = group * together;
      tiles_of_range(first, smaller(tiles - first, ir.i64(together)).named("tiles.here"));
    });
    k.restore_denormals();
  }

 private:
  void clear_sums() {
    ir.phase("clear.sums", "The sums of this task for keys and values: nothing yet.");
    const auto clear = [&](const char* name, V wanted, V& sums, int width) {
      sums = row_at(sums, width, ir.task() * work_.rows).named(name);
      ir.when(name, wanted, [&] {
        ir.loop("clear.row", ir.i64(0), work_.rows, 1, [&](V row) {
          for (int column = 0; column < width; column += t.lanes)
            k.store_floats(k.all(0),
                           ir.offset(ir.element(sums, Kind::f32, row * width), column * 4));
        });
      });
    };
    clear("dk.sums", wanted_.dk, work_.dk, t.width);
    clear("dv.sums", wanted_.dv, work_.dv, t.width_v);
  }

  // One tile of queries inside of a mask block, with the key blocks of its lists.
  void tile_of_lists(V tile) {
    const V seq_q = k.param(Param::seq_q), group = k.param(Param::group);
    const V block_q = k.param(Param::block_q), query_blocks = k.param(Param::query_blocks);
    const V in_block = divide_unsigned(block_q + (t.tile_q - 1), ir.i64(t.tile_q));
    const V rest = divide_unsigned(tile, in_block);
    const V block = remainder_unsigned(rest, query_blocks).named("query.block");
    rows_.head = (rows_.head_kv * group + divide_unsigned(rest, query_blocks)).named("h");
    locate_rows_of_lists(k, rows_, remainder_unsigned(tile, in_block), block, seq_q, block_q);
    // The last mask block may end before its last tile begins.
    ir.when("has.rows", less(ir.i64(0), rows_.count), [&] {
      rows_.block_row = list_row(k, rows_, block, query_blocks);
      begin_rows();
      walk_keys(k, rows_, [this](V first, V count, const TileTest& test) {
        tile_of_keys(first, count, test);
      });
      end_rows();
    });
  }

  // Several tiles of queries: each tile of keys is brought near once for all of them.
  void tiles_of_range(V first_tile, V count) {
    const auto each = [&](const char* name, const std::function<void()>& body) {
      ir.loop(name, ir.i64(0), count, 1, [&](V slot) {
        use(first_tile, slot);
        body();
      });
    };
    each("tile.begin", [&] { begin_rows(); });
    ir.phase("keys", "The keys that some row of these tiles may see.");
    constexpr std::int64_t kFar = std::int64_t{1} << 40;
    const Values range =
        ir.loop("tile.range", ir.i64(0), count, 1, {{ir.i64(kFar), "begin"}, {ir.i64(0), "end"}},
                [&](V slot, const Values& now) -> Values {
                  use(first_tile, slot);
                  const KeyRange one = key_range(k, rows_);
                  return {smaller(now[0], one.begin), larger(now[1], one.end)};
                });
    ir.loop("key.tile", range[0], range[1], t.tile_kv, [&](V first) {
      const V keys = smaller(range[1] - first, ir.i64(t.tile_kv)).named("key.count");
      each("tile", [&] { tile_of_range(first, keys); });
    });
    each("tile.end", [&] { end_rows(); });
  }

  void tile_of_range(V first, V staged) {
    const KeyRange range = key_range(k, rows_);
    const V meets = less(first, range.end) & less(range.begin, first + staged);
    ir.when("tile.sees", meets, [&] {
      const V count = smaller(range.end - first, ir.i64(t.tile_kv)).named("key.count");
      const V inside =
          less_equal(range.full_begin, first) & less_equal(first + count, range.full_end);
      tile_of_keys(first, count, {negate_bit(inside).named("on.boundary"), {}, {}});
    });
  }

  void use(V first_tile, V slot) {
    const V seq_q = k.param(Param::seq_q), group = k.param(Param::group);
    if (t.query_tiles > 1) k.use_slot(slot);
    locate_rows(k, rows_, first_tile + slot, {seq_q, group, seq_q * group});
  }

  void begin_rows() {
    fill_backward_tables(k, rows_);
    pack_backward_rows(k);
    find_delta(k);
    ir.when("dq.clear", wanted_.dq, [&] { clear_dq(k); });
  }

  void end_rows() {
    ir.phase("store.dq",
             "Gradients of the queries: scaled, transposed back, converted and stored.");
    ir.when("dq.store", wanted_.dq, [&] { store_dq(k); });
  }

  V padded(V count) {
    const V steps = divide_unsigned(count + (t.key_step() - 1), ir.i64(t.key_step()));
    return (steps * t.key_step()).named("padded.count");
  }

  void tile_of_keys(V first, V count, const TileTest& test) {
    const V padded = this->padded(count);
    ir.phase("scores", "Scores, transposed: (key, row) = sum over dims of k * q.");
    if (k.problem.alibi) fill_distances(k, first);
    const V keys = row_at(work_.k, t.width, first), values = row_at(work_.v, t.width_v, first);
    multiply_scores(k, keys, padded);
    hide_keys(k, rows_, k.buffer(t.at.scores), first, count, padded, test);
    ir.phase("weight.gradients", "Gradients of the weights: sum over dims of v * d_o.");
    ir.when("d.weights", wanted_.scores(), [&] { multiply_weights(k, values, padded); });
    ir.phase("score.gradients",
             "Weights 2^(score - lse), and what they and their gradients say about the scores.");
    if (k.problem.dropout) {
      find_gradients_with_dropout(k, dropout_, first, count, padded);
    } else {
      find_gradients(k, padded);
    }
    ir.phase("value.gradients", "Sums for the values: over rows, weight * d_o.");
    ir.when("add.dv", wanted_.dv, [&] {
      add_to_keys(k, "wg", t.at.scores, t.at.d_o_copy, t.width_v,
                  row_at(work_.dv, t.width_v, first), rows_.count, padded);
    });
    ir.phase("key.gradients", "Sums for the keys: over rows, score gradient * q.");
    ir.when("add.dk", wanted_.dk, [&] {
      add_to_keys(k, "sq", t.at.d_scores, t.at.q_copy, t.width, row_at(work_.dk, t.width, first),
                  rows_.count, padded);
    });
    ir.phase("query.gradients", "Sums for the queries, transposed: over keys, k * score gradient.");
    ir.when("add.dq", wanted_.dq, [&] { add_to_dq(k, keys, count); });
  }

  V row_at(V rows, int width, V row) { return ir.element(rows, Kind::f32, row * width); }

  Kernel& k;
  Builder& ir;
  const Tiling& t;
  TaskRows rows_;
  Wanted wanted_;
  Workspace work_;  // of this task
  Dropout dropout_;
};

}  // namespace

// Tasks that share the tiles of a key head. Fixed by the sizes and the schedule alone, never by the threads that are
// there, since it decides in which order gradients of keys are summed.
std::string backward_parts_rule(const Problem& problem, const Tiling& tiling) {
  return fmt::format("max(1, min(ceil_div({}, heads_kv * batch), floor_div({}, {})))", tiling.tasks,
                     tiles_rule(problem, tiling), std::max(kLeastTiles, tiling.query_tiles));
}

Source emit_backward(const Problem& problem, const Schedule& schedule) {
  const Tiling tiling(problem, schedule);
  Source source = new_source(problem);
  source.plan.params = backward_params(problem);
  Builder ir("fw_backward", module_target(problem), banner(problem, schedule, tiling));
  Kernel kernel(ir, problem, tiling, source.plan.params);
  ir.begin_function("fw_backward_copy");
  emit_copy(kernel);
  ir.end_function();
  ir.begin_function("fw_backward");
  BackwardKernel(kernel).emit();
  ir.end_function();
  ir.begin_function("fw_backward_convert");
  emit_convert(kernel);
  ir.end_function();
  source.text = ir.print();
  const std::string heads = "heads_kv * batch";
  const std::string tasks = fmt::format("{} * {}", backward_parts_rule(problem, tiling), heads);
  const auto step = [&](const char* entry, const std::string& grid) {
    source.plan.steps.push_back({entry, 0, tiling.scratch_bytes, parse_expr(grid)});
  };
  step("fw_backward_copy",
       fmt::format("ceil_div({}, {}) * {}", workspace_rows_rule(tiling), kChunkKeys, heads));
  step("fw_backward", tasks);
  step("fw_backward_convert",
       fmt::format("max(want_dk, want_dv) * ceil_div(seq_kv, {}) * {}", kChunkKeys, heads));
  source.plan.workspace = parse_expr(workspace_rule(tiling, heads, tasks));
  return source;
}

}  // namespace flashwright
