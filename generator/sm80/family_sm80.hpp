// Kernels for GPUs with cp.async and mma.sync: Ampere, Ada, and, with these older instructions,
// Hopper and Blackwell.
#pragma once

#include "generator/family.hpp"

namespace flashwright {

class FamilySm80 final : public Family {
 public:
  std::string name() const override { return "sm80"; }
  std::vector<std::string> reasons_against(const Problem& problem) const override;
  std::vector<Candidate> space(const Problem& problem, const DeviceInfo& device,
                               const Shape& shape) const override;
  Candidate consider(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                     const Schedule& schedule) const override;
  Schedule default_schedule(const Problem& problem, const DeviceInfo& device,
                            const Shape& shape) const override;
  std::optional<double> traffic_bytes(const Problem& problem, const Schedule& schedule,
                                      const Shape& shape) const override;
  Source emit(const Problem& problem, const Schedule& schedule) const override;
};

}  // namespace flashwright
