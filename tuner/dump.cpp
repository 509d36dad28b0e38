#include "tuner/dump.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "core/env.hpp"
#include "core/log.hpp"

namespace flashwright {
namespace {

const char* ending_of(Binary::Kind kind) {
  constexpr const char* kEndings[] = {".cubin", ".ptx", ".o"};
  return kEndings[static_cast<int>(kind)];
}

// "forward_bf16_d128_causal_sm_90a-q128.kv64.w4.st2.b2-0123456789ab": the digits are those with which
// `cache ls` begins the key.
std::string name_of(const Built& built, const Problem& problem) {
  std::string name =
      fmt::format("{}-{}-{:.12}", to_string(problem), to_string(built.schedule), to_hex(built.key));
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-';
  };
  std::replace_if(
      name.begin(), name.end(), [&](char c) { return !is_plain(c); }, '_');
  return name;
}

// Once for each folder: what follows from the same trouble says nothing new.
void tell(const std::string& path, const std::string& why) {
  static std::mutex mutex;
  static std::string told;
  const std::string folder = std::filesystem::path(path).parent_path();
  {
    const std::scoped_lock lock(mutex);
    if (told == folder) return;
    told = folder;
  }
  log(LogLevel::warn, fmt::format("FLASHWRIGHT_DUMP_DIR: {} cannot be written ({})", path, why));
}

}  // namespace

Dump::Dump(const Built& built, const Problem& problem) {
  const std::string folder = env::get(env::Variable::dump_dir);
  if (folder.empty()) return;
  std::error_code ignored;  // writing tells
  const std::filesystem::path place = std::filesystem::absolute(folder, ignored);
  std::filesystem::create_directories(place, ignored);
  stem_ = (place / name_of(built, problem)).string();
  const std::string ending = built.source.language == Language::cuda ? ".cu" : ".ll";
  if (write(ending, built.source.text)) source_ = stem_ + ending;
}

void Dump::compiled(const Binary& binary) const {
  if (stem_.empty()) return;
  write(ending_of(binary.kind), binary.bytes);
  if (!binary.log.empty()) write(".log", binary.log);
}

void Dump::failed(Error& error) const {
  if (stem_.empty()) return;
  write(".log", error.message + "\n" + error.detail);
  if (error.status != Status::compile_failed || source_.empty()) return;
  if (!error.detail.empty() && !error.detail.ends_with('\n')) error.detail += '\n';
  error.detail += fmt::format("the source is in {}\n", source_);
}

bool Dump::write(const std::string& ending, const std::string& bytes) const {
  const std::string path = stem_ + ending;
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file) return true;
  tell(path, errno != 0 ? std::strerror(errno) : "unknown");
  return false;
}

}  // namespace flashwright
