// One artifact as it is stored and exported: the binary, what is known about it as one JSON text, and
// a digest over all of it together with its key.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cache/key.hpp"
#include "core/source.hpp"

namespace flashwright {

struct ArtifactInfo {
  Digest key{};
  std::string label;  // what it is: problem, schedule, target
  Binary::Kind kind{};
  Target target;
  std::string toolchain;
  std::int64_t bytes = 0;
  double compile_ms = 0;
  std::int64_t created = 0;   // seconds since 1970
  std::int64_t used_day = 0;  // days since 1970
};

struct ArtifactRow {
  Digest key{};
  Digest base{};  // the key without toolchain
  Digest digest{};
  std::string about;
  std::string bytes;
  std::int64_t used_day = 0;
};

// A larger binary is not stored.
constexpr std::size_t kMaxBinaryBytes = 64u << 20;

ArtifactRow make_row(const Digest& key, const Digest& base, const Binary& binary,
                     const std::string& label, std::int64_t created);

// Key, text and bytes are those that were stored together.
bool intact(const ArtifactRow& row);

// Nothing when the text is not one of ours.
std::optional<Binary> binary_of(ArtifactRow&& row);
std::optional<ArtifactInfo> info_of(const Digest& key, const std::string& about);

nlohmann::json to_record(const ArtifactRow& row);
// "" or why the record is refused.
std::string from_record(const nlohmann::json& record, ArtifactRow& row);

}  // namespace flashwright
