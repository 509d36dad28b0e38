// The table of masks. A row gives the test of one element and, for a range of queries, which keys
// can be visible and which need no test; kernels skip and classify whole tiles from it. What a new
// row takes besides is listed in docs/add-a-family.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/expr.hpp"
#include "flashwright/config.hpp"

namespace flashwright {

// Variables: `q` and `kv` are the positions of a query (q_position included) and of a key;
// `q_first` and `q_last` the positions of the first and last query of a range; `seq_kv` the number
// of keys; and the row's own parameters. Key ranges are half-open and may reach outside [0,
// seq_kv). The same the other way round for a range of keys: `kv_first` and `kv_last` are its first and last
// key, counted from query 0; query ranges are half-open and may reach outside [0, seq_q).
struct MaskInfo {
  Mask::Kind kind;
  std::string name;
  std::vector<std::string> parameters;  // run-time values, names as in core/params
  ExprPtr keep;                         // 1 when query q may see key kv
  ExprPtr begin, end;                   // keys outside are invisible to every query of the range
  ExprPtr full_begin, full_end;         // keys inside are visible to every query of the range
  ExprPtr query_begin, query_end;       // queries outside see no key of the range
  ExprPtr full_query_begin, full_query_end;  // queries inside see every key of the range
  bool lists;                                // the visible keys come as lists of blocks instead
};

const MaskInfo& info(Mask::Kind kind);

// Reads "none", "causal", "window:LEFT,RIGHT" or "blocks"; throws Error(bad_argument).
Mask parse_mask(std::string_view text);

// An open side of a window as the kernels get it: so wide that it never cuts, so small that adding
// it to a position does not overflow.
constexpr std::int64_t kUnboundedWindow = std::int64_t{1} << 30;
// Sequences are shorter than this, for the same reason.
constexpr std::int64_t kMaxSequence = std::int64_t{1} << 30;

}  // namespace flashwright
