#include "generator/specialise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "core/error.hpp"
#include "core/expr_parse.hpp"
#include "generator/template_store.hpp"

namespace flashwright {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())))
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())))
    text.remove_suffix(1);
  return text;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Resolves one template and, recursively, its includes.
class Resolver {
 public:
  Resolver(const Options& options, const Printed& printed) : options_(options), printed_(printed) {}

  std::vector<Line> take() { return std::move(out_); }

  void file(std::string_view path) {
    if (!done_.insert(std::string(path)).second) return;
    const std::string text = template_text(path);
    const std::string outer_path = std::exchange(path_, std::string(path));
    const int outer_number = std::exchange(number_, 0);
    const std::size_t outer_depth = conditionals_.size();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      ++number_;
      line(std::string_view(text).substr(at, end - at));
      at = end + 1;
    }
    if (conditionals_.size() != outer_depth) fail("#if without #endif");
    path_ = outer_path;
    number_ = outer_number;
  }

 private:
  struct Conditional {
    bool taken;   // some branch was true
    bool active;  // this branch is
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Status::internal, fmt::format("template {}:{}: {}", path_, number_, what));
  }

  bool active() const {
    return std::all_of(conditionals_.begin(), conditionals_.end(),
                       [](const Conditional& c) { return c.active; });
  }

  bool condition(std::string_view text) const {
    ExprPtr expr;
    try {
      expr = parse_expr(text);
    } catch (const Error& error) {
      fail(error.message);
    }
    return evaluate(*expr, [this](std::string_view name) -> double {
             const auto found = options_.find(std::string(name));
             if (found == options_.end()) fail(fmt::format("unknown option {}", name));
             return found->second;
           }) != 0;
  }

  void directive(std::string_view text) {
    if (starts_with(text, "#if ")) {
      const bool value = active() && condition(text.substr(4));
      conditionals_.push_back({value, value});
    } else if (starts_with(text, "#elif ")) {
      Conditional& c = innermost();
      c.active = false;
      c.active = !c.taken && active_outside() && condition(text.substr(6));
      c.taken = c.taken || c.active;
    } else if (text == "#else") {
      Conditional& c = innermost();
      c.active = !c.taken;
      c.taken = true;
    } else if (text == "#endif") {
      innermost();
      conditionals_.pop_back();
    } else if (active()) {
      include(text);
    }
  }

  Conditional& innermost() {
    if (conditionals_.empty()) fail("directive without #if");
    return conditionals_.back();
  }

  bool active_outside() const {
    return std::all_of(conditionals_.begin(), conditionals_.end() - 1,
                       [](const Conditional& c) { return c.active; });
  }

  void include(std::string_view text) {
    constexpr std::string_view kInclude = "#include \"";
    if (!starts_with(text, kInclude) || text.back() != '"')
      fail(fmt::format("unexpected {}", text));
    const std::string_view path = text.substr(kInclude.size(), text.size() - kInclude.size() - 1);
    if (path == "options.h") return;  // defaults for editors
    blank();
    if (const auto found = printed_.find(path); found != printed_.end()) {
      out_.insert(out_.end(), found->second.begin(), found->second.end());
    } else {
      file(path);
    }
    blank();
  }

  void line(std::string_view text) {
    const std::string_view content = trim(text);
    if (starts_with(content, "//~")) return;
    if (starts_with(content, "#") && !starts_with(content, "#pragma unroll"))
      return directive(content);
    if (!active()) return;
    if (content.empty()) return blank();
    out_.push_back({std::string(text), {path_, number_}});
  }

  void blank() {
    if (!out_.empty() && !out_.back().text.empty()) out_.push_back({"", {path_, number_}});
  }

  const Options& options_;
  const Printed& printed_;
  std::vector<Line> out_;
  std::vector<Conditional> conditionals_;
  std::set<std::string> done_;
  std::string path_;
  int number_ = 0;
};

// The code of a line without its comment.
std::string_view code_of(std::string_view text) { return text.substr(0, text.find("//")); }

bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

void collect_names(std::string_view code, std::set<std::string>& names) {
  for (std::size_t at = 0; at < code.size();) {
    if (!is_name_char(code[at])) {
      ++at;
      continue;
    }
    const std::size_t start = at;
    while (at < code.size() && is_name_char(code[at])) ++at;
    names.emplace(code.substr(start, at - start));
  }
}

// The name that a definition introduces: the one after `using` or `struct`, before the `=` of a
// constant, or before the parameters of a function.
std::string defined_name(std::string_view code) {
  const auto name_before = [&](std::size_t end) {
    while (end > 0 && !is_name_char(code[end - 1])) --end;
    std::size_t start = end;
    while (start > 0 && is_name_char(code[start - 1])) --start;
    return std::string(code.substr(start, end - start));
  };
  code = trim(code);
  while (starts_with(code, "template <")) code = trim(code.substr(code.find('>') + 1));
  if (starts_with(code, "struct ")) return name_before(code.find('{'));
  const std::size_t parameters = code.find('('), assignment = code.find('=');
  if (parameters == assignment) return {};  // neither: no definition
  return name_before(std::min(parameters, assignment));
}

