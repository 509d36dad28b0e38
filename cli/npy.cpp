#include "cli/npy.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "cli/error.hpp"

namespace cli {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kMostHeader = 1 << 16;  // NumPy's own headers have some hundred bytes
constexpr std::int64_t kMostBytes = std::int64_t{1} << 46;

// Reads the dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  NpyHeader header() {
    NpyHeader out;
    bool has_type = false, has_order = false, has_shape = false;
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !std::exchange(has_type, true)) {
        out.type = type();
      } else if (key == "fortran_order" && !std::exchange(has_order, true)) {
        out.fortran_order = boolean();
      } else if (key == "shape" && !std::exchange(has_shape, true)) {
        out.shape = tuple();
      } else {
        fail(fmt::format("the key '{}' is unknown or appears twice", key));
      }
      if (!take(',') && peek() != '}') fail("expected ',' or '}'");
    }
    if (!rest_.empty() && rest_.find_first_not_of(" \n") != std::string_view::npos)
      fail("there is text behind it");
    if (!has_type || !has_order || !has_shape) fail("it lacks 'descr', 'fortran_order' or 'shape'");
    return out;
  }

 private:
  [[noreturn]] static void fail(const std::string& why) {
    throw Error(Exit::bad_input, "the header cannot be read: " + why);
  }
  char peek() {
    const std::size_t start = rest_.find_first_not_of(" \t\n");
    rest_.remove_prefix(std::min(rest_.size(), start));
    return rest_.empty() ? '\0' : rest_.front();
  }
  bool take(char c) {
    if (peek() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(fmt::format("expected '{}'", c));
  }
  std::string quoted() {
    const char quote = peek();
    const std::size_t end =
        quote == '\'' || quote == '"' ? rest_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) fail("expected a text in quotes");
    const std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }
  std::string type() {
    if (peek() == '[' || peek() == '(')
      throw Error(Exit::bad_input,
                  "its elements are records of several fields (a structured array)");
    return quoted();
  }
  bool boolean() {
    peek();
    for (const std::string_view word : {"True", "False"})
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(word.size());
        return word == "True";
      }
    fail("'fortran_order' is neither True nor False");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!take(')')) {
      peek();
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc{} || value < 0) fail("'shape' is no tuple of lengths");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      take('L');  // written by Python 2
      values.push_back(value);
      if (values.size() > 32) fail("'shape' has more than 32 lengths");
      if (!take(',') && peek() != ')') fail("expected ',' or ')'");
    }
    return values;
  }

  std::string_view rest_;
};

class InputFile {
 public:
  InputFile(const std::string& flag, const std::string& path) : label_(flag + " " + path) {
    file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0)
      throw Error(Exit::bad_input, fmt::format("{}: given '{}'; cannot open it: {}", flag, path,
                                               std::strerror(errno)));
    struct stat status {};
    if (fstat(file_, &status) == 0 && S_ISREG(status.st_mode)) size_ = status.st_size;
  }
  ~InputFile() { close(file_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // As many bytes as there are, up to `size`.
  std::size_t read(void* data, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      const ssize_t count = ::read(file_, static_cast<char*>(data) + done,
                                   std::min<std::size_t>(size - done, 1 << 30));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        throw Error(Exit::io_error,
                    fmt::format("{}: cannot read: {}", label_, std::strerror(errno)));
      if (count == 0) break;
      done += static_cast<std::size_t>(count);
    }
    return done;
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(Exit::bad_input, label_ + ": " + why);
  }
  std::int64_t size() const { return size_; }  // -1: a pipe

 private:
  std::string label_;
  int file_ = -1;
  std::int64_t size_ = -1;
};

