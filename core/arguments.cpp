#include "core/arguments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/mask.hpp"
#include "core/philox.hpp"

namespace flashwright {
namespace {

constexpr double kLog2E = 1.4426950408889634;

[[noreturn]] void bad(const char* argument, const std::string& given, const std::string& expected) {
  throw Error(Status::bad_argument,
              fmt::format("{}: given {}; expected {}", argument, given, expected));
}

std::string shape_text(const TensorView& tensor) {
  return fmt::format("shape ({})",
                     fmt::join(tensor.shape.begin(), tensor.shape.begin() + tensor.ndim, ", "));
}

bool has_elements(const TensorView& tensor) {
  return std::all_of(tensor.shape.begin(), tensor.shape.begin() + tensor.ndim,
                     [](std::int64_t extent) { return extent > 0; });
}

void check_tensor(const char* name, const TensorView& tensor, const Problem& problem, DType dtype,
                  int ndim) {
  if (tensor.ndim != ndim)
    bad(name, fmt::format("rank {}", tensor.ndim),
        ndim == 4 ? "rank 4: (batch, seq, heads, dim)" : "rank 3: (batch, heads_q, seq_q)");
  if (tensor.dtype != dtype) bad(name, to_string(tensor.dtype), to_string(dtype));
  if (tensor.device != problem.target.backend)
    bad(name, fmt::format("memory of {}", to_string(tensor.device)),
        fmt::format("memory of {}, where the kernel runs", to_string(problem.target.backend)));
  for (int i = 0; i < ndim; ++i)
    if (tensor.shape[i] < 0) bad(name, shape_text(tensor), "no negative extent");
  if (!has_elements(tensor)) return;
  if (tensor.data == nullptr) bad(name, "a null pointer", "the address of its elements");
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % info(dtype).bytes != 0)
    bad(name, fmt::format("address {}", tensor.data),
        fmt::format("a multiple of {} bytes", info(dtype).bytes));
  if (tensor.shape[ndim - 1] > 1 && tensor.stride[ndim - 1] != 1)
    bad(name, fmt::format("stride {} in the last dimension", tensor.stride[ndim - 1]), "stride 1");
}

// Two elements of an output must not share an address.
void check_output(const char* name, const TensorView& tensor) {
  if (!has_elements(tensor)) return;
  std::array<int, 4> order{0, 1, 2, 3};  // from the smallest stride to the largest
  const auto stride_of = [&](int dimension) {
    return std::abs(tensor.stride[static_cast<std::size_t>(dimension)]);
  };
  for (int i = 1; i < tensor.ndim; ++i)
    for (int j = i; j > 0 && stride_of(order[j]) < stride_of(order[j - 1]); --j)
      std::swap(order[j], order[j - 1]);
  std::int64_t covered = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    const std::int64_t extent = tensor.shape[order[i]], stride = std::abs(tensor.stride[order[i]]);
    if (extent <= 1) continue;
    if (stride < covered)
      bad(name, fmt::format("stride {} in dimension {}", tensor.stride[order[i]], order[i]),
          "strides under which no two elements overlap");
    covered = stride * (extent - 1) + covered;
  }
}

void check_extent(const char* name, const TensorView& tensor, int dimension, std::int64_t expected,
                  const char* meaning) {
  if (tensor.shape[dimension] == expected) return;
  bad(name, shape_text(tensor),
      fmt::format("{} = {} in dimension {}", meaning, expected, dimension));
}

// Tensors with a row for each query: o and its gradient, q's gradient.
void check_query_rows(const char* name, const TensorView& tensor, const Problem& problem,
                      const Shape& shape, int head_dim, const char* dim_name) {
  check_tensor(name, tensor, problem, problem.dtype, 4);
  check_extent(name, tensor, 0, shape.batch, "batch of q");
  check_extent(name, tensor, 1, shape.seq_q, "seq_q of q");
  check_extent(name, tensor, 2, shape.heads_q, "heads of q");
  check_extent(name, tensor, 3, head_dim, dim_name);
}

// Tensors with a row for each key: v and the gradients of k and v.
void check_key_rows(const char* name, const TensorView& tensor, const Problem& problem,
                    const Shape& shape, int head_dim, const char* dim_name) {
  check_tensor(name, tensor, problem, problem.dtype, 4);
  check_extent(name, tensor, 0, shape.batch, "batch of q");
  check_extent(name, tensor, 1, shape.seq_kv, "seq_kv of k");
  check_extent(name, tensor, 2, shape.heads_kv, "heads of k");
  check_extent(name, tensor, 3, head_dim, dim_name);
}

