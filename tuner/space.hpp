// What a tuning session considers: the legal schedules in the order in which they are tried, and
// the illegal ones with their reasons.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "generator/family.hpp"

namespace flashwright {

struct SearchSpace {
  std::vector<Candidate> order;  // legal, most promising first; the default is the very first
  std::map<std::string, int> rejected;  // reason to number of schedules
  int legal = 0;
};

// The default comes first, then `incumbents`, then three by the model for each one drawn at random:
// the model errs systematically, not only by chance.
SearchSpace search_space(const Family& family, const Problem& problem, const DeviceInfo& device,
                         const Shape& shape, const std::vector<Schedule>& incumbents,
                         std::uint64_t seed);

// Sizes for which one choice serves: coarse classes of the sequence lengths, and whether the device
// is full. A new length inside a bucket never tunes or compiles again.
int bucket_index(const Shape& shape, int sm_count);  // in [0, kBuckets)
constexpr int kBuckets = 72;
std::string bucket(const Shape& shape, const DeviceInfo& device);  // as text: "q3072 kv3072 full"

// Steps between two buckets, summed over the lengths; large when one fills the device and the other
// does not.
int bucket_distance(const std::string& a, const std::string& b);

// What to assume when nobody says for which sizes a kernel should be fast.
Shape typical_shape();

}  // namespace flashwright
