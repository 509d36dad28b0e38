#include "runtime/cuda/nvrtc.hpp"

#include "tests/support/process.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Source source_for(const char* arch, const std::string& text = "a\nb\n") {
  Source source;
  source.target = {BackendKind::cuda, arch};
  source.name = "fw_forward.cu";
  source.text = text;
  source.lines = {{"sm80/forward.cu", 41}, {"sm80/forward.cu", 42}};
  source.plan.steps = {{"fw_forward", 128, 5000, nullptr}, {"fw_combine", 128, 70000, nullptr}};
  return source;
}

// Runs a helper with the stand-in for NVRTC.
int with_fake(const std::string& helper, const test::Variables& more = {}) {
  test::Variables variables = {{"FLASHWRIGHT_NVRTC", FW_FAKE_NVRTC}};
  variables.insert(variables.end(), more.begin(), more.end());
  return run_fresh({helper, variables, "", ""});
}

}  // namespace

TEST_CASE("the report of ptxas becomes numbers") {
  const Resources r = nvrtc::parse_resources(
      "ptxas info    : 96 bytes gmem, 16 bytes cmem[4]\n"
      "ptxas info    : Compiling entry function 'fw_scores' for 'sm_90a'\n"
      "ptxas info    : Function properties for fw_scores\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 96 registers, used 1 barriers, 560 bytes cmem[0]\n"
      "ptxas info    : Compile time = 12.3 ms\n"
      "ptxas info    : Compiling entry function 'fw_output' for 'sm_90a'\n"
      "    112 bytes stack frame, 268 bytes spill stores, 300 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 112 bytes cumulative stack size, 2048 "
      "bytes smem\n");
  CHECK(r.registers == 255);
  CHECK(r.spill_bytes == 268);
  CHECK(r.stack_bytes == 112);
  CHECK(r.static_smem_bytes == 2048);
  CHECK(r.dynamic_smem_bytes == 0);
  for (const char* log :
       {"", "registers", "Used registers", " bytes spill stores", "no report at all\n"}) {
    CHECK(nvrtc::parse_resources(log).registers == 0);
    CHECK(nvrtc::parse_resources(log).spill_bytes == 0);
  }
}

TEST_CASE("lines that warn are found") {
  const std::vector<std::string> warnings = nvrtc::parse_warnings(
      "ptxas info    : Used 255 registers\n"
      "ptxas warning : Registers are spilled to local memory in function 'fw_forward', 8 bytes "
      "spill stores\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
      "serialized\n"
      "nothing\n");
  REQUIRE(warnings.size() == 2);
  CHECK(contains(warnings[0], "spilled"));
  CHECK(contains(warnings[1], "serialized"));
  CHECK(nvrtc::parse_warnings("").empty());
}

TEST_CASE("virtual architectures give PTX, real ones cubins") {
  CHECK(nvrtc::binary_kind({BackendKind::cuda, "sm_90a"}) == Binary::Kind::cubin);
  CHECK(nvrtc::binary_kind({BackendKind::cuda, "compute_90"}) == Binary::Kind::ptx);
}

TEST_CASE("helper: an old compiler" * doctest::skip()) {  // C77
  const Error error = error_of([] { nvrtc::compile(source_for("sm_90a")); });
  CHECK(error.status == Status::unavailable);
  for (const char* part : {"target", "sm_90a", "compute capability 9.0", "NVRTC 11.5",
                           FW_FAKE_NVRTC, "needed: NVRTC 12.0"})
    CHECK(contains(error.message, part));
  CHECK(nvrtc::compile(source_for("sm_80")).resources.registers == 168);
}

TEST_CASE("helper: a compilation" * doctest::skip()) {
  CHECK(nvrtc::missing() == "");
  CHECK(nvrtc::identity().version == std::pair(12, 9));
  CHECK(nvrtc::identity().architectures == std::vector<int>{80, 90});
  CHECK(nvrtc::identity().path == FW_FAKE_NVRTC);
  nvrtc::CompileOptions how;
  how.defines = {"FW_BF16=1"};
  how.line_info = true;
  const Binary binary = nvrtc::compile(source_for("sm_80"), how);
  for (const char* option : {"--gpu-architecture=sm_80\n", "--std=c++17\n", "--ptxas-options=-v\n",
                             "--no-cache\n", "--ptxas-options=--warn-on-spills\n",
                             "--generate-line-info\n", "--define-macro=FW_BF16=1\n"})
    CHECK(contains(binary.bytes, option));
  // Kernels compiled side by side: only where the code is the same each time.
  CHECK(!contains(binary.bytes, "split-compile"));
  CHECK(contains(nvrtc::compile(source_for("sm_90a")).bytes, "--split-compile=2\n"));
  CHECK(binary.kind == Binary::Kind::cubin);
  CHECK(binary.toolchain == "NVRTC 12.9");
  CHECK(binary.resources.registers == 168);
  CHECK(binary.resources.spill_bytes == 8);
  CHECK(binary.resources.dynamic_smem_bytes == 70000);
  CHECK(binary.compile_ms > 0);
  // PTX has no report of ptxas to ask for.
  CHECK(!contains(nvrtc::compile(source_for("compute_80")).bytes, "ptxas"));
}

