#include "api/reports.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "api/decisions.hpp"
#include "api/devices.hpp"
#include "core/device_profiles.hpp"
#include "core/env.hpp"
#include "core/error.hpp"
#include "core/traffic.hpp"
#include "core/version.hpp"
#include "generator/emit.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tuner/space.hpp"

namespace flashwright {
namespace {

using nlohmann::json;

json to_json(const Resources& r) {
  return {{"registers", r.registers},
          {"spill_bytes", r.spill_bytes},
          {"stack_bytes", r.stack_bytes},
          {"static_smem_bytes", r.static_smem_bytes},
          {"dynamic_smem_bytes", r.dynamic_smem_bytes}};
}

const char* type_name(ParamType type) {
  switch (type) {
    case ParamType::i32:
      return "i32";
    case ParamType::i64:
      return "i64";
    case ParamType::u32:
      return "u32";
    case ParamType::u64:
      return "u64";
    case ParamType::f32:
      return "f32";
    default:
      return "pointer";
  }
}

json plan_json(const LaunchPlan& plan) {
  json out;
  for (const LaunchStep& step : plan.steps)
    out["entries"].push_back({{"name", step.entry},
                              {"threads", step.threads},
                              {"smem_bytes", step.smem_bytes},
                              {"grid", to_string(*step.grid)},
                              {"early", step.early}});
  out["workspace_bytes"] = plan.workspace == nullptr ? "0" : to_string(*plan.workspace);
  for (const ParamLayout::Field& field : plan.params.fields()) {
    const ParamInfo& row = info(field.param);
    out["params"].push_back({{"name", row.name},
                             {"type", type_name(row.type)},
                             {"offset", field.offset},
                             {"meaning", row.comment}});
  }
  out["param_bytes"] = plan.params.size();
  return out;
}

json decision_json(const Decision& d) {
  return {{"schedule", d.schedule}, {"default", d.baseline},    {"grade", to_string(d.grade)},
          {"gain", d.gain},         {"gain_low", d.gain_low},   {"gain_high", d.gain_high},
          {"noise", d.noise},       {"confident", d.confident}, {"tied", d.tied},
          {"measured", d.measured}, {"failed", d.failed}};
}

json selection_json(const Selection& selection) {
  json out = {{"schedule", to_string(selection.schedule)},
              {"chosen_by", to_string(selection.choice)}};
  if (selection.decision) {
    out["evidence"] = decision_json(*selection.decision);
    out["evidence_bucket"] = selection.bucket;
  }
  if (!selection.origin.empty()) out["shipped_from"] = selection.origin;
  if (!selection.passed_over.empty()) out["passed_over"] = selection.passed_over;
  return out;
}

json estimate_json(const Estimate& estimate) {
  return {{"threads", estimate.threads},
          {"smem_bytes", estimate.smem_bytes},
          {"registers", estimate.registers},
          {"time_us", estimate.time_us}};
}

json device_json(const DeviceInfo& device) {
  json out = json::parse(to_json(device));
  out["class"] = device_class(device);
  out["present"] = device.present;
  return out;
}

json status_json(const StoreStatus& status) {
  return {{"path", status.place()},
          {"writable", status.writable},
          {"trouble", status.trouble},
          {"variable", status.variable}};
}

json artifact_json(const ArtifactInfo& a) {
  return {{"key", to_hex(a.key)},      {"label", a.label},         {"target", to_string(a.target)},
          {"kind", to_string(a.kind)}, {"toolchain", a.toolchain}, {"bytes", a.bytes},
          {"compile_ms", a.compile_ms}};
}

json import_json(const ImportReport& report) {
  return {{"added", report.added},
          {"known", report.known},
          {"refused", report.refused},
          {"problems", report.problems}};
}

// An export holds the records of both stores, one after the other, each behind a header line.
struct ExportParts {
  std::stringstream kernels, tuning, decisions;
};
ExportParts split_export(std::istream& in) {
  ExportParts parts;
  std::stringstream* part = &parts.kernels;  // what has no header is refused there
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("{\"flashwright\":"))
      part = line.find(kDecisionRecords) != std::string::npos ? &parts.decisions
             : line.find("tuning") != std::string::npos       ? &parts.tuning
                                                              : &parts.kernels;
    *part << line << '\n';
  }
  return parts;
}

// The words of Choice for people.
std::string why(const Selection& selection) {
  switch (selection.choice) {
    case Choice::config:
      return "the Config pins it";
    case Choice::measured:
      return "it won a measured search on a device of this class for this bucket";
    case Choice::measured_near:
      return fmt::format("it won a measured search for the neighbouring bucket {}",
                         selection.bucket);
    case Choice::predicted:
      return "the model ranks it first; nothing was measured yet";
    case Choice::shipped:
      return fmt::format("shipped tuning result of {}", selection.origin);
    case Choice::by_default:
      return "nothing was tuned for this slot yet: it is the family's default";
  }
  return {};
}

