// The work on one tile of keys: both matrix products and the softmax between them. The inner loops keep
// a block of results in registers and read one vector of queries (or weights) and one broadcast element
// for each step, so most of their instructions are multiply-adds.
#include <algorithm>

#include "generator/cpu/kernel.hpp"
#include "generator/cpu/math_ir.hpp"

namespace flashwright {

using namespace ir;

void accumulate(Kernel& k, Values& sums, const Values& elements, const Values& vectors) {
  const std::size_t columns = vectors.size();
  for (std::size_t r = 0; r < elements.size(); ++r) {
    const V element = splat(elements[r], k.tiling.lanes).named("all");
    for (std::size_t n = 0; n < columns; ++n)
      sums[r * columns + n] = fma(element, vectors[n], sums[r * columns + n]).named("acc");
  }
}

std::vector<Carried> accumulators(const Values& starts) {
  std::vector<Carried> carried;
  for (std::size_t i = 0; i < starts.size(); ++i)
    carried.push_back({starts[i], "acc." + std::to_string(i)});
  return carried;
}

int softmax_unroll(const Kernel& k) {
  const int most = k.tiling.registers >= 32 ? 4 : 2;
  for (int keys = most; keys > 1; --keys)
    if (k.tiling.key_step() % keys == 0) return keys;
  return 1;
}

namespace {

// The maximum to subtract, the rescale factor of what was summed so far, and the sum scaled by it.
struct RowState {
  V shift, sum;
};
RowState begin_softmax(Kernel& k, V column) {
  Builder& ir = k.ir;
  const auto row = [&](int offset) { return ir.element(k.buffer(offset), Kind::f32, column); };
  const V old_max = k.load_floats(row(k.tiling.at.row_max)).named("old.max");
  const V new_max = k.load_floats(row(k.tiling.at.tile_max)).named("new.max");
  // -inf minus itself would be NaN: a row that has seen nothing subtracts 0.
  const V nothing = equal(new_max, k.all(-kInfinity)).named("nothing.seen");
  const V shift = select(nothing, k.all(0), new_max).named("shift");
  const V alpha = exp2_negative(old_max - shift, 5).named("alpha");
  k.store_floats(new_max, row(k.tiling.at.row_max));
  k.store_floats(alpha, row(k.tiling.at.alpha));
  const V sum = k.load_floats(row(k.tiling.at.row_sum));
  return {shift, (sum * alpha).named("sum.rescaled")};
}
void end_softmax(Kernel& k, V column, V sum) {
  k.store_floats(sum, k.ir.element(k.buffer(k.tiling.at.row_sum), Kind::f32, column));
}

// Copies `parts` vectors' worth of elements as fp32.
void copy_as_floats(Kernel& k, V from, V to, int dims) {
  const Kind kind = storage(k.problem.dtype);
  for (int column = 0; column < dims; column += k.tiling.lanes) {
    const int part = std::min(k.tiling.lanes, dims - column);
    const V source = k.ir.offset(from, std::int64_t{column} * bytes_of(kind));
    const V values = load_elements(k.ir, source, k.problem.dtype, part);
    k.ir.store(values, k.ir.offset(to, std::int64_t{column} * 4), 4);
  }
}

// The rows of one block of keys as fp32: where they lie, or copied to scratch, which then stays in the
// nearest cache. Rows past the end repeat the last one; their scores are hidden afterwards. The rows of the
// next block are fetched ahead, since the processor cannot guess a wide stride.
Values key_rows(Kernel& k, const TileRows& keys, V key, V count) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const Kind kind = storage(k.problem.dtype);
  Values rows, ahead, staged;
  for (int j = 0; j < t.key_block; ++j) {
    const V index = smaller(key + j, count - 1).named("key", j);
    rows.push_back(ir.element(keys.base, kind, index * keys.stride).named("k.row", j));
    ahead.push_back(
        ir.element(keys.base, kind, (key + (j + t.key_block)) * keys.stride).named("k.ahead", j));
    staged.push_back(ir.offset(k.buffer(t.at.k), std::int64_t{j} * t.head_dim * 4));
  }
  if (!t.widened) {
    for (const V row : ahead) ir.prefetch(row, Builder::Cache::first);
    return rows;
  }
  const auto copy = [&](V column, int dims) {
    for (std::size_t j = 0; j < rows.size(); ++j) {
      ir.prefetch(ir.element(ahead[j], kind, column), Builder::Cache::first);
      copy_as_floats(k, ir.element(rows[j], kind, column), ir.element(staged[j], Kind::f32, column),
                     dims);
    }
  };
  const int whole = t.head_dim / t.lanes * t.lanes;
  if (whole > 0)
    ir.loop("stage.k", ir.i64(0), ir.i64(whole), t.lanes, [&](V column) { copy(column, t.lanes); });
  if (whole < t.head_dim) copy(ir.i64(whole), t.head_dim - whole);
  return staged;
}

// Copies `panel` columns of the tile's values to scratch as fp32, rows next to each other.
void stage_panel(Kernel& k, const TileRows& values, V first_dim, V count) {
  Builder& ir = k.ir;
  const V panel = ir.element(values.base, storage(k.problem.dtype), first_dim).named("v.panel");
  ir.loop("stage.v", ir.i64(0), count, 1, [&](V key) {
    copy_as_floats(k, ir.element(panel, storage(k.problem.dtype), key * values.stride),
                   ir.element(k.buffer(k.tiling.at.v), Kind::f32, key * k.tiling.panel),
                   k.tiling.panel);
  });
}

// Adds the product with one block of dims to the outputs, and fetches the rows of `ahead` meanwhile.
void add_dim_block(Kernel& k, const TileRows& block, const TileRows& ahead, V scores, V dim,
                   V count, bool rescale) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const int columns = t.query_vectors;
  const V out = k.buffer(t.at.out);
  Values sums;
  for (int i = 0; i < t.dim_block; ++i)
    for (int n = 0; n < columns; ++n) {
      V start = k.load_floats(k.at(out, dim, i * t.tile_q + n * t.lanes)).named("o");
      if (rescale) {
        const V alpha = k.load_floats(ir.offset(k.buffer(t.at.alpha), n * t.lanes * 4));
        start = (start * alpha).named("o.rescaled");
      }
      sums.push_back(start);
    }
  const auto steps = [&](int unroll) {
    return [&, unroll](V key, const Values& carried) {
      Values now = carried;
      V row = ir.element(block.base, Kind::f32, key * block.stride).named("v.row");
      for (int u = 0; u < unroll; ++u) {
        if (u > 0) row = ir.element(row, Kind::f32, block.stride).named("v.row");
        const V next = ir.element(ahead.base, storage(k.problem.dtype), (key + u) * ahead.stride);
        ir.prefetch(next.named("v.ahead"), Builder::Cache::second);
        Values vectors, elements;
        for (int n = 0; n < columns; ++n)
          vectors.push_back(
              k.load_floats(k.at(scores, key, u * t.tile_q + n * t.lanes)).named("p", n));
        for (int i = 0; i < t.dim_block; ++i)
          elements.push_back(ir.load({Kind::f32}, ir.offset(row, i * 4), 4).named("v"));
        accumulate(k, now, elements, vectors);
      }
      return now;
    };
  };
  const V whole = count & -t.unroll;
  sums = ir.loop("pv", ir.i64(0), whole, t.unroll, accumulators(sums), steps(t.unroll));
  if (t.unroll > 1) sums = ir.loop("pv.rest", whole, count, 1, accumulators(sums), steps(1));
  for (int i = 0; i < t.dim_block; ++i)
    for (int n = 0; n < columns; ++n)
      k.store_floats(sums[static_cast<std::size_t>(i * columns + n)],
                     k.at(out, dim, i * t.tile_q + n * t.lanes));
}

}  // namespace

