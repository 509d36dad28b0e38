// The file is damaged, foreign, or not a file at all. A wrong binary is never returned, and the store
// finds its way back without help.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>
#include <random>

#include <SQLiteCpp/SQLiteCpp.h>

#include "cache/artifacts.hpp"
#include "tests/cache/support.hpp"

using namespace flashwright;
using namespace flashwright::test;

namespace {

void fill(const Folder& folder, int count, std::size_t bytes = 2000) {
  ArtifactStore store(in_folder(folder));
  for (int i = 0; i < count; ++i) put_number(store, i, bytes);
}

void change(const Folder& folder, const std::string& sql) {
  SQLite::Database(database_file(folder), SQLite::OPEN_READWRITE).exec(sql);
}

// Every lookup is right or a miss, and after some passes that put again what is missed all is there.
// More than one pass: putting may be what discovers the damage, and then the rest is lost as well.
void check_recovery(const Folder& folder, int count, std::size_t bytes = 2000) {
  int missed = count;
  for (int pass = 0; pass < 3 && missed > 0; ++pass) {
    missed = 0;
    ArtifactStore store(in_folder(folder));
    for (int i = 0; i < count; ++i) {
      const std::optional<Binary> found = store.get(key_of_number(i));
      if (found) CHECK(found->bytes == binary_of_number(i, bytes).bytes);
      if (found) continue;
      ++missed;
      put_number(store, i, bytes);
      CHECK(has_number(store, i, bytes));
    }
    CHECK(store.status().writable);
  }
  CHECK(missed == 0);
}

}  // namespace

TEST_CASE("a damaged row is dropped, counted, told once, and made again") {
  const std::vector<std::string> damages = {
      "UPDATE artifact SET bytes = x''",
      "UPDATE artifact SET bytes = substr(bytes, 1, 1)",
      "UPDATE artifact SET bytes = substr(bytes, 1, length(bytes) - 1)",
      "UPDATE artifact SET bytes = (SELECT bytes FROM artifact WHERE id = 1)",
      "UPDATE artifact SET about = replace(about, 'test compiler', 'other')",
      "UPDATE artifact SET about = '{}'",
      "UPDATE artifact SET digest = zeroblob(32)",
      "UPDATE artifact SET base = zeroblob(32)"};
  for (const std::string& damage : damages) {
    INFO(damage);
    const Folder folder;
    fill(folder, 4);
    change(folder, damage + " WHERE id IN (3, 4)");
    const Log log;
    {
      ArtifactStore store(in_folder(folder));
      CHECK(has_number(store, 0));
      CHECK(has_number(store, 1));
      CHECK(!store.get(key_of_number(2)));
      CHECK(!store.get(key_of_number(3)));
      CHECK(store.counters().bad == 2);
      CHECK(store.list().size() == 2);
      CHECK(log.warnings().size() == 1);
    }
    check_recovery(folder, 4);
  }
}

TEST_CASE("two rows whose contents were swapped are both refused") {
  const Folder folder;
  fill(folder, 2);
  change(folder,
         "CREATE TEMP TABLE k AS SELECT id, key FROM artifact;"
         "UPDATE artifact SET key = zeroblob(32) WHERE id = 1;"
         "UPDATE artifact SET key = (SELECT key FROM k WHERE id = 1) WHERE id = 2;"
         "UPDATE artifact SET key = (SELECT key FROM k WHERE id = 2) WHERE id = 1;");
  const Log log;
  ArtifactStore store(in_folder(folder));
  CHECK(!store.get(key_of_number(0)));
  CHECK(!store.get(key_of_number(1)));
  CHECK(store.counters().bad == 2);
}

TEST_CASE("verify finds and drops what is damaged") {
  const Folder folder;
  fill(folder, 5);
  change(folder, "UPDATE artifact SET bytes = x'00' WHERE id = 2");
  const Log log;
  ArtifactStore store(in_folder(folder));
  const ArtifactStore::Verdict verdict = store.verify();
  CHECK(verdict.good == 4);
  CHECK(verdict.bad == 1);
  CHECK(store.list().size() == 4);
}

TEST_CASE("flipped bits never give a wrong binary, and the store always recovers") {
  const Folder folder;
  fill(folder, 6, 20000);
  const std::string sound = read_file(database_file(folder));
  std::mt19937 random(20240611);
  int noticed = 0;
  for (int round = 0; round < 400; ++round) {
    std::string damaged = sound;
    // Half of the flips in the first pages, which hold the header, the schema and the indexes.
    const std::size_t limit = round % 2 == 0 ? damaged.size() : 5 * 16384;
    const std::size_t bit = random() % (limit * 8);
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    for (const std::string& name : files_in(folder)) std::filesystem::remove(folder / name);
    write_file(database_file(folder), damaged);
    INFO("bit ", bit);
    const Log log;
    ArtifactStore store(in_folder(folder));
    for (int i = 0; i < 6; ++i) {
      const std::optional<Binary> found = store.get(key_of_number(i));
      if (found)
        REQUIRE(found->bytes == binary_of_number(i, 20000).bytes);
      else
        put_number(store, i, 20000);
    }
    for (int i = 0; i < 6; ++i) REQUIRE(has_number(store, i, 20000));
    REQUIRE(log.warnings().size() <= 2);
    noticed += log.warnings().empty() ? 0 : 1;
  }
  MESSAGE(fmt::format("{} of 400 flips mattered", noticed));
  CHECK(noticed > 50);
}

