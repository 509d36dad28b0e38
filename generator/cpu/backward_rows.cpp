// Which rows a tile of the backward kernel works on, and how they come in and go out.
#include <algorithm>

#include "generator/cpu/backward.hpp"
#include "generator/cpu/math_ir.hpp"

namespace flashwright {

using namespace ir;

namespace {

// Part of a vector, the other lanes 0.
V filled_up(Kernel& k, V values, int part) {
  const int lanes = k.tiling.lanes;
  if (part == lanes) return values;
  std::vector<int> mask;
  for (int i = 0; i < lanes; ++i) mask.push_back(i < part ? i : part);
  return mix(values, k.ir.number(Type{Kind::f32, part}, 0.0), mask);
}

V load_part(Kernel& k, V row, V column, int part) {
  const Kind kind = storage(k.problem.dtype);
  return filled_up(k, load_elements(k.ir, k.ir.element(row, kind, column), k.problem.dtype, part),
                   part);
}

V table_entry(Kernel& k, int table, Kind kind, V row) {
  return k.ir.load({kind}, k.ir.element(k.buffer(table), kind, row), bytes_of(kind));
}

void pack(Kernel& k, const std::string& name, int table, int copy, int transposed, int dims,
          int width) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  ir.loop(name + ".rows", ir.i64(0), ir.i64(t.tile_q), 1, [&](V row) {
    copy_row(k, table_entry(k, table, Kind::ptr, row).named("row"),
             ir.element(k.buffer(copy), Kind::f32, row * width), dims);
  });
  k.each_vector(name + ".transpose", [&](V first_row) {
    ir.loop(name + ".columns", ir.i64(0), ir.i64(width), t.lanes, [&](V column) {
      Values rows;
      for (int r = 0; r < t.lanes; ++r)
        rows.push_back(
            k.load_floats(ir.element(k.buffer(copy), Kind::f32, (first_row + r) * width + column)));
      const Values columns = transpose(rows);
      for (int i = 0; i < t.lanes; ++i)
        k.store_floats(columns[static_cast<std::size_t>(i)],
                       ir.element(k.at(k.buffer(transposed), column + i, 0), Kind::f32, first_row));
    });
  });
}

// log2 of the sum of exponentials, and +inf for a row without weights: one that saw no key, or that only fills up
// the tile. 2^(score - inf) is 0.
V row_lse(Kernel& k, const TaskRows& rows, V r, V query, V head) {
  constexpr double kLog2E = 1.4426950408889634;
  const Type number{Kind::f32};
  const V place = rows.batch * k.param(Param::lse_batch_stride) +
                  head * k.param(Param::lse_head_stride) + query;
  const V lse =
      k.ir.load(number, k.ir.element(k.param(Param::lse_given), Kind::f32, place), 4).named("lse");
  const V none = equal(lse, k.ir.number(number, -kInfinity)).named("saw.nothing");
  const V used = less(r, rows.count) & negate_bit(none);
  return select(used, lse * k.ir.number(number, kLog2E), k.ir.number(number, kInfinity));
}

}  // namespace

void copy_row(Kernel& k, V from, V to, int dims) {
  const int lanes = k.tiling.lanes;
  for (int first = 0; first < dims; first += lanes) {
    const V column = k.ir.i64(first);
    k.store_floats(load_part(k, from, column, std::min(lanes, dims - first)),
                   k.ir.element(to, Kind::f32, column));
  }
}

void fill_backward_tables(Kernel& k, const TaskRows& rows) {
  Builder& ir = k.ir;
  const auto& at = k.tiling.at;
  const V seq_q = k.param(Param::seq_q);
  const V first_position = k.has(Param::q_position) ? k.param(Param::q_position) : V{};
  const V d_lse = k.param(Param::d_lse);
  const V d_lse_given = negate_bit(equal(d_lse, ir.null())).named("d_lse.given");
  begin_row_tables(k);
  each_row(k, rows, seq_q, [&](V r, V query, V head) {
    const auto place = [&](int table, Kind kind) { return ir.element(k.buffer(table), kind, r); };
    const auto put = [&](int table, Kind kind, V value) {
      ir.store(value, place(table, kind), bytes_of(kind));
    };
    const auto row = [&](Param base, Param strides) {
      return k.row_of(base, strides, rows.batch, query, head);
    };
    put(at.q_rows, Kind::ptr, row(Param::q, Param::q_batch_stride));
    put(at.o_rows, Kind::ptr, row(Param::o_given, Param::o_batch_stride));
    put(at.d_o_rows, Kind::ptr, row(Param::d_o, Param::d_o_batch_stride));
    put(at.dq_rows, Kind::ptr,
        select(less(r, rows.count), row(Param::dq, Param::dq_batch_stride),
               k.buffer(at.spare_row)));
    put(at.lse, Kind::f32, row_lse(k, rows, r, query, head));
    put(at.delta, Kind::f32, ir.number({Kind::f32}, 0.0));
    ir.when("d_lse", d_lse_given, [&] {
      const V offset = rows.batch * k.param(Param::d_lse_batch_stride) +
                       head * k.param(Param::d_lse_head_stride) + query;
      put(at.delta, Kind::f32, ir.load({Kind::f32}, ir.element(d_lse, Kind::f32, offset), 4));
    });
    if (first_position) put(at.positions, Kind::i64, (query + first_position).named("position"));
    if (k.problem.dropout) {
      put(at.queries, Kind::i32, narrow(query, Kind::i32));
      put(at.heads, Kind::i32, narrow(rows.batch * k.param(Param::heads_q) + head, Kind::i32));
    }
    if (k.problem.alibi) put(at.slopes, Kind::f32, slope_of(k, rows.batch, head));
  });
}

