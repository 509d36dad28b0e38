// Threads: results do not depend on how many there are or whose they are.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <thread>

#include "core/error.hpp"
#include "generator/cpu/family_cpu.hpp"
#include "runtime/cpu/cpu_backend.hpp"
#include "runtime/cpu/host.hpp"
#include "runtime/cpu/thread_pool.hpp"
#include "tests/cpu/runner.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using cpu::ThreadPool;

namespace {

struct UseExecutor {
  explicit UseExecutor(const Executor& executor) { cpu::cpu_backend().set_executor(&executor); }
  ~UseExecutor() { cpu::cpu_backend().set_executor(nullptr); }
};

Config causal_config() {
  Config config;
  config.dtype = DType::fp32;
  config.head_dim = 64;
  config.mask = Mask::causal();
  return config;
}

const Shape kShape{2, 4, 2, 150, 150};

std::vector<unsigned char> outputs_of(HostProblem& host) {
  host.poison_outputs();
  run(host.config, host.arguments);
  std::vector<unsigned char> all = host.o.elements();
  const std::vector<unsigned char> sums = host.lse.elements();
  all.insert(all.end(), sums.begin(), sums.end());
  return all;
}

}  // namespace

TEST_CASE("thread counts give equal bits") {
  HostProblem host(causal_config(), kShape, Layout::rows_of_heads, 3);
  std::vector<unsigned char> first;
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.concurrency() == threads);
    const UseExecutor use(pool.executor());
    for (int again = 0; again < 5; ++again) {
      const std::vector<unsigned char> now = outputs_of(host);
      if (first.empty()) first = now;
      CHECK(now == first);
    }
  }
  CHECK(host.fault(problem_for(host.config), 40) == "");
}

TEST_CASE("a caller's executor does the work") {
  HostProblem host(causal_config(), kShape, Layout::rows_of_heads, 3);
  const std::vector<unsigned char> expected = outputs_of(host);
  std::int64_t seen = 0;
  Executor backwards;
  backwards.concurrency = 1;
  backwards.self = &seen;
  backwards.parallel = [](void* self, std::int64_t tasks, void (*task)(void*, std::int64_t, int),
                          void* context) {
    for (std::int64_t i = tasks; i-- > 0;) task(context, i, 0);
    *static_cast<std::int64_t*>(self) += tasks;
  };
  const UseExecutor use(backwards);
  CHECK(outputs_of(host) == expected);
  CHECK(seen == 2 * 2 * 5);  // batch, key heads, tiles of 64 in 300 rows
  Executor broken;
  CHECK_THROWS_AS(cpu::cpu_backend().set_executor(&broken), Error);
}

TEST_CASE("two callers at once") {
  HostProblem a(causal_config(), kShape, Layout::rows_of_heads, 3);
  HostProblem b(causal_config(), kShape, Layout::heads_of_rows, 4);
  const auto expected_a = outputs_of(a), expected_b = outputs_of(b);
  std::atomic<int> wrong{0};
  std::thread other([&] {
    for (int i = 0; i < 30; ++i) wrong += outputs_of(b) != expected_b;
  });
  for (int i = 0; i < 30; ++i) wrong += outputs_of(a) != expected_a;
  other.join();
  CHECK(wrong == 0);
}

