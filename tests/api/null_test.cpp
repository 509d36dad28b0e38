// Every function of the C interface with null pointers: a status and a message, never a crash.
#include <functional>
#include <regex>
#include <set>

#include "flashwright/flashwright.h"
#include "tests/api/fake_devices.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

struct Row {
  std::string function;
  std::function<flashwright_status()> call;
  std::string named;  // in the message; empty: null is fine
};

char* text = nullptr;
size_t bytes = 0;
int32_t number = 0;
void* memory = nullptr;
flashwright_kernel* kernel = nullptr;
flashwright_arguments arguments{};

// Without an engine, so that those calls that get far enough use the default one.
const std::vector<Row>& table() {
  static const std::vector<Row> rows = {
      {"engine_create", [] { return flashwright_engine_create(nullptr, nullptr); }, "engine"},
      {"supports", [] { return flashwright_supports(nullptr, nullptr, &text); }, "config"},
      {"supports", [] { return flashwright_supports(nullptr, kConfig, nullptr); }, "reasons"},
      {"normalise", [] { return flashwright_normalise(nullptr, nullptr, &text); }, "config"},
      {"normalise", [] { return flashwright_normalise(nullptr, kConfig, nullptr); }, "normalised"},
      {"explain", [] { return flashwright_explain(nullptr, nullptr, nullptr, &text); }, "config"},
      {"explain", [] { return flashwright_explain(nullptr, kConfig, nullptr, nullptr); },
       "explanation"},
      {"get_kernel",
       [] {
         return flashwright_get_kernel(nullptr, nullptr, nullptr, FLASHWRIGHT_COMPILE, &kernel);
       },
       "config"},
      {"get_kernel",
       [] {
         return flashwright_get_kernel(nullptr, kConfig, nullptr, FLASHWRIGHT_COMPILE, nullptr);
       },
       "kernel"},
      {"prepare",
       [] {
         return flashwright_prepare(nullptr, nullptr, FLASHWRIGHT_COMPILE, nullptr, nullptr, &text);
       },
       "configs"},
      {"prepare",
       [] {
         return flashwright_prepare(nullptr, "[]", FLASHWRIGHT_COMPILE, nullptr, nullptr, nullptr);
       },
       "report"},
      {"kernel_device", [] { return flashwright_kernel_device(nullptr, &number, &number); },
       "kernel"},
      {"kernel_workspace_bytes",
       [] { return flashwright_kernel_workspace_bytes(nullptr, &arguments, &bytes); }, "kernel"},
      {"kernel_launch",
       [] { return flashwright_kernel_launch(nullptr, &arguments, nullptr, nullptr); }, "kernel"},
      {"kernel_describe", [] { return flashwright_kernel_describe(nullptr, &text); }, "kernel"},
      {"emit", [] { return flashwright_emit(nullptr, nullptr, nullptr, &text); }, "config"},
      {"emit", [] { return flashwright_emit(nullptr, kConfig, nullptr, nullptr); }, "text"},
      {"compile",
       [] { return flashwright_compile(nullptr, nullptr, nullptr, &text, nullptr, nullptr); },
       "config"},
      {"compile",
       [] { return flashwright_compile(nullptr, kConfig, nullptr, nullptr, nullptr, nullptr); },
       "report"},
      {"tune",
       [] { return flashwright_tune(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, &text); },
       "config"},
      {"tune",
       [] {
         return flashwright_tune(nullptr, kConfig, nullptr, nullptr, nullptr, nullptr, nullptr);
       },
       "report"},
      {"bench", [] { return flashwright_bench(nullptr, nullptr, nullptr, nullptr, &text); },
       "config"},
      {"bench", [] { return flashwright_bench(nullptr, kConfig, nullptr, nullptr, nullptr); },
       "report"},
      {"check", [] { return flashwright_check(nullptr, &arguments, 1, &text); }, "config"},
      {"check", [] { return flashwright_check(kConfig, nullptr, 1, &text); }, "arguments"},
      {"check", [] { return flashwright_check(kConfig, &arguments, 1, nullptr); }, "report"},
      {"doctor", [] { return flashwright_doctor(nullptr, nullptr); }, "report"},
      {"cache", [] { return flashwright_cache(nullptr, nullptr, nullptr, &text); }, "operation"},
      {"cache", [] { return flashwright_cache(nullptr, "path", nullptr, nullptr); }, "report"},
      {"blocks_from_mask",
       [] { return flashwright_blocks_from_mask(nullptr, 1, 1, 4, 4, 2, 2, nullptr); }, "blocks"},
      {"blocks_from_mask",
       [] {
         flashwright_blocks* blocks = nullptr;
         return flashwright_blocks_from_mask(nullptr, 1, 1, 4, 4, 2, 2, &blocks);
       },
       "keep"},
      {"blocks_transpose", [] { return flashwright_blocks_transpose(nullptr, nullptr); }, "blocks"},
      {"allocate", [] { return flashwright_allocate(nullptr, nullptr, 16, nullptr); }, "memory"},
      {"copy_to_device",
       [] { return flashwright_copy_to_device(nullptr, nullptr, nullptr, "x", 1); }, "memory"},
      {"copy_to_device",
       [] { return flashwright_copy_to_device(nullptr, nullptr, &memory, nullptr, 1); }, "host"},
      {"copy_to_device",
       [] { return flashwright_copy_to_device(nullptr, nullptr, nullptr, nullptr, 0); }, ""},
      {"copy_to_host",
       [] { return flashwright_copy_to_host(nullptr, nullptr, nullptr, &memory, 1); }, "host"},
      {"copy_to_host",
       [] { return flashwright_copy_to_host(nullptr, nullptr, &memory, nullptr, 1); }, "memory"},
      {"deallocate", [] { return flashwright_deallocate(nullptr, nullptr, nullptr); }, ""},
      {"synchronize", [] { return flashwright_synchronize(nullptr, nullptr, nullptr); }, ""},
      {"set_executor", [] { return flashwright_set_executor(nullptr, nullptr); }, ""}};
  return rows;
}

