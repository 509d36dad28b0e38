// What a user asks for: one attention problem, described by its element type, head dims, mask and
// options. `to_json` writes the text that every other entry of the library takes. Standard library
// only.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace flashwright {

enum class DType : std::uint8_t { fp16, bf16, fp32 };

inline const char* to_string(DType dtype) {
  constexpr const char* kNames[] = {"fp16", "bf16", "fp32"};
  return kNames[static_cast<int>(dtype)];
}

// Which keys a query may see. Query i sits at position p = i + q_position among the keys, where
// q_position is an argument of the launch (default seq_kv - seq_q, the "bottom-right" alignment).
//   causal  key j is visible when j <= p
//   window  key j is visible when p - left <= j <= p + right; -1 leaves that side open
//   blocks  the visible keys come as lists of blocks with the launch arguments
struct Mask {
  enum class Kind : std::uint8_t { none, causal, window, blocks };
  Kind kind = Kind::none;
  std::int64_t left = -1;
  std::int64_t right = -1;

  static Mask none() { return {}; }
  static Mask causal() { return {Kind::causal, -1, -1}; }
  static Mask window(std::int64_t left, std::int64_t right) { return {Kind::window, left, right}; }
  static Mask blocks() { return {Kind::blocks, -1, -1}; }
  bool operator==(const Mask&) const = default;
};

inline const char* to_string(Mask::Kind kind) {
  constexpr const char* kNames[] = {"none", "causal", "window", "blocks"};
  return kNames[static_cast<int>(kind)];
}

// The text form of a mask, as `--mask` and the JSON field "mask" take it: "window:1024,0".
inline std::string to_string(const Mask& mask) {
  if (mask.kind != Mask::Kind::window) return to_string(mask.kind);
  return "window:" + std::to_string(mask.left) + "," + std::to_string(mask.right);
}

// One attention problem. Only `head_dim` has no default.
struct Config {
  std::string direction = "forward";  // or "backward": the gradients of q, k and v
  DType dtype = DType::bf16;
  int head_dim = 0;    // of queries and keys: 8..256 in steps of 8
  int head_dim_v = 0;  // of values and outputs; 0 means head_dim
  Mask mask;
  double dropout = 0.0;  // probability of dropping a weight, in [0, 1); see docs/semantics.md
  std::optional<double> softmax_scale;  // factor on the scores; default 1 / sqrt(head_dim)
  std::optional<double> softcap;  // cap > 0: a score s becomes cap * tanh(s / cap); default: no cap
  bool alibi = false;             // adds slope[head] * (kv - q) to the scores; the slopes
                                  // are an argument of the launch
  bool deterministic = false;     // the same bits on every run: no sum in the order of arrival
  std::string target;             // "sm_90a", "cpu", ...; "" means the best device that is present
  std::string schedule;  // pins the knobs, e.g. "q128.kv64.w4.st2.b2"; "" lets the library choose
  bool operator==(const Config&) const = default;
};

// The JSON text of a Config. Fields that hold their default are left out, so equal Configs give
// equal texts and short ones.
inline std::string to_json(const Config& config) {
  std::string json;
  json.reserve(160);
  const auto field = [&json](const char* name, const std::string& value) {
    json += json.empty() ? "{\"" : ",\"";
    json += name;
    json += "\":";
    json += value;
  };
  const auto quoted = [](const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') out += '\\';
      if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out + "\"";
  };
  const auto number = [](double value) {
    char text[32];  // printf would follow the locale of the host program
    *std::to_chars(text, text + sizeof text - 1, value).ptr = '\0';
    // JSON has no NaN or infinity: as text they reach the library, which refuses them by name.
    return std::isfinite(value) ? std::string(text) : '"' + std::string(text) + '"';
  };
  field("dtype", quoted(to_string(config.dtype)));
  field("head_dim", std::to_string(config.head_dim));
  if (config.direction != "forward") field("direction", quoted(config.direction));
  if (config.head_dim_v != 0) field("head_dim_v", std::to_string(config.head_dim_v));
  if (config.mask != Mask{}) field("mask", quoted(to_string(config.mask)));
  if (config.dropout != 0.0) field("dropout", number(config.dropout));
  if (config.softmax_scale) field("softmax_scale", number(*config.softmax_scale));
  if (config.softcap) field("softcap", number(*config.softcap));
  if (config.alibi) field("alibi", "true");
  if (config.deterministic) field("deterministic", "true");
  if (!config.target.empty()) field("target", quoted(config.target));
  if (!config.schedule.empty()) field("schedule", quoted(config.schedule));
  return json + "}";
}

}  // namespace flashwright