TEST_CASE("helper: a compilation that fails" * doctest::skip()) {
  const Error error = error_of([] { nvrtc::compile(source_for("sm_80", "a\nFAIL\n")); });
  CHECK(error.status == Status::compile_failed);
  CHECK(error.message ==
        "fw_forward.cu for sm_80: sm80/forward.cu:42 (emitted line 2): error: identifier \"FAIL\" "
        "is undefined");
  CHECK(contains(error.detail, "1 error detected"));
}

TEST_CASE("helper: no program" * doctest::skip()) {
  const Error error = error_of([] { nvrtc::compile(source_for("sm_80")); });
  CHECK(error.status == Status::compile_failed);
  CHECK(contains(error.message, "nvrtcCreateProgram"));
}

TEST_CASE("helper: no compiler" * doctest::skip()) {
  for (const std::string& text :
       {nvrtc::missing(), error_of([] { nvrtc::compile(source_for("sm_80")); }).message,
        error_of([] { nvrtc::identity(); }).message}) {
    CHECK(contains(text, "/nonexistent/libnvrtc.so"));
    CHECK(contains(text, "pip install nvidia-cuda-nvrtc"));
    CHECK(contains(text, "FLASHWRIGHT_NVRTC"));
  }
}

TEST_CASE("helper: a library that is no compiler" * doctest::skip()) {
  CHECK(contains(nvrtc::missing(), FW_FAKE_CUDA));
  CHECK(contains(nvrtc::missing(), "too old"));
}

TEST_CASE("a compiler too old for the device is told apart, with both versions") {
  CHECK(with_fake("helper: an old compiler",
                  {{"FAKE_NVRTC_VERSION", "11.5"}, {"FAKE_NVRTC_ARCHS", "80,86,87"}}) == 0);
}

TEST_CASE("a compilation gets its options and gives a binary with its resources") {
  CHECK(with_fake("helper: a compilation",
                  {{"FAKE_NVRTC_VERSION", "12.9"}, {"FAKE_NVRTC_ARCHS", "80,90"}}) == 0);
}

TEST_CASE("compiler errors name the template line") {
  CHECK(with_fake("helper: a compilation that fails") == 0);
}

TEST_CASE("a compiler that makes no program is an error") {
  CHECK(with_fake("helper: no program", {{"FAKE_NVRTC_NO_PROGRAM", "1"}}) == 0);
}

TEST_CASE("a missing compiler is told with what was tried and what to do") {
  CHECK(run_fresh(
            {"helper: no compiler", {{"FLASHWRIGHT_NVRTC", "/nonexistent/libnvrtc.so"}}, "", ""}) ==
        0);
  CHECK(run_fresh({"helper: a library that is no compiler",
                   {{"FLASHWRIGHT_NVRTC", FW_FAKE_CUDA}},
                   "",
                   ""}) == 0);
}

TEST_CASE("the identity of the compiler is that of its files") {
  // Without loading it: two files with other bytes are two compilers, wherever they lie.
  const test::Folder folder;
  const auto fingerprint = [&](const std::string& name, const std::string& bytes,
                               const std::string& builtins) {
    const std::string library = folder / name;
    test::write_file(library, bytes);
    test::write_file(folder / "libnvrtc-builtins.so.13.0", builtins);
    const std::string out = folder / "fingerprint";
    CHECK(run_fresh({"helper: prints the fingerprint",
                     {{"FLASHWRIGHT_NVRTC", library}, {"FW_TEST_FILE", out}},
                     "",
                     ""}) == 0);
    return test::read_file(out);
  };
  const std::string first = fingerprint("a.so", "compiler", "builtins");
  CHECK(first.starts_with("nvrtc "));
  CHECK(fingerprint("b.so", "compiler", "builtins") == first);
  CHECK(fingerprint("c.so", "Compiler", "builtins") != first);
  CHECK(fingerprint("a.so", "compiler", "Builtins") != first);
}

TEST_CASE("helper: prints the fingerprint" * doctest::skip()) {
  test::write_file(std::getenv("FW_TEST_FILE"), nvrtc::fingerprint());
}
