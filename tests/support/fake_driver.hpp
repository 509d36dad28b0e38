// A CUDA driver that runs nothing: it checks what it is asked, remembers it, counts what is alive, and fails at the
// n-th call on request. Device memory is host memory.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/driver.hpp"

namespace flashwright::testing {

struct FakeDevice {
  std::string name = "Fake A100";
  int major = 8, minor = 0, sm_count = 108, smem_per_block = 166912, smem_per_sm = 167936;
};

// One launch that the driver accepted.
struct FakeLaunch {
  cuda::LaunchConfig config{};
  std::string entry;
  int device = -1;
  std::vector<unsigned char> params;
  bool early = false;  // may overlap the kernel before it
};

// One tensor map that the driver was asked for.
struct FakeMap {
  int type = -1, interleave = -1, swizzle = -1, promotion = -1, fill = -1;
  void* base = nullptr;
  std::vector<std::uint64_t> shape, strides;
  std::vector<unsigned> box, steps;
};

struct FakeDriver {
  std::vector<FakeDevice> devices = {{}, {}};
  std::vector<std::string> entries = {"fw_forward"};  // that every library has
  std::size_t param_bytes = 0;                        // copied at each launch
  float launch_ms = 0.010f;                           // that a launch takes
  int fail_at = 0;    // the number of the call that fails, from 1 on; 0: none
  int failure = 2;    // and its result
  bool dies = false;  // all calls behind it fail too

  std::vector<std::string> calls;
  std::vector<FakeLaunch> launches;
  std::vector<FakeMap> maps;
  std::vector<std::string> complaints;  // calls that a real driver would refuse, or worse
  std::set<cuda::Library> libraries;
  std::set<cuda::Event> events;
  std::map<cuda::DevicePointer, std::size_t> memory;
  std::map<int, int> retained;                               // primary contexts, by device
  std::map<std::pair<cuda::Kernel, int>, int> smem_allowed;  // by kernel and device
  std::vector<int> current;                                  // devices of the contexts on the stack
  int capture_mode = 0;
  std::mutex mutex;

  // A new state; what was alive is forgotten.
  static FakeDriver& fresh();
  static FakeDriver& state();
};

// The table to give to make_cuda_backend.
const cuda::Driver& fake_driver_table();

}  // namespace flashwright::testing
