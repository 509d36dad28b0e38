// Which device the winners of a tuning store are exported for.
#pragma once

#include "api/engine.hpp"

namespace flashwright {

// The measured winners on the engine's device or, if it names none, on the only one that the tuning
// store knows. Throws Error(bad_argument) when there are several, or when there is nothing.
DecisionFile decisions_to_export(Engine& engine);

}  // namespace flashwright
