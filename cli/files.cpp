#include "cli/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "cli/error.hpp"

namespace cli {
namespace {

constexpr std::size_t kAlignment = 256;

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

HostBuffer::HostBuffer(std::size_t size) : size_(size) {
  if (size > SIZE_MAX - kAlignment)
    throw Error(Exit::bad_input, "an array is larger than memory can be");
  const std::size_t whole =
      std::max<std::size_t>(1, (size + kAlignment - 1) / kAlignment) * kAlignment;
  data_.reset(std::aligned_alloc(kAlignment, whole));
  if (data_ == nullptr) throw Error(Exit::internal, fmt::format("out of memory: {} bytes", size));
}

OutputFile::OutputFile(std::string flag, std::string path)
    : flag_(std::move(flag)), path_(std::move(path)), final_path_(path_) {
  if (path_.empty()) bad_value(flag_, path_, "the name of a file");
  struct stat status {};
  if (stat(path_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode))
      throw Error(Exit::io_error,
                  fmt::format("{}: '{}' is a folder; expected the name of a file", flag_, path_));
    in_place_ = !S_ISREG(status.st_mode);
    char resolved[PATH_MAX];  // what a symbolic link points to is replaced, not the link
    if (realpath(path_.c_str(), resolved) != nullptr) final_path_ = resolved;
  }
  if (in_place_) {
    file_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    if (file_ < 0) fail("cannot open");
  } else {
    open_temporary();
  }
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : flag_(std::move(other.flag_)),
      path_(std::move(other.path_)),
      final_path_(std::move(other.final_path_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::exchange(other.file_, -1)),
      in_place_(other.in_place_) {}

OutputFile::~OutputFile() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::fail(const char* what) const {
  throw Error(Exit::io_error,
              fmt::format("{}: {} '{}': {}", flag_, what, path_, std::strerror(errno)));
}

void OutputFile::open_temporary() {
  // A file without a name vanishes with the process, whatever kills it. It gets its name through /proc.
  if (access("/proc/self/fd", X_OK) == 0) {
    file_ = open(folder_of(final_path_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (file_ >= 0) return;
    // EISDIR and ENOENT come from kernels and file systems that do not know O_TMPFILE.
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)
      fail("cannot write");
  }
  const std::string name = fmt::format("{}.{}.new", final_path_, getpid());
  file_ = open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (file_ < 0) fail("cannot write");
  temporary_ = name;
}

void OutputFile::write(const void* data, std::size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = ::write(file_, at, std::min<std::size_t>(size, 1 << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot write");
    at += count;
    size -= static_cast<std::size_t>(count);
  }
}

void OutputFile::commit() {
  if (!in_place_ && fsync(file_) != 0 && errno != EINVAL) fail("cannot write");
  if (!in_place_ && temporary_.empty()) {
    const std::string name = fmt::format("{}.{}.new", final_path_, getpid());
    const std::string self = fmt::format("/proc/self/fd/{}", file_);
    unlink(name.c_str());
    if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0)
      fail("cannot name");
    temporary_ = name;
  }
  const int closed = close(std::exchange(file_, -1));
  if (closed != 0) fail("cannot write");
  if (in_place_) return;
  if (rename(temporary_.c_str(), final_path_.c_str()) != 0) fail("cannot replace");
  temporary_.clear();
}

void write_file(const std::string& flag, const std::string& path, std::string_view bytes) {
  OutputFile file(flag, path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace cli
