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
  ParamLayout layout = common_params();
  if (!mask.lists) layout.add(Param::heads_kv);
  if (mask.lists || problem.dropout) layout.add(Param::heads_q);
  add_feature_params(layout, problem);
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
    if (k.problem.dropout) dropout_ = read_dropout_key(k);
    walk_keys(k, rows_,
              [this](V first, V count, const TileTest& test) { tile(first, count, test); });
    store_outputs(k);
    store_lse(k, rows_);
    k.restore_denormals();
  }

 private:
  void tile(V first, V count, const TileTest& test) {
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
    hide_keys(k, rows_, scores, first, count, padded, test);
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
