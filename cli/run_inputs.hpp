// The inputs of `flashwright run`: arrays from files, converted to the element type of the computation,
// and the Config and shape that follow from them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/config_flags.hpp"
#include "cli/device_memory.hpp"
#include "cli/files.hpp"

namespace cli {

struct RunFiles {
  std::string q, k, v, alibi_slopes;
  std::string o, lse, d_o, d_lse;  // that a backward run reads
  std::string block_size = "128,128";
};

using BlocksPointer = std::unique_ptr<flashwright_blocks, decltype(&flashwright_blocks_free)>;

struct RunInputs {
  ConfigInput config;  // with dtype and head dims filled in
  flashwright::DType dtype = flashwright::DType::fp32;
  Tensor q, k, v;
  std::string output_type;  // of o.npy: "<f4", "<f2", "<u2"
  BlocksPointer blocks{nullptr, &flashwright_blocks_free};
  std::optional<Tensor> alibi_slopes;
  Tensor o, lse;  // read by a backward run when both files were given; otherwise to be written
  bool forward_given = false;
  std::optional<Tensor> d_o, d_lse;  // read
  std::optional<Tensor> dq, dk, dv;  // to be written
  std::uint64_t offset = 0;
  std::optional<std::int64_t> q_position;
  std::vector<std::string> notes;

  // What the kernel should be fast for; nothing when an extent is 0.
  std::optional<flashwright_shape> shape() const;
  bool backward() const;
  // Of the forward pass whose gradients are taken.
  std::string forward_config() const;
};

// Throws Error(bad_input) for files that cannot be read and flags that contradict them.
RunInputs read_inputs(const RunFiles& files, ConfigInput config, const ShapeFlags& shape);

}  // namespace cli
