// DLPack's C exchange API (DLPack 1.2 and newer; PyTorch has it from 2.10 on): the tensors of a framework as views,
// without Python in between. Declared here, so that one build serves every version.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "flashwright/flashwright.h"

namespace fwpy {

namespace nb = nanobind;

// What a framework exposes as TYPE.__dlpack_c_exchange_api__, a capsule of this name. The functions that are not
// needed here are left without types.
constexpr const char* kExchangeCapsule = "dlpack_exchange_api";
struct Exchange {
  std::uint32_t major, minor;
  Exchange* previous;
  void* allocate;
  void* own;
  void* to_object;
  int (*view)(void* object, flashwright_tensor* out);  // 0, or a Python error is set
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

// From now on tensors of this type, and of those derived from it, are read through its exchange API. False: it has
// none. There is one such type in a process.
bool use_exchange(nb::handle type);

// The API that a tensor is read through; nullptr for all others.
const Exchange* exchange_of(nb::handle tensor);

// The address of the framework's current stream on the device of a view.
std::uintptr_t current_stream(const Exchange& exchange, const flashwright_tensor& view);

}  // namespace fwpy
