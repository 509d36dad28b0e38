#include "generator/compose.hpp"

#include <fmt/format.h>

#include "core/dtype.hpp"
#include "core/mask.hpp"
#include "core/score.hpp"
#include "core/version.hpp"
#include "generator/print_cuda.hpp"

namespace flashwright {
namespace {

void add(std::vector<Line>& lines, std::string text) { lines.push_back({std::move(text), {}}); }

// A comment, broken at spaces; what follows on is indented.
void add_wrapped(std::vector<Line>& lines, std::string text) {
  constexpr std::size_t kWidth = 96;
  std::string indent;
  while (indent.size() + text.size() > kWidth) {
    const std::size_t space = text.rfind(' ', kWidth - indent.size());
    add(lines, "// " + indent + text.substr(0, space));
    text.erase(0, space + 1);
    indent = "    ";
  }
  add(lines, "// " + indent + text);
}

// Code and comment in two columns. As in the formatter, comments line up with those of the lines
// directly above and below.
void add_aligned(std::vector<Line>& lines,
                 const std::vector<std::pair<std::string, std::string>>& rows) {
  for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    std::size_t width = 0;
    const bool commented = !rows[begin].second.empty();
    for (end = begin; end < rows.size() && !rows[end].second.empty() == commented; ++end)
      width = std::max(width, rows[end].first.size());
    for (std::size_t i = begin; i < end; ++i)
      add(lines, commented ? fmt::format("{:<{}}  // {}", rows[i].first, width, rows[i].second)
                           : rows[i].first);
  }
}

// Lines up the comments of printed constants again, after some of them were dropped.
void realign_constants(std::vector<Line>& lines) {
  constexpr std::string_view kComment = "  // ";
  const auto is_constant = [](const Line& line) {
    return line.origin.file.empty() && line.text.starts_with("constexpr ");
  };
  for (std::size_t begin = 0, end = 0; begin < lines.size(); begin = end) {
    std::vector<std::pair<std::string, std::string>> rows;
    for (end = begin; end < lines.size() && is_constant(lines[end]); ++end) {
      const std::string& text = lines[end].text;
      const std::size_t comment = text.find(kComment);
      const bool commented = comment != std::string::npos;
      rows.emplace_back(text.substr(0, text.find_last_not_of(' ', comment) + 1),
                        commented ? text.substr(comment + kComment.size()) : std::string());
    }
    std::vector<Line> aligned;
    add_aligned(aligned, rows);
    std::move(aligned.begin(), aligned.end(), lines.begin() + static_cast<std::ptrdiff_t>(begin));
    end = std::max(end, begin + 1);
  }
}

const char* cuda_type(ParamType type) {
  switch (type) {
    case ParamType::element_in:
      return "const Element*";
    case ParamType::element_out:
      return "Element*";
    case ParamType::float_out:
      return "float*";
    case ParamType::float_in:
      return "const float*";
    case ParamType::int_in:
      return "const int*";
    case ParamType::word_in:
      return "const u32*";
    case ParamType::long_in:
      return "const u64*";
    case ParamType::bytes_out:
      return "void*";
    case ParamType::i32:
      return "int";
    case ParamType::i64:
      return "i64";
    case ParamType::u32:
      return "u32";
    case ParamType::u64:
      return "u64";
    case ParamType::f32:
      return "float";
    case ParamType::tensor_map:
      return "TensorMap";
  }
  return "";
}

// Whether two neighbouring fields are declared together: the strides of one tensor, and scalars
// that need no comment.
bool shares_line(const ParamInfo& first, const ParamInfo& next) {
  if (first.type != next.type || next.comment[0] != '\0') return false;
  if (first.type == ParamType::i64) return !std::string_view(next.name).ends_with("_batch_stride");
  return first.comment[0] == '\0' && size_of(first.type) == 4;
}

bool uses(const ExprPtr& expr, std::string_view name) {
  for (const std::string& variable : variables(*expr))
    if (variable == name) return true;
  return false;
}

}  // namespace

Constant int_constant(const char* name, int value, const char* comment) {
  return {fmt::format("constexpr int {} = {}", name, value), comment};
}