// Functions that return no status; here they only have to survive.
const std::set<std::string> kWithoutStatus = {
    "version",       "abi_version",    "build_info",     "last_error",    "last_error_detail",
    "free",          "engine_default", "engine_release", "kernel_retain", "kernel_release",
    "kernel_source", "kernel_binary",  "blocks_free",    "set_log"};

}  // namespace

TEST_CASE("null pointers are refused by name") {
  fresh_machine();
  const test::Folder folder;
  const test::Environment stores(
      test::Variables{{"FLASHWRIGHT_CACHE_DIR", ":memory:"}, {"FLASHWRIGHT_DATA_DIR", ":memory:"}});
  for (const Row& row : table()) {
    INFO(row.function << " without " << row.named);
    const flashwright_status status = row.call();
    const std::string message = flashwright_last_error();
    INFO(message);
    CHECK(status == (row.named.empty() ? FLASHWRIGHT_OK : FLASHWRIGHT_BAD_ARGUMENT));
    if (!row.named.empty())
      CHECK(message == row.named + ": given a null pointer; expected an address");
  }
  CHECK(machine().cuda.compilations == 0);  // refused before any work
  CHECK(machine().cuda.memory_blocks == 0);
}

TEST_CASE("functions without a status take null, too") {
  flashwright_free(nullptr);
  flashwright_engine_release(nullptr);
  flashwright_kernel_retain(nullptr);
  flashwright_kernel_release(nullptr);
  flashwright_blocks_free(nullptr);
  flashwright_set_log(nullptr, nullptr, 1);
  CHECK(std::string(flashwright_kernel_source(nullptr)) == "");
  CHECK(flashwright_kernel_binary(nullptr, nullptr) == nullptr);
  CHECK(flashwright_engine_default() == nullptr);
  CHECK(std::string(flashwright_version()) != "");
  CHECK(flashwright_abi_version() == 1);
  CHECK(contains(flashwright_build_info(), flashwright_version()));
  CHECK(flashwright_last_error() != nullptr);
  CHECK(flashwright_last_error_detail() != nullptr);
}

TEST_CASE("no function of the header is left out above") {
  const std::string header =
      test::read_file(std::string(FW_SOURCE_DIR) + "/include/flashwright/flashwright.h");
  std::set<std::string> declared, covered = kWithoutStatus;
  const std::regex declaration(R"(FLASHWRIGHT_API[^;(]*\bflashwright_(\w+)\()");
  for (std::sregex_iterator it(header.begin(), header.end(), declaration), end; it != end; ++it)
    declared.insert((*it)[1]);
  for (const Row& row : table()) covered.insert(row.function);
  CHECK(declared == covered);
}
