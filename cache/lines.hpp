// The text form in which stores are exported: one JSON record a line, bytes in base64. What is read
// may come from anybody, so every size has a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cache/store.hpp"

namespace flashwright {

inline constexpr int kFormVersion = 1;

std::string to_base64(std::string_view bytes);
std::optional<std::string> from_base64(std::string_view text);  // nothing when it is not base64

// The first line of an export: what the records are, and the version of their form.
void write_header(std::ostream& out, const char* what);

// Reads the header and then every record. `take` returns "" or why it refuses a record; it counts
// what it adds or knows in the report by itself. Wrong lines are reported and skipped.
ImportReport read_records(
    std::istream& in, const char* what, std::size_t longest_line,
    const std::function<std::string(const nlohmann::json&, ImportReport&)>& take);

// A value as one line. Bytes that are not UTF-8, as in a compiler's messages, are replaced.
std::string to_line(const nlohmann::json& value);

// JSON text, or nothing. Never throws.
std::optional<nlohmann::json> parse_json(std::string_view text);

// A field of a record, or nothing when it is missing or of another type.
std::optional<std::string> text_field(const nlohmann::json& record, const char* name);
std::optional<double> number_field(const nlohmann::json& record, const char* name);  // finite
std::optional<std::int64_t> integer_field(const nlohmann::json& record, const char* name);

}  // namespace flashwright
