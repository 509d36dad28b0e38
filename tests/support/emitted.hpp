// A spread of kernels over types, head dims, masks, features, schedules and targets: the files under
// tests/golden, and what the oracle compares.
#pragma once

#include <string>
#include <vector>

#include "core/problem.hpp"
#include "core/schedule.hpp"
#include "core/source.hpp"
#include "generator/sm80/family_sm80.hpp"
#include "generator/sm90/family_sm90.hpp"

namespace flashwright::testing {

const FamilySm80& sm80_family();
const FamilySm90& sm90_family();

struct NamedKernel {
  std::string name;  // "sm80_bf16_d128_causal"
  Problem problem;
  Schedule schedule;
  const Family* family = &sm80_family();

  Source emit() const { return family->emit(problem, schedule); }
};
const std::vector<NamedKernel>& named_kernels();

// Of random Problems with random legal schedules of a family, as a seed gives them.
std::vector<NamedKernel> random_kernels(std::uint64_t seed, int count,
                                        const Family& family = sm80_family(),
                                        Direction direction = Direction::forward);

}  // namespace flashwright::testing
