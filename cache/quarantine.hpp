// Moves a damaged database out of the way, together with its journals, so that a new one can be made
// under its name. Nothing is thrown away: the two latest damaged files are kept.
#pragma once

#include <functional>
#include <string>

namespace flashwright {

// `still_bad` is asked while no other process can be doing the same. Returns the new name, or "" when
// the file was left in place.
std::string move_aside(const std::string& path, const std::function<bool()>& still_bad);

}  // namespace flashwright
