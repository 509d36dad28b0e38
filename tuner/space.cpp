#include "tuner/space.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>

namespace flashwright {
namespace {

// "needs 104448 bytes ..." and "needs 87040 bytes ..." are one kind of reason: numbers are left
// out.
std::string kind_of(const std::string& reason) {
  std::string out;
  for (const char c : reason) {
    if (c < '0' || c > '9') {
      out += c;
    } else if (out.empty() || out.back() != 'N') {
      out += 'N';
    }
  }
  return out;
}

// Bounds lie between the lengths that people use most.
constexpr std::array<std::int64_t, 5> kBounds = {16, 192, 768, 3072, 12288};
constexpr int kClasses = static_cast<int>(kBounds.size()) + 1;

int length_class(std::int64_t length) {
  return static_cast<int>(std::lower_bound(kBounds.begin(), kBounds.end(), length) -
                          kBounds.begin());
}

std::string bucket_name(int index) {
  const auto length = [](int i) {
    return i < kClasses - 1 ? std::to_string(kBounds[static_cast<std::size_t>(i)])
                            : std::string("long");
  };
  return fmt::format("q{} kv{} {}", length(index / 2 / kClasses), length(index / 2 % kClasses),
                     index % 2 == 1 ? "full" : "few");
}

}  // namespace

SearchSpace search_space(const Family& family, const Problem& problem, const DeviceInfo& device,
                         const Shape& shape, const std::vector<Schedule>& incumbents,
                         std::uint64_t seed) {
  SearchSpace out;
  std::vector<Candidate> legal;
  for (Candidate& candidate : family.space(problem, device, shape)) {
    if (candidate.rejected.empty()) {
      legal.push_back(std::move(candidate));
    } else {
      ++out.rejected[kind_of(candidate.rejected)];
    }
  }
  out.legal = static_cast<int>(legal.size());
  std::stable_sort(legal.begin(), legal.end(), [](const Candidate& a, const Candidate& b) {
    return a.estimate.time_us < b.estimate.time_us;
  });
  const auto add = [&out](const Candidate& candidate) {
    const auto same = [&](const Candidate& other) { return other.schedule == candidate.schedule; };
    if (candidate.rejected.empty() && std::none_of(out.order.begin(), out.order.end(), same))
      out.order.push_back(candidate);
  };
  add(family.consider(problem, device, shape, family.default_schedule(problem, device, shape)));
  for (const Schedule& incumbent : incumbents)
    add(family.consider(problem, device, shape, incumbent));

  // Three by the model, then one from all that are left.
  std::mt19937_64 random(seed);
  std::vector<Candidate> rest(legal.begin(), legal.end());
  for (int turn = 0; !rest.empty(); ++turn) {
    const std::size_t pick = turn % 4 == 3 ? random() % rest.size() : 0;
    add(rest[pick]);
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(pick));
  }
  return out;
}

int bucket_index(const Shape& shape, int sm_count) {
  constexpr std::int64_t kRows = 128;  // of a typical query tile
  const std::int64_t tiles = shape.batch * shape.heads_q * ((shape.seq_q + kRows - 1) / kRows);
  return (length_class(shape.seq_q) * kClasses + length_class(shape.seq_kv)) * 2 +
         (tiles >= 2 * sm_count ? 1 : 0);
}

std::string bucket(const Shape& shape, const DeviceInfo& device) {
  return bucket_name(bucket_index(shape, device.sm_count));
}

int bucket_distance(const std::string& a, const std::string& b) {
  constexpr int kFar = 100;
  const auto find = [](const std::string& text) {
    for (int i = 0; i < kBuckets; ++i)
      if (bucket_name(i) == text) return i;
    return -1;
  };
  const int i = find(a), j = find(b);
  if (i < 0 || j < 0 || i % 2 != j % 2) return kFar;
  return std::abs(i / 2 / kClasses - j / 2 / kClasses) +
         std::abs(i / 2 % kClasses - j / 2 % kClasses);
}

Shape typical_shape() { return {4, 16, 16, 4096, 4096}; }

}  // namespace flashwright
