#include "emulator/finding.hpp"

namespace flashwright::emulator {

const char* to_string(Kind kind) {
  constexpr const char* kNames[] = {"divergent-collective",
                                    "divergent-barrier",
                                    "deadlock",
                                    "early-exit",
                                    "step-budget",
                                    "shared-bounds",
                                    "shared-alignment",
                                    "shared-uninitialised",
                                    "copy-in-flight",
                                    "copy-not-waited-for",
                                    "global-bounds",
                                    "global-alignment",
                                    "global-uninitialised",
                                    "race",
                                    "barrier-misuse",
                                    "transaction-bytes",
                                    "accumulator-in-flight",
                                    "operand-in-flight",
                                    "product-fence",
                                    "products-not-waited-for",
                                    "async-proxy",
                                    "tile-alignment",
                                    "descriptor",
                                    "register-count",
                                    "peer-exited",
                                    "tensor-map",
                                    "store-not-waited-for",
                                    "variable-not-reset"};
  return kNames[static_cast<int>(kind)];
}

void Findings::merge(const Findings& other) {
  for (const auto& [place, at] : other.index_) {
    const Finding& finding = other.found_[at];
    const auto [mine, added] = index_.try_emplace(place, found_.size());
    if (added) {
      found_.push_back(finding);
    } else {
      found_[mine->second].count += finding.count;
    }
  }
}

}  // namespace flashwright::emulator
