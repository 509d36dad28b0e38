// The command line of flashwright, on the public C interface alone: whatever it does, an embedding program
// can do as well.
#include <fmt/format.h>

#include <cstring>
#include <iostream>

#include "cli/console.hpp"
#include "cli/context.hpp"

namespace cli {
namespace {

constexpr const char* kFooter =
    "A command explains itself: flashwright run --help\n"
    "Exit codes: 0 ok, 1 internal, 2 bad input, 3 unsupported, 4 not cached, 5 compile failed, 6 "
    "unavailable, "
    "7 device error, 8 file error, 9 check failed, 130 interrupted";

bool asks_for_json(int count, char** arguments) {
  for (int i = 1; i < count; ++i)
    if (std::strcmp(arguments[i], "--json") == 0) return true;
  return false;
}

Exit fail(bool json, Exit code, const std::string& message, const std::string& detail) {
  if (json) {
    Json error = {{"code", static_cast<int>(code)}, {"name", name_of(code)}, {"message", message}};
    if (!detail.empty()) error["detail"] = detail;
    print_json({{"error", error}});
  } else {
    std::fflush(stdout);
    fmt::print(stderr, "flashwright: error: {}\n", message);
    if (!detail.empty()) fmt::print(stderr, "{}{}", detail, detail.ends_with('\n') ? "" : "\n");
  }
  try {
    flush_output();
  } catch (const Error& error) {
    fmt::print(stderr, "flashwright: error: {}\n", error.what());
  }
  return code;
}

void build(CLI::App& app, Context& context) {
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(flashwright_build_info()));
  app.add_flag("--json", context.json, "print JSON and nothing else");
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  add_doctor(app, context);
  add_emit(app, context);
  add_compile(app, context);
  add_run(app, context);
  add_tune(app, context);
  add_bench(app, context);
  add_supports(app, context);
  add_explain(app, context);
  add_cache(app, context);
#ifdef FLASHWRIGHT_EMULATOR
  add_check(app, context);
#endif
}

Exit run(int count, char** arguments) {
  CLI::App app(
      "flashwright: exact attention kernels, generated, compiled, tuned and cached at run time",
      "flashwright");
  Context context;
  bool json = asks_for_json(count, arguments);
  try {
    build(app, context);
    app.parse(count, arguments);
    json = context.json;
    const Exit code = context.action();
    flush_output();
    return code;
  } catch (const CLI::ParseError& error) {
    // Help and version arrive as "errors" with code 0.
    if (error.get_exit_code() == 0) {
      app.exit(error, std::cout, std::cerr);
      std::cout.flush();
      return std::cout ? Exit::ok : Exit::io_error;
    }
    return fail(json, Exit::bad_input, fmt::format("{}; see --help", error.what()), "");
  } catch (const Error& error) {
    return fail(json, error.code(), error.what(), "");
  } catch (const flashwright::Failure& error) {
    return fail(json, exit_of(error.status), error.message, error.detail);
  } catch (const std::bad_alloc&) {
    return fail(json, Exit::internal, "out of memory", "");
  } catch (const std::exception& error) {
    return fail(json, Exit::internal, error.what(), "");
  }
}

}  // namespace
}  // namespace cli

int main(int count, char** arguments) { return static_cast<int>(cli::run(count, arguments)); }
