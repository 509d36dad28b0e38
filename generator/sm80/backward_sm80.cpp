#include "generator/sm80/backward_sm80.hpp"

#include <algorithm>
#include <array>

#include "core/mask.hpp"
#include "generator/sm80/layout_sm80.hpp"

namespace flashwright::sm80 {
namespace {

void check_rows(Verdict& verdict, const char* knob, int rows, int warps) {
  verdict.require(
      rows == 16 * warps || rows == 32 * warps,
      fmt::format("{} is {}; allowed: 16 or 32 rows for each of the {} warps", knob, rows, warps));
}

void check_step(Verdict& verdict, const char* knob, int step) {
  verdict.require(step >= 16 && step <= 128 && step % 16 == 0,
                  fmt::format("{} is {}; allowed: 16..128 in steps of 16", knob, step));
}

// Tried in order until one is legal. None of them spills on any known architecture, but fp32 with head dims above 128
// sometimes a few registers: a test compiles them all.
enum class Use {
  plain,         // 16 bits, neither dropout nor block lists nor a change of scores
  any,           // 16 bits
  single_plain,  // fp32, as plain
  single,        // fp32
};
struct Seed {
  int max_head_dim;  // of keys or values
  Use use;
  const char* schedule;
};
// clang-format off
constexpr std::array<Seed, 20> kSeeds = {{
    {64, Use::plain, "q64.kv64.w4.st2.b2.kb64.qs64"},
    {64, Use::plain, "q64.kv64.w4.st1.b2.kb64.qs64"},
    {64, Use::any, "q64.kv32.w4.st2.b2.kb64.qs32"},
    {96, Use::any, "q64.kv32.w4.st2.b2.kb64.qs32"},
    {96, Use::any, "q128.kv32.w8.st1.b1.kb128.qs32"},
    {128, Use::plain, "q64.kv32.w4.st2.b2.kb64.qs32"},
    {128, Use::plain, "q128.kv32.w8.st1.b1.kb128.qs32"},
    {128, Use::any, "q64.kv32.w4.st2.b2.kb64.qs16"},
    {128, Use::any, "q128.kv32.w8.st1.b1.kb128.qs16"},
    {192, Use::any, "q64.kv32.w4.st1.b2.kb64.qs32.sk1"},
    {192, Use::any, "q64.kv32.w4.st1.b1.kb64.qs32.sk1"},
    {256, Use::plain, "q128.kv32.w8.st1.b1.kb128.qs32.sk1"},
    {256, Use::any, "q128.kv16.w8.st1.b1.kb128.qs16.sk1"},
    {256, Use::any, "q64.kv16.w4.st1.b1.kb64.qs16.sk1"},
    {64, Use::single, "q64.kv32.w4.st1.b2.kb64.qs32"},
    {64, Use::single, "q64.kv32.w4.st1.b1.kb64.qs32"},
    {128, Use::single_plain, "q64.kv16.w4.st1.b1.kb64.qs16"},
    {128, Use::single, "q64.kv16.w4.st1.b1.kb64.qs16.sk1"},
    {256, Use::single, "q64.kv16.w4.st1.b1.kb64.qs16.sk1"},
    {256, Use::single, "q32.kv16.w2.st1.b1.kb32.qs16.sk1"},
}};
// clang-format on

bool meant_for(const Seed& seed, const Problem& problem) {
  const bool plain = seed.use == Use::plain || seed.use == Use::single_plain;
  const bool single = seed.use == Use::single || seed.use == Use::single_plain;
  if (plain &&
      (problem.dropout || problem.softcap || problem.alibi || problem.mask == Mask::Kind::blocks))
    return false;
  return std::max(problem.head_dim, problem.head_dim_v) <= seed.max_head_dim &&
         single == (problem.dtype == DType::fp32);
}

}  // namespace

void check_backward_knobs(Verdict& verdict, const Problem& problem, const Schedule& s) {
  verdict.one_of("warps", s.warps, {1, 2, 4, 8});
  verdict.one_of("stages", s.stages, {1, 2, 3});
  verdict.one_of("blocks_per_sm", s.blocks_per_sm, {1, 2, 3, 4, 5, 6, 7, 8});
  verdict.one_of("split_keys", s.split_keys, {0, 1});
  verdict.require(s.q_in_registers == 0 && s.lazy_rescale == 0,
                  "q_in_registers and lazy_rescale are knobs of the forward pass; allowed: 0");
  if (!verdict.legal()) return;
  check_rows(verdict, "tile_q", s.tile_q, s.warps);
  check_rows(verdict, "keys_per_block", s.keys_per_block, s.warps);
  check_step(verdict, "tile_kv", s.tile_kv);
  check_step(verdict, "query_step", s.query_step);
  // A keep word of the dropout holds 32 keys and is drawn by the tile that it lies in.
  verdict.require(
      !problem.dropout || s.tile_kv == 16 || s.tile_kv % 32 == 0,
      fmt::format("tile_kv is {}; allowed with dropout: 16, 32, 64, 96, 128", s.tile_kv));
}

std::vector<Schedule> backward_schedules(const Problem& problem) {
  std::vector<Schedule> out;
  Schedule s;
  for (const int warps : {2, 4, 8})
    for (const int row_tiles : {1, 2})
      for (const int key_row_tiles : {1, 2})
        for (const int tile_kv : {16, 32, 64, 96, 128})
          for (const int query_step : {16, 32, 48, 64, 96})
            for (const int stages : {1, 2})
              for (const int split_keys : {0, 1}) {
                // Apart only where both hardly fit the registers of a thread.
                if (split_keys != 0 && problem.head_dim + problem.head_dim_v <= 128) continue;
                // Wide steps of fp32 take the compiler long.
                if (problem.dtype == DType::fp32 && std::max(tile_kv, query_step) > 32) continue;
                s.warps = warps;
                s.tile_q = 16 * warps * row_tiles;
                s.keys_per_block = 16 * warps * key_row_tiles;
                s.tile_kv = tile_kv;
                s.query_step = query_step;
                s.stages = stages;
                s.split_keys = split_keys;
                out.push_back(s);
              }
  return out;
}

std::vector<Schedule> backward_seeds(const Problem& problem) {
  std::vector<Schedule> out;
  for (const Seed& seed : kSeeds)
    if (meant_for(seed, problem)) out.push_back(parse_schedule(seed.schedule));
  return out;
}

}  // namespace flashwright::sm80
