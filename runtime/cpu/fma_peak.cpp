// The rate that kernels are measured against: multiply-adds on registers, nothing else.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "core/error.hpp"
#include "runtime/cpu/cpu_backend.hpp"
#include "runtime/cpu/llvm.hpp"
#include "runtime/cpu/thread_pool.hpp"

namespace flashwright::cpu {
namespace {

// Enough independent chains to cover the latency of both units, few enough for every register file.
constexpr int kChains = 12;
constexpr std::int64_t kTurns = 20000;

Source peak_source(const Target& target, int lanes) {
  const std::string type = fmt::format("<{} x float>", lanes);
  std::string text = fmt::format("declare {0} @llvm.fma.v{1}f32({0}, {0}, {0})\n\n", type, lanes);
  text += fmt::format(
      "define void @fw_peak(ptr %params, i64 %task, ptr %scratch) \"prefer-vector-width\"=\"{0}\" "
      "\"min-legal-vector-width\"=\"{0}\" {{\nentry:\n  %x = load {1}, ptr %scratch\n  br label "
      "%turn\nturn:\n"
      "  %i = phi i64 [ 0, %entry ], [ %next, %turn ]\n",
      lanes * 32, type);
  for (int c = 0; c < kChains; ++c)
    text += fmt::format("  %a{0} = phi {1} [ %x, %entry ], [ %b{0}, %turn ]\n", c, type);
  for (int c = 0; c < kChains; ++c)
    text += fmt::format("  %b{0} = call {1} @llvm.fma.v{2}f32({1} %x, {1} %x, {1} %a{0})\n", c,
                        type, lanes);
  text += fmt::format(
      "  %next = add i64 %i, 1\n  %more = icmp slt i64 %next, {}\n"
      "  br i1 %more, label %turn, label %end\nend:\n",
      kTurns);
  for (int c = 0; c < kChains; ++c)
    text += fmt::format(
        "  %p{0} = getelementptr {1}, ptr %scratch, i64 {0}\n"
        "  store {1} %b{0}, ptr %p{0}\n",
        c, type);
  Source source;
  source.language = Language::llvm_ir;
  source.target = target;
  source.name = "fw_peak.ll";
  source.text = text + "  ret void\n}\n";
  return source;
}

struct PeakTask {
  KernelEntry entry;
};

void run_peak(void* context, std::int64_t, int) {
  alignas(64) unsigned char scratch[kChains * 64] = {};
  static_cast<PeakTask*>(context)->entry(nullptr, 0, scratch);
}

}  // namespace

double measure_fma_peak(int threads, double milliseconds) {
  if (threads < 1)
    throw Error(Status::bad_argument,
                fmt::format("threads: given {}; expected at least 1", threads));
  const Target target{BackendKind::cpu, host_cpu_rung()};
  const int lanes = arch_info(target).vector_bytes / 4;
  const auto object = load_object(compile_module(peak_source(target, lanes)), {"fw_peak"});
  PeakTask task{object->entry(0)};
  ThreadPool pool(threads);

  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  const std::int64_t tasks = std::int64_t{16} * threads;
  const double flops =
      static_cast<double>(tasks) * static_cast<double>(kTurns) * kChains * lanes * 2;
  double best = 0;
  const auto end = Clock::now() + std::chrono::duration<double, std::milli>(milliseconds);
  do {
    const auto start = Clock::now();
    pool.parallel(tasks, run_peak, &task);
    best = std::max(best, flops / seconds(Clock::now() - start) / 1e9);
  } while (Clock::now() < end);
  return best;
}

}  // namespace flashwright::cpu
