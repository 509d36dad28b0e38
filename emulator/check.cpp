#include "emulator/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/block_mask.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/reference.hpp"
#include "core/reference_gradient.hpp"
#include "emulator/run.hpp"

namespace flashwright::emulator {
namespace {

constexpr Mode kModes[] = {Mode::early, Mode::late, Mode::random, Mode::skew};

// A tensor with memory of its own, dense.
struct OwnTensor {
  std::vector<std::uint64_t> memory;  // aligned for every element
  TensorView view;

  OwnTensor(DType dtype, std::array<std::int64_t, 4> shape) {
    const std::int64_t elements = shape[0] * shape[1] * shape[2] * shape[3];
    const auto bytes = static_cast<std::size_t>(elements * info(dtype).bytes);
    memory.assign(bytes / 8 + 4, ~std::uint64_t{0});
    const auto address = (reinterpret_cast<std::uintptr_t>(memory.data()) + 15) / 16 * 16;
    view = dense_view(reinterpret_cast<void*>(address), dtype, shape);
  }
  void fill(std::mt19937_64& random) {
    const int bytes = info(view.dtype).bytes;
    const std::int64_t count = view.shape[0] * view.shape[1] * view.shape[2] * view.shape[3];
    for (std::int64_t i = 0; i < count; ++i) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
      from_float(view.dtype, static_cast<float>(unit), static_cast<char*>(view.data) + i * bytes);
    }
  }
  void poison() { std::fill(memory.begin(), memory.end(), ~std::uint64_t{0}); }
};

// What a forward pass writes for a row.
void write_output(const Arguments& arguments, const RowIndex& row, const ReferenceRow& values) {
  const TensorView &o = arguments.o, &lse = *arguments.lse;
  char* const elements =
      static_cast<char*>(o.data) +
      (row.b * o.stride[0] + row.q * o.stride[1] + row.h * o.stride[2]) * info(o.dtype).bytes;
  for (std::size_t d = 0; d < values.o.size(); ++d)
    from_float(o.dtype, static_cast<float>(values.o[d]),
               elements + static_cast<std::int64_t>(d) * info(o.dtype).bytes);
  static_cast<float*>(
      lse.data)[row.b * lse.stride[0] + row.h * lse.stride[1] + row.q * lse.stride[2]] =
      static_cast<float>(values.lse);
}

// Everything that one launch needs.
struct Tensors {
  OwnTensor q, k, v, o, lse, slopes;
  std::vector<OwnTensor> gradients;  // of a backward kernel: d_o, then dq, dk, dv
  BlockMask mask;
  Arguments arguments;

  Tensors(const Config& config, const Problem& problem, const Shape& shape, std::uint64_t seed)
      : q(config.dtype, {shape.batch, shape.seq_q, shape.heads_q, problem.head_dim}),
        k(config.dtype, {shape.batch, shape.seq_kv, shape.heads_kv, problem.head_dim}),
        v(config.dtype, {shape.batch, shape.seq_kv, shape.heads_kv, problem.head_dim_v}),
        o(config.dtype, {shape.batch, shape.seq_q, shape.heads_q, problem.head_dim_v}),
        lse(DType::fp32, {shape.batch, shape.heads_q, shape.seq_q, 1}),
        slopes(DType::fp32, {1, 1, shape.batch, shape.heads_q}) {
    std::mt19937_64 random(seed);
    for (OwnTensor* tensor : {&q, &k, &v}) tensor->fill(random);
    arguments.q = q.view;
    arguments.k = k.view;
    arguments.v = v.view;
    arguments.o = o.view;
    TensorView sums = lse.view;
    sums.ndim = 3;
    arguments.lse = sums;
    arguments.seed = seed;
    if (config.mask.kind == Mask::Kind::blocks) add_blocks(shape, random);
    if (config.alibi) add_slopes(shape);
    if (problem.direction == Direction::backward) add_gradients(config, problem, random);
  }

  // o and lse become those of the forward pass, and d_o numbers.
  void add_gradients(const Config& config, const Problem& problem, std::mt19937_64& random) {
    const TensorView like[] = {o.view, q.view, k.view, v.view};
    for (const TensorView& view : like) gradients.emplace_back(view.dtype, view.shape);
    gradients[0].fill(random);
    arguments.d_o = gradients[0].view;
    arguments.dq = gradients[1].view;
    arguments.dk = gradients[2].view;
    arguments.dv = gradients[3].view;
    for (const RowIndex& row : sample_rows(arguments, std::numeric_limits<std::int64_t>::max())) {
      const ReferenceRow exact = reference_row(config, problem, arguments, row.b, row.h, row.q);
      write_output(arguments, row, exact);
    }
  }

  void poison_outputs() {
    if (gradients.empty()) {
      o.poison();
      lse.poison();
    }
    for (std::size_t i = 1; i < gradients.size(); ++i) gradients[i].poison();
  }

  // Those of the paper for each batch entry, the first heads' the steepest.
  void add_slopes(const Shape& shape) {
    TensorView& view = slopes.view;
    view.ndim = 2;
    view.shape = {shape.batch, shape.heads_q, 1, 1};
    view.stride = {shape.heads_q, 1, 1, 1};
    for (std::int64_t i = 0; i < shape.batch * shape.heads_q; ++i)
      static_cast<float*>(view.data)[i] = std::exp2(
          -8.0f * static_cast<float>(i % shape.heads_q + 1) / static_cast<float>(shape.heads_q));
    arguments.alibi_slopes = view;
  }

