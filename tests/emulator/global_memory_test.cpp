#include "emulator/global_memory.hpp"

#include "tests/support/testing.hpp"

using namespace flashwright;
using emulator::GlobalMemory;
using Fault = GlobalMemory::Fault;
using Use = GlobalMemory::Use;

TEST_CASE("elements alone may be read, and not what lies between rows") {
  std::vector<float> memory(64);
  TensorView view = dense_view(memory.data(), DType::fp32, {1, 4, 1, 8});
  view.stride = {64, 16, 8, 1};
  GlobalMemory global;
  global.add("k", view, Use::input);
  CHECK(global.read(&memory[0], 16) == Fault::none);
  CHECK(global.read(&memory[4], 16) == Fault::none);
  CHECK(global.read(&memory[8], 4) == Fault::bounds);   // behind row 0
  CHECK(global.read(&memory[6], 16) == Fault::bounds);  // across its end
  CHECK(global.read(&memory[16], 4) == Fault::none);
  CHECK(global.read(&memory[56], 4) == Fault::bounds);  // behind the last row
  CHECK(global.write(&memory[0], 4) == Fault::bounds);  // an input
  CHECK(testing::contains(global.place_of(&memory[8]), "byte 32 of k"));
  CHECK(testing::contains(global.place_of(&memory[57]), "behind the end of k"));
}

TEST_CASE("an output has no value until it is written") {
  std::vector<float> memory(8);
  GlobalMemory global;
  global.add("o", memory.data(), 32, Use::output);
  CHECK(global.read(&memory[1], 4) == Fault::uninitialised);
  CHECK(global.write(&memory[1], 4) == Fault::none);
  CHECK(global.read(&memory[1], 4) == Fault::none);
  CHECK(global.read(&memory[0], 8) == Fault::uninitialised);
  CHECK(global.write(&memory[7], 8) == Fault::bounds);
}

TEST_CASE("a tensor without elements holds nothing") {
  GlobalMemory global;
  global.add("k", dense_view(nullptr, DType::bf16, {1, 0, 2, 64}), Use::input);
  global.add("columns", nullptr, 0, Use::input);
  const float value = 0;
  CHECK(global.read(&value, 4) == Fault::bounds);
  CHECK(global.place_of(nullptr) == "in no tensor of the launch");
}
