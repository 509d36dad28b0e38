// What the workspace keeps for keys and values: their copies, made before the tasks run, and the sums of the tasks,
// added up when they have run. In the user's tensors the rows of a head lie far apart, each on a page of its own, which
// no processor fetches ahead; and each group of query tiles reads all of them again.
#include <fmt/format.h>

#include "core/expr_parse.hpp"
#include "generator/cpu/backward.hpp"
#include "generator/cpu/backward_ir.hpp"
#include "generator/cpu/math_ir.hpp"

namespace flashwright {

using namespace ir;

namespace {

// The keys of one task: some of one head.
struct KeyChunk {
  V pair, batch, head_kv;
  V first, end;
};
KeyChunk key_chunk(Kernel& k, V rows) {
  const V heads_kv = k.param(Param::heads_kv);
  const V chunks = divide_unsigned(rows + (kChunkKeys - 1), k.ir.i64(kChunkKeys));
  const V pair = divide_unsigned(k.ir.task(), chunks).named("batch.and.head");
  const V first = (remainder_unsigned(k.ir.task(), chunks) * kChunkKeys).named("first.key");
  return {pair, divide_unsigned(pair, heads_kv).named("b"),
          remainder_unsigned(pair, heads_kv).named("h_kv"), first,
          smaller(first + kChunkKeys, rows)};
}

}  // namespace

Wanted read_wanted(Kernel& k) {
  const auto given = [&](Param param, const char* name) {
    return negate_bit(equal(k.param(param), k.ir.null())).named(name);
  };
  return {given(Param::dq, "dq.wanted"), given(Param::dk, "dk.wanted"),
          given(Param::dv, "dv.wanted")};
}

std::string workspace_rows_rule(const Tiling& tiling) {
  return fmt::format("(seq_kv + {})", tiling.key_block);  // the last block is computed whole
}

std::string workspace_rule(const Tiling& t, const std::string& heads, const std::string& tasks) {
  return fmt::format("4 * {} * ({} * {} + {} * (want_dk * {} + want_dv * {}))",
                     workspace_rows_rule(t), heads, t.width + t.width_v, tasks, t.width, t.width_v);
}

Workspace workspace_of(Kernel& k, const Wanted& wanted, V heads, V tasks) {
  const Tiling& t = k.tiling;
  const auto behind = [&](V place, V rows, int width) {
    return k.ir.element(place, Kind::f32, rows * width);
  };
  Workspace out;
  out.rows = integer_of(k, *parse_expr(workspace_rows_rule(t))).named("workspace.rows");
  out.k = k.param(Param::workspace);
  out.v = behind(out.k, heads * out.rows, t.width);
  out.dk = behind(out.v, heads * out.rows, t.width_v);
  out.dv = behind(out.dk, select(wanted.dk, tasks * out.rows, k.ir.i64(0)), t.width);
  return out;
}

void emit_copy(Kernel& k) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const Wanted wanted = read_wanted(k);
  const V heads = k.param(Param::heads_kv) * k.param(Param::batch);
  const Workspace work = workspace_of(k, wanted, heads, ir.i64(0));
  const KeyChunk chunk = key_chunk(k, work.rows);
  const V seq_kv = k.param(Param::seq_kv);
  const auto copy = [&](const char* name, Param base, Param strides, V to, int dims, int width) {
    const V rows = ir.element(to, Kind::f32, chunk.pair * work.rows * width);
    const auto row = [&](V key) { return ir.element(rows, Kind::f32, key * width); };
    ir.loop(name, chunk.first, smaller(chunk.end, seq_kv), 1, [&](V key) {
      copy_row(k, k.row_of(base, strides, chunk.batch, key, chunk.head_kv), row(key), dims);
    });
    ir.loop("copy.nothing", larger(chunk.first, seq_kv), chunk.end, 1, [&](V key) {
      for (int column = 0; column < width; column += t.lanes)
        k.store_floats(k.all(0), ir.offset(row(key), std::int64_t{column} * 4));
    });
  };
  k.flush_denormals();
  ir.phase("copy", "Keys and values as fp32, side by side; zeros behind the last one.");
  copy("copy.k", Param::k, Param::k_batch_stride, work.k, t.head_dim, t.width);
  ir.when("copy.values", wanted.scores(), [&] {
    copy("copy.v", Param::v, Param::v_batch_stride, work.v, t.head_dim_v, t.width_v);
  });
  k.restore_denormals();
}

void emit_convert(Kernel& k) {
  Builder& ir = k.ir;
  const Tiling& t = k.tiling;
  const V parts = integer_of(k, *parse_expr(backward_parts_rule(k.problem, t))).named("parts");
  const KeyChunk chunk = key_chunk(k, k.param(Param::seq_kv));
  k.flush_denormals();
  const Wanted wanted = read_wanted(k);
  const V heads = k.param(Param::heads_kv) * k.param(Param::batch);
  const Workspace work = workspace_of(k, wanted, heads, parts * heads);
  const auto convert = [&](const char* name, V needed, V from, Param base, Param strides, int dims,
                           int width, V factor) {
    const V scale = splat(factor, t.lanes);
    ir.when(name, needed, [&] {
      ir.loop("convert.row", chunk.first, chunk.end, 1, [&](V key) {
        const V row = k.row_of(base, strides, chunk.batch, key, chunk.head_kv);
        each_row_part(k, "convert.dims", dims, [&](V column, int part) {
          const V total = ir.loop(
              "convert.part", ir.i64(0), parts, 1, {{k.all(0), "total"}},
              [&](V task, const Values& now) {
                const V place = ((chunk.pair * parts + task) * work.rows + key) * width + column;
                return Values{now[0] + k.load_floats(ir.element(from, Kind::f32, place))};
              })[0];
          V values = total * scale;
          if (part < t.lanes) {
            std::vector<int> used;
            for (int i = 0; i < part; ++i) used.push_back(i);
            values = mix(values, values, used);
          }
          store_elements(ir, values, ir.element(row, storage(k.problem.dtype), column),
                         k.problem.dtype, part);
        });
      });
    });
  };
  ir.phase("convert", "Gradients of keys and values: summed over the parts, scaled, stored.");
  convert("convert.dk", wanted.dk, work.dk, Param::dk, Param::dk_batch_stride, t.head_dim, t.width,
          k.param(Param::softmax_scale));
  convert("convert.dv", wanted.dv, work.dv, Param::dv, Param::dv_batch_stride, t.head_dim_v,
          t.width_v,
          k.problem.dropout ? k.param(Param::keep_scale) : ir.number(Type{Kind::f32}, 1.0));
  k.restore_denormals();
}

}  // namespace flashwright
