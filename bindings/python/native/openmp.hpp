// The threads of the process's OpenMP runtime for kernels on the CPU. A framework's OpenMP threads spin for a while
// after each of its operators; other threads beside them would find the cores taken.
#pragma once

#include <nanobind/nanobind.h>

namespace fwpy {

// Has the library's CPU kernels run on them, as many as the framework uses at the time. False: the process has no
// OpenMP runtime with the entry points of GNU's, and the library keeps its own threads.
bool use_openmp();

void bind_openmp(nanobind::module_& module);

}  // namespace fwpy
