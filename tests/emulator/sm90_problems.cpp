// Tensors for the kernels of tests/emulator/sm90/, launches over them, and float64 as their judge.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "emulator/tensor_map.hpp"
#include "tests/emulator/sm90_kernels.hpp"
#include "tests/support/host_problem.hpp"

namespace flashwright::testing {
namespace {

using namespace emulator;

struct alignas(64) Map {
  unsigned char bytes[kTensorMapBytes];
};

// A map of rank 4 of a tensor (batch, seq, heads, dim): dimensions (dim, seq, head, batch).
Map map_of(const TensorView& view, int box_columns, int box_rows, int swizzle) {
  const std::int64_t bytes = info(view.dtype).bytes;
  TensorMapSpec spec;
  spec.dtype = view.dtype;
  spec.base = view.data;
  spec.shape = {view.shape[3], view.shape[1], view.shape[2], view.shape[0]};
  spec.stride_bytes = {view.stride[1] * bytes, view.stride[2] * bytes, view.stride[0] * bytes};
  spec.box = {box_columns, box_rows, 1, 1};
  spec.swizzle = swizzle;
  Map map;
  encode_tensor_map(spec, map.bytes);
  return map;
}

// Rows that start on multiples of 16 bytes whatever their length.
HostTensor matrix(DType dtype, std::int64_t rows, std::int64_t columns) {
  return {dtype, {1, rows, 1, columns}, Layout::page_rows};
}

int tiles_of(int elements, int tile) { return (elements + tile - 1) / tile; }

// The first element that is further from `want` than `allowed`.
class Comparison {
 public:
  void add(const std::string& place, double got, double want, double allowed) {
    if (std::abs(got - want) <= allowed || !fault_.empty()) return;  // a NaN is a fault
    fault_ = fmt::format("{} is {}, not {} within {:.3g}", place, got, want, allowed);
  }
  void watch(const std::string& name, const HostTensor& tensor) {
    if (tensor.surroundings_changed() && fault_.empty()) fault_ = "written outside of " + name;
  }
  const std::string& fault() const { return fault_; }

 private:
  std::string fault_;
};

// What a sum of `terms` terms may be off: each addition in fp32 rounds or cuts off, then the result
// is rounded to its type.
double allowed_error(DType dtype, double sum, double magnitude, int terms) {
  const double of_sum = terms * magnitude * 0x1p-23;
  return of_sum + 0.5 * ulp(dtype, std::abs(sum) + of_sum);
}

struct ProductTensors {
  HostTensor a, b, c;
  bool across;  // b is stored as rows along K
  int rows, columns, depth;

  ProductTensors(DType dtype, DType result, bool b_across, const Sm90Size& size, std::uint64_t seed)
      : a(matrix(dtype, size.rows, size.depth)),
        b(b_across ? matrix(dtype, size.depth, size.columns)
                   : matrix(dtype, size.columns, size.depth)),
        c(matrix(result, size.rows, size.columns)),
        across(b_across),
        rows(size.rows),
        columns(size.columns),
        depth(size.depth) {
    a.fill_random(seed * 2 + 1, 1);
    b.fill_random(seed * 2 + 2, 1);
  }

