// The backward kernels: what they have besides the random problems of random_test.
#include <cmath>
#include <cstring>
#include <deque>

#include "core/dtype.hpp"
#include "generator/cpu/family_cpu.hpp"
#include "runtime/cpu/cpu_backend.hpp"
#include "runtime/cpu/thread_pool.hpp"
#include "tests/cpu/guarded.hpp"
#include "tests/cpu/runner.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Config config_of(DType dtype, int dim, int dim_v, const Mask& mask) {
  Config config;
  config.direction = "backward";
  config.dtype = dtype;
  config.head_dim = dim;
  config.head_dim_v = dim_v;
  config.mask = mask;
  return config;
}

// Runs a problem whose o and lse come from the float64 reference.
std::string check(HostProblem& host, const How& how = {}, std::int64_t rows = 24) {
  host.fill_forward();
  return run_and_judge(host, how, rows);
}

std::vector<unsigned char> gradients_of(HostProblem& host, const How& how = {}) {
  host.poison_outputs();
  run(host.config, host.arguments, how);
  std::vector<unsigned char> all;
  for (const HostTensor* tensor : {&host.dq, &host.dk, &host.dv}) {
    const std::vector<unsigned char> part = tensor->elements();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

bool all_zero(const HostTensor& tensor) {
  const auto& shape = tensor.view().shape;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t s = 0; s < shape[1]; ++s)
      for (std::int64_t h = 0; h < shape[2]; ++h)
        for (std::int64_t d = 0; d < shape[3]; ++d)
          if (tensor.at(b, s, h, d) != 0) return false;
  return true;
}

}  // namespace

TEST_CASE("gradients of small problems") {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16})
    for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::window(9, 3), Mask::blocks()})
      for (const std::int64_t seq : {1, 63, 65, 250}) {
        HostProblem host(config_of(dtype, 64, 64, mask), {1, 2, 1, seq, seq}, Layout::rows_of_heads,
                         3);
        if (mask.kind == Mask::Kind::blocks) host.use_random_blocks(32, 48, true, 5);
        CHECK(check(host) == "");
      }
}

TEST_CASE("gradients for every size of head") {
  for (int dim = 8; dim <= 256; dim += 8) {
    const DType dtype = dim % 3 == 0 ? DType::bf16 : dim % 3 == 1 ? DType::fp32 : DType::fp16;
    HostProblem host(config_of(dtype, dim, 264 - dim, Mask::causal()), {1, 2, 2, 40, 50},
                     Layout::padded_rows, 3);
    CHECK(check(host, {}, 8) == "");
  }
}

TEST_CASE("lengths of zero") {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    HostProblem no_keys(config_of(dtype, 16, 24, Mask::none()), {2, 2, 1, 5, 0},
                        Layout::rows_of_heads, 3);
    CHECK(check(no_keys) == "");
    CHECK(all_zero(no_keys.dq));
    HostProblem no_queries(config_of(dtype, 16, 24, Mask::causal()), {2, 2, 1, 0, 37},
                           Layout::rows_of_heads, 3);
    run(no_queries.config, no_queries.arguments);
    CHECK(all_zero(no_queries.dk));
    CHECK(all_zero(no_queries.dv));
    HostProblem nothing(config_of(dtype, 16, 24, Mask::none()), {1, 1, 1, 0, 0},
                        Layout::rows_of_heads, 3);
    CHECK_NOTHROW(run(nothing.config, nothing.arguments));
  }
}

TEST_CASE("queries that see nothing get 0 and give nothing") {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    HostProblem host(config_of(dtype, 32, 32, Mask::causal()), {1, 2, 1, 90, 20},
                     Layout::rows_of_heads, 3);
    for (int d = 0; d < 32; ++d) host.d_o.set(0, 5, 0, d, 1000);
    CHECK(check(host, {}, 90) == "");
    for (int d = 0; d < 32; ++d) CHECK(host.dq.at(0, 69, 1, d) == 0);
  }
}

TEST_CASE("one query and one key") {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    HostProblem host(config_of(dtype, 16, 16, Mask::none()), {1, 1, 1, 1, 1}, Layout::rows_of_heads,
                     4);  // without a gradient of the LSE
    CHECK(check(host) == "");
    // P is 1 and O is V, but for the rounding of the LSE and of O.
    for (int d = 0; d < 16; ++d) {
      CHECK(host.dv.at(0, 0, 0, d) == doctest::Approx(host.d_o.at(0, 0, 0, d)).epsilon(1e-6));
      if (dtype == DType::fp32) CHECK(std::fabs(host.dq.at(0, 0, 0, d)) < 1e-6);
    }
  }
}

TEST_CASE("strongly negative scores with a padded tail") {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    HostProblem host(config_of(dtype, 32, 32, Mask::causal()), {1, 1, 1, 65, 65},
                     Layout::rows_of_heads, 4);
    host.q.fill(5.5);
    host.k.fill(-5.5);
    CHECK(check(host, {}, 65) == "");
  }
}

