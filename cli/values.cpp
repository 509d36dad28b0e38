#include "cli/values.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "cli/error.hpp"

namespace cli {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

// A number and one of the units; the first unit is the one meant by a bare number.
template <std::size_t N>
double with_unit(const std::string& flag, const std::string& text, const std::array<Unit, N>& units,
                 const char* expected) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error == std::errc{} && std::isfinite(number) && number >= 0)
    for (const Unit& unit : units)
      if (rest == unit.name || (rest.empty() && &unit == &units.front()))
        return number * unit.factor;
  bad_value(flag, text, expected);
}

}  // namespace

std::int64_t int_value(const std::string& flag, const std::string& text, std::int64_t least,
                       std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most)
    bad_value(flag, text, fmt::format("a whole number from {} to {}", least, most));
  return value;
}

std::uint64_t seed_value(const std::string& flag, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    bad_value(flag, text, "a whole number from 0 to 2^64 - 1");
  return value;
}

double real_value(const std::string& flag, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) bad_value(flag, text, "a number");
  return value;
}

double seconds_value(const std::string& flag, const std::string& text) {
  constexpr std::array<Unit, 4> kUnits = {{{"s", 1}, {"ms", 1e-3}, {"m", 60}, {"h", 3600}}};
  return with_unit(flag, text, kUnits, "a time, e.g. 90, 60s, 2m or 500ms");
}

std::int64_t bytes_value(const std::string& flag, const std::string& text) {
  constexpr std::array<Unit, 7> kUnits = {{{"B", 1},
                                           {"K", 0x1p10},
                                           {"KiB", 0x1p10},
                                           {"M", 0x1p20},
                                           {"MiB", 0x1p20},
                                           {"G", 0x1p30},
                                           {"GiB", 0x1p30}}};
  const double bytes = with_unit(flag, text, kUnits, "a size, e.g. 4096, 64K, 512M or 1.5G");
  if (bytes > 0x1p62) bad_value(flag, text, "a size below 2^62 bytes");
  return static_cast<std::int64_t>(bytes);
}

std::string time_text(double us) {
  const char* unit = us < 999.5 ? "us" : us < 999.5e3 ? "ms" : "s";
  const double value = us < 999.5 ? us : us < 999.5e3 ? us * 1e-3 : us * 1e-6;
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
}

std::string bytes_text(double bytes) {
  if (bytes < 1024) return fmt::format("{:.0f} B", bytes);
  constexpr std::array kNames = {"KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (bytes /= 1024; bytes >= 1024 && unit + 1 < kNames.size(); ++unit) bytes /= 1024;
  // Whole numbers without a fraction: "64 KiB" is exact and looks it.
  if (bytes == std::floor(bytes)) return fmt::format("{:.0f} {}", bytes, kNames[unit]);
  return fmt::format("{:.1f} {}", bytes, kNames[unit]);
}

std::string percent_text(double fraction) {
  return fmt::format("{:.1f} %", fraction * 100 + 0.0);  // + 0.0 turns -0 into 0
}

std::string shape_text(const std::int64_t* extents, std::size_t count) {
  return fmt::format("({})", fmt::join(extents, extents + count, ", "));
}

std::string counted(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace cli
