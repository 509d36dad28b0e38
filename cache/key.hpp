// Identities of stored binaries. A key is made of what the compiler is given and of nothing else: no
// path, no time, no version of this library, so that an artifact is stale exactly when its text is.
#pragma once

#include <optional>
#include <string_view>

#include "core/device.hpp"
#include "core/sha256.hpp"
#include "core/source.hpp"

namespace flashwright {

// `options` is the compiler's command line in its final order, `toolchain` the identity that
// Backend::toolchain gives. Binaries of one text made by different compilers are equally right; they
// share the key with an empty toolchain, by which a machine without a compiler finds them.
Digest artifact_key(std::string_view source_text, const Target& target, Binary::Kind kind,
                    std::string_view options, std::string_view toolchain);

// The key, and the one with an empty toolchain, for little more than the work of one.
struct ArtifactKeys {
  Digest key, base;
};
ArtifactKeys artifact_keys(std::string_view source_text, const Target& target, Binary::Kind kind,
                           std::string_view options, std::string_view toolchain);

// The inverse of to_hex; nothing for any other text.
std::optional<Digest> digest_from_hex(std::string_view hex);

}  // namespace flashwright
