// Attention in three passes that keep all scores in memory: the computation that the tiled kernel
// replaces, with the same inner loops, as the yardstick to measure it against.
#include <fmt/format.h>

#include "core/expr_parse.hpp"
#include "core/mask.hpp"
#include "generator/cpu/forward_ir.hpp"
#include "generator/cpu/kernel.hpp"
#include "generator/cpu/module.hpp"

namespace flashwright {

using namespace ir;

namespace {

ParamLayout unfused_params(const Problem& problem) {
  using enum Param;
  ParamLayout layout = common_params();
  layout.add(heads_kv);
  if (problem.mask != Mask::Kind::none) layout.add(q_position);
  for (const std::string& name : info(problem.mask).parameters) layout.add(param_named(name));
  layout.add(workspace);
  return layout;
}

// The workspace is one slab for each tile of rows: the transposed scores (keys, rows) with the keys
// rounded up to whole tiles, followed by the maximum and the sum of each row.
class UnfusedKernel {
 public:
  explicit UnfusedKernel(Kernel& kernel) : k(kernel), ir(kernel.ir), t(kernel.tiling) {}

  void emit_scores() {
    begin();
    fill_row_tables(k, rows_, true, false);
    pack_queries(k);
    ir.phase("scores", "Scores of all keys, to memory; invisible ones become -inf.");
    const KeyRange range = key_range(k, rows_);
    each_tile([&](V first, V count, V padded) {
      const V scores = k.at(slab_, first, 0);
      multiply_keys(k, tile_rows(Param::k, Param::k_batch_stride, first), scores, count, padded,
                    false);
      const V inside =
          less_equal(range.full_begin, first) & less_equal(first + count, range.full_end);
      ir.when("hide", negate_bit(inside) | less(count, padded),
              [&] { mask_tile(k, scores, first, count, padded); });
    });
  }

  void emit_softmax() {
    begin();
    fill_row_tables(k, rows_, false, true);
    const V keys = padded_keys();
    ir.phase("softmax", "Weights of all keys, in place, with the sum of each row.");
    k.each_vector("softmax.rows", [&](V column) {
      const V scores = ir.element(slab_, Kind::f32, column);
      const Values top = ir.loop(
          "max", ir.i64(0), keys, 1, {{k.all(-kInfinity), "max"}}, [&](V key, const Values& now) {
            return Values{larger_float(k.load_floats(k.at(scores, key, 0)), now[0])};
          });
      k.store_floats(top[0], ir.element(k.buffer(t.at.tile_max), Kind::f32, column));
    });
    softmax_rows(k, slab_, keys);
    store_lse(k, rows_);
    k.each_vector("keep.sums", [&](V column) {
      const V sum = k.load_floats(ir.element(k.buffer(t.at.row_sum), Kind::f32, column));
      k.store_floats(sum, ir.element(sums_, Kind::f32, column));
    });
  }

  void emit_output() {
    begin();
    fill_row_tables(k, rows_, false, true);
    ir.phase("outputs", "Outputs, transposed: sum over all keys of v * weight.");
    each_tile([&](V first, V count, V) {
      multiply_values(k, tile_rows(Param::v, Param::v_batch_stride, first), k.at(slab_, first, 0),
                      count, false);
    });
    k.each_vector("fetch.sums", [&](V column) {
      const V sum = k.load_floats(ir.element(sums_, Kind::f32, column));
      k.store_floats(sum, ir.element(k.buffer(t.at.row_sum), Kind::f32, column));
    });
    store_outputs(k);
  }

 private:
  V padded_keys() {
    return divide_unsigned(k.param(Param::seq_kv) + (t.tile_kv - 1), ir.i64(t.tile_kv)) * t.tile_kv;
  }

  void begin() {
    rows_ = decode_task(k);
    const V keys = padded_keys().named("padded.keys");
    const V slab_rows = keys + 1;  // the last row holds the sums
    slab_ = k.at(k.param(Param::workspace), rows_.index * slab_rows, 0).named("slab");
    sums_ = k.at(slab_, keys, 0).named("sums");
    k.flush_denormals();
    clear_outputs(k);
  }

  void each_tile(const std::function<void(V first, V count, V padded)>& body) {
    const V seq_kv = k.param(Param::seq_kv);
    ir.loop("key.tile", ir.i64(0), seq_kv, t.tile_kv, [&](V first) {
      const V count = smaller(seq_kv - first, ir.i64(t.tile_kv)).named("key.count");
      body(first, count, ir.i64(t.tile_kv));
    });
  }

  TileRows tile_rows(Param base, Param strides, V first) {
    const V stride = k.param(static_cast<Param>(static_cast<int>(strides) + 1));
    return {k.row_of(base, strides, rows_.batch, first, rows_.head_kv), stride};
  }

  Kernel& k;
  Builder& ir;
  const Tiling& t;
  TaskRows rows_;
  V slab_, sums_;
};

}  // namespace

Source emit_unfused(const Problem& problem, const Schedule& schedule) {
  const Tiling tiling(problem, schedule);
  Source source = new_source(problem);
  source.plan.params = unfused_params(problem);
  Builder ir("fw_unfused", module_target(problem), banner(problem, schedule, tiling));
  Kernel kernel(ir, problem, tiling, source.plan.params);
  const auto step = [&](const char* name, void (UnfusedKernel::*emit)()) {
    ir.begin_function(name);
    UnfusedKernel body(kernel);
    (body.*emit)();
    kernel.restore_denormals();
    ir.end_function();
    source.plan.steps.push_back({name, 0, tiling.scratch_bytes, task_rule(problem, tiling)});
  };
  step("fw_scores", &UnfusedKernel::emit_scores);
  step("fw_softmax", &UnfusedKernel::emit_softmax);
  step("fw_output", &UnfusedKernel::emit_output);
  source.text = ir.print();
  source.plan.workspace = parse_expr(fmt::format("{} * (ceil_div(seq_kv, {}) * {} + 1) * ({})",
                                                 4 * tiling.tile_q, tiling.tile_kv, tiling.tile_kv,
                                                 to_string(*task_rule(problem, tiling))));
  return source;
}

}  // namespace flashwright
