// Reading what Nsight Compute counts, with a script in its place.
#include "cli/ncu.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "cli/error.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace cli;
using namespace flashwright::testing;

namespace {

constexpr const char* kHeading =
    R"("ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",)"
    R"("Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value")";

std::string line(int id, const char* kernel, const char* metric, const char* value) {
  return fmt::format(
      R"csv("{}","874","flashwright","host","{}","1","7","(512, 1, 1)","(132, 1, 1)","0","9.0",)csv"
      R"csv("Command line profiler metrics","{}","byte","{}")csv"
      "\n",
      id, kernel, metric, value);
}

// What ncu prints, in the middle of what the program prints.
std::string printed() {
  return std::string("==PROF== Connected to process 874\n{\n  \"shape\": \"b1\"\n}\n") + kHeading +
         "\n" + line(0, "fw_scores", "dram__bytes_read.sum", "303,036,416") +
         line(0, "fw_scores", "dram__bytes_write.sum", "60") +
         line(1, "fw_output", "dram__bytes_write.sum", "7") +
         line(1, "fw_output", "sm__cycles_elapsed.max", "1,000") +
         line(2, "fw_scores", "dram__bytes_read.sum", "1,000") +
         "==PROF== Disconnected from process 874\n";
}

// A folder alone on PATH, with a script as `ncu` when there is one.
struct Path {
  flashwright::test::Folder folder;
  flashwright::test::Environment environment{{{"PATH", folder.path()}}};

  explicit Path(const std::string& script) {
    if (script.empty()) return;
    std::ofstream(folder / "ncu") << "#!/bin/sh\n" << script;
    chmod((folder / "ncu").c_str(), S_IRWXU);
  }
};

std::string failure(const std::string& script) {
  const Path path(script);
  try {
    profile_with_ncu({"flashwright"});
  } catch (const Error& error) {
    CHECK(error.code() == Exit::unavailable);
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE(
    "bytes are added up for the first launch of each kernel, without other metrics and lines") {
  CHECK(parse_ncu(printed()) == KernelBytes{{"fw_scores", 303036476}, {"fw_output", 7}});
  CHECK(parse_ncu("").empty());
  CHECK(parse_ncu(line(0, "fw_scores", "dram__bytes_read.sum", "1")).empty());  // no heading
}

TEST_CASE("the command is run as it is given, with the metrics and the first launches asked for") {
  const Path path("printf '%s\\n' \"$@\" > \"${0%/ncu}/arguments\"\necho '" + printed() + "'\n");
  CHECK(profile_with_ncu({"a program", "it's", R"({"mask": "none"})"}).size() == 2);
  std::ifstream file(path.folder / "arguments");
  std::vector<std::string> given;
  for (std::string word; std::getline(file, word);) given.push_back(word);
  REQUIRE(given.size() > 3);
  CHECK(std::vector<std::string>(given.end() - 3, given.end()) ==
        std::vector<std::string>{"a program", "it's", R"({"mask": "none"})"});
  CHECK(std::find(given.begin(), given.end(), "dram__bytes_read.sum,dram__bytes_write.sum") !=
        given.end());
  CHECK(std::find(given.begin(), given.end(), "regex:^fw_") != given.end());
}

TEST_CASE("without ncu, and without what it should count") {
  CHECK(contains(failure(""), "no ncu on PATH"));
  CHECK(contains(failure("echo '==ERROR== ERR_NVGPUCTRPERM: no permission'; exit 1\n"),
                 "ncu counted nothing: ==ERROR== ERR_NVGPUCTRPERM: no permission"));
  CHECK(contains(failure("echo nothing\n"), "it printed no metric"));
}
