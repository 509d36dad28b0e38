#include "cli/ncu.hpp"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cli/error.hpp"

namespace cli {
namespace {

constexpr const char* kRead = "dram__bytes_read.sum";
constexpr const char* kWritten = "dram__bytes_write.sum";

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) c == '\'' ? out += "'\\''" : out += c;
  return out + "'";
}

// The fields of one line of CSV, all of which are in quotes; empty for any other line.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields;
  while (line.starts_with('"')) {
    const std::size_t end = line.find('"', 1);
    if (end == std::string_view::npos) return {};
    fields.emplace_back(line.substr(1, end - 1));
    line.remove_prefix(end + 1);
    if (line.starts_with(',')) line.remove_prefix(1);
  }
  return fields;
}

// "303,036,416"
double number_of(std::string text) {
  std::erase(text, ',');
  return std::strtod(text.c_str(), nullptr);
}

// The last line in which ncu says what went wrong.
std::string complaint(std::string_view printed) {
  const std::size_t at = printed.rfind("==ERROR==");
  if (at == std::string_view::npos) return "it printed no metric";
  return std::string(printed.substr(at, printed.find('\n', at) - at));
}

}  // namespace

KernelBytes parse_ncu(std::string_view printed) {
  KernelBytes bytes;
  std::map<std::string, std::string> first;  // launch of each kernel
  std::vector<std::string> heading;
  while (!printed.empty()) {
    const std::size_t end = std::min(printed.find('\n'), printed.size());
    std::vector<std::string> fields = fields_of(printed.substr(0, end));
    printed.remove_prefix(std::min(end + 1, printed.size()));
    if (!fields.empty() && fields.front() == "ID") {
      heading = std::move(fields);
      continue;
    }
    if (fields.empty() || fields.size() != heading.size()) continue;
    const auto field = [&](const char* name) -> const std::string& {
      static const std::string none;
      const auto found = std::find(heading.begin(), heading.end(), name);
      return found == heading.end() ? none : fields[found - heading.begin()];
    };
    const std::string &metric = field("Metric Name"), &kernel = field("Kernel Name");
    if (metric != kRead && metric != kWritten) continue;
    if (first.emplace(kernel, field("ID")).first->second == field("ID"))
      bytes[kernel] += number_of(field("Metric Value"));
  }
  return bytes;
}

KernelBytes profile_with_ncu(const std::vector<std::string>& command) {
  // `bench` verifies each of its kernels, which launches it once, before it times any.
  constexpr int kLaunches = 16;
  std::string line = fmt::format(
      "ncu --csv --print-units base --metrics {},{} --kernel-name 'regex:^fw_' --launch-count {}",
      kRead, kWritten, kLaunches);
  for (const std::string& word : command) line += fmt::format(" {}", quoted(word));
  std::FILE* const pipe = popen((line + " 2>&1").c_str(), "r");
  if (pipe == nullptr)
    throw Error(Exit::unavailable, "--measure ncu: cannot start a shell to run ncu");
  std::string printed;
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe))
    printed.append(buffer, count);
  const int status = pclose(pipe);
  constexpr int kNotFound = 127;  // of the shell
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound)
    throw Error(Exit::unavailable,
                "--measure ncu: there is no ncu on PATH; it comes with the CUDA toolkit as Nsight "
                "Compute");
  KernelBytes bytes = parse_ncu(printed);
  if (bytes.empty())
    throw Error(Exit::unavailable,
                fmt::format("--measure ncu: ncu counted nothing: {}", complaint(printed)));
  return bytes;
}

}  // namespace cli
