// flashwright._native: the C interface for Python. The package around it has the functions for users.
#include <nanobind/nanobind.h>

#include "arguments.hpp"
#include "blocks.hpp"
#include "errors.hpp"
#include "kernel.hpp"
#include "openmp.hpp"
#include "questions.hpp"
#include "xla_handler.hpp"

NB_MODULE(_native, module) {
  // Kernels and requests in module-level caches live until the process ends.
  nanobind::set_leak_warnings(false);
  module.doc() =
      "The C interface of flashwright for Python. Users take the functions of flashwright.";
  fwpy::register_errors();
  fwpy::bind_blocks(module);
  fwpy::bind_arguments(module);
  fwpy::bind_kernel(module);
  fwpy::bind_openmp(module);
  fwpy::bind_questions(module);
  fwpy::bind_xla_handler(module);
}
