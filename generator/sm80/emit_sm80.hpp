// How an sm80 kernel is put together from its template; also what a test needs to compile the
// template itself.
#pragma once

#include "generator/compose.hpp"

namespace flashwright::sm80 {

Emission emission(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright::sm80
