#include "core/env.hpp"

#include <set>

#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;
using flashwright::test::Environment;
using flashwright::test::Variables;

TEST_CASE("every variable is described once") {
  std::set<std::string> names;
  for (const env::Info& row : env::variables()) {
    names.insert(row.name);
    CHECK(std::string(row.name).starts_with("FLASHWRIGHT_"));
    CHECK(std::string(row.meaning) != "");
    CHECK(std::string(row.default_text) != "");
  }
  CHECK(names.size() == env::variables().size());
}

TEST_CASE("each variable is read under its name") {
  for (const env::Info& row : env::variables()) {
    {
      const Environment set(Variables{{row.name, "value of " + std::string(row.name)}});
      CHECK(env::get(row.id) == "value of " + std::string(row.name));
    }
    const Environment unset(Variables{{row.name, std::nullopt}});
    CHECK(env::get(row.id) == "");
  }
  const Environment foreign(Variables{{"CUDA_HOME", "/opt/cuda"}});
  CHECK(env::get_foreign("CUDA_HOME") == "/opt/cuda");
}

TEST_CASE("a variable that nobody reads is noticed") {
  const Environment typo(
      {{"FLASHWRIGHT_CACHEDIR", "/tmp"}, {"FLASHWRIGHT_LOG", "warn"}, {"XFLASHWRIGHT_LOG", "1"}});
  CHECK(env::unknown() == std::vector<std::string>{"FLASHWRIGHT_CACHEDIR"});
}
