// What holds for every emitted file, shown on the golden kernels and on random ones.
#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include "core/sha256.hpp"
#include "generator/compose.hpp"
#include "generator/emit.hpp"
#include "generator/sm80/emit_sm80.hpp"
#include "generator/template_store.hpp"
#include "tests/support/emitted.hpp"
#include "tests/support/process.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

constexpr int kRandom = 60;

std::vector<NamedKernel> kernels() {
  std::vector<NamedKernel> all = named_kernels();
  for (NamedKernel& kernel : random_kernels(test_seed(), kRandom)) all.push_back(std::move(kernel));
  return all;
}

Source emit(const NamedKernel& kernel) { return kernel.emit(); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// The comment lines of the head, with broken ones joined again.
std::string banner_of(const std::string& text) {
  std::string banner = text.substr(0, text.find("\n\n") + 1);
  for (std::size_t at = 0; (at = banner.find("\n//     ", at)) != std::string::npos;)
    banner.replace(at, 8, " ");
  return banner;
}

std::string code_of(const std::string& line) { return line.substr(0, line.find("//")); }

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("an emitted file needs nothing and gives away nothing of how it was made") {
  for (const NamedKernel& kernel : kernels()) {
    INFO(kernel.name);
    for (const std::string& line : lines_of(emit(kernel).text)) {
      INFO(line);
      CHECK(line.size() <= 100);
      CHECK(line == line.substr(0, line.find_last_not_of(" \t\r") + 1));
      CHECK(!contains(line, "\t"));
      CHECK(!contains(line, "#include"));
      CHECK(!contains(line, "FW_"));
      CHECK(!contains(line, "//~"));
      CHECK((line.find('#') == std::string::npos ||
             code_of(line).find("#pragma unroll") != std::string::npos || line.starts_with("//")));
    }
  }
}

TEST_CASE("every line knows the template line that it comes from") {
  for (const NamedKernel& kernel : kernels()) {
    INFO(kernel.name);
    const Source source = emit(kernel);
    const std::vector<std::string> lines = lines_of(source.text);
    REQUIRE(lines.size() == source.lines.size());
    int from_templates = 0, wrong = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const LineOrigin& origin = source.lines[i];
      if (origin.file.empty() || lines[i].empty()) continue;
      ++from_templates;
      wrong += lines_of(template_text(origin.file)).at(static_cast<std::size_t>(origin.line - 1)) !=
               lines[i];
    }
    CHECK(wrong == 0);
    CHECK(from_templates > 100);
  }
}

TEST_CASE("the banner tells how to emit the file again") {
  for (const NamedKernel& kernel : named_kernels()) {
    const std::string text = banner_of(emit(kernel).text);
    INFO(kernel.name << "\n" << text);
    CHECK(text.starts_with("// "));
    CHECK(contains(text, "This emitted file may be used under any licence."));
    // The yardstick has no command of its own: it is emitted by comparisons only.
    if (kernel.problem.algorithm == Algorithm::unfused) continue;
    const std::string command = emit_command(kernel.problem, kernel.schedule);
    CHECK(contains(text, "// Regenerate: " + command + "\n"));
    for (const std::string& part : {std::string("--dtype ") + to_string(kernel.problem.dtype),
                                    "--head-dim " + std::to_string(kernel.problem.head_dim),
                                    "--target " + to_string(kernel.problem.target),
                                    "--schedule " + to_string(kernel.schedule)})
      CHECK(contains(command, part));
    CHECK(contains(command, "--dropout") == kernel.problem.dropout);
    CHECK(contains(command, "--softcap") == kernel.problem.softcap);
    CHECK(contains(command, "--alibi") == kernel.problem.alibi);
    CHECK(contains(command, "--head-dim-v") ==
          (kernel.problem.head_dim != kernel.problem.head_dim_v));
    CHECK(contains(command, "--mask") == (kernel.problem.mask != Mask::Kind::none));
  }
}

