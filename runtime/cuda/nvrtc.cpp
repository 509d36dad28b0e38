#include "runtime/cuda/nvrtc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

#include "core/error.hpp"
#include "core/sha256.hpp"
#include "runtime/cuda/arch_choice.hpp"
#include "runtime/library_search.hpp"

namespace flashwright::nvrtc {
namespace {

// Own declarations of the few functions used; the values are those of nvrtc.h.
using Result = int;  // nvrtcResult: 0 is success, 6 a compilation error
using Program = struct _nvrtcProgram*;
constexpr Result kCompilationError = 6;

struct Table {
  SharedLibrary library;
  Result (*version)(int*, int*) = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*create)(Program*, const char*, const char*, int, const char* const*,
                   const char* const*) = nullptr;
  Result (*compile)(Program, int, const char* const*) = nullptr;
  Result (*destroy)(Program*) = nullptr;
  Result (*cubin_size)(Program, std::size_t*) = nullptr;
  Result (*cubin)(Program, char*) = nullptr;
  Result (*ptx_size)(Program, std::size_t*) = nullptr;
  Result (*ptx)(Program, char*) = nullptr;
  Result (*log_size)(Program, std::size_t*) = nullptr;
  Result (*log)(Program, char*) = nullptr;
  Result (*arch_count)(int*) = nullptr;
  Result (*archs)(int*) = nullptr;
  std::string failure;
  Identity identity;
};

template <typename Function>
bool find(const SharedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.symbol(name));
  return function != nullptr;
}

constexpr const char* kHowToGet =
    "install a CUDA toolkit 12 or 13, or `pip install nvidia-cuda-nvrtc`, or set FLASHWRIGHT_NVRTC "
    "to the path "
    "of libnvrtc.so.13";

Table* load() {
  auto* const t = new Table{};  // kept for the life of the process, as the library is
  t->library = SharedLibrary(nvrtc_candidates());
  if (!t->library) {
    t->failure = fmt::format("NVRTC was not found ({}); {}", t->library.failure(), kHowToGet);
    return t;
  }
  const bool complete = find(t->library, "nvrtcVersion", t->version) &&
                        find(t->library, "nvrtcGetErrorString", t->error_string) &&
                        find(t->library, "nvrtcCreateProgram", t->create) &&
                        find(t->library, "nvrtcCompileProgram", t->compile) &&
                        find(t->library, "nvrtcDestroyProgram", t->destroy) &&
                        find(t->library, "nvrtcGetCUBINSize", t->cubin_size) &&
                        find(t->library, "nvrtcGetCUBIN", t->cubin) &&
                        find(t->library, "nvrtcGetPTXSize", t->ptx_size) &&
                        find(t->library, "nvrtcGetPTX", t->ptx) &&
                        find(t->library, "nvrtcGetProgramLogSize", t->log_size) &&
                        find(t->library, "nvrtcGetProgramLog", t->log) &&
                        find(t->library, "nvrtcGetNumSupportedArchs", t->arch_count) &&
                        find(t->library, "nvrtcGetSupportedArchs", t->archs);
  Identity& id = t->identity;
  id.path = t->library.path();
  if (!complete) {
    t->failure = fmt::format("NVRTC at {} is too old: it lacks functions of version 11.2; {}",
                             id.path, kHowToGet);
    return t;
  }
  t->version(&id.version.first, &id.version.second);
  int count = 0;
  if (t->arch_count(&count) == 0) {
    id.architectures.resize(static_cast<std::size_t>(count));
    t->archs(id.architectures.data());
  }
  return t;
}

const Table& table() {
  static const Table* const instance = load();
  return *instance;
}

const Table& usable_table() {
  const Table& t = table();
  if (!t.failure.empty()) throw Error(Status::unavailable, t.failure);
  return t;
}

