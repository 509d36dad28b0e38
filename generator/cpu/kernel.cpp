#include "generator/cpu/kernel.hpp"

#include "core/error.hpp"
#include "core/mask.hpp"
#include "generator/cpu/math_ir.hpp"
#include "generator/cpu/module.hpp"

namespace flashwright {

using namespace ir;

V Kernel::param(Param param) {
  for (const ParamLayout::Field& field : layout_.fields()) {
    if (field.param != param) continue;
    const std::string name = info(param).name;
    const V place = ir.offset(ir.params(), field.offset);
    if (field.offset != 0) place.named(name + ".at");
    switch (field.type) {
      case ParamType::f32:
        return ir.load({Kind::f32}, place, 4).named(name);
      case ParamType::i32:
        return widen_signed(ir.load({Kind::i32}, place, 4).named(name + ".32"), Kind::i64)
            .named(name);
      case ParamType::u32:
        return ir.load({Kind::i32}, place, 4).named(name);
      case ParamType::i64:
      case ParamType::u64:
        return ir.load({Kind::i64}, place, 8).named(name);
      default:
        return ir.load({Kind::ptr}, place, 8).named(name);
    }
  }
  throw Error(
      Status::internal,
      std::string("the CPU kernel reads a parameter it did not ask for: ") + info(param).name);
}

V Kernel::buffer(int scratch_offset) {
  if (slot_ && scratch_offset < tiling.slot_bytes) {
    const V start = ir.element(ir.scratch(), Kind::i8, slot_ * tiling.slot_bytes).named("slot");
    return ir.offset(start, scratch_offset).named(tiling.buffer_name(scratch_offset));
  }
  const V place = ir.offset(ir.scratch(), scratch_offset);
  return scratch_offset == 0 ? place : place.named(tiling.buffer_name(scratch_offset));
}

bool Kernel::has(Param param) const {
  for (const ParamLayout::Field& field : layout_.fields())
    if (field.param == param) return true;
  return false;
}

V Kernel::at(V rows, V row, int column) {
  return ir.offset(ir.element(rows, Kind::f32, row * tiling.tile_q), std::int64_t{column} * 4);
}

void Kernel::each_vector(const std::string& name, const std::function<void(V)>& body) {
  ir.loop(name, ir.i64(0), ir.i64(tiling.tile_q), tiling.lanes, body);
}

void Kernel::flush_denormals() {
  if (problem.target.arch == "neon") return;
  constexpr std::int64_t kFlushResults = 0x8000, kFlushOperands = 0x40;
  ir.phase("flush.denormals", "Numbers below the normal range count as 0: they would be slow.");
  const V saved = buffer(tiling.at.control), changed = ir.offset(saved, 4);
  ir.read_float_control(saved);
  const V bits = ir.load({Kind::i32}, saved, 4).named("control");
  ir.store(bits | ir.number(Type{Kind::i32}, kFlushResults | kFlushOperands), changed, 4);
  ir.write_float_control(changed);
}

void Kernel::restore_denormals() {
  if (problem.target.arch != "neon") ir.write_float_control(buffer(tiling.at.control));
}

V Kernel::row_of(Param base, Param strides, V batch, V row, V head) {
  const int first = static_cast<int>(strides);
  const V offset = batch * param(static_cast<Param>(first)) +
                   row * param(static_cast<Param>(first + 1)) +
                   head * param(static_cast<Param>(first + 2));
  return ir.element(param(base), storage(problem.dtype), offset);
}

ParamLayout common_params() {
  using enum Param;
  ParamLayout layout;
  // clang-format off
  for (const Param param : {
           q, k, v, o, lse,
           q_batch_stride, q_row_stride, q_head_stride, k_batch_stride, k_row_stride, k_head_stride,
           v_batch_stride, v_row_stride, v_head_stride, o_batch_stride, o_row_stride, o_head_stride,
           lse_batch_stride, lse_head_stride, group, seq_q, seq_kv, scale_log2})
    layout.add(param);
  // clang-format on
  return layout;
}

void add_feature_params(ParamLayout& layout, const Problem& problem) {
  const MaskInfo& mask = info(problem.mask);
  using enum Param;
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
}

}  // namespace flashwright
