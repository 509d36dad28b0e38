#include "tests/conformance/run_device.hpp"

#include <array>

#include "core/expr_parse.hpp"
#include "runtime/cuda/cuda_backend.hpp"

namespace flashwright::conformance {
namespace {

// Memory of a device with a copy of some bytes.
class DeviceBytes {
 public:
  DeviceBytes(const Bytes& bytes, int device)
      : device_(device), memory_(cuda_backend().allocate(device, bytes.size())) {
    cuda_backend().copy_in(device, memory_, bytes.data(), bytes.size());
  }
  ~DeviceBytes() { cuda_backend().deallocate(device_, memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  unsigned char* get() const { return static_cast<unsigned char*>(memory_); }

 private:
  int device_;
  void* memory_;
};

}  // namespace

Source source_of(const Case& c, const std::string& arch) {
  Source source;
  source.target = {BackendKind::cuda, arch};
  source.name = c.name + ".cu";
  source.text = kernel_text(c);
  source.plan.steps = {{kEntry, c.threads, c.smem_bytes, parse_expr(std::to_string(c.blocks))}};
  return source;
}

bool fits(const Case& c, const std::string& arch) {
  return c.needs == Needs::sm_80 || arch == to_string(c.needs);
}

Bytes run_on_device(const Case& c, const Source& source, const Binary& binary, int device) {
  Backend& backend = cuda_backend();
  const DeviceBytes in(c.input, device), out(c.output, device);
  Params params{};
  params.in = in.get();
  params.out = out.get();
  if (c.map) {
    TensorMapSpec spec = c.map->spec;
    spec.base = (c.map->of_output ? out.get() : in.get()) + c.map->offset;
    backend.encode_tensor_map(spec, params.map, device);
  }
  const std::unique_ptr<Module> module = backend.load(binary, source.plan, device);
  const std::array<StepLaunch, 1> steps = {{{0, c.blocks}}};
  backend.launch(*module, steps, &params, device, nullptr);
  backend.synchronize(device, nullptr);
  Bytes result(c.output.size());
  backend.copy_out(device, result.data(), out.get(), result.size());
  return result;
}

}  // namespace flashwright::conformance
