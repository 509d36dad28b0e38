#include "core/device.hpp"

#include <set>

#include "core/device_profiles.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using flashwright::test::Environment;
using flashwright::test::Variables;

TEST_CASE("limits of shared memory are those of the architectures") {  // C100
  const std::vector<std::pair<std::string, int>> table = {
      {"sm_80", 166912},  {"sm_86", 101376},  {"sm_89", 101376}, {"sm_90", 232448},
      {"sm_90a", 232448}, {"sm_100", 232448}, {"sm_120", 101376}};
  for (const auto& [name, bytes] : table) {
    const ArchInfo& arch = arch_info(parse_target(name));
    INFO(name);
    CHECK(arch.smem_per_block == bytes);
    CHECK(arch.smem_per_sm == bytes + 1024);
    CHECK(std::string(name).starts_with("sm_" + std::to_string(arch.major) +
                                        std::to_string(arch.minor)));
  }
}

TEST_CASE("every known architecture can be named, and only those") {
  std::set<std::string> names;
  for (const ArchInfo& arch : known_architectures()) {
    const std::string name = to_string(arch.target);
    names.insert(name);
    CHECK(parse_target(name) == arch.target);
  }
  CHECK(names.size() == known_architectures().size());
  for (const char* text :
       {"", "sm_75", "sm_90A", "cpu:", "cpu:avx", "cuda", "sm_90 ", "compute_90"}) {
    INFO(text);
    const Error error = error_of([&] { parse_target(text); });
    CHECK(error.status == Status::bad_argument);
    CHECK(contains(error.message, std::string("target: '") + text + "' is unknown"));
    CHECK(contains(error.message, "sm_80"));
    CHECK(contains(error.message, "cpu:avx2"));
  }
}

TEST_CASE("code for a virtual architecture has the limits of the real one") {
  CHECK(arch_info({BackendKind::cuda, "compute_86"}).smem_per_block == 101376);
  CHECK(error_of([] { arch_info({BackendKind::cuda, "sm_42"}); }).status == Status::internal);
}

TEST_CASE("FLASHWRIGHT_CPU lowers the instruction set and never raises it") {
  std::string best;
  {
    const Environment unset({{"FLASHWRIGHT_CPU", std::nullopt}});
    best = host_cpu_rung();
  }
  if (best == "avx512" || best == "avx2") {
    const Environment lower(Variables{{"FLASHWRIGHT_CPU", "avx2"}});
    CHECK(host_cpu_rung() == "avx2");
    const Environment upper(Variables{{"FLASHWRIGHT_CPU", "avx512"}});
    CHECK(host_cpu_rung() == best);
  }
  CHECK(parse_target("cpu") == Target{BackendKind::cpu, best});
  const Environment bad(Variables{{"FLASHWRIGHT_CPU", "sse9"}});
  const Error error = error_of([] { host_cpu_rung(); });
  CHECK(error.status == Status::bad_argument);
  CHECK(contains(error.message, "FLASHWRIGHT_CPU is 'sse9'; allowed: avx512, avx2, neon"));
}

TEST_CASE("every shipped profile reads, and survives its own JSON") {
  const std::vector<std::string> names = profile_names();
  for (const char* expected : {"a100", "h100", "h200", "l40s", "rtx4090", "rtx5090"})
    CHECK(std::count(names.begin(), names.end(), expected) == 1);
  std::set<std::string> classes;
  for (const std::string& name : names) {
    INFO(name);
    const DeviceInfo device = device_profile(name);
    CHECK(!device.present);
    CHECK(device.smem_per_block == arch_info(device.target).smem_per_block);
    CHECK(device.peak_tflops.at("bf16") > 50);
    CHECK(device.memory_gbps > 500);
    const DeviceInfo again = device_from_json(to_json(device));
    CHECK(to_json(again) == to_json(device));
    CHECK(device_class(again) == device_class(device));
    classes.insert(device_class(device));
  }
  CHECK(classes.size() == names.size());
  const Error unknown = error_of([] { device_profile("h300"); });
  CHECK(contains(unknown.message, "'h300' is unknown; known: a100"));
}

TEST_CASE("a class of devices is what changes speed, never the name") {
  const DeviceInfo device = device_profile("h100");
  DeviceInfo other = device;
  other.name = "something else";
  other.index = 3;
  other.present = true;
  other.clock_ghz *= 1.01;
  CHECK(device_class(other) == device_class(device));
  for (const auto& change : std::vector<std::function<void(DeviceInfo&)>>{
           [](DeviceInfo& d) { d.sm_count -= 2; }, [](DeviceInfo& d) { d.smem_per_block /= 2; },
           [](DeviceInfo& d) { d.l2_bytes *= 2; }, [](DeviceInfo& d) { d.memory_gbps *= 1.4; },
           [](DeviceInfo& d) { d.target.arch = "sm_90"; }}) {
    DeviceInfo changed = device;
    change(changed);
    CHECK(device_class(changed) != device_class(device));
  }
}

