#include "emulator/races.hpp"

#include "tests/support/testing.hpp"

using flashwright::emulator::Access;
using flashwright::emulator::Races;

TEST_CASE("a write and a read race unless a barrier is between them") {
  Races races(64, 0, 64);
  CHECK(races.write(0, 0, 4, 11) == nullptr);
  const Access* const race = races.read(33, 0, 4, 22);
  REQUIRE(race != nullptr);
  CHECK(race->thread == 0);
  CHECK(race->site == 11);
  CHECK(races.read(0, 0, 4, 23) == nullptr);  // its own write
  races.join(0, 64);
  CHECK(races.read(33, 0, 4, 24) == nullptr);
  CHECK(races.write(1, 0, 4, 25) != nullptr);  // against the read of thread 33
}

TEST_CASE("a barrier of one warp orders that warp alone") {
  Races races(64, 0, 64);
  races.write(0, 16, 16, 1);
  races.join(0, 32);
  CHECK(races.read(31, 16, 16, 2) == nullptr);
  CHECK(races.read(32, 16, 16, 3) != nullptr);
}

TEST_CASE("neighbours do not race, overlapping accesses of different widths do") {
  Races races(32, 0, 64);
  CHECK(races.write(0, 0, 2, 1) == nullptr);
  CHECK(races.write(1, 2, 2, 2) == nullptr);
  CHECK(races.write(2, 4, 4, 3) == nullptr);
  CHECK(races.write(3, 0, 16, 4) != nullptr);
  races.join(0, 32);
  CHECK(races.write(4, 0, 16, 5) == nullptr);
  CHECK(races.read(5, 14, 2, 6) != nullptr);
}

TEST_CASE("readers do not race with each other, and each is remembered") {
  Races races(32, 0, 16);
  for (int thread = 0; thread < 8; ++thread) CHECK(races.read(thread, 0, 16, 1) == nullptr);
  const Access* const race = races.write(7, 0, 16, 2);
  REQUIRE(race != nullptr);
  CHECK(race->thread == 0);
}

TEST_CASE("a copy races until its end, and a barrier before its end does not help") {
  Races races(64, 0, 16);
  CHECK(races.begin_copy(0, 0, 16, 1) == nullptr);
  CHECK(races.read(0, 0, 16, 2) != nullptr);  // even for its own thread
  races.join(0, 64);
  CHECK(races.read(40, 0, 16, 3) != nullptr);
  races.end_copy(0, 0, 16);
  CHECK(races.read(0, 0, 16, 4) == nullptr);
  CHECK(races.read(41, 0, 16, 5) != nullptr);
  races.join(0, 64);
  CHECK(races.read(42, 0, 16, 6) == nullptr);
}
