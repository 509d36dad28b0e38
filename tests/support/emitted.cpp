#include "tests/support/emitted.hpp"

#include <random>

#include "core/device_profiles.hpp"
#include "tests/support/random.hpp"

namespace flashwright::testing {
namespace {

struct Row {
  const char *name, *target, *config, *schedule;
};

// Each row is there for something that no other row has.
constexpr Row kRows[] = {
    {"bf16_d128_causal", "sm_90a", R"({"head_dim":128,"mask":"causal"})", "q128.kv32.w4.st2.b2"},
    {"bf16_d128", "sm_80", R"({"head_dim":128})", "q64.kv64.w4.st2.b1"},
    {"bf16_d128_causal_lazy", "sm_90a", R"({"head_dim":128,"mask":"causal"})",
     "q128.kv32.w4.st2.b2.lz1"},
    {"bf16_d128_causal_three_stages", "sm_90a", R"({"head_dim":128,"mask":"causal"})",
     "q64.kv64.w4.st3.b1"},
    {"bf16_d64_few_rows", "sm_89", R"({"head_dim":64})", "q16.kv64.w1.st2.b2"},
    {"bf16_d8", "sm_86", R"({"head_dim":8})", "q64.kv64.w4.st2.b2"},
    {"bf16_d16_wide_tile", "sm_121", R"({"head_dim":16,"mask":"causal"})", "q32.kv256.w2.st1.b2"},
    {"bf16_d256_causal", "sm_90a", R"({"head_dim":256,"mask":"causal"})", "q64.kv64.w4.st1.b1"},
    {"bf16_d128_queries_in_registers", "sm_86", R"({"head_dim":128})", "q64.kv32.w4.st1.qr1.b2"},
    {"bf16_d192_v128_causal", "sm_90a", R"({"head_dim":192,"head_dim_v":128,"mask":"causal"})",
     "q64.kv64.w4.st1.b2"},
    {"bf16_d64_v128", "sm_80", R"({"head_dim":64,"head_dim_v":128})", "q64.kv64.w4.st2.b2"},
    {"bf16_d8_v64_output_is_largest", "sm_80", R"({"head_dim":8,"head_dim_v":64})",
     "q128.kv16.w4.st1.qr1.b2"},
    {"bf16_d64_eight_warps", "sm_100", R"({"head_dim":64})", "q256.kv64.w8.st2.b1"},
    {"bf16_d128_window", "sm_120", R"({"head_dim":128,"mask":"window:512,0"})",
     "q64.kv64.w4.st2.b1"},
    {"bf16_d64_blocks", "sm_80", R"({"head_dim":64,"mask":"blocks"})", "q64.kv64.w4.st2.b2"},
    {"bf16_d64_causal_dropout", "sm_80", R"({"head_dim":64,"mask":"causal","dropout":0.1})",
     "q64.kv64.w4.st2.b2"},
    {"fp16_d64_causal", "sm_86", R"({"dtype":"fp16","head_dim":64,"mask":"causal"})",
     "q128.kv64.w4.st2.b1"},
    {"fp16_d72_window", "sm_89", R"({"dtype":"fp16","head_dim":72,"mask":"window:-1,64"})",
     "q64.kv64.w4.st1.b2"},
    {"fp16_d128_blocks_dropout", "sm_90",
     R"({"dtype":"fp16","head_dim":128,"mask":"blocks","dropout":0.2})", "q64.kv32.w4.st2.b2"},
    {"fp16_d128_v64_window_dropout", "sm_87",
     R"({"dtype":"fp16","head_dim":128,"head_dim_v":64,"mask":"window:9,9","dropout":0.5})",
     "q32.kv32.w2.st2.b2"},
    {"fp32_d64_causal", "sm_80", R"({"dtype":"fp32","head_dim":64,"mask":"causal"})",
     "q64.kv32.w4.st2.b2"},
    {"fp32_d40_blocks", "sm_90a", R"({"dtype":"fp32","head_dim":40,"mask":"blocks"})",
     "q64.kv32.w4.st1.b2"},
    {"fp32_d64_dropout", "sm_86", R"({"dtype":"fp32","head_dim":64,"dropout":0.1})",
     "q64.kv32.w4.st1.b2"},
    {"bf16_d128_causal_softcap", "sm_80", R"({"head_dim":128,"mask":"causal","softcap":50})",
     "q128.kv32.w4.st2.b2.lz1"},
    {"fp32_d64_softcap_alibi", "sm_80",
     R"({"dtype":"fp32","head_dim":64,"softcap":30,"alibi":true})", "q64.kv32.w4.st1.b2"},
    {"fp32_d256", "sm_90a", R"({"dtype":"fp32","head_dim":256})", "q64.kv16.w4.st1.b1"},
    {"bf16_d64_causal_backward", "sm_80",
     R"({"direction":"backward","head_dim":64,"mask":"causal"})", "q64.kv64.w4.st2.b2.kb64.qs64"},
    {"bf16_d256_backward_apart", "sm_86", R"({"direction":"backward","head_dim":256})",
     "q64.kv16.w4.st1.b1.kb64.qs16.sk1"},
    {"fp16_d72_v128_blocks_dropout_backward", "sm_90a",
     R"({"direction":"backward","dtype":"fp16","head_dim":72,"head_dim_v":128,"mask":"blocks",
         "dropout":0.2})",
     "q64.kv32.w4.st2.b1.kb64.qs16"},
    {"fp32_d64_window_softcap_alibi_backward", "sm_120",
     R"({"direction":"backward","dtype":"fp32","head_dim":64,"mask":"window:9,9","softcap":30,
         "alibi":true})",
     "q64.kv32.w4.st1.b1.kb64.qs32"},
};