// One number for each query: the LSE and its gradient.
void check_query_numbers(const char* name, const TensorView& tensor, const Problem& problem,
                         const Shape& shape) {
  check_tensor(name, tensor, problem, DType::fp32, 3);
  check_extent(name, tensor, 0, shape.batch, "batch of q");
  check_extent(name, tensor, 1, shape.heads_q, "heads of q");
  check_extent(name, tensor, 2, shape.seq_q, "seq_q of q");
}

// What only a backward launch has.
void check_gradients(const Problem& problem, const Arguments& args, const Shape& shape) {
  const std::array<std::pair<const char*, const std::optional<TensorView>*>, 5> all = {
      {{"d_o", &args.d_o},
       {"d_lse", &args.d_lse},
       {"dq", &args.dq},
       {"dk", &args.dk},
       {"dv", &args.dv}}};
  if (problem.direction == Direction::forward) {
    for (const auto& [name, tensor] : all)
      if (*tensor) bad(name, "a tensor", "none, as the direction is 'forward'");
    return;
  }
  if (!args.lse)
    bad("lse", "no tensor", "that of the forward pass, as the direction is 'backward'");
  if (!args.d_o) bad("d_o", "no tensor", "the gradient of o, as the direction is 'backward'");
  if (!args.dq && !args.dk && !args.dv)
    bad("dq, dk, dv", "none of them", "the gradients that are wanted, at least one");
  check_query_rows("d_o", *args.d_o, problem, shape, problem.head_dim_v, "head_dim_v");
  if (args.d_lse) check_query_numbers("d_lse", *args.d_lse, problem, shape);
  if (args.dq) check_query_rows("dq", *args.dq, problem, shape, problem.head_dim, "head_dim");
  if (args.dk) check_key_rows("dk", *args.dk, problem, shape, problem.head_dim, "head_dim");
  if (args.dv) check_key_rows("dv", *args.dv, problem, shape, problem.head_dim_v, "head_dim_v");
  for (std::size_t i = 2; i < all.size(); ++i)
    if (*all[i].second) check_output(all[i].first, **all[i].second);
}

Shape check_shapes(const Problem& problem, const Arguments& args) {
  check_tensor("q", args.q, problem, problem.dtype, 4);
  check_tensor("k", args.k, problem, problem.dtype, 4);
  const Shape shape{args.q.shape[0], args.q.shape[2], args.k.shape[2], args.q.shape[1],
                    args.k.shape[1]};
  check_extent("q", args.q, 3, problem.head_dim, "head_dim");
  check_extent("k", args.k, 3, problem.head_dim, "head_dim");
  check_extent("k", args.k, 0, shape.batch, "batch of q");
  check_key_rows("v", args.v, problem, shape, problem.head_dim_v, "head_dim_v");
  check_query_rows("o", args.o, problem, shape, problem.head_dim_v, "head_dim_v");
  if (args.lse) check_query_numbers("lse", *args.lse, problem, shape);
  if (problem.direction == Direction::forward) {
    check_output("o", args.o);
    if (args.lse) check_output("lse", *args.lse);
  }
  check_gradients(problem, args, shape);
  if (shape.heads_q > 0 && (shape.heads_kv == 0 || shape.heads_q % shape.heads_kv != 0))
    bad("k", fmt::format("{} kv heads for {} q heads", shape.heads_kv, shape.heads_q),
        "a number of kv heads by which the q heads are divisible");
  const auto limit = [](const char* name, std::int64_t given, std::int64_t below,
                        const char* what) {
    if (given >= below)
      bad(name, fmt::format("{} {}", what, given), fmt::format("below {}", below));
  };
  limit("q", shape.seq_q, kMaxSequence, "seq_q");
  limit("k", shape.seq_kv, kMaxSequence, "seq_kv");
  limit("q", shape.batch, std::int64_t{1} << 31, "batch");
  limit("q", shape.heads_q, std::int64_t{1} << 31, "heads");
  limit("q", shape.batch * shape.heads_q, std::int64_t{1} << 31, "batch * heads");
  return shape;
}

void check_devices(const Arguments& args) {
  const auto same = [&](const char* name, const TensorView& tensor) {
    if (tensor.device_index == args.q.device_index || !has_elements(tensor)) return;
    bad(name, fmt::format("device {}", tensor.device_index),
        fmt::format("device {}, that of q", args.q.device_index));
  };
  same("k", args.k);
  same("v", args.v);
  same("o", args.o);
  if (args.lse) same("lse", *args.lse);
  if (args.d_o) same("d_o", *args.d_o);
  if (args.d_lse) same("d_lse", *args.d_lse);
  if (args.dq) same("dq", *args.dq);
  if (args.dk) same("dk", *args.dk);
  if (args.dv) same("dv", *args.dv);
  if (args.alibi_slopes) same("alibi_slopes", *args.alibi_slopes);
}

