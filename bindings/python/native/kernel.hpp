// Kernels, and what turns the tensors of a call into the Config that asks for one.
#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <mutex>
#include <string>

#include "arguments.hpp"
#include "flashwright/flashwright.hpp"

namespace fwpy {

namespace nb = nanobind;

// The kernel of a Config text; no shape: no particular one.
flashwright::Kernel get_kernel(const std::string& config, const flashwright_shape* shape,
                               std::int32_t effort);

// workspace: None, an address, or a function (bytes) -> (address, owner), whose owner is kept during the call. With
// None the launch brings its own on the CPU.
void launch(const flashwright::Kernel& kernel, const Arguments& arguments, std::uintptr_t stream,
            nb::handle workspace);

// The part of a Config that the tensors do not say. Its texts are made once for each element type, pair of head
// dims and device, so that a call handles no JSON.
class Request {
 public:
  // fields: the inside of a JSON object, without dtype, head_dim, head_dim_v and target.
  explicit Request(std::string fields) : fields_(std::move(fields)) {}

  flashwright::Kernel kernel(const Arguments& arguments, std::int32_t effort);
  // Both in one; stream: None for the current one of the framework whose exchange API q is read through.
  void launch(const Arguments& arguments, std::int32_t effort, nb::handle stream,
              nb::handle workspace);
  std::string config(const Arguments& arguments) { return text_for(arguments); }

 private:
  const std::string& text_for(const Arguments& arguments);

  std::string fields_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::string> texts_;
};

void bind_kernel(nb::module_& module);

}  // namespace fwpy
