#pragma once

namespace flashwright {

constexpr const char* kVersion = "0.1.0";

}  // namespace flashwright
