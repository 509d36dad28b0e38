// Brute force over all small sizes: for every row of the table the ranges must agree with `keep`.
#include "core/mask.hpp"

#include <algorithm>

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// The positions of a range of queries, or a range of keys, and everything else a row may ask for.
struct Place {
  std::int64_t first, last, seq_kv, left, right;
  std::int64_t q_begin = 0, q_end = 0;  // of all queries, for a range of keys
};

double lookup(const Place& p, std::int64_t q, std::int64_t kv, std::string_view name) {
  if (name == "q") return static_cast<double>(q);
  if (name == "kv") return static_cast<double>(kv);
  if (name == "q_first") return static_cast<double>(p.first);
  if (name == "q_last") return static_cast<double>(p.last);
  if (name == "kv_first") return static_cast<double>(p.first);
  if (name == "kv_last") return static_cast<double>(p.last);
  if (name == "q_begin") return static_cast<double>(p.q_begin);
  if (name == "q_end") return static_cast<double>(p.q_end);
  if (name == "seq_kv") return static_cast<double>(p.seq_kv);
  if (name == "window_left") return static_cast<double>(p.left);
  if (name == "window_right") return static_cast<double>(p.right);
  FAIL("a mask asks for '" << std::string(name) << "'");
  return 0;
}

struct Range {
  std::int64_t begin, end;
  bool has(std::int64_t kv) const { return kv >= begin && kv < end; }
};

std::int64_t evaluate_at(const ExprPtr& expr, const Place& place) {
  return static_cast<std::int64_t>(
      evaluate(*expr, [&](std::string_view name) { return lookup(place, 0, 0, name); }));
}

// What is wrong with a row at one place: 0, or a number that tells the rule that is broken.
int broken_rule(const MaskInfo& mask, const Place& place) {
  const Range seen = {evaluate_at(mask.begin, place), evaluate_at(mask.end, place)};
  const Range full = {evaluate_at(mask.full_begin, place), evaluate_at(mask.full_end, place)};
  for (std::int64_t kv = 0; kv < place.seq_kv; ++kv) {
    int keeps = 0;
    for (std::int64_t q = place.first; q <= place.last; ++q)
      keeps += evaluate(*mask.keep,
                        [&](std::string_view name) { return lookup(place, q, kv, name); }) != 0;
    const bool some = keeps > 0, all = keeps == place.last - place.first + 1;
    if (some && !seen.has(kv)) return 1;  // a visible key would be skipped
    if (!all && full.has(kv)) return 2;   // an invisible one would go untested
    // Of a single query the ranges say exactly what it sees: no tile is visited or tested for nothing.
    if (place.first == place.last && (some != seen.has(kv) || all != full.has(kv))) return 3;
  }
  return 0;
}

// The same for a range of keys.
int broken_query_rule(const MaskInfo& mask, const Place& place) {
  const Range seeing = {evaluate_at(mask.query_begin, place), evaluate_at(mask.query_end, place)};
  const Range full = {evaluate_at(mask.query_full_begin, place),
                      evaluate_at(mask.query_full_end, place)};
  for (std::int64_t q = place.q_begin; q < place.q_end; ++q) {
    int keeps = 0;
    for (std::int64_t kv = place.first; kv <= place.last; ++kv)
      keeps += evaluate(*mask.keep,
                        [&](std::string_view name) { return lookup(place, q, kv, name); }) != 0;
    const bool some = keeps > 0, all = keeps == place.last - place.first + 1;
    if (some && !seeing.has(q)) return 1;
    if (!all && full.has(q)) return 2;
    if (place.first == place.last && (some != seeing.has(q) || all != full.has(q))) return 3;
  }
  return 0;
}

}  // namespace

TEST_CASE("the ranges of queries of every mask agree with its test of one element") {
  for (const Mask::Kind kind : {Mask::Kind::none, Mask::Kind::causal, Mask::Kind::window}) {
    const MaskInfo& mask = info(kind);
    INFO(mask.name);
    int broken = 0, places = 0;
    const std::vector<std::int64_t> sides =
        mask.parameters.empty() ? std::vector<std::int64_t>{0}
                                : std::vector<std::int64_t>{0, 1, 2, 5, kUnboundedWindow};
    for (const std::int64_t left : sides)
      for (const std::int64_t right : sides)
        for (std::int64_t first = 0; first <= 8; ++first)
          for (std::int64_t last = first; last <= first + 5; ++last)
            for (const std::int64_t q_begin : {-3, 0, 5})
              for (std::int64_t count = 0; count <= 7; ++count, ++places)
                broken += broken_query_rule(mask, {first, last, last + 1, left, right, q_begin,
                                                   q_begin + count}) != 0;
    CHECK(broken == 0);
    CHECK(places >= 500);
  }
}

TEST_CASE("the ranges of every mask agree with its test of one element") {
  for (const Mask::Kind kind : {Mask::Kind::none, Mask::Kind::causal, Mask::Kind::window}) {
    const MaskInfo& mask = info(kind);
    INFO(mask.name);
    int broken = 0, places = 0;
    const std::vector<std::int64_t> sides =
        mask.parameters.empty() ? std::vector<std::int64_t>{0}
                                : std::vector<std::int64_t>{0, 1, 2, 3, 5, kUnboundedWindow};
    for (const std::int64_t left : sides)
      for (const std::int64_t right : sides)
        for (std::int64_t seq_kv = 0; seq_kv <= 6; ++seq_kv)
          for (std::int64_t first = -4; first <= 8; ++first)
            for (std::int64_t last = first; last <= first + 5; ++last, ++places)
              broken += broken_rule(mask, {first, last, seq_kv, left, right}) != 0;
    CHECK(broken == 0);
    CHECK(places >= 500);
  }
}

TEST_CASE("every mask has a row under its own name") {
  for (const Mask::Kind kind :
       {Mask::Kind::none, Mask::Kind::causal, Mask::Kind::window, Mask::Kind::blocks}) {
    const MaskInfo& mask = info(kind);
    CHECK(mask.kind == kind);
    CHECK(mask.name == to_string(kind));
    CHECK(mask.lists == (kind == Mask::Kind::blocks));
  }
}

TEST_CASE("the text of a mask reads back") {
  for (const Mask& mask :
       {Mask::none(), Mask::causal(), Mask::blocks(), Mask::window(0, 0), Mask::window(-1, -1),
        Mask::window(1024, -1), Mask::window(3, kUnboundedWindow - 1)})
    CHECK(parse_mask(to_string(mask)) == mask);
}

TEST_CASE("a bad mask is refused with its text and what is allowed") {
  for (const std::string& text :
       {std::string("window"), std::string("window:"), std::string("window:1"),
        std::string("window:1,"), std::string("window:1;2"), std::string("window:1,2,3"),
        std::string("window:1,2 "), std::string("window:-5,0"), std::string("window:0,-2"),
        std::string("window:1073741824,0"), std::string("window:99999999999999999999,0"),
        std::string("window:a,b"), std::string("Causal"), std::string("causal "), std::string(""),
        std::string("prefix:3")}) {
    INFO(text);
    const Error error = error_of([&] { parse_mask(text); });
    CHECK(error.status == Status::bad_argument);
    CHECK(contains(error.message, "mask: '" + text + "'"));
    CHECK(contains(error.message, "allowed: none, causal, window:LEFT,RIGHT, blocks"));
  }
  CHECK(contains(error_of([] { parse_mask("window:-5,0"); }).message, "-5"));
}