  // Blocks of 64 x 64: a third hidden, a third visible, and a third in part.
  void add_blocks(const Shape& shape, std::mt19937_64& random) {
    constexpr std::int64_t kBlock = 64;
    const std::int64_t columns = (shape.seq_kv + kBlock - 1) / kBlock;
    std::vector<std::uint8_t> keep(static_cast<std::size_t>(shape.seq_q * shape.seq_kv));
    std::vector<std::uint64_t> kinds(
        static_cast<std::size_t>((shape.seq_q + kBlock - 1) / kBlock * columns));
    for (std::uint64_t& kind : kinds) kind = random() % 3;
    for (std::int64_t i = 0; i < shape.seq_q; ++i)
      for (std::int64_t j = 0; j < shape.seq_kv; ++j) {
        const std::uint64_t kind =
            kinds[static_cast<std::size_t>(i / kBlock * columns + j / kBlock)];
        keep[static_cast<std::size_t>(i * shape.seq_kv + j)] =
            static_cast<std::uint8_t>(kind == 2 ? random() % 2 : kind);
      }
    mask = block_mask_from_dense(keep.data(), 1, 1, shape.seq_q, shape.seq_kv, kBlock, kBlock);
    arguments.blocks = mask.lists;
  }
};

Mode mode_of(const std::string& name) {
  for (const Mode mode : kModes)
    if (name == to_string(mode)) return mode;
  throw Error(Status::bad_argument,
              fmt::format("mode: given '{}'; expected {}", name, fmt::join(mode_names(), ", ")));
}

void judge_output(const Config& config, const Problem& problem, const Arguments& arguments,
                  std::int64_t max_rows, CheckMode& out) {
  const Judge verdict = judge(config, problem, arguments, max_rows);
  out.rows = verdict.rows();
  out.error = verdict.error();
  out.tolerance = verdict.tolerance();
  out.lse_error_over_bound = verdict.lse_excess();
  out.finite = verdict.finite();
  out.numbers_right = verdict.passed();
}

void judge_gradients(const Config& config, const Problem& problem, const Arguments& arguments,
                     std::int64_t max_rows, CheckMode& out) {
  out.numbers_right = true;
  double worst = -1;
  for (const auto& [name, judge] :
       GradientSample(config, problem, arguments, RowStatistics::given, max_rows)
           .verdicts(arguments)) {
    out.rows += judge.rows();
    out.finite = out.finite && judge.finite();
    out.numbers_right = out.numbers_right && judge.passed();
    const double share = judge.error() / judge.tolerance();
    if (share <= worst) continue;
    worst = share;
    out.judged = name;
    out.error = judge.error();
    out.tolerance = judge.tolerance();
  }
}

CheckMode check_mode(const HostUnit& unit, const Config& config, const Problem& problem,
                     Tensors& tensors, const CheckRequest& request, const std::string& name) {
  tensors.poison_outputs();
  RunOptions options;
  options.mode = mode_of(name);
  options.races = request.races;
  options.seed = request.seed;
  if (request.max_steps > 0) options.max_steps = request.max_steps;
  options.threads = 2;
  const RunReport report = run(unit, config, problem, tensors.arguments, options);
  CheckMode out;
  out.mode = name;
  for (const Finding& finding : report.findings)
    out.findings.push_back({to_string(finding.kind), finding.text, finding.count});
  out.blocks = report.blocks;
  out.steps = report.steps;
  out.stopped_blocks = report.stopped_blocks;
  out.bank_conflicts = report.bank_conflicts;
  for (const ConflictPlace& place : report.conflict_places)
    out.conflict_places.push_back(fmt::format("{}: {} extra passes", place.text, place.passes));
  out.run_ms = report.run_ms;
  if (problem.direction == Direction::backward) {
    judge_gradients(config, problem, tensors.arguments, request.max_rows, out);
  } else {
    judge_output(config, problem, tensors.arguments, request.max_rows, out);
  }
  out.passed = out.numbers_right && out.findings.empty();
  return out;
}

CheckReport make_check(const CheckRequest& request) {
  const Config config = config_from_json(request.config);
  const Target target = parse_target(config.target);
  if (target.backend != BackendKind::cuda)
    throw Error(Status::unsupported,
                fmt::format("target: given '{}'; only emitted CUDA is emulated", config.target));
  const Problem problem = normalise(config, target);
  const HostUnit unit(translate(request.text, "kernel.cu"));
  Tensors tensors(config, problem,
                  {request.batch, request.heads_q, request.heads_kv, request.seq_q, request.seq_kv},
                  request.seed);
  CheckReport report;
  report.compiler = unit.compiler();
  report.compile_ms = unit.compile_ms();
  report.passed = true;
  for (const std::string& mode : request.modes) {
    report.modes.push_back(check_mode(unit, config, problem, tensors, request, mode));
    report.passed = report.passed && report.modes.back().passed;
  }
  return report;
}

}  // namespace

CheckReport check(const CheckRequest& request) {
  try {
    return make_check(request);
  } catch (const Error& error) {
    throw CheckFailure{static_cast<int>(error.status), error.message, error.detail};
  } catch (const std::exception& error) {
    throw CheckFailure{static_cast<int>(Status::internal), error.what(), {}};
  }
}

const std::vector<std::string>& mode_names() {
  static const std::vector<std::string> names = {"early", "late", "random", "skew"};
  return names;
}

}  // namespace flashwright::emulator
