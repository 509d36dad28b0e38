#include "tests/emulator/sm90_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/support/wrapper_kernel.hpp"

namespace flashwright::testing {
namespace {

using sm90::ProductShape;

std::vector<ProductShape> with_first(ProductShape shape) {
  ProductShape first = shape;
  first.first = true;
  return {shape, first};
}

// Both kinds of B, since each variant names both.
std::vector<ProductShape> gemm_products() {
  std::vector<ProductShape> all = with_first({.n = 128});
  for (const ProductShape& shape : with_first({.n = 128, .b_k_major = false})) all.push_back(shape);
  return all;
}

std::vector<ProductShape> pipeline_products() {
  std::vector<ProductShape> all = with_first({.n = 64});
  all.push_back({.n = 80, .a_in_registers = true, .b_k_major = false});
  return all;
}

Sm90Kernel gemm(const char* name, DType dtype, const char* constants) {
  return {name, "gemm", dtype, constants, gemm_products(), 384, 131120};
}

std::vector<Sm90Kernel> make_kernels() {
  return {
      gemm("gemm_128", DType::bf16,
           "constexpr int kSwizzle = 128;\nconstexpr bool kAcross = false;\n"),
      gemm("gemm_64", DType::bf16,
           "constexpr int kSwizzle = 64;\nconstexpr bool kAcross = false;\n"),
      gemm("gemm_32", DType::fp16,
           "constexpr int kSwizzle = 32;\nconstexpr bool kAcross = false;\n"),
      gemm("gemm_128_across", DType::fp16,
           "constexpr int kSwizzle = 128;\nconstexpr bool kAcross = true;\n"),
      gemm("gemm_64_across", DType::bf16,
           "constexpr int kSwizzle = 64;\nconstexpr bool kAcross = true;\n"),
      gemm("gemm_32_across", DType::bf16,
           "constexpr int kSwizzle = 32;\nconstexpr bool kAcross = true;\n"),
      {"pipeline", "pipeline", DType::bf16, "", pipeline_products(), 384, 98384},
      {"pipeline_fp16", "pipeline", DType::fp16, "", pipeline_products(), 384, 98384},
      {"cluster", "cluster", DType::bf16, "", with_first({.n = 128}), 160, 73776},
      {"reduce", "reduce", DType::fp32, "", {}, 128, 17688},
  };
}

}  // namespace

const std::vector<Sm90Kernel>& sm90_kernels() {
  static const std::vector<Sm90Kernel> kernels = make_kernels();
  return kernels;
}

const Sm90Kernel& sm90_kernel(const std::string& name) {
  const auto& all = sm90_kernels();
  return *std::find_if(all.begin(), all.end(), [&](const Sm90Kernel& k) { return k.name == name; });
}

std::string entry_of(const Sm90Kernel& kernel) { return std::string("fw_") + kernel.file; }

std::string body_of(const Sm90Kernel& kernel) {
  std::ifstream file(fmt::format("{}/tests/emulator/sm90/{}.cu", FW_SOURCE_DIR, kernel.file));
  std::ostringstream text;
  for (std::string line; std::getline(file, line);)
    if (!line.starts_with("//~")) text << line << '\n';
  return kernel.constants + text.str();
}

std::string text_of(const Sm90Kernel& kernel, const std::string& body) {
  return wrapper_kernel(body, kernel.dtype, kernel.products);
}

std::string to_string(const Sm90Size& size) {
  return fmt::format("{} rows, {} columns, depth {}, {} blocks", size.rows, size.columns,
                     size.depth, size.blocks);
}

emulator::RunReport run(const emulator::HostUnit& unit, const Sm90Problem& problem,
                        const emulator::RunOptions& options) {
  problem.reset_outputs();
  emulator::GlobalMemory memory;
  problem.register_tensors(memory);
  return run_entry(unit, problem.launch, memory, options);
}

}  // namespace flashwright::testing
