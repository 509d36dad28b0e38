#include "cache/places.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "cache/trials.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::test;

namespace {

// No variable of the places is set but those given.
Variables only(Variables set) {
  for (const char* name : {"FLASHWRIGHT_CACHE_DIR", "FLASHWRIGHT_DATA_DIR", "XDG_CACHE_HOME",
                           "XDG_DATA_HOME", "HOME"}) {
    bool given = false;
    for (const auto& entry : set) given = given || entry.first == name;
    if (!given) set.emplace_back(name, std::nullopt);
  }
  return set;
}

std::string artifacts_place() { return find_place(StoreKind::artifacts, "").path; }
std::string tuning_place() { return find_place(StoreKind::tuning, "").path; }

mode_t mode_of(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 ? about.st_mode & 07777 : 0;
}

// Uses a store in the environment as it is: 0 when results are right and there was one warning with
// the path, the reason and the variable.
int one_warning(const std::string& path, const std::string& reason) {
  const Log log;
  ArtifactStore store;
  put_number(store, 1);
  put_number(store, 2);
  if (!has_number(store, 1) || !has_number(store, 2)) return 1;
  if (!store.status().path.empty()) return 2;
  if (log.warnings().size() != 1) return 3;
  for (const std::string& part : {path, reason, std::string("FLASHWRIGHT_CACHE_DIR")}) {
    if (log.warnings()[0].find(part) != std::string::npos) continue;
    fmt::print(stderr, "no '{}' in: {}\n", part, log.warnings()[0]);
    return 4;
  }
  return 0;
}

}  // namespace

TEST_CASE("folders are found in the order that the conventions ask for") {
  const Folder root;
  const Environment home(only({{"HOME", root / "home"},
                               {"XDG_CACHE_HOME", root / "xdg-cache"},
                               {"XDG_DATA_HOME", root / "xdg-data"},
                               {"FLASHWRIGHT_CACHE_DIR", root / "own-cache"},
                               {"FLASHWRIGHT_DATA_DIR", root / "own-data"}}));
  std::filesystem::create_directory(root / "home");
  CHECK(find_place(StoreKind::artifacts, root / "option").path == root / "option/artifacts-1.db");
  CHECK(find_place(StoreKind::tuning, root / "option").path == root / "option/tuning-2.db");
  CHECK(artifacts_place() == root / "own-cache/artifacts-1.db");
  CHECK(tuning_place() == root / "own-data/tuning-2.db");
  const Environment no_own(Variables{{"FLASHWRIGHT_CACHE_DIR", {}}, {"FLASHWRIGHT_DATA_DIR", {}}});
  CHECK(artifacts_place() == root / "xdg-cache/flashwright/artifacts-1.db");
  CHECK(tuning_place() == root / "xdg-data/flashwright/tuning-2.db");
  const Environment relative(Variables{{"XDG_CACHE_HOME", "relative"}, {"XDG_DATA_HOME", ""}});
  CHECK(artifacts_place() == root / "home/.cache/flashwright/artifacts-1.db");
  CHECK(tuning_place() == root / "home/.local/share/flashwright/tuning-2.db");
  CHECK(!std::filesystem::exists("relative"));
}

TEST_CASE("without HOME the password database is asked") {
  const Environment none(only({}));
  // The folder of the password database is not touched by a test, only named.
  const Place place = find_place(StoreKind::artifacts, ":memory:");
  CHECK(place.path.empty());
  CHECK(place.trouble.empty());
  const std::optional<int> status = as_nobody([] {  // whose home does not exist
    return one_warning("/.cache/flashwright", "No such file or directory");
  });
  if (status)
    CHECK(*status == 0);
  else
    testing::skip("without HOME the password database is asked",
                  "this process cannot become another user");
}

TEST_CASE("memory is used without complaint when it is asked for") {
  const Log log;
  const Environment memory(only({{"FLASHWRIGHT_CACHE_DIR", ":memory:"}}));
  ArtifactStore store;
  put_number(store, 1);
  CHECK(has_number(store, 1));
  CHECK(log.warnings().empty());
}

TEST_CASE("folders and files are private whatever the umask") {
  for (const mode_t mask : {mode_t{0}, mode_t{022}, mode_t{077}, mode_t{0777}}) {
    const Folder root;
    const int status = in_child([&] {
      umask(mask);
      const Environment home(only({{"HOME", root.path()}}));
      ArtifactStore artifacts;
      TuningStore tuning;
      put_number(artifacts, 1);
      Decision decision;
      decision.schedule = "q16";
      tuning.put_decision({"d", "p", "b", "e"}, decision);
      const std::string cache = root / ".cache/flashwright",
                        data = root / ".local/share/flashwright";
      for (const std::string& folder : {root / ".cache", cache, root / ".local", data})
        if (mode_of(folder) != 0700) return 1;
      if (mode_of(cache + "/artifacts-1.db") != 0600) return 2;
      return mode_of(data + "/tuning-2.db") == 0600 ? 0 : 3;
    });
    CHECK(status == 0);
  }
}

