#include "cli/run_inputs.hpp"

#include <fmt/format.h>

#include <array>

#include "cli/npy.hpp"
#include "cli/values.hpp"

namespace cli {
namespace {

using flashwright::DType;

constexpr const char* kTypes =
    "'<f4' (fp32), '<f2' (fp16), or with --dtype bf16 the bits as '<u2' or '|V2'";

struct Input {
  std::string label;  // "--q q.npy"
  NpyArray array;
  DType dtype = DType::fp32;  // of the file
};

std::optional<DType> wanted_dtype(const Json& config) {
  if (!config.contains("dtype")) return std::nullopt;
  for (const DType dtype : {DType::fp16, DType::bf16, DType::fp32})
    if (config["dtype"] == flashwright::to_string(dtype)) return dtype;
  bad_value(
      "--dtype",
      config["dtype"].is_string() ? config["dtype"].get<std::string>() : config["dtype"].dump(),
      "fp16, bf16, fp32");
}

Input read_input(const std::string& flag, const std::string& path, std::optional<DType> wanted) {
  Input input{flag + " " + path, read_npy(flag, path, {"<f4", "<f2", "<u2", "|V2", "<V2"}, kTypes)};
  const NpyArray& array = input.array;
  if (array.type == "<f4") {
    input.dtype = DType::fp32;
  } else if (array.type == "<f2") {
    input.dtype = DType::fp16;
  } else if (wanted == DType::bf16) {
    input.dtype = DType::bf16;
  } else {
    throw Error(Exit::bad_input, fmt::format("{}: the element type is '{}'; expected {}",
                                             input.label, array.type, kTypes));
  }
  if (array.shape.size() != 4)
    throw Error(
        Exit::bad_input,
        fmt::format("{}: the shape is {}; expected four dimensions: (batch, seq, heads, dim)",
                    input.label, shape_text(array.shape.data(), array.shape.size())));
  return input;
}

// The element type of the computation: --dtype, else that of the files.
DType choose_dtype(const std::vector<Input>& inputs, std::optional<DType> wanted) {
  if (wanted) return *wanted;
  for (const Input& input : inputs)
    if (input.dtype != inputs[0].dtype)
      throw Error(
          Exit::bad_input,
          fmt::format("{} is {}, {} is {}; expected one element type, or --dtype to convert to",
                      inputs[0].label, flashwright::to_string(inputs[0].dtype), input.label,
                      flashwright::to_string(input.dtype)));
  return inputs[0].dtype;
}

Tensor tensor_of(Input& input, DType dtype, std::vector<std::string>& notes) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = input.array.shape;
  if (input.dtype == dtype) {
    tensor.host = std::move(input.array.bytes);
    return tensor;
  }
  tensor.host = HostBuffer(tensor.elements() * bytes_of(dtype));
  convert(input.dtype, input.array.bytes.data(), dtype, tensor.host.data(), tensor.elements());
  notes.push_back(fmt::format("{} holds {}, converted to {}", input.label,
                              flashwright::to_string(input.dtype), flashwright::to_string(dtype)));
  input.array.bytes = HostBuffer();
  return tensor;
}

// A head dim comes from the file; one that was given must be the same. 0 means "not given", as in a Config.
void set_head_dim(Json& config, const char* field, const std::string& label, std::int64_t found) {
  const Json given = config.value(field, Json());
  if (!given.is_null() && given != 0 && given != found)
    throw Error(Exit::bad_input, fmt::format("{}: given {}; {} has {} in its last dimension", field,
                                             given.dump(), label, found));
  config[field] = found;
}

void compare_shape(const ShapeFlags& flags, const Tensor& q, const Tensor& k) {
  const auto compare = [](const char* flag, const std::optional<std::string>& given,
                          std::int64_t found, const char* where) {
    if (given && int_value(flag, *given, 0, std::int64_t{1} << 40) != found)
      bad_value(flag, *given,
                fmt::format("{}, as {} has it, or nothing: the shape comes from the files", found,
                            where));
  };
  compare("--batch", flags.batch, q.shape[0], "--q");
  compare("--heads", flags.heads, q.shape[2], "--q");
  compare("--heads-kv", flags.heads_kv, k.shape[2], "--k");
  compare("--seq", flags.seq, q.shape[1], "--q");
  compare("--seq", flags.seq, k.shape[1], "--k");
  compare("--seq-q", flags.seq_q, q.shape[1], "--q");
  compare("--seq-kv", flags.seq_kv, k.shape[1], "--k");
}

std::array<std::int64_t, 2> block_size(const std::string& text) {
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos) bad_value("--block-size", text, "two lengths, e.g. 128,128");
  constexpr std::int64_t kMost = 1 << 20;
  return {int_value("--block-size", text.substr(0, comma), 1, kMost),
          int_value("--block-size", text.substr(comma + 1), 1, kMost)};
}

