// The templates: embedded in the library, or read from FLASHWRIGHT_TEMPLATE_DIR while developing
// them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashwright {

// Text of one template, e.g. "sm80/forward.cu". Throws Error(internal) for one that does not exist,
// Error(io_error) where the folder of the override has none.
std::string template_text(std::string_view path);

std::vector<std::string> template_paths();

}  // namespace flashwright
