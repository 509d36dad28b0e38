#include "core/source.hpp"

#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Source three_lines() {
  Source source;
  source.name = "fw_forward.cu";
  source.text = "a\nb\nc\n";
  source.lines = {{"", 0}, {"sm80/forward.cu", 118}, {"ptx/math.cuh", 7}};
  return source;
}

}  // namespace

TEST_CASE("lines of the emitted file become lines of its templates") {
  const Source source = three_lines();
  const std::vector<std::pair<std::string, const char*>> table = {
      {"", ""},
      {"no line at all\n", "no line at all\n"},
      {"fw_forward.cu(2): error: x", "sm80/forward.cu:118 (emitted line 2): error: x"},
      {"fw_forward.cu(1): note", "fw_forward.cu:1: note"},  // printed by the generator: no template
      {"a fw_forward.cu(3) b fw_forward.cu(2) c",
       "a ptx/math.cuh:7 (emitted line 3) b sm80/forward.cu:118 (emitted line 2) c"},
      {"fw_forward.cu(2)fw_forward.cu(3)",
       "sm80/forward.cu:118 (emitted line 2)ptx/math.cuh:7 (emitted line 3)"},
      // What is no line of this file stays as it is.
      {"fw_forward.cu(4)", "fw_forward.cu(4)"},
      {"fw_forward.cu(0)", "fw_forward.cu(0)"},
      {"fw_forward.cu(-1)", "fw_forward.cu(-1)"},
      {"fw_forward.cu(2", "fw_forward.cu(2"},
      {"fw_forward.cu(2,5)", "fw_forward.cu(2,5)"},
      {"fw_forward.cu(99999999999999)", "fw_forward.cu(99999999999999)"},
      {"fw_forward.cu(", "fw_forward.cu("},
      {"other.cu(2)", "other.cu(2)"}};
  for (const auto& [given, expected] : table) CHECK(rewrite_lines(source, given) == expected);
}

TEST_CASE("kinds of binaries have names") {
  CHECK(std::string(to_string(Binary::Kind::cubin)) == "cubin");
  CHECK(std::string(to_string(Binary::Kind::ptx)) == "ptx");
  CHECK(std::string(to_string(Binary::Kind::object)) == "object");
}
