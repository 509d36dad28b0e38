// What a device wrote, as files: one for each group of cases.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "tests/conformance/case.hpp"

namespace flashwright::conformance {

struct GoldenCase {
  std::string digest;  // digest_of() the case that ran
  std::size_t bytes = 0;
  std::string sha256;  // of the whole output
  Bytes data;          // the whole output, or its beginning
};

struct GoldenFile {
  std::string group;
  std::string device, target, driver, compiler;  // target: "sm_90a"
  std::map<std::string, GoldenCase> cases;       // by name
};

// Outputs that the manual does not give to the last bit are kept whole; of other long ones, the digest
// and the beginning.
GoldenCase golden_case(const Case& c, const Bytes& output);

std::string to_json(const GoldenFile& file);
// Throws Error(bad_argument) with `name` for a text that is no golden file.
GoldenFile golden_from_json(const std::string& text, const std::string& name);

// Every "*.json" of a folder, or one file.
std::vector<GoldenFile> read_golden(const std::string& path);
// Writes "GROUP.json" into a folder, which is made if need be.
void write_golden(const std::string& folder, const GoldenFile& file);

// One file for each group, written when the next one begins: a group that a failing case has cut short
// is not.
class GoldenWriter {
 public:
  GoldenWriter(std::string folder, GoldenFile header)
      : folder_(std::move(folder)), file_(std::move(header)) {}
  // Before a case runs.
  void begin(const Case& c) {
    if (c.group != file_.group) finish();
    file_.group = c.group;
  }
  void add(const Case& c, const Bytes& output) { file_.cases[c.name] = golden_case(c, output); }
  void finish() {
    if (!file_.cases.empty()) write_golden(folder_, file_);
    file_.cases.clear();
  }

 private:
  std::string folder_;
  GoldenFile file_;
};

// "" or how an output differs from what the file has for the case. A case that is not in the file, or
// that was another one then, differs too.
std::string difference(const Case& c, const GoldenFile& file, const Bytes& output);
// "" or how the file's output differs from what the manual says.
std::string difference_from_manual(const Case& c, const GoldenFile& file);

}  // namespace flashwright::conformance
