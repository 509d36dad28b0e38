// What the library says about itself, as JSON.
#pragma once

#include <string>

#include "api/engine.hpp"
#include "core/reference.hpp"
#include "core/reference_gradient.hpp"

namespace flashwright {

std::string describe(const Kernel& kernel);
std::string explain(Engine& engine, std::string_view config, const Shape* shape);
std::string doctor(Engine& engine);
std::string cache_report(Engine& engine, const std::string& operation, const std::string& argument);
std::string normalised(Engine& engine, std::string_view config);
std::string tune_report(const Request& request, const Shape& shape, const TuneReport& done);
std::string check_report(const Judge& verdict, const Arguments& arguments);
// Of the gradients that the arguments have, against those of the reference for the same o and lse.
std::string check_gradients_report(const Config& config, const Problem& problem,
                                   const Arguments& arguments, std::int64_t max_rows);
std::string compile_report(const Request& request, const Selection& selection, const Built& built);

}  // namespace flashwright
