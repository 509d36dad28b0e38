#include "tests/cache/support.hpp"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace flashwright::test {

namespace fs = std::filesystem;

Folder::Folder() {
  // In memory where possible: thousands of synchronised writes would measure the disk.
  const std::string parent =
      access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path().string();
  std::string name = parent + "/flashwright-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = fs::canonical(name).string();
}

Folder::~Folder() {
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(path_, ignored))
    if (entry.is_directory() && !entry.is_symlink()) chmod(entry.path().c_str(), 0700);
  fs::remove_all(path_, ignored);
}

Environment::Environment(const Variables& variables) {
  for (const auto& [name, value] : variables) {
    const char* const old = std::getenv(name.c_str());
    before_.emplace_back(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
    if (value)
      setenv(name.c_str(), value->c_str(), 1);
    else
      unsetenv(name.c_str());
  }
}

Environment::~Environment() {
  for (const auto& [name, value] : before_) {
    if (value)
      setenv(name.c_str(), value->c_str(), 1);
    else
      unsetenv(name.c_str());
  }
}

Log::Log() {
  set_log_sink([this](LogLevel level, const std::string& line) {
    const std::scoped_lock lock(mutex_);
    if (level <= LogLevel::warn) warnings_.push_back(line);
  });
}

Log::~Log() { set_log_sink({}); }

std::vector<std::string> Log::warnings() const {
  const std::scoped_lock lock(mutex_);
  return warnings_;
}

std::string Log::all() const {
  std::string text;
  for (const std::string& line : warnings()) text += line + "\n";
  return text;
}

pid_t start(const std::function<int()>& body) {
  std::fflush(nullptr);  // or both processes print what is waiting
  const pid_t child = fork();
  if (child != 0) return child;
  int status = 99;
  try {
    status = body();
  } catch (const std::exception& error) {
    fmt::print(stderr, "a child process threw: {}\n", error.what());
  } catch (...) {
  }
  _exit(status);
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

std::optional<int> as_nobody(const std::function<int()>& body) {
  if (geteuid() != 0) return std::nullopt;
  constexpr uid_t kNobody = 65534;
  constexpr int kImpossible = 98;
  const int status = in_child([&body] {
    if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0)
      return kImpossible;
    return body();
  });
  if (status == kImpossible) return std::nullopt;
  return status;
}

Binary binary_of_number(int i, std::size_t bytes) {
  Binary binary;
  binary.kind = i % 2 == 0 ? Binary::Kind::cubin : Binary::Kind::object;
  binary.target =
      i % 2 == 0 ? Target{BackendKind::cuda, "sm_90a"} : Target{BackendKind::cpu, "avx2"};
  std::mt19937 random(static_cast<unsigned>(i));
  binary.bytes.resize(bytes);
  for (char& byte : binary.bytes) byte = static_cast<char>(random());
  binary.toolchain = fmt::format("test compiler {}", i);
  binary.resources.registers = 100 + i % 100;
  binary.resources.spill_bytes = i % 3;
  binary.compile_ms = i + 0.5;
  binary.log = "a warning\nwith \"quotes\"";
  return binary;
}

Digest key_of_number(int i) {
  const Binary binary = binary_of_number(i, 0);
  return artifact_key(fmt::format("source {}", i), binary.target, binary.kind, "-O3", "compiler 1");
}

Digest base_of_number(int i) {
  const Binary binary = binary_of_number(i, 0);
  return artifact_key(fmt::format("source {}", i), binary.target, binary.kind, "-O3", "");
}

void put_number(ArtifactStore& store, int i, std::size_t bytes) {
  store.put(key_of_number(i), base_of_number(i), binary_of_number(i, bytes),
            fmt::format("kernel {}", i));
}

bool has_number(ArtifactStore& store, int i, std::size_t bytes) {
  const std::optional<Binary> found = store.get(key_of_number(i));
  const Binary expected = binary_of_number(i, bytes);
  return found && found->bytes == expected.bytes && found->kind == expected.kind &&
         found->target == expected.target && found->toolchain == expected.toolchain &&
         found->resources.registers == expected.resources.registers &&
         found->resources.spill_bytes == expected.resources.spill_bytes &&
         found->compile_ms == expected.compile_ms && found->log == expected.log;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string database_file(const Folder& folder) { return folder / "artifacts-1.db"; }

std::vector<std::string> files_in(const Folder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string integrity(const std::string& path) {
  try {
    SQLite::Database database(path, SQLite::OPEN_READWRITE, 5000);
    return database.execAndGet("PRAGMA integrity_check").getString();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace flashwright::test
