// The partial preprocessor on small templates of its own.
#include "generator/specialise.hpp"

#include "generator/compose.hpp"
#include "generator/template_store.hpp"
#include "tests/cache/support.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

// A folder of templates that is used in place of the built-in ones.
class Templates {
 public:
  explicit Templates(const std::vector<std::pair<std::string, std::string>>& files)
      : environment_(test::Variables{{"FLASHWRIGHT_TEMPLATE_DIR", folder_.path()}}) {
    for (const auto& [name, text] : files) test::write_file(folder_ / name, text);
  }

 private:
  test::Folder folder_;
  test::Environment environment_;
};

const Options kOptions = {{"FW_FP16", 0}, {"FW_BF16", 1}, {"FW_FP32", 0}, {"FW_MASK", 2}};

std::string resolved(const std::string& text, const Options& options = kOptions) {
  const Templates templates({{"main.cu", text}});
  return join(resolve("main.cu", options, {}));
}

std::string error_in(const std::string& text) {
  const Error error = error_of([&] { resolved(text); });
  CHECK(error.status == Status::internal);
  return error.message;
}

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream in(text);
  int number = 0;
  for (std::string line; std::getline(in, line);) lines.push_back({line, {"main.cu", ++number}});
  return lines;
}

std::string pruned(const std::string& text) { return join(prune(lines_of(text))); }

}  // namespace

TEST_SUITE_BEGIN("unit");

TEST_CASE("conditionals on options are decided, with all that an expression can say") {
  CHECK(resolved("#if FW_BF16\na\n#else\nb\n#endif\n") == "a\n");
  CHECK(resolved("#if FW_FP16\na\n#else\nb\n#endif\n") == "b\n");
  CHECK(resolved("#if FW_FP16\na\n#endif\nc\n") == "c\n");
  CHECK(resolved("#if FW_FP16\na\n#elif FW_BF16\nb\n#elif FW_MASK\nc\n#else\nd\n#endif\n") ==
        "b\n");
  CHECK(resolved("#if FW_FP16\na\n#elif FW_FP32\nb\n#else\nd\n#endif\n") == "d\n");
  CHECK(resolved("#if FW_MASK == 2 && !(FW_FP16 || FW_FP32)\na\n#endif\n") == "a\n");
  CHECK(resolved("#if FW_MASK > 2\na\n#elif FW_MASK >= 2\nb\n#endif\n") == "b\n");
}

TEST_CASE("conditionals nest, and an inactive one decides nothing inside it") {
  const std::string nested =
      "#if FW_FP16\n#if FW_BF16\na\n#else\nb\n#endif\n#else\n#if "
      "FW_BF16\nc\n#else\nd\n#endif\n#endif\ne\n";
  CHECK(resolved(nested) == "c\ne\n");
  CHECK(resolved("#if FW_BF16\n#if FW_FP16\na\n#elif FW_BF16\nb\n#endif\nc\n#endif\n") == "b\nc\n");
  CHECK(resolved("#if FW_FP16\n#if FW_BF16\na\n#elif FW_BF16\nb\n#else\nc\n#endif\n#endif\nd\n") ==
        "d\n");
}

TEST_CASE("notes for maintainers go, comments and unroll pragmas stay") {
  CHECK(resolved("//~ a note\nint a;  // a comment\n  //~ another\n// kept\n#pragma unroll\n  "
                 "#pragma unroll 1\n") ==
        "int a;  // a comment\n// kept\n#pragma unroll\n  #pragma unroll 1\n");
}

TEST_CASE("empty lines never pile up and never come first") {
  CHECK(resolved("\n\na\n\n\n\nb\n") == "a\n\nb\n");
  CHECK(resolved("a\n\n#if FW_FP16\n\nx\n\n#endif\n\nb\n") == "a\n\nb\n");
  CHECK(resolved("a") == "a\n");
  CHECK(resolved("") == "");
}

TEST_CASE("templates are included once, printed parts where they are named, and options.h never") {
  const Templates templates({{"main.cu",
                              "#include \"options.h\"\n#include \"a.cuh\"\n#include \"printed.h\"\n"
                              "#include \"b.cuh\"\nmain\n"},
                             {"a.cuh", "#include \"b.cuh\"\na\n"},
                             {"b.cuh", "b\n"},
                             {"options.h", "never read\n"}});
  const Printed printed = {{"printed.h", {{"first", {}}, {"second", {}}}}};
  const std::vector<Line> lines = resolve("main.cu", kOptions, printed);
  CHECK(join(lines) == "b\n\na\n\nfirst\nsecond\n\nmain\n");
  const auto origin = [&](std::size_t i) {
    return lines[i].origin.file + ":" + std::to_string(lines[i].origin.line);
  };
  CHECK(origin(0) == "b.cuh:1");
  CHECK(origin(2) == "a.cuh:2");
  CHECK(origin(4) == ":0");
  CHECK(origin(7) == "main.cu:5");
}

TEST_CASE("an include that is switched off is not looked for") {
  CHECK(resolved("#if FW_FP16\n#include \"missing.cuh\"\n#endif\na\n") == "a\n");
}

