#include "core/source.hpp"

#include <algorithm>
#include <array>

#include <charconv>

namespace flashwright {

const std::vector<std::string>& rule_variables() {
  static const std::vector<std::string> names = {
      "batch",    "heads_q", "heads_kv", "seq_q", "seq_kv", "query_blocks",
      "block_q",   // of the block lists, or 0
      "block_kv",  // the same
      "want_dq",   // 1 when a backward launch asks for the gradient, 0 otherwise
      "want_dk",  "want_dv",
      "packed",  // query heads of a group that a tile joins, where a kernel does so
  };
  return names;
}

const char* to_string(Binary::Kind kind) {
  constexpr const char* kNames[] = {"cubin", "ptx", "object"};
  return kNames[static_cast<int>(kind)];
}

std::string rewrite_lines(const Source& source, const std::string& message) {
  const std::string marker = source.name + "(";
  std::string out;
  std::size_t at = 0;
  while (true) {
    const std::size_t found = message.find(marker, at);
    if (found == std::string::npos) break;
    const char* const digits = message.data() + found + marker.size();
    int line = 0;
    const auto [end, error] = std::from_chars(digits, message.data() + message.size(), line);
    const bool known = error == std::errc{} && *end == ')' && line >= 1 &&
                       line <= static_cast<int>(source.lines.size());
    out.append(message, at, found - at);
    if (!known) {
      out += marker;
      at = found + marker.size();
      continue;
    }
    const LineOrigin& origin = source.lines[static_cast<std::size_t>(line - 1)];
    if (origin.file.empty()) {
      out += source.name + ":" + std::to_string(line);
    } else {
      out += origin.file + ":" + std::to_string(origin.line) + " (emitted line " +
             std::to_string(line) + ")";
    }
    at = static_cast<std::size_t>(end + 1 - message.data());
  }
  return out + message.substr(at);
}

namespace {

// What a backward launch writes, where it is wanted.
bool is_gradient(Param map) {
  return map == Param::dq_map || map == Param::dk_map || map == Param::dv_map;
}

}  // namespace

TensorMapSpec map_spec(const BoxRule& rule, const ParamValues& values) {
  struct Row {
    Param map, data, batch_stride, row_stride, head_stride, heads, seq;
  };
  constexpr std::array<Row, 8> kRows = {{
      {Param::q_map, Param::q, Param::q_batch_stride, Param::q_row_stride, Param::q_head_stride,
       Param::heads_q, Param::seq_q},
      {Param::k_map, Param::k, Param::k_batch_stride, Param::k_row_stride, Param::k_head_stride,
       Param::heads_kv, Param::seq_kv},
      {Param::v_map, Param::v, Param::v_batch_stride, Param::v_row_stride, Param::v_head_stride,
       Param::heads_kv, Param::seq_kv},
      {Param::o_map, Param::o, Param::o_batch_stride, Param::o_row_stride, Param::o_head_stride,
       Param::heads_q, Param::seq_q},
      {Param::d_o_map, Param::d_o, Param::d_o_batch_stride, Param::d_o_row_stride,
       Param::d_o_head_stride, Param::heads_q, Param::seq_q},
      {Param::dq_map, Param::dq, Param::dq_batch_stride, Param::dq_row_stride,
       Param::dq_head_stride, Param::heads_q, Param::seq_q},
      {Param::dk_map, Param::dk, Param::dk_batch_stride, Param::dk_row_stride,
       Param::dk_head_stride, Param::heads_kv, Param::seq_kv},
      {Param::dv_map, Param::dv, Param::dv_batch_stride, Param::dv_row_stride,
       Param::dv_head_stride, Param::heads_kv, Param::seq_kv},
  }};
  const Row& row = *std::find_if(kRows.begin(), kRows.end(),
                                 [&](const Row& candidate) { return candidate.map == rule.map; });
  const auto number = [&](Param param) { return static_cast<std::int64_t>(values.at(param)); };
  TensorMapSpec spec;
  spec.dtype = rule.dtype;
  spec.rank = 4;
  spec.base = reinterpret_cast<void*>(values.at(row.data));
  spec.shape = {rule.head_dim, number(row.seq), number(row.heads), number(Param::batch), 0};
  const std::array<Param, 3> strides = {row.row_stride, row.head_stride, row.batch_stride};
  for (std::size_t i = 0; i < strides.size(); ++i) {
    constexpr std::int64_t kAnyStride = 16;  // of a dimension with one element
    const std::int64_t bytes = number(strides[i]) * info(rule.dtype).bytes;
    spec.stride_bytes[i] = spec.shape[i + 1] == 1 ? kAnyStride : bytes;
  }
  spec.box = {rule.columns, rule.packed ? rule.rows >> number(Param::pack_shift) : rule.rows, 1, 1,
              0};
  spec.swizzle = rule.swizzle;
  return spec;
}

void fill_params(const ParamLayout& params, const std::vector<BoxRule>& boxes, ParamValues values,
                 MapEncoder encode, const void* context, unsigned char* block) {
  const auto left_out = [](const BoxRule& rule, const TensorMapSpec& spec) {
    return spec.base == nullptr && is_gradient(rule.map);
  };
  const bool addressable = std::all_of(boxes.begin(), boxes.end(), [&](const BoxRule& rule) {
    const TensorMapSpec spec = map_spec(rule, values);
    return left_out(rule, spec) || tensor_map_fault(spec).empty();
  });
  if (!boxes.empty()) values.set_int(Param::aligned, addressable ? 1 : 0);
  params.fill(values, block);
  if (!addressable) return;
  for (const BoxRule& rule : boxes) {
    const TensorMapSpec spec = map_spec(rule, values);
    if (left_out(rule, spec)) continue;
    for (const ParamLayout::Field& field : params.fields())
      if (field.param == rule.map) encode(spec, block + field.offset, context);
  }
}

}  // namespace flashwright
