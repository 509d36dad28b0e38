// What the phases of a CPU kernel share while one is being emitted: the builder, the numbers of the
// tiling, the launch parameters by name, and the rows that one task works on. The scores of a tile are
// kept transposed, queries in the lanes of a vector, so that softmax needs no operation across lanes and
// keys and values are only ever read as broadcast elements, wherever their rows lie.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <string>

#include "core/expr.hpp"
#include "core/params.hpp"
#include "generator/cpu/ir.hpp"
#include "generator/cpu/tiling.hpp"

namespace flashwright {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The rows of one task. A tile counts rows over all query heads that share a key head, so that short
// sequences of grouped heads fill the lanes; such a tile may run over several heads.
struct TaskRows {
  ir::V index;  // of the tile among all tiles of all heads
  ir::V batch, head_kv;
  ir::V head, query;                  // of the first row
  ir::V count;                        // rows in use, from 1 to tile_q
  ir::V lowest_query, highest_query;  // over all rows
  ir::V block_row;                    // with block lists: the row of the lists
  ir::V row_in_block;                 // and the first row's place in its mask block
};

class Kernel {
 public:
  Kernel(ir::Builder& builder, const Problem& what, const Tiling& numbers,
         const ParamLayout& layout)
      : ir(builder), problem(what), tiling(numbers), layout_(layout) {}

  // The value of a launch parameter; integers of 32 bits arrive as i64.
  ir::V param(Param param);
  bool has(Param param) const;
  ir::V buffer(int scratch_offset);
  // From here on the buffers of a tile of queries are those of this one.
  void use_slot(ir::V slot) { slot_ = slot; }
  ir::Type floats() const { return {ir::Kind::f32, tiling.lanes}; }
  ir::V all(double value) { return ir.number(floats(), value); }

  // A vector of `column` (a multiple of the lanes) in a row of tile_q floats.
  ir::V at(ir::V rows, ir::V row, int column);
  ir::V load_floats(ir::V pointer) { return ir.load(floats(), pointer, tiling.lanes * 4); }
  void store_floats(ir::V value, ir::V pointer) { ir.store(value, pointer, tiling.lanes * 4); }
  // loop over the columns of a row of tile_q elements, one vector at a time
  void each_vector(const std::string& name, const std::function<void(ir::V)>& body);

  // Numbers below the normal range count as 0 from here on, and no longer: on x86 each of them may cost a
  // hundred cycles.
  void flush_denormals();
  void restore_denormals();

  // First element of a row of a user's tensor. `first` is its base pointer in the parameter table,
  // followed there by the batch, row and head strides from `strides` on.
  ir::V row_of(Param base, Param strides, ir::V batch, ir::V row, ir::V head);

  ir::Builder& ir;
  const Problem& problem;
  const Tiling& tiling;