// The element mask in a file, as block lists.
BlocksPointer read_blocks(const std::string& path, const std::string& size, const Tensor& q,
                          const Tensor& k) {
  const NpyArray mask =
      read_npy("--mask", path, {"|b1", "|u1", "<b1", "<u1"}, "'|b1' (bool) or '|u1' (uint8)");
  std::vector<std::int64_t> shape = mask.shape;
  const std::int64_t batch = q.shape[0], heads = q.shape[2], seq_q = q.shape[1],
                     seq_kv = k.shape[1];
  if (shape.size() == 2) shape.insert(shape.begin(), 2, 1);
  const bool fits = shape.size() == 4 && (shape[0] == 1 || shape[0] == batch) &&
                    (shape[1] == 1 || shape[1] == heads) && shape[2] == seq_q && shape[3] == seq_kv;
  if (!fits)
    throw Error(Exit::bad_input,
                fmt::format("--mask {}: the shape is {}; expected ({}, {}) or ({}, {}, {}, {}), "
                            "as --q and --k have these lengths",
                            path, shape_text(mask.shape.data(), mask.shape.size()), seq_q, seq_kv,
                            batch == 1 ? "1" : fmt::format("1 or {}", batch),
                            heads == 1 ? "1" : fmt::format("1 or {}", heads), seq_q, seq_kv));
  const auto [block_q, block_kv] = block_size(size);
  flashwright_blocks* blocks = nullptr;
  flashwright::check(
      flashwright_blocks_from_mask(static_cast<const std::uint8_t*>(mask.bytes.data()), shape[0],
                                   shape[1], seq_q, seq_kv, block_q, block_kv, &blocks));
  return BlocksPointer(blocks, &flashwright_blocks_free);
}

// One number for each query, (batch, heads, seq); whether the shape fits is the library's to say.
Tensor read_sums(const char* flag, const std::string& path) {
  NpyArray array = read_npy(flag, path, {"<f4"}, "'<f4' (float32)");
  if (array.shape.size() != 3)
    throw Error(Exit::bad_input,
                fmt::format("{} {}: the shape is {}; expected (batch, heads, seq)", flag, path,
                            shape_text(array.shape.data(), array.shape.size())));
  Tensor sums;
  sums.dtype = DType::fp32;
  sums.shape = array.shape;
  sums.host = std::move(array.bytes);
  return sums;
}

// The slopes of the heads; whether the shape fits is the library's to say.
Tensor read_slopes(const std::string& path) {
  NpyArray array = read_npy("--alibi-slopes", path, {"<f4"}, "'<f4' (float32)");
  if (array.shape.empty() || array.shape.size() > 2)
    throw Error(
        Exit::bad_input,
        fmt::format("--alibi-slopes {}: the shape is {}; expected (heads) or (batch, heads)", path,
                    shape_text(array.shape.data(), array.shape.size())));
  Tensor slopes;
  slopes.dtype = DType::fp32;
  slopes.shape = array.shape;
  slopes.host = std::move(array.bytes);
  return slopes;
}

}  // namespace

std::optional<flashwright_shape> RunInputs::shape() const {
  const flashwright_shape shape = {q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1]};
  // The library takes any shape in a call, but as a hint only one that has something to compute.
  if (shape.batch < 1 || shape.heads_q < 1 || shape.heads_kv < 1 ||
      shape.heads_q % shape.heads_kv != 0)
    return std::nullopt;
  return shape;
}

bool RunInputs::backward() const {
  return config.config.contains("direction") && config.config["direction"] == "backward";
}

std::string RunInputs::forward_config() const {
  ConfigInput forward = config;
  for (const char* field : {"direction", "schedule"}) forward.config.erase(field);
  return forward.text();
}

RunInputs read_inputs(const RunFiles& files, ConfigInput config, const ShapeFlags& shape) {
  RunInputs out;
  out.config = std::move(config);
  Json& fields = out.config.config;
  if (out.config.mask() == "blocks" && out.config.blocks_file.empty())
    bad_value("--mask", "blocks", "blocks:FILE, a .npy with the element mask of this run");
  const std::optional<DType> wanted = wanted_dtype(fields);
  std::vector<Input> inputs;
  inputs.push_back(read_input("--q", files.q, wanted));
  inputs.push_back(read_input("--k", files.k, wanted));
  inputs.push_back(read_input("--v", files.v, wanted));
  if (out.backward()) inputs.push_back(read_input("--do", files.d_o, wanted));
  out.forward_given = out.backward() && !files.o.empty();
  if (out.forward_given) inputs.push_back(read_input("--o", files.o, wanted));
  out.dtype = choose_dtype(inputs, wanted);
  set_head_dim(fields, "head_dim", inputs[0].label, inputs[0].array.shape[3]);
  set_head_dim(fields, "head_dim_v", inputs[2].label, inputs[2].array.shape[3]);
  fields["dtype"] = flashwright::to_string(out.dtype);
  // fp32 holds every value of the other types: whoever gave fp32 gets it back.
  const bool widened = inputs[0].dtype == DType::fp32 || out.dtype == DType::fp32;
  out.output_type = widened ? "<f4" : out.dtype == DType::fp16 ? "<f2" : "<u2";
  out.q = tensor_of(inputs[0], out.dtype, out.notes);
  out.k = tensor_of(inputs[1], out.dtype, out.notes);
  out.v = tensor_of(inputs[2], out.dtype, out.notes);
  compare_shape(shape, out.q, out.k);
  if (out.backward()) out.d_o = tensor_of(inputs[3], out.dtype, out.notes);
  if (out.forward_given) {
    out.o = tensor_of(inputs[4], out.dtype, out.notes);
    out.lse = read_sums("--lse", files.lse);
  } else {
    out.o.dtype = out.dtype;
    out.o.shape = {out.q.shape[0], out.q.shape[1], out.q.shape[2], out.v.shape[3]};
    out.o.allocate();
    out.lse.shape = {out.q.shape[0], out.q.shape[2], out.q.shape[1]};
    out.lse.allocate();
  }
  if (!files.d_lse.empty()) out.d_lse = read_sums("--d-lse", files.d_lse);
  if (!out.config.blocks_file.empty())
    out.blocks = read_blocks(out.config.blocks_file, files.block_size, out.q, out.k);
  if (!files.alibi_slopes.empty()) {
    out.alibi_slopes = read_slopes(files.alibi_slopes);
    if (!fields.contains("alibi")) fields["alibi"] = true;
  }
  return out;
}

}  // namespace cli