// The alternatives: what was measured, each schedule by its longest measurement, and the model's order where
// nothing was.
void add_alternatives(Engine& engine, const Request& request, const Shape& shape, const Slot& slot,
                      json& out) {
  constexpr std::size_t kShown = 12;
  std::map<std::string, Trial> best;
  bool measured = false;
  for (const Trial& trial : engine.tuning().trials(slot)) {
    measured = measured || trial.status == TrialStatus::ok;
    const auto [place, is_new] = best.try_emplace(trial.schedule, trial);
    if (!is_new && trial.samples >= place->second.samples) place->second = trial;
  }
  if (!measured) {
    const SearchSpace space =
        search_space(*request.family, request.problem, request.device, shape, {}, 1);
    for (std::size_t i = 0; i < std::min(kShown, space.order.size()); ++i)
      out["alternatives"].push_back({{"schedule", to_string(space.order[i].schedule)},
                                     {"status", "legal"},
                                     {"model_us", space.order[i].estimate.time_us}});
    out["legal"] = space.legal;
    out["rejected"] = space.rejected;
    return;
  }
  std::vector<Trial> trials;
  for (auto& [schedule, trial] : best) trials.push_back(std::move(trial));
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    return std::pair(a.status != TrialStatus::ok, a.log_ratio) <
           std::pair(b.status != TrialStatus::ok, b.log_ratio);
  });
  for (std::size_t i = 0; i < std::min(kShown, trials.size()); ++i) {
    const Trial& trial = trials[i];
    json row = {{"schedule", trial.schedule}, {"status", to_string(trial.status)}};
    if (!trial.detail.empty()) row["detail"] = trial.detail;
    if (trial.status == TrialStatus::ok) {
      row["time_us"] = trial.median_ns * 1e-3;
      row["ratio_to_default"] = std::exp(trial.log_ratio);
      row["samples"] = trial.samples;
    }
    out["alternatives"].push_back(row);
  }
}

}  // namespace

std::string check_report(const Judge& verdict, const Arguments& arguments) {
  json out = {{"passed", verdict.passed()},
              {"rows", verdict.rows()},
              {"error", verdict.error()},
              {"tolerance", verdict.tolerance()},
              {"lse_error_over_bound", verdict.lse_excess()},
              {"finite", verdict.finite()}};
  if (!verdict.finite()) out["non_finite_inputs"] = non_finite_inputs(arguments);  // a likely cause
  return out.dump();
}

std::string check_gradients_report(const Config& config, const Problem& problem,
                                   const Arguments& args, std::int64_t max_rows) {
  const GradientSample sample(config, problem, args, RowStatistics::given, max_rows);
  json out = {{"passed", true}, {"finite", true}, {"gradients", json::object()}};
  for (const auto& [name, judge] : sample.verdicts(args)) {
    out["gradients"][name] = {{"passed", judge.passed()},
                              {"rows", judge.rows()},
                              {"error", judge.error()},
                              {"tolerance", judge.tolerance()},
                              {"finite", judge.finite()}};
    out["passed"] = out["passed"].get<bool>() && judge.passed();
    out["finite"] = out["finite"].get<bool>() && judge.finite();
  }
  if (!out["finite"].get<bool>()) out["non_finite_inputs"] = non_finite_inputs(args);
  return out.dump();
}

std::string compile_report(const Request& request, const Selection& selection, const Built& built) {
  json out = selection_json(selection);
  out["problem"] = to_string(request.problem);
  out["target"] = to_string(request.problem.target);
  out["family"] = request.family->name();
  out["key"] = to_hex(built.key);
  out["kind"] = to_string(built.binary.kind);
  out["toolchain"] = built.binary.toolchain;
  out["bytes"] = built.binary.bytes.size();
  out["resources"] = to_json(built.binary.resources);
  out["compile_ms"] = built.binary.compile_ms;
  out["from_store"] = built.from_store;
  out["warnings"] = nvrtc::parse_warnings(built.binary.log);
  return out.dump();
}

std::string tune_report(const Request& request, const Shape& shape, const TuneReport& done) {
  json out = json::parse(to_json(done));
  out["device"] = device_json(request.device);
  out["config"] = {{"dtype", to_string(request.problem.dtype)},
                   {"head_dim", request.problem.head_dim},
                   {"head_dim_v", request.problem.head_dim_v},
                   {"mask", to_string(request.config.mask)}};
  // What the winner and the default take of the device: why the one beats the other.
  if (done.decision)
    for (const std::string& schedule : {done.decision->schedule, done.decision->baseline})
      out["estimates"][schedule] = estimate_json(
          request.family->consider(request.problem, request.device, shape, parse_schedule(schedule))
              .estimate);
  return out.dump();
}

