// Memory: strides, alignment, offsets beyond 2^31 elements, and not one byte read or written outside.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "core/dtype.hpp"
#include "tests/cpu/guarded.hpp"
#include "tests/cpu/runner.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Config config_of(DType dtype, int head_dim, int head_dim_v, const Mask& mask = {}) {
  Config config;
  config.dtype = dtype;
  config.head_dim = head_dim;
  config.head_dim_v = head_dim_v;
  config.mask = mask;
  return config;
}

template <typename T>
const T* moved(const std::vector<T>& from, const Guarded& to) {
  std::memcpy(to.data(), from.data(), from.size() * sizeof(T));
  return reinterpret_cast<const T*>(to.data());
}

// Runs a problem whose tensors and lists all end (or begin) at an inaccessible page.
void run_guarded(HostProblem& host, const How& how, bool at_end) {
  run(host.config, host.arguments, how);
  const std::vector<unsigned char> expected = host.o.elements();
  const auto bytes = [](const HostTensor& t) { return t.elements().size(); };
  const Guarded q(bytes(host.q), at_end), k(bytes(host.k), at_end), v(bytes(host.v), at_end);
  const Guarded o(bytes(host.o), at_end), lse(bytes(host.lse), at_end);
  Arguments guarded = host.arguments;
  const auto move = [](TensorView& view, const HostTensor& from, const Guarded& to) {
    const std::vector<unsigned char> elements = from.elements();
    std::memcpy(to.data(), elements.data(), elements.size());
    view = dense_view(to.data(), view.dtype, from.view().shape);
  };
  move(guarded.q, host.q, q);
  move(guarded.k, host.k, k);
  move(guarded.v, host.v, v);
  move(guarded.o, host.o, o);
  guarded.lse->data = lse.data();
  const BlockMask& m = host.mask;
  const Guarded a(m.full_offsets.size() * 4, at_end), b(m.full_columns.size() * 4, at_end);
  const Guarded c(m.partial_offsets.size() * 4, at_end), d(m.partial_columns.size() * 4, at_end);
  const Guarded e(m.partial_bits.size() * 4, at_end);
  if (guarded.blocks) {
    guarded.blocks->full_offsets = moved(m.full_offsets, a);
    guarded.blocks->full_columns = moved(m.full_columns, b);
    guarded.blocks->partial_offsets = moved(m.partial_offsets, c);
    guarded.blocks->partial_columns = moved(m.partial_columns, d);
    guarded.blocks->partial_bits = moved(m.partial_bits, e);
  }
  run(host.config, guarded, how);
  CHECK(std::memcmp(o.data(), expected.data(), expected.size()) == 0);
}

}  // namespace

TEST_CASE("layouts give equal bits") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const Config config = config_of(dtype, 72, 40, Mask::causal());
    std::vector<unsigned char> first;
    for (int i = 0; i < kLayoutCount; ++i) {
      const Layout layout = static_cast<Layout>(i);
      HostProblem host(config, {2, 4, 2, 70, 133}, layout, 1);
      CAPTURE(to_string(layout));
      // Inputs are drawn in logical order, so every layout holds the same values.
      CHECK(run_and_judge(host) == "");
      if (first.empty()) first = host.o.elements();
      CHECK(host.o.elements() == first);
    }
  }
}

TEST_CASE("nothing outside of the tensors is touched") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const int dim : {8, 24, 64, 136}) {
      for (const std::int64_t seq : {1, 7, 33, 65}) {
        for (const bool at_end : {false, true}) {
          HostProblem host(config_of(dtype, dim, dim == 24 ? 40 : dim), {1, 2, 1, seq, seq + 2},
                           Layout::rows_of_heads, 4);
          CAPTURE(dim);
          CAPTURE(seq);
          run_guarded(host, {}, at_end);
        }
      }
    }
  }
}

TEST_CASE("nothing outside is touched: masks, staging, three passes, AVX2") {
  for (const bool at_end : {false, true}) {
    for (const int blocks : {5, 32, 48}) {
      HostProblem host(config_of(DType::bf16, 16, 16, Mask::blocks()), {2, 2, 2, 77, 99},
                       Layout::rows_of_heads, 4);
      host.use_random_blocks(blocks, blocks + 1, true, 11);
      run_guarded(host, {}, at_end);
    }
    HostProblem host(config_of(DType::fp32, 40, 24, Mask::window(20, 3)), {1, 2, 1, 77, 99},
                     Layout::rows_of_heads, 4);
    How odd, unfused, narrow;
    odd.schedule = parse_schedule("q32.kv96.mk6.md4.u2");
    unfused.algorithm = Algorithm::unfused;
    narrow.rung = "avx2";
    if (host_cpu_rung() == "avx512") run_guarded(host, odd, at_end);
    run_guarded(host, unfused, at_end);
    if (can_run("avx2")) run_guarded(host, narrow, at_end);
  }
}

TEST_CASE("offsets beyond 2^31 elements") {
  // The second batch entry lies 2^32 + 64 elements behind the first, in memory that is never touched
  // between them.
  constexpr std::int64_t kFar = (std::int64_t{1} << 32) + 64;
  const Config config = config_of(DType::bf16, 32, 32, Mask::causal());
  HostProblem near(config, {2, 1, 1, 20, 20}, Layout::rows_of_heads, 8);
  run(config, near.arguments);
  const std::size_t bytes = (kFar + 20 * 32) * 2;
  Arguments far = near.arguments;
  std::vector<void*> mapped;
  const auto spread = [&](TensorView& view, const HostTensor& from) {
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    mapped.push_back(memory);
    const std::vector<unsigned char> elements = from.elements();
    const std::size_t half = elements.size() / 2;
    std::memcpy(memory, elements.data(), half);
    std::memcpy(static_cast<char*>(memory) + 2 * kFar, elements.data() + half, half);
    view.data = memory;
    view.stride[0] = kFar;
    return true;
  };
  const bool fits = spread(far.q, near.q) && spread(far.k, near.k) && spread(far.v, near.v) &&
                    spread(far.o, near.o);
  if (fits) {
    run(config, far);
    const std::vector<unsigned char> expected = near.o.elements();
    const std::size_t half = expected.size() / 2;
    const char* const o = static_cast<const char*>(far.o.data);
    CHECK(std::memcmp(o, expected.data(), half) == 0);
    CHECK(std::memcmp(o + 2 * kFar, expected.data() + half, half) == 0);
  } else {
    skip("cpu far offsets", "no address space for four sparse tensors of 8 GiB");
  }
  for (void* memory : mapped) munmap(memory, bytes);
}

TEST_CASE("shared and reversed rows") {
  // Stride 0: all heads see one head of keys. Negative strides: rows from the last to the first.
  const Config config = config_of(DType::fp32, 16, 16);
  HostProblem host(config, {1, 4, 4, 8, 33}, Layout::rows_of_heads, 36);
  host.arguments.k.stride[2] = 0;
  host.arguments.v.stride[2] = 0;
  CHECK(run_and_judge(host) == "");
  TensorView& q = host.arguments.q;
  q.data = static_cast<char*>(q.data) + 7 * q.stride[1] * 4;
  q.stride[1] = -q.stride[1];
  host.poison_outputs();
  CHECK(run_and_judge(host) == "");
}

TEST_CASE("no LSE asked for") {
  const Config config = config_of(DType::fp16, 48, 48);
  HostProblem host(config, {1, 2, 2, 40, 40}, Layout::rows_of_heads, 2);
  host.arguments.lse.reset();
  CHECK(run_and_judge(host) == "");
  CHECK(std::isnan(host.lse.at(0, 0, 0, 0)));
}
