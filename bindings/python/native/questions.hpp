// The functions of the library that work on Configs, and its log, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace fwpy {

void bind_questions(nanobind::module_& module);

}  // namespace fwpy