std::string describe(const Kernel& kernel) {
  const Built& built = kernel.code->built;
  json out = plan_json(built.source.plan);
  out["problem"] = to_string(kernel.code->problem);
  out["target"] = to_string(kernel.code->problem.target);
  out["device"] = kernel.code->device.name;
  out["device_index"] = kernel.code->device.index;
  out["family"] = kernel.code->family->name();
  out["language"] = built.source.language == Language::cuda ? "cuda" : "llvm_ir";
  out["selection"] = selection_json(kernel.selection);
  out["key"] = to_hex(built.key);
  out["kind"] = to_string(built.binary.kind);
  out["toolchain"] = built.binary.toolchain;
  out["resources"] = to_json(built.binary.resources);
  out["compile_ms"] = built.binary.compile_ms;
  out["from_store"] = built.from_store;
  return out.dump();
}

std::string explain(Engine& engine, std::string_view config, const Shape* shape) {
  const Request request = engine.prepare_request(config);
  const Shape wanted = shape != nullptr ? *shape : typical_shape();
  const Selection selection = engine.select(request, wanted);
  const Candidate candidate =
      request.family->consider(request.problem, request.device, wanted, selection.schedule);
  json out = selection_json(selection);
  out["problem"] = to_string(request.problem);
  out["shape"] = to_string(wanted);
  out["device"] = device_json(request.device);
  out["family"] = request.family->name();
  out["why"] = why(selection);
  if (const auto slow = request.family->slow_launches(); !slow.empty()) out["slow"] = slow;
  const Slot slot = make_slot(request.problem, request.device, wanted);
  out["slot"] = to_string(slot);
  out["estimate"] = estimate_json(candidate.estimate);
  out["tensor_bytes"] = tensor_bytes(request.problem, wanted);
  if (const auto bytes = request.family->traffic_bytes(request.problem, selection.schedule, wanted))
    out["traffic_bytes"] = *bytes;
  Backend& backend = backend_for(request.problem.target.backend);
  Built built = emit_candidate(*request.family, request.problem, selection.schedule, backend);
  out["key"] = to_hex(built.key);
  out["in_store"] = built.key == built.base ? fetch(built, engine.artifacts())
                                            : engine.artifacts().contains(built.key);
  add_alternatives(engine, request, wanted, slot, out);
  return out.dump();
}

std::string normalised(Engine& engine, std::string_view text) {
  const Request request = engine.prepare_request(text);
  const Config& c = request.config;
  json out = {{"direction", c.direction},
              {"dtype", to_string(c.dtype)},
              {"head_dim", c.head_dim},
              {"head_dim_v", request.problem.head_dim_v},
              {"mask", to_string(c.mask)},
              {"dropout", drop_threshold(c.dropout) / 256.0},  // the probability that is realised
              {"softmax_scale", softmax_scale(c)},
              {"alibi", c.alibi},
              {"deterministic", c.deterministic},
              {"target", to_string(request.problem.target)},
              {"schedule", c.schedule}};
  if (c.softcap) out["softcap"] = *c.softcap;
  return out.dump();
}

std::string doctor(Engine& engine) {
  json out;
  out["version"] = kVersion;
  out["driver"] = {{"version", cuda::version()}, {"missing", cuda::missing()}};
  out["nvrtc"] = {{"missing", nvrtc::missing()}};
  if (nvrtc::missing().empty()) {
    const nvrtc::Identity& id = nvrtc::identity();
    out["nvrtc"]["version"] = fmt::format("{}.{}", id.version.first, id.version.second);
    out["nvrtc"]["path"] = id.path;
    out["nvrtc"]["architectures"] = id.architectures;
  }
  out["devices"] = json::array();
  for (const BackendKind kind : {BackendKind::cuda, BackendKind::cpu})
    for (const DeviceInfo& device : present_devices(kind)) {
      json row = json::parse(to_json(device));
      row["class"] = device_class(device);
      out["devices"].push_back(row);
    }
  try {
    Backend& cpu = backend_for(BackendKind::cpu);
    out["cpu"] = {{"missing", cpu.device_missing()},
                  {"toolchain", cpu.toolchain({BackendKind::cpu, host_cpu_rung()})}};
  } catch (const Error& error) {
    out["cpu"] = {{"missing", error.message}};
  }
  out["stores"] = {{"kernels", status_json(engine.artifacts().status())},
                   {"tuning", status_json(engine.tuning().status())}};
  out["stores"]["kernels"]["bytes"] = engine.artifacts().total_bytes();
  out["stores"]["kernels"]["max_bytes"] = engine.artifacts().max_bytes();
  for (const env::Info& variable : env::variables())
    out["environment"].push_back({{"name", variable.name},
                                  {"value", env::get(variable.id)},
                                  {"default", variable.default_text},
                                  {"meaning", variable.meaning}});
  out["unknown_variables"] = env::unknown();
  out["known_devices"] = profile_names();
  return out.dump();
}

