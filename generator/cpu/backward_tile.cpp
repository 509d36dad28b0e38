// The work of the backward kernel on one tile of keys: five products, and between them weights and score gradients.
// All operands lie in scratch as fp32, so the inner loops are the same for every element type.
#include "generator/cpu/backward.hpp"
#include "generator/cpu/math_ir.hpp"

namespace flashwright {

using namespace ir;

namespace {

V element_at(Kernel& k, int buffer, V index) {
  return k.ir.element(k.buffer(buffer), Kind::f32, index);
}

// The rows of one block of keys among copied ones.
Values block_rows(Kernel& k, V copies, int width, V key) {
  Values rows;
  const V first = k.ir.element(copies, Kind::f32, key * width);
  for (int j = 0; j < k.tiling.key_block; ++j)
    rows.push_back(k.ir.offset(first, std::int64_t{j} * width * 4).named("row", j));
  return rows;
}

// What one vector of queries needs to know about itself.
struct RowNumbers {
  V lse, delta;
};
RowNumbers row_numbers(Kernel& k, V column) {
  return {k.load_floats(element_at(k, k.tiling.at.lse, column)).named("lse"),
          k.load_floats(element_at(k, k.tiling.at.delta, column)).named("delta")};
}

// Weight and score gradient of one key and one vector of queries. `kept` are the truth values of dropout, if any.
void find_gradient(Kernel& k, const RowNumbers& row, V key, int step, V column, V kept,
                   V keep_scale) {
  const Tiling& t = k.tiling;
  const auto place = [&](int buffer) {
    return k.at(element_at(k, buffer, column), key, step * t.tile_q);
  };
  const V score = k.load_floats(place(t.at.scores)).named("score");
  const V weight = exp2_negative((score - row.lse).named("below.lse"), degree(k)).named("weight");
  V d_weight = k.load_floats(place(t.at.d_scores)).named("d.weight");
  if (kept) d_weight = select(kept, d_weight * keep_scale, k.all(0)).named("d.kept");
  V d_score = (weight * (d_weight - row.delta)).named("d.score");
  if (t.at.derivative >= 0) d_score = d_score * k.load_floats(place(t.at.derivative));
  k.store_floats(d_score, place(t.at.d_scores));
  // What the values get is scaled up at the very end.
  k.store_floats(kept ? select(kept, weight, k.all(0)) : weight, place(t.at.scores));
}

// Columns [first, first + vectors) of the sums of one block of keys.
void add_block(Kernel& k, const char* name, V weights, V copy, int width, V sums, V row_count,
               int vectors) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const auto sum_at = [&](int j, int n) {
    return ir.offset(sums, (std::int64_t{j} * width + std::int64_t{n} * t.lanes) * 4);
  };
  Values starts;
  for (int j = 0; j < t.key_block; ++j)
    for (int n = 0; n < vectors; ++n) starts.push_back(k.load_floats(sum_at(j, n)).named("sum"));
  // The sums of the next block come from the second cache, or from beyond it, while this one is computed.
  for (int j = 0; j < t.key_block; ++j)
    for (int n = 0; n < vectors; ++n)
      ir.prefetch(sum_at(t.key_block + j, n), Builder::Cache::first);
  // Rows past the last one have no weight.
  const V end = ((row_count + (t.unroll - 1)) & -t.unroll).named("row.end");
  const Values totals = ir.loop(
      name, ir.i64(0), end, t.unroll, accumulators(starts), [&](V row, const Values& carried) {
        Values now = carried;
        for (int u = 0; u < t.unroll; ++u) {
          Values loaded, elements;
          const V from = ir.element(copy, Kind::f32, row * width);
          for (int n = 0; n < vectors; ++n)
            loaded.push_back(
                k.load_floats(ir.offset(from, (std::int64_t{u} * width + n * t.lanes) * 4))
                    .named("row", n));
          for (int j = 0; j < t.key_block; ++j)
            elements.push_back(ir.load({Kind::f32},
                                       ir.offset(ir.element(weights, Kind::f32, row),
                                                 (std::int64_t{j} * t.tile_q + u) * 4),
                                       4)
                                   .named("weight"));
          accumulate(k, now, elements, loaded);
        }
        return now;
      });
  for (int j = 0; j < t.key_block; ++j)
    for (int n = 0; n < vectors; ++n)
      k.store_floats(totals[static_cast<std::size_t>(j * vectors + n)], sum_at(j, n));
}

}  // namespace

void multiply_scores(Kernel& k, V keys, V padded) {
  const Tiling& t = k.tiling;
  k.ir.loop("score.block", k.ir.i64(0), padded, t.key_block, [&](V key) {
    const Values sums =
        multiply_rows(k, {"kq", "q", "k"}, block_rows(k, keys, t.width, key), t.at.q, t.head_dim);
    ScoreChange change(k, key);
    for (int n = 0; n < t.query_vectors; ++n)
      for (int j = 0; j < t.key_block; ++j) {
        const auto place = [&](int buffer) {
          return k.at(k.buffer(buffer), key, j * t.tile_q + n * t.lanes);
        };
        const V product = sums[static_cast<std::size_t>(j * t.query_vectors + n)];
        k.store_floats(change(product, j, n), place(t.at.scores));
        if (t.at.derivative >= 0) k.store_floats(change.derivative(), place(t.at.derivative));
      }
  });
}

void multiply_weights(Kernel& k, V values, V padded) {
  const Tiling& t = k.tiling;
  k.ir.loop("weight.block", k.ir.i64(0), padded, t.key_block, [&](V key) {
    const Values sums = multiply_rows(k, {"vg", "g", "v"}, block_rows(k, values, t.width_v, key),
                                      t.at.d_o, t.head_dim_v);
    for (int j = 0; j < t.key_block; ++j)
      for (int n = 0; n < t.query_vectors; ++n)
        k.store_floats(sums[static_cast<std::size_t>(j * t.query_vectors + n)],
                       k.at(k.buffer(t.at.d_scores), key, j * t.tile_q + n * t.lanes));
  });
}

