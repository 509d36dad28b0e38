// A backend turns text into running code. It knows no template and no family.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/arguments.hpp"
#include "core/device.hpp"
#include "core/error.hpp"
#include "core/source.hpp"

namespace flashwright {

// Loaded code. Immutable, safe to launch from many threads, unloaded by its destructor.
class Module {
 public:
  virtual ~Module() = default;
};

// One step of a launch with its rules evaluated.
struct StepLaunch {
  int entry = 0;          // index into the plan's steps
  std::int64_t grid = 0;  // blocks or tasks, at least 1
};

// Host threads for the CPU backend: run fn(context, task, worker) for every task in [0, tasks),
// worker in [0, concurrency), and return when all are done.
struct Executor {
  int concurrency = 1;
  void (*parallel)(void* self, std::int64_t tasks,
                   void (*fn)(void* context, std::int64_t task, int worker),
                   void* context) = nullptr;
  void* self = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendKind kind() const = 0;

  // "" when kernels can be compiled (can run) here; otherwise what is missing and how to get it.
  virtual std::string compiler_missing() = 0;
  virtual std::string device_missing() = 0;

  // The devices that are present; empty when device_missing() says why.
  virtual std::vector<DeviceInfo> describe() = 0;

  // Identity of the compiler for a target: part of every stored binary's key. Cheap: loads no
  // compiler.
  virtual std::string toolchain(const Target& target) = 0;

  // What compile() makes for a target.
  virtual Binary::Kind binary_kind(const Target& target) const = 0;

  // Throws Error(compile_failed) with the log in `detail`, or Error(unavailable).
  virtual Binary compile(const Source& source) = 0;

  // `plan` is the one that was emitted with the text.
  virtual std::unique_ptr<Module> load(const Binary& binary, const LaunchPlan& plan,
                                       int device_index) = 0;

  // Writes a tensor map of a parameter block. Backends whose kernels have none need no such function.
  virtual void encode_tensor_map(const TensorMapSpec&, void*, int /*device_index*/) {
    throw Error(Status::internal, "tensor maps: this backend has none");
  }

  // Enqueues all steps on `stream` in order (CPU: runs them; a stream must be null). `params` is
  // the filled parameter block of the plan. A GPU's allocates nothing and waits for nothing; a CPU's
  // keeps threads and their scratch buffers for the launches that follow.
  virtual void launch(const Module& module, std::span<const StepLaunch> steps, const void* params,
                      int device_index, void* stream) = 0;

  // Microseconds that the work enqueued by `run` takes on the device, by its own clock.
  virtual double time(int device_index, void* stream, const std::function<void()>& run) = 0;

  virtual void synchronize(int device_index, void* stream) = 0;

  // Memory that kernels of this backend can use. Addresses are multiples of 256 bytes.
  virtual void* allocate(int device_index, std::size_t bytes) = 0;
  virtual void deallocate(int device_index, void* memory) = 0;
  virtual void copy_in(int device_index, void* memory, const void* host, std::size_t bytes) = 0;
  virtual void copy_out(int device_index, void* host, const void* memory, std::size_t bytes) = 0;

  // Threads of the host, for the CPU backend; ignored by others.
  virtual void set_executor(const Executor* executor) { (void)executor; }
};

}  // namespace flashwright
