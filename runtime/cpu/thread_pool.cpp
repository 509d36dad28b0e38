#include "runtime/cpu/thread_pool.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <chrono>

#include "runtime/cpu/host.hpp"

namespace flashwright::cpu {
namespace {

constexpr auto kSpin = std::chrono::microseconds(100);

thread_local bool inside_task = false;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done` or until the time is up; the clock is read now and then.
template <typename Done>
bool spin(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

void run_alone(std::int64_t tasks, ThreadPool::Task task, void* context) {
  const bool outer = inside_task;
  inside_task = true;
  for (std::int64_t i = 0; i < tasks; ++i) task(context, i, 0);
  inside_task = outer;
}

}  // namespace

ThreadPool::ThreadPool(int concurrency) {
  for (int worker = 1; worker < concurrency; ++worker)
    threads_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  epoch_.fetch_add(2);  // stays even: nothing to take, but sleepers see a change
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::parallel(std::int64_t tasks, Task task, void* context) {
  std::unique_lock<std::mutex> owner(owner_, std::defer_lock);
  if (tasks <= 1 || threads_.empty() || inside_task || !owner.try_lock()) {
    run_alone(tasks, task, context);
    return;
  }
  job_ = {task, context, tasks};
  next_.store(0);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  take_tasks(0);
  // From here on no thread can enter. One that entered before is counted in active_, because it counted
  // itself first and looked at the epoch afterwards.
  epoch_.fetch_add(1);
  const auto left = [this] { return active_.load() == 0; };
  while (!spin(left)) std::this_thread::yield();
}

void ThreadPool::take_tasks(int worker) {
  inside_task = true;
  for (std::int64_t i = next_.fetch_add(1); i < job_.tasks; i = next_.fetch_add(1))
    job_.task(job_.context, i, worker);
  inside_task = false;
}

void ThreadPool::work(int worker) {
  std::uint32_t seen = 0;
  while (!stopping_) {
    const auto changed = [&] { return epoch_.load() != seen; };
    if (!spin(changed)) epoch_.wait(seen);
    const std::uint32_t now = epoch_.load();
    if (now != seen && now % 2 == 1) {
      active_.fetch_add(1);
      if (epoch_.load() == now) take_tasks(worker);
      active_.fetch_sub(1);
    }
    seen = now;
  }
}

Executor ThreadPool::executor() {
  Executor out;
  out.concurrency = concurrency();
  out.self = this;
  out.parallel = [](void* self, std::int64_t tasks, Task task, void* context) {
    static_cast<ThreadPool*>(self)->parallel(tasks, task, context);
  };
  return out;
}

namespace {

struct OwnedPool {
  pid_t process;
  ThreadPool pool;
};
std::atomic<OwnedPool*> current_pool{nullptr};

}  // namespace

ThreadPool& shared_pool() {
  const pid_t process = ::getpid();
  OwnedPool* existing = current_pool.load();
  while (existing == nullptr || existing->process != process) {
    // No lock: one that another thread held at the fork would stay locked in the child. The parent's
    // pool is left as it is, since its threads cannot be joined here.
    auto* const made = new OwnedPool{process, ThreadPool(usable_cores())};
    if (current_pool.compare_exchange_strong(existing, made)) return made->pool;
    delete made;
  }
  return existing->pool;
}

}  // namespace flashwright::cpu
