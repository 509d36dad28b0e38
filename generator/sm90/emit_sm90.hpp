// How an sm90 kernel is put together from its template.
#pragma once

#include "generator/compose.hpp"

namespace flashwright::sm90 {

Emission emission(const Problem& problem, const Schedule& schedule);

}  // namespace flashwright::sm90
