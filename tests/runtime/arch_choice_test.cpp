#include "runtime/cuda/arch_choice.hpp"

#include <algorithm>

#include "core/device.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using cuda::arch_choices;

namespace {

using Version = std::pair<int, int>;

std::vector<std::string> names(Version capability, Version nvrtc) {
  std::vector<std::string> out;
  for (const cuda::ArchChoice& choice : arch_choices(capability, nvrtc))
    out.push_back(choice.arch + (choice.ptx ? " PTX" : ""));
  return out;
}

bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

}  // namespace

TEST_CASE("device and compiler versions give an architecture that the device can run") {  // C76
  struct Row {
    Version capability, nvrtc;
    std::vector<std::string> right;  // what may be chosen first
    std::vector<std::string> never;
  };
  const std::vector<Row> table = {
      {{8, 0}, {11, 2}, {"sm_80"}, {}},
      {{8, 9}, {11, 2}, {"sm_86", "compute_86 PTX"}, {"sm_89"}},
      {{8, 9}, {12, 3}, {"sm_89"}, {}},
      {{9, 0}, {12, 3}, {"sm_90a", "sm_90"}, {}},
      {{9, 0},
       {11, 2},
       {"compute_86 PTX", "compute_80 PTX"},
       {"sm_90", "sm_90a", "sm_86", "sm_80"}},
      {{10, 0}, {12, 8}, {"sm_100a", "sm_100"}, {}},
      {{10, 3}, {12, 8}, {"sm_100", "compute_100 PTX"}, {"sm_100a", "compute_100a PTX", "sm_103a"}},
      {{12, 0}, {12, 8}, {"sm_120a", "sm_120"}, {}},
      {{12, 1}, {12, 8}, {"sm_120", "compute_120 PTX"}, {"sm_120a", "compute_120a PTX", "sm_121a"}},
      {{12, 1}, {12, 9}, {"sm_121a", "sm_121", "sm_120f", "sm_120"}, {"sm_120a"}},
      {{13, 0}, {12, 9}, {"compute_121 PTX"}, {"sm_121", "sm_120", "sm_121a", "sm_130"}}};
  for (const Row& row : table) {
    const std::vector<std::string> choices = names(row.capability, row.nvrtc);
    INFO(row.capability.first << "." << row.capability.second << " with NVRTC " << row.nvrtc.first
                              << "." << row.nvrtc.second);
    REQUIRE(!choices.empty());
    CHECK(has(row.right, choices.front()));
    for (const std::string& name : row.never) CHECK(!has(choices, name));
  }
}

TEST_CASE("no choice runs on a device that is older or of another major") {
  for (int major = 8; major <= 13; ++major)
    for (int minor = 0; minor <= 9; ++minor)
      for (const Version& nvrtc :
           {Version{11, 0}, {11, 8}, {12, 0}, {12, 8}, {12, 9}, {13, 0}, {14, 0}})
        for (const cuda::ArchChoice& choice : arch_choices({major, minor}, nvrtc)) {
          const std::string digits = choice.arch.substr(choice.arch.find('_') + 1);
          const bool specific = digits.back() == 'a';
          const int number = std::stoi(digits), given = major * 10 + minor;
          INFO(choice.arch << " for " << given);
          CHECK(number <= given);
          if (!choice.ptx) CHECK(number / 10 == major);
          if (specific) CHECK(number == given);
          if (choice.ptx) CHECK(!specific);
          CHECK(choice.arch.starts_with(choice.ptx ? "compute_" : "sm_"));
          CHECK(cuda::nvrtc_needed({number / 10, number % 10}) <= nvrtc);
          const ArchInfo& arch =
              arch_info({BackendKind::cuda, choice.arch});  // its limits are known
          CHECK(arch.major * 10 + arch.minor == number);
          CHECK(parse_target(to_string(arch.target)) == arch.target);
        }
}

TEST_CASE("devices older than every architecture have no choice") {
  CHECK(arch_choices({7, 5}, {13, 0}).empty());
  CHECK(arch_choices({8, 0}, {10, 2}).empty());
  CHECK(cuda::nvrtc_needed({9, 0}) == Version{12, 0});
  CHECK(cuda::nvrtc_needed({7, 5}) == Version{0, 0});
}
