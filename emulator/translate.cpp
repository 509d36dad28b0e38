#include "emulator/translate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "core/error.hpp"
#include "core/expr_parse.hpp"
#include "emulator/wrapper_table.hpp"

namespace flashwright {

// Embedded from emulator/unit/.
struct UnitFile {
  const char* path;
  const char* text;
};
extern const UnitFile kUnitFiles[];
extern const std::size_t kUnitFileCount;

}  // namespace flashwright

namespace flashwright::emulator {
namespace {

using Lines = std::vector<std::string>;

Lines split_lines(std::string_view text) {
  Lines lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string without_comment(const std::string& line) { return line.substr(0, line.find("//")); }

bool is_word(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The names in a line, string literals left out.
std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> out;
  bool quoted = false;
  for (std::size_t at = 0; at < line.size();) {
    if (line[at] == '"') quoted = !quoted;
    if (quoted || !is_word(line[at])) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < line.size() && is_word(line[at])) ++at;
    out.push_back(line.substr(begin, at - begin));
  }
  return out;
}

[[noreturn]] void refuse(const std::string& name, std::size_t line, const std::string& why) {
  throw Error(Status::unsupported, fmt::format("emulator: {} line {}: {}", name, line + 1, why));
}

// One function, or one struct, at the outermost level.
struct Item {
  std::size_t first, last;  // lines
  std::string name;
  std::string head;  // the declaration, up to its body
};

// What stands between the parentheses of `word(...)`; empty when it is not there.
std::string arguments_of(const std::string& head, const std::string& word) {
  const std::size_t at = head.find(word + "(");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + word.size() + 1;
  return head.substr(begin, head.find(')', begin) - begin);
}

// The name that a declaration declares: the word before its parameters.
std::string declared_name(std::string head) {
  for (const std::string_view attribute : {"__launch_bounds__(", "__cluster_dims__("})
    if (const std::size_t at = head.find(attribute); at != std::string::npos)
      head.erase(at, head.find(')', at) - at + 1);
  const std::vector<std::string> before = words(head.substr(0, head.find_first_of("({")));
  return before.empty() ? std::string() : before.back();
}

// "__device__ Counter counters[kCounters];"
bool is_variable(const std::string& line) {
  const std::string text = without_comment(line);
  return text.starts_with("__device__") && text.find_last_not_of(' ') != std::string::npos &&
         text[text.find_last_not_of(' ')] == ';' && text.find('(') == std::string::npos;
}

// Emitted text is formatted: what begins in the first column ends with a "}" there, or on its own line.
std::vector<Item> items_of(const Lines& lines, const std::string& name) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool function = lines[i].starts_with("__device__") || lines[i].starts_with("extern") ||
                          lines[i].starts_with("template");
    if (!function && !lines[i].starts_with("struct ")) continue;
    if (is_variable(lines[i])) continue;
    const std::size_t first = i;
    std::string head;
    while (i < lines.size() && without_comment(lines[i]).find('{') == std::string::npos)
      head += without_comment(lines[i++]) + ' ';
    if (i == lines.size()) refuse(name, first, "a declaration without a body");
    head += without_comment(lines[i]);
    const std::string begin = without_comment(lines[i]);
    if (begin.find('}') == std::string::npos || begin.ends_with('{'))
      while (i < lines.size() && lines[i] != "}" && lines[i] != "};") ++i;
    if (i == lines.size()) refuse(name, first, "a body without an end");
    items.push_back({first, i, declared_name(head), head});
  }
  return items;
}

// The stand-in for a function that is a wrapper; empty for one that is none.
std::string stand_in_for(const Item& item, const std::string& body, const std::string& name) {
  ProductForm form;
  if (read_product(item.name, body, form)) return product_stand_in(item.name, form);
  const std::span<const Wrapper> table = wrappers();
  bool known = false, plain = false;
  for (std::size_t row = 0; row < table.size(); ++row) {
    if (item.name != table[row].name) continue;
    known = true;
    plain = table[row].may_be_plain;
    if (body.find(table[row].instruction) == std::string::npos) continue;
    std::string stand_in = table[row].stand_in;
    for (std::size_t at = 0; (at = stand_in.find("(#)", at)) != std::string::npos;)
      stand_in.replace(at + 1, 1, std::to_string(row));
    return stand_in;
  }
  if (known && !plain)
    refuse(name, item.first, fmt::format("'{}' is not the wrapper that is emulated", item.name));
  return {};
}

// Puts a stand-in in place of a wrapper; what is no wrapper stays. True when it was one.
bool replace_wrapper(Lines& lines, const Item& item, const std::string& name) {
  std::string body;
  for (std::size_t i = item.first; i <= item.last; ++i) body += without_comment(lines[i]) + '\n';
  const std::string stand_in = stand_in_for(item, body, name);
  if (stand_in.empty()) return false;
  for (std::size_t i = item.first; i <= item.last; ++i) lines[i].clear();
  lines[item.first] = stand_in;
  return true;
}