TEST_CASE("a file that is no database is moved aside, and a new one is begun") {
  const Folder sample;
  fill(sample, 3);
  const std::string sound = read_file(database_file(sample));
  std::mt19937 random(7);
  std::string noise(100, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  std::string zeroed = sound;
  zeroed.replace(0, 100, 100, '\0');
  std::string truncated = sound.substr(0, sound.size() / 2);
  for (const std::string& content : {noise, zeroed, truncated, sound.substr(0, 50)}) {
    const Folder folder;
    write_file(database_file(folder), content);
    const Log log;
    check_recovery(folder, 3);
    INFO(log.all());
    REQUIRE(log.warnings().size() == 1);
    CHECK(log.warnings()[0].find(".bad-") != std::string::npos);
    CHECK(files_in(folder).size() == 2);
    CHECK(read_file(folder / files_in(folder)[1]) == content);  // nothing is thrown away
  }
}

TEST_CASE("a file whose end is missing gives what it still has") {
  const Folder sample;
  fill(sample, 20);
  const std::string sound = read_file(database_file(sample));
  for (std::size_t size = 0; size < sound.size(); size += 7000) {
    const Folder folder;
    write_file(database_file(folder), sound.substr(0, size));
    INFO("size ", size);
    const Log log;
    check_recovery(folder, 20);
    CHECK_MESSAGE(log.warnings().size() <= 2, log.all());
  }
}

TEST_CASE("an empty file is filled, and at most two damaged files are kept") {
  const Folder folder;
  write_file(database_file(folder), "");
  {
    const Log log;
    check_recovery(folder, 2);
    CHECK(log.warnings().empty());
  }
  for (int round = 0; round < 5; ++round) {
    write_file(database_file(folder), fmt::format("{:0100}", round));
    const Log log;
    check_recovery(folder, 2);
  }
  CHECK(files_in(folder).size() == 3);
  CHECK(read_file(folder / files_in(folder)[2]).ends_with("4"));
}

TEST_CASE("files of others are left alone") {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"PRAGMA user_version = 2", "later version"},
      {"PRAGMA application_id = 7", "another program"},
      {"PRAGMA application_id = 0", "another program"}};
  for (const auto& [sql, reason] : files) {
    const Folder folder;
    fill(folder, 2);
    change(folder, sql);
    const std::string before = read_file(database_file(folder));
    const Log log;
    ArtifactStore store(in_folder(folder));
    put_number(store, 1);
    CHECK(has_number(store, 1));
    CHECK(store.status().path.empty());
    REQUIRE(log.warnings().size() == 1);
    CHECK(log.warnings()[0].find(reason) != std::string::npos);
    CHECK(log.warnings()[0].find(folder.path()) != std::string::npos);
    CHECK(read_file(database_file(folder)) == before);
    CHECK(files_in(folder).size() == 1);
  }
}

TEST_CASE("a schema with something added is not trusted") {
  for (const char* sql :
       {"CREATE TRIGGER t AFTER INSERT ON artifact BEGIN DELETE FROM artifact; END",
        "CREATE VIEW v AS SELECT 1", "DROP TABLE counter; CREATE VIEW counter AS SELECT 1",
        "CREATE TABLE other(x)"}) {
    const Folder folder;
    fill(folder, 2);
    change(folder, sql);
    const Log log;
    check_recovery(folder, 2);
    CHECK(log.warnings().size() == 1);
    CHECK(integrity(database_file(folder)) == "ok");
  }
}

TEST_CASE("something else in place of the file") {
  const auto memory_with_one_warning = [](const Folder& folder) {
    const Log log;
    ArtifactStore store(in_folder(folder));
    put_number(store, 1);
    CHECK(has_number(store, 1));
    CHECK(store.status().path.empty());
    CHECK_MESSAGE(log.warnings().size() == 1, log.all());
  };
  SUBCASE("a folder") {
    const Folder folder;
    std::filesystem::create_directory(database_file(folder));
    memory_with_one_warning(folder);
  }
  SUBCASE("a pipe") {
    const Folder folder;
    REQUIRE(mkfifo(database_file(folder).c_str(), 0600) == 0);
    memory_with_one_warning(folder);
  }
  SUBCASE("a symbolic link to nothing") {
    const Folder folder;
    std::filesystem::create_symlink(folder / "missing", database_file(folder));
    memory_with_one_warning(folder);
    CHECK(!std::filesystem::exists(folder / "missing"));
  }
  SUBCASE("a file that others may write") {
    const Folder folder;
    fill(folder, 1);
    chmod(database_file(folder).c_str(), 0666);
    memory_with_one_warning(folder);
  }
}

TEST_CASE("a file that is deleted or replaced under an open store") {
  const Folder folder;
  const Log log;
  ArtifactStore store(in_folder(folder));
  put_number(store, 1);
  std::filesystem::remove(database_file(folder));
  CHECK(!store.get(key_of_number(1)));
  put_number(store, 1);
  CHECK(has_number(store, 1));
  std::filesystem::remove_all(folder.path());
  put_number(store, 2);
  CHECK(has_number(store, 2));
  CHECK(std::filesystem::exists(database_file(folder)));
  CHECK(log.warnings().empty());
}

TEST_CASE("pages that go bad under an open store") {
  const Folder folder;
  fill(folder, 20, 20000);
  const Log log;
  ArtifactStore store(in_folder(folder));
  CHECK(has_number(store, 1, 20000));
  std::string bytes = read_file(database_file(folder));
  for (std::size_t at = 16384; at < bytes.size(); at += 4096) bytes[at] = 'x';
  write_file(database_file(folder), bytes);
  for (int i = 0; i < 20; ++i) {
    const std::optional<Binary> found = store.get(key_of_number(i));
    if (found)
      CHECK(found->bytes == binary_of_number(i, 20000).bytes);
    else
      put_number(store, i, 20000);
  }
  for (int i = 0; i < 20; ++i) CHECK(has_number(store, i, 20000));
}
