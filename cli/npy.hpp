// Arrays in NumPy's .npy files: simple element types, little endian, C order. Everything else is refused
// with the reason; nothing in a file is ever executed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files.hpp"

namespace cli {

struct NpyArray {
  std::string type;  // as NumPy writes it: "<f4", "|u1"
  std::vector<std::int64_t> shape;
  HostBuffer bytes;
};

// `flag` names the argument in errors; `types` are the element types that are allowed, `expected` says
// them in words.
NpyArray read_npy(const std::string& flag, const std::string& path,
                  const std::vector<std::string>& types, const std::string& expected);

// Writes the header and the elements; the caller commits the file.
void write_npy(OutputFile& file, std::string_view type, const std::vector<std::int64_t>& shape,
               const HostBuffer& bytes);

// The header's dictionary, without its opening magic and length. Throws Error(bad_input).
struct NpyHeader {
  std::string type;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};
NpyHeader parse_npy_header(std::string_view text);

}  // namespace cli
