#include "runtime/library_search.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <filesystem>

#include "core/env.hpp"

namespace flashwright {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNvrtcNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

// Paths below `root` that match root/<pattern>, where a part "*" stands for any folder.
void glob(const fs::path& root, const std::vector<std::string>& parts, std::size_t at,
          std::vector<fs::path>& out) {
  if (at == parts.size()) {
    out.push_back(root);
    return;
  }
  std::error_code error;
  if (parts[at] != "*") {
    const fs::path next = root / parts[at];
    if (fs::exists(next, error)) glob(next, parts, at + 1, out);
    return;
  }
  std::vector<fs::path> folders;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error))
    if (it->is_directory(error)) folders.push_back(it->path());
  std::sort(folders.rbegin(), folders.rend());  // newest version first
  for (const fs::path& folder : folders) glob(folder, parts, at + 1, out);
}

void add_from_folder(const fs::path& folder, std::vector<std::string>& out) {
  std::error_code error;
  for (const char* name : kNvrtcNames)
    if (fs::exists(folder / name, error)) out.push_back((folder / name).string());
}

int remember_nvrtc(dl_phdr_info* object, std::size_t, void* out) {
  const std::string path = object->dlpi_name;
  const std::string name = fs::path(path).filename().string();
  if (name.rfind("libnvrtc.so", 0) == 0)
    static_cast<std::vector<std::string>*>(out)->push_back(path);
  return 0;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates) {
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      link_map* map = nullptr;
      if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0) path_ = map->l_name;
      if (path_.empty()) path_ = candidate;
      return;
    }
    const char* const why = dlerror();
    if (failure_.empty() && why != nullptr) failure_ = why;
  }
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code error;
  const fs::path path = fs::canonical(info.dli_fname, error);
  return error ? std::string() : path.parent_path().string();
}

std::vector<std::string> nvrtc_candidates() {
  const std::string chosen = env::get(env::Variable::nvrtc);
  if (!chosen.empty()) return {chosen};
  std::vector<std::string> out;
  dl_iterate_phdr(remember_nvrtc, &out);
  // Wheels: beside an installed package, or in a project's .venv above a build folder.
  const fs::path start(own_folder());
  fs::path folder = start;
  for (int level = 0; level < 5 && !folder.empty(); ++level) {
    std::vector<fs::path> found;
    glob(folder, {"nvidia", "*", "lib"}, 0, found);
    glob(folder, {".venv", "lib", "*", "site-packages", "nvidia", "*", "lib"}, 0, found);
    for (const fs::path& libraries : found) add_from_folder(libraries, out);
    if (folder == folder.root_path()) break;
    folder = folder.parent_path();
  }
  const std::string conda = env::get_foreign("CONDA_PREFIX");
  if (!conda.empty()) add_from_folder(fs::path(conda) / "lib", out);
  for (const char* name : {"CUDA_PATH", "CUDA_HOME"}) {
    const std::string root = env::get_foreign(name);
    if (!root.empty()) add_from_folder(fs::path(root) / "lib64", out);
  }
  for (const char* name : kNvrtcNames) out.emplace_back(name);
  add_from_folder("/usr/local/cuda/lib64", out);
  std::vector<fs::path> toolkits;
  glob("/usr/local", {"*", "lib64"}, 0, toolkits);
  for (const fs::path& libraries : toolkits) add_from_folder(libraries, out);
  return out;
}

std::vector<std::string> driver_candidates() {
  const std::string chosen = env::get(env::Variable::cuda);
  if (!chosen.empty()) return {chosen};
  return {"libcuda.so.1"};
}

}  // namespace flashwright
