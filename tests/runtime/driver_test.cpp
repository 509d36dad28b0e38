#include "runtime/cuda/driver.hpp"

#include "runtime/cuda/cuda_backend.hpp"
#include "tests/support/fake_driver.hpp"
#include "tests/support/process.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

int with_driver(const std::string& helper, const std::string& library,
                const test::Variables& more = {}) {
  test::Variables variables = {{"FLASHWRIGHT_CUDA", library}};
  variables.insert(variables.end(), more.begin(), more.end());
  return run_fresh({helper, variables, "", ""});
}

}  // namespace

TEST_CASE("helper: no driver" * doctest::skip()) {
  CHECK(cuda::driver() == nullptr);
  CHECK(contains(cuda::missing(), "driver was not found"));
  CHECK(contains(cuda::missing(), "/nonexistent/libcuda.so"));
  CHECK(cuda::version() == "");
  CHECK(cuda_backend().describe().empty());
  CHECK(cuda_backend().device_missing() == cuda::missing());
  const Error error = error_of([] { cuda_backend().allocate(0, 16); });
  CHECK(error.status == Status::unavailable);
  CHECK(error.message == cuda::missing());
}

TEST_CASE("helper: an old driver" * doctest::skip()) {
  CHECK(cuda::driver() == nullptr);
  CHECK(contains(cuda::missing(), FW_FAKE_NVRTC));
  CHECK(contains(cuda::missing(), "lacks cuInit"));
  CHECK(contains(cuda::missing(), "CUDA 12.0 or newer"));
}

TEST_CASE("helper: no device" * doctest::skip()) {
  CHECK(cuda::driver() == nullptr);
  CHECK(contains(cuda::missing(), "found no device"));
  CHECK(cuda::version() == "12.4");
}

TEST_CASE("helper: a driver that does not start" * doctest::skip()) {
  CHECK(cuda::driver() == nullptr);
  CHECK(contains(cuda::missing(), "system not yet initialized"));
}

TEST_CASE("helper: a driver" * doctest::skip()) {
  CHECK(cuda::driver() != nullptr);
  CHECK(cuda::missing() == "");
}

TEST_CASE("what is wrong with the driver is said in words") {
  CHECK(with_driver("helper: no driver", "/nonexistent/libcuda.so") == 0);
  CHECK(with_driver("helper: an old driver", FW_FAKE_NVRTC) == 0);
  CHECK(with_driver("helper: no device", FW_FAKE_CUDA) == 0);
  CHECK(with_driver("helper: a driver that does not start", FW_FAKE_CUDA,
                    {{"FAKE_CUDA_INIT", "802"}}) == 0);
  CHECK(with_driver("helper: a driver", FW_FAKE_CUDA, {{"FAKE_CUDA_DEVICES", "1"}}) == 0);
}

TEST_CASE("an error names the call and the driver's own words") {
  const cuda::Driver& driver = fake_driver_table();
  cuda::check(driver, 0, "cuMemAlloc");
  const Error error = error_of([&] { cuda::check(driver, 2, "cuMemAlloc"); });
  CHECK(error.status == Status::device_error);
  CHECK(error.message == "cuMemAlloc: out of memory (error 2)");
}

TEST_CASE("what a capture forbids has a status of its own, and says what to do") {
  const cuda::Driver& driver = fake_driver_table();
  for (int result = 895; result <= 915; ++result) {
    INFO(result);
    const Error error = error_of([&] { cuda::check(driver, result, "cuMemFree"); });
    const bool capturing = result >= 900 && result <= 908;  // as cuda.h numbers them
    CHECK(error.status == (capturing ? Status::capturing : Status::device_error));
    CHECK(contains(error.message, "cuMemFree: fake failure (error " + std::to_string(result)));
    CHECK(contains(error.message,
                   "get kernels, tune, allocate, copy and wait before the capture") == capturing);
  }
}
