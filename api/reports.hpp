// What the library says about itself, as JSON.
#pragma once

#include <string>

#include "api/engine.hpp"
#include "core/reference.hpp"

namespace flashwright {

std::string describe(const Kernel& kernel);
std::string explain(Engine& engine, std::string_view config, const Shape* shape);
std::string doctor(Engine& engine);
std::string cache_report(Engine& engine, const std::string& operation, const std::string& argument);
std::string normalised(Engine& engine, std::string_view config);
std::string tune_report(const Request& request, const Shape& shape, const TuneReport& done);
std::string check_report(const Judge& verdict, const Arguments& arguments);
std::string compile_report(const Request& request, const Selection& selection, const Built& built);

}  // namespace flashwright