struct Block {
  std::size_t begin, end;  // lines
  std::set<std::string> names;
  std::string defines;
  bool kernel = false;
  bool constant = false;  // one line of a run of constants
};

// A constant, alone on its line.
bool is_constant_line(std::string_view text) {
  const std::string_view code = trim(code_of(text));
  return starts_with(code, "constexpr ") && code.back() == ';' &&
         code.find('{') == std::string_view::npos;
}

Block make_block(const std::vector<Line>& lines, std::size_t begin, std::size_t end) {
  Block block{begin, end, {}, {}};
  std::string code;
  for (std::size_t i = begin; i < end; ++i) code += std::string(code_of(lines[i].text)) + "\n";
  collect_names(code, block.names);
  block.kernel = block.names.count("__global__") != 0 || starts_with(trim(code), "static_assert(");
  block.defines = defined_name(code);
  return block;
}

std::vector<Block> split(const std::vector<Line>& lines) {
  std::vector<Block> blocks;
  std::size_t begin = 0;
  int depth = 0;
  const auto close = [&](std::size_t end) {
    const bool constants =
        std::all_of(lines.begin() + begin, lines.begin() + end,
                    [](const Line& line) {
                      return is_constant_line(line.text) || trim(code_of(line.text)).empty();
                    }) &&
        std::any_of(lines.begin() + begin, lines.begin() + end,
                    [](const Line& line) { return is_constant_line(line.text); });
    if (!constants) {
      if (end > begin) blocks.push_back(make_block(lines, begin, end));
      return;
    }
    std::size_t start = begin;  // a comment belongs to the constant below it
    for (std::size_t i = begin; i < end; ++i) {
      if (!is_constant_line(lines[i].text)) continue;
      blocks.push_back(make_block(lines, start, i + 1));
      blocks.back().constant = true;
      start = i + 1;
    }
  };
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].text.empty() && depth == 0) {
      close(i);
      begin = i + 1;
      continue;
    }
    for (const char c : code_of(lines[i].text)) depth += (c == '{') - (c == '}');
  }
  close(lines.size());
  return blocks;
}

}  // namespace

const std::vector<std::string>& option_names() {
  static const std::vector<std::string> names = {"FW_FP16",           "FW_BF16",
                                                 "FW_FP32",           "FW_MASK",
                                                 "FW_BLOCKS",         "FW_DROPOUT",
                                                 "FW_Q_IN_REGISTERS", "FW_ONE_STAGE",
                                                 "FW_LAZY_RESCALE",   "FW_RESCALE_THRESHOLD",
                                                 "FW_PING_PONG",      "FW_PERSISTENT",
                                                 "FW_LONGEST_FIRST",  "FW_WINDOW",
                                                 "FW_NEGATIVE_SCALE", "FW_HALF_TILES",
                                                 "FW_PACK_HEADS",     "FW_ADD_QUERIES",
                                                 "FW_SOFTCAP",        "FW_ALIBI",
                                                 "FW_COUNTER",        "FW_SWAP_ROWS",
                                                 "FW_SPLIT_KEYS",     "FW_TWO_PARTS",
                                                 "FW_ADDER",          "FW_CLUSTER",
                                                 "FW_LATE_LSE",       "FW_EMULATED_EXP2"};
  return names;
}

std::vector<Line> resolve(std::string_view path, const Options& options, const Printed& printed) {
  for (const auto& [name, value] : options)
    if (std::find(option_names().begin(), option_names().end(), name) == option_names().end())
      throw Error(Status::internal, "unknown option " + name);
  Resolver resolver(options, printed);
  resolver.file(path);
  return resolver.take();
}

std::vector<Line> prune(const std::vector<Line>& lines) {
  std::vector<Block> blocks = split(lines);
  std::vector<bool> kept(blocks.size());
  std::set<std::string> wanted;
  for (bool grown = true; grown;) {
    grown = false;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (kept[i] || !(blocks[i].kernel || wanted.count(blocks[i].defines) != 0)) continue;
      kept[i] = grown = true;
      wanted.insert(blocks[i].names.begin(), blocks[i].names.end());
    }
  }
  std::vector<Line> out;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!kept[i]) continue;
    // Constants of one run stay together.
    const bool joined = !out.empty() && blocks[i].constant && i > 0 && blocks[i - 1].constant &&
                        blocks[i - 1].end == blocks[i].begin && !out.back().text.empty() &&
                        is_constant_line(out.back().text);
    if (!out.empty() && !joined) out.push_back({"", {}});
    out.insert(out.end(), lines.begin() + static_cast<std::ptrdiff_t>(blocks[i].begin),
               lines.begin() + static_cast<std::ptrdiff_t>(blocks[i].end));
  }
  return out;
}

}  // namespace flashwright