constexpr Row kUnfused[] = {
    {"bf16_d64_causal_unfused", "sm_90a", R"({"head_dim":64,"mask":"causal"})",
     "q128.kv64.w4.st1.b1"},
    {"fp32_d128_dropout_unfused", "sm_80", R"({"dtype":"fp32","head_dim":128,"dropout":0.1})",
     "q32.kv32.w2.st1.b1"},
};

constexpr Row kSm90[] = {
    {"bf16_d128_causal", "sm_90a", R"({"head_dim":128,"mask":"causal"})", "q128.kv128.w12.st2.b1"},
    {"bf16_d128_causal_packed", "sm_90a", R"({"head_dim":128,"mask":"causal"})",
     "q128.kv128.w12.st2.b1.ph1"},
    {"bf16_d64_three_consumers", "sm_90a", R"({"head_dim":64})", "q192.kv128.w16.st2.b1"},
    {"bf16_d64_in_rounds", "sm_90a", R"({"head_dim":64})", "q192.kv128.w16.st3.b1.pp1.pb2.qp1"},
    {"bf16_d128_cluster", "sm_90a", R"({"head_dim":128})", "q128.kv32.w12.st1.b1.pb2.qp1.cl2"},
    {"bf16_d64_queries_in_registers", "sm_90a", R"({"head_dim":64})",
     "q192.kv96.w16.st3.b1.qr1.pp1.pb132.qp1"},
    {"bf16_d128_softcap_emulated", "sm_90a", R"({"head_dim":128,"mask":"causal","softcap":50})",
     "q128.kv128.w12.st2.b1.lz8.ex8"},
    {"bf16_d256_lazy", "sm_90a", R"({"head_dim":256})", "q128.kv80.w12.st2.b1.lz1"},
    {"bf16_d192_v128_window", "sm_90a",
     R"({"head_dim":192,"head_dim_v":128,"mask":"window:512,0"})", "q128.kv112.w12.st2.b1"},
    {"fp16_d72_blocks", "sm_90a", R"({"dtype":"fp16","head_dim":72,"mask":"blocks"})",
     "q64.kv64.w8.st3.b2"},
    {"bf16_d128_in_turn", "sm_90a", R"({"head_dim":128,"mask":"causal"})",
     "q128.kv128.w12.st2.b1.pp1.pb132"},
    {"bf16_d128_causal_softcap", "sm_90a", R"({"head_dim":128,"mask":"causal","softcap":50})",
     "q128.kv128.w12.st2.b1"},
    {"fp16_d64_causal_alibi", "sm_90a",
     R"({"dtype":"fp16","head_dim":64,"mask":"causal","alibi":true})", "q128.kv128.w12.st2.b1"},
    {"fp16_d96_causal_dropout", "sm_90a",
     R"({"dtype":"fp16","head_dim":96,"mask":"causal","dropout":0.1})", "q128.kv96.w12.st2.b1"},
    {"bf16_d128_causal_backward", "sm_90a",
     R"({"direction":"backward","head_dim":128,"mask":"causal"})", "q128.kv64.w12.st2.b1.qs64.aq1"},
    {"bf16_d64_causal_backward", "sm_90a",
     R"({"direction":"backward","head_dim":64,"mask":"causal"})", "q128.kv64.w12.st3.b1.qs128.aq2"},
    {"bf16_d64_window_alibi_backward", "sm_90a",
     R"({"direction":"backward","head_dim":64,"mask":"window:64,0","alibi":true})",
     "q128.kv96.w12.st2.b1.qs80"},
    {"bf16_d256_softcap_backward", "sm_90a",
     R"({"direction":"backward","head_dim":256,"softcap":50})", "q128.kv32.w12.st2.b1.qs32"},
    {"fp16_d72_v40_blocks_dropout_backward", "sm_90a",
     R"({"direction":"backward","dtype":"fp16","head_dim":72,"head_dim_v":40,"mask":"blocks",
         "dropout":0.2})",
     "q128.kv64.w12.st2.b1.qs64"},
};

