#include "emulator/host_unit.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/error.hpp"
#include "emulator/machine.hpp"

extern char** environ;

namespace flashwright::emulator {
namespace {

// A folder that goes with the object.
class Folder {
 public:
  Folder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "flashwright-emulator-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw Error(Status::io_error, fmt::format("emulator: cannot make the folder {}", pattern));
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Runs a program with its output in a file: its exit code, or -1 when it could not be started.
int run_program(const std::vector<std::string>& command, const std::string& output) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int started =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (started != 0) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

std::string host_compiler() {
  static const std::string found = [] {
    for (const char* name : {"g++", "clang++", "c++"})
      if (run_program({name, "--version"}, "/dev/null") == 0) return std::string(name);
    return std::string();
  }();
  return found;
}

HostUnit::HostUnit(Translation translation)
    : translation_(std::move(translation)), compiler_(host_compiler()) {
  if (compiler_.empty())
    throw Error(Status::unavailable,
                "emulator: no host compiler; expected g++, clang++ or c++ in the PATH");
  const auto start = std::chrono::steady_clock::now();
  const Folder folder;
  const std::string source = folder.file("unit.cpp"), library = folder.file("unit.so");
  std::ofstream(source, std::ios::binary) << translation_.text;
  // Contraction would round differently from the instructions; nothing of a library is needed.
  const int code =
      run_program({compiler_, "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-nostdlib",
                   "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-stack-protector",
                   "-fvisibility=hidden", "-fsanitize-coverage=trace-pc", "-o", library, source},
                  folder.file("log"));
  if (code != 0)
    throw Error(
        Status::compile_failed,
        fmt::format("emulator: {} does not compile {} as host C++", compiler_, translation_.name),
        read_file(folder.file("log")));
  load(library);
  compile_ms_ =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

void HostUnit::load(const std::string& library) {
  library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) throw Error(Status::internal, fmt::format("emulator: {}", dlerror()));
  const auto bind = reinterpret_cast<void (*)(const FwEmulator*)>(dlsym(library_, "fw_bind"));
  const auto bytes = reinterpret_cast<int (*)()>(dlsym(library_, "fw_params_bytes"));
  const int expected = translation_.plan.params.size();
  const bool known = translation_.known_params;
  if (bind == nullptr || bytes == nullptr || (known && (bytes() + 7) / 8 * 8 != expected)) {
    dlclose(library_);
    throw Error(Status::internal, "emulator: struct Params has another layout than its fields");
  }
  bind(&interface());
}

HostUnit::~HostUnit() {
  if (library_ != nullptr) dlclose(library_);
}

HostUnit::Entry HostUnit::entry(const std::string& name) const {
  const auto found = reinterpret_cast<Entry>(dlsym(library_, ("fw_run_" + name).c_str()));
  if (found == nullptr) throw Error(Status::internal, "emulator: no entry " + name);
  return found;
}

std::vector<HostUnit::Variable> HostUnit::variables() const {
  std::vector<Variable> out;
  for (const std::string& name : translation_.variables) {
    const auto place =
        reinterpret_cast<void* (*)()>(dlsym(library_, ("fw_variable_" + name).c_str()));
    if (place == nullptr) throw Error(Status::internal, "emulator: no variable " + name);
    out.push_back({name, place(), static_cast<std::size_t>(number("fw_bytes_" + name))});
  }
  return out;
}

int HostUnit::number(const std::string& function) const {
  const auto found = reinterpret_cast<int (*)()>(dlsym(library_, function.c_str()));
  if (found == nullptr) throw Error(Status::internal, "emulator: no function " + function);
  return found();
}

}  // namespace flashwright::emulator