Values multiply_rows(Kernel& k, const ProductNames& names, const Values& rows, int buffer,
                     int dims) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const int columns = t.query_vectors;
  const Values zeros(rows.size() * static_cast<std::size_t>(columns), k.all(0));
  const V queries = k.buffer(buffer);
  return ir.loop(
      names.loop, ir.i64(0), ir.i64(dims), t.unroll, accumulators(zeros),
      [&](V dim, const Values& carried) {
        Values now = carried;
        for (int u = 0; u < t.unroll; ++u) {
          Values vectors, elements;
          for (int n = 0; n < columns; ++n)
            vectors.push_back(k.load_floats(k.at(queries, dim, u * t.tile_q + n * t.lanes))
                                  .named(names.vector, n));
          for (const V row : rows)
            elements.push_back(
                ir.load({Kind::f32}, ir.offset(ir.element(row, Kind::f32, dim), u * 4), 4)
                    .named(names.element));
          accumulate(k, now, elements, vectors);
        }
        return now;
      });
}

void multiply_keys(Kernel& k, const TileRows& keys, V scores, V count, V padded, bool track_max) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const int columns = t.query_vectors;
  ir.loop("key.block", ir.i64(0), padded, t.key_block, [&](V key) {
    const Values rows = key_rows(k, keys, key, count);
    const Values sums = multiply_rows(k, {"qk", "q", "k"}, rows, t.at.q, t.head_dim);
    // Scaling the sums instead of the queries keeps sums of exact products exact.
    ScoreChange change(k, key);
    for (int n = 0; n < columns; ++n) {
      const V place = ir.offset(k.buffer(t.at.tile_max), n * t.lanes * 4);
      V top = track_max ? k.load_floats(place) : V{};
      for (int j = 0; j < t.key_block; ++j) {
        const V score = change(sums[static_cast<std::size_t>(j * columns + n)], j, n);
        k.store_floats(score, k.at(scores, key, j * t.tile_q + n * t.lanes));
        if (track_max) top = larger_float(score, top).named("max");
      }
      if (track_max) k.store_floats(top, place);
    }
  });
}

