// Tensors to run a problem on: random normal inputs in host memory, the same in the device's
// memory, and poisoned outputs. Tuning and benchmarks use these and never the caller's tensors.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/arguments.hpp"
#include "core/block_mask.hpp"
#include "runtime/backend.hpp"

namespace flashwright {

// Memory of a device, given back by the destructor.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Backend& backend, int device_index, std::size_t bytes);
  ~DeviceMemory() { release(); }
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  void* address() const { return address_; }
  std::size_t bytes() const { return bytes_; }
  void release() noexcept;

 private:
  Backend* backend_ = nullptr;
  int device_index_ = 0;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;
};

class Workload {
 public:
  // Inputs are a function of `seed` alone. With the mask "blocks", one block of 128 x 128 in four
  // is visible, the diagonal always; with alibi the slopes are those of the paper. A backward problem gets outputs that
  // no forward pass gave, of the size that it would give: time and result depend on nothing else. Throws when the
  // device has no room.
  Workload(const Problem& problem, const Shape& shape, Backend& backend, int device_index,
           std::uint64_t seed, double score_deviation = 1);
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  const Shape& shape() const { return shape_; }
  const Arguments& device() const { return device_arguments_; }
  const Arguments& host() const {
    return host_arguments_;
  }                                              // inputs, and outputs after fetch_outputs()
  std::int64_t bytes() const { return bytes_; }  // on the device

  void poison_outputs();  // NaN everywhere, so that an element nobody writes is seen
  void fetch_outputs();   // device outputs into the host arguments

  // Memory for the workspace of a launch, kept and grown as needed.
  void* workspace(std::size_t bytes);

 private:
  struct Buffer {
    std::vector<unsigned char> host;
    DeviceMemory device;
  };
  TensorView make(Buffer& buffer, DType dtype, std::array<std::int64_t, 4> extents,
                  std::uint64_t seed, bool random);
  void make_blocks(std::uint64_t seed, bool by_keys);
  void make_slopes();
  void make_gradients(const Problem& problem, std::uint64_t seed, double deviation);
  void fill_lse(const Problem& problem, double deviation);
  void use_device();
  void copy_blocks(bool by_keys);

  Shape shape_;
  Backend& backend_;
  int device_index_;
  std::int64_t bytes_ = 0;
  Buffer q_, k_, v_, o_, lse_, slopes_, d_o_, dq_, dk_, dv_;
  std::vector<Buffer*> outputs_;
  BlockMask mask_;
  std::vector<DeviceMemory> mask_memory_;
  DeviceMemory workspace_;
  Arguments host_arguments_, device_arguments_;
};

// The standard deviation of the scores of normal inputs.
double score_deviation(const Config& config);

// Fills `count` elements with normal random numbers: the same on every machine.
void fill_normal(DType dtype, void* elements, std::int64_t count, std::uint64_t seed);

// The shape, made smaller in batch and heads until a tensor has at most `max_elements`; what a
// kernel is fast for does not change once the device is full several times over.
Shape bounded_shape(const Problem& problem, const Shape& shape, std::int64_t max_elements);

}  // namespace flashwright
