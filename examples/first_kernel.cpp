// The first kernel: attention of eight tokens on the best device present, one row checked by hand.
#include <bit>
#include <cmath>
#include <cstdio>
#include <vector>

#include "flashwright/flashwright.hpp"

namespace fw = flashwright;

// bf16 is the upper half of a float. The numbers here are multiples of 1/8, which it holds exactly.
static std::uint16_t to_bf16(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}
static float to_float(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

int main() {
  constexpr std::int64_t kSeq = 8, kDim = 64;
  try {
    fw::Config config;
    config.dtype = fw::DType::bf16;
    config.head_dim = kDim;
    config.mask = fw::Mask::causal();

    // Found in memory or in the store, or emitted and compiled.
    const fw::Kernel kernel = fw::get_kernel(config);
    const auto [cuda, device] = kernel.device();

    std::vector<std::uint16_t> q(kSeq * kDim), k(q), v(q), o(q);
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = to_bf16(static_cast<float>(i % 7) / 8 - 0.375f);
      k[i] = to_bf16(static_cast<float>(i % 11) / 8 - 0.625f);
      v[i] = to_bf16(static_cast<float>(i % 5) / 8);
    }

    // Memory where the kernel runs. A program with an allocator of its own uses that instead.
    const char* const target = cuda ? "cuda" : "cpu";
    const std::size_t bytes = 2 * q.size();
    std::vector<void*> memory(4);
    for (void*& m : memory) fw::check(flashwright_allocate(nullptr, target, bytes, &m));
    const void* const inputs[] = {q.data(), k.data(), v.data()};
    for (int i = 0; i < 3; ++i)
      fw::check(flashwright_copy_to_device(nullptr, target, memory[i], inputs[i], bytes));

    // (batch, seq, heads, dim)
    const auto tensor = [&](void* data) {
      return fw::Tensor(data, config.dtype, {1, kSeq, 1, kDim}, cuda, device);
    };
    fw::Arguments arguments{tensor(memory[0]), tensor(memory[1]), tensor(memory[2]),
                            tensor(memory[3])};
    void* workspace = nullptr;
    if (const std::size_t size = kernel.workspace_bytes(arguments); size > 0)
      fw::check(flashwright_allocate(nullptr, target, size, &workspace));
    kernel.launch(arguments, workspace);
    fw::check(flashwright_copy_to_host(nullptr, target, o.data(), memory[3], bytes));
    for (void* m : memory) fw::check(flashwright_deallocate(nullptr, target, m));
    if (workspace != nullptr) fw::check(flashwright_deallocate(nullptr, target, workspace));

    // The last row by hand: weights exp(q.k / sqrt(dim)), then the weighted mean of the values.
    std::vector<double> sums(kDim);
    double total = 0, worst = 0;
    for (int j = 0; j < kSeq; ++j) {
      double score = 0;
      for (int d = 0; d < kDim; ++d)
        score += to_float(q[(kSeq - 1) * kDim + d]) * to_float(k[j * kDim + d]);
      const double weight = std::exp(score / std::sqrt(static_cast<double>(kDim)));
      total += weight;
      for (int d = 0; d < kDim; ++d) sums[d] += weight * to_float(v[j * kDim + d]);
    }
    for (int d = 0; d < kDim; ++d)
      worst = std::max(worst, std::abs(to_float(o[(kSeq - 1) * kDim + d]) - sums[d] / total));
    std::printf("%s %d: largest error of the last row %.1e\n", target, device, worst);
    return worst < 4e-3 ? 0 : 1;
  } catch (const fw::Failure& failure) {
    std::fprintf(stderr, "%s\n%s", failure.what(), failure.detail.c_str());
    return 1;
  }
}
