#include "generator/cpu/family_cpu.hpp"
namespace flashwright {
double model_time_us(const Problem&, const DeviceInfo&, const Shape&, const Tiling&) {
  return 1;
}
}  // namespace flashwright