void pack_backward_rows(Kernel& k) {
  const Tiling& t = k.tiling;
  k.ir.phase("pack.queries", "Queries: to fp32, in rows and transposed to (dim, row).");
  pack(k, "queries", t.at.q_rows, t.at.q_copy, t.at.q, t.head_dim, t.width);
  k.ir.phase("pack.gradients", "Gradients of the outputs, the same.");
  pack(k, "gradients", t.at.d_o_rows, t.at.d_o_copy, t.at.d_o, t.head_dim_v, t.width_v);
}

void find_delta(Kernel& k) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  ir.phase("delta", "Row sums of the outputs times their gradients, less the gradient of the LSE.");
  const int whole = t.head_dim_v / t.lanes * t.lanes;
  ir.loop("delta.row", ir.i64(0), ir.i64(t.tile_q), 1, [&](V row) {
    const V o = table_entry(k, t.at.o_rows, Kind::ptr, row).named("o.row");
    const V d_o = ir.element(k.buffer(t.at.d_o_copy), Kind::f32, row * t.width_v);
    const auto add = [&](V sum, V column, int part) {
      const V gradient = k.load_floats(ir.element(d_o, Kind::f32, column));
      return fma(load_part(k, o, column, part), gradient, sum).named("delta.sum");
    };
    V sum = k.all(0);
    if (whole > 0)
      sum = ir.loop(
          "delta.dims", ir.i64(0), ir.i64(whole), t.lanes, {{sum, "sum"}},
          [&](V column, const Values& now) { return Values{add(now[0], column, t.lanes)}; })[0];
    if (whole < t.head_dim_v) sum = add(sum, ir.i64(whole), t.head_dim_v - whole);
    k.store_floats(sum, ir.element(k.buffer(t.at.row_sums), Kind::f32, row * t.lanes));
  });
  k.each_vector("delta.vector", [&](V first_row) {
    Values rows;
    for (int r = 0; r < t.lanes; ++r)
      rows.push_back(
          k.load_floats(ir.element(k.buffer(t.at.row_sums), Kind::f32, (first_row + r) * t.lanes)));
    Values parts = transpose(rows);
    for (std::size_t half = parts.size() / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) parts[i] = parts[i] + parts[i + half];
    const V place = ir.element(k.buffer(t.at.delta), Kind::f32, first_row);
    k.store_floats((parts[0] - k.load_floats(place)).named("delta"), place);
  });
}

void clear_dq(Kernel& k) {
  Builder& ir = k.ir;
  const std::int64_t size = std::int64_t{k.tiling.head_dim} * k.tiling.tile_q;
  ir.loop("clear.dq", ir.i64(0), ir.i64(size), k.tiling.lanes, [&](V i) {
    k.store_floats(k.all(0), ir.element(k.buffer(k.tiling.at.out), Kind::f32, i));
  });
}

void store_dq(Kernel& k) {
  Builder& ir = k.ir;
  const int lanes = k.tiling.lanes;
  const V scale = splat(k.param(Param::softmax_scale), lanes);
  k.each_vector("dq.rows", [&](V first_row) {
    each_row_part(k, "dq.dims", k.tiling.head_dim, [&](V column, int dims) {
      Values columns(static_cast<std::size_t>(lanes), ir.undefined(k.floats()));
      for (int i = 0; i < dims; ++i) {
        const V from =
            ir.element(k.at(k.buffer(k.tiling.at.out), column + i, 0), Kind::f32, first_row);
        columns[static_cast<std::size_t>(i)] = (k.load_floats(from) * scale).named("dq");
      }
      store_columns(k, columns, k.tiling.at.dq_rows, first_row, column, dims);
    });
  });
}

}  // namespace flashwright
