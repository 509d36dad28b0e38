// Facts about this machine that the CPU backend plans with. Sizes that cannot be true are replaced.
#pragma once

#include <cstdint>
#include <string>

namespace flashwright::cpu {

// Cores this process may use: affinity mask and cgroup quota, or FLASHWRIGHT_JOBS.
int usable_cores();

struct Caches {
  std::int64_t l1_bytes = 0;  // data cache of one core
  std::int64_t l2_bytes = 0;
};
// FLASHWRIGHT_L1_BYTES and FLASHWRIGHT_L2_BYTES win over what the processor says.
Caches caches();

std::string processor_name();
double clock_ghz();  // nominal

}  // namespace flashwright::cpu
