// Files that the command line reads and writes. An output appears complete or not at all: it is written
// under no name, or under another one, and takes its own name at the end.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

namespace cli {

// Aligned for any vector, and without a destructor's or constructor's pass over the bytes.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(std::size_t size);  // throws Error(internal) when there is no memory
  void* data() { return data_.get(); }
  const void* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> data_;
  std::size_t size_ = 0;
};

class OutputFile {
 public:
  // `flag` is for error messages. Throws Error(io_error) when the folder cannot be written.
  OutputFile(std::string flag, std::string path);
  ~OutputFile();  // an output that was not committed leaves nothing behind
  OutputFile(OutputFile&& other) noexcept;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;

  void write(const void* data, std::size_t size);
  void commit();
  const std::string& path() const { return path_; }

 private:
  void open_temporary();
  [[noreturn]] void fail(const char* what) const;

  std::string flag_, path_, final_path_, temporary_;
  int file_ = -1;
  bool in_place_ = false;  // a device or a pipe, which cannot be replaced
};

// A whole text at once.
void write_file(const std::string& flag, const std::string& path, std::string_view bytes);

}  // namespace cli
