// What the emulator has to say about a kernel: findings, each with a name that scripts can rely on, and
// counters.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator/translate.hpp"

namespace flashwright::emulator {

enum class Kind : std::uint8_t {
  divergent_collective,
  divergent_barrier,
  deadlock,
  early_exit,
  step_budget,
  shared_bounds,
  shared_alignment,
  shared_uninitialised,
  copy_in_flight,
  copy_not_waited_for,
  global_bounds,
  global_alignment,
  global_uninitialised,
  race,
  barrier_misuse,
  transaction_bytes,
  accumulator_in_flight,
  operand_in_flight,
  product_fence,
  products_not_waited_for,
  async_proxy,
  tile_alignment,
  descriptor,
  register_count,
  peer_exited,
  tensor_map,
  store_not_waited_for,
  variable_not_reset,
};
const char* to_string(Kind kind);  // "divergent-collective"

struct Finding {
  Kind kind;
  std::string text;        // the first occurrence in words, with lines of the emitted file
  std::int64_t count = 1;  // of the same kind at the same place
};

// Findings of one run. Those at the same place are counted, not listed again.
class Findings {
 public:
  // `place` tells occurrences of one kind apart.
  template <typename Text>
  void add(Kind kind, std::uint64_t place, Text&& text) {
    const auto [at, added] = index_.try_emplace({kind, place}, found_.size());
    if (added) {
      found_.push_back({kind, text(), 1});
    } else {
      ++found_[at->second].count;
    }
  }
  void merge(const Findings& other);
  const std::vector<Finding>& all() const { return found_; }
  bool empty() const { return found_.empty(); }

 private:
  std::map<std::pair<Kind, std::uint64_t>, std::size_t> index_;
  std::vector<Finding> found_;
};

// Extra passes over the banks of shared memory, by site.
using Conflicts = std::map<std::uint32_t, std::int64_t>;

}  // namespace flashwright::emulator
