// What FLASHWRIGHT_DUMP_DIR receives, and that trouble with it fails nothing.
#include "tuner/dump.hpp"

#include <filesystem>

#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"
#include "tests/tuner/landscape.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

test::Variables dump_to(const std::string& folder) { return {{"FLASHWRIGHT_DUMP_DIR", folder}}; }

std::string stem_of(const Built& built) {
  return "forward_fp32_d16_none_sm_80-" + to_string(built.schedule) + "-" +
         to_hex(built.key).substr(0, 12);
}

}  // namespace

TEST_CASE("every compilation leaves source and binary; a kernel from the store leaves nothing") {
  Rig rig;
  const test::Folder folder;
  const test::Environment set(dump_to(folder / "new/below"));
  const Schedule schedule = parse_schedule(schedule_names()[1]);
  const Built built = build(rig.family, rig.problem, schedule, rig.backend, &rig.artifacts);
  const std::string stem = folder / "new/below/" + stem_of(built);
  CHECK(test::read_file(stem + ".cu") == built.source.text);
  CHECK(test::read_file(stem + ".cubin") == built.binary.bytes);
  CHECK(!std::filesystem::exists(stem + ".log"));  // the compiler had nothing to say
  keep(built, rig.problem, rig.artifacts);
  std::filesystem::remove(stem + ".cu");
  CHECK(build(rig.family, rig.problem, schedule, rig.backend, &rig.artifacts).from_store);
  CHECK(!std::filesystem::exists(stem + ".cu"));
  rig.backend.toolchain_name = "fake 2";  // another binary of the same text: another name
  build(rig.family, rig.problem, schedule, rig.backend, &rig.artifacts);
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "new/below"), {}) == 3);
}

TEST_CASE("what the compiler says is left as well, and IR and objects have their endings") {
  const test::Folder folder;
  const test::Environment set(dump_to(folder.path()));
  Built built;
  built.schedule = parse_schedule("q64.kv64");
  built.source.language = Language::llvm_ir;
  built.source.text = "define void @f()";
  built.binary.kind = Binary::Kind::object;
  built.binary.bytes = std::string(
      "\x7f"
      "ELF\0x",
      6);
  built.binary.log = "a warning";
  Problem problem;
  problem.target = {BackendKind::cpu, "avx2"};
  problem.head_dim = 32;
  problem.head_dim_v = 64;
  Dump(built, problem).compiled(built.binary);
  const std::string stem = folder / "forward_bf16_d32_64_none_cpu_avx2-q64.kv64-000000000000";
  CHECK(test::read_file(stem + ".ll") == built.source.text);
  CHECK(test::read_file(stem + ".o") == built.binary.bytes);
  CHECK(test::read_file(stem + ".log") == "a warning");
  built.binary.kind = Binary::Kind::ptx;
  Dump(built, problem).compiled(built.binary);
  CHECK(test::read_file(stem + ".ptx") == built.binary.bytes);
}

TEST_CASE("a refused kernel leaves source and log, and the error says where the source is") {
  Landscape landscape = usual_landscape();
  for (auto& [name, outcome] : landscape) outcome.compiles = false;
  Rig rig(landscape);
  const test::Folder folder;
  const Schedule schedule = parse_schedule(schedule_names()[0]);
  Built built = emit_candidate(rig.family, rig.problem, schedule, rig.backend);
  CHECK(error_of([&] { compile(built, rig.problem, rig.backend); }).detail == "log");  // not set
  const test::Environment set(dump_to(folder.path()));
  const std::string stem = folder / stem_of(built);
  const std::string detail = "log\nthe source is in " + stem + ".cu\n";
  const Error error = error_of([&] { compile(built, rig.problem, rig.backend); });
  CHECK(error.status == Status::compile_failed);
  CHECK(error.detail == detail);
  CHECK(test::read_file(stem + ".cu") == built.source.text);
  CHECK(test::read_file(stem + ".log") == error.message + "\nlog");
  CHECK(!std::filesystem::exists(stem + ".cubin"));
  CHECK(build(rig.family, rig.problem, schedule, rig.backend, nullptr).detail == detail);
  CHECK(error_of([&] { rig.tune(); }).detail == detail);  // of the first, the default
}

TEST_CASE("a folder that cannot be written costs one line in the log") {
  Landscape landscape = usual_landscape();
  landscape[schedule_names()[0]].compiles = false;
  Rig rig(landscape);
  const test::Folder folder;
  test::write_file(folder / "file", "not a folder");
  const test::Environment set(dump_to(folder / "file"));
  const test::Log log;
  const Built failed =
      build(rig.family, rig.problem, parse_schedule(schedule_names()[0]), rig.backend, nullptr);
  CHECK(failed.detail == "log");  // there is no file to name
  for (const std::string& name : {schedule_names()[1], schedule_names()[2]}) {
    const Built built = build(rig.family, rig.problem, parse_schedule(name), rig.backend, nullptr);
    CHECK(built.failure == "");
    CHECK(built.binary.bytes == built.source.text);
  }
  REQUIRE(log.warnings().size() == 1);
  for (const std::string& part : {std::string("FLASHWRIGHT_DUMP_DIR"), folder / "file/forward_",
                                  std::string("cannot be written (Not a directory)")})
    CHECK(contains(log.warnings().front(), part));
}