namespace {

json cache_path(Engine& engine, const std::string&) {
  return {{"kernels", status_json(engine.artifacts().status())},
          {"tuning", status_json(engine.tuning().status())}};
}

json cache_ls(Engine& engine, const std::string&) {
  json out = {{"kernels", json::array()},
              {"tuning", json::array()},
              {"compiles", engine.artifacts().compiles()}};
  for (const ArtifactInfo& artifact : engine.artifacts().list())
    out["kernels"].push_back(artifact_json(artifact));
  for (const SlotSummary& slot : engine.tuning().list()) {
    json row = {{"slot", to_string(slot.slot)}, {"trials", slot.trials}};
    if (slot.decision) row["decision"] = decision_json(*slot.decision);
    out["tuning"].push_back(row);
  }
  return out;
}

json cache_show(Engine& engine, const std::string& key) {
  const std::vector<ArtifactInfo> found = engine.artifacts().find(key);
  if (found.empty() || key.empty())
    throw Error(Status::bad_argument,
                fmt::format("cache show: no kernel with a key that begins with '{}'", key));
  json out;
  for (const ArtifactInfo& artifact : found) out["kernels"].push_back(artifact_json(artifact));
  return out;
}

json cache_verify(Engine& engine, const std::string&) {
  const ArtifactStore::Verdict verdict = engine.artifacts().verify();
  return {{"good", verdict.good}, {"bad", verdict.bad}, {"file", verdict.file}};
}

json cache_prune(Engine& engine, const std::string& bytes) {
  std::int64_t keep_bytes = engine.artifacts().max_bytes();
  if (!bytes.empty()) {
    const auto [end, error] =
        std::from_chars(bytes.data(), bytes.data() + bytes.size(), keep_bytes);
    if (error != std::errc{} || *end != '\0' || keep_bytes < 0)
      throw Error(Status::bad_argument,
                  fmt::format("cache prune: given '{}'; expected a number of bytes", bytes));
  }
  return {{"dropped", engine.artifacts().prune(keep_bytes)},
          {"bytes", engine.artifacts().total_bytes()}};
}

// The file appears complete or not at all.
void write_export(const std::string& path, const std::function<void(std::ostream&)>& write) {
  const std::string part = path + ".new";
  std::ofstream file(part, std::ios::binary);
  write(file);
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0)
    throw Error(Status::io_error, fmt::format("cache export: cannot write '{}'", path));
}

json cache_export(Engine& engine, const std::string& path) {
  std::int64_t kernels = 0, records = 0;
  write_export(path, [&](std::ostream& file) {
    kernels = engine.artifacts().export_lines(file);
    records = engine.tuning().export_lines(file);
  });
  return {{"kernels", kernels}, {"tuning", records}};
}

json cache_export_decisions(Engine& engine, const std::string& path) {
  const DecisionFile decisions = decisions_to_export(engine);
  write_export(path, [&](std::ostream& file) { file << to_text(decisions); });
  return {{"decisions", decisions.decisions.size()}, {"device", decisions.device}};
}

json cache_import(Engine& engine, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(Status::io_error, fmt::format("cache import: cannot read '{}'", path));
  ExportParts parts = split_export(file);
  json out;
  if (parts.kernels.rdbuf()->in_avail() != 0)
    out["kernels"] = import_json(engine.artifacts().import_lines(parts.kernels));
  if (parts.tuning.rdbuf()->in_avail() != 0)
    out["tuning"] = import_json(engine.tuning().import_lines(parts.tuning));
  if (parts.decisions.rdbuf()->in_avail() != 0)
    out["decisions"] = import_json(engine.tuning().import_decisions(parts.decisions));
  if (out.is_null())
    throw Error(Status::bad_argument, fmt::format("cache import: '{}' is empty", path));
  return out;
}

struct CacheOperation {
  const char* name;
  json (*run)(Engine& engine, const std::string& argument);
};
constexpr CacheOperation kCacheOperations[] = {
    {"path", cache_path},     {"ls", cache_ls},
    {"show", cache_show},     {"verify", cache_verify},
    {"prune", cache_prune},   {"export", cache_export},
    {"import", cache_import}, {"export-decisions", cache_export_decisions}};

}  // namespace

std::string cache_report(Engine& engine, const std::string& operation,
                         const std::string& argument) {
  std::string known;
  for (const CacheOperation& one : kCacheOperations) {
    if (operation == one.name) return one.run(engine, argument).dump();
    known += known.empty() ? one.name : std::string(", ") + one.name;
  }
  throw Error(Status::bad_argument,
              fmt::format("cache: unknown operation '{}'; known: {}", operation, known));
}

}  // namespace flashwright
