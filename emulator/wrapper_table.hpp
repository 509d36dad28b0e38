// The wrappers of templates/ptx/ that the emulator knows, and what stands in for each.
#pragma once

#include <span>

namespace flashwright::emulator {

struct Wrapper {
  const char* name;
  const char* instruction;  // text that its body has to hold
  const char* stand_in;     // one line; FW_SITE(#) gets the row's number
  // Whether the same name may also be a plain function over other wrappers, which is then compiled as
  // it stands.
  bool may_be_plain = false;
};

std::span<const Wrapper> wrappers();

}  // namespace flashwright::emulator