TEST_CASE("what it does not understand is an error with file and line") {
  const std::vector<std::pair<std::string, std::string>> table = {
      {"a\n#if FW_TYPO\n#endif\n", "template main.cu:2: unknown option FW_TYPO"},
      {"a\n\n#ifdef FW_BF16\n#endif\n", "template main.cu:3: unexpected #ifdef FW_BF16"},
      {"#define X 1\n", "template main.cu:1: unexpected #define X 1"},
      {"a\n#include <cuda.h>\n", "template main.cu:2: unexpected #include <cuda.h>"},
      {"#pragma once\n", "template main.cu:1: unexpected #pragma once"},
      {"#if(FW_BF16)\n#endif\n", "template main.cu:1: unexpected #if(FW_BF16)"},
      {"a\n#endif\n", "template main.cu:2: directive without #if"},
      {"#else\n", "template main.cu:1: directive without #if"},
      {"#elif FW_BF16\n", "template main.cu:1: directive without #if"},
      {"#if FW_BF16\na\n", "template main.cu:2: #if without #endif"},
      {"#if FW_FP16\na\n#endif  // FW_FP16\n", "#if without #endif"},
      {"a\n#if FW_MASK &&\n#endif\n", "template main.cu:2: "},
      {"a\n#if FW_MASK $ 2\n#endif\n", "template main.cu:2: "}};
  for (const auto& [text, message] : table) {
    INFO(text);
    const std::string got = error_in(text);
    INFO(got);
    CHECK(contains(got, message));
  }
}

TEST_CASE("errors inside an include name the include") {
  const Templates templates(
      {{"main.cu", "#include \"a.cuh\"\n"}, {"a.cuh", "\n#if FW_NEW\n#endif\n"}});
  CHECK(contains(error_of([] { resolve("main.cu", kOptions, {}); }).message,
                 "template a.cuh:2: unknown option FW_NEW"));
  const Templates open({{"main.cu", "#include \"a.cuh\"\n#endif\n"}, {"a.cuh", "#if FW_BF16\n"}});
  CHECK(contains(error_of([] { resolve("main.cu", kOptions, {}); }).message,
                 "template a.cuh:1: #if without #endif"));
}

TEST_CASE("options outside the closed list and templates that do not exist are errors") {
  CHECK(contains(error_of([] {
                   resolved("a\n", {{"FW_NEW", 1}});
                 }).message,
                 "unknown option FW_NEW"));
  const Error missing = error_of([] { template_text("sm80/backwards.cu"); });
  CHECK(contains(missing.message, "sm80/backwards.cu"));
  const Templates empty({});
  const Error unreadable = error_of([] { template_text("sm80/forward.cu"); });
  CHECK(unreadable.status == Status::io_error);
  CHECK(contains(unreadable.message, "sm80/forward.cu"));
}

TEST_CASE("helpers that no kernel reaches are dropped") {
  CHECK(pruned("int used() {\n  return 1;\n}\n\nint unused() {\n  return used();\n}\n\n"
               "__global__ void kernel() {\n  used();\n}\n") ==
        "int used() {\n  return 1;\n}\n\n__global__ void kernel() {\n  used();\n}\n");
}

TEST_CASE("what a helper needs stays, even when it stands below it") {
  CHECK(pruned("int a() { return b(); }\n\nint b() { return c; }\n\nconstexpr int c = 1;\n\nint "
               "d() { return c; }\n\n"
               "__global__ void kernel() { a(); }\n") ==
        "int a() { return b(); }\n\nint b() { return c; }\n\nconstexpr int c = 1;\n\n__global__ "
        "void kernel() { a(); }\n");
}

TEST_CASE("comments keep nothing alive, and go with their block") {
  CHECK(pruned("// Needed by kernel.\nint a();\n\n// Says what b is for.\nint b() {\n\n  return 1; "
               " // a\n}\n\n"
               "// a\n__global__ void kernel() {\n  b();  // not a\n}\n") ==
        "// Says what b is for.\nint b() {\n\n  return 1;  // a\n}\n\n// a\n__global__ void "
        "kernel() {\n  b();  // not a\n}\n");
}

TEST_CASE("constants of one run are kept one by one, each with its comment, and stay together") {
  CHECK(pruned("constexpr int kA = 1;\n// Of kB.\nconstexpr int kB = 2;  // two\nconstexpr int kC "
               "= kB;\n"
               "constexpr int kD = 4;\n\n__global__ void kernel() { f(kC); }\n") ==
        "// Of kB.\nconstexpr int kB = 2;  // two\nconstexpr int kC = kB;\n\n__global__ void "
        "kernel() { f(kC); }\n");
}

TEST_CASE("types, templates and aliases are known by their names") {
  CHECK(pruned("using u32 = unsigned int;\n\nusing u16 = unsigned short;\n\nstruct alignas(16) "
               "Bytes16 {\n  u32 word[4];\n};\n\n"
               "template <int kA, typename T>\nT load(T* p) {\n  return *p;\n}\n\n"
               "__global__ void kernel(Bytes16* p) { load<1>(p); }\n") ==
        "using u32 = unsigned int;\n\nstruct alignas(16) Bytes16 {\n  u32 word[4];\n};\n\n"
        "template <int kA, typename T>\nT load(T* p) {\n  return *p;\n}\n\n"
        "__global__ void kernel(Bytes16* p) { load<1>(p); }\n");
}

TEST_CASE("checks of the compiler stay, and so does all that they name") {
  CHECK(
      pruned(
          "constexpr int kA = 1;\n\nconstexpr int kB = 2;\n\nstatic_assert(kA == 1, \"why\");\n") ==
      "constexpr int kA = 1;\n\nstatic_assert(kA == 1, \"why\");\n");
  CHECK(pruned("int f();\n") == "");
}

TEST_SUITE_END();
