#include "cli/context.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/values.hpp"

namespace cli {
namespace {

// A name goes to the library as it is; a file is read.
Json device_option(const std::string& given) {
  const bool is_file = given.ends_with(".json") || given.find('/') != std::string::npos;
  if (!is_file) return given;
  std::error_code error;
  std::ifstream file(given, std::ios::binary);
  if (!file || !std::filesystem::is_regular_file(given, error))
    bad_value("--device", given, "the name of a known device, or a file with a device profile");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  try {
    return Json::parse(text);
  } catch (const Json::exception& problem) {
    throw Error(Exit::bad_input, fmt::format("--device {}: not JSON: {}", given, problem.what()));
  }
}

}  // namespace

Context::~Context() { flashwright_engine_release(engine_); }

CLI::App* Context::add_command(CLI::App& parent, const std::string& name,
                               const std::string& about) {
  CLI::App* const command = parent.add_subcommand(name, about);
  command->add_flag("--json", json, "print JSON and nothing else");
  command
      ->add_option("--cache-dir", cache_dir_,
                   "folder of the compiled kernels, or ':memory:' (FLASHWRIGHT_CACHE_DIR)")
      ->type_name("FOLDER");
  command
      ->add_option("--data-dir", data_dir_,
                   "folder of the tuning results, or ':memory:' (FLASHWRIGHT_DATA_DIR)")
      ->type_name("FOLDER");
  command->add_option("--jobs", jobs_, "threads that compile (FLASHWRIGHT_JOBS)")->type_name("N");
  return command;
}

void Context::add_device(CLI::App& command) {
  command
      .add_option("--device", device_,
                  "NAME or PROFILE.json of the device to answer for, which need not be here "
                  "(default: what --target means)")
      ->type_name("NAME");
}

std::vector<std::string> Context::engine_flags() const {
  std::vector<std::string> flags;
  const auto add = [&](const char* name, const std::optional<std::string>& value) {
    if (value) flags.insert(flags.end(), {name, *value});
  };
  add("--cache-dir", cache_dir_);
  add("--data-dir", data_dir_);
  add("--jobs", jobs_);
  add("--device", device_);
  return flags;
}

flashwright_engine* Context::engine(const std::optional<std::string>& effort) {
  if (engine_ != nullptr) return engine_;
  Json options = Json::object();
  if (cache_dir_) options["cache_dir"] = *cache_dir_;
  if (data_dir_) options["data_dir"] = *data_dir_;
  if (jobs_) options["jobs"] = int_value("--jobs", *jobs_, 1, 4096);
  if (effort) options["effort"] = *effort;
  if (device_) options["device"] = device_option(*device_);
  flashwright::check(flashwright_engine_create(options.dump().c_str(), &engine_));
  return engine_;
}

}  // namespace cli