void append(std::vector<Line>& lines, const std::vector<Line>& more) {
  if (!lines.empty()) lines.push_back({});
  lines.insert(lines.end(), more.begin(), more.end());
}

std::vector<Line> print_constants(const std::vector<Constant>& constants) {
  std::vector<Line> lines;
  std::vector<std::pair<std::string, std::string>> group;
  for (const Constant& constant : constants) {
    if (!constant.declaration.empty()) {
      group.emplace_back(constant.declaration + ";", constant.comment);
      continue;
    }
    add_aligned(lines, group);
    add(lines, "");
    group.clear();
  }
  add_aligned(lines, group);
  return lines;
}

std::vector<Line> print_params(const ParamLayout& layout, DType dtype) {
  std::vector<Line> lines;
  add(lines, fmt::format("using Element = {};", info(dtype).cuda));
  add(lines, "");
  add(lines, "// What the host fills in for each launch.");
  add(lines, "struct Params {");
  std::vector<std::pair<std::string, std::string>> rows;
  const auto& fields = layout.fields();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const ParamInfo& row = info(fields[i].param);
    std::string code = fmt::format("  {} {}", cuda_type(row.type), row.name);
    while (i + 1 < fields.size() && shares_line(row, info(fields[i + 1].param))) {
      ++i;
      code += fmt::format(", {}", info(fields[i].param).name);
    }
    rows.emplace_back(code + ";", row.comment);
  }
  add_aligned(lines, rows);
  add(lines, "};");
  return lines;
}

std::vector<Line> print_mask(Mask::Kind kind) {
  const MaskInfo& mask = info(kind);
  std::vector<Line> lines;
  add(lines, "// Whether a query row may see key `kv`.");
  add(lines, "__device__ __forceinline__ bool keep(const Params& params, int row, int kv) {");
  if (uses(mask.keep, "q")) add(lines, "  const int q = row + params.q_position;");
  add(lines, fmt::format("  return {};", print_cuda(*mask.keep)));
  add(lines, "}");
  add(lines, "");
  add(lines,
      "// Keys of a range of query rows: [begin, end) are those that some of its rows may see,");
  add(lines, "// [full_begin, full_end) those that all of them see.");
  add(lines, "struct KeyRange {");
  add(lines, "  int begin, end;");
  add(lines, "  int full_begin, full_end;");
  add(lines, "};");
  add(lines, "");
  add(lines,
      "__device__ __forceinline__ KeyRange visible_keys(const Params& params, int first_row,");
  add(lines, "                                                 int last_row) {");
  const std::vector<const ExprPtr*> all = {&mask.begin, &mask.end, &mask.full_begin,
                                           &mask.full_end};
  for (const auto& [name, row] :
       {std::pair{"q_first", "first_row"}, std::pair{"q_last", "last_row"}}) {
    bool used = false;
    for (const ExprPtr* expr : all) used = used || uses(*expr, name);
    if (used) add(lines, fmt::format("  const int {} = {} + params.q_position;", name, row));
  }
  // Limits that are the whole sequence need no clamping.
  const auto clamp = [](const ExprPtr& expr, const char* limit, const char* function) {
    const std::string text = print_cuda(*expr);
    return text == limit ? text : fmt::format("{}({}, {})", function, limit, text);
  };
  add(lines, "  KeyRange keys;");
  add(lines, fmt::format("  keys.begin = {};", clamp(mask.begin, "0", "larger")));
  add(lines, fmt::format("  keys.end = {};", clamp(mask.end, "params.seq_kv", "smaller")));
  add(lines, fmt::format("  keys.full_begin = {};", clamp(mask.full_begin, "0", "larger")));
  add(lines,
      fmt::format("  keys.full_end = {};", clamp(mask.full_end, "params.seq_kv", "smaller")));
  add(lines, "  return keys;");
  add(lines, "}");
  return lines;
}

