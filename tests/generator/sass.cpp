#include "tests/generator/sass.hpp"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "tests/support/process.hpp"

namespace flashwright::testing {
namespace {

using Registers = std::set<int>;

void add(Registers& registers, int first, int count) {
  for (int i = 0; i < count; ++i) registers.insert(first + i);
}

// Registers that an instruction other than a product writes.
Registers written(const std::string& instruction) {
  static const std::regex form(R"(([A-Z0-9_.]+)\s+R(\d+)(\.64)?,.*)");
  static const std::regex writes_none(R"((ST|RED|BAR|SYNCS|UTMA|UBLK|R2UR|BRA).*)");
  std::smatch found;
  Registers out;
  if (!std::regex_match(instruction, found, form)) return out;
  const std::string name = found[1];
  if (std::regex_match(name, writes_none)) return out;
  const bool load = name.starts_with("LD");
  const bool two =
      name.find("WIDE") != std::string::npos || (load && name.find(".64") != std::string::npos);
  add(out, std::stoi(found[2]), load && name.find(".128") != std::string::npos ? 4 : two ? 2 : 1);
  return out;
}

}  // namespace

bool has_disassembler() {
  static const bool found = run_program({"cuobjdump", "--version"}).status == 0;
  return found;
}

std::string disassembled(const std::string& cubin) {
  static std::atomic<int> number{0};
  const auto path = std::filesystem::temp_directory_path() /
                    ("fw_sass_" + std::to_string(::getpid()) + "_" + std::to_string(++number));
  std::ofstream(path, std::ios::binary) << cubin;
  const Output output = run_program({"cuobjdump", "-sass", path.string()});
  std::filesystem::remove(path);
  if (output.status != 0) throw Error(Status::internal, "cuobjdump: " + output.text);
  return output.text;
}

std::string early_write(const std::string& sass) {
  static const std::regex line_form(R"(\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?(.*?)\s*;.*)");
  static const std::regex product(R"(HGMMA\.64x(\d+)x16\S*\s+R(\d+),\s*(?:R(\d+)|gdesc).*)");
  static const std::regex wait(R"(WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+))");
  std::vector<Registers> under_way;
  Registers open;  // of the group that is not closed yet
  std::istringstream lines(sass);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (line.find("Function :") != std::string::npos) under_way.clear(), open.clear();
    if (!std::regex_match(line, found, line_form)) continue;
    const std::string instruction = found[1];
    if (std::regex_match(instruction, found, product)) {
      add(open, std::stoi(found[2]), std::stoi(found[1]) / 2);
      if (found[3].matched) add(open, std::stoi(found[3]), 4);
      if (instruction.find("gsb0") != std::string::npos)
        under_way.push_back(std::exchange(open, {}));
    } else if (std::regex_match(instruction, found, wait)) {
      const auto left = static_cast<std::size_t>(std::stoi(found[1], nullptr, 16));
      if (under_way.size() > left)
        under_way.erase(under_way.begin(), under_way.end() - static_cast<std::ptrdiff_t>(left));
    } else {
      for (const int target : written(instruction))
        for (const Registers& registers : under_way)
          if (registers.contains(target)) return instruction;
    }
  }
  return {};
}

}  // namespace flashwright::testing
