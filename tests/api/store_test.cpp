// What stays between processes, and how little it takes to serve many shapes (case C104).
#include <set>

#include "api/engine.hpp"
#include "tests/api/fake_devices.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"
#include "tuner/space.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

template <typename Visit>
void each_shape(const Visit& visit) {
  for (std::int64_t length = 1000; length <= 1100; ++length)
    for (std::int64_t batch = 1; batch <= 8; ++batch) visit(Shape{batch, 2, 2, length, length});
}

}  // namespace

TEST_CASE("after a restart kernels come from the store") {
  Machine& m = fresh_machine();
  const test::Folder folder;
  std::string binary;
  {
    Engine engine(in_folder(folder.path()));
    const Held kernel(engine.get_kernel(kConfig, nullptr, Effort::compile));
    CHECK(!kernel->code->built.from_store);
    binary = kernel->code->built.binary.bytes;
  }
  {
    Engine engine(in_folder(folder.path()));
    const Held kernel(engine.get_kernel(kConfig, nullptr, Effort::cached));
    CHECK(kernel->code->built.from_store);
    CHECK(kernel->code->built.binary.bytes == binary);
  }
  CHECK(m.cuda.compilations == 1);
  m.cuda.toolchain_name = "fake 2";  // another compiler may make better code
  Engine engine(in_folder(folder.path()));
  const Held kernel(engine.get_kernel(kConfig, nullptr, Effort::compile));
  CHECK(m.cuda.compilations == 2);
}

TEST_CASE("new lengths and batches compile nothing and tune nothing") {
  Machine& m = fresh_machine();
  const test::Folder folder;
  {
    Engine engine(in_folder(folder.path()));
    std::set<const Code*> codes;
    each_shape([&](const Shape& shape) {
      codes.insert(Held(engine.get_kernel(kConfig, &shape, Effort::compile))->code.get());
    });
    CHECK(codes.size() == 1);
    CHECK(m.cuda.compilations == 1);
  }
  {
    Engine engine(in_folder(folder.path()));
    each_shape([&](const Shape& shape) { Held(engine.get_kernel(kConfig, &shape, Effort::tune)); });
    CHECK(engine.tuning().list().size() <= 2);
    CHECK(!engine.tuning().list().empty());
  }
  const int compilations = m.cuda.compilations, launches = m.cuda.launches;
  Engine engine(in_folder(folder.path()));
  each_shape([&](const Shape& shape) { Held(engine.get_kernel(kConfig, &shape, Effort::tune)); });
  CHECK(m.cuda.compilations == compilations);
  CHECK(m.cuda.launches == launches);
}

TEST_CASE("a winner found by one engine serves the next one") {
  Landscape landscape;
  landscape[kSchedules[2]].time_us = 50;
  Machine& m = fresh_machine(landscape);
  const test::Folder folder;
  const Shape shape{1, 2, 2, 30, 30};
  { Engine(in_folder(folder.path())).tune(kConfig, shape, nullptr, {}); }
  const int before = m.cuda.compilations;
  Engine engine(in_folder(folder.path()));
  const Held kernel(engine.get_kernel(kConfig, &shape, Effort::cached));
  CHECK(kernel.schedule() == kSchedules[2]);
  CHECK(kernel->selection.choice == Choice::measured);
  CHECK(m.cuda.compilations == before);
}
