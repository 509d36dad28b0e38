// LLVM behind a border without LLVM types: text of a module to object code, object code to callable
// entries.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/source.hpp"

namespace flashwright::cpu {

// The processor that code is generated for: this machine's when the target is its best instruction set,
// otherwise a plain one of that instruction set.
struct CodegenCpu {
  std::string triple;
  std::string cpu;
  std::vector<std::string> features;  // present ones, sorted
};
CodegenCpu codegen_cpu(const Target& target);

std::string llvm_version();  // of the library that is running: "19.1.7"

// Throws Error(compile_failed) with LLVM's messages, and for an object that calls anything outside
// itself. Safe to call from several threads at once.
Binary compile_module(const Source& source);

using KernelEntry = void (*)(const void* params, std::int64_t task, void* scratch);

// An object in executable memory, unmapped by the destructor.
class LoadedObject {
 public:
  virtual ~LoadedObject() = default;
  virtual KernelEntry entry(std::size_t step) const = 0;
};

// Throws Error(unavailable) for an object made for features that this processor lacks, before any of it
// is mapped, and Error(device_error) when the object cannot be linked.
std::unique_ptr<LoadedObject> load_object(const Binary& binary,
                                          const std::vector<std::string>& entries);

}  // namespace flashwright::cpu
