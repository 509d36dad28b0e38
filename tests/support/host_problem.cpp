#include "tests/support/host_problem.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "core/dtype.hpp"
#include "core/reference_gradient.hpp"

namespace flashwright::testing {
namespace {

constexpr unsigned char kPattern = 0xA5;
constexpr std::int64_t kMargin = 256;  // bytes watched before and behind a tensor

std::uint64_t next(std::uint64_t& state) {  // splitmix64
  std::uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::array<std::int64_t, 4> strides_of(Layout layout, const std::array<std::int64_t, 4>& shape,
                                       std::int64_t bytes) {
  std::int64_t row = shape[3];
  if (layout == Layout::padded_rows) row += 5;
  if (layout == Layout::page_rows) row = (row * bytes + 4095) / 4096 * 4096 / bytes;
  if (layout == Layout::heads_of_rows) return {shape[2] * shape[1] * row, row, shape[1] * row, 1};
  return {shape[1] * shape[2] * row, shape[2] * row, row, 1};
}

}  // namespace

const char* to_string(Layout layout) {
  constexpr const char* kNames[] = {"rows of heads", "heads of rows", "padded rows", "page rows",
                                    "shifted"};
  return kNames[static_cast<int>(layout)];
}

HostTensor::HostTensor(DType dtype, std::array<std::int64_t, 4> shape, Layout layout) {
  const std::int64_t bytes = info(dtype).bytes;
  view_.dtype = dtype;
  view_.shape = shape;
  view_.stride = strides_of(layout, shape, bytes);
  std::int64_t span = 1;
  bool empty = false;
  for (std::size_t i = 0; i < 4; ++i) {
    span += view_.stride[i] * std::max<std::int64_t>(shape[i] - 1, 0);
    empty = empty || shape[i] == 0;
  }
  constexpr std::int64_t kAlign = 4096;
  memory_.assign(static_cast<std::size_t>((empty ? 0 : span * bytes) + 2 * kMargin + 2 * kAlign),
                 kPattern);
  owned_.assign(memory_.size(), false);
  auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + kMargin;
  address = (address + kAlign - 1) / kAlign * kAlign;
  if (layout == Layout::shifted) address += static_cast<std::uintptr_t>(bytes);
  view_.data = reinterpret_cast<void*>(address);
  each_element([&](std::size_t place, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) owned_[place + i] = true;
  });
}

template <typename Visit>
void HostTensor::each_element(const Visit& visit) const {
  const auto bytes = static_cast<std::int64_t>(info(view_.dtype).bytes);
  const std::int64_t start = static_cast<const unsigned char*>(view_.data) - memory_.data();
  for (std::int64_t b = 0; b < view_.shape[0]; ++b)
    for (std::int64_t s = 0; s < view_.shape[1]; ++s)
      for (std::int64_t h = 0; h < view_.shape[2]; ++h)
        for (std::int64_t d = 0; d < view_.shape[3]; ++d)
          visit(static_cast<std::size_t>(start + offset(b, s, h, d) * bytes),
                static_cast<std::size_t>(bytes));
}

std::int64_t HostTensor::offset(std::int64_t a, std::int64_t b, std::int64_t c,
                                std::int64_t d) const {
  return a * view_.stride[0] + b * view_.stride[1] + c * view_.stride[2] + d * view_.stride[3];
}

double HostTensor::at(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) const {
  return to_float(view_.dtype, static_cast<const char*>(view_.data) +
                                   offset(b, s, h, d) * info(view_.dtype).bytes);
}

void HostTensor::set(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, double value) {
  from_float(view_.dtype, static_cast<float>(value),
             static_cast<char*>(view_.data) + offset(b, s, h, d) * info(view_.dtype).bytes);
}

void HostTensor::fill(double value) {
  each_element([&](std::size_t place, std::size_t) {
    from_float(view_.dtype, static_cast<float>(value), memory_.data() + place);
  });
}

void HostTensor::fill_random(std::uint64_t seed, double magnitude) {
  each_element([&](std::size_t place, std::size_t) {
    const double unit = static_cast<double>(next(seed) >> 11) * 0x1p-52 - 1;
    from_float(view_.dtype, static_cast<float>(unit * magnitude), memory_.data() + place);
  });
}

bool HostTensor::surroundings_changed() const {
  for (std::size_t i = 0; i < memory_.size(); ++i)
    if (!owned_[i] && memory_[i] != kPattern) return true;
  return false;
}

std::vector<unsigned char> HostTensor::elements() const {
  std::vector<unsigned char> out;
  each_element([&](std::size_t place, std::size_t size) {
    out.insert(out.end(), memory_.begin() + static_cast<std::ptrdiff_t>(place),
               memory_.begin() + static_cast<std::ptrdiff_t>(place + size));
  });
  return out;
}

HostProblem::HostProblem(const Config& what, const Shape& sizes, Layout layout, std::uint64_t seed,
                         double magnitude)
    : config(what), shape(sizes) {
  const std::int64_t dim = config.head_dim,
                     dim_v = config.head_dim_v == 0 ? dim : config.head_dim_v;
  q = HostTensor(config.dtype, {shape.batch, shape.seq_q, shape.heads_q, dim}, layout);
  k = HostTensor(config.dtype, {shape.batch, shape.seq_kv, shape.heads_kv, dim}, layout);
  v = HostTensor(config.dtype, {shape.batch, shape.seq_kv, shape.heads_kv, dim_v}, layout);
  o = HostTensor(config.dtype, {shape.batch, shape.seq_q, shape.heads_q, dim_v}, layout);
  lse =
      HostTensor(DType::fp32, {shape.batch, shape.heads_q, shape.seq_q, 1}, Layout::rows_of_heads);
  q.fill_random(seed * 3 + 1, magnitude);
  k.fill_random(seed * 3 + 2, magnitude);
  v.fill_random(seed * 3 + 3, 1);
  o.fill(std::nan(""));
  lse.fill(std::nan(""));
  arguments.q = q.view();
  arguments.k = k.view();
  arguments.v = v.view();
  arguments.o = o.view();
  TensorView sums = lse.view();
  sums.ndim = 3;
  arguments.lse = sums;
  if (config.alibi) make_slopes(seed);
  arguments.seed = seed;
  arguments.offset = seed / 7;
  if (config.direction == "backward") make_gradients(layout, seed);
}

void HostProblem::make_gradients(Layout layout, std::uint64_t seed) {
  d_o = HostTensor(config.dtype, o.view().shape, layout);
  d_lse = HostTensor(DType::fp32, lse.view().shape, Layout::rows_of_heads);
  dq = HostTensor(config.dtype, q.view().shape, layout);
  dk = HostTensor(config.dtype, k.view().shape, layout);
  dv = HostTensor(config.dtype, v.view().shape, layout);
  d_o.fill_random(seed * 3 + 5, 1);
  d_lse.fill_random(seed * 3 + 6, 1);
  arguments.d_o = d_o.view();
  arguments.dq = dq.view();
  arguments.dk = dk.view();
  arguments.dv = dv.view();
  if (seed % 3 == 0) {
    TensorView of_sums = d_lse.view();
    of_sums.ndim = 3;
    arguments.d_lse = of_sums;
  }
  poison_outputs();
}

void HostProblem::fill_forward() {
  const Problem problem = normalise(config, {BackendKind::cpu, "host"});
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t h = 0; h < shape.heads_q; ++h)
      for (std::int64_t s = 0; s < shape.seq_q; ++s) {
        const ReferenceRow row = reference_row(config, problem, arguments, b, h, s);
        for (std::size_t d = 0; d < row.o.size(); ++d)
          o.set(b, s, h, static_cast<std::int64_t>(d), row.o[d]);
        lse.set(b, h, s, 0, row.lse);
      }
}

