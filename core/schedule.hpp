// The knobs of a kernel: small integers that change its speed and never its meaning. The text form
// ("q128.kv64.w4.st2") is what is stored, printed and pinned, so old records stay readable when a
// knob is added.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace flashwright {

struct Schedule {
  int tile_q = 0;          // query rows per block (GPU) or task (CPU)
  int tile_kv = 0;         // keys per step
  int warps = 0;           // GPU: warps per block
  int stages = 0;          // GPU: key and value tiles in flight
  int q_in_registers = 0;  // GPU: 1 keeps the query fragments in registers
  int blocks_per_sm = 0;   // GPU: resident blocks asked of the compiler
  int lazy_rescale = 0;    // GPU: 1 skips the rescaling of the output when no maximum has grown;
                           // n > 1 when none has grown by more than a factor of 2^n of a weight
  int ping_pong = 0;       // sm90: 1 lets consumers start their products in turn
  int persistent = 0;      // sm90: blocks that take query tiles in turn; 0: a block for each
  int longest_first = 0;   // sm90: 1 orders the query tiles of many heads by their length
  int half_tiles = 0;  // sm90: 1 lets a consumer compute half of a tile of keys under a causal mask
  int query_prefetch = 0;  // sm90: 1 brings the queries of the next tile while one is computed
  int pack_heads = 0;      // sm90: 1 joins query heads that share a key head in one tile
  int cluster = 0;         // sm90: blocks that bring keys and values to each other; 0: each its own
  int emulated_exp2 = 0;   // sm90: n > 0 computes one of n weights by a polynomial
  int late_lse = 0;        // sm90: 1 writes the LSE after the output, instead of before
  int keys_per_block = 0;  // sm80, backward: keys per block of the kernel for dK and dV
  int query_step = 0;      // backward: queries per step of the kernel for dK and dV
  int split_keys = 0;      // sm80, backward: 1 gives dK and dV kernels of their own
  int add_queries = 0;     // sm90, backward: 1 lets the kernel for dK and dV add to dQ, too
  int key_block = 0;       // CPU: keys per register tile of Q K^T
  int dim_block = 0;       // CPU: head dims per register tile of P V
  int unroll = 0;          // CPU: steps of the inner loops in one turn
  int tasks = 0;           // CPU, backward: tasks aimed at when there are fewer key heads
  int query_tiles = 0;     // CPU, backward: tiles of queries that meet a tile of keys in turn

  std::strong_ordering operator<=>(const Schedule&) const = default;
  bool operator==(const Schedule&) const = default;
};

struct Knob {
  const char* key;  // in the text form
  int Schedule::*value;
  const char* name;  // of the field
};
const std::vector<Knob>& knobs();

// Knobs that are 0 do not apply and are left out.
std::string to_string(const Schedule& schedule);

// Throws Error(bad_argument) that names the part it cannot read.
Schedule parse_schedule(std::string_view text);

}  // namespace flashwright
