// The emitted text and what the compiler makes of it.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <thread>

#include "api/cpu_plugin.hpp"
#include "core/build_id.hpp"
#include "core/error.hpp"
#include "core/sha256.hpp"
#include "generator/cpu/family_cpu.hpp"
#include "runtime/cpu/cpu_backend.hpp"
#include "runtime/cpu/llvm.hpp"
#include "runtime/cpu/object_report.hpp"
#include "tests/cpu/runner.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// One problem of every kind, for one instruction set.
std::vector<Problem> sample(const std::string& rung) {
  std::vector<Problem> all;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    for (const auto& [dim, dim_v] : {std::pair{64, 64}, {128, 128}, {40, 24}, {256, 256}}) {
      for (const Mask::Kind mask :
           {Mask::Kind::none, Mask::Kind::causal, Mask::Kind::window, Mask::Kind::blocks}) {
        if (dim != 64 && mask != Mask::Kind::causal) continue;
        for (const int option : {0, 1, 2, 3}) {
          if (option != 0 && dtype != DType::bf16) continue;
          Problem problem;
          problem.dtype = dtype;
          problem.head_dim = dim;
          problem.head_dim_v = dim_v;
          problem.mask = mask;
          problem.dropout = option == 1;
          problem.softcap = option >= 2;
          problem.alibi = option == 3;
          problem.target = {BackendKind::cpu, rung};
          all.push_back(problem);
          problem.direction = Direction::backward;
          all.push_back(problem);
        }
      }
    }
  }
  return all;
}

const Shape kLong{1, 8, 8, 2048, 2048};

Source emit_default(const Problem& problem) {
  return cpu_family().emit(problem, cpu_family().default_schedule(problem, device_here(), kLong));
}

Problem plain_problem(const std::string& rung = host_cpu_rung()) {
  Problem problem;
  problem.dtype = DType::fp32;
  problem.head_dim = problem.head_dim_v = 64;
  problem.target = {BackendKind::cpu, rung};
  return problem;
}

bool tool_exists(const std::string& name) {
  return std::system(("command -v " + name + " > /dev/null 2>&1").c_str()) == 0;
}

}  // namespace

TEST_CASE("default schedules spill nothing in their loops and call nothing") {
  for (const std::string rung : {"avx512", "avx2"}) {
    if (!can_run(rung)) continue;
    for (const Problem& problem : sample(rung)) {
      const Binary binary = cpu::compile_module(emit_default(problem));
      CAPTURE(to_string(problem));
      CHECK(binary.resources.spill_bytes == 0);
      CHECK(cpu::undefined_symbols(binary.bytes).empty());
      CHECK(binary.kind == Binary::Kind::object);
    }
  }
}

TEST_CASE("spills are reported") {
  Schedule greedy;
  greedy.tile_q = 4 * arch_info(plain_problem().target).vector_bytes / 4;
  greedy.tile_kv = 64;
  greedy.key_block = greedy.dim_block = 16;
  greedy.unroll = 1;
  const Candidate candidate = cpu_family().consider(plain_problem(), device_here(), kLong, greedy);
  CHECK(candidate.rejected.find("register budget") == 0);
  CHECK(cpu::compile_module(cpu_family().emit(plain_problem(), greedy)).resources.spill_bytes > 0);
}

TEST_CASE("emission is deterministic across processes") {
  const auto digest = [] {
    std::string all;
    for (const std::string rung : {"avx512", "avx2", "neon"})
      for (const Problem& problem : sample(rung)) all += emit_default(problem).text;
    return to_hex(sha256(all));
  };
  const std::string here = digest();
  CHECK(digest() == here);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string there = digest();
    _exit(write(ends[1], there.data(), there.size()) == static_cast<ssize_t>(there.size()) ? 0 : 1);
  }
  waitpid(child, nullptr, 0);
  std::string there(here.size(), ' ');
  CHECK(read(ends[0], there.data(), there.size()) == static_cast<ssize_t>(there.size()));
  CHECK(there == here);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("the text depends on the rung and not on this processor") {
  const std::string text = emit_default(plain_problem()).text;
  CHECK(text.find("target-cpu") == std::string::npos);
  CHECK(text.find("%scratch") != std::string::npos);
  CHECK(text.rfind("; flashwright: attention forward fp32 d64 none", 0) == 0);
}

