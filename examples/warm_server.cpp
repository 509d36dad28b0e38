// A server that must not stall: all kernels are made ready when it starts, in parallel, and a request may
// only take what is there.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "flashwright/flashwright.hpp"

namespace fw = flashwright;

// Called after each kernel; another result than 0 would stop the rest.
static std::int32_t on_progress(void*, std::int64_t done, std::int64_t total, const char* event) {
  std::printf("  %d of %d: %s\n", static_cast<int>(done), static_cast<int>(total), event);
  return 0;
}

// Of 1000 requests for a kernel, in nanoseconds each.
static double request_ns(const fw::Config& config) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) fw::get_kernel(config, fw::Effort::cached);
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
             .count() /
         1000;
}

int main() {
  try {
    std::vector<fw::Config> configs;
    for (const int head_dim : {64, 128}) {
      for (const fw::Mask& mask :
           {fw::Mask::none(), fw::Mask::causal(), fw::Mask::window(256, 0)}) {
        fw::Config config;
        config.head_dim = head_dim;
        config.mask = mask;
        configs.push_back(config);
      }
    }
    std::string list;
    for (const fw::Config& config : configs)
      list += (list.empty() ? "[" : ",") + fw::to_json(config);

    std::printf("warming up\n");
    char* report = nullptr;
    fw::check(flashwright_prepare(nullptr, (list + "]").c_str(), FLASHWRIGHT_COMPILE, &on_progress,
                                  nullptr, &report));
    if (const std::string rows = fw::take(report); rows.find("\"failed\"") != std::string::npos) {
      std::fprintf(stderr, "not ready: %s\n", rows.c_str());
      return 1;
    }

    // From here on nothing compiles: with effort `cached` a kernel is there at once or the call fails.
    std::printf("serving: %.0f ns for a kernel\n", request_ns(configs.front()));
    fw::Config forgotten = configs.front();
    forgotten.head_dim = 96;
    try {
      fw::get_kernel(forgotten, fw::Effort::cached);
      std::printf("head dim 96 was in the store from an earlier run\n");
    } catch (const fw::Failure& failure) {
      if (failure.status != FLASHWRIGHT_NOT_CACHED) throw;
      std::printf("refused as it should be: %s\n", failure.what());
    }
    return 0;
  } catch (const fw::Failure& failure) {
    std::fprintf(stderr, "%s\n%s", failure.what(), failure.detail.c_str());
    return 1;
  }
}
