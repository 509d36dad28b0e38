// Numbers, times and sizes: read from flags with errors that name the flag, and written for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cli {

std::int64_t int_value(const std::string& flag, const std::string& text, std::int64_t least,
                       std::int64_t most);
std::uint64_t seed_value(const std::string& flag, const std::string& text);
// Any number, infinity and NaN included: what is allowed is the library's to say.
double real_value(const std::string& flag, const std::string& text);
double seconds_value(const std::string& flag,
                     const std::string& text);  // "90", "60s", "2m", "500ms"
std::int64_t bytes_value(const std::string& flag,
                         const std::string& text);  // "4096", "64K", "1.5G"

std::string time_text(double microseconds);  // three digits: "118 us", "1.23 ms", "12.0 s"
std::string bytes_text(double bytes);        // "96 B", "12.5 KiB"
std::string percent_text(double fraction);   // 0.123: "12.3 %"
std::string shape_text(const std::int64_t* extents, std::size_t count);  // "(2, 480, 12, 32)"

// "1 kernel", "3 kernels".
std::string counted(std::int64_t count, std::string_view noun);

}  // namespace cli
