#include "generator/template_store.hpp"

#include <fstream>
#include <iterator>

#include "core/env.hpp"
#include "core/error.hpp"

namespace flashwright {

// Defined in a file that cmake/embed.cmake writes from the folder templates/.
struct EmbeddedFile {
  const char* path;
  const char* text;
};
extern const EmbeddedFile kTemplates[];
extern const std::size_t kTemplateCount;

std::string template_text(std::string_view path) {
  const std::string folder = env::get(env::Variable::template_dir);
  if (!folder.empty()) {
    const std::string file = folder + "/" + std::string(path);
    std::ifstream in(file, std::ios::binary);
    if (!in) throw Error(Status::io_error, "template: cannot read '" + file + "'");
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  for (std::size_t i = 0; i < kTemplateCount; ++i)
    if (path == kTemplates[i].path) return kTemplates[i].text;
  throw Error(Status::internal, "template: no '" + std::string(path) + "'");
}

std::vector<std::string> template_paths() {
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < kTemplateCount; ++i) paths.emplace_back(kTemplates[i].path);
  return paths;
}

}  // namespace flashwright
