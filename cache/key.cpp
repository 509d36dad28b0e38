#include "cache/key.hpp"

#include <cstddef>

namespace flashwright {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Digest artifact_key(std::string_view source_text, const Target& target, Binary::Kind kind,
                    std::string_view options, std::string_view toolchain) {
  return artifact_keys(source_text, target, kind, options, toolchain).key;
}

ArtifactKeys artifact_keys(std::string_view source_text, const Target& target, Binary::Kind kind,
                           std::string_view options, std::string_view toolchain) {
  Sha256 common;
  common.part("fw.kernel.v1").part(source_text).part(to_string(target)).part(to_string(kind));
  common.part(options);
  return {Sha256(common).part(toolchain).finish(), Sha256(common).part("").finish()};
}

std::optional<Digest> digest_from_hex(std::string_view hex) {
  Digest digest{};
  if (hex.size() != 2 * digest.size()) return std::nullopt;
  for (std::size_t i = 0; i < digest.size(); ++i) {
    const int high = hex_value(hex[2 * i]);
    const int low = hex_value(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    digest[i] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return digest;
}

}  // namespace flashwright