TEST_CASE("a forked child computes") {
  HostProblem host(causal_config(), kShape, Layout::rows_of_heads, 3);
  const std::vector<unsigned char> expected = outputs_of(host);  // starts the threads
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    bool same = outputs_of(host) == expected;
    // A kernel of its own as well: compiler and linker work in the child.
    Config config = causal_config();
    config.head_dim = 56;
    HostProblem fresh(config, kShape, Layout::rows_of_heads, 5);
    same = same && run_and_judge(fresh, {}, 8).empty();
    _exit(same ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(outputs_of(host) == expected);
}

TEST_CASE("every task runs once, nested calls too") {
  ThreadPool pool(4);
  struct Counts {
    ThreadPool* pool;
    std::atomic<int> outer[200] = {};
    std::atomic<int> inner{0};
  } counts;
  counts.pool = &pool;
  for (int round = 0; round < 200; ++round) {
    pool.parallel(
        200,
        [](void* context, std::int64_t task, int worker) {
          auto& all = *static_cast<Counts*>(context);
          ++all.outer[task];
          if (worker < 0 || worker >= 4) all.inner = -1000000;
          if (task % 50 == 0)
            all.pool->parallel(
                3, [](void* c, std::int64_t, int) { ++static_cast<Counts*>(c)->inner; }, context);
        },
        &counts);
  }
  for (const auto& count : counts.outer) CHECK(count == 200);
  CHECK(counts.inner == 200 * 4 * 3);
}

TEST_CASE("sleeping threads wake up") {
  ThreadPool pool(3);
  std::atomic<int> done{0};
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    pool.parallel(
        50, [](void* context, std::int64_t, int) { ++*static_cast<std::atomic<int>*>(context); },
        &done);
  }
  CHECK(done == 1000);
}

TEST_CASE("settings of the machine") {
  CHECK(cpu::usable_cores() >= 1);
  setenv("FLASHWRIGHT_JOBS", "5", 1);
  CHECK(cpu::usable_cores() == 5);
  setenv("FLASHWRIGHT_JOBS", "five", 1);
  CHECK_THROWS_WITH_AS(cpu::usable_cores(),
                       "FLASHWRIGHT_JOBS is 'five'; allowed: a whole number from 1 to 4096", Error);
  unsetenv("FLASHWRIGHT_JOBS");
  setenv("FLASHWRIGHT_L1_BYTES", "65536", 1);
  setenv("FLASHWRIGHT_L2_BYTES", "300000", 1);
  CHECK(cpu::caches().l1_bytes == 65536);
  CHECK(device_here().l2_bytes == 300000);
  unsetenv("FLASHWRIGHT_L1_BYTES");
  unsetenv("FLASHWRIGHT_L2_BYTES");
  const DeviceInfo device = device_here();
  CHECK(device.present);
  CHECK(device.l1_bytes >= 16 * 1024);
  CHECK(device.l2_bytes >= 128 * 1024);
  CHECK(device.clock_ghz > 0.4);
  CHECK_NOTHROW(device_from_json(to_json(device)));
}

TEST_CASE("multiply-add rate") {
  const double one = cpu::measure_fma_peak(1, 20);
  CHECK(one > 1);
  CHECK_THROWS_AS(cpu::measure_fma_peak(0, 1), Error);
}

TEST_CASE("a launch that finds no memory for its threads says so, and the next one runs") {
#if defined(__SANITIZE_ADDRESS__)
  return skip("no memory for threads", "AddressSanitizer ends a process that gets no memory");
#endif
  HostProblem host(causal_config(), kShape, Layout::rows_of_heads, 3);
  const std::vector<unsigned char> before = outputs_of(host);
  const Problem problem = problem_for(host.config);
  const Source source =
      cpu_family().emit(problem, cpu_family().default_schedule(problem, device_here(), kShape));
  LaunchPlan plan = source.plan;
  plan.steps.front().smem_bytes = std::numeric_limits<int>::max();
  Backend& backend = cpu::cpu_backend();
  const auto module = backend.load(backend.compile(source), plan, 0);

  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit old{}, tight{};
  REQUIRE(getrlimit(RLIMIT_AS, &old) == 0);
  tight = {pages * 4096 + (std::size_t{1} << 29), old.rlim_max};
  REQUIRE(setrlimit(RLIMIT_AS, &tight) == 0);
  const StepLaunch step{0, 64};
  const Error error =
      error_of([&] { backend.launch(*module, std::span(&step, 1), nullptr, 0, nullptr); });
  setrlimit(RLIMIT_AS, &old);
  CHECK(error.status == Status::device_error);
  CHECK(contains(error.message, "2147483647 bytes that a thread works in"));
  CHECK(outputs_of(host) == before);
}
