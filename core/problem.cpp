#include "core/problem.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/mask.hpp"

namespace flashwright {
namespace {

using nlohmann::json;

constexpr const char* kFields =
    "direction, dtype, head_dim, head_dim_v, mask, dropout, softmax_scale, softcap, alibi, "
    "deterministic, target, schedule";

[[noreturn]] void bad_field(const std::string& name, const json& value, const char* allowed) {
  throw Error(Status::bad_argument,
              fmt::format("config: {} is {}; allowed: {}", name, value.dump(), allowed));
}

std::string text_of(const std::string& name, const json& value) {
  if (!value.is_string()) bad_field(name, value, "a text");
  return value.get<std::string>();
}

int int_of(const std::string& name, const json& value) {
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
      value.get<std::int64_t>() > (1 << 20))
    bad_field(name, value, "a whole number that is not negative");
  return value.get<int>();
}

bool bool_of(const std::string& name, const json& value) {
  if (!value.is_boolean()) bad_field(name, value, "true, false");
  return value.get<bool>();
}

// Non-finite numbers arrive as text, since JSON cannot write them; their faults are reported by
// config_faults together with all others.
double number_of(const std::string& name, const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    if (text == "inf" || text == "-inf" || text == "nan" || text == "-nan") return std::stod(text);
  }
  bad_field(name, value, "a number");
}

void read_field(Config& config, const std::string& name, const json& value) {
  if (name == "direction") {
    config.direction = text_of(name, value);
  } else if (name == "dtype") {
    const auto dtype = parse_dtype(text_of(name, value));
    if (!dtype) bad_field(name, value, dtype_names());
    config.dtype = *dtype;
  } else if (name == "head_dim") {
    config.head_dim = int_of(name, value);
  } else if (name == "head_dim_v") {
    config.head_dim_v = int_of(name, value);
  } else if (name == "mask") {
    config.mask = parse_mask(text_of(name, value));
  } else if (name == "dropout") {
    config.dropout = number_of(name, value);
  } else if (name == "softmax_scale") {
    config.softmax_scale = number_of(name, value);
  } else if (name == "softcap") {
    config.softcap = number_of(name, value);
  } else if (name == "alibi") {
    config.alibi = bool_of(name, value);
  } else if (name == "deterministic") {
    config.deterministic = bool_of(name, value);
  } else if (name == "target") {
    config.target = text_of(name, value);
  } else if (name == "schedule") {
    config.schedule = text_of(name, value);
  } else {
    throw Error(Status::bad_argument,
                fmt::format("config: unknown field '{}'; known: {}", name, kFields));
  }
}

std::string head_dim_fault(const char* name, int value) {
  if (value >= kMinHeadDim && value <= kMaxHeadDim && value % kHeadDimStep == 0) return {};
  const int nearest =
      std::min(kMaxHeadDim, (std::max(value, 1) + kHeadDimStep - 1) / kHeadDimStep * kHeadDimStep);
  return fmt::format("{} is {}; allowed: {}..{} in steps of {} (nearest: {})", name, value,
                     kMinHeadDim, kMaxHeadDim, kHeadDimStep, nearest);
}

}  // namespace

const char* to_string(Direction direction) {
  constexpr const char* kNames[] = {"forward", "backward"};
  return kNames[static_cast<int>(direction)];
}

std::string to_string(const Problem& problem) {
  std::string text = fmt::format("{} {} d{}", to_string(problem.direction),
                                 to_string(problem.dtype), problem.head_dim);
  if (problem.head_dim_v != problem.head_dim) text += fmt::format("/{}", problem.head_dim_v);
  text += fmt::format(" {}", to_string(problem.mask));
  if (problem.dropout) text += " dropout";
  if (problem.softcap) text += " softcap";
  if (problem.alibi) text += " alibi";
  if (problem.negative_scale) text += " negative scale";
  if (problem.deterministic) text += " deterministic";
  if (problem.algorithm == Algorithm::unfused) text += " unfused";
  return text + " " + to_string(problem.target);
}

Config config_from_json(std::string_view text) {
  json object;
  try {
    object = json::parse(text);
  } catch (const json::exception& error) {
    throw Error(Status::bad_argument, fmt::format("config: not JSON: {}", error.what()));
  }
  if (!object.is_object())
    throw Error(Status::bad_argument, fmt::format("config: {} is no JSON object", object.dump()));
  Config config;
  for (const auto& [name, value] : object.items()) read_field(config, name, value);
  return config;
}

std::vector<std::string> config_faults(const Config& config) {
  std::vector<std::string> faults;
  const auto add = [&faults](std::string fault) {
    if (!fault.empty()) faults.push_back(std::move(fault));
  };
  if (config.direction != to_string(Direction::forward) &&
      config.direction != to_string(Direction::backward))
    add(fmt::format("direction is '{}'; allowed: forward, backward", config.direction));
  add(head_dim_fault("head_dim", config.head_dim));
  if (config.head_dim_v != 0) add(head_dim_fault("head_dim_v", config.head_dim_v));
  if (!(config.dropout >= 0 && config.dropout < 1))
    add(fmt::format("dropout is {}; allowed: from 0 to below 1", config.dropout));
  if (config.softmax_scale && !std::isfinite(*config.softmax_scale))
    add(fmt::format("softmax_scale is {}; allowed: any finite number", *config.softmax_scale));
  if (config.softcap && !(*config.softcap >= kMinSoftcap && *config.softcap <= kMaxSoftcap))
    add(fmt::format("softcap is {}; allowed: from {} to {}; without a cap it is left out",
                    *config.softcap, kMinSoftcap, kMaxSoftcap));
  return faults;
}

Problem normalise(const Config& config, const Target& target) {
  const std::vector<std::string> faults = config_faults(config);
  if (!faults.empty())
    throw Error(Status::bad_argument, fmt::format("config: {}", fmt::join(faults, "; ")));
  Problem problem;
  const bool backward = config.direction == to_string(Direction::backward);
  if (backward) problem.direction = Direction::backward;
  problem.dtype = config.dtype;
  problem.head_dim = config.head_dim;
  problem.head_dim_v = config.head_dim_v == 0 ? config.head_dim : config.head_dim_v;
  problem.mask = config.mask.kind;
  problem.dropout = config.dropout > 0;
  problem.softcap = config.softcap.has_value();
  problem.alibi = config.alibi;
  const bool gpu = target.backend == BackendKind::cuda;
  problem.negative_scale =
      gpu && !backward && !problem.softcap && config.softmax_scale.value_or(1) < 0;
  problem.deterministic = gpu && backward && config.deterministic;
  problem.target = target;
  return problem;
}

}  // namespace flashwright
