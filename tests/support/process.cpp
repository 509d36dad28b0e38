#include "tests/support/process.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace flashwright::testing {
namespace {

constexpr int kNoProgram = 127;

[[noreturn]] void replace_process(std::vector<std::string> command) {
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  _exit(kNoProgram);
}

}  // namespace

int run_fresh(const Fresh& what) {
  std::fflush(stdout);  // or the child would print what waits there again
  const std::string program = what.program.empty() ? "/proc/self/exe" : what.program;
  return test::in_child([&]() -> int {
    for (const auto& [name, value] : what.environment) {
      if (value)
        setenv(name.c_str(), value->c_str(), 1);
      else
        unsetenv(name.c_str());
    }
    if (!what.folder.empty() && chdir(what.folder.c_str()) != 0) return kNoProgram;
    // Only the helper's own failures shall be heard of.
    if (std::freopen("/dev/null", "w", stdout) == nullptr) return kNoProgram;
    replace_process({program, "--no-skip", "--test-case=" + what.helper});
  });
}

Output run_program(const std::vector<std::string>& command) {
  const test::Folder folder;
  const std::string file = folder / "output";
  Output out;
  std::fflush(stdout);
  out.status = test::in_child([&]() -> int {
    const int descriptor = open(file.c_str(), O_WRONLY | O_CREAT, 0600);
    if (descriptor < 0 || dup2(descriptor, 1) < 0 || dup2(descriptor, 2) < 0) return kNoProgram;
    replace_process(command);
  });
  out.text = test::read_file(file);
  return out;
}

}  // namespace flashwright::testing
