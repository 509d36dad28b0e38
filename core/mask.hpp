// The table of masks. A row gives the test of one element and, for a range of queries, which keys
// can be visible and which need no test, and the same for a range of keys the other way round; kernels
// skip and classify whole tiles from it. What a new
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
// seq_kv). Ranges of queries count positions: `kv_first` and `kv_last` are the first and last key,
// [q_begin, q_end) the positions of all queries, beyond which a range may reach.
struct MaskInfo {
  Mask::Kind kind;
  std::string name;
  std::vector<std::string> parameters;  // run-time values, names as in core/params
  ExprPtr keep;                         // 1 when query q may see key kv
  ExprPtr begin, end;                   // keys outside are invisible to every query of the range
  ExprPtr full_begin, full_end;         // keys inside are visible to every query of the range
  ExprPtr query_begin, query_end;       // queries outside see no key of the range
  ExprPtr query_full_begin, query_full_end;  // queries inside see every key of the range
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
