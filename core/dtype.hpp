// The element types: one table row each. Host conversions are exact and tested over every code.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "flashwright/config.hpp"

namespace flashwright {

struct DTypeInfo {
  DType id;
  const char* name;   // in a Config
  int bytes;          // of one element
  int mantissa_bits;  // without the hidden bit
  int dlpack_code;    // DLPack's type code: 2 float, 4 bfloat
  const char* cuda;   // the storage type in emitted CUDA
};

const DTypeInfo& info(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);
const char* dtype_names();  // "fp16, bf16, fp32", for messages

float to_float(DType dtype, const void* element);
void from_float(DType dtype, float value, void* element);  // rounds to nearest even

float half_to_float(std::uint16_t bits);
std::uint16_t float_to_half(float value);
float bfloat_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat(float value);

// `value` rounded to what the type can hold, kept in a double.
double round_to(DType dtype, double value);

// The distance between neighbouring numbers of the type at |value|; 2^-24 at zero.
double ulp(DType dtype, double value);

}  // namespace flashwright
