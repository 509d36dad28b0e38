// What the library says about itself, as JSON.
#include "api/reports.hpp"

#include <nlohmann/json.hpp>

#include "core/env.hpp"
#include "core/version.hpp"
#include "tests/api/fake_devices.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"
#include "tuner/space.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using nlohmann::json;

namespace {

constexpr Shape kShape{1, 2, 2, 30, 30};

void check_fields(const json& object, const std::vector<std::string>& fields) {
  for (const std::string& field : fields) {
    INFO(field);
    CHECK(object.contains(field));
  }
}

}  // namespace

TEST_CASE("a kernel describes itself well enough to be launched without the library") {
  fresh_machine();
  Engine engine(in_memory());
  const Held kernel(engine.get_kernel(kConfig, nullptr, Effort::compile));
  const json d = json::parse(describe(*kernel.get()));
  check_fields(d, {"problem", "target", "device", "family", "language", "selection", "key", "kind",
                   "toolchain", "resources", "compile_ms", "from_store", "entries",
                   "workspace_bytes", "params", "param_bytes"});
  CHECK(d["problem"] == "forward fp32 d16 none sm_80");
  CHECK(d["entries"][0]["name"] == "fw_fake");
  CHECK(d["entries"][0]["grid"] == "ceil_div(seq_q, 64) * heads_q * batch");
  CHECK(d["entries"][0]["threads"] == 128);
  for (const char* number : {"registers", "spill_bytes", "dynamic_smem_bytes"})
    CHECK(d["resources"].contains(number));  // C95
  for (const json& param : d["params"]) check_fields(param, {"name", "type", "offset", "meaning"});
  CHECK(d["params"].size() == static_cast<std::size_t>(kParamCount));
  CHECK(d["selection"]["chosen_by"] == "default");
  CHECK(d["key"].get<std::string>().size() == 64);
}

TEST_CASE("an explanation says which kernel, from where, why, and what else there was") {
  Landscape landscape;
  landscape[kSchedules[1]].time_us = 40;
  landscape[kSchedules[2]].spill_bytes = 500;
  Machine& m = fresh_machine(landscape);
  Engine engine(in_memory());
  json e = json::parse(explain(engine, kConfig, &kShape));
  check_fields(e, {"schedule", "chosen_by", "problem", "shape", "device", "family", "why", "slot",
                   "estimate", "key", "in_store", "alternatives", "legal", "rejected"});
  CHECK(e["schedule"] == kSchedules[0]);
  CHECK(e["in_store"] == false);
  CHECK(e["alternatives"].size() == 3);
  CHECK(m.cuda.compilations == 0);
  engine.tune(kConfig, kShape, nullptr, {});
  e = json::parse(explain(engine, kConfig, &kShape));
  CHECK(e["schedule"] == kSchedules[1]);
  CHECK(e["chosen_by"] == "measured");
  CHECK(e["in_store"] == true);
  check_fields(e["evidence"], {"schedule", "default", "gain", "gain_low", "gain_high", "noise",
                               "confident", "tied"});
  CHECK(e["evidence"]["gain"].get<double>() == doctest::Approx(1.5).epsilon(0.05));
  bool measured = false, spilled = false;
  for (const json& row : e["alternatives"]) {
    measured = measured || (row["schedule"] == kSchedules[0] && row.contains("time_us"));
    spilled = spilled || (row["schedule"] == kSchedules[2] && row["status"] == "spilled" &&
                          contains(row["detail"], "500"));
  }
  CHECK(measured);
  CHECK(spilled);
}

TEST_CASE("normalising shows every default and the probability that is realised") {
  fresh_machine();
  Engine engine(in_memory());
  const json n = json::parse(normalised(engine, R"({"dtype":"fp16","head_dim":64})"));
  check_fields(n, {"direction", "dtype", "head_dim", "head_dim_v", "mask", "dropout",
                   "softmax_scale", "alibi", "deterministic", "target", "schedule"});
  CHECK(n["softmax_scale"] == 0.125);
  CHECK(n["head_dim_v"] == 64);
  CHECK(n["target"] == "sm_80");
  CHECK(config_from_json(n.dump()).head_dim == 64);
}

TEST_CASE("a compile report has resources, time, key and warnings") {
  Machine& m = fresh_machine();
  Engine engine(in_memory());
  const Request request = engine.prepare_request(kConfig);
  const Selection selection = engine.select(request, typical_shape());
  const json first =
      json::parse(compile_report(request, selection, engine.compile(request, selection.schedule)));
  check_fields(first, {"schedule", "problem", "target", "family", "key", "kind", "toolchain",
                       "bytes", "resources", "compile_ms", "from_store", "warnings"});
  CHECK(first["from_store"] == false);
  CHECK(json::parse(compile_report(request, selection,
                                   engine.compile(request, selection.schedule)))["from_store"] ==
        true);
  CHECK(m.cuda.compilations == 1);
}