// Owns a program.
class ProgramHolder {
 public:
  ProgramHolder(const Table& t, const Source& source, const std::vector<Header>& headers)
      : table_(t) {
    std::vector<const char*> texts, names;
    for (const Header& header : headers) {
      texts.push_back(header.text.c_str());
      names.push_back(header.name.c_str());
    }
    check(t.create(&program_, source.text.c_str(), source.name.c_str(),
                   static_cast<int>(headers.size()), texts.data(), names.data()),
          "nvrtcCreateProgram");
  }
  ~ProgramHolder() { table_.destroy(&program_); }
  ProgramHolder(const ProgramHolder&) = delete;
  ProgramHolder& operator=(const ProgramHolder&) = delete;

  Program get() const { return program_; }

  void check(Result result, const char* call) const {
    if (result != 0)
      throw Error(Status::compile_failed, fmt::format("{}: {}", call, table_.error_string(result)));
  }

  std::string log() const {
    std::size_t size = 0;
    if (table_.log_size(program_, &size) != 0 || size <= 1) return {};
    std::string text(size, '\0');
    table_.log(program_, text.data());
    text.resize(size - 1);
    return text;
  }

  std::string result(Binary::Kind kind) const {
    const bool ptx = kind == Binary::Kind::ptx;
    std::size_t size = 0;
    check((ptx ? table_.ptx_size : table_.cubin_size)(program_, &size), "size of the binary");
    std::string bytes(size, '\0');
    check((ptx ? table_.ptx : table_.cubin)(program_, bytes.data()), "fetching the binary");
    return bytes;
  }

 private:
  const Table& table_;
  Program program_ = nullptr;
};

void check_target(const Table& t, const Target& target) {
  const ArchInfo& arch = arch_info(target);
  const int wanted = arch.major * 10 + arch.minor;
  const auto& known = t.identity.architectures;
  if (std::find(known.begin(), known.end(), wanted) != known.end()) return;
  const auto needed = cuda::nvrtc_needed({arch.major, arch.minor});
  throw Error(
      Status::unavailable,
      fmt::format(
          "target: {} (compute capability {}.{}) is unknown to the NVRTC {}.{} at {}; needed: "
          "NVRTC {}.{} or newer",
          target.arch, arch.major, arch.minor, t.identity.version.first, t.identity.version.second,
          t.identity.path, needed.first, needed.second));
}

std::vector<std::string> option_list(const Table& t, const Source& source,
                                     const CompileOptions& options) {
  std::vector<std::string> list = {"--gpu-architecture=" + source.target.arch, "--std=c++17"};
  if (binary_kind(source.target) == Binary::Kind::cubin)
    list.insert(list.end(), {"--ptxas-options=-v", "--ptxas-options=--warn-on-spills"});
  // Our store replaces NVRTC's own, and timings must be true.
  if (t.identity.version >= std::pair(12, 9)) list.emplace_back("--no-cache");
  // The kernels of a module at the same time. For sm_90a the code is the same; for sm_120 it was found
  // to differ from one compilation to the next.
  if (source.plan.steps.size() > 1 && source.target.arch == "sm_90a" &&
      t.identity.version >= std::pair(12, 1))
    list.push_back(fmt::format("--split-compile={}", source.plan.steps.size()));
  if (options.line_info) list.emplace_back("--generate-line-info");
  for (const std::string& define : options.defines) list.push_back("--define-macro=" + define);
  return list;
}

// Size and both ends of a file: two builds of a library differ in them.
std::string file_digest(const std::string& path) {
  constexpr std::streamoff kEnd = 65536;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return "absent";
  const std::streamoff size = in.tellg();
  std::string bytes(static_cast<std::size_t>(std::min(size, kEnd)), '\0');
  in.seekg(0).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const std::string head = bytes;
  in.seekg(size - static_cast<std::streamoff>(bytes.size()))
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return to_hex(sha256_of({std::to_string(size), head, bytes}));
}

}  // namespace

