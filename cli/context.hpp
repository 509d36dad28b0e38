// What every command has: its output mode, its engine, and the action that main runs after parsing.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/error.hpp"
#include "flashwright/flashwright.hpp"

namespace cli {

using Json = nlohmann::ordered_json;

class Context {
 public:
  Context() = default;
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Adds a command with the flags that all commands share.
  CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& about);

  // The flag --device, for commands that need no device.
  void add_device(CLI::App& command);
  bool names_device() const { return device_.has_value(); }

  // The engine, made on first use. `effort`, if given, goes before FLASHWRIGHT_EFFORT.
  flashwright_engine* engine(const std::optional<std::string>& effort = std::nullopt);

  // The flags that the engine is made with, for another run of this program.
  std::vector<std::string> engine_flags() const;

  bool json = false;             // machine-readable output, and nothing else
  std::function<Exit()> action;  // of the command that was named

 private:
  std::optional<std::string> cache_dir_, data_dir_, jobs_, device_;
  flashwright_engine* engine_ = nullptr;
};

// Calls a function of the C interface that hands out a text, and reads it as JSON.
template <typename Call>
Json ask(Call&& call) {
  char* text = nullptr;
  flashwright::check(call(&text));
  return Json::parse(flashwright::take(text));
}

// The commands, each in its own file.
void add_doctor(CLI::App& app, Context& context);
void add_emit(CLI::App& app, Context& context);
void add_compile(CLI::App& app, Context& context);
void add_run(CLI::App& app, Context& context);
void add_tune(CLI::App& app, Context& context);
void add_bench(CLI::App& app, Context& context);
CLI::App* add_paper(CLI::App& bench, Context& context);
void add_supports(CLI::App& app, Context& context);
void add_explain(CLI::App& app, Context& context);
void add_cache(CLI::App& app, Context& context);
void add_check(CLI::App& app, Context& context);  // where the emulator is built

}  // namespace cli
