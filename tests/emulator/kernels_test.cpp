// Good kernels are silent and right in every mode, with race detection.
#include <chrono>

#include "tests/emulator/emulated.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

template <typename T>
T pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return *(values.begin() + static_cast<std::ptrdiff_t>(random() % values.size()));
}

struct Times {
  double compile_ms = 0, run_ms = 0;
  int kernels = 0;
};

// Half of the time all gradients, otherwise one of the six other choices.
void want_some(Arguments& arguments, std::uint64_t choice) {
  const std::uint64_t wanted = choice < 6 ? choice + 1 : 7;
  if ((wanted & 1) == 0) arguments.dq.reset();
  if ((wanted & 2) == 0) arguments.dk.reset();
  if ((wanted & 4) == 0) arguments.dv.reset();
}

void run_everywhere(const NamedKernel& kernel, std::mt19937_64& random, Times& times) {
  const Source source = kernel.emit();
  const auto unit = compile_text(source.text);
  times.compile_ms += unit->compile_ms();
  ++times.kernels;
  Shape shape;
  shape.heads_kv = pick<std::int64_t>(random, {1, 2});
  shape.heads_q = shape.heads_kv * pick<std::int64_t>(random, {1, 2, 4, 8});
  shape.seq_q = pick<std::int64_t>(random, {1, 15, 33, 64, 65, 100});
  shape.seq_kv = pick<std::int64_t>(random, {0, 1, 31, 64, 65, 129, 150});
  const auto layout = pick(
      random, {Layout::rows_of_heads, Layout::heads_of_rows, Layout::padded_rows, Layout::shifted});
  const auto host = problem_for(kernel.problem, shape, layout, random());
  CAPTURE(kernel.name);
  CAPTURE(to_string(shape));
  CAPTURE(std::string(to_string(layout)));
  if (kernel.problem.direction == Direction::backward) want_some(host->arguments, random() % 14);
  for (const emulator::Mode mode : kModes) {
    CAPTURE(std::string(emulator::to_string(mode)));
    host->poison_outputs();
    const emulator::RunReport report = run(*unit, host->config, kernel.problem, host->arguments,
                                           {mode, true, random(), 20'000'000, 1});
    times.run_ms += report.run_ms;
    CHECK(text_of(report) == "");
    CHECK(matrix_conflicts(report) == 0);
    CHECK(host->fault(kernel.problem, 12) == "");
  }
}

}  // namespace

TEST_CASE("random kernels are silent and right in every mode") {
  if (!compiler_here("random kernels in the emulator")) return;
  const int count = has_argument("--many") ? 200 : 16;
  const struct {
    const Family& family;
    Direction direction;
  } all[] = {{sm80_family(), Direction::forward},
             {sm90_family(), Direction::forward},
             {sm80_family(), Direction::backward},
             {sm90_family(), Direction::backward}};
  for (const auto& [family, direction] : all) {
    std::mt19937_64 random(test_seed());
    Times times;
    for (const NamedKernel& kernel : random_kernels(test_seed(), count, family, direction))
      run_everywhere(kernel, random, times);
    MESSAGE(times.kernels << " " << std::string(to_string(direction)) << " kernels of "
                          << family.name() << ": compiled in " << times.compile_ms / 1e3
                          << " s, run in " << times.run_ms / 1e3 << " s");
  }
}

TEST_CASE("the kernels of the golden files are silent and right in every mode") {
  if (!compiler_here("golden kernels in the emulator")) return;
  std::mt19937_64 random(test_seed() * 3);
  Times times;
  for (const NamedKernel& kernel : named_kernels()) run_everywhere(kernel, random, times);
  MESSAGE(times.kernels << " kernels: compiled in " << times.compile_ms / 1e3 << " s, run in "
                        << times.run_ms / 1e3 << " s");
}

TEST_CASE("blocks of a cluster stay in step where TMA loads and where threads copy") {
  if (!compiler_here("clusters in the emulator")) return;
  NamedKernel kernel = named_kernels().front();
  for (const NamedKernel& named : named_kernels())
    if (named.name == "sm90_bf16_d128_cluster") kernel = named;
  REQUIRE(kernel.name == "sm90_bf16_d128_cluster");
  const auto unit = compile_text(kernel.emit().text);
  for (const Layout layout : {Layout::rows_of_heads, Layout::padded_rows, Layout::shifted})
    for (const std::int64_t seq_q : {65, 256, 300}) {
      const auto host = problem_for(kernel.problem, {1, 2, 1, seq_q, 129}, layout, 3);
      CAPTURE(std::string(to_string(layout)));
      CAPTURE(seq_q);
      for (const emulator::Mode mode : kModes) {
        CAPTURE(std::string(emulator::to_string(mode)));
        host->poison_outputs();
        CHECK(text_of(run(*unit, host->config, kernel.problem, host->arguments,
                          {mode, true, 5, 20'000'000, 1})) == "");
        CHECK(host->fault(kernel.problem, 12) == "");
      }
    }
}
