// SHA-256 (FIPS 180-4), for identities that are stored and travel between machines.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashwright {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view bytes);
std::string to_hex(const Digest& digest);

// Hash of a list of texts: each is preceded by its length, so no two lists give the same bytes.
Digest sha256_of(std::initializer_list<std::string_view> parts);

}  // namespace flashwright