void check_blocks(const BlockLists& blocks, const Problem& problem, const Shape& shape) {
  if (blocks.seq_q != shape.seq_q || blocks.seq_kv != shape.seq_kv)
    bad("blocks", fmt::format("lists for a mask of length {} x {}", blocks.seq_q, blocks.seq_kv),
        fmt::format("lists for the sequence length {} x {}", shape.seq_q, shape.seq_kv));
  if (blocks.block_q < 1 || blocks.block_kv < 1 || blocks.block_q >= kMaxSequence ||
      blocks.block_kv >= kMaxSequence)
    bad("blocks", fmt::format("blocks of {} x {}", blocks.block_q, blocks.block_kv),
        "blocks of at least 1 x 1");
  if (blocks.batch != 1 && blocks.batch != shape.batch)
    bad("blocks", fmt::format("batch {}", blocks.batch), fmt::format("1 or {}", shape.batch));
  if (blocks.heads != 1 && blocks.heads != shape.heads_q)
    bad("blocks", fmt::format("heads {}", blocks.heads), fmt::format("1 or {}", shape.heads_q));
  if (blocks.full_offsets == nullptr || blocks.partial_offsets == nullptr)
    bad("blocks", "no offsets", "full_offsets and partial_offsets, one entry more than rows");
  if (problem.direction == Direction::backward &&
      (blocks.full_query_offsets == nullptr || blocks.partial_query_offsets == nullptr))
    bad("blocks", "no lists by key blocks",
        "full_query_offsets and partial_query_offsets, as the direction is 'backward'; "
        "flashwright_blocks_transpose makes them");
}

void check_slopes(const TensorView& slopes, const Problem& problem, const Shape& shape) {
  constexpr const char* kName = "alibi_slopes";
  if (slopes.dtype != DType::fp32) bad(kName, to_string(slopes.dtype), to_string(DType::fp32));
  if (slopes.device != problem.target.backend)
    bad(kName, fmt::format("memory of {}", to_string(slopes.device)),
        fmt::format("memory of {}, where the kernel runs", to_string(problem.target.backend)));
  const bool by_head = slopes.ndim == 1 && slopes.shape[0] == shape.heads_q;
  const bool by_batch =
      slopes.ndim == 2 && slopes.shape[0] == shape.batch && slopes.shape[1] == shape.heads_q;
  if (!by_head && !by_batch)
    bad(kName, shape_text(slopes),
        fmt::format("({}) or ({}, {}): (heads_q) or (batch, heads_q)", shape.heads_q, shape.batch,
                    shape.heads_q));
  if (!has_elements(slopes)) return;
  if (slopes.data == nullptr) bad(kName, "a null pointer", "the address of its elements");
  if (reinterpret_cast<std::uintptr_t>(slopes.data) % 4 != 0)
    bad(kName, fmt::format("address {}", slopes.data), "a multiple of 4 bytes");
}

bool rows_aligned(const TensorView& tensor) {
  const std::int64_t bytes = info(tensor.dtype).bytes;
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0) return false;
  for (int i = 0; i < 3; ++i)
    if (tensor.shape[i] > 1 && tensor.stride[i] * bytes % 16 != 0) return false;
  return true;
}

bool all_aligned(const Arguments& args, const Shape& shape) {
  if (!rows_aligned(args.q) || !rows_aligned(args.o)) return false;
  for (const std::optional<TensorView>* tensor : {&args.d_o, &args.dq})
    if (*tensor && !rows_aligned(**tensor)) return false;
  if (shape.seq_kv == 0) return true;
  for (const std::optional<TensorView>* tensor : {&args.dk, &args.dv})
    if (*tensor && !rows_aligned(**tensor)) return false;
  return rows_aligned(args.k) && rows_aligned(args.v);
}

void set_strides(ParamValues& values, Param first, const TensorView& tensor) {
  // The table lists batch, row and head strides next to each other.
  const int base = static_cast<int>(first);
  values.set_int(static_cast<Param>(base), tensor.stride[0]);
  values.set_int(static_cast<Param>(base + 1), tensor.stride[1]);
  values.set_int(static_cast<Param>(base + 2), tensor.stride[2]);
}

