// SHA-256 (FIPS 180-4), for identities that are stored and travel between machines.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashwright {

using Digest = std::array<std::uint8_t, 32>;

// The bytes may come in any pieces. A copy continues from where it was made: texts with a common beginning share it.
class Sha256 {
 public:
  Sha256& update(std::string_view bytes);
  // As update(), preceded by the length.
  Sha256& part(std::string_view bytes);
  Digest finish() const;

 private:
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_{};  // what does not fill a block yet
  std::uint64_t bytes_ = 0;
};

Digest sha256(std::string_view bytes);
std::string to_hex(const Digest& digest);

// Hash of a list of texts: each is preceded by its length, so no two lists give the same bytes.
Digest sha256_of(std::initializer_list<std::string_view> parts);

}  // namespace flashwright
