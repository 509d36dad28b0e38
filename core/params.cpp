#include "core/params.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace flashwright {
namespace {

using enum ParamType;

constexpr std::array<ParamInfo, kParamCount> kTable = {{
    {Param::q, element_in, "q", "(batch, seq_q, heads_q, head_dim)"},
    {Param::k, element_in, "k", "(batch, seq_kv, heads_kv, head_dim)"},
    {Param::v, element_in, "v", "(batch, seq_kv, heads_kv, head_dim_v)"},
    {Param::o, element_out, "o", "(batch, seq_q, heads_q, head_dim_v)"},
    {Param::lse, float_out, "lse", "(batch, heads_q, seq_q), natural log, or null"},
    {Param::q_batch_stride, i64, "q_batch_stride", "strides count elements"},
    {Param::q_row_stride, i64, "q_row_stride", ""},
    {Param::q_head_stride, i64, "q_head_stride", ""},
    {Param::k_batch_stride, i64, "k_batch_stride", ""},
    {Param::k_row_stride, i64, "k_row_stride", ""},
    {Param::k_head_stride, i64, "k_head_stride", ""},
    {Param::v_batch_stride, i64, "v_batch_stride", ""},
    {Param::v_row_stride, i64, "v_row_stride", ""},
    {Param::v_head_stride, i64, "v_head_stride", ""},
    {Param::o_batch_stride, i64, "o_batch_stride", ""},
    {Param::o_row_stride, i64, "o_row_stride", ""},
    {Param::o_head_stride, i64, "o_head_stride", ""},
    {Param::lse_batch_stride, i64, "lse_batch_stride", ""},
    {Param::lse_head_stride, i64, "lse_head_stride", ""},
    {Param::batch, i32, "batch", ""},
    {Param::heads_q, i32, "heads_q", ""},
    {Param::heads_kv, i32, "heads_kv", ""},
    {Param::group, i32, "group", "query heads that share a key head"},
    {Param::pack_shift, i32, "pack_shift", "log2 of how many of them share a tile"},
    {Param::seq_q, i32, "seq_q", ""},
    {Param::seq_kv, i32, "seq_kv", ""},
    {Param::softmax_scale, f32, "softmax_scale", "factor of the scores"},
    {Param::scale_log2, f32, "scale_log2", "softmax_scale * log2(e)"},
    {Param::softcap_log2, f32, "softcap_log2", "softcap * log2(e)"},
    {Param::tanh_scale, f32, "tanh_scale", "softmax_scale / softcap"},
    {Param::alibi_slopes, float_in, "alibi_slopes", "(batch, heads_q); a stride may be 0"},
    {Param::alibi_batch_stride, i64, "alibi_batch_stride", ""},
    {Param::alibi_head_stride, i64, "alibi_head_stride", ""},
    {Param::q_position, i32, "q_position", "where query 0 sits among the keys"},
    {Param::window_left, i32, "window_left", "keys visible before a query"},
    {Param::window_right, i32, "window_right", "keys visible after a query"},
    {Param::drop_threshold, u32, "drop_threshold",
     "of 256: a weight is dropped when its byte is below"},
    {Param::keep_scale, f32, "keep_scale", "256 / (256 - drop_threshold)"},
    {Param::dropout_key, u64, "dropout_key", "seed + offset * 0x9E3779B97F4A7C15"},
    {Param::rng_state, long_in, "rng_state",
     "{seed, offset} in device memory; null: use dropout_key"},
    {Param::block_q, i32, "block_q", "queries of a mask block"},
    {Param::block_kv, i32, "block_kv", "keys of a mask block"},
    {Param::query_blocks, i32, "query_blocks", "mask blocks along the queries"},
    {Param::mask_batch, i32, "mask_batch", "batch entries with lists of their own, or 1"},
    {Param::mask_heads, i32, "mask_heads", "heads with lists of their own, or 1"},
    {Param::full_offsets, int_in, "full_offsets", "(mask_batch, mask_heads, query_blocks) + 1"},
    {Param::full_columns, int_in, "full_columns", "key blocks that are visible throughout"},
    {Param::partial_offsets, int_in, "partial_offsets",
     "(mask_batch, mask_heads, query_blocks) + 1"},
    {Param::partial_columns, int_in, "partial_columns", "key blocks with a bit for each element"},
    {Param::partial_bits, word_in, "partial_bits",
     "(partial blocks, block_q, ceil(block_kv / 32))"},
    {Param::key_blocks, i32, "key_blocks", "mask blocks along the keys"},
    {Param::full_query_offsets, int_in, "full_query_offsets",
     "(mask_batch, mask_heads, key_blocks) + 1"},
    {Param::full_query_rows, int_in, "full_query_rows", "query blocks that see all of a key block"},
    {Param::partial_query_offsets, int_in, "partial_query_offsets",
     "(mask_batch, mask_heads, key_blocks) + 1"},
    {Param::partial_query_rows, int_in, "partial_query_rows", "query blocks that see a part of it"},
    {Param::partial_query_places, int_in, "partial_query_places",
     "where that block stands in partial_columns"},
    {Param::o_given, element_in, "o_given", "o of the forward pass"},
    {Param::lse_given, float_in, "lse_given", "lse of the forward pass"},
    {Param::d_o, element_in, "d_o", "gradient of o"},
    {Param::d_o_batch_stride, i64, "d_o_batch_stride", ""},
    {Param::d_o_row_stride, i64, "d_o_row_stride", ""},
    {Param::d_o_head_stride, i64, "d_o_head_stride", ""},
    {Param::d_lse, float_in, "d_lse", "gradient of lse; null: 0"},
    {Param::d_lse_batch_stride, i64, "d_lse_batch_stride", ""},
    {Param::d_lse_head_stride, i64, "d_lse_head_stride", ""},
    {Param::dq, element_out, "dq", "as q, or null"},
    {Param::dq_batch_stride, i64, "dq_batch_stride", ""},
    {Param::dq_row_stride, i64, "dq_row_stride", ""},
    {Param::dq_head_stride, i64, "dq_head_stride", ""},
    {Param::dk, element_out, "dk", "as k, or null"},
    {Param::dk_batch_stride, i64, "dk_batch_stride", ""},
    {Param::dk_row_stride, i64, "dk_row_stride", ""},
    {Param::dk_head_stride, i64, "dk_head_stride", ""},
    {Param::dv, element_out, "dv", "as v, or null"},
    {Param::dv_batch_stride, i64, "dv_batch_stride", ""},
    {Param::dv_row_stride, i64, "dv_row_stride", ""},
    {Param::dv_head_stride, i64, "dv_head_stride", ""},
    {Param::aligned, i32, "aligned", "1: every row starts on a multiple of 16 bytes"},
    {Param::workspace, bytes_out, "workspace", "as large as asked, 256-byte aligned"},
    {Param::q_map, tensor_map, "q_map", "boxes of q for TMA"},
    {Param::k_map, tensor_map, "k_map", "boxes of k"},
    {Param::v_map, tensor_map, "v_map", "boxes of v"},
    {Param::o_map, tensor_map, "o_map", "boxes of o"},
    {Param::d_o_map, tensor_map, "d_o_map", "boxes of d_o"},
    {Param::dq_map, tensor_map, "dq_map", "boxes of dq"},
    {Param::dk_map, tensor_map, "dk_map", "boxes of dk"},
    {Param::dv_map, tensor_map, "dv_map", "boxes of dv"},
}};

}  // namespace

