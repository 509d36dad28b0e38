// The differences between LLVM 16 and 20 that this project meets.
#pragma once

#include <llvm/ADT/StringMap.h>
#include <llvm/Config/llvm-config.h>
#include <llvm/Target/TargetMachine.h>
#if LLVM_VERSION_MAJOR >= 17
#include <llvm/TargetParser/Host.h>
#else
#include <llvm/Support/Host.h>
#endif

namespace flashwright::cpu::compat {

#if LLVM_VERSION_MAJOR >= 18
constexpr auto kObjectFile = llvm::CodeGenFileType::ObjectFile;
constexpr auto kOptimise = llvm::CodeGenOptLevel::Default;
#else
constexpr auto kObjectFile = llvm::CGFT_ObjectFile;
constexpr auto kOptimise = llvm::CodeGenOpt::Default;
#endif

inline llvm::StringMap<bool> host_features() {
#if LLVM_VERSION_MAJOR >= 19
  return llvm::sys::getHostCPUFeatures();
#else
  llvm::StringMap<bool> features;
  llvm::sys::getHostCPUFeatures(features);
  return features;
#endif
}

}  // namespace flashwright::cpu::compat