TEST_CASE("any part of the gradients, the same bits, and nothing else written") {
  for (const Mask& mask : {Mask::causal(), Mask::blocks()}) {
    Config config = config_of(DType::bf16, 40, 24, mask);
    config.dropout = 0.3;
    HostProblem host(config, {2, 4, 2, 70, 90}, Layout::rows_of_heads, 3);
    if (mask.kind == Mask::Kind::blocks) host.use_random_blocks(20, 30, true, 5);
    run_forward(host);
    gradients_of(host);
    const auto dq = host.dq.elements(), dk = host.dk.elements(), dv = host.dv.elements();
    const Arguments all = host.arguments;
    for (int part = 1; part < 7; ++part) {
      host.arguments = all;
      if ((part & 1) == 0) host.arguments.dq.reset();
      if ((part & 2) == 0) host.arguments.dk.reset();
      if ((part & 4) == 0) host.arguments.dv.reset();
      gradients_of(host);
      CHECK((host.dq.elements() == dq) == ((part & 1) != 0));
      CHECK((host.dk.elements() == dk) == ((part & 2) != 0));
      CHECK((host.dv.elements() == dv) == ((part & 4) != 0));
      if ((part & 1) == 0) CHECK(std::isnan(host.dq.at(1, 69, 3, 39)));
      if ((part & 2) == 0) CHECK(std::isnan(host.dk.at(1, 89, 1, 39)));
      if ((part & 4) == 0) CHECK(std::isnan(host.dv.at(1, 89, 1, 23)));
    }
  }
}

TEST_CASE("the workspace is copied keys and the sums that are wanted, linear in the length") {
  const Config config = config_of(DType::fp32, 64, 32, Mask::none());
  const auto bytes = [&](std::int64_t seq, bool dq, bool dk, bool dv) {
    HostProblem host(config, {1, 4, 4, seq, seq}, Layout::rows_of_heads, 3);
    if (!dq) host.arguments.dq.reset();
    if (!dk) host.arguments.dk.reset();
    if (!dv) host.arguments.dv.reset();
    const ResolvedArguments resolved = resolve(config, problem_for(config), host.arguments);
    return kernel_for(config, {1, 4, 4, 256, 256}, {})->workspace_bytes(resolved);
  };
  const auto copies = bytes(256, true, false, false);
  CHECK(copies >= 4u * 4 * 256 * (64 + 32));
  CHECK(copies <= 4u * 4 * (256 + 16) * (64 + 32));
  CHECK(bytes(256, true, true, true) == 2 * copies);  // as many tasks as heads
  CHECK(bytes(256, true, true, true) == bytes(256, false, true, true));
  CHECK(bytes(256, false, true, false) - copies == 2 * (bytes(256, false, false, true) - copies));
  CHECK(bytes(8192, true, true, true) < 9 * 4 * bytes(1024, true, true, true));
  HostProblem host(config, {1, 4, 4, 70, 70}, Layout::rows_of_heads, 3);
  const ResolvedArguments resolved = resolve(config, problem_for(config), host.arguments);
  const auto kernel = kernel_for(config, {1, 4, 4, 256, 256}, {});
  CHECK(contains(error_of([&] { kernel->launch(resolved, nullptr, nullptr); }).message,
                 "workspace: given none"));
}

TEST_CASE("thread counts give equal bits, however a head is split") {
  for (const int tasks : {1, 4, 64}) {
    const int together = tasks == 4 ? 3 : 1;  // tiles of queries
    HostProblem host(config_of(DType::fp32, 64, 64, Mask::causal()), {1, 2, 1, 700, 300},
                     Layout::rows_of_heads, 3);
    run_forward(host);
    How how;
    how.schedule =
        parse_schedule("q32.kv64.tk" + std::to_string(tasks) + ".qt" + std::to_string(together));
    const Problem problem = problem_for(host.config);
    how.schedule =
        cpu_family().consider(problem, device_here(), host.shape, *how.schedule).schedule;
    std::vector<unsigned char> first;
    for (const int threads : {1, 2, 3, 8}) {
      cpu::ThreadPool pool(threads);
      const Executor executor = pool.executor();
      cpu::cpu_backend().set_executor(&executor);
      for (int again = 0; again < 3; ++again) {
        const std::vector<unsigned char> now = gradients_of(host, how);
        if (first.empty()) first = now;
        CHECK(now == first);
      }
      cpu::cpu_backend().set_executor(nullptr);
    }
    CHECK(host.fault(problem, 12) == "");
  }
}

TEST_CASE("layouts give equal bits") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    std::vector<unsigned char> first;
    for (int i = 0; i < kLayoutCount; ++i) {
      HostProblem host(config_of(dtype, 72, 40, Mask::causal()), {2, 4, 2, 70, 133},
                       static_cast<Layout>(i), 3);
      run_forward(host);
      const std::vector<unsigned char> now = gradients_of(host);
      if (first.empty()) first = now;
      CHECK(now == first);
      CHECK(host.fault(problem_for(host.config), 10) == "");
    }
  }
}