// The header's text; `header_bytes` is how many bytes come before the elements.
std::string read_header(InputFile& file, std::int64_t& header_bytes) {
  unsigned char start[12] = {};
  const std::size_t got = file.read(start, 8);
  if (got == 0) file.fail("the file is empty; expected a .npy array");
  if (got < 8 || std::memcmp(start, kMagic.data(), kMagic.size()) != 0)
    file.fail(
        "it is no .npy file: its first bytes are not those of one; expected an array written by "
        "numpy.save");
  const int major = start[6], minor = start[7];
  if (major < 1 || major > 3 || minor != 0)
    file.fail(fmt::format("the format version is {}.{}; allowed: 1.0, 2.0, 3.0", major, minor));
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  if (file.read(start + 8, length_bytes) < length_bytes) file.fail("truncated within its header");
  std::size_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;) length = length << 8 | start[8 + i];
  if (length > kMostHeader)
    file.fail(fmt::format("its header has {} bytes; allowed: at most {}", length, kMostHeader));
  std::string text(length, '\0');
  if (file.read(text.data(), length) < length) file.fail("truncated within its header");
  header_bytes = static_cast<std::int64_t>(8 + length_bytes + length);
  return text;
}

void check_type(const InputFile& file, const NpyHeader& header,
                const std::vector<std::string>& types, const std::string& expected) {
  const std::string& type = header.type;
  if (std::find(types.begin(), types.end(), type) == types.end()) {
    const char* why = "";
    if (type.find('O') != std::string::npos)
      why = ", Python objects, which are stored as a pickle and never read";
    else if (type.starts_with('>'))
      why = ", big-endian";
    else if (type == "<f8")
      why = ", double precision; numpy: x.astype('float32')";
    file.fail(fmt::format("the element type is '{}'{}; expected {}", type, why, expected));
  }
  if (header.fortran_order && header.shape.size() > 1)
    file.fail("the array is in Fortran order; expected C order (numpy: numpy.ascontiguousarray)");
}

// Bytes of one element of an allowed type.
std::int64_t element_bytes(const std::string& type) {
  std::int64_t bytes = 0;
  std::from_chars(type.data() + 2, type.data() + type.size(), bytes);
  return bytes;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view text) { return Parser(text).header(); }

NpyArray read_npy(const std::string& flag, const std::string& path,
                  const std::vector<std::string>& types, const std::string& expected) {
  InputFile file(flag, path);
  std::int64_t header_bytes = 0;
  const std::string text = read_header(file, header_bytes);
  NpyArray array;
  NpyHeader header;
  try {
    header = parse_npy_header(text);
  } catch (const Error& error) {
    file.fail(error.what());
  }
  check_type(file, header, types, expected);
  array.type = header.type;
  array.shape = header.shape;
  std::int64_t bytes = element_bytes(array.type);
  for (const std::int64_t extent : array.shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > kMostBytes)
      file.fail(
          fmt::format("the shape {} is larger than any memory", fmt::join(array.shape, " x ")));
  const auto compare = [&](std::int64_t there) {
    if (there != bytes)
      file.fail(fmt::format("{}: {} bytes of elements; its shape ({}) needs {}",
                            there < bytes ? "truncated" : "too long", there,
                            fmt::join(array.shape, ", "), bytes));
  };
  if (file.size() >= 0) compare(file.size() - header_bytes);  // before memory is asked for
  array.bytes = HostBuffer(static_cast<std::size_t>(bytes));
  compare(static_cast<std::int64_t>(file.read(array.bytes.data(), array.bytes.size())));
  char more;
  if (file.read(&more, 1) != 0) compare(bytes + 1);
  return array;
}

void write_npy(OutputFile& file, std::string_view type, const std::vector<std::int64_t>& shape,
               const HostBuffer& bytes) {
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 type, fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  constexpr std::size_t kBefore = 10;  // magic, version, length
  // The elements begin at a multiple of 64 bytes, and a line feed ends the header.
  text.append(63 - (kBefore + text.size()) % 64, ' ');
  text += '\n';
  std::string start(kMagic);
  start += {'\1', '\0', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  file.write(start.data(), start.size());
  file.write(text.data(), text.size());
  file.write(bytes.data(), bytes.size());
}

}  // namespace cli
