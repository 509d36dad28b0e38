#include "cli/context.hpp"

#include "cli/values.hpp"

namespace cli {

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

flashwright_engine* Context::engine(const std::optional<std::string>& effort) {
  if (engine_ != nullptr) return engine_;
  Json options = Json::object();
  if (cache_dir_) options["cache_dir"] = *cache_dir_;
  if (data_dir_) options["data_dir"] = *data_dir_;
  if (jobs_) options["jobs"] = int_value("--jobs", *jobs_, 1, 4096);
  if (effort) options["effort"] = *effort;
  flashwright::check(flashwright_engine_create(options.dump().c_str(), &engine_));
  return engine_;
}

}  // namespace cli
