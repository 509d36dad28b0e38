// Every environment variable of the library, read in this one place.
#pragma once

#include <string>
#include <vector>

namespace flashwright::env {

enum class Variable {
  cache_dir,
  data_dir,
  max_bytes,
  effort,
  jobs,
  log,  // users
  cpu,
  l1_bytes,
  l2_bytes,
  cpu_plugin,  // what the CPU backend believes
  nvrtc,
  cuda,
  family,
  template_dir,
  dump_dir,  // developers
};

struct Info {
  Variable id;
  const char* name;          // "FLASHWRIGHT_CACHE_DIR"
  const char* default_text;  // what happens when it is not set
  const char* meaning;
};
const std::vector<Info>& variables();

// "" when the variable is not set. Ignored in set-uid programs.
std::string get(Variable variable);

// Another variable that conventions ask us to respect: HOME, XDG_CACHE_HOME, XDG_DATA_HOME,
// XDG_RUNTIME_DIR, CUDA_PATH, CUDA_HOME, CONDA_PREFIX.
std::string get_foreign(const char* name);

// FLASHWRIGHT_ variables that are set and that nobody reads: most likely a typing error.
std::vector<std::string> unknown();

}  // namespace flashwright::env
