// A mask of one's own: every token sees the last 200 and the first 16. Most blocks of the score matrix are
// empty, and a kernel skips them. On a GPU the lists, like the tensors, would be copied to its memory first.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "flashwright/flashwright.hpp"

namespace fw = flashwright;

int main() {
  constexpr std::int64_t kSeq = 1024, kHeads = 2, kDim = 64, kBlock = 64;
  try {
    std::vector<std::uint8_t> keep(kSeq * kSeq);  // of all heads alike: (1, 1, seq_q, seq_kv)
    for (std::int64_t i = 0; i < kSeq; ++i)
      for (std::int64_t j = 0; j <= i; ++j) keep[i * kSeq + j] = i - j < 200 || j < 16;

    flashwright_blocks* made = nullptr;
    fw::check(flashwright_blocks_from_mask(keep.data(), 1, 1, kSeq, kSeq, kBlock, kBlock, &made));
    const std::unique_ptr<flashwright_blocks, decltype(&flashwright_blocks_free)> blocks(
        made, &flashwright_blocks_free);
    const std::int64_t rows = kSeq / kBlock;
    std::printf("%d blocks are full, %d partial, of %d\n", blocks->full_offsets[rows],
                blocks->partial_offsets[rows], static_cast<int>(rows * rows));

    fw::Config config;
    config.dtype = fw::DType::fp32;
    config.head_dim = kDim;
    config.mask = fw::Mask::blocks();
    config.target = "cpu";
    const fw::Kernel kernel = fw::get_kernel(config);

    std::vector<float> q(kSeq * kHeads * kDim), k(q), v(q), o(q);
    for (std::size_t i = 0; i < q.size(); ++i) {
      q[i] = std::sin(static_cast<float>(i));
      k[i] = std::sin(1.7f * static_cast<float>(i));
      v[i] = std::cos(static_cast<float>(i));
    }
    const auto tensor = [&](std::vector<float>& data) {
      return fw::Tensor(data.data(), config.dtype, {1, kSeq, kHeads, kDim});
    };
    fw::Arguments arguments{tensor(q), tensor(k), tensor(v), tensor(o)};
    arguments.blocks = blocks.get();
    kernel.launch(arguments);  // without workspace: kernel.workspace_bytes(arguments) is 0

    // The reference reads the same lists; keys that are not in them weigh nothing.
    const flashwright_arguments raw = arguments.get();
    char* report = nullptr;
    fw::check(flashwright_check(fw::to_json(config).c_str(), &raw, 200, &report));
    const std::string verdict = fw::take(report);
    std::printf("%s\n", verdict.c_str());
    return verdict.find("\"passed\":true") != std::string::npos ? 0 : 1;
  } catch (const fw::Failure& failure) {
    std::fprintf(stderr, "%s\n%s", failure.what(), failure.detail.c_str());
    return 1;
  }
}
