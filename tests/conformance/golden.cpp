#include "tests/conformance/golden.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.hpp"
#include "core/sha256.hpp"

namespace flashwright::conformance {
namespace {

constexpr std::size_t kWhole = 1024, kBeginning = 64;  // bytes
constexpr std::size_t kRow = 48;                       // bytes on a line of a file

std::string digest_text(const Bytes& bytes) {
  return to_hex(sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

std::string hex(const Bytes& bytes, std::size_t begin, std::size_t end) {
  std::string text;
  for (std::size_t i = begin; i < std::min(end, bytes.size()); ++i)
    text += fmt::format("{:02x}", bytes[i]);
  return text;
}

Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string data_text(const Bytes& data) {
  std::string text;
  for (std::size_t at = 0; at < data.size(); at += kRow)
    text += fmt::format("{}\n      \"{}\"", at == 0 ? "" : ",", hex(data, at, at + kRow));
  return text;
}

}  // namespace

GoldenCase golden_case(const Case& c, const Bytes& output) {
  GoldenCase golden{digest_of(c), output.size(), digest_text(output), output};
  const bool whole =
      output.size() <= kWhole || !c.bound.empty() || c.nan_bytes != 0 || c.expected.empty();
  if (!whole) golden.data.resize(kBeginning);
  return golden;
}

std::string to_json(const GoldenFile& file) {
  std::string text = fmt::format(
      "{{\n  \"group\": {},\n  \"device\": {},\n  \"target\": {},\n  \"driver\": {},\n  "
      "\"compiler\": {},\n"
      "  \"cases\": {{",
      quoted(file.group), quoted(file.device), quoted(file.target), quoted(file.driver),
      quoted(file.compiler));
  bool first = true;
  for (const auto& [name, golden] : file.cases) {
    text += fmt::format(
        "{}\n    {}: {{\"of\": \"{}\", \"bytes\": {}, \"sha256\": \"{}\", \"data\": [{}]}}",
        first ? "" : ",", quoted(name), golden.digest, golden.bytes, golden.sha256,
        data_text(golden.data));
    first = false;
  }
  return text + "\n  }\n}\n";
}

GoldenFile golden_from_json(const std::string& text, const std::string& name) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    GoldenFile file{json.at("group"),  json.at("device"),   json.at("target"),
                    json.at("driver"), json.at("compiler"), {}};
    for (const auto& [key, value] : json.at("cases").items()) {
      GoldenCase golden{value.at("of"), value.at("bytes"), value.at("sha256"), {}};
      for (const nlohmann::json& row : value.at("data")) {
        const Bytes bytes = from_hex(row.get<std::string>());
        golden.data.insert(golden.data.end(), bytes.begin(), bytes.end());
      }
      file.cases[key] = std::move(golden);
    }
    return file;
  } catch (const std::exception& error) {
    throw Error(Status::bad_argument, fmt::format("{}: no golden file: {}", name, error.what()));
  }
}

std::vector<GoldenFile> read_golden(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<fs::path> paths;
  if (fs::is_directory(path)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(path))
      if (entry.path().extension() == ".json") paths.push_back(entry.path());
  } else {
    paths.emplace_back(path);
  }
  std::sort(paths.begin(), paths.end());
  std::vector<GoldenFile> files;
  for (const fs::path& one : paths) {
    std::ifstream in(one);
    std::stringstream text;
    text << in.rdbuf();
    files.push_back(golden_from_json(text.str(), one.string()));
  }
  return files;
}

void write_golden(const std::string& folder, const GoldenFile& file) {
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/" + file.group + ".json";
  std::ofstream out(path);
  out << to_json(file);
  if (!out.flush()) throw Error(Status::bad_argument, path + ": cannot be written");
}

std::string difference(const Case& c, const GoldenFile& file, const Bytes& output) {
  const auto found = file.cases.find(c.name);
  if (found == file.cases.end()) return "not in the golden file: make it again";
  const GoldenCase& golden = found->second;
  if (golden.digest != digest_of(c))
    return "the golden file has the output of another kernel or input: make it again";
  if (golden.bytes != output.size())
    return fmt::format("{} bytes, golden {}", output.size(), golden.bytes);
  const std::string words = difference(c, golden.data, output);
  if (!words.empty() || golden.data.size() == golden.bytes) return words;
  if (golden.sha256 == digest_text(output)) return {};
  const bool manual = golden.sha256 == digest_text(c.expected);
  return fmt::format("differs behind byte {}; the golden output is{} what the manual says",
                     kBeginning, manual ? "" : " not");
}

std::string difference_from_manual(const Case& c, const GoldenFile& file) {
  const auto found = file.cases.find(c.name);
  if (c.expected.empty()) return {};
  if (found != file.cases.end() && found->second.data.size() == c.expected.size())
    return difference_from_manual(c, found->second.data);
  return difference(c, file, c.expected);
}

}  // namespace flashwright::conformance
