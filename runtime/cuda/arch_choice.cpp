#include "runtime/cuda/arch_choice.hpp"

#include <array>

namespace flashwright::cuda {
namespace {

struct Known {
  std::pair<int, int> capability;
  std::pair<int, int> since;  // CUDA release whose compiler first knew it
  bool specific;              // has an "a" variant
};

// From the release notes of the CUDA toolkits.
constexpr std::array<Known, 10> kKnown = {{
    {{8, 0}, {11, 0}, false},
    {{8, 6}, {11, 1}, false},
    {{8, 7}, {11, 5}, false},
    {{8, 9}, {11, 8}, false},
    {{9, 0}, {12, 0}, true},
    {{10, 0}, {12, 8}, true},
    {{10, 3}, {12, 9}, true},
    {{11, 0}, {13, 0}, true},
    {{12, 0}, {12, 8}, true},
    {{12, 1}, {12, 9}, true},
}};

std::string number(std::pair<int, int> capability) {
  return std::to_string(capability.first) + std::to_string(capability.second);
}

}  // namespace

std::vector<ArchChoice> arch_choices(std::pair<int, int> capability, std::pair<int, int> nvrtc) {
  std::vector<ArchChoice> out;
  const Known* nearest = nullptr;  // highest plain one below or at the device
  const Known* same_major = nullptr;
  for (const Known& known : kKnown) {
    if (known.since > nvrtc || known.capability > capability) continue;
    if (known.capability == capability && known.specific)
      out.push_back({"sm_" + number(capability) + "a"});
    if (nearest == nullptr || known.capability > nearest->capability) nearest = &known;
    if (known.capability.first == capability.first) same_major = &known;
  }
  if (same_major != nullptr) out.push_back({"sm_" + number(same_major->capability)});
  if (nearest != nullptr) out.push_back({"compute_" + number(nearest->capability), true});
  return out;
}

std::pair<int, int> nvrtc_needed(std::pair<int, int> capability) {
  for (const Known& known : kKnown)
    if (known.capability == capability) return known.since;
  return {0, 0};
}

}  // namespace flashwright::cuda