  std::string fault() const {
    Comparison comparison;
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) {
        double sum = 0, magnitude = 0;
        for (int k = 0; k < depth; ++k) {
          const double term = a.at(0, i, 0, k) * (across ? b.at(0, k, 0, j) : b.at(0, j, 0, k));
          sum += term;
          magnitude += std::abs(term);
        }
        comparison.add(fmt::format("C[{}, {}]", i, j), c.at(0, i, 0, j), sum,
                       allowed_error(c.view().dtype, sum, magnitude, depth));
      }
    comparison.watch("C", c);
    return comparison.fault();
  }
};

// Ties a launch to what it runs on.
template <typename Params, typename Tensors>
Sm90Problem over_product(const Sm90Kernel& kernel, std::int64_t blocks,
                         std::shared_ptr<Tensors> tensors, const Params& values) {
  const auto params = std::make_shared<Params>(values);
  Sm90Problem problem;
  problem.launch = {kernel.threads, kernel.smem_bytes, blocks, params.get()};
  problem.register_tensors = [tensors, params](GlobalMemory& memory) {
    memory.add("a", tensors->a.view(), GlobalMemory::Use::input);
    memory.add("b", tensors->b.view(), GlobalMemory::Use::input);
    memory.add("c", tensors->c.view(), GlobalMemory::Use::output);
  };
  problem.reset_outputs = [tensors] { tensors->c.fill(std::nan("")); };
  problem.fault = [tensors] { return tensors->fault(); };
  return problem;
}

struct GemmParams {
  Map a, b, c;
  int depth, columns, tiles, blocks;
};

Sm90Problem gemm_problem(const Sm90Kernel& kernel, const Sm90Size& size, std::uint64_t seed) {
  const std::string constants = kernel.constants;
  const bool across = constants.find("kAcross = true") != std::string::npos;
  int swizzle = 128;
  for (const int width : {32, 64})
    if (constants.find(fmt::format("kSwizzle = {};", width)) != std::string::npos) swizzle = width;
  const int slab = swizzle / 2;
  const auto t = std::make_shared<ProductTensors>(kernel.dtype, kernel.dtype, across, size, seed);
  const int columns = tiles_of(size.columns, 128), tiles = columns * tiles_of(size.rows, 128);
  return over_product(
      kernel, size.blocks, t,
      GemmParams{map_of(t->a.view(), slab, 128, swizzle),
                 map_of(t->b.view(), slab, across ? 64 : 128, swizzle),
                 map_of(t->c.view(), 64, 64, 128), size.depth, columns, tiles, size.blocks});
}

struct ClusterParams {
  Map a, b;
  void* c;
  int rows, columns, depth, column_tiles;
};

Sm90Problem cluster_problem(const Sm90Kernel& kernel, const Sm90Size& size, std::uint64_t seed) {
  const auto t = std::make_shared<ProductTensors>(kernel.dtype, DType::fp32, false, size, seed);
  // This kernel writes C without a map, as a dense matrix.
  t->c = HostTensor(DType::fp32, {1, size.rows, 1, size.columns}, Layout::rows_of_heads);
  const int columns = tiles_of(size.columns, 128);
  return over_product(
      kernel, std::int64_t{2} * columns * tiles_of(size.rows, 128), t,
      ClusterParams{map_of(t->a.view(), 64, 64, 128), map_of(t->b.view(), 64, 64, 128),
                    t->c.view().data, size.rows, size.columns, size.depth, columns});
}

struct PipelineParams {
  Map q, k, v, o;
  int query_tiles, heads, group, items, blocks, seq_kv;
  float scale_log2;
};

Sm90Problem pipeline_problem(const Sm90Kernel& kernel, const Sm90Size& size, std::uint64_t seed) {
  Config config;
  config.dtype = kernel.dtype;
  config.head_dim = 64;
  config.head_dim_v = 80;
  constexpr std::int64_t kBatch = 2;
  const int group = size.columns % 2 == 0 ? 2 : 1;
  const Shape shape{kBatch, size.columns, size.columns / group, size.rows, size.depth};
  constexpr Layout kLayouts[] = {Layout::rows_of_heads, Layout::heads_of_rows, Layout::page_rows};
  // Large scores, so that some keys matter far more than others.
  const auto host = std::make_shared<HostProblem>(config, shape, kLayouts[seed % 3], seed, 3);
  host->arguments.lse.reset();
  const int query_tiles = tiles_of(size.rows, 128);
  const auto params = std::make_shared<PipelineParams>(PipelineParams{
      map_of(host->q.view(), 64, 128, 128), map_of(host->k.view(), 64, 64, 128),
      map_of(host->v.view(), 64, 64, 128), map_of(host->o.view(), 64, 64, 128), query_tiles,
      size.columns, group, query_tiles * size.columns * static_cast<int>(kBatch), size.blocks,
      size.depth, static_cast<float>(std::log2(std::exp(1.0)) / 8)});
  Sm90Problem problem;
  problem.launch = {kernel.threads, kernel.smem_bytes, size.blocks, params.get()};
  problem.register_tensors = [host, params](GlobalMemory& memory) {
    memory.add("q", host->arguments.q, GlobalMemory::Use::input);
    memory.add("k", host->arguments.k, GlobalMemory::Use::input);
    memory.add("v", host->arguments.v, GlobalMemory::Use::input);
    memory.add("o", host->arguments.o, GlobalMemory::Use::output);
  };
  problem.reset_outputs = [host] { host->poison_outputs(); };
  problem.fault = [host] {
    return host->fault(normalise(host->config, parse_target("sm_90a")), 64);
  };
  return problem;
}

struct ReduceParams {
  Map in, out;
  void *factors, *row_sums, *own_row_sums;
  int row_tiles, column_tiles;
};

struct ReduceTensors {
  HostTensor in, out, start, factors, row_sums, own_row_sums;
  int matrices, rows, columns;

  ReduceTensors(const Sm90Size& size, std::uint64_t seed)
      : in(DType::fp32, {size.depth, size.rows / 2, 2, size.columns}, Layout::page_rows),
        out(matrix(DType::fp32, size.rows, size.columns)),
        start(matrix(DType::fp32, size.rows, size.columns)),
        factors(matrix(DType::fp32, 1, tiles_of(size.columns, 32) * 32)),
        row_sums(matrix(DType::fp32, 1, tiles_of(size.rows, 32) * 32)),
        own_row_sums(DType::fp32, {1, 1, size.depth, tiles_of(size.rows, 32) * 32},
                     Layout::rows_of_heads),
        matrices(size.depth),
        rows(size.rows),
        columns(size.columns) {
    in.fill_random(seed * 3 + 1, 1);
    factors.fill_random(seed * 3 + 2, 1);
    start.fill_random(seed * 3 + 3, 1);
  }

