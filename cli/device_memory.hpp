// Tensors in host memory and, for a kernel that computes elsewhere, their copies there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/elements.hpp"
#include "cli/files.hpp"
#include "flashwright/flashwright.hpp"

namespace cli {

// Where a kernel computes.
struct Place {
  flashwright_engine* engine = nullptr;
  std::string target;   // of the Config; "" for the best device
  bool on_host = true;  // the host's memory is the kernel's
  int device_index = 0;

  const char* name() const { return target.empty() ? nullptr : target.c_str(); }
};

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(const Place& place, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void copy_in(const void* host) const;
  void copy_out(void* host) const;
  void* get() const { return memory_; }

 private:
  Place place_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

struct Tensor {
  flashwright::DType dtype = flashwright::DType::fp32;
  std::vector<std::int64_t> shape;
  HostBuffer host;
  DeviceMemory device;

  std::size_t elements() const;
  void
  allocate();  // host memory for the shape, every byte 0xff: NaN, so that an element nobody writes is seen
  void to_device(const Place& place);  // nothing where the host's memory is the kernel's
  void from_device(const Place& place);
  // Points to this tensor; valid while it lives.
  flashwright_tensor host_view();
  flashwright_tensor view(const Place& place);
};

// Block lists where the kernel can read them.
class PlacedBlocks {
 public:
  PlacedBlocks(const Place& place, const flashwright_blocks& host);
  const flashwright_blocks* get() const { return &view_; }

 private:
  flashwright_blocks view_;
  std::vector<DeviceMemory> memory_;
};

}  // namespace cli
