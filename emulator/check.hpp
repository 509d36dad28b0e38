// An emitted kernel on made-up tensors: run in each mode, judged against float64. What `flashwright check`
// shows, so the types are plain.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashwright::emulator {

struct CheckRequest {
  std::string config;  // JSON, with a GPU target
  std::string text;    // the emitted file
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seq_q = 0, seq_kv = 0;
  std::vector<std::string> modes;  // "early", "late", "random", "skew"
  bool races = false;
  std::uint64_t seed = 0;       // of the tensors, of the dropout bits, and of the order of threads
  std::int64_t max_steps = 0;   // wrapper calls of one block; 0: the default
  std::int64_t max_rows = 256;  // judged in each mode
};

struct CheckFinding {
  std::string kind, text;
  std::int64_t count = 0;
};

struct CheckMode {
  std::string mode;
  std::vector<CheckFinding> findings;
  std::int64_t blocks = 0, steps = 0, rows = 0;
  std::int64_t stopped_blocks = 0;  // where some were, the numbers below mean nothing
  std::int64_t bank_conflicts = 0;
  std::vector<std::string> conflict_places;
  double run_ms = 0;
  // Of o; of the gradient of a backward kernel that comes nearest to its tolerance.
  double error = 0, tolerance = 0;
  std::string judged = "o";  // or "dq", "dk", "dv"
  double lse_error_over_bound = 0;
  bool finite = true;          // NaN and infinity stand where they should
  bool numbers_right = false;  // all of the above within bounds
  bool passed = false;         // and nothing was found
};

struct CheckReport {
  std::string compiler;
  double compile_ms = 0;
  std::vector<CheckMode> modes;
  bool passed = false;
};

// Why a check could not be made. `status` is one of the FLASHWRIGHT_STATUS of flashwright.h.
struct CheckFailure {
  int status;
  std::string message, detail;
};

// Throws CheckFailure and nothing else.
CheckReport check(const CheckRequest& request);

// The names that `modes` may hold, in order.
const std::vector<std::string>& mode_names();

}  // namespace flashwright::emulator
