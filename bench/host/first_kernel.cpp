// The time from a Config to a kernel that can be launched: compiled, from the store, and from memory, each in new
// processes.
//   fw_bench_first_kernel [cpu|cuda] [processes]
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "bench/host/timing.hpp"
#include "flashwright/flashwright.hpp"

using namespace flashwright;

namespace {

// Milliseconds, but the last: the first kernel of a process, which starts the device too; the next one; nanoseconds
// for one that is loaded.
using Times = std::array<double, 3>;

Times measure(const std::string& target, const std::string& folder, Effort effort) {
  const bench::Clock::time_point start = bench::Clock::now();
  flashwright_engine* engine = nullptr;
  const std::string options = R"({"cache_dir":")" + folder + R"(","data_dir":")" + folder + R"("})";
  check(flashwright_engine_create(options.c_str(), &engine));
  Config config;
  config.dtype = target == "cpu" ? DType::fp32 : DType::bf16;
  config.head_dim = 64;
  config.target = target;
  config.mask = Mask::causal();
  Times out{};
  get_kernel(config, effort, std::nullopt, engine);
  out[0] = bench::milliseconds_since(start);

  const bench::Clock::time_point next = bench::Clock::now();
  config.head_dim = 128;
  const Kernel kernel = get_kernel(config, effort, std::nullopt, engine);
  out[1] = bench::milliseconds_since(next);

  const std::string text = to_json(config);
  out[2] = bench::nanoseconds(20000, [&] {
    flashwright_kernel* found = nullptr;
    check(flashwright_get_kernel(engine, text.c_str(), nullptr, FLASHWRIGHT_LOADED, &found));
    flashwright_kernel_release(found);
  });
  return out;
}

Times in_new_process(const std::string& target, const std::string& folder, Effort effort) {
  int ends[2];
  if (pipe(ends) != 0) std::exit(1);
  const pid_t child = fork();
  if (child == 0) {
    try {
      const Times times = measure(target, folder, effort);
      _exit(write(ends[1], &times, sizeof times) == sizeof times ? 0 : 1);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
  }
  close(ends[1]);
  Times times{};
  const bool complete = read(ends[0], &times, sizeof times) == sizeof times;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!complete || status != 0) std::exit(1);
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string target = argc > 1 ? argv[1] : "cpu";
  const int processes = argc > 2 ? std::max(1, std::atoi(argv[2])) : 11;
  std::string folder = std::filesystem::temp_directory_path() / "fw_bench_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  std::printf("%s, medians of %d processes\n%-12s %18s %14s %14s\n", target.c_str(), processes, "",
              "first kernel, ms", "next one, ms", "in memory, ns");
  for (const Effort effort : {Effort::compile, Effort::cached}) {
    std::array<std::vector<double>, 3> samples;
    for (int i = 0; i < processes; ++i) {
      if (effort == Effort::compile)
        for (const auto& entry : std::filesystem::directory_iterator(folder))
          std::filesystem::remove_all(entry);
      const Times times = in_new_process(target, folder, effort);
      for (std::size_t which = 0; which < times.size(); ++which)
        samples[which].push_back(times[which]);
    }
    std::printf("%-12s %18.1f %14.1f %14.0f\n", effort == Effort::compile ? "compiled" : "stored",
                bench::median(samples[0]), bench::median(samples[1]), bench::median(samples[2]));
  }
  std::filesystem::remove_all(folder);
}