void set_blocks(ParamValues& values, const BlockLists& blocks) {
  values.set_int(Param::block_q, blocks.block_q);
  values.set_int(Param::block_kv, blocks.block_kv);
  values.set_int(Param::query_blocks, blocks.query_blocks());
  values.set_int(Param::mask_batch, blocks.batch);
  values.set_int(Param::mask_heads, blocks.heads);
  values.set_pointer(Param::full_offsets, blocks.full_offsets);
  values.set_pointer(Param::full_columns, blocks.full_columns);
  values.set_pointer(Param::partial_offsets, blocks.partial_offsets);
  values.set_pointer(Param::partial_columns, blocks.partial_columns);
  values.set_pointer(Param::partial_bits, blocks.partial_bits);
  values.set_int(Param::key_blocks, blocks.key_blocks());
  values.set_pointer(Param::full_query_offsets, blocks.full_query_offsets);
  values.set_pointer(Param::full_query_rows, blocks.full_query_rows);
  values.set_pointer(Param::partial_query_offsets, blocks.partial_query_offsets);
  values.set_pointer(Param::partial_query_rows, blocks.partial_query_rows);
  values.set_pointer(Param::partial_query_places, blocks.partial_query_places);
}

}  // namespace

std::string to_string(const Shape& shape) {
  return fmt::format("b{} h{}/{} q{} kv{}", shape.batch, shape.heads_q, shape.heads_kv, shape.seq_q,
                     shape.seq_kv);
}

TensorView dense_view(void* data, DType dtype, std::array<std::int64_t, 4> shape) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.shape = shape;
  view.stride = {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
  return view;
}

double softmax_scale(const Config& config) {
  return config.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
}

int drop_threshold(double dropout) {
  if (dropout <= 0) return 0;
  return std::clamp(static_cast<int>(std::lround(dropout * 256)), 1, 255);
}

namespace {

void set_tensors(ParamValues& values, const Arguments& args) {
  values.set_pointer(Param::q, args.q.data);
  values.set_pointer(Param::k, args.k.data);
  values.set_pointer(Param::v, args.v.data);
  values.set_pointer(Param::o, args.o.data);
  set_strides(values, Param::q_batch_stride, args.q);
  set_strides(values, Param::k_batch_stride, args.k);
  set_strides(values, Param::v_batch_stride, args.v);
  set_strides(values, Param::o_batch_stride, args.o);
  if (!args.lse) return;
  values.set_pointer(Param::lse, args.lse->data);
  values.set_int(Param::lse_batch_stride, args.lse->stride[0]);
  values.set_int(Param::lse_head_stride, args.lse->stride[1]);
}

// Whether a gradient is wanted and has elements.
bool wanted(const std::optional<TensorView>& tensor) { return tensor && has_elements(*tensor); }

void set_gradients(ParamValues& values, const Arguments& args) {
  values.at(Param::o_given) = values.at(Param::o);
  values.at(Param::lse_given) = values.at(Param::lse);
  const auto set = [&](Param base, const std::optional<TensorView>& tensor) {
    if (!wanted(tensor)) return;  // null: kernels leave it out
    values.set_pointer(base, tensor->data);
    set_strides(values, static_cast<Param>(static_cast<int>(base) + 1), *tensor);
  };
  set(Param::d_o, args.d_o);
  set(Param::dq, args.dq);
  set(Param::dk, args.dk);
  set(Param::dv, args.dv);
  if (!args.d_lse) return;
  values.set_pointer(Param::d_lse, args.d_lse->data);
  values.set_int(Param::d_lse_batch_stride, args.d_lse->stride[0]);
  values.set_int(Param::d_lse_head_stride, args.d_lse->stride[1]);
}

void set_shape(ParamValues& values, const Shape& shape) {
  values.set_int(Param::batch, shape.batch);
  values.set_int(Param::heads_q, shape.heads_q);
  values.set_int(Param::heads_kv, shape.heads_kv);
  values.set_int(Param::group, group_of(shape));
  values.set_int(Param::pack_shift, pack_shift(shape));
  values.set_int(Param::seq_q, shape.seq_q);
  values.set_int(Param::seq_kv, shape.seq_kv);
}

// A factor of 0 would turn the -infinity of hidden scores into NaN: the smallest factor stands for it.
float factor(double value) {
  const auto single = static_cast<float>(value);
  return single == 0 ? std::numeric_limits<float>::min() : single;
}

// What the scores are multiplied by. Slopes are divided by the factor of the scores, so that it may not be
// too small: beside them it counts as 0 long before.
void set_factors(ParamValues& values, const Config& config) {
  constexpr double kLeastBesideSlopes = 0x1p-80;
  double scale = softmax_scale(config);
  if (config.alibi && std::fabs(scale) < kLeastBesideSlopes)
    scale = std::copysign(kLeastBesideSlopes, scale);
  values.set_float(Param::softmax_scale, factor(scale));
  values.set_float(Param::scale_log2, factor(scale * kLog2E));
  if (!config.softcap) return;
  values.set_float(Param::softcap_log2, static_cast<float>(*config.softcap * kLog2E));
  values.set_float(Param::tanh_scale, static_cast<float>(softmax_scale(config) / *config.softcap));
}

void set_slopes(ParamValues& values, const TensorView& slopes) {
  values.set_pointer(Param::alibi_slopes, slopes.data);
  values.set_int(Param::alibi_batch_stride, slopes.ndim == 2 ? slopes.stride[0] : 0);
  values.set_int(Param::alibi_head_stride,
                 slopes.stride[static_cast<std::size_t>(slopes.ndim - 1)]);
}

std::int64_t window_side(std::int64_t keys) { return keys < 0 ? kUnboundedWindow : keys; }

}  // namespace