void softmax_rows(Kernel& k, V rows, V padded) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const int unroll = softmax_unroll(k);
  k.each_vector("softmax", [&](V column) {
    const RowState state = begin_softmax(k, column);
    const V scores = ir.element(rows, Kind::f32, column);
    std::vector<Carried> sums(static_cast<std::size_t>(unroll), {k.all(0), "sum"});
    sums[0].start = state.sum;
    const Values totals =
        ir.loop("weights", ir.i64(0), padded, unroll, sums, [&](V key, const Values& carried) {
          Values weights, next;
          for (int u = 0; u < unroll; ++u) {
            const V score = k.load_floats(k.at(scores, key, u * t.tile_q)).named("score");
            weights.push_back(exp2_negative((score - state.shift).named("below.max"), degree(k)));
          }
          for (int u = 0; u < unroll; ++u) {
            const V weight = weights[static_cast<std::size_t>(u)];
            k.store_floats(weight, k.at(scores, key, u * t.tile_q));
            next.push_back(carried[static_cast<std::size_t>(u)] + weight);
          }
          return next;
        });
    V total = totals[0];
    for (int u = 1; u < unroll; ++u) total = total + totals[static_cast<std::size_t>(u)];
    end_softmax(k, column, total);
  });
}

void softmax_tile_with_dropout(Kernel& k, const Dropout& dropout, V first_key, V count) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const KeepWords keep_words(ir, dropout.key, dropout.threshold, t.lanes);
  const Type words{Kind::i32, t.lanes};
  k.each_vector("softmax", [&](V column) {
    const RowState state = begin_softmax(k, column);
    const V scores = ir.element(k.buffer(t.at.scores), Kind::f32, column);
    const auto row_words = [&](int table) {
      return ir.load(words, ir.element(k.buffer(table), Kind::i32, column), t.lanes * 4);
    };
    const V heads = row_words(t.at.heads).named("heads"), queries = row_words(t.at.queries);
    const V first_word = shift_right(first_key, 5), last_key = first_key + count;
    const V word_end = shift_right(last_key + 31, 5);
    const Values totals = ir.loop(
        "keep", first_word, word_end, 1, {{state.sum, "sum"}}, [&](V word, const Values& carried) {
          const V kept = keep_words(heads, queries, word);
          const V word_key = shift_left(word, 5).named("word.key");
          const V from = larger(word_key, first_key), to = smaller(word_key + 32, last_key);
          return ir.loop(
              "weights", from, to, 1, {{carried[0], "sum"}}, [&](V key, const Values& now) {
                const V place = k.at(scores, key - first_key, 0);
                const V weight = exp2_negative(k.load_floats(place) - state.shift, degree(k));
                const V bit = ir.number(words, std::int64_t{1});
                const V chosen =
                    shift_right(kept, splat(narrow(key - word_key, Kind::i32), t.lanes)) & bit;
                // The sum is that of the undropped softmax.
                k.store_floats(select(equal(chosen, bit), weight, k.all(0)), place);
                return Values{now[0] + weight};
              });
        });
    end_softmax(k, column, totals[0]);
  });
}

void multiply_values(Kernel& k, const TileRows& values, V scores, V count, bool rescale) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const Kind kind = storage(k.problem.dtype);
  // Rows of fp32 are read where they lie, unless all of them fall on the same lines of the first cache.
  V copied;
  if (!t.widened) {
    constexpr std::int64_t kWayElements = 4096 / 4;
    copied = equal(values.stride & (kWayElements - 1), std::int64_t{0}).named("rows.collide");
  }
  ir.loop("dim.panel", ir.i64(0), ir.i64(t.head_dim_v), t.panel, [&](V first) {
    const auto copy = [&] { stage_panel(k, values, first, count); };
    V base = k.buffer(t.at.v), stride = ir.i64(t.panel);
    if (t.widened) {
      copy();
    } else {
      ir.when("copy.panel", copied, copy);
      base = select(copied, base, ir.element(values.base, kind, first)).named("panel");
      stride = select(copied, stride, values.stride).named("panel.stride");
    }
    const TileRows ahead{ir.element(values.base, kind, first + t.panel).named("next.panel"),
                         values.stride};
    ir.loop("dim.block", ir.i64(0), ir.i64(t.panel), t.dim_block, [&](V dim) {
      const TileRows block{ir.element(base, Kind::f32, dim).named("v.block"), stride};
      add_dim_block(k, block, ahead, scores, first + dim, count, rescale);
    });
  });
}

}  // namespace flashwright