void HostProblem::make_slopes(std::uint64_t seed) {
  const bool of_each_batch = seed % 2 == 0;
  slopes = HostTensor(DType::fp32, {of_each_batch ? shape.batch : 1, shape.heads_q, 1, 1},
                      Layout::padded_rows);
  slopes.fill_random(seed * 3 + 4, 0.5);
  TensorView view = slopes.view();
  view.ndim = of_each_batch ? 2 : 1;
  if (!of_each_batch) {
    view.shape[0] = view.shape[1];
    view.stride[0] = view.stride[1];
  }
  arguments.alibi_slopes = view;
}

void HostProblem::poison_outputs() {
  if (config.direction == "backward") {
    for (HostTensor* tensor : {&dq, &dk, &dv}) tensor->fill(std::nan(""));
    return;
  }
  o.fill(std::nan(""));
  lse.fill(std::nan(""));
}

void HostProblem::use_random_blocks(std::int64_t block_q, std::int64_t block_kv, bool of_each_head,
                                    std::uint64_t seed) {
  const std::int64_t batch = of_each_head ? shape.batch : 1,
                     heads = of_each_head ? shape.heads_q : 1;
  const std::int64_t columns = (shape.seq_kv + block_kv - 1) / block_kv;
  const std::int64_t rows = (shape.seq_q + block_q - 1) / block_q;
  std::vector<std::uint8_t> kinds(static_cast<std::size_t>(batch * heads * rows * columns));
  for (std::uint8_t& kind : kinds) kind = static_cast<std::uint8_t>(next(seed) % 3);
  std::vector<std::uint8_t> keep(
      static_cast<std::size_t>(batch * heads * shape.seq_q * shape.seq_kv));
  std::size_t place = 0;
  for (std::int64_t matrix = 0; matrix < batch * heads; ++matrix)
    for (std::int64_t i = 0; i < shape.seq_q; ++i)
      for (std::int64_t j = 0; j < shape.seq_kv; ++j) {
        const auto block =
            static_cast<std::size_t>((matrix * rows + i / block_q) * columns + j / block_kv);
        keep[place++] = kinds[block] == 2 ? next(seed) % 2 == 0 : kinds[block];
      }
  mask = block_mask_from_dense(keep.data(), batch, heads, shape.seq_q, shape.seq_kv, block_q,
                               block_kv);
  arguments.blocks = mask.lists;
}

std::string HostProblem::fault(const Problem& problem, std::int64_t max_rows) const {
  for (const HostTensor* tensor : {&q, &k, &v, &o, &lse, &slopes, &d_o, &d_lse, &dq, &dk, &dv})
    if (tensor->surroundings_changed()) return "memory outside of a tensor was written";
  if (problem.direction == Direction::backward) {
    // In 16 bits the rounding of the outputs, which the kernel is given, is none of its faults.
    const RowStatistics statistics =
        problem.dtype == DType::fp32 ? RowStatistics::exact : RowStatistics::given;
    return fault_of(
        GradientSample(config, problem, arguments, statistics, max_rows).verdicts(arguments));
  }
  const Judge verdict = judge(config, problem, arguments, max_rows);
  if (verdict.passed()) return {};
  return fmt::format("error {:.3g} of {:.3g} allowed, LSE at {:.3g} of its bound, {} rows",
                     verdict.error(), verdict.tolerance(), verdict.lse_excess(), verdict.rows());
}

}  // namespace flashwright::testing
