// What is taken from an emitted file, and what is refused.
#include "tests/emulator/emulated.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

std::string golden_text() {
  const NamedKernel& kernel = named_kernels().front();
  return kernel.emit().text;
}

std::string edited(const std::string& from, const std::string& to) {
  std::string text = golden_text();
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

int lines_before(const std::string& text, const std::string& part) {
  return static_cast<int>(
      std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(text.find(part)), '\n'));
}

}  // namespace

TEST_CASE("the file tells the launch plan and the parameters") {
  for (const NamedKernel& kernel : random_kernels(test_seed(), 60)) {
    CAPTURE(kernel.name);
    const Source source = kernel.emit();
    const LaunchPlan plan = emulator::translate(source.text, source.name).plan;
    REQUIRE(plan.steps.size() == source.plan.steps.size());
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
      CHECK(plan.steps[i].entry == source.plan.steps[i].entry);
      CHECK(plan.steps[i].threads == source.plan.steps[i].threads);
      CHECK(plan.steps[i].smem_bytes == source.plan.steps[i].smem_bytes);
      CHECK(to_string(*plan.steps[i].grid) == to_string(*source.plan.steps[i].grid));
    }
    REQUIRE((plan.workspace == nullptr) == (source.plan.workspace == nullptr));
    if (plan.workspace != nullptr)
      CHECK(to_string(*plan.workspace) == to_string(*source.plan.workspace));
    REQUIRE(plan.params.fields().size() == source.plan.params.fields().size());
    for (std::size_t i = 0; i < plan.params.fields().size(); ++i) {
      CHECK(plan.params.fields()[i].param == source.plan.params.fields()[i].param);
      CHECK(plan.params.fields()[i].offset == source.plan.params.fields()[i].offset);
    }
  }
}

TEST_CASE("only lines of wrappers change, and none moves") {
  for (const NamedKernel& kernel : named_kernels()) {
    CAPTURE(kernel.name);
    const Source source = kernel.emit();
    const emulator::Translation translation = emulator::translate(source.text, "kernel.cu");
    const std::string& text = translation.text;
    const std::string marker = "#line 1 \"kernel.cu\"\n";
    std::istringstream before(source.text), after(text.substr(text.find(marker) + marker.size()));
    std::string was, is;
    for (std::size_t i = 0; std::getline(before, was); ++i) {
      REQUIRE(std::getline(after, is));
      if (was == is) continue;
      const bool printed = translation.functions.at(i + 1).starts_with("wgmma_");
      CHECK(source.lines.at(i).file.starts_with(printed ? "" : "ptx/"));
    }
  }
}

TEST_CASE("instructions outside of known wrappers are refused with their line") {
  const struct {
    const char *from, *to, *word;
  } rows[] = {
      {"  const int warp_row", "  asm volatile(\"trap;\");\n  const int warp_row", "asm"},
      {"  const int warp_row", "  __threadfence();\n  const int warp_row", "__threadfence"},
      {"  const int warp_row", "  const int x = threadIdx.x;\n  const int warp_row", "threadIdx"},
  };
  for (const auto& row : rows) {
    const std::string text = edited(row.from, row.to);
    const Error error = error_of([&] { emulator::translate(text, "kernel.cu"); });
    CHECK(error.status == Status::unsupported);
    CHECK(contains(error.message, row.word));
    const int line = lines_before(text, row.to) + 1;
    CHECK(contains(error.message, "line " + std::to_string(line)));
  }
}

TEST_CASE("a wrapper with another instruction is refused") {
  const std::string text = edited("cp.async.cg.shared.global", "cp.async.ca.shared.global");
  const Error error = error_of([&] { emulator::translate(text, "kernel.cu"); });
  CHECK(error.status == Status::unsupported);
  CHECK(contains(error.message, "copy_async_16"));
}

TEST_CASE("a file without launch lines or with an unknown parameter is refused") {
  CHECK(error_of([&] {
          emulator::translate(edited("// Launch", "// Start"), "kernel.cu");
        }).status == Status::unsupported);
  CHECK(error_of([&] {
          emulator::translate(edited("int heads_q;", "int heads_x;"), "kernel.cu");
        }).status == Status::unsupported);
  CHECK(error_of([&] { emulator::translate("", "kernel.cu"); }).status == Status::unsupported);
}

TEST_CASE("a unit that the host cannot compile gives the compiler's words") {
  if (!compiler_here("a unit that the host cannot compile")) return;
  const Error error =
      error_of([&] { compile_text(edited("const int warp_row", "const int warp_rows")); });
  CHECK(error.status == Status::compile_failed);
  CHECK(contains(error.detail, "warp_row"));
}
