#include "cache/artifact_row.hpp"

#include <nlohmann/json.hpp>

#include "cache/lines.hpp"

namespace flashwright {
namespace {

using nlohmann::json;

std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Digest digest_of(const ArtifactRow& row) {
  return sha256_of(
      {"fw.artifact.v1", view(row.key), view(row.base), row.about, view(sha256(row.bytes))});
}

struct ResourceField {
  const char* name;
  int Resources::*value;
};
constexpr ResourceField kResources[] = {
    {"registers", &Resources::registers},
    {"spill_bytes", &Resources::spill_bytes},
    {"stack_bytes", &Resources::stack_bytes},
    {"static_smem_bytes", &Resources::static_smem_bytes},
    {"dynamic_smem_bytes", &Resources::dynamic_smem_bytes},
};

std::optional<Binary::Kind> parse_kind(const std::string& text) {
  for (const Binary::Kind kind : {Binary::Kind::cubin, Binary::Kind::ptx, Binary::Kind::object})
    if (text == to_string(kind)) return kind;
  return std::nullopt;
}

// Not parse_target: an artifact may be meant for a device that this machine has never heard of.
Target target_of(const std::string& text) {
  constexpr std::string_view kCpu = "cpu:";
  if (text.starts_with(kCpu)) return {BackendKind::cpu, text.substr(kCpu.size())};
  return {BackendKind::cuda, text};
}

}  // namespace

ArtifactRow make_row(const Digest& key, const Digest& base, const Binary& binary,
                     const std::string& label, std::int64_t created) {
  json about = {{"kind", to_string(binary.kind)},
                {"target", to_string(binary.target)},
                {"toolchain", binary.toolchain},
                {"label", label},
                {"log", binary.log},
                {"compile_ms", binary.compile_ms},
                {"created", created}};
  for (const ResourceField& field : kResources) about[field.name] = binary.resources.*field.value;
  ArtifactRow row;
  row.key = key;
  row.base = base;
  row.about = to_line(about);
  row.bytes = binary.bytes;
  row.digest = digest_of(row);
  return row;
}

bool intact(const ArtifactRow& row) { return row.digest == digest_of(row); }

std::optional<ArtifactInfo> info_of(const Digest& key, const std::string& about) {
  const std::optional<json> text = parse_json(about);
  if (!text) return std::nullopt;
  const std::optional<Binary::Kind> kind = parse_kind(text_field(*text, "kind").value_or(""));
  const std::optional<std::string> target = text_field(*text, "target");
  if (!kind || !target) return std::nullopt;
  ArtifactInfo info;
  info.key = key;
  info.kind = *kind;
  info.target = target_of(*target);
  info.label = text_field(*text, "label").value_or("");
  info.toolchain = text_field(*text, "toolchain").value_or("");
  info.compile_ms = number_field(*text, "compile_ms").value_or(0);
  info.created = integer_field(*text, "created").value_or(0);
  return info;
}

std::optional<Binary> binary_of(ArtifactRow&& row) {
  const std::optional<ArtifactInfo> info = info_of(row.key, row.about);
  const std::optional<json> text = parse_json(row.about);
  if (!info || !text) return std::nullopt;
  Binary binary;
  binary.kind = info->kind;
  binary.target = info->target;
  binary.toolchain = info->toolchain;
  binary.compile_ms = info->compile_ms;
  binary.log = text_field(*text, "log").value_or("");
  binary.bytes = std::move(row.bytes);
  for (const ResourceField& field : kResources)
    binary.resources.*field.value = static_cast<int>(integer_field(*text, field.name).value_or(0));
  return binary;
}

json to_record(const ArtifactRow& row) {
  return {{"key", to_hex(row.key)},
          {"base", to_hex(row.base)},
          {"digest", to_hex(row.digest)},
          {"about", row.about},
          {"bytes", to_base64(row.bytes)}};
}

std::string from_record(const json& record, ArtifactRow& row) {
  for (const auto& [name, out] : {std::pair("key", &row.key), std::pair("base", &row.base),
                                  std::pair("digest", &row.digest)}) {
    const std::optional<Digest> digest = digest_from_hex(text_field(record, name).value_or(""));
    if (!digest) return std::string(name) + " is not a digest";
    *out = *digest;
  }
  const std::optional<std::string> about = text_field(record, "about");
  const std::optional<std::string> text = text_field(record, "bytes");
  if (!about || !text) return "about or bytes is missing";
  std::optional<std::string> bytes = from_base64(*text);
  if (!bytes) return "bytes is not base64";
  if (bytes->size() > kMaxBinaryBytes) return "the binary is too large";
  row.about = *about;
  row.bytes = std::move(*bytes);
  if (!intact(row)) return "the digest does not match";
  if (!info_of(row.key, row.about)) return "about cannot be read";
  return {};
}

}  // namespace flashwright