TEST_CASE("a place that cannot be used costs one warning") {
  const Folder root;
  const auto run = [](const Variables& variables, const std::string& path,
                      const std::string& reason) {
    return in_child([&] {
      const Environment set(only(variables));
      return one_warning(path, reason);
    });
  };
  CHECK(run({{"FLASHWRIGHT_CACHE_DIR", "/dev/null/x"}}, "/dev/null/x", "Not a directory") == 0);
  CHECK(run({{"HOME", "/nonexistent"}}, "/nonexistent/.cache/flashwright",
            "No such file or directory") == 0);
  CHECK(!std::filesystem::exists("/nonexistent"));
  CHECK(run({{"FLASHWRIGHT_CACHE_DIR", "/proc/flashwright"}}, "/proc/flashwright",
            "No such file or directory") == 0);
  write_file(root / "file", "x");
  CHECK(run({{"FLASHWRIGHT_CACHE_DIR", root / "file"}}, root / "file", "Not a directory") == 0);
  std::filesystem::create_directory(root / "open");
  chmod((root / "open").c_str(), 0775);
  CHECK(run({{"FLASHWRIGHT_CACHE_DIR", root / "open"}}, root / "open", "mode 0775") == 0);
  CHECK(std::filesystem::is_empty(root / "open"));
}

TEST_CASE("a place of another user is refused, and one that cannot be written is told") {
  const Folder root;
  chmod(root.path().c_str(), 0755);
  std::filesystem::create_directory(root / "theirs");
  std::filesystem::create_directory(root / "ours");
  std::filesystem::create_directory(root / "home");
  chmod((root / "theirs").c_str(), 0755);
  const auto run = [](const Variables& variables, const std::string& path,
                      const std::string& reason) {
    return as_nobody([&] {
      const Environment set(only(variables));
      return one_warning(path, reason);
    });
  };
  const std::optional<int> root_owned =
      run({{"FLASHWRIGHT_CACHE_DIR", root / "theirs"}}, root / "theirs", "belongs to root");
  if (!root_owned) {
    testing::skip("a place of another user is refused, and one that cannot be written is told",
                  "this process cannot become another user");
    return;
  }
  CHECK(*root_owned == 0);
  REQUIRE(chown((root / "theirs").c_str(), 12345, 12345) == 0);
  CHECK(run({{"FLASHWRIGHT_CACHE_DIR", root / "theirs"}}, root / "theirs",
            "belongs to user 12345") == 0);
  CHECK(run({{"HOME", root / "home"}}, root / "home/.cache", "Permission denied") == 0);
  REQUIRE(chown((root / "ours").c_str(), 65534, 65534) == 0);
  chmod((root / "ours").c_str(), 0555);
  CHECK(run({{"FLASHWRIGHT_CACHE_DIR", root / "ours"}}, root / "ours", "cannot be written") == 0);

  // A link that somebody else made where everybody may write.
  std::filesystem::create_directory(root / "victim");
  REQUIRE(chown((root / "victim").c_str(), 65534, 65534) == 0);
  REQUIRE(symlink((root / "victim").c_str(), (root / "link").c_str()) == 0);
  CHECK(run({{"FLASHWRIGHT_CACHE_DIR", root / "link"}}, root / "link", "symbolic link") == 0);
  CHECK(std::filesystem::is_empty(root / "victim"));
}

TEST_CASE("an own link to a folder elsewhere is followed") {
  const Folder root;
  std::filesystem::create_directory(root / "elsewhere");
  REQUIRE(symlink((root / "elsewhere").c_str(), (root / "link").c_str()) == 0);
  chmod((root / "elsewhere").c_str(), 0700);
  const Environment set(only({{"FLASHWRIGHT_CACHE_DIR", root / "link"}}));
  ArtifactStore store;
  put_number(store, 1);
  CHECK(store.status().path == root / "elsewhere/artifacts-1.db");
}

TEST_CASE("temporary and local file systems are told from remote ones") {
  const Folder folder;
  CHECK(is_local_file_system(folder.path()));
  CHECK(!is_local_file_system(folder / "missing"));
}