TEST_CASE("strides of 0 and below in what is read") {
  HostProblem host(config_of(DType::fp32, 16, 16, Mask::none()), {2, 2, 2, 40, 40},
                   Layout::rows_of_heads, 3);
  // One gradient for all queries, as that of a sum is; values from the last to the first.
  host.arguments.d_o->stride = {0, 0, 0, 1};
  TensorView& v = host.arguments.v;
  v.data = static_cast<float*>(v.data) + 39 * v.stride[1];
  v.stride[1] = -v.stride[1];
  CHECK(check(host) == "");
}

TEST_CASE("the dropout bits are those of the forward pass") {
  Config config = config_of(DType::fp32, 16, 200, Mask::none());
  config.dropout = 0.5;
  HostProblem host(config, {2, 4, 4, 200, 200}, Layout::rows_of_heads, 4);
  host.q.fill(0);
  // With values and output gradients that pick one key and one query each, O and dV show the same weights.
  for (HostTensor* tensor : {&host.v, &host.d_o}) {
    tensor->fill(0);
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h = 0; h < 4; ++h)
        for (std::int64_t j = 0; j < 200; ++j) tensor->set(b, j, h, j, 1);
  }
  host.arguments.seed = 77;
  host.arguments.offset = 5;
  run_forward(host);
  gradients_of(host);
  int wrong = 0, kept = 0;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t h = 0; h < 4; ++h)
      for (std::int64_t i = 0; i < 200; ++i)
        for (std::int64_t j = 0; j < 200; ++j) {
          wrong += (host.o.at(b, i, h, j) != 0) != (host.dv.at(b, j, h, i) != 0);
          kept += host.o.at(b, i, h, j) != 0;
        }
  CHECK(wrong == 0);
  CHECK(kept == doctest::Approx(160000).epsilon(0.02));
  // The same from a state in memory.
  const std::vector<unsigned char> expected = host.dv.elements();
  const std::uint64_t state[2] = {77, 5};
  host.arguments.rng_state = state;
  host.arguments.seed = host.arguments.offset = 0;
  gradients_of(host);
  CHECK(host.dv.elements() == expected);
}

TEST_CASE("NaN stays with the query that has it") {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    HostProblem host(config_of(dtype, 16, 16, Mask::none()), {1, 1, 1, 6, 6}, Layout::rows_of_heads,
                     4);
    host.fill_forward();
    host.d_o.set(0, 3, 0, 2, std::nan(""));
    gradients_of(host);
    CHECK(std::isnan(host.dq.at(0, 3, 0, 0)));
    CHECK(std::isfinite(host.dq.at(0, 2, 0, 0)));
    CHECK(std::isnan(host.dv.at(0, 1, 0, 2)));
    CHECK(std::isfinite(host.dv.at(0, 1, 0, 3)));
  }
}

TEST_CASE("nothing outside of the tensors is touched by the backward pass") {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    for (const int dim : {8, 24, 64, 136})
      for (const std::int64_t seq : {1, 7, 33, 65})
        for (const bool at_end : {false, true}) {
          HostProblem host(config_of(dtype, dim, dim == 24 ? 40 : dim, Mask::causal()),
                           {1, 2, 1, seq, seq + 2}, Layout::rows_of_heads, 3);
          run_forward(host);
          const std::vector<unsigned char> expected = gradients_of(host);
          std::deque<Guarded> memory;
          const auto guard = [&](TensorView& view, const HostTensor& from) -> const char* {
            const std::vector<unsigned char> elements = from.elements();
            memory.emplace_back(elements.size(), at_end);
            std::memcpy(memory.back().data(), elements.data(), elements.size());
            const int rank = view.ndim;
            view = dense_view(memory.back().data(), view.dtype, from.view().shape);
            view.ndim = rank;
            if (rank == 3) view.stride = {view.shape[1] * view.shape[2], view.shape[2], 1, 1};
            return memory.back().data();
          };
          Arguments& a = host.arguments;
          guard(a.q, host.q);
          guard(a.k, host.k);
          guard(a.v, host.v);
          guard(a.o, host.o);
          guard(*a.lse, host.lse);
          guard(*a.d_o, host.d_o);
          guard(*a.d_lse, host.d_lse);
          std::vector<const char*> outputs = {guard(*a.dq, host.dq), guard(*a.dk, host.dk),
                                              guard(*a.dv, host.dv)};
          run(host.config, a);
          std::size_t place = 0;
          for (std::size_t i = 0; i < 3; ++i) {
            const HostTensor& tensor = i == 0 ? host.dq : i == 1 ? host.dk : host.dv;
            const std::size_t bytes = tensor.elements().size();
            CHECK(std::memcmp(outputs[i], expected.data() + place, bytes) == 0);
            place += bytes;
          }
        }
}