  // What the kernel adds to holds values before it starts.
  void reset() {
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < columns; ++j) out.set(0, i, 0, j, start.at(0, i, 0, j));
    row_sums.fill(0);
    own_row_sums.fill(std::nan(""));
  }

  double scaled(int matrix, int row, int column) const {
    return in.at(matrix, row / 2, row % 2, column) * factors.at(0, 0, 0, column);
  }

  std::string fault() const {
    Comparison comparison;
    const int terms = matrices + columns + 2;
    for (int i = 0; i < rows; ++i) {
      double of_all = 0, magnitude_of_all = 0;
      for (int m = 0; m < matrices; ++m) {
        double sum = 0, magnitude = 0;
        for (int j = 0; j < columns; ++j) {
          sum += scaled(m, i, j);
          magnitude += std::abs(scaled(m, i, j));
        }
        comparison.add(fmt::format("sum of row {} of matrix {}", i, m), own_row_sums.at(0, 0, m, i),
                       sum, allowed_error(DType::fp32, sum, magnitude, terms));
        of_all += sum;
        magnitude_of_all += magnitude;
      }
      comparison.add(fmt::format("sum of row {}", i), row_sums.at(0, 0, 0, i), of_all,
                     allowed_error(DType::fp32, of_all, magnitude_of_all, terms));
      for (int j = 0; j < columns; ++j) {
        double sum = start.at(0, i, 0, j), magnitude = std::abs(sum);
        for (int m = 0; m < matrices; ++m) {
          sum += scaled(m, i, j);
          magnitude += std::abs(scaled(m, i, j));
        }
        comparison.add(fmt::format("element [{}, {}]", i, j), out.at(0, i, 0, j), sum,
                       allowed_error(DType::fp32, sum, magnitude, terms));
      }
    }
    for (const auto& [name, tensor] : {std::pair{"out", &out}, std::pair{"row_sums", &row_sums},
                                       std::pair{"own_row_sums", &own_row_sums}})
      comparison.watch(name, *tensor);
    return comparison.fault();
  }
};

// A box of whole pairs of rows: dimensions (column, row of a pair, pair, matrix, 1).
Map map_of_pairs(const TensorView& view) {
  TensorMapSpec spec;
  spec.dtype = DType::fp32;
  spec.rank = 5;
  spec.base = view.data;
  spec.shape = {view.shape[3], 2, view.shape[1], view.shape[0], 1};
  spec.stride_bytes = {view.stride[2] * 4, view.stride[1] * 4, view.stride[0] * 4,
                       view.stride[0] * 4};
  spec.box = {32, 2, 16, 1, 1};
  spec.swizzle = 128;
  Map map;
  encode_tensor_map(spec, map.bytes);
  return map;
}

Sm90Problem reduce_problem(const Sm90Kernel& kernel, const Sm90Size& size, std::uint64_t seed) {
  const auto t = std::make_shared<ReduceTensors>(size, seed);
  const auto params = std::make_shared<ReduceParams>(
      ReduceParams{map_of_pairs(t->in.view()), map_of(t->out.view(), 32, 32, 128),
                   t->factors.view().data, t->row_sums.view().data, t->own_row_sums.view().data,
                   tiles_of(size.rows, 32), tiles_of(size.columns, 32)});
  Sm90Problem problem;
  problem.launch = {kernel.threads, kernel.smem_bytes, size.depth, params.get()};
  problem.register_tensors = [t, params](GlobalMemory& memory) {
    memory.add("in", t->in.view(), GlobalMemory::Use::input);
    memory.add("factors", t->factors.view(), GlobalMemory::Use::input);
    memory.add("own_row_sums", t->own_row_sums.view(), GlobalMemory::Use::output);
    memory.add("out", t->out.view(), GlobalMemory::Use::sums);
    memory.add("row_sums", t->row_sums.view(), GlobalMemory::Use::sums);
  };
  problem.reset_outputs = [t] { t->reset(); };
  problem.fault = [t] { return t->fault(); };
  return problem;
}

}  // namespace

Sm90Problem make_problem(const Sm90Kernel& kernel, const Sm90Size& size, std::uint64_t seed) {
  const std::string file = kernel.file;
  if (file == "gemm") return gemm_problem(kernel, size, seed);
  if (file == "cluster") return cluster_problem(kernel, size, seed);
  if (file == "pipeline") return pipeline_problem(kernel, size, seed);
  return reduce_problem(kernel, size, seed);
}

}  // namespace flashwright::testing
