// What the library adds to a launch and to a lookup: through the C interface, over a device whose launches do
// nothing. Prints nanoseconds.
#include <cstdio>
#include <cstdlib>

#include "bench/host/timing.hpp"
#include "flashwright/flashwright.hpp"

using namespace flashwright;

namespace {

constexpr std::int64_t kBatch = 4, kSeq = 1024, kHeads = 16, kDim = 64;

void must(flashwright_status status) {
  if (status == FLASHWRIGHT_OK) return;
  std::fprintf(stderr, "%s\n", flashwright_last_error());
  std::exit(1);
}

// Only the addresses matter.
Tensor tensor(std::uintptr_t address) {
  return Tensor(reinterpret_cast<void*>(address), DType::bf16, {kBatch, kSeq, kHeads, kDim}, true);
}

void measure(flashwright_engine* engine, const char* what, const Config& config,
             Arguments arguments) {
  const std::string text = to_json(config);
  const flashwright_shape shape{kBatch, kHeads, kHeads, kSeq, kSeq};
  flashwright_kernel* kernel = nullptr;
  must(flashwright_get_kernel(engine, text.c_str(), &shape, FLASHWRIGHT_COMPILE, &kernel));
  const flashwright_arguments plain = arguments.get();
  const double launch = bench::nanoseconds(
      20000, [&] { must(flashwright_kernel_launch(kernel, &plain, nullptr, nullptr)); });
  const double get = bench::nanoseconds(20000, [&] {
    flashwright_kernel* found = nullptr;
    must(flashwright_get_kernel(engine, text.c_str(), &shape, FLASHWRIGHT_COMPILE, &found));
    flashwright_kernel_release(found);
  });
  std::printf("%-24s %8.0f %8.0f\n", what, launch, get);
  flashwright_kernel_release(kernel);
}

}  // namespace

int main() {
  flashwright_engine* engine = nullptr;
  must(flashwright_engine_create(R"({"cache_dir":":memory:","data_dir":":memory:"})", &engine));
  const Arguments dense{tensor(1 << 20), tensor(2 << 20), tensor(3 << 20), tensor(4 << 20)};
  std::printf("%-24s %8s %8s   ns\n", "", "launch", "get");
  Config config;
  config.head_dim = kDim;
  measure(engine, "full", config, dense);
  config.mask = Mask::causal();
  config.dropout = 0.1;
  measure(engine, "causal, dropout", config, dense);

  config = Config{};
  config.head_dim = kDim;
  config.mask = Mask::blocks();
  const std::vector<std::uint8_t> keep(kSeq * kSeq, 1);
  flashwright_blocks* blocks = nullptr;
  must(flashwright_blocks_from_mask(keep.data(), 1, 1, kSeq, kSeq, 128, 128, &blocks));
  Arguments sparse = dense;
  sparse.blocks = blocks;
  measure(engine, "64 blocks", config, sparse);
  flashwright_blocks_free(blocks);
  flashwright_engine_release(engine);
}