void find_gradients(Kernel& k, V padded) {
  const int unroll = softmax_unroll(k);
  k.each_vector("gradients", [&](V column) {
    const RowNumbers row = row_numbers(k, column);
    k.ir.loop("gradient", k.ir.i64(0), padded, unroll, [&](V key) {
      for (int u = 0; u < unroll; ++u) find_gradient(k, row, key, u, column, {}, {});
    });
  });
}

void find_gradients_with_dropout(Kernel& k, const Dropout& dropout, V first_key, V count,
                                 V padded) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const KeepWords keep_words(ir, dropout.key, dropout.threshold, t.lanes);
  const Type words{Kind::i32, t.lanes};
  const V keep_scale = splat(k.param(Param::keep_scale), t.lanes);
  k.each_vector("gradients", [&](V column) {
    const RowNumbers row = row_numbers(k, column);
    const auto row_words = [&](int table) {
      return ir.load(words, ir.element(k.buffer(table), Kind::i32, column), t.lanes * 4);
    };
    const V heads = row_words(t.at.heads).named("heads"), queries = row_words(t.at.queries);
    const V first_word = shift_right(first_key, 5), last_key = first_key + count;
    ir.loop("keep", first_word, shift_right(last_key + 31, 5), 1, [&](V word) {
      const V kept = keep_words(heads, queries, word);
      const V word_key = shift_left(word, 5).named("word.key");
      const V from = larger(word_key, first_key), to = smaller(word_key + 32, last_key);
      ir.loop("gradient", from, to, 1, [&](V key) {
        const V bit = ir.number(words, std::int64_t{1});
        const V chosen = shift_right(kept, splat(narrow(key - word_key, Kind::i32), t.lanes)) & bit;
        find_gradient(k, row, key - first_key, 0, column, equal(chosen, bit), keep_scale);
      });
    });
    // Keys that only fill up the tile.
    ir.loop("gradient.padding", count, padded, 1, [&](V key) {
      for (const int buffer : {t.at.scores, t.at.d_scores})
        k.store_floats(k.all(0), k.at(element_at(k, buffer, column), key, 0));
    });
  });
}

void add_to_keys(Kernel& k, const char* name, int weights, int copy, int width, V sums, V row_count,
                 V padded) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const int vectors = t.row_vectors(width), all = width / t.lanes;
  const int whole = all / vectors * vectors;
  const auto columns = [&](V column, int count) {
    const V from = element_at(k, copy, column);
    ir.loop("key.rows", ir.i64(0), padded, t.key_block, [&](V key) {
      add_block(k, name, k.at(k.buffer(weights), key, 0), from, width,
                ir.element(sums, Kind::f32, key * width + column), row_count, count);
    });
  };
  ir.loop("sum.columns", ir.i64(0), ir.i64(std::int64_t{whole} * t.lanes),
          std::int64_t{vectors} * t.lanes, [&](V column) { columns(column, vectors); });
  if (whole < all) columns(ir.i64(std::int64_t{whole} * t.lanes), all - whole);
}

namespace {

// Adds the product of one block of dims to their sums.
void add_dq_block(Kernel& k, V keys, V dim, int dims, V count) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const int columns = t.query_vectors;
  const auto sum_at = [&](int i, int n) {
    return k.at(k.buffer(t.at.out), dim, i * t.tile_q + n * t.lanes);
  };
  Values sums;
  for (int i = 0; i < dims; ++i)
    for (int n = 0; n < columns; ++n) sums.push_back(k.load_floats(sum_at(i, n)).named("dq"));
  const V base = ir.element(keys, Kind::f32, dim);
  const auto steps = [&](int unroll) {
    return [&, unroll](V key, const Values& carried) {
      Values now = carried;
      for (int u = 0; u < unroll; ++u) {
        Values vectors, elements;
        for (int n = 0; n < columns; ++n)
          vectors.push_back(
              k.load_floats(k.at(k.buffer(t.at.d_scores), key, u * t.tile_q + n * t.lanes))
                  .named("ds", n));
        const V row = ir.element(base, Kind::f32, key * t.width);
        for (int i = 0; i < dims; ++i)
          elements.push_back(
              ir.load({Kind::f32}, ir.offset(row, (std::int64_t{u} * t.width + i) * 4), 4)
                  .named("k"));
        accumulate(k, now, elements, vectors);
      }
      return now;
    };
  };
  const V whole = count & -t.unroll;
  sums = ir.loop("kds", ir.i64(0), whole, t.unroll, accumulators(sums), steps(t.unroll));
  if (t.unroll > 1) sums = ir.loop("kds.rest", whole, count, 1, accumulators(sums), steps(1));
  for (int i = 0; i < dims; ++i)
    for (int n = 0; n < columns; ++n)
      k.store_floats(sums[static_cast<std::size_t>(i * columns + n)], sum_at(i, n));
}

}  // namespace

void add_to_dq(Kernel& k, V keys, V count) {
  const Tiling& t = k.tiling;
  const int rest = t.head_dim % t.dim_block, whole = t.head_dim - rest;
  k.ir.loop("dq.block", k.ir.i64(0), k.ir.i64(whole), t.dim_block,
            [&](V dim) { add_dq_block(k, keys, dim, t.dim_block, count); });
  if (rest > 0) add_dq_block(k, keys, k.ir.i64(whole), rest, count);
}

}  // namespace flashwright