TEST_CASE("a profile that is wrong is refused with the field at fault") {
  const std::string good = R"("target":"sm_80","sm_count":108,"clock_ghz":1.4,"l2_bytes":41943040)";
  CHECK(device_from_json("{" + good + "}").smem_per_block == 166912);
  const std::vector<std::pair<std::string, std::vector<const char*>>> table = {
      {"", {"device profile"}},
      {"{", {"device profile"}},
      {"[]", {"device profile"}},
      {"{}", {"device profile", "target"}},
      {R"({"target":"sm_80"})", {"sm_count", "clock_ghz", "l2_bytes", "required"}},
      {R"({"target":"sm_12"})", {"target", "sm_12", "known"}},
      {R"({"target":80})", {"device profile", "string"}},
      {"{" + good + R"(,"smcount":1})", {"unknown field 'smcount'"}},
      {"{" + good + R"(,"memory_gbps":-1})", {"memory_gbps is -1", "above 0"}},
      {"{" + good + R"(,"memory_gbps":0})", {"memory_gbps is 0", "above 0"}},
      {"{" + good + R"(,"memory_gbps":"fast"})", {"device profile", "number"}},
      {R"({"target":"sm_80","sm_count":5000000000,"clock_ghz":1,"l2_bytes":1})",
       {"sm_count is 5000000000", "allowed"}},
      {R"({"target":"sm_80","sm_count":0.5,"clock_ghz":1,"l2_bytes":1})",
       {"sm_count is 0.5", "allowed"}},
      {"{" + good + R"(,"smem_per_block_bytes":3000000000})",
       {"smem_per_block_bytes is 3000000000", "allowed"}},
      {"{" + good + R"(,"peak_tflops":5})", {"device profile"}}};
  for (const auto& [json, named] : table) {
    INFO(json);
    const Error error = error_of([&json = json] { device_from_json(json); });
    CHECK(error.status == Status::bad_argument);
    for (const char* part : named) CHECK(contains(error.message, part));
  }
}

TEST_CASE("an absent device is assumed for every known target") {
  for (const ArchInfo& arch : known_architectures()) {
    const DeviceInfo device = assumed_device(arch.target);
    INFO(to_string(arch.target));
    CHECK(device.target == arch.target);
    CHECK(!device.present);
    CHECK(device.sm_count > 0);
    CHECK(device.clock_ghz > 0);
    CHECK(device.l2_bytes > 0);
    CHECK(device.smem_per_block == arch.smem_per_block);
    CHECK(device.smem_per_sm == arch.smem_per_sm);
  }
}

TEST_CASE("what is assumed is a profile of that compute capability, or says that it is assumed") {
  const auto assumed = [](const char* target) { return assumed_device(parse_target(target)); };
  const std::vector<std::pair<const char*, const char*>> profiles = {
      {"sm_80", "a100"},  {"sm_89", "l40s"},     {"sm_90", "h100"},
      {"sm_90a", "h100"}, {"sm_120", "rtx5090"}, {"sm_120a", "rtx5090"}};
  for (const auto& [target, name] : profiles) {
    DeviceInfo profile = device_profile(name);
    profile.target = parse_target(target);
    CHECK(to_json(assumed(target)) == to_json(profile));
  }
  std::set<std::string> with_profile;
  for (const auto& [target, name] : profiles) with_profile.insert(target);
  for (const ArchInfo& arch : known_architectures()) {
    if (with_profile.count(to_string(arch.target)) == 1) continue;
    const DeviceInfo device = assumed_device(arch.target);
    INFO(to_string(arch.target));
    CHECK(contains(device.name, arch.target.arch));
    CHECK(contains(device.name, "(assumed)"));
    CHECK(device.peak_tflops.empty());
    CHECK(device.measured.empty());
    for (const std::string& name : profile_names()) {  // and no figure of another product
      const DeviceInfo other = device_profile(name);
      CHECK(device.l2_bytes != other.l2_bytes);
      CHECK(device.clock_ghz != other.clock_ghz);
      CHECK(device.memory_gbps != other.memory_gbps);
      CHECK(device.sm_count != other.sm_count);
    }
  }
  CHECK(assumed("sm_86").name == "an sm_86 GPU (assumed)");
  CHECK(assumed("cpu:neon").name == "a processor with neon (assumed)");
}

TEST_CASE("code runs on its own architecture and on later minors of the same major") {
  const auto on = [](const char* device, const char* target) {
    DeviceInfo info;
    info.target = parse_target(device);
    return runs(info, parse_target(target));
  };
  for (const auto& [device, target] :
       std::vector<std::pair<const char*, const char*>>{{"sm_86", "sm_86"},
                                                        {"sm_89", "sm_80"},
                                                        {"sm_90a", "sm_90a"},
                                                        {"sm_90a", "sm_90"},
                                                        {"cpu:avx512", "cpu:avx2"},
                                                        {"cpu:neon", "cpu:neon"}})
    CHECK(on(device, target));
  for (const auto& [device, target] :
       std::vector<std::pair<const char*, const char*>>{{"sm_80", "sm_86"},
                                                        {"sm_90", "sm_90a"},
                                                        {"sm_90a", "sm_89"},
                                                        {"sm_120", "sm_100"},
                                                        {"cpu:avx2", "cpu:avx512"},
                                                        {"cpu:avx512", "cpu:neon"},
                                                        {"sm_80", "cpu:avx2"}})
    CHECK(!on(device, target));
}

TEST_CASE("an option names a device or describes it") {
  CHECK(device_from_option(R"("h200")").name == "NVIDIA H200 SXM");
  const std::string profile = to_json(device_profile("a100"));
  CHECK(to_json(device_from_option(profile)) == profile);
  const std::vector<std::pair<const char*, const char*>> table = {
      {R"("h300")", "device: 'h300' is unknown; known: a100"},
      {R"("")", "device: '' is unknown"},
      {"7", "device: given 7; expected the name of a known device (a100, "},
      {"[]", "device: given []; expected"},
      {"{", "device: given {; expected"},
      {"{}", "device profile"}};
  for (const auto& [json, part] : table) {
    const Error error = error_of([&json = json] { device_from_option(json); });
    CHECK(error.status == Status::bad_argument);
    CHECK(contains(error.message, part));
  }
}