std::vector<Line> print_query_ranges(Mask::Kind kind) {
  const MaskInfo& mask = info(kind);
  std::vector<Line> lines;
  add(lines,
      "// Query rows of a range of keys: [begin, end) are those that may see some of its keys,");
  add(lines, "// [full_begin, full_end) those that see all of them.");
  add(lines, "struct RowRange {");
  add(lines, "  int begin, end;");
  add(lines, "  int full_begin, full_end;");
  add(lines, "};");
  add(lines, "");
  add(lines,
      "__device__ __forceinline__ RowRange visible_rows(const Params& params, int kv_first, int "
      "kv_last) {");
  const auto row_of = [](const ExprPtr& position) {
    if (position->op == Op::variable && position->name == "q_begin") return std::string("0");
    if (position->op == Op::variable && position->name == "q_end")
      return std::string("params.seq_q");
    return fmt::format("{} - params.q_position", print_cuda(*position));
  };
  const auto clamp = [](const std::string& text, const char* limit, const char* function) {
    return text == limit ? text : fmt::format("{}({}, {})", function, limit, text);
  };
  add(lines, "  RowRange rows;");
  add(lines, fmt::format("  rows.begin = {};", clamp(row_of(mask.query_begin), "0", "larger")));
  add(lines,
      fmt::format("  rows.end = {};", clamp(row_of(mask.query_end), "params.seq_q", "smaller")));
  add(lines,
      fmt::format("  rows.full_begin = {};", clamp(row_of(mask.query_full_begin), "0", "larger")));
  add(lines, fmt::format("  rows.full_end = {};",
                         clamp(row_of(mask.query_full_end), "params.seq_q", "smaller")));
  add(lines, "  return rows;");
  add(lines, "}");
  return lines;
}

std::vector<Line> print_score(const Problem& problem) {
  std::vector<Line> lines;
  if (!problem.softcap && !problem.alibi) return lines;
  const FoldedScore folded = fold_score(score_expr(problem));
  const CudaNames names = {{"score", "score"},
                           {"softmax_scale / softcap", "params.tanh_scale"},
                           {"slope / softcap", "slope"},
                           {"slope / softmax_scale", "slope"},
                           {"kv - q", "distance"}};
  add_wrapped(lines, !problem.alibi ? "What becomes of a score: capped, in units of the cap."
                     : !problem.softcap
                         ? "What becomes of a score: ALiBi, with a slope in units of the "
                           "scores. `distance` is kv - q."
                         : "What becomes of a score: capped, then ALiBi, in units of the "
                           "cap. `distance` is kv - q.");
  add(lines, "__device__ __forceinline__ float modified(const Params& params, float score" +
                 std::string(problem.alibi ? ", float slope," : ") {"));
  if (problem.alibi) add(lines, std::string(42, ' ') + "float distance) {");
  add(lines, fmt::format("  return {};", print_cuda_float(*folded.value, names, problem.dtype)));
  add(lines, "}");
  return lines;
}

std::vector<Line> print_derivative(const Problem& problem) {
  std::vector<Line> lines;
  if (!problem.softcap) return lines;
  const ExprPtr capped = fold_score(score_expr(true, false)).value;
  const ExprPtr value = fold_score(score_derivative(problem)).value;
  CudaNames names = {{"score", "score"}, {"softmax_scale / softcap", "params.tanh_scale"}};
  add(lines, "// By how much a score grows under the cap when it grows by 1 before.");
  add(lines, "__device__ __forceinline__ float derivative(const Params& params, float score) {");
  add(lines,
      fmt::format("  const float capped = {};", print_cuda_float(*capped, names, problem.dtype)));
  names.emplace_back(to_string(*capped), "capped");
  add(lines, fmt::format("  return {};", print_cuda_float(*value, names, problem.dtype)));
  add(lines, "}");
  return lines;
}

void add_score_params(const Problem& problem, ParamLayout& params) {
  if (problem.softcap)
    for (const Param row : {Param::softcap_log2, Param::tanh_scale}) params.add(row);
  if (problem.alibi)
    for (const Param row :
         {Param::alibi_slopes, Param::alibi_batch_stride, Param::alibi_head_stride})
      params.add(row);
  const bool has_position =
      problem.mask == Mask::Kind::causal || problem.mask == Mask::Kind::window;
  if (problem.alibi || has_position) params.add(Param::q_position);
}

