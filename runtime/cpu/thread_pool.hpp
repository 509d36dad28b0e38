// The library's own threads for CPU kernels. The caller takes part; idle threads look for work for a
// moment and then sleep, since waking one costs more than a short kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/backend.hpp"

namespace flashwright::cpu {

class ThreadPool {
 public:
  using Task = void (*)(void* context, std::int64_t task, int worker);

  explicit ThreadPool(int concurrency);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int concurrency() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs task(context, i, worker) for all i below `tasks` and returns when all are done. A call from
  // inside a task, or while another thread uses the pool, runs on the calling thread alone.
  void parallel(std::int64_t tasks, Task task, void* context);

  Executor executor();

 private:
  void work(int worker);
  void take_tasks(int worker);

  struct Job {
    Task task = nullptr;
    void* context = nullptr;
    std::int64_t tasks = 0;
  };
  Job job_;
  std::mutex owner_;                                 // held by the thread whose job it is
  alignas(64) std::atomic<std::uint32_t> epoch_{0};  // odd while a job is open
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<int> active_{0};  // threads of the pool inside the job
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

// The process's pool, made on first use and again in a forked child, whose threads are gone.
ThreadPool& shared_pool();

}  // namespace flashwright::cpu
