#include "cli/config_flags.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>

#include "cli/console.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

constexpr const char* kGroup = "Config";
constexpr std::int64_t kMostInt = std::int64_t{1} << 40;  // the library's own limits are lower
constexpr std::size_t kMostConfigBytes = 1 << 20;

// The text that --config means: JSON as it is, "-" for standard input, else a file.
std::string config_text(const std::string& given) {
  if (given.find_first_not_of(" \t\n") != std::string::npos &&
      given[given.find_first_not_of(" \t\n")] == '{')
    return given;
  std::ifstream file;
  if (given != "-") {
    file.open(given, std::ios::binary);
    if (!file)
      throw Error(Exit::bad_input,
                  fmt::format("--config: cannot read the file '{}'; expected a file "
                              "with a JSON object, or the object itself",
                              given));
  }
  std::istream& in = given == "-" ? std::cin : file;
  std::string text(kMostConfigBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMostConfigBytes)
    bad_value("--config", given, fmt::format("at most {} bytes of JSON", kMostConfigBytes));
  return text;
}

Json parse_config(const std::string& given) {
  const std::string text = config_text(given);
  try {
    Json object = Json::parse(text);
    if (!object.is_object()) bad_value("--config", given, "a JSON object");
    return object;
  } catch (const Json::exception& error) {
    throw Error(Exit::bad_input,
                fmt::format("--config: given '{}'; not JSON: {}", given, error.what()));
  }
}

// JSON has no infinity or NaN; the library takes them as text and refuses them by name.
Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

}  // namespace

void ConfigFlags::add_to(CLI::App& command) {
  const auto option = [&](const char* name, const char* type, std::optional<std::string>& value,
                          const char* about) {
    command.add_option(name, value, about)->group(kGroup)->type_name(type);
  };
  option("--config", "JSON", config,
         "a Config as JSON, or a file with one ('-': standard input); flags go before it");
  option("--direction", "NAME", direction,
         "forward, or backward: the gradients of q, k and v (default forward)");
  option("--dtype", "NAME", dtype, "fp16, bf16, fp32 (default bf16)");
  option("--head-dim", "N", head_dim, "of queries and keys: 8..256 in steps of 8");
  option("--head-dim-v", "N", head_dim_v, "of values and outputs (default: that of queries)");
  option("--mask", "MASK", mask, "none, causal, window:LEFT,RIGHT (-1: open), blocks[:FILE]");
  option("--dropout", "P", dropout, "probability of dropping a weight, from 0 to below 1");
  option("--seed", "N", seed, "of the dropout bits (default 0); only `run` and `check` use it");
  option("--softmax-scale", "X", softmax_scale,
         "factor on the scores (default 1 / sqrt(head_dim))");
  option("--softcap", "X", softcap,
         "caps each score s: X * tanh(s / X), X above 0 (default: no cap)");
  option("--target", "NAME", target,
         "cpu, cuda, cpu:avx512, sm_90a, ... (default: the best device present)");
  option("--schedule", "KNOBS", schedule, "pins the tile sizes, e.g. q128.kv64.w4.st2.b2");
  command
      .add_flag("--alibi", alibi,
                "adds slope[head] * (kv - q) to each score; `run` takes --alibi-slopes")
      ->group(kGroup);
  command
      .add_flag("--deterministic", deterministic,
                "the same bits on every run: no sum in the order of arrival")
      ->group(kGroup);
}

ConfigInput read_config(const ConfigFlags& flags) {
  ConfigInput input;
  Json& config = input.config;
  if (flags.config) config = parse_config(*flags.config);
  if (flags.direction) config["direction"] = *flags.direction;
  if (flags.dtype) config["dtype"] = *flags.dtype;
  if (flags.head_dim) config["head_dim"] = int_value("--head-dim", *flags.head_dim, 0, 1 << 20);
  if (flags.head_dim_v)
    config["head_dim_v"] = int_value("--head-dim-v", *flags.head_dim_v, 0, 1 << 20);
  if (flags.mask) config["mask"] = *flags.mask;
  if (flags.dropout) config["dropout"] = number(real_value("--dropout", *flags.dropout));
  if (flags.softmax_scale)
    config["softmax_scale"] = number(real_value("--softmax-scale", *flags.softmax_scale));
  if (flags.softcap) config["softcap"] = number(real_value("--softcap", *flags.softcap));
  if (flags.alibi) config["alibi"] = true;
  if (flags.target) config["target"] = *flags.target;
  if (flags.schedule) config["schedule"] = *flags.schedule;
  if (flags.deterministic) config["deterministic"] = true;
  if (flags.seed) input.seed = seed_value("--seed", *flags.seed);

  constexpr std::string_view kBlocks = "blocks:";
  if (config.contains("mask") && config["mask"].is_string()) {
    const std::string mask = config["mask"];
    if (mask.starts_with(kBlocks)) {
      input.blocks_file = mask.substr(kBlocks.size());
      if (input.blocks_file.empty()) bad_value("--mask", mask, "a file after 'blocks:'");
      config["mask"] = "blocks";
    }
  }
  return input;
}

void note_unused_blocks(const Context& context, const ConfigInput& input) {
  if (input.blocks_file.empty()) return;
  note(context,
       fmt::format(
           "{} is not read: only `run` takes the blocks themselves; here one block of 128 x 128 "
           "in four is visible",
           input.blocks_file));
}

void ShapeFlags::add_to(CLI::App& command) {
  const auto option = [&](const char* name, std::optional<std::string>& value, const char* about) {
    command.add_option(name, value, about)->group("Shape")->type_name("N");
  };
  option("--batch", batch, "batch entries");
  option("--heads", heads, "query heads");
  option("--heads-kv", heads_kv, "key heads (default: as many as query heads)");
  option("--seq", seq, "length of queries and keys");
  option("--seq-q", seq_q, "length of queries");
  option("--seq-kv", seq_kv, "length of keys");
}

std::optional<flashwright_shape> read_shape(const ShapeFlags& flags) {
  if (!flags.batch && !flags.heads && !flags.heads_kv && !flags.seq && !flags.seq_q &&
      !flags.seq_kv)
    return std::nullopt;
  if (flags.seq && (flags.seq_q || flags.seq_kv))
    bad_value("--seq", *flags.seq, "either --seq, or --seq-q and --seq-kv");
  const auto read = [](const char* flag, const std::optional<std::string>& text, std::int64_t least,
                       std::int64_t fallback) {
    return text ? int_value(flag, *text, least, kMostInt) : fallback;
  };
  flashwright_shape shape{};
  shape.batch = read("--batch", flags.batch, 1, 1);
  shape.heads_q = read("--heads", flags.heads, 1, 16);
  shape.heads_kv = read("--heads-kv", flags.heads_kv, 1, shape.heads_q);
  const std::int64_t seq = read("--seq", flags.seq, 0, 4096);
  shape.seq_q =
      read("--seq-q", flags.seq_q, 0, flags.seq_kv ? read("--seq-kv", flags.seq_kv, 0, seq) : seq);
  shape.seq_kv = read("--seq-kv", flags.seq_kv, 0, shape.seq_q);
  return shape;
}

}  // namespace cli