std::int64_t group_of(const Shape& shape) {
  return shape.heads_kv == 0 ? 1 : shape.heads_q / shape.heads_kv;
}

int pack_shift(const Shape& shape) {
  constexpr int kMost = 3;
  return std::min(kMost, std::countr_zero(static_cast<std::uint64_t>(group_of(shape))));
}

ResolvedArguments resolve(const Config& config, const Problem& problem, const Arguments& args) {
  ResolvedArguments out;
  const Shape shape = out.shape = check_shapes(problem, args);
  check_devices(args);
  if (problem.mask == Mask::Kind::blocks) {
    if (!args.blocks) bad("blocks", "none", "block lists, as the mask is 'blocks'");
    check_blocks(*args.blocks, problem, shape);
  } else if (args.blocks) {
    bad("blocks", "block lists", fmt::format("none, as the mask is '{}'", to_string(problem.mask)));
  }
  if (problem.alibi) {
    if (!args.alibi_slopes) bad("alibi_slopes", "none", "the slopes, as the Config has alibi");
    check_slopes(*args.alibi_slopes, problem, shape);
  } else if (args.alibi_slopes) {
    bad("alibi_slopes", "slopes", "none, as the Config has no alibi");
  }
  const std::int64_t q_position = args.q_position.value_or(shape.seq_kv - shape.seq_q);
  if (std::abs(q_position) >= kMaxSequence)
    bad("q_position", std::to_string(q_position), fmt::format("below {} in size", kMaxSequence));

  out.device_index = args.q.device_index;
  const bool backward = problem.direction == Direction::backward;
  out.empty =
      backward ? !wanted(args.dq) && !wanted(args.dk) && !wanted(args.dv) : !has_elements(args.o);
  ParamValues& values = out.values;
  set_tensors(values, args);
  if (backward) set_gradients(values, args);
  set_shape(values, shape);
  set_factors(values, config);
  if (args.alibi_slopes) set_slopes(values, *args.alibi_slopes);
  values.set_int(Param::q_position, q_position);
  values.set_int(Param::window_left, window_side(config.mask.left));
  values.set_int(Param::window_right, window_side(config.mask.right));
  const int threshold = drop_threshold(config.dropout);
  values.set_int(Param::drop_threshold, threshold);
  values.set_float(Param::keep_scale, static_cast<float>(256.0 / (256 - threshold)));
  values.at(Param::dropout_key) = dropout_key(args.seed, args.offset);
  values.set_pointer(Param::rng_state, args.rng_state);
  if (args.blocks) set_blocks(values, *args.blocks);
  values.set_int(Param::aligned, all_aligned(args, shape) ? 1 : 0);

  const std::int64_t query_blocks = args.blocks ? args.blocks->query_blocks() : 0;
  const std::int64_t block_q = args.blocks ? args.blocks->block_q : 0;
  const std::int64_t block_kv = args.blocks ? args.blocks->block_kv : 0;
  const std::array<std::int64_t, kRuleVariables> rule = {
      shape.batch,     shape.heads_q,   shape.heads_kv,
      shape.seq_q,     shape.seq_kv,    query_blocks,
      block_q,         block_kv,        wanted(args.dq),
      wanted(args.dk), wanted(args.dv), std::int64_t{1} << values.at(Param::pack_shift)};
  std::copy(rule.begin(), rule.end(), out.rule_values.begin());
  return out;
}

}  // namespace flashwright