NamedKernel kernel_of(const Row& row, Algorithm algorithm, const Family& family) {
  NamedKernel kernel;
  kernel.family = &family;
  kernel.name = family.name() + "_" + row.name;
  kernel.problem = normalise(config_from_json(row.config), parse_target(row.target));
  kernel.problem.algorithm = algorithm;
  kernel.schedule = parse_schedule(row.schedule);
  return kernel;
}

}  // namespace

const FamilySm80& sm80_family() {
  static const FamilySm80 family;
  return family;
}

const FamilySm90& sm90_family() {
  static const FamilySm90 family;
  return family;
}

const std::vector<NamedKernel>& named_kernels() {
  static const std::vector<NamedKernel> kernels = [] {
    std::vector<NamedKernel> out;
    for (const Row& row : kRows) out.push_back(kernel_of(row, Algorithm::tiled, sm80_family()));
    for (const Row& row : kUnfused)
      out.push_back(kernel_of(row, Algorithm::unfused, sm80_family()));
    for (const Row& row : kSm90) out.push_back(kernel_of(row, Algorithm::tiled, sm90_family()));
    return out;
  }();
  return kernels;
}

std::vector<NamedKernel> random_kernels(std::uint64_t seed, int count, const Family& family,
                                        Direction direction) {
  std::vector<Target> targets;
  for (const ArchInfo& arch : known_architectures())
    if (arch.target.backend == BackendKind::cuda) targets.push_back(arch.target);
  std::mt19937_64 random(seed);
  std::vector<NamedKernel> out;
  while (static_cast<int>(out.size()) < count) {
    NamedKernel kernel;
    kernel.family = &family;
    kernel.problem = draw(problems(targets, direction), random());
    if (!family.reasons_against(kernel.problem).empty()) continue;
    const auto legal = legal_schedules(
        family, kernel.problem, assumed_device(kernel.problem.target), {4, 16, 4, 4096, 4096});
    if (legal.empty()) continue;
    kernel.schedule = legal[random() % legal.size()];
    // Few blocks, so that each takes several query tiles of a small problem.
    if (kernel.schedule.persistent != 0)
      kernel.schedule.persistent =
          std::max(1, kernel.schedule.cluster) * (1 + static_cast<int>(random() % 3));
    kernel.name = to_string(kernel.problem) + " " + to_string(kernel.schedule);
    out.push_back(std::move(kernel));
  }
  return out;
}

}  // namespace flashwright::testing