// What only a compiler for GPUs understands must be gone.
void refuse_the_rest(const Lines& lines, const std::vector<bool>& replaced,
                     const std::string& name) {
  static const std::set<std::string> allowed = {"__device__",        "__forceinline__",
                                                "__global__",        "__launch_bounds__",
                                                "__grid_constant__", "__cluster_dims__"};
  static const std::set<std::string> refused = {"asm",      "threadIdx", "blockIdx",
                                                "blockDim", "gridDim",   "warpSize"};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (replaced[i]) continue;
    if (lines[i].starts_with("#") && !lines[i].starts_with("#pragma unroll"))
      refuse(name, i, "a directive: " + lines[i]);
    for (const std::string& word : words(without_comment(lines[i])))
      if (refused.contains(word) || (word.starts_with("__") && !allowed.contains(word)))
        refuse(name, i, fmt::format("'{}' outside of a wrapper that is emulated", word));
  }
}

// The comment at the head with its wrapped lines joined.
Lines banner_of(const Lines& lines) {
  constexpr std::string_view kNext = "//     ";
  Lines banner;
  for (const std::string& line : lines) {
    if (!line.starts_with("//")) break;
    if (line.starts_with(kNext) && !banner.empty()) {
      banner.back() += ' ' + line.substr(kNext.size());
    } else {
      banner.push_back(line.substr(std::min<std::size_t>(3, line.size())));
    }
  }
  return banner;
}

int number_at(std::string_view text, std::size_t at) {
  int value = -1;
  std::from_chars(text.data() + at, text.data() + text.size(), value);
  return value;
}

// "Launch NAME: RULE blocks of N threads, M bytes of dynamic shared memory."
void read_launches(const Lines& lines, LaunchPlan& plan) {
  constexpr std::string_view kLaunch = "Launch ", kBlocks = " blocks of ", kThreads = " threads, ";
  for (const std::string& line : banner_of(lines)) {
    const std::size_t colon = line.find(": "), blocks = line.find(kBlocks),
                      threads = line.find(kThreads);
    if (!line.starts_with(kLaunch) || colon == std::string::npos || blocks == std::string::npos ||
        threads == std::string::npos)
      continue;
    LaunchStep step;
    step.entry = line.substr(kLaunch.size(), colon - kLaunch.size());
    step.grid = parse_expr(line.substr(colon + 2, blocks - colon - 2));
    step.threads = number_at(line, blocks + kBlocks.size());
    step.smem_bytes = number_at(line, threads + kThreads.size());
    plan.steps.push_back(std::move(step));
  }
}

// "Workspace: RULE bytes."
void read_workspace(const Lines& lines, LaunchPlan& plan) {
  constexpr std::string_view kWorkspace = "Workspace: ", kBytes = " bytes";
  for (const std::string& line : banner_of(lines))
    if (line.starts_with(kWorkspace))
      plan.workspace =
          parse_expr(line.substr(kWorkspace.size(), line.find(kBytes) - kWorkspace.size()));
}

// "Tensor map NAME: boxes of R rows by C columns of D, swizzle S."
void read_boxes(const Lines& lines, LaunchPlan& plan) {
  constexpr std::string_view kMap = "Tensor map ", kBoxes = ": boxes of ", kRows = " rows by ",
                             kColumns = " columns of ", kSwizzle = ", swizzle ";
  for (const std::string& line : banner_of(lines)) {
    if (!line.starts_with(kMap)) continue;
    const auto behind = [&](std::string_view word) {
      const std::size_t at = line.find(word);
      return at == std::string::npos ? -1 : number_at(line, at + word.size());
    };
    const std::string name = line.substr(kMap.size(), line.find(kBoxes) - kMap.size());
    BoxRule box;
    for (int i = 0; i < kParamCount; ++i)
      if (const ParamInfo& row = info(static_cast<Param>(i)); row.name == name) box.map = row.id;
    box.dtype = DType::bf16;  // or fp16: copies make no difference between them
    box.rows = behind(kBoxes);
    box.columns = behind(kRows);
    box.packed = line.find(" / packed") != std::string::npos;
    box.head_dim = behind(kColumns);
    box.swizzle = behind(kSwizzle);
    plan.boxes.push_back(box);
  }
}

// The fields of `struct Params` are rows of the table in core/params.hpp.
void read_params(const Lines& lines, const std::string& name, LaunchPlan& plan) {
  std::size_t i = 0;
  while (i < lines.size() && lines[i] != "struct Params {") ++i;
  for (++i; i < lines.size() && lines[i] != "};"; ++i) {
    std::string fields = without_comment(lines[i]);
    if (fields.find(';') == std::string::npos) continue;
    while (!fields.empty()) {
      const std::size_t end = fields.find_first_of(",;");
      if (end == std::string::npos) break;
      const std::vector<std::string> before = words(fields.substr(0, end));
      fields.erase(0, end + 1);
      int row = 0;
      while (row < kParamCount && info(static_cast<Param>(row)).name != before.back()) ++row;
      if (row == kParamCount)
        refuse(name, i, fmt::format("'{}' is no known parameter", before.back()));
      plan.params.add(static_cast<Param>(row));
    }
  }
}

