// What a finished object tells about itself: outside symbols, features it was made for, frame size and
// vector registers spilled in its inner loops.
#pragma once

#include <string>
#include <vector>

#include "core/source.hpp"

namespace llvm {
class TargetMachine;
}

namespace flashwright::cpu {

// Names that the object uses and does not define.
std::vector<std::string> undefined_symbols(const std::string& object);

// The features recorded at compile time; empty when there is no record.
std::vector<std::string> recorded_features(const std::string& object);
std::string feature_record(const std::vector<std::string>& features);

Resources measure_resources(const std::string& object, const llvm::TargetMachine& machine);

}  // namespace flashwright::cpu
