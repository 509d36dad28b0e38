// The handler that JAX calls: attention and its gradients on buffers of XLA.
#pragma once

#include <nanobind/nanobind.h>

namespace fwpy {

void bind_xla_handler(nanobind::module_& module);

}  // namespace fwpy
