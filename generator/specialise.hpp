// Text to text: a template becomes the source of one kernel. `resolve` decides the conditionals on
// FW_ options and pulls in template includes; `prune` drops the helpers that nothing uses. Every
// line keeps its origin.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/source.hpp"

namespace flashwright {

struct Line {
  std::string text;
  LineOrigin origin;
};

// Values of all FW_ options. The list is closed: a name outside it, in a template or here, is an
// error.
using Options = std::map<std::string, int>;
const std::vector<std::string>& option_names();

// Includes whose text is printed for each kernel instead of being a template: name to lines.
using Printed = std::map<std::string, std::vector<Line>, std::less<>>;

// Drops maintainers' notes (lines starting with //~) and the includes themselves. Throws
// Error(internal) with file and line for anything it does not understand.
std::vector<Line> resolve(std::string_view path, const Options& options, const Printed& printed);

// Keeps the blocks that hold a kernel, and what they name, directly or through others. A block is a
// run of lines without an empty line at the outermost level; constants count one by one.
std::vector<Line> prune(const std::vector<Line>& lines);

}  // namespace flashwright