 private:
  const ParamLayout& layout_;
  ir::V slot_;
};

// Where the keys or values of a tile lie: row j starts at base + j * stride elements.
struct TileRows {
  ir::V base;
  ir::V stride;
};

// --- rows.cpp: which rows a task has, and moving them in and out
TaskRows decode_task(Kernel& k);
TaskRows decode_task_of_lists(Kernel& k);
struct RowCounts {
  ir::V seq_q, group, rows;  // rows: of all heads of a group
};
// The rows of one tile, counted over the heads of a group, or inside of one mask block of a head.
void locate_rows(Kernel& k, TaskRows& task, ir::V tile, const RowCounts& of);
void locate_rows_of_lists(Kernel& k, TaskRows& task, ir::V tile, ir::V block, ir::V seq_q,
                          ir::V block_q);
ir::V list_row(Kernel& k, const TaskRows& task, ir::V block, ir::V query_blocks);
void begin_row_tables(Kernel& k);
// visit(row of the tile, its query, its head) for every row; rows past the end repeat the last one.
void each_row(Kernel& k, const TaskRows& rows, ir::V seq_q,
              const std::function<void(ir::V r, ir::V query, ir::V head)>& visit);
// The slope of a head in units of the scores before their last factor.
ir::V slope_of(Kernel& k, ir::V batch, ir::V head);
// body(first column, columns) for whole vectors of a row and for the half vector that may remain.
void each_row_part(Kernel& k, const std::string& name, int dims,
                   const std::function<void(ir::V, int)>& body);
void fill_row_tables(Kernel& k, const TaskRows& rows, bool inputs, bool outputs);
void pack_queries(Kernel& k);  // transposes, converts and scales
void clear_outputs(Kernel& k);
// Stores `dims` transposed columns from `column` on into the rows of a table.
void store_columns(Kernel& k, const ir::Values& columns, int row_table, ir::V first_row,
                   ir::V column, int dims);
void store_outputs(Kernel& k);  // divides by the row sums, transposes, converts
void store_lse(Kernel& k, const TaskRows& rows);

// --- walk.cpp: the keys that a tile of rows meets, a tile at a time
// What decides about masking one tile.
struct TileTest {
  ir::V needed;               // whether elements have to be looked at
  ir::V bits, words_per_row;  // with block lists: where the bits are
};
using TileBody = std::function<void(ir::V first_key, ir::V count, const TileTest& test)>;
void walk_keys(Kernel& k, const TaskRows& rows, const TileBody& body);
// Hides what rows may not see among the scores of a tile, and what only fills it up.
void hide_keys(Kernel& k, const TaskRows& rows, ir::V scores, ir::V first_key, ir::V count,
               ir::V padded, const TileTest& test);

// --- tile.cpp: the products and the softmax of one tile of keys
// sums[r][n] += element r of a column * vector n of a row, in registers.
void accumulate(Kernel& k, ir::Values& sums, const ir::Values& elements, const ir::Values& vectors);
std::vector<ir::Carried> accumulators(const ir::Values& starts);
// Products of some rows of fp32 with a buffer of (dim, row of the tile): one vector for each row and column.
struct ProductNames {
  const char *loop, *vector, *element;
};
ir::Values multiply_rows(Kernel& k, const ProductNames& names, const ir::Values& rows, int buffer,
                         int dims);
// Keys that the loops over scores take at once: enough to overlap the latency of the series, as far as there are
// registers.
int softmax_unroll(const Kernel& k);
// Of the exponential's series.
inline int degree(const Kernel& k) { return k.problem.dtype == DType::fp32 ? 5 : 4; }
// Scores of `count` keys; up to `padded`, a multiple of the key step, further scores are written that mean
// nothing. Follows the maximum of each query if asked.
void multiply_keys(Kernel& k, const TileRows& keys, ir::V scores, ir::V count, ir::V padded,
                   bool track_max);
struct Dropout {
  ir::V key, threshold;  // i64, i32
};
Dropout read_dropout_key(Kernel& k);
// Weights from scores, in place; updates maxima and sums and leaves the rescale factors in alpha.
void softmax_rows(Kernel& k, ir::V scores, ir::V padded);
void softmax_tile_with_dropout(Kernel& k, const Dropout& dropout, ir::V first_key, ir::V count);
// Adds weights times values to the outputs, which are rescaled by alpha first if asked.
void multiply_values(Kernel& k, const TileRows& values, ir::V scores, ir::V count, bool rescale);

// --- score_ir.cpp
// What becomes of the products of one block of keys that begins at `key` of the tile: scores of the softmax, in
// powers of two.
using ScoreNames = std::map<std::string, ir::V, std::less<>>;
class ScoreChange {
 public:
  ScoreChange(Kernel& kernel, ir::V key);
  // `product` is that of key `j` of the block and one vector of queries.
  ir::V operator()(ir::V product, int j, int vector);
  // Of the score that the last call gave, with respect to the scaled product; only with a softcap.
  ir::V derivative();

 private:
  Kernel& k;
  ir::V factor_, key_;
  ExprPtr value_, derivative_;  // null: scores are only scaled
  ScoreNames names_;
};
// How far the first key of a tile lies behind the position of each row.
void fill_distances(Kernel& k, ir::V first_key);

// --- mask_ir.cpp
struct KeyRange {
  ir::V begin, end;            // keys outside are invisible to every row of the task
  ir::V full_begin, full_end;  // keys inside are visible to every row
};
KeyRange key_range(Kernel& k, const TaskRows& rows);
// The value of a rule over launch parameters.
ir::V integer_of(Kernel& k, const Expr& rule);
// Hides what a query may not see among `count` keys from `first_key` on, and every key from `count` to
// `padded`; computes the tile's maxima anew.
void mask_tile(Kernel& k, ir::V scores, ir::V first_key, ir::V count, ir::V padded);
// The same from the bits of a partial block, where `bits` is the word of the tile's first row and key.
void mask_tile_by_bits(Kernel& k, ir::V scores, ir::V tested, ir::V bits, ir::V words_per_row,
                       ir::V row_count, ir::V count, ir::V padded);

// What kernels of every algorithm are told: tensors, their strides, lengths, group and scale.
ParamLayout common_params();
// And what the mask and the options of a problem add to that.
void add_feature_params(ParamLayout& layout, const Problem& problem);

}  // namespace flashwright