const ParamInfo& info(Param param) { return kTable[static_cast<std::size_t>(param)]; }

int size_of(ParamType type) {
  if (type == tensor_map) return kTensorMapBytes;
  return type == i32 || type == u32 || type == f32 ? 4 : 8;
}

int alignment_of(ParamType type) {
  return type == tensor_map ? kTensorMapAlignment : size_of(type);
}

void ParamValues::set_float(Param param, float value) {
  at(param) = std::bit_cast<std::uint32_t>(value);
}

void ParamValues::set_pointer(Param param, const void* pointer) {
  at(param) = reinterpret_cast<std::uintptr_t>(pointer);
}

void ParamLayout::add(Param param) {
  const ParamType type = info(param).type;
  const int alignment = alignment_of(type);
  const int offset = (end_ + alignment - 1) / alignment * alignment;
  fields_.push_back({param, type, offset});
  end_ = offset + size_of(type);
  alignment_ = std::max(alignment_, alignment);
}

int ParamLayout::size() const { return (end_ + alignment_ - 1) / alignment_ * alignment_; }

void ParamLayout::fill(const ParamValues& values, unsigned char* block) const {
  // Little-endian hosts only, as every host of a supported GPU is: the low half is the 32-bit
  // value.
  for (const Field& field : fields_) {
    if (field.type == tensor_map) continue;
    std::memcpy(block + field.offset, &values.bits[static_cast<std::size_t>(field.param)],
                static_cast<std::size_t>(size_of(field.type)));
  }
}

}  // namespace flashwright
