// Generators of random Configs, Problems, Shapes and Schedules over the whole scope of the library.
#pragma once

#include <rapidcheck.h>

#include <iosfwd>
#include <vector>

#include "core/arguments.hpp"
#include "core/problem.hpp"
#include "generator/family.hpp"

namespace flashwright {

// How rapidcheck prints what it drew; found beside the types.
void showValue(const Config& config, std::ostream& out);
void showValue(const Problem& problem, std::ostream& out);
void showValue(const Shape& shape, std::ostream& out);
void showValue(const Schedule& schedule, std::ostream& out);

namespace testing {

rc::Gen<int> head_dims();   // 8, 16 .. 256, small ones first when shrinking
rc::Gen<Mask> masks();      // every kind, windows with open and closed sides
rc::Gen<Config> configs();  // without target and schedule
rc::Gen<Problem> problems(const std::vector<Target>& targets,
                          Direction direction = Direction::forward);
rc::Gen<Shape> shapes();        // small, with lengths around the usual tiles, 0 and 1 among them
rc::Gen<Schedule> schedules();  // any knobs, legal or not

// The value that a generator gives for a seed.
template <typename T>
T draw(const rc::Gen<T>& generator, std::uint64_t seed) {
  constexpr int kSize = 100;
  return generator(rc::Random(seed), kSize).value();
}

std::vector<Schedule> legal_schedules(const Family& family, const Problem& problem,
                                      const DeviceInfo& device, const Shape& shape);

}  // namespace testing
}  // namespace flashwright