TEST_CASE("LLVM's own tools accept the text") {
  const std::string major = cpu::llvm_version().substr(0, cpu::llvm_version().find('.'));
  const std::string opt = "opt-" + major, llc = "llc-" + major;
  if (!tool_exists(opt) || !tool_exists(llc)) {
    return skip("cpu tools", opt + " and " + llc + " are not installed");
  }
  char folder[] = "/tmp/fw-text-XXXXXX";
  REQUIRE(mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/kernel.ll";
  for (const std::string rung : {"avx512", "avx2", "neon"}) {
    Problem problem = plain_problem(rung);
    problem.mask = Mask::Kind::causal;
    for (const Algorithm algorithm : {Algorithm::tiled, Algorithm::unfused}) {
      problem.algorithm = algorithm;
      std::ofstream(path) << emit_default(problem).text;
      CHECK(std::system((opt + " -passes=verify -disable-output " + path).c_str()) == 0);
      CHECK(std::system((llc + " -filetype=null " + path).c_str()) == 0);
    }
  }
  unlink(path.c_str());
  rmdir(folder);
}

TEST_CASE("kernels for ARM compile here") {
  if (host_cpu_rung() == "neon") return;
  const Problem problem = plain_problem("neon");
  try {
    const Binary binary = cpu::compile_module(emit_default(problem));
    CHECK(binary.resources.spill_bytes == 0);
    CHECK_THROWS_AS(cpu::load_object(binary, {"fw_forward"}), Error);
    for (const Problem& other : sample("neon"))
      CHECK_NOTHROW(cpu::compile_module(emit_default(other)));
  } catch (const Error& error) {
    if (error.status != Status::unavailable) throw;
    skip("cpu for ARM", error.message);
  }
}

TEST_CASE("malformed and foreign text is refused with LLVM's message") {
  Source source = emit_default(plain_problem());
  const std::string good = source.text;
  const auto refused = [&](const std::string& text) -> std::string {
    source.text = text;
    try {
      cpu::compile_module(source);
    } catch (const Error& error) {
      CHECK(error.status == Status::compile_failed);
      return error.message + " " + error.detail;
    }
    return {};
  };
  CHECK(refused("define void @f( {").find("fw_forward.ll") != std::string::npos);
  CHECK(refused(good.substr(0, good.size() / 2)).find("cannot be read") != std::string::npos);
  CHECK(refused("declare void @outside()\ndefine void @fw_forward(ptr %a, i64 %b, ptr %c) {\n"
                "call void @outside()\nret void\n}\n")
            .find("'outside'") != std::string::npos);
  CHECK(refused("define void @f(i32 %x) {\n%y = fadd i32 %x, %x\nret void\n}\n") != "");
}

TEST_CASE("an object for another processor is not loaded") {
  const Binary binary = cpu::compile_module(emit_default(plain_problem()));
  CHECK_NOTHROW(cpu::load_object(binary, {"fw_forward"}));
  // As if made where there is a feature that nobody has.
  Binary foreign = binary;
  const std::size_t at = foreign.bytes.find("flashwright features:");
  REQUIRE(at != std::string::npos);
  foreign.bytes.replace(foreign.bytes.find(' ', at + 21) + 1, 3, "zzz");
  CHECK_THROWS_AS(cpu::load_object(foreign, {"fw_forward"}), Error);
  Binary unmarked = binary;
  unmarked.bytes.replace(at, 5, "-----");
  CHECK_THROWS_AS(cpu::load_object(unmarked, {"fw_forward"}), Error);
  Binary cut = binary;
  cut.bytes.resize(cut.bytes.size() / 3);
  CHECK_THROWS_AS(cpu::load_object(cut, {"fw_forward"}), Error);
  CHECK_THROWS_AS(cpu::load_object(binary, {"fw_other"}), Error);
  if (host_cpu_rung() == "avx512") {
    const Binary narrow = cpu::compile_module(emit_default(plain_problem("avx2")));
    setenv("FLASHWRIGHT_CPU", "avx2", 1);
    CHECK_THROWS_AS(cpu::load_object(binary, {"fw_forward"}), Error);
    CHECK_NOTHROW(cpu::load_object(narrow, {"fw_forward"}));
    CHECK(device_here().target.arch == "avx2");
    unsetenv("FLASHWRIGHT_CPU");
  }
  Backend& backend = cpu::cpu_backend();
  CHECK(backend.toolchain({BackendKind::cpu, "avx512"}) !=
        backend.toolchain({BackendKind::cpu, "avx2"}));
  CHECK(backend.toolchain({BackendKind::cpu, "avx2"}).find("LLVM " + cpu::llvm_version()) == 0);
}

TEST_CASE("compiling from several threads at once") {
  const Source source = emit_default(plain_problem());
  const std::string expected = cpu::compile_module(source).bytes;
  std::vector<std::thread> threads;
  std::vector<std::string> results(4);
  for (std::string& result : results)
    threads.emplace_back([&] {
      const Binary binary = cpu::compile_module(source);
      cpu::load_object(binary, {"fw_forward"});
      result = binary.bytes;
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) CHECK(result == expected);
}

TEST_CASE("the space: legal schedules, reasons, budgets") {
  const Family& family = cpu_family();
  for (const std::string rung : {"avx512", "avx2", "neon"}) {
    for (Problem problem : sample(rung)) {
      const std::vector<Candidate> space = family.space(problem, device_here(), kLong);
      std::set<Schedule> legal;
      for (const Candidate& candidate : space) {
        if (!candidate.rejected.empty()) continue;
        legal.insert(candidate.schedule);
        CHECK(candidate.estimate.time_us > 0);
        CHECK(candidate.estimate.registers <= arch_info(problem.target).vector_registers);
      }
      CAPTURE(to_string(problem));
      CHECK(legal.size() >= 5);
      for (const std::int64_t length : {1, 20, 64, 5000}) {
        const Shape shape{1, 4, 2, length, 4096};
        const Candidate choice = family.consider(
            problem, device_here(), shape, family.default_schedule(problem, device_here(), shape));
        CHECK(choice.rejected == "");
        CHECK(emit_default(problem).plan.steps[0].smem_bytes > 0);
      }
      // A small core still gets a kernel.
      DeviceInfo small = device_here();
      small.l1_bytes = 16 * 1024;
      small.l2_bytes = 256 * 1024;
      CHECK(family.consider(problem, small, kLong, family.default_schedule(problem, small, kLong))
                .rejected == "");
    }
  }
}

TEST_CASE("pinned schedules: filled in or refused by name") {
  const Family& family = cpu_family();
  const Problem problem = plain_problem("avx512");
  const auto reason = [&](const char* text) {
    return family.consider(problem, device_here(), kLong, parse_schedule(text)).rejected;
  };
  CHECK(reason("q64") == "");
  CHECK(reason("kv128") == "");
  CHECK(reason("q65").find("tile_q is 65") == 0);
  CHECK(reason("q64.kv40").find("tile_kv is 40") == 0);
  CHECK(reason("q64.kv64.mk5").find("key_block is 5") == 0);
  CHECK(reason("q64.kv64.md7").find("dim_block is 7") == 0);
  CHECK(reason("q64.kv64.u3").find("unroll is 3") == 0);
  CHECK(reason("q64.w4").find("warps is 4") == 0);
  CHECK(reason("q64.st2").find("stages is 2") == 0);
  CHECK(reason("q128.kv64.mk4.md4").find("register budget") == 0);
  CHECK(reason("q64.kv1024.mk4").find("L1") == 0);
  CHECK_THROWS_AS(family.emit(problem, parse_schedule("q65")), Error);
  Problem unfused = problem;
  unfused.algorithm = Algorithm::unfused;
  unfused.mask = Mask::Kind::blocks;
  unfused.dropout = true;
  CHECK(family.reasons_against(unfused).size() == 2);
  CHECK(family.reasons_against(problem).empty());
}

TEST_CASE("the plugin is one symbol and brings family and backend") {
  void* const library = dlopen(FW_CPU_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library != nullptr, dlerror());
  const auto entry = reinterpret_cast<CpuPluginEntry>(dlsym(library, kCpuPluginEntry));
  REQUIRE((entry != nullptr));
  const CpuPlugin* const plugin = entry(nullptr);
  CHECK(std::string(plugin->build_id) == kBuildId);
  CHECK(plugin->family->name() == "cpu");
  CHECK(plugin->backend->kind() == BackendKind::cpu);
  CHECK(plugin->fma_peak_gflops(1, 5) > 1);
  // Its own LLVM side stays inside.
  CHECK(dlsym(library, "_ZN11flashwright3cpu14compile_moduleERKNS_6SourceE") == nullptr);
  const Problem problem = plain_problem();
  const Source source = plugin->family->emit(
      problem, plugin->family->default_schedule(problem, device_here(), kLong));
  CHECK(source.text == emit_default(problem).text);
  CHECK(plugin->backend->load(plugin->backend->compile(source), source.plan, 0) != nullptr);
  // An error of the plugin is caught here as what it is.
  Source broken = source;
  broken.text = "no module";
  CHECK_THROWS_AS(plugin->backend->compile(broken), Error);
}
