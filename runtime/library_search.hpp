// Where shared libraries that are loaded at run time come from; one order for all of them.
#pragma once

#include <string>
#include <vector>

namespace flashwright {

// A shared library kept open for the life of the process.
class SharedLibrary {
 public:
  SharedLibrary() = default;
  // Opens the first candidate that loads; remembers why the others did not.
  explicit SharedLibrary(const std::vector<std::string>& candidates);

  explicit operator bool() const { return handle_ != nullptr; }
  void* symbol(const char* name) const;              // null when there is none
  const std::string& path() const { return path_; }  // the file that was loaded
  const std::string& failure() const { return failure_; }

 private:
  void* handle_ = nullptr;
  std::string path_, failure_;
};

// Candidates for NVRTC, best first: FLASHWRIGHT_NVRTC alone if it is set; else a copy already
// loaded, pip wheels beside the library, conda, CUDA_PATH, CUDA_HOME, the loader's own search, the
// usual folders.
std::vector<std::string> nvrtc_candidates();

// FLASHWRIGHT_CUDA, or the driver's library. Never libcuda.so, which toolkits have to link with.
std::vector<std::string> driver_candidates();

// Folder of the shared object (or program) that holds this code.
std::string own_folder();

}  // namespace flashwright
