// A HostProblem on a GPU: every tensor is copied with its surroundings, so that a kernel that writes
// beside its output is seen.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/schedule.hpp"
#include "runtime/loaded_kernel.hpp"
#include "tests/support/host_problem.hpp"

namespace flashwright::testing {

// The first GPU, or null. Prints why there is none.
const DeviceInfo* gpu();

// One kernel: what it computes and how.
struct KernelSpec {
  Problem problem;
  Schedule schedule;
  auto operator<=>(const KernelSpec&) const = default;
};

// The family's default, or any legal schedule that does not spill, drawn by a number.
KernelSpec default_spec(const Config& config, const Shape& shape,
                        Algorithm algorithm = Algorithm::tiled);
KernelSpec any_spec(const Config& config, const Shape& shape, std::uint64_t draw);
// All legal ones.
std::vector<KernelSpec> all_specs(const Config& config, const Shape& shape);

// Compiles on all cores; later kernel_for calls find the results.
void compile_all(const std::vector<KernelSpec>& specs);
std::shared_ptr<const LoadedKernel> kernel_for(const KernelSpec& spec);

// Memory of the device, freed with the object.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  void* get() const { return memory_; }
  std::size_t size() const { return bytes_; }

 private:
  void* memory_;
  std::size_t bytes_;
};

// The arguments of a call rebased to copies on the device. Tensors are given with the host memory that
// holds them; outputs come back with fetch().
class DeviceCall {
 public:
  explicit DeviceCall(HostProblem& host);
  // Over plain host buffers, as the cases have them.
  struct Buffer {
    void* data;
    std::size_t bytes;
  };
  DeviceCall(const Arguments& host, const std::vector<Buffer>& buffers);

  const Arguments& arguments() const { return arguments_; }
  Arguments& arguments() { return arguments_; }
  void upload();  // again, after the host memory changed
  void fetch();   // everything back into host memory

 private:
  void rebase(TensorView& view) const;
  void add(void* data, std::size_t bytes);
  void copy_lists(const BlockLists& lists);

  struct Copy {
    char* host;
    DeviceMemory device;
  };
  std::vector<Copy> copies_;
  std::vector<DeviceMemory> lists_;
  Arguments arguments_;
};

// Launches and waits.
void launch(const KernelSpec& spec, const Config& config, const Arguments& arguments);

// Runs on the GPU, then judges `max_rows` rows on the host: "" when all is well.
std::string run_and_judge(HostProblem& host, const KernelSpec& spec, std::int64_t max_rows);

}  // namespace flashwright::testing
