#include "tests/support/wrapper_kernel.hpp"

#include <fmt/format.h>

#include <sstream>

#include "generator/compose.hpp"

namespace flashwright::testing {

std::string wrapper_kernel(const std::string& body, DType dtype,
                           const std::vector<sm90::ProductShape>& products) {
  Options options;
  for (const std::string& name : option_names()) options[name] = 0;
  options["FW_BF16"] = dtype == DType::bf16;
  options["FW_FP16"] = dtype == DType::fp16;
  options["FW_FP32"] = dtype == DType::fp32;
  std::vector<Line> lines;
  for (const char* path : {"common/types.cuh", "ptx/index.cuh", "ptx/math.cuh", "ptx/memory.cuh",
                           "ptx/async_copy.cuh", "ptx/matrix.cuh", "ptx/barrier.cuh",
                           "ptx/tensor_map.cuh", "ptx/tma.cuh", "ptx/warpgroup.cuh"})
    append(lines, resolve(path, options, {}));
  append(lines, {{fmt::format("using Element = {};", info(dtype).cuda), {}}});
  for (const sm90::ProductShape& shape : products) append(lines, print_product(shape, dtype));
  std::vector<Line> own;
  std::istringstream text(body);
  for (std::string line; std::getline(text, line);) own.push_back({line, {}});
  append(lines, own);
  return join(prune(lines));
}

}  // namespace flashwright::testing
