#include "runtime/library_search.hpp"

#include <algorithm>
#include <filesystem>

#include "tests/support/process.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace fs = std::filesystem;

namespace {

const test::Variables kNothingSet = {{"FLASHWRIGHT_NVRTC", std::nullopt},
                                     {"FLASHWRIGHT_CUDA", std::nullopt},
                                     {"CONDA_PREFIX", std::nullopt},
                                     {"CUDA_PATH", std::nullopt},
                                     {"CUDA_HOME", std::nullopt}};

void put_library(const std::string& path) {
  fs::create_directories(fs::path(path).parent_path());
  test::write_file(path, "");
}

// Where in the list a candidate stands.
std::ptrdiff_t place(const std::vector<std::string>& list, const std::string& path) {
  const auto found = std::find(list.begin(), list.end(), path);
  REQUIRE(found != list.end());
  return found - list.begin();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

TEST_CASE("a library that the user names is the only candidate") {
  const test::Environment set(
      test::Variables{{"FLASHWRIGHT_NVRTC", "/my/nvrtc.so"}, {"FLASHWRIGHT_CUDA", "/my/cuda.so"}});
  CHECK(nvrtc_candidates() == std::vector<std::string>{"/my/nvrtc.so"});
  CHECK(driver_candidates() == std::vector<std::string>{"/my/cuda.so"});
}

TEST_CASE("the driver is never what a toolkit has to link with") {
  const test::Environment unset(kNothingSet);
  CHECK(driver_candidates() == std::vector<std::string>{"libcuda.so.1"});
}

TEST_CASE("conda comes before CUDA_PATH, CUDA_HOME, and what the loader finds") {
  const test::Folder folder;
  for (const char* path : {"conda/lib/libnvrtc.so.12", "conda/lib/libnvrtc.so.13",
                           "path/lib64/libnvrtc.so.12", "home/lib64/libnvrtc.so.13"})
    put_library(folder / path);
  test::Variables variables = kNothingSet;
  variables[2].second = folder / "conda";
  variables[3].second = folder / "path";
  variables[4].second = folder / "home";
  const test::Environment set(variables);
  const std::vector<std::string> list = nvrtc_candidates();
  const std::vector<std::string> expected = {folder / "conda/lib/libnvrtc.so.13",
                                             folder / "conda/lib/libnvrtc.so.12",
                                             folder / "path/lib64/libnvrtc.so.12",
                                             folder / "home/lib64/libnvrtc.so.13",
                                             "libnvrtc.so.13",
                                             "libnvrtc.so.12"};
  for (std::size_t i = 1; i < expected.size(); ++i)
    CHECK(place(list, expected[i - 1]) < place(list, expected[i]));
}

TEST_CASE("helper: prints the candidates" * doctest::skip()) {
  std::string text;
  for (const std::string& path : nvrtc_candidates()) text += path + "\n";
  test::write_file(std::getenv("FW_TEST_FILE"), text);
}

TEST_CASE("wheels beside the library come first, nearer ones before those further up") {
  // A copy of this program stands for the installed library.
  const test::Folder folder;
  fs::create_directories(folder / "project/build/bin");
  fs::copy_file("/proc/self/exe", folder / "project/build/bin/tests");
  put_library(folder / "project/build/bin/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  put_library(folder / "project/.venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  put_library(folder / "conda/lib/libnvrtc.so.12");
  put_library(folder / "project/other/lib/libnvrtc.so.12");
  test::Variables variables = kNothingSet;
  variables[2].second = folder / "conda";
  variables.emplace_back("FW_TEST_FILE", folder / "list");
  REQUIRE(run_fresh({"helper: prints the candidates", variables, "",
                     folder / "project/build/bin/tests"}) == 0);
  const std::vector<std::string> list = lines_of(test::read_file(folder / "list"));
  const std::vector<std::string> expected = {
      folder / "project/build/bin/nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
      folder / "project/.venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
      folder / "conda/lib/libnvrtc.so.12", "libnvrtc.so.13"};
  REQUIRE(list.size() >= expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) CHECK(list[i] == expected[i]);
}

TEST_CASE("the first library that loads is taken, and it is remembered why others did not") {
  const test::Folder folder;
  test::write_file(folder / "broken.so", "no library");
  const SharedLibrary loaded(
      {folder / "missing.so", folder / "broken.so", FW_FAKE_CUDA, FW_FAKE_NVRTC});
  REQUIRE(static_cast<bool>(loaded));
  CHECK(loaded.path() == FW_FAKE_CUDA);
  CHECK(loaded.symbol("cuInit") != nullptr);
  CHECK(loaded.symbol("nvrtcVersion") == nullptr);
  CHECK(contains(loaded.failure(), "missing.so"));
  const SharedLibrary none({folder / "missing.so"});
  CHECK(!static_cast<bool>(none));
  CHECK(none.symbol("cuInit") == nullptr);
  CHECK(contains(none.failure(), "missing.so"));
}