std::string missing() { return table().failure; }

const Identity& identity() { return usable_table().identity; }

std::string fingerprint() {
  static std::mutex mutex;
  static std::string cached;
  const std::scoped_lock lock(mutex);
  if (!cached.empty()) return cached;
  namespace fs = std::filesystem;
  for (const std::string& candidate : nvrtc_candidates()) {
    std::error_code error;
    const fs::path path = fs::canonical(candidate, error);
    if (error) continue;
    std::string digests = file_digest(path.string());
    std::vector<fs::path> builtins;  // the other half of the compiler lies beside it
    for (const auto& entry : fs::directory_iterator(path.parent_path(), error))
      if (entry.path().filename().string().rfind("libnvrtc-builtins", 0) == 0 &&
          !entry.is_symlink())
        builtins.push_back(entry.path());
    std::sort(builtins.begin(), builtins.end());
    for (const fs::path& builtin : builtins) digests += file_digest(builtin.string());
    return cached = "nvrtc " + to_hex(sha256(digests));
  }
  // Known to the loader only: it has to be loaded to be found.
  const std::string path = identity().path;
  return cached = "nvrtc " + to_hex(sha256(file_digest(path)));
}

Binary::Kind binary_kind(const Target& target) {
  return target.arch.starts_with("compute_") ? Binary::Kind::ptx : Binary::Kind::cubin;
}

Binary compile(const Source& source, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Table& t = usable_table();
  check_target(t, source.target);
  const ProgramHolder program(t, source, options.headers);
  const std::vector<std::string> list = option_list(t, source, options);
  std::vector<const char*> pointers;
  for (const std::string& option : list) pointers.push_back(option.c_str());
  const Result result =
      t.compile(program.get(), static_cast<int>(pointers.size()), pointers.data());
  const std::string log = rewrite_lines(source, program.log());
  if (result != 0) {
    std::string first = log.substr(0, log.find('\n'));
    if (result != kCompilationError || first.empty()) first = t.error_string(result);
    throw Error(Status::compile_failed,
                fmt::format("{} for {}: {}", source.name, source.target.arch, first), log);
  }
  Binary binary;
  binary.kind = binary_kind(source.target);
  binary.target = source.target;
  binary.bytes = program.result(binary.kind);
  binary.toolchain =
      fmt::format("NVRTC {}.{}", t.identity.version.first, t.identity.version.second);
  binary.resources = parse_resources(log);
  for (const LaunchStep& step : source.plan.steps)
    binary.resources.dynamic_smem_bytes =
        std::max(binary.resources.dynamic_smem_bytes, step.smem_bytes);
  binary.log = log;
  binary.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return binary;
}

Resources parse_resources(const std::string& log) {
  Resources out;
  // "... 0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads" and
  // "... Used 168 registers, used 1 barriers, 1024 bytes smem, ..."
  const auto number_before = [&log](std::size_t at) {
    std::size_t end = at;
    while (end > 0 && log[end - 1] == ' ') --end;
    std::size_t start = end;
    while (start > 0 && log[start - 1] >= '0' && log[start - 1] <= '9') --start;
    return start == end ? 0 : std::stoi(log.substr(start, end - start));
  };
  const auto largest = [&](const char* text) {
    int value = 0;
    for (std::size_t at = 0; (at = log.find(text, at)) != std::string::npos; ++at)
      value = std::max(value, number_before(at));
    return value;
  };
  out.registers = largest("registers");
  out.spill_bytes = largest("bytes spill stores");
  out.stack_bytes = largest("bytes stack frame");
  out.static_smem_bytes = largest("bytes smem");
  return out;
}

std::vector<std::string> parse_warnings(const std::string& log) {
  std::vector<std::string> out;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (line.find("warning") != std::string::npos || line.find("C75") != std::string::npos)
      out.push_back(line);
  return out;
}

}  // namespace flashwright::nvrtc
