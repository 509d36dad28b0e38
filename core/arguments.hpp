// The tensors and scalars of one call: checked against the Problem, then turned into the values of
// the parameter table. Plain data; nothing is copied or owned.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/params.hpp"
#include "core/problem.hpp"

namespace flashwright {

// The sizes that stay free until launch.
struct Shape {
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t seq_q = 0;
  std::int64_t seq_kv = 0;
  bool operator==(const Shape&) const = default;
};
std::string to_string(const Shape& shape);  // "b4 h32/8 q4096 kv4096"

// Query heads that share a key head; 1 where there are no key heads.
std::int64_t group_of(const Shape& shape);

// Log2 of how many of these a kernel joins in a tile, where it does so: the largest power of two that
// divides their number, up to 8, which leaves each head eight rows of 64.
int pack_shift(const Shape& shape);

// A tensor in the logical order (batch, seq, heads, dim), or (batch, heads, seq) for the LSE and its
// gradient.
// Strides count elements.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  BackendKind device = BackendKind::cpu;
  int device_index = 0;
  int ndim = 4;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> stride{};
};

// Dense strides for a shape, last dimension fastest.
TensorView dense_view(void* data, DType dtype, std::array<std::int64_t, 4> shape);

// The visible keys as lists of blocks: for each row r = ((b % batch) * heads + h % heads) *
// query_blocks + query / block_q, the key blocks columns[offsets[r] .. offsets[r + 1]). A full
// block is visible throughout; bit j of word w in row i of partial block p tells whether query i of
// the block sees its key 32 w + j. Column numbers below 0 are padding. The arrays lie in the
// kernel's memory.
//
// A backward launch has the same blocks also by key blocks: for each c = matrix * key_blocks + key / block_kv the
// query blocks query_rows[query_offsets[c] .. query_offsets[c + 1]), with a partial block its place in
// partial_columns, which is that of its bits.
struct BlockLists {
  std::int64_t seq_q = 0, seq_kv = 0;      // the lengths that the lists were made for
  std::int64_t block_q = 0, block_kv = 0;  // queries and keys of a block
  std::int64_t batch = 1, heads = 1;       // 1: shared by all
  const std::int32_t* full_offsets = nullptr;
  const std::int32_t* full_columns = nullptr;
  const std::int32_t* partial_offsets = nullptr;
  const std::int32_t* partial_columns = nullptr;
  const std::uint32_t* partial_bits = nullptr;
  const std::int32_t* full_query_offsets = nullptr;  // these five: null when not given
  const std::int32_t* full_query_rows = nullptr;
  const std::int32_t* partial_query_offsets = nullptr;
  const std::int32_t* partial_query_rows = nullptr;
  const std::int32_t* partial_query_places = nullptr;
  std::int64_t query_blocks() const { return block_q > 0 ? (seq_q + block_q - 1) / block_q : 0; }
  std::int64_t key_blocks() const { return block_kv > 0 ? (seq_kv + block_kv - 1) / block_kv : 0; }
};

// Forward: o and lse are written. Backward: both are read, as a forward launch of the same Config left
// them, and the gradients are written.
struct Arguments {
  TensorView q, k, v, o;
  std::optional<TensorView> lse;
  std::optional<std::int64_t> q_position;  // default seq_kv - seq_q
  std::uint64_t seed = 0, offset = 0;      // of the dropout bits
  const std::uint64_t* rng_state =
      nullptr;                       // {seed, offset} in the kernel's memory, read at run time
  std::optional<BlockLists> blocks;  // with mask "blocks"
  // With alibi: fp32 (heads_q) or (batch, heads_q), any strides. Score += slope * (kv - q - q_position).
  std::optional<TensorView> alibi_slopes;
  // Backward: the gradients of o and, unless it is 0, of lse; and those that are wanted, one at least.
  std::optional<TensorView> d_o, d_lse;
  std::optional<TensorView> dq, dk, dv;
};

constexpr int kRuleVariables = 12;

// One checked launch.
struct ResolvedArguments {
  Shape shape;
  ParamValues values;
  std::array<double, kRuleVariables> rule_values{};  // in the order of rule_variables()
  int device_index = 0;
  bool empty = false;  // no output has an element: nothing to do
};

// Throws Error(bad_argument) that names the argument, what was given and what is allowed.
ResolvedArguments resolve(const Config& config, const Problem& problem, const Arguments& arguments);

// Factor of the scores: the Config's, or 1 / sqrt(head_dim).
double softmax_scale(const Config& config);

// The dropout probability that the generator realises: a multiple of 1/256 between 1/256 and
// 255/256, nearest to the one asked for; 0 stays 0. Returned as the number of 256 byte values that
// drop.
int drop_threshold(double dropout);

}  // namespace flashwright
