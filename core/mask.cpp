#include "core/mask.hpp"

#include <array>
#include <charconv>

#include "core/error.hpp"
#include "core/expr_parse.hpp"

namespace flashwright {
namespace {

struct Range {
  std::string_view begin, end, full_begin, full_end;
};

MaskInfo row(Mask::Kind kind, std::vector<std::string> parameters, std::string_view keep,
             const Range& keys, const Range& queries, bool lists = false) {
  return {kind,
          to_string(kind),
          std::move(parameters),
          parse_expr(keep),
          parse_expr(keys.begin),
          parse_expr(keys.end),
          parse_expr(keys.full_begin),
          parse_expr(keys.full_end),
          parse_expr(queries.begin),
          parse_expr(queries.end),
          parse_expr(queries.full_begin),
          parse_expr(queries.full_end),
          lists};
}

const std::array<MaskInfo, 4>& table() {
  constexpr Range kAllKeys = {"0", "seq_kv", "0", "seq_kv"};
  constexpr Range kAllQueries = {"q_begin", "q_end", "q_begin", "q_end"};
  static const std::array<MaskInfo, 4> rows = {
      row(Mask::Kind::none, {}, "1", kAllKeys, kAllQueries),
      row(Mask::Kind::causal, {}, "kv <= q", {"0", "q_last + 1", "0", "q_first + 1"},
          {"kv_first", "q_end", "kv_last", "q_end"}),
      row(Mask::Kind::window, {"window_left", "window_right"},
          "kv >= q - window_left && kv <= q + window_right",
          {"q_first - window_left", "q_last + window_right + 1", "q_last - window_left",
           "q_first + window_right + 1"},
          {"kv_first - window_right", "kv_last + window_left + 1", "kv_last - window_right",
           "kv_first + window_left + 1"}),
      row(Mask::Kind::blocks, {}, "1", kAllKeys, kAllQueries, true),
  };
  return rows;
}

[[noreturn]] void bad_mask(std::string_view text, const std::string& why) {
  throw Error(Status::bad_argument, "mask: '" + std::string(text) + "' " + why +
                                        "; allowed: none, causal, window:LEFT,RIGHT, blocks");
}

}  // namespace

const MaskInfo& info(Mask::Kind kind) { return table()[static_cast<std::size_t>(kind)]; }

Mask parse_mask(std::string_view text) {
  for (const MaskInfo& mask : table())
    if (text == mask.name && mask.kind != Mask::Kind::window) return {mask.kind, -1, -1};
  constexpr std::string_view kWindow = "window:";
  if (text == "window" || text.substr(0, kWindow.size()) != kWindow)
    bad_mask(text, text == "window" ? "lacks its two sides" : "is unknown");

  std::int64_t sides[2];
  const char* at = text.data() + kWindow.size();
  const char* const end = text.data() + text.size();
  for (int i = 0; i < 2; ++i) {
    const auto [next, error] = std::from_chars(at, end, sides[i]);
    if (error != std::errc{}) bad_mask(text, "needs two integers after 'window:'");
    if (sides[i] < -1 || sides[i] >= kUnboundedWindow)
      bad_mask(text, "has the side " + std::to_string(sides[i]) +
                         "; a side is -1 (open) or from 0 to " +
                         std::to_string(kUnboundedWindow - 1));
    at = next;
    if (i == 0 && (at == end || *at++ != ',')) bad_mask(text, "needs two integers after 'window:'");
  }
  if (at != end) bad_mask(text, "has text after the second side");
  return Mask::window(sides[0], sides[1]);
}

}  // namespace flashwright
