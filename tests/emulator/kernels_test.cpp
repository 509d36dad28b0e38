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

void run_everywhere(const NamedKernel& kernel, std::mt19937_64& random, Times& times) {
  const Source source = kernel.emit();
  const auto unit = compile_text(source.text);
  times.compile_ms += unit->compile_ms();
  ++times.kernels;
  Shape shape;
  shape.heads_kv = pick<std::int64_t>(random, {1, 2});
  shape.heads_q = shape.heads_kv * pick<std::int64_t>(random, {1, 2});
  shape.seq_q = pick<std::int64_t>(random, {1, 15, 33, 64, 65, 100});
  shape.seq_kv = pick<std::int64_t>(random, {0, 1, 31, 64, 65, 129, 150});
  const auto layout = pick(
      random, {Layout::rows_of_heads, Layout::heads_of_rows, Layout::padded_rows, Layout::shifted});
  const auto host = problem_for(kernel.problem, shape, layout, random());
  CAPTURE(kernel.name);
  CAPTURE(to_string(shape));
  CAPTURE(std::string(to_string(layout)));
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
  const int count = has_argument("--many") ? 200 : 24;
  for (const Family* family :
       {static_cast<const Family*>(&sm80_family()), static_cast<const Family*>(&sm90_family())}) {
    std::mt19937_64 random(test_seed());
    Times times;
    for (const NamedKernel& kernel : random_kernels(test_seed(), count, *family))
      run_everywhere(kernel, random, times);
    MESSAGE(times.kernels << " kernels of " << family->name() << ": compiled in "
                          << times.compile_ms / 1e3 << " s, run in " << times.run_ms / 1e3 << " s");
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