TEST_CASE("the doctor lists devices, compilers, stores and every variable") {
  const test::Environment set(
      test::Variables{{"FLASHWRIGHT_JOBS", "3"}, {"FLASHWRIGHT_CASHE", "x"}});
  test::Log quiet;
  Machine& m = fresh_machine();
  const test::Folder folder;
  Engine engine(in_folder(folder.path()));
  const json d = json::parse(doctor(engine));
  check_fields(d, {"version", "driver", "nvrtc", "devices", "cpu", "stores", "environment",
                   "unknown_variables", "known_devices"});
  CHECK(d["version"] == kVersion);
  REQUIRE(d["devices"].size() == 1);
  CHECK(d["devices"][0]["name"] == "fake device");
  CHECK(d["devices"][0]["class"] == device_class(m.devices[0]));
  CHECK(contains(d["stores"]["kernels"]["path"], folder.path()));
  check_fields(d["stores"]["kernels"], {"writable", "trouble", "bytes", "max_bytes"});
  CHECK(d["environment"].size() == env::variables().size());
  bool jobs = false;
  for (const json& row : d["environment"]) {
    check_fields(row, {"name", "value", "default", "meaning"});
    jobs = jobs || (row["name"] == "FLASHWRIGHT_JOBS" && row["value"] == "3");
  }
  CHECK(jobs);
  CHECK(d["unknown_variables"] == json::array({"FLASHWRIGHT_CASHE"}));
}

TEST_CASE("operations on the stores") {
  fresh_machine();
  const test::Folder folder;
  Engine engine(in_folder(folder.path()));
  release(engine.get_kernel(kConfig, nullptr, Effort::compile));
  engine.tune(kConfig, kShape, nullptr, {});
  const auto run = [&](const std::string& operation, const std::string& argument = "") {
    return json::parse(cache_report(engine, operation, argument));
  };
  CHECK(contains(run("path")["kernels"]["path"], folder.path()));
  const json list = run("ls");
  REQUIRE(!list["kernels"].empty());
  CHECK(list["tuning"].size() == 1);
  CHECK(list["tuning"][0]["trials"] > 0);
  const std::string key = list["kernels"][0]["key"];
  CHECK(run("show", key.substr(0, 10))["kernels"].size() == 1);
  CHECK(run("verify")["bad"] == 0);
  CHECK(run("verify")["good"].get<std::size_t>() == list["kernels"].size());
  const std::string file = folder / "export.jsonl";
  CHECK(run("export", file)["kernels"].get<std::size_t>() == list["kernels"].size());
  CHECK(run("prune", "0")["dropped"].get<std::size_t>() == list["kernels"].size());
  CHECK(run("ls")["kernels"].empty());
  const std::string winners = folder / "winners.jsonl";
  CHECK(run("export-decisions", winners) == json{{"decisions", 1}, {"device", "fake device"}});
  CHECK(run("import", winners)["decisions"]["known"] == 1);
  const json imported = run("import", file);
  CHECK(imported["kernels"]["added"].get<std::size_t>() == list["kernels"].size());
  CHECK(imported["tuning"]["added"] == 0);
  CHECK(run("ls")["kernels"].size() == list["kernels"].size());
}

TEST_CASE("operations that make no sense are refused by name") {
  fresh_machine();
  const test::Folder folder;
  Engine engine(in_memory());
  const std::vector<std::tuple<std::string, std::string, Status, std::string>> table = {
      {"clear", "", Status::bad_argument, "unknown operation 'clear'"},
      {"show", "", Status::bad_argument, "begins with ''"},
      {"show", "zz", Status::bad_argument, "'zz'"},
      {"prune", "many", Status::bad_argument, "'many'"},
      {"prune", "-1", Status::bad_argument, "'-1'"},
      {"export", "/nonexistent/file", Status::io_error, "/nonexistent/file"},
      {"import", "/nonexistent/file", Status::io_error, "/nonexistent/file"}};
  for (const auto& [operation, argument, status, part] : table) {
    const Error error =
        error_of([&, &o = operation, &a = argument] { cache_report(engine, o, a); });
    INFO(error.message);
    CHECK(error.status == status);
    CHECK(contains(error.message, part));
  }
  test::write_file(folder / "empty", "");
  CHECK(contains(error_of([&] { cache_report(engine, "import", folder / "empty"); }).message,
                 "is empty"));
}
