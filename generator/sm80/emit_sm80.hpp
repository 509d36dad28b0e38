// How an sm80 kernel is put together from its template; also what a test needs to compile the
// template itself.
#pragma once

#include "generator/compose.hpp"

namespace flashwright::sm80 {

// Of either direction.
Emission emission(const Problem& problem, const Schedule& schedule);

Emission backward_emission(const Problem& problem, const Schedule& schedule);

// Options that follow from the problem alone.
Options problem_options(const Problem& problem);

// What both directions print: the function row_bytes(), and that a size is what the launch plan says.
std::vector<Line> row_bytes_function();
std::vector<Line> size_check(const char* name, int bytes);

}  // namespace flashwright::sm80
