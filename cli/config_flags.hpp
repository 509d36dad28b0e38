// The flags that mirror a Config and a shape, and --config. What they may hold is the library's to say:
// here they are only turned into the JSON that it takes.
#pragma once

#include <optional>
#include <string>

#include "cli/context.hpp"

namespace cli {

struct ConfigFlags {
  std::optional<std::string> config, direction, dtype, head_dim, head_dim_v, mask, dropout, seed,
      softmax_scale, softcap, target, schedule;
  bool alibi = false, deterministic = false;

  void add_to(CLI::App& command);
};

struct ConfigInput {
  Json config = Json::object();
  std::string blocks_file;  // of --mask blocks:FILE
  std::uint64_t seed = 0;   // of the dropout bits

  // Bytes that are no UTF-8 are the library's to refuse, as part of some value.
  std::string text() const { return config.dump(-1, ' ', false, Json::error_handler_t::replace); }
  std::string mask() const { return config.value("mask", "none"); }
};

// Reads --config and puts the flags over it.
ConfigInput read_config(const ConfigFlags& flags);

// For commands that take --mask blocks:FILE like `run` but compute on made-up tensors.
void note_unused_blocks(const Context& context, const ConfigInput& input);

struct ShapeFlags {
  std::optional<std::string> batch, heads, heads_kv, seq, seq_q, seq_kv;

  void add_to(CLI::App& command);
};

// Nothing when no shape flag was given. Otherwise what is missing is 1 batch entry, 16 heads, as many
// key heads as heads, and equal lengths; without any length 4096.
std::optional<flashwright_shape> read_shape(const ShapeFlags& flags);

inline const flashwright_shape* pointer_to(const std::optional<flashwright_shape>& shape) {
  return shape ? &*shape : nullptr;
}

}  // namespace cli
