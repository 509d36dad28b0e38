#include "generator/emit.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "core/env.hpp"
#include "core/error.hpp"

namespace flashwright {
namespace {

struct Registry {
  std::mutex mutex;
  std::array<std::vector<const Family*>, 2> families;  // by BackendKind
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

std::vector<const Family*> families(BackendKind backend) {
  const std::scoped_lock lock(registry().mutex);
  std::vector<const Family*> found = registry().families[static_cast<std::size_t>(backend)];
  const std::string wanted = env::get(env::Variable::family);
  if (!wanted.empty())
    std::erase_if(found, [&](const Family* family) { return family->name() != wanted; });
  return found;
}

void register_family(BackendKind backend, const Family* family) {
  const std::scoped_lock lock(registry().mutex);
  registry().families[static_cast<std::size_t>(backend)].push_back(family);
}

std::vector<std::string> reasons_against(const Problem& problem) {
  std::vector<std::string> all;
  for (const Family* family : families(problem.target.backend)) {
    const std::vector<std::string> reasons = family->reasons_against(problem);
    if (reasons.empty()) return {};
    for (const std::string& reason : reasons) all.push_back(family->name() + ": " + reason);
  }
  if (all.empty())
    all.push_back(fmt::format("no kernel family for {} is present{}", to_string(problem.target),
                              env::get(env::Variable::family).empty()
                                  ? std::string()
                                  : " and named by FLASHWRIGHT_FAMILY"));
  return all;
}

const Family& choose_family(const Problem& problem) {
  for (const Family* family : families(problem.target.backend))
    if (family->reasons_against(problem).empty()) return *family;
  throw Error(Status::unsupported,
              fmt::format("{}: {}", to_string(problem), fmt::join(reasons_against(problem), "; ")));
}

const Family& choose_family(const Problem& problem, const DeviceInfo& device, const Shape& shape,
                            std::string_view schedule) {
  if (schedule.empty()) return choose_family(problem);
  const Schedule pinned = parse_schedule(schedule);
  for (const Family* family : families(problem.target.backend))
    if (family->reasons_against(problem).empty() &&
        family->consider(problem, device, shape, pinned).rejected.empty())
      return *family;
  return choose_family(problem);
}

}  // namespace flashwright
