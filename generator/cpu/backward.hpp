// The phases of the backward kernel. A task owns some query tiles of one key head, with all query heads that share it,
// and its own sums for dK and dV, so that no two tasks add to one number and the order of every sum is fixed. As in the
// forward pass scores stand transposed, queries in the lanes; the gradients of keys and values are summed in rows.
#pragma once

#include "generator/cpu/kernel.hpp"

namespace flashwright {

// Which gradients the launch asks for: truth values.
struct Wanted {
  ir::V dq, dk, dv;
  ir::V scores() const { return dq | dk; }  // whether dS is needed
};
Wanted read_wanted(Kernel& k);

// What the workspace holds, rows of `width` and `width_v` floats: keys and values of each key head as fp32, next to
// each other, and for each task its sums for them.
struct Workspace {
  ir::V k, v;    // of the first head
  ir::V dk, dv;  // of the first task
  ir::V rows;    // of each
};
Workspace workspace_of(Kernel& k, const Wanted& wanted, ir::V heads, ir::V tasks);

std::string workspace_rows_rule(const Tiling& tiling);
std::string workspace_rule(const Tiling& t, const std::string& heads, const std::string& tasks);

// --- backward_keys.cpp: steps before and after the tasks
constexpr int kChunkKeys = 64;  // keys of one head that a task of these steps has
void emit_copy(Kernel& k);      // keys and values to the workspace
void emit_convert(Kernel& k);   // adds up the sums of all parts, in order

// --- backward_rows.cpp: the rows of a tile, in and out
void fill_backward_tables(Kernel& k, const TaskRows& rows);
// Queries and output gradients as fp32: in rows, and transposed.
void pack_backward_rows(Kernel& k);
void find_delta(Kernel& k);  // row sums of dO * O, less the gradient of the LSE
void clear_dq(Kernel& k);
void store_dq(Kernel& k);

// --- backward_tile.cpp: one tile of keys
// `keys` and `values` are the first rows of the tile among those copied.
void multiply_scores(Kernel& k, ir::V keys, ir::V padded);     // K Q^T, changed, in powers of two
void multiply_weights(Kernel& k, ir::V values, ir::V padded);  // V dO^T
// Weights and the gradients of the scores, in place of the two products.
void find_gradients(Kernel& k, ir::V padded);
void find_gradients_with_dropout(Kernel& k, const Dropout& dropout, ir::V first_key, ir::V count,
                                 ir::V padded);
// sums[key] += sum over queries of weights[key][query] * copy[query]
void add_to_keys(Kernel& k, const char* name, int weights, int copy, int width, ir::V sums,
                 ir::V row_count, ir::V padded);
void add_to_dq(Kernel& k, ir::V keys, ir::V count);  // dQ^T += K^T dS^T

// One row of a tensor as fp32, with zeros up to the next whole vector.
void copy_row(Kernel& k, ir::V from, ir::V to, int dims);

}  // namespace flashwright
