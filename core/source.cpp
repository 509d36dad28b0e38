#include "core/source.hpp"

#include <charconv>

namespace flashwright {

const std::vector<std::string>& rule_variables() {
  static const std::vector<std::string> names = {"batch",  "heads_q",      "heads_kv", "seq_q",
                                                 "seq_kv", "query_blocks", "block_q"};
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

}  // namespace flashwright