TEST_CASE("the plan names kernels that the text defines, and sizes that it checks") {
  for (const NamedKernel& kernel : kernels()) {
    INFO(kernel.name);
    const Source source = emit(kernel);
    for (const LaunchStep& step : source.plan.steps) {
      CHECK(std::regex_search(
          source.text, std::regex(R"(extern "C" __global__ [^;{]*\b)" + step.entry + R"(\()")));
      if (step.smem_bytes > 0)
        CHECK(contains(source.text, " == " + std::to_string(step.smem_bytes) + ","));
      // Those of the schedule, or what a kernel before or behind the main ones says of itself.
      const std::string threads = std::to_string(step.threads);
      CHECK((step.threads == 32 * kernel.schedule.warps ||
             (step.threads == 32 * kernel.schedule.warps + 128 &&
              contains(source.text, "kKeysThreads = kThreads + 128;")) ||
             contains(source.text, "kPrepareThreads = " + threads + ";") ||
             contains(source.text, "__launch_bounds__(" + threads + ")")));
      CHECK(contains(banner_of(source.text),
                     "Launch " + step.entry + ": " + to_string(*step.grid) + " blocks of "));
    }
  }
}

TEST_CASE("emitted text is formatted") {
  const std::string formatter = "clang-format-14";
  if (run_program({formatter, "--version"}).status != 0)
    return skip("format of emitted text", formatter + " is not installed");
  const test::Folder folder;
  std::filesystem::copy_file(std::string(FW_SOURCE_DIR) + "/.clang-format",
                             folder / ".clang-format");
  std::vector<std::string> command = {formatter, "--dry-run", "-Werror"};
  int number = 0;
  for (const NamedKernel& kernel : kernels()) {
    command.push_back(folder / (std::to_string(number++) + ".cu"));
    test::write_file(command.back(), emit(kernel).text);
  }
  const Output checked = run_program(command);
  INFO(checked.text.substr(0, 2000));
  CHECK(checked.status == 0);
  // The check is worth something only if it can fail.
  test::write_file(folder / "bad.cu", "int  a;\n");
  CHECK(run_program({formatter, "--dry-run", "-Werror", folder / "bad.cu"}).status != 0);
}

TEST_CASE("helper: writes a digest of all emitted text" * doctest::skip()) {
  const char* const locale = std::getenv("FW_TEST_LOCALE");
  if (locale != nullptr) std::setlocale(LC_ALL, locale);
  std::string all;
  for (const NamedKernel& kernel : kernels()) all += emit(kernel).text;
  test::write_file(std::getenv("FW_TEST_FILE"), to_hex(sha256(all)));
}

TEST_CASE("the same Problem and Schedule give the same bytes in any process") {
  const test::Folder folder;
  std::vector<std::string> digests;
  const std::string seed = std::to_string(test_seed());
  const std::vector<Fresh> ways = {{"helper: writes a digest of all emitted text", {}, "", ""},
                                   {"helper: writes a digest of all emitted text",
                                    {{"HOME", "/nonexistent"},
                                     {"LC_ALL", "C.UTF-8"},
                                     {"FW_TEST_LOCALE", "de_DE.UTF-8"},
                                     {"TZ", "Asia/Tokyo"},
                                     {"FLASHWRIGHT_LOG", "debug"},
                                     {"FLASHWRIGHT_JOBS", "7"}},
                                    "/",
                                    ""}};
  for (const Fresh& way : ways) {
    Fresh run = way;
    const std::string file = folder / std::to_string(digests.size());
    run.environment.emplace_back("FW_TEST_FILE", file);
    run.environment.emplace_back("FW_TEST_SEED", seed);
    REQUIRE(run_fresh(run) == 0);
    digests.push_back(test::read_file(file));
    CHECK(digests.back().size() == 64);
  }
  CHECK(digests[0] == digests[1]);
}

TEST_CASE("run-time values never change the text") {
  const Target target = {BackendKind::cuda, "sm_80"};
  const Schedule schedule = parse_schedule("q64.kv64.w4.st2.b2");
  const auto text = [&](const char* json) {
    return sm80_family().emit(normalise(config_from_json(json), target), schedule).text;
  };
  CHECK(text(R"({"head_dim":64,"softcap":1})") ==
        text(R"({"head_dim":64,"softcap":50,"softmax_scale":-2})"));
  CHECK(text(R"({"head_dim":64,"mask":"window:1,2","dropout":0.1})") ==
        text(R"({"head_dim":64,"mask":"window:-1,999","dropout":0.7,"softmax_scale":3})"));
  CHECK(text(R"({"head_dim":64})") ==
        text(R"({"head_dim":64,"head_dim_v":64,"deterministic":true})"));
}

TEST_SUITE_END();
