#include "openmp.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "flashwright/flashwright.hpp"

namespace fwpy {
namespace {

// What GCC calls for a parallel region; the runtimes of LLVM and Intel have it too.
using Parallel = void (*)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
using Number = int (*)();

struct OpenMp {
  Parallel parallel = nullptr;
  Number max_threads = nullptr, thread = nullptr;
  int most = 1;  // threads that the library was told of
};

// GNU's runtime waits for ever where a process starts threads, forks, and the child has work for them.
std::atomic<bool> forked{false};

struct Job {
  const OpenMp* openmp;
  std::int64_t tasks;
  void (*fn)(void*, std::int64_t, std::int32_t);
  void* context;
  std::atomic<std::int64_t> next{0};
};

void work(void* data) {
  Job& job = *static_cast<Job*>(data);
  const std::int32_t worker = job.openmp->thread();
  for (std::int64_t i = job.next++; i < job.tasks; i = job.next++) job.fn(job.context, i, worker);
}

void parallel(void* self, std::int64_t tasks, void (*fn)(void*, std::int64_t, std::int32_t),
              void* context) {
  const OpenMp& openmp = *static_cast<const OpenMp*>(self);
  const std::int64_t threads =
      forked ? 1 : std::min<std::int64_t>({tasks, openmp.max_threads(), openmp.most});
  if (threads <= 1) {
    for (std::int64_t i = 0; i < tasks; ++i) fn(context, i, 0);
    return;
  }
  Job job{&openmp, tasks, fn, context};
  openmp.parallel(&work, &job, static_cast<unsigned>(threads), 0);
}

template <typename Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

}  // namespace

bool use_openmp() {
  static OpenMp openmp;
  find(openmp.parallel, "GOMP_parallel");
  find(openmp.max_threads, "omp_get_max_threads");
  find(openmp.thread, "omp_get_thread_num");
  Number cores = nullptr;
  find(cores, "omp_get_num_procs");
  if (openmp.parallel == nullptr || openmp.max_threads == nullptr || openmp.thread == nullptr ||
      cores == nullptr)
    return false;
  openmp.most = std::max(1, cores());
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
  const flashwright_executor executor{openmp.most, &parallel, &openmp};
  flashwright::check(flashwright_set_executor(nullptr, &executor));
  return true;
}

void bind_openmp(nanobind::module_& module) {
  module.def(
      "use_openmp", &use_openmp,
      "Has CPU kernels run on the threads of the process's OpenMP runtime; False if it has none.");
}

}  // namespace fwpy
