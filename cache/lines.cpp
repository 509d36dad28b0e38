#include "cache/lines.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>

namespace flashwright {
namespace {

using nlohmann::json;

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::size_t kProblemsKept = 10;

constexpr std::array<std::int8_t, 256> digit_values() {
  std::array<std::int8_t, 256> values{};
  values.fill(-1);
  for (std::size_t i = 0; i < kDigits.size(); ++i)
    values[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
  return values;
}

enum class Line { good, too_long, end };

Line read_line(std::istream& in, std::string& line, std::size_t longest) {
  line.clear();
  std::streambuf& buffer = *in.rdbuf();
  bool too_long = false, any = false;
  for (int c = buffer.sbumpc(); c != std::char_traits<char>::eof(); c = buffer.sbumpc()) {
    any = true;
    if (c == '\n') break;
    if (line.size() >= longest)
      too_long = true;
    else
      line += static_cast<char>(c);
  }
  if (!any) return Line::end;
  return too_long ? Line::too_long : Line::good;
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t k) {
      return i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u;
    };
    const unsigned group = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k > bytes.size() ? '=' : kDigits[group >> (18 - 6 * k) & 63];
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  static constexpr std::array<std::int8_t, 256> kValues = digit_values();
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text.size() > padding && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const bool pad = i + k >= text.size() - padding;
      const int value = pad ? 0 : kValues[static_cast<unsigned char>(text[i + k])];
      if (value < 0) return std::nullopt;
      group = group << 6 | static_cast<std::uint32_t>(value);
    }
    for (int shift = 16; shift >= 0; shift -= 8) bytes += static_cast<char>(group >> shift & 255);
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

void write_header(std::ostream& out, const char* what) {
  out << json{{"flashwright", what}, {"version", kFormVersion}}.dump() << '\n';
}

ImportReport read_records(std::istream& in, const char* what, std::size_t longest_line,
                          const std::function<std::string(const json&, ImportReport&)>& take) {
  ImportReport report;
  std::string line;
  const auto refuse = [&report](std::int64_t number, const std::string& reason) {
    ++report.refused;
    if (report.problems.size() < kProblemsKept)
      report.problems.push_back(fmt::format("line {}: {}", number, reason));
  };
  for (std::int64_t number = 1;; ++number) {
    const Line kind = read_line(in, line, longest_line);
    if (kind == Line::end) {
      if (number == 1) refuse(number, "the file is empty");
      return report;
    }
    const std::optional<json> record = kind == Line::good ? parse_json(line) : std::nullopt;
    if (number == 1) {
      if (record && text_field(*record, "flashwright") == what &&
          integer_field(*record, "version") == kFormVersion)
        continue;
      refuse(number, fmt::format("this is not an export of {} that this version can read", what));
      return report;
    }
    if (kind == Line::too_long) {
      refuse(number, fmt::format("longer than {} bytes", longest_line));
    } else if (!record || !record->is_object()) {
      refuse(number, "not a JSON object");
    } else if (const std::string reason = take(*record, report); !reason.empty()) {
      refuse(number, reason);
    }
  }
}

std::string to_line(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<json> parse_json(std::string_view text) {
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

std::optional<std::string> text_field(const json& record, const char* name) {
  if (!record.is_object()) return std::nullopt;
  const auto found = record.find(name);
  if (found == record.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

std::optional<double> number_field(const json& record, const char* name) {
  if (!record.is_object()) return std::nullopt;
  const auto found = record.find(name);
  if (found == record.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> integer_field(const json& record, const char* name) {
  if (!record.is_object()) return std::nullopt;
  const auto found = record.find(name);
  if (found == record.end() || !found->is_number_integer()) return std::nullopt;
  if (found->is_number_unsigned() && found->get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  return found->get<std::int64_t>();
}

}  // namespace flashwright
