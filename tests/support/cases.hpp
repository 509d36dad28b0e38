// Reader of tests/data/cases.json: small problems that are known to break attention libraries, with the
// right values. Backend-neutral: it gives Configs, tensors in host memory and what to expect.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/arguments.hpp"
#include "core/block_mask.hpp"

namespace flashwright::testing {

// One named golden of a case in one element type.
struct GoldenCase {
  std::string id;  // "C23/br25/fp16"
  DType dtype = DType::fp32;
  std::string skip;  // what the problem needs that the library does not have; empty: it can run
  std::string spec;  // its JSON, for make_run
  std::string golden;
  double tolerance = 0;  // of the output
  bool gradients = false;
  double of_dq = 0, of_dk = 0, of_dv = 0;  // tolerances
};

// Every golden of the file with an `o`, once for each of its element types.
std::vector<GoldenCase> read_cases(const std::string& path);

// A golden made ready: inputs filled, outputs poisoned with NaN. A packed batch of sequences of
// different lengths becomes one call a sequence; all calls share the tensors. Not to be copied, since the
// calls point into it.
struct CaseRun {
  Config config;
  std::vector<Arguments> calls;
  std::vector<Arguments>
      backward_calls;  // of a golden with gradients; they read what the others have written
  std::vector<unsigned char> q, k, v, o, d_o, dq, dk, dv;
  std::vector<float> lse, d_lse;
  std::deque<BlockMask> masks;
  CaseRun() = default;
  CaseRun(const CaseRun&) = delete;
  CaseRun& operator=(const CaseRun&) = delete;
};
// `block_q` and `block_kv` size the blocks of masks that are neither causal nor a window.
void make_run(const GoldenCase& golden, int block_q, int block_kv, CaseRun& run);

// "" when the outputs of the run are right; otherwise what is wrong.
std::string check_run(const GoldenCase& golden, const CaseRun& run);
std::string check_gradients(const GoldenCase& golden, const CaseRun& run);

}  // namespace flashwright::testing