std::string emit_command(const Problem& problem, const Schedule& schedule) {
  std::string command = "flashwright emit";
  if (problem.direction == Direction::backward) command += " --direction backward";
  command += fmt::format(" --dtype {} --head-dim {}", to_string(problem.dtype), problem.head_dim);
  if (problem.head_dim_v != problem.head_dim)
    command += fmt::format(" --head-dim-v {}", problem.head_dim_v);
  if (problem.mask == Mask::Kind::window) {
    command += " --mask window:-1,-1";  // the sides are values of the launch
  } else if (problem.mask != Mask::Kind::none) {
    command += fmt::format(" --mask {}", to_string(problem.mask));
  }
  if (problem.dropout) command += " --dropout 0.1";  // so is the probability
  if (problem.softcap) command += " --softcap 50";   // and the cap
  if (problem.alibi) command += " --alibi";
  if (problem.deterministic) command += " --deterministic";
  return command +
         fmt::format(" --target {} --schedule {}", to_string(problem.target), to_string(schedule));
}

std::vector<Line> print_banner(const Problem& problem, const Schedule& schedule,
                               const std::string& about_tiles, const LaunchPlan& plan) {
  std::vector<Line> lines;
  std::string dims = fmt::format("head dim {}", problem.head_dim);
  if (problem.head_dim_v != problem.head_dim)
    dims += fmt::format(", of values {}", problem.head_dim_v);
  std::string mask = problem.mask == Mask::Kind::none ? "no mask"
                     : problem.mask == Mask::Kind::blocks
                         ? "block-sparse mask"
                         : fmt::format("{} mask", to_string(problem.mask));
  if (problem.dropout) mask += ", dropout";
  if (problem.softcap) mask += ", softcap";
  if (problem.alibi) mask += ", ALiBi";
  const bool tiled = problem.algorithm == Algorithm::tiled;
  add_wrapped(lines,
              fmt::format("{} {} for {}: {}, {}, {}.", tiled ? "Attention" : "Unfused attention",
                          to_string(problem.direction), to_string(problem.target),
                          to_string(problem.dtype), dims, mask));
  add_wrapped(lines, about_tiles);
  for (const LaunchStep& step : plan.steps)
    add_wrapped(
        lines, fmt::format("Launch {}: {} blocks of {} threads, {} bytes of dynamic shared memory.",
                           step.entry, to_string(*step.grid), step.threads, step.smem_bytes) +
                   (step.early ? " It may start while the kernel before it still runs." : ""));
  if (plan.workspace != nullptr)
    add_wrapped(lines, fmt::format("Workspace: {} bytes.", to_string(*plan.workspace)));
  for (const BoxRule& box : plan.boxes)
    add_wrapped(
        lines, fmt::format("Tensor map {}: boxes of {}{} rows by {} columns of {}, swizzle {}.",
                           info(box.map).name, box.rows, box.packed ? " / packed" : "", box.columns,
                           box.head_dim, box.swizzle));
  if (tiled) add_wrapped(lines, "Regenerate: " + emit_command(problem, schedule));
  add_wrapped(lines, fmt::format("flashwright {}. This emitted file may be used under any licence.",
                                 kVersion));
  add(lines, "");
  return lines;
}

std::string join(const std::vector<Line>& lines) {
  std::string text;
  for (const Line& line : lines) {
    text += line.text;
    text += '\n';
  }
  return text;
}

Source make_source(const Emission& emission, const Target& target) {
  std::vector<Line> lines = emission.banner;
  std::vector<Line> body = prune(resolve(emission.path, emission.options, emission.printed));
  realign_constants(body);
  lines.insert(lines.end(), body.begin(), body.end());
  Source source;
  source.language = Language::cuda;
  source.target = target;
  source.name = emission.name;
  source.text = join(lines);
  for (Line& line : lines) source.lines.push_back(std::move(line.origin));
  source.plan = emission.plan;
  return source;
}

}  // namespace flashwright