std::string unit_file(std::string_view path) {
  for (std::size_t i = 0; i < kUnitFileCount; ++i)
    if (kUnitFiles[i].path == path) return kUnitFiles[i].text;
  throw Error(Status::internal, fmt::format("emulator: no unit file '{}'", path));
}

// What the emulator looks up in the compiled unit: each entry, how many of its blocks share a
// multiprocessor, and how many make a cluster.
std::string exports(const LaunchPlan& plan, const std::vector<Item>& items,
                    const std::vector<std::string>& variables) {
  std::string text =
      "#line 1 \"exports\"\n"
      "#define FW_EXPORT extern \"C\" __attribute__((visibility(\"default\")))\n"
      "FW_EXPORT void fw_bind(const FwEmulator* emulator) { fw_emulator = emulator; }\n"
      "FW_EXPORT int fw_params_bytes() { return sizeof(Params); }\n"
      "static int fw_second(int = 0, int second = 1, int = 1) { return second; }\n"
      "static int fw_product(int x = 1, int y = 1, int z = 1) { return x * y * z; }\n";
  for (const LaunchStep& step : plan.steps) {
    std::string head;
    for (const Item& item : items)
      if (item.name == step.entry) head = item.head;
    text += fmt::format(
        "FW_EXPORT void fw_run_{0}(const void* params) {{ {0}(*static_cast<const "
        "Params*>(params)); }}\n"
        "FW_EXPORT int fw_blocks_{0}() {{ return fw_second({1}); }}\n"
        "FW_EXPORT int fw_cluster_{0}() {{ return fw_product({2}); }}\n",
        step.entry, arguments_of(head, "__launch_bounds__"),
        arguments_of(head, "__cluster_dims__"));
  }
  for (const std::string& name : variables)
    text += fmt::format(
        "FW_EXPORT void* fw_variable_{0}() {{ return &{0}; }}\n"
        "FW_EXPORT int fw_bytes_{0}() {{ return sizeof {0}; }}\n",
        name);
  return text;
}

// Whether a wrapper belongs to sm_90, where copies and products run beside the threads.
bool is_asynchronous(const std::string& name) {
  static const std::set<std::string> names = {
      "init_barrier",   "load_box",        "load_box_5d",        "load_row",
      "store_box",      "add_box",         "store_row",          "add_row",
      "fence_products", "commit_products", "fence_async_shared", "load_box_to_blocks"};
  return names.contains(name);
}

// The text with its wrappers replaced, for the entries of the plan.
void translate_lines(Lines& lines, Translation& out) {
  out.functions.resize(lines.size() + 1);
  std::vector<bool> replaced(lines.size(), false);
  const std::vector<Item> items = items_of(lines, out.name);
  for (const Item& item : items) {
    for (std::size_t i = item.first; i <= item.last; ++i) out.functions[i + 1] = item.name;
    replaced[item.first] = replace_wrapper(lines, item, out.name);
    out.asynchronous = out.asynchronous || (replaced[item.first] && is_asynchronous(item.name));
    out.swizzled = out.swizzled || item.name == "swizzled_memory";
  }
  for (const std::string& line : lines)
    if (is_variable(line)) {
      const std::string text = without_comment(line);
      out.variables.push_back(words(text.substr(0, text.find_first_of("[=;"))).back());
    }
  refuse_the_rest(lines, replaced, out.name);
  out.text = unit_file("interface.h") + unit_file("prelude.h");
  for (std::size_t at = 0; (at = out.text.find("#pragma once\n", at)) != std::string::npos;)
    out.text.erase(at, 13);
  out.text += fmt::format("#line 1 \"{}\"\n", out.name);
  for (const std::string& line : lines) out.text += line + '\n';
  out.text += exports(out.plan, items, out.variables);
}

}  // namespace

Translation translate(std::string_view emitted, const std::string& name) {
  Lines lines = split_lines(emitted);
  Translation out;
  out.name = name;
  read_launches(lines, out.plan);
  if (out.plan.steps.empty())
    throw Error(Status::unsupported,
                fmt::format("emulator: {}: no line 'Launch ENTRY: ...' at its head", name));
  read_params(lines, name, out.plan);
  read_boxes(lines, out.plan);
  read_workspace(lines, out.plan);
  translate_lines(lines, out);
  return out;
}

Translation translate_entry(std::string_view text, const std::string& name,
                            const std::string& entry) {
  Lines lines = split_lines(text);
  Translation out;
  out.name = name;
  out.known_params = false;
  out.plan.steps.resize(1);
  out.plan.steps[0].entry = entry;
  translate_lines(lines, out);
  return out;
}

std::string wrapper_of(std::uint32_t site) {
  const std::size_t row = site >> 20;
  if (row == kProductRow) return "wgmma";
  return row < wrappers().size() ? wrappers()[row].name : "?";
}

std::string describe(const Translation& translation, std::uint32_t site) {
  const std::uint32_t line = line_of(site);
  if (line == 0) return "the start of the kernel";
  const std::string function =
      line < translation.functions.size() ? translation.functions[line] : std::string();
  return fmt::format("{} in {}, line {}", wrapper_of(site), function, line);
}

}  // namespace flashwright::emulator
