// Tells builds apart that must not be mixed: the library and its CPU plugin pass C++ values to each
// other.
#pragma once

namespace flashwright {

// Version, compiler, and a digest over the headers that both sides share.
extern const char* const kBuildId;

}  // namespace flashwright
