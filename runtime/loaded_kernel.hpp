// A loaded binary with its launch plan ready for use: rules compiled, parameter block laid out.
// Immutable and safe to launch from many threads.
#pragma once

#include <memory>
#include <vector>

#include "core/arguments.hpp"
#include "core/expr.hpp"
#include "runtime/backend.hpp"

namespace flashwright {

class LoadedKernel {
 public:
  // `device_index` is where it is loaded first; a launch may be on another device of the same kind.
  LoadedKernel(Backend& backend, const Binary& binary, const LaunchPlan& plan, int device_index);

  std::size_t workspace_bytes(const ResolvedArguments& arguments) const;

  // Enqueues all steps; returns at once when an output is empty. Throws Error(bad_argument) for a
  // missing or misaligned workspace, and when a rule asks for more than the hardware can count.
  void launch(const ResolvedArguments& arguments, void* workspace, void* stream) const;

 private:
  Backend& backend_;
  ParamLayout params_;
  std::vector<BoxRule> boxes_;
  std::vector<Rule> grids_;
  Rule workspace_;
  bool has_workspace_ = false;
  std::unique_ptr<Module> module_;
};

}  // namespace flashwright
