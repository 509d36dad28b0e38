// The library found its plugin in a build tree that it does not know: a CPU kernel can be got.
#include <cstdio>
#include <cstdlib>

#include "flashwright/flashwright.hpp"

int main() {
  setenv("FLASHWRIGHT_CACHE_DIR", ":memory:", 1);
  setenv("FLASHWRIGHT_DATA_DIR", ":memory:", 1);
  flashwright::Config config;
  config.head_dim = 64;
  config.target = "sm_80";
  char* text = nullptr;
  flashwright::check(
      flashwright_emit(nullptr, flashwright::to_json(config).c_str(), nullptr, &text));
  if (flashwright::take(text).find("fw_forward") == std::string::npos) return 1;
  if (std::string(flashwright_build_info()).empty()) return 1;
  config.target = "cpu";
  try {
    std::printf("%s\n", flashwright::get_kernel(config).describe().c_str());
  } catch (const flashwright::Failure& failure) {
    std::printf("%s\n", failure.what());
    return failure.status == FLASHWRIGHT_UNAVAILABLE && !WITH_CPU ? 0 : 1;
  }
  return 0;
}
