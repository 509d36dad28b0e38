// The wrappers of templates/ptx/ that the emulator knows, and what stands in for each.
#pragma once

#include <span>
#include <string>

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

// The number that stands for all products of warpgroups, which are printed for each shape.
constexpr unsigned kProductRow = 4095;

// What a printed wrapper of wgmma says it does.
struct ProductForm {
  int n = 0;
  bool a_in_registers = false, a_k_major = true, b_k_major = true, first = false, fp16 = false;
};

// False when it is none, or when its name and its instruction disagree.
bool read_product(const std::string& name, const std::string& body, ProductForm& form);
std::string product_stand_in(const std::string& name, const ProductForm& form);

}  // namespace flashwright::emulator
