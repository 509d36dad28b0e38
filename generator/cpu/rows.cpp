// Which rows a task of a CPU kernel works on, and how they come in and go out.
#include "generator/cpu/kernel.hpp"
#include "generator/cpu/math_ir.hpp"

namespace flashwright {

using namespace ir;

namespace {

V ceil_divide(V a, V b) { return divide_unsigned(a + (b - 1), b); }

// The transposed tile of W rows by `dims` columns, dims being W or, at the end of a row, half of it.
Values load_transposed(Kernel& k, V row_table, V first_row, V column, int dims) {
  Builder& ir = k.ir;
  const int lanes = k.tiling.lanes;
  std::vector<int> widened(static_cast<std::size_t>(lanes), -1);
  for (int i = 0; i < dims; ++i) widened[static_cast<std::size_t>(i)] = i;
  Values rows;
  for (int r = 0; r < lanes; ++r) {
    const V row =
        ir.load({Kind::ptr}, ir.element(row_table, Kind::ptr, first_row + r), 8).named("row", r);
    const V values =
        load_elements(ir, ir.element(row, storage(k.problem.dtype), column), k.problem.dtype, dims);
    rows.push_back(dims == lanes ? values : mix(values, values, widened));
  }
  return transpose(rows);
}

}  // namespace

void each_row_part(Kernel& k, const std::string& name, int dims,
                   const std::function<void(V, int)>& body) {
  const int lanes = k.tiling.lanes;
  const int whole = dims / lanes * lanes;
  if (whole > 0)
    k.ir.loop(name, k.ir.i64(0), k.ir.i64(whole), lanes, [&](V column) { body(column, lanes); });
  if (whole < dims) body(k.ir.i64(whole), dims - whole);
}

V slope_of(Kernel& k, V batch, V head) {
  constexpr double kLog2E = 1.4426950408889634;
  const V place =
      batch * k.param(Param::alibi_batch_stride) + head * k.param(Param::alibi_head_stride);
  const V slope =
      k.ir.load({Kind::f32}, k.ir.element(k.param(Param::alibi_slopes), Kind::f32, place), 4);
  const V factor = k.param(k.problem.softcap ? Param::softcap_log2 : Param::scale_log2);
  return divide_float(slope * k.ir.number({Kind::f32}, kLog2E), factor).named("slope");
}

TaskRows decode_task(Kernel& k) {
  Builder& ir = k.ir;
  const int tile_q = k.tiling.tile_q;
  const V seq_q = k.param(Param::seq_q), group = k.param(Param::group);
  const V heads_kv = k.param(Param::heads_kv);
  const V rows = (seq_q * group).named("rows");
  const V tiles = ceil_divide(rows, ir.i64(tile_q)).named("tiles");
  TaskRows task;
  // Late queries see the most keys under a causal mask: longest first evens out the last tasks.
  const V tile = (tiles - 1 - remainder_unsigned(ir.task(), tiles)).named("tile");
  const V pair = divide_unsigned(ir.task(), tiles).named("batch.and.head");
  task.index = (pair * tiles + tile).named("tile.index");
  task.batch = divide_unsigned(pair, heads_kv).named("b");
  task.head_kv = remainder_unsigned(pair, heads_kv).named("h_kv");
  locate_rows(k, task, tile, {seq_q, group, rows});
  return task;
}

void locate_rows(Kernel& k, TaskRows& task, V tile, const RowCounts& of) {
  Builder& ir = k.ir;
  const int tile_q = k.tiling.tile_q;
  const auto& [seq_q, group, rows] = of;
  const V first = (tile * tile_q).named("first.row");
  task.count = smaller(rows - first, ir.i64(tile_q)).named("row.count");
  const V last = (first + task.count - 1).named("last.row");
  const V head_in_group = divide_unsigned(first, seq_q).named("head.in.group");
  task.head = (task.head_kv * group + head_in_group).named("h");
  task.query = remainder_unsigned(first, seq_q).named("query");
  const V one_head = equal(head_in_group, divide_unsigned(last, seq_q)).named("one.head");
  task.lowest_query = select(one_head, task.query, ir.i64(0)).named("lowest.query");
  task.highest_query =
      select(one_head, remainder_unsigned(last, seq_q), seq_q - 1).named("highest.query");
}

TaskRows decode_task_of_lists(Kernel& k) {
  Builder& ir = k.ir;
  const int tile_q = k.tiling.tile_q;
  const V seq_q = k.param(Param::seq_q), heads_q = k.param(Param::heads_q);
  const V block_q = k.param(Param::block_q), query_blocks = k.param(Param::query_blocks);
  const V tiles = ceil_divide(block_q, ir.i64(tile_q)).named("tiles.per.block");
  TaskRows task;
  task.index = ir.task();
  const V tile = remainder_unsigned(ir.task(), tiles).named("tile");
  const V rest = divide_unsigned(ir.task(), tiles);
  const V block = remainder_unsigned(rest, query_blocks).named("query.block");
  const V pair = divide_unsigned(rest, query_blocks).named("batch.and.head");
  task.batch = divide_unsigned(pair, heads_q).named("b");
  task.head = remainder_unsigned(pair, heads_q).named("h");
  task.head_kv = divide_unsigned(task.head, k.param(Param::group)).named("h_kv");
  locate_rows_of_lists(k, task, tile, block, seq_q, block_q);
  // The last mask block may end before its last tile begins.
  ir.leave_when("no.rows", less(task.count, std::int64_t{1}));
  task.block_row = list_row(k, task, block, query_blocks);
  return task;
}

void locate_rows_of_lists(Kernel& k, TaskRows& task, V tile, V block, V seq_q, V block_q) {
  const int tile_q = k.tiling.tile_q;
  task.row_in_block = (tile * tile_q).named("row.in.block");
  const V block_start = (block * block_q).named("block.start");
  task.query = task.lowest_query = (block_start + task.row_in_block).named("query");
  const V end = smaller(block_start + block_q, seq_q);
  task.count = smaller(end - task.query, k.ir.i64(tile_q)).named("row.count");
  task.highest_query = task.query + task.count - 1;
}

V list_row(Kernel& k, const TaskRows& task, V block, V query_blocks) {
  const V mask_heads = k.param(Param::mask_heads);
  const V matrix = remainder_unsigned(task.batch, k.param(Param::mask_batch)) * mask_heads +
                   remainder_unsigned(task.head, mask_heads);
  return (matrix * query_blocks + block).named("list.row");
}

void begin_row_tables(Kernel& k) {
  k.ir.phase("row.tables",
             "Where each row of the tile lies. Rows past the end repeat the last one on the "
             "way in and go to a spare row on the way out.");
}

void each_row(Kernel& k, const TaskRows& rows, V seq_q,
              const std::function<void(V r, V query, V head)>& visit) {
  Builder& ir = k.ir;
  const auto body = [&](V r, const Values& now) -> Values {
    const V query = now[0], head = now[1];
    visit(r, query, head);
    const V advance = less(r + 1, rows.count).named("advance");
    const V following = query + 1;
    const V wraps = equal(following, seq_q).named("wraps");
    const V next_query = select(wraps, ir.i64(0), following);
    const V next_head = select(wraps, head + 1, head);
    return {select(advance, next_query, query), select(advance, next_head, head)};
  };
  ir.loop("row", ir.i64(0), ir.i64(k.tiling.tile_q), 1,
          {{rows.query, "row.query"}, {rows.head, "row.head"}}, body);
}

void fill_row_tables(Kernel& k, const TaskRows& rows, bool inputs, bool outputs) {
  Builder& ir = k.ir;
  const auto& at = k.tiling.at;
  const V seq_q = k.param(Param::seq_q);
  const V first_position = inputs && k.has(Param::q_position) ? k.param(Param::q_position) : V{};
  begin_row_tables(k);
  each_row(k, rows, seq_q, [&](V r, V query, V head) {
    const auto put = [&](int table, Kind kind, V value) {
      ir.store(value, ir.element(k.buffer(table), kind, r), bytes_of(kind));
    };
    if (inputs)
      put(at.q_rows, Kind::ptr,
          k.row_of(Param::q, Param::q_batch_stride, rows.batch, query, head).named("q.row"));
    if (outputs) {
      const V row =
          k.row_of(Param::o, Param::o_batch_stride, rows.batch, query, head).named("o.row");
      put(at.o_rows, Kind::ptr, select(less(r, rows.count), row, k.buffer(at.spare_row)));
    }
    if (k.has(Param::lse_head_stride))
      put(at.lse_offsets, Kind::i64,
          rows.batch * k.param(Param::lse_batch_stride) + head * k.param(Param::lse_head_stride) +
              query);
    if (first_position) put(at.positions, Kind::i64, (query + first_position).named("position"));
    if (k.problem.dropout && inputs) {
      put(at.queries, Kind::i32, narrow(query, Kind::i32));
      put(at.heads, Kind::i32, narrow(rows.batch * k.param(Param::heads_q) + head, Kind::i32));
    }
    if (k.problem.alibi && inputs) put(at.slopes, Kind::f32, slope_of(k, rows.batch, head));
  });
}

void pack_queries(Kernel& k) {
  Builder& ir = k.ir;
  ir.phase("pack.queries", "Queries: to fp32, transposed to (dim, row).");
  k.each_vector("pack.rows", [&](V first_row) {
    each_row_part(k, "pack.dims", k.tiling.head_dim, [&](V column, int dims) {
      const Values columns =
          load_transposed(k, k.buffer(k.tiling.at.q_rows), first_row, column, dims);
      for (int i = 0; i < dims; ++i) {
        const V to = ir.element(k.at(k.buffer(k.tiling.at.q), column + i, 0), Kind::f32, first_row);
        k.store_floats(columns[static_cast<std::size_t>(i)], to);
      }
    });
  });
}

void clear_outputs(Kernel& k) {
  Builder& ir = k.ir;
  ir.phase("clear", "Nothing seen yet: maxima are -inf, sums and outputs are 0.");
  k.each_vector("clear.row", [&](V column) {
    k.store_floats(k.all(-kInfinity), ir.element(k.buffer(k.tiling.at.row_max), Kind::f32, column));
    k.store_floats(k.all(0), ir.element(k.buffer(k.tiling.at.row_sum), Kind::f32, column));
  });
  const std::int64_t size = std::int64_t{k.tiling.head_dim_v} * k.tiling.tile_q;
  ir.loop("clear.out", ir.i64(0), ir.i64(size), k.tiling.lanes, [&](V i) {
    k.store_floats(k.all(0), ir.element(k.buffer(k.tiling.at.out), Kind::f32, i));
  });
}

void store_columns(Kernel& k, const Values& columns, int row_table, V first_row, V column,
                   int dims) {
  Builder& ir = k.ir;
  const int lanes = k.tiling.lanes;
  Values rows = transpose(columns);
  std::vector<int> used;
  for (int i = 0; i < dims; ++i) used.push_back(i);
  for (int r = 0; r < lanes; ++r) {
    const V place = ir.element(k.buffer(row_table), Kind::ptr, first_row + r);
    const V row = ir.load({Kind::ptr}, place, 8).named("row", r);
    V values = rows[static_cast<std::size_t>(r)];
    if (dims < lanes) values = mix(values, values, used);
    store_elements(ir, values, ir.element(row, storage(k.problem.dtype), column), k.problem.dtype,
                   dims);
  }
}

void store_outputs(Kernel& k) {
  Builder& ir = k.ir;
  const int lanes = k.tiling.lanes;
  ir.phase("store.outputs",
           "Outputs: divided by the row sums, transposed back, converted and stored.");
  const V scale = k.problem.dropout ? splat(k.param(Param::keep_scale), lanes) : k.all(1);
  k.each_vector("store.rows", [&](V first_row) {
    const V sum = k.load_floats(ir.element(k.buffer(k.tiling.at.row_sum), Kind::f32, first_row));
    // A sum of 0 means that no key was visible; a NaN is not 0 and stays.
    const V empty = equal(sum.named("row.sum"), k.all(0)).named("empty");
    const V inverse = divide_float(scale, sum).named("inverse");
    each_row_part(k, "store.dims", k.tiling.head_dim_v, [&](V column, int dims) {
      Values columns(static_cast<std::size_t>(lanes), ir.undefined(k.floats()));
      for (int i = 0; i < dims; ++i) {
        const V from =
            ir.element(k.at(k.buffer(k.tiling.at.out), column + i, 0), Kind::f32, first_row);
        columns[static_cast<std::size_t>(i)] =
            select(empty, k.all(0), k.load_floats(from) * inverse).named("o");
      }
      store_columns(k, columns, k.tiling.at.o_rows, first_row, column, dims);
    });
  });
}

void store_lse(Kernel& k, const TaskRows& rows) {
  Builder& ir = k.ir;
  ir.phase("lse", "Logarithm of the row sums, base e; -inf for a row that saw no key.");
  const V lse = k.param(Param::lse);
  ir.when("lse.wanted", negate_bit(equal(lse, ir.null())), [&] {
    constexpr double kLn2 = 0.6931471805599453;
    const V values = k.buffer(k.tiling.at.tile_max);
    k.each_vector("lse.vector", [&](V column) {
      const V sum = k.load_floats(ir.element(k.buffer(k.tiling.at.row_sum), Kind::f32, column));
      const V top = k.load_floats(ir.element(k.buffer(k.tiling.at.row_max), Kind::f32, column));
      const V natural = ((top + log2_positive(sum)) * k.all(kLn2)).named("lse.value");
      const V empty = equal(sum, k.all(0)).named("empty");
      k.store_floats(select(empty, k.all(-kInfinity), natural),
                     ir.element(values, Kind::f32, column));
    });
    ir.loop("lse.row", ir.i64(0), rows.count, 1, [&](V r) {
      const V value = ir.load({Kind::f32}, ir.element(values, Kind::f32, r), 4);
      const V place =
          ir.load({Kind::i64}, ir.element(k.buffer(k.tiling.at.lse_offsets), Kind::i64, r), 8);
      ir.store(value, ir.element(lse, Kind::f32, place), 4);
    });
  });
}

}  // namespace flashwright
