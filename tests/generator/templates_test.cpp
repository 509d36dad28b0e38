// Rules that every template follows, so that emitted files read well and run on a CPU in tests.
#include <algorithm>
#include <regex>
#include <set>

#include "generator/specialise.hpp"
#include "generator/template_store.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string code_of(const std::string& line) { return line.substr(0, line.find("//")); }

bool matches(const std::string& text, const char* pattern) {
  return std::regex_search(text, std::regex(pattern));
}

// Lines of the function that begins at `first`, up to the brace that closes it.
std::size_t function_length(const std::vector<std::string>& lines, std::size_t first) {
  int depth = 0;
  bool opened = false;
  for (std::size_t i = first; i < lines.size(); ++i) {
    for (const char c : code_of(lines[i])) {
      depth += (c == '{') - (c == '}');
      opened = opened || c == '{';
    }
    if (opened && depth == 0) return i - first + 1;
  }
  return lines.size() - first;
}

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("options.h is the closed list of options, with defaults") {
  std::set<std::string> guarded, defined;
  for (const std::string& line : lines_of(template_text("options.h"))) {
    std::smatch match;
    if (std::regex_match(line, match, std::regex(R"(#ifndef (FW_\w+))"))) guarded.insert(match[1]);
    if (std::regex_match(line, match, std::regex(R"(#define (FW_\w+) \d+)")))
      defined.insert(match[1]);
  }
  const std::set<std::string> known(option_names().begin(), option_names().end());
  CHECK(guarded == known);
  CHECK(defined == known);
  CHECK(known.size() == option_names().size());
}

TEST_CASE("templates name no option outside the list, and use each of them") {
  std::set<std::string> used;
  const std::regex option(R"(FW_\w+)");
  for (const std::string& path : template_paths()) {
    const std::string text = template_text(path);
    for (std::sregex_iterator it(text.begin(), text.end(), option), end; it != end; ++it)
      if (path != "options.h" && it->str() != "FW_") used.insert(it->str());
  }
  CHECK(used == std::set<std::string>(option_names().begin(), option_names().end()));
}

TEST_CASE("instructions, thread indices and barriers stand in named wrappers only") {
  const char* const raw = R"(\basm\b|\b(threadIdx|blockIdx|blockDim|gridDim|warpSize)\b|)"
                          R"(\b__(shfl|sync|any|all|ballot|cvta|shared__|ldg|expf|fdividef))";
  int wrappers = 0;
  for (const std::string& path : template_paths())
    for (const std::string& line : lines_of(template_text(path))) {
      if (!matches(code_of(line), raw)) continue;
      INFO(path << ": " << line);
      CHECK(path.starts_with("ptx/"));
      ++wrappers;
    }
  CHECK(wrappers > 20);
}

TEST_CASE("each wrapper holds one instruction") {
  for (const std::string& path : template_paths()) {
    if (!path.starts_with("ptx/")) continue;
    const std::vector<std::string> lines = lines_of(template_text(path));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (!lines[i].starts_with("__device__")) continue;
      int instructions = 0;
      for (std::size_t j = i; j < i + function_length(lines, i); ++j)
        instructions += matches(code_of(lines[j]), R"(\basm\b)");
      INFO(path << ": " << lines[i]);
      CHECK(instructions <= 1);
    }
  }
}

TEST_CASE("memory is read and written through wrappers") {
  // Pointers of the launch are only handed on: no template outside of ptx/ dereferences one.
  for (const std::string& path : template_paths()) {
    if (path.starts_with("ptx/") || path == "options.h") continue;
    for (const std::string& line : lines_of(template_text(path))) {
      INFO(path << ": " << line);
      CHECK(!matches(
          code_of(line),
          R"(params\.\w+\[|(^|[=(,;]\s*)\*\s*(params\.|source\b|target\b|global\b|next\b))"));
    }
  }
}

TEST_CASE("templates are structured by shallow conditionals and define no macros") {
  const char* const include = R"re(^#include "[\w/]+\.(h|cuh)"$)re";
  for (const std::string& path : template_paths()) {
    if (path == "options.h") continue;
    int depth = 0, deepest = 0;
    const std::vector<std::string> lines = lines_of(template_text(path));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string& line = lines[i];
      INFO(path << ":" << i + 1 << ": " << line);
      depth += line.starts_with("#if");
      deepest = std::max(deepest, depth);
      depth -= line.starts_with("#endif");
      CHECK(line.size() <= 100);
      CHECK(!matches(line, R"(^\s*#\s*define|/\*|\*/)"));
      if (line.starts_with("#include")) CHECK(matches(line, include));
    }
    INFO(path);
    CHECK(depth == 0);
    CHECK(deepest <= 2);
    CHECK(lines.size() < 600);
  }
}

TEST_CASE("functions of templates are short, kernels a little longer") {
  for (const std::string& path : template_paths()) {
    const std::vector<std::string> lines = lines_of(template_text(path));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const bool kernel = matches(lines[i], R"(__global__)");
      if (!kernel && !matches(lines[i], R"(^\s*__device__)")) continue;
      INFO(path << ": " << lines[i]);
      CHECK(function_length(lines, i) < (kernel ? 150 : 60));
    }
  }
}

TEST_SUITE_END();
