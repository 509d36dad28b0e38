#include "runtime/cpu/cpu_backend.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>

#include "core/error.hpp"
#include "runtime/cpu/host.hpp"
#include "runtime/cpu/llvm.hpp"
#include "runtime/cpu/thread_pool.hpp"

namespace flashwright::cpu {
namespace {

constexpr std::size_t kPage = 4096;
// Memory of some size asks for pages that need few entries of the processor's address tables.
constexpr std::size_t kLargePage = std::size_t{2} << 20, kLarge = kLargePage / 4;

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory allocate_pages(std::size_t bytes) {
  const std::size_t page = bytes >= kLarge ? kLargePage : kPage;
  const std::size_t rounded = std::max(page, (bytes + page - 1) / page * page);
  Memory memory(std::aligned_alloc(page, rounded));
  if (!memory)
    throw Error(Status::device_error,
                "memory: " + std::to_string(bytes) + " bytes are not available");
#ifdef MADV_HUGEPAGE
  if (page == kLargePage) madvise(memory.get(), rounded, MADV_HUGEPAGE);  // or else small ones do
#endif
  return memory;
}

// The buffer that a thread's tasks work in: kept from launch to launch, so that after the first one
// nothing is allocated. It belongs to the thread and not to a worker number, since two launches may run
// at once.
void* thread_scratch(std::size_t bytes) {
  thread_local Memory memory;
  thread_local std::size_t size = 0;
  if (size < bytes) {
    memory.reset();
    size = 0;
    memory = allocate_pages(bytes);
    size = bytes;
  }
  return memory.get();
}

class CpuModule : public Module {
 public:
  CpuModule(std::unique_ptr<LoadedObject> object, const LaunchPlan& plan)
      : object_(std::move(object)) {
    for (std::size_t i = 0; i < plan.steps.size(); ++i)
      steps_.push_back({object_->entry(i), static_cast<std::size_t>(plan.steps[i].smem_bytes)});
  }
  struct Step {
    KernelEntry entry;
    std::size_t scratch_bytes;
  };
  const Step& step(int index) const { return steps_.at(static_cast<std::size_t>(index)); }

 private:
  std::unique_ptr<LoadedObject> object_;
  std::vector<Step> steps_;
};

struct TaskContext {
  const CpuModule::Step* step;
  const void* params;
  std::atomic<bool> lacks_memory = false;
};

// An exception must not leave a task: it runs on threads of the pool, or of the host.
void run_task(void* context, std::int64_t task, int) {
  auto& what = *static_cast<TaskContext*>(context);
  void* scratch = nullptr;
  try {
    scratch = thread_scratch(what.step->scratch_bytes);
  } catch (const Error&) {
    what.lacks_memory = true;
    return;
  }
  what.step->entry(what.params, task, scratch);
}

class CpuBackend : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::cpu; }
  std::string compiler_missing() override { return {}; }

  std::string device_missing() override {
    return host_cpu_rung().empty() ? "the processor has none of AVX-512, AVX2 with FMA, and NEON"
                                   : "";
  }

  std::vector<DeviceInfo> describe() override {
    if (!device_missing().empty()) return {};
    DeviceInfo device;
    device.name = processor_name();
    device.target = {BackendKind::cpu, host_cpu_rung()};
    device.sm_count = usable_cores();
    const Caches sizes = caches();
    device.l1_bytes = sizes.l1_bytes;
    device.l2_bytes = sizes.l2_bytes;
    device.clock_ghz = clock_ghz();
    // Not asked of the machine: a cautious share of a server's memory for each core.
    constexpr double kGbpsPerCore = 10;
    device.memory_gbps = kGbpsPerCore * device.sm_count;
    // Two vector multiply-adds a cycle. 16-bit elements are widened, so they run at the rate of fp32.
    const int lanes = arch_info(device.target).vector_bytes / 4;
    const double tflops = device.sm_count * device.clock_ghz * lanes * 2 * 2 / 1000;
    device.peak_tflops = {{"fp32", tflops}, {"fp16", tflops}, {"bf16", tflops}};
    device.present = true;
    return {device};
  }

  std::string toolchain(const Target& target) override {
    const CodegenCpu cpu = codegen_cpu(target);
    std::string text = "LLVM " + llvm_version() + " " + cpu.triple + " " + cpu.cpu;
    for (const std::string& feature : cpu.features) text += " +" + feature;
    return text;
  }

  Binary::Kind binary_kind(const Target&) const override { return Binary::Kind::object; }
  Binary compile(const Source& source) override { return compile_module(source); }

  std::unique_ptr<Module> load(const Binary& binary, const LaunchPlan& plan, int) override {
    std::vector<std::string> entries;
    for (const LaunchStep& step : plan.steps) entries.push_back(step.entry);
    return std::make_unique<CpuModule>(load_object(binary, entries), plan);
  }

  void launch(const Module& module, std::span<const StepLaunch> steps, const void* params, int,
              void* stream) override {
    if (stream != nullptr)
      throw Error(Status::bad_argument, "stream: given a stream; expected null for the CPU");
    const auto& loaded = static_cast<const CpuModule&>(module);
    const Executor threads = executor();
    for (const StepLaunch& step : steps) {
      TaskContext context{&loaded.step(step.entry), params};
      threads.parallel(threads.self, step.grid, run_task, &context);
      if (context.lacks_memory)
        throw Error(Status::device_error, "memory: the " +
                                              std::to_string(context.step->scratch_bytes) +
                                              " bytes that a thread works in are not available");
    }
  }

  double time(int, void*, const std::function<void()>& run) override {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    return took.count();
  }

  void synchronize(int, void*) override {}

  void* allocate(int, std::size_t bytes) override { return allocate_pages(bytes).release(); }
  void deallocate(int, void* memory) override { std::free(memory); }
  void copy_in(int, void* memory, const void* host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(memory, host, bytes);
  }
  void copy_out(int, void* host, const void* memory, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(host, memory, bytes);
  }

  void set_executor(const Executor* executor) override {
    const std::scoped_lock lock(mutex_);
    if (executor != nullptr && (executor->parallel == nullptr || executor->concurrency < 1))
      throw Error(Status::bad_argument,
                  "executor: expected a function and a concurrency of at least 1");
    executor_ = executor == nullptr ? std::nullopt : std::optional<Executor>(*executor);
  }

 private:
  Executor executor() {
    {
      const std::scoped_lock lock(mutex_);
      if (executor_) return *executor_;
    }
    return shared_pool().executor();
  }

  std::mutex mutex_;
  std::optional<Executor> executor_;
};

}  // namespace

Backend& cpu_backend() {
  static CpuBackend* const instance = new CpuBackend;  // outlives every static destructor
  return *instance;
}

}  // namespace flashwright::cpu
