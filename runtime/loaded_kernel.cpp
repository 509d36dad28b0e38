#include "runtime/loaded_kernel.hpp"

#include <fmt/format.h>

#include <array>
#include <span>

#include "core/error.hpp"

namespace flashwright {
namespace {

constexpr std::size_t kMaxSteps = 8;

}  // namespace

LoadedKernel::LoadedKernel(Backend& backend, const Binary& binary, const LaunchPlan& plan,
                           int device_index)
    : backend_(backend),
      params_(plan.params),
      boxes_(plan.boxes),
      module_(backend.load(binary, plan, device_index)) {
  if (plan.steps.size() > kMaxSteps) throw Error(Status::internal, "launch plan: too many steps");
  for (const LaunchStep& step : plan.steps) grids_.emplace_back(*step.grid, rule_variables());
  if (plan.workspace == nullptr) return;
  workspace_ = Rule(*plan.workspace, rule_variables());
  has_workspace_ = true;
}

std::size_t LoadedKernel::workspace_bytes(const ResolvedArguments& arguments) const {
  if (!has_workspace_ || arguments.empty) return 0;
  return static_cast<std::size_t>(workspace_(arguments.rule_values.data()));
}

void LoadedKernel::launch(const ResolvedArguments& arguments, void* workspace, void* stream) const {
  if (arguments.empty) return;
  ParamValues values = arguments.values;
  if (has_workspace_) {
    const std::size_t bytes = workspace_bytes(arguments);
    if (bytes != 0 &&
        (workspace == nullptr || reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0))
      throw Error(
          Status::bad_argument,
          fmt::format("workspace: given {}; expected the address of {} bytes, 256-byte aligned",
                      workspace == nullptr ? "none" : "a misaligned address", bytes));
    values.set_pointer(Param::workspace, workspace);
  }
  alignas(kTensorMapAlignment) unsigned char block[kMaxParamBytes];
  struct Context {
    Backend& backend;
    int device_index;
  } const context{backend_, arguments.device_index};
  fill_params(
      params_, boxes_, values,
      [](const TensorMapSpec& spec, void* map, const void* given) {
        const auto& on = *static_cast<const Context*>(given);
        on.backend.encode_tensor_map(spec, map, on.device_index);
      },
      &context, block);
  std::array<StepLaunch, kMaxSteps> steps;
  std::size_t count = 0;
  for (std::size_t i = 0; i < grids_.size(); ++i) {
    const auto grid = static_cast<std::int64_t>(grids_[i](arguments.rule_values.data()));
    if (grid > 0) steps[count++] = {static_cast<int>(i), grid};  // no key: no scores to compute
  }
  backend_.launch(*module_, std::span(steps).first(count), block, arguments.device_index, stream);
}

}  // namespace flashwright
