// The table of everything a kernel can be told at launch. A family picks the rows its kernel reads;
// the same rows are printed into the emitted file as `struct Params` and filled in by the launcher,
// so the two cannot disagree.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace flashwright {

enum class Param : std::uint8_t {
  q,
  k,
  v,
  o,
  lse,
  q_batch_stride,
  q_row_stride,
  q_head_stride,
  k_batch_stride,
  k_row_stride,
  k_head_stride,
  v_batch_stride,
  v_row_stride,
  v_head_stride,
  o_batch_stride,
  o_row_stride,
  o_head_stride,
  lse_batch_stride,
  lse_head_stride,
  batch,
  heads_q,
  heads_kv,
  group,
  pack_shift,
  seq_q,
  seq_kv,
  softmax_scale,
  scale_log2,
  softcap_log2,
  tanh_scale,
  alibi_slopes,
  alibi_batch_stride,
  alibi_head_stride,
  q_position,
  window_left,
  window_right,
  drop_threshold,
  keep_scale,
  dropout_key,
  rng_state,
  block_q,
  block_kv,
  query_blocks,
  mask_batch,
  mask_heads,
  full_offsets,
  full_columns,
  partial_offsets,
  partial_columns,
  partial_bits,
  key_blocks,
  full_query_offsets,
  full_query_rows,
  partial_query_offsets,
  partial_query_rows,
  partial_query_places,
  o_given,
  lse_given,
  d_o,
  d_o_batch_stride,
  d_o_row_stride,
  d_o_head_stride,
  d_lse,
  d_lse_batch_stride,
  d_lse_head_stride,
  dq,
  dq_batch_stride,
  dq_row_stride,
  dq_head_stride,
  dk,
  dk_batch_stride,
  dk_row_stride,
  dk_head_stride,
  dv,
  dv_batch_stride,
  dv_row_stride,
  dv_head_stride,
  aligned,
  workspace,
  q_map,
  k_map,
  v_map,
  o_map,
  d_o_map,
  dq_map,
  dk_map,
  dv_map,
};
constexpr int kParamCount = static_cast<int>(Param::dv_map) + 1;

enum class ParamType : std::uint8_t {
  element_in,
  element_out,  // pointers to the problem's element type
  float_out,
  float_in,
  int_in,
  word_in,
  long_in,
  bytes_out,  // other pointers
  i32,
  i64,
  u32,
  u64,
  f32,
  tensor_map,  // 128 bytes that describe a tensor to TMA
};

struct ParamInfo {
  Param id;
  ParamType type;
  const char* name;
  const char* comment;  // printed behind the field
};
const ParamInfo& info(Param param);
int size_of(ParamType type);
int alignment_of(ParamType type);

// The values of one launch, every row filled, whatever the kernel reads of them.
struct ParamValues {
  std::array<std::uint64_t, kParamCount> bits{};
  void set_int(Param param, std::int64_t value) { at(param) = static_cast<std::uint64_t>(value); }
  void set_float(Param param, float value);
  void set_pointer(Param param, const void* pointer);
  std::uint64_t& at(Param param) { return bits[static_cast<std::size_t>(param)]; }
  std::uint64_t at(Param param) const { return bits[static_cast<std::size_t>(param)]; }
};

// The rows a kernel reads, laid out as a C struct: each field at its natural alignment.
class ParamLayout {
 public:
  struct Field {
    Param param;
    ParamType type;
    int offset;
  };
  void add(Param param);
  const std::vector<Field>& fields() const { return fields_; }
  int size() const;  // bytes, a multiple of the widest alignment
  // Tensor maps are left as they are.
  void fill(const ParamValues& values, unsigned char* block) const;

 private:
  std::vector<Field> fields_;
  int end_ = 0, alignment_ = 8;
};

constexpr int kTensorMapBytes = 128, kTensorMapAlignment = 64;
constexpr int kMaxParamBytes = kParamCount * 8 + 8 * kTensorMapBytes + kTensorMapAlignment;

}  // namespace flashwright
