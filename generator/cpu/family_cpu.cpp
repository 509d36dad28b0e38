#include "generator/cpu/family_cpu.hpp"
#include "generator/cpu/forward_ir.hpp"
namespace flashwright {
namespace {
class CpuFamily : public Family {
 public:
  std::string name() const override { return "cpu"; }
  std::vector<std::string> reasons_against(const Problem&) const override { return {}; }
  std::vector<Candidate> space(const Problem&, const DeviceInfo&, const Shape&) const override {
    return {};
  }
  Candidate consider(const Problem&, const DeviceInfo&, const Shape&,
                     const Schedule& s) const override {
    return {s, {}, ""};
  }
  Schedule default_schedule(const Problem&, const DeviceInfo&, const Shape&) const override {
    return {};
  }
  Source emit(const Problem& p, const Schedule& s) const override {
    return p.algorithm == Algorithm::unfused ? emit_unfused(p, s) : emit_tiled(p, s);
  }
};
}  // namespace
const Family& cpu_family() {
  static const CpuFamily f;
  return f;
}
}  // namespace flashwright
