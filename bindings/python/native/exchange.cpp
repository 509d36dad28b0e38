#include "exchange.hpp"

#include <cstddef>

namespace fwpy {
namespace {

constexpr std::uint32_t kMajor = 1;  // of DLPack; another one has another layout

struct Registered {
  PyTypeObject* type = nullptr;
  const Exchange* exchange = nullptr;
};
Registered registered;

}  // namespace

bool use_exchange(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (PyCapsule_IsValid(capsule.ptr(), kExchangeCapsule) == 0) return false;
  auto* exchange =
      static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), kExchangeCapsule));
  while (exchange != nullptr && exchange->major != kMajor) exchange = exchange->previous;
  if (exchange == nullptr || exchange->view == nullptr || exchange->current_stream == nullptr)
    return false;
  // Both are kept until the process ends, as the type is.
  nb::object(capsule).release();
  registered = {reinterpret_cast<PyTypeObject*>(nb::borrow(type).release().ptr()), exchange};
  return true;
}

const Exchange* exchange_of(nb::handle tensor) {
  if (registered.type == nullptr || PyObject_TypeCheck(tensor.ptr(), registered.type) == 0)
    return nullptr;
  return registered.exchange;
}

std::uintptr_t current_stream(const Exchange& exchange, const flashwright_tensor& view) {
  void* stream = nullptr;
  if (exchange.current_stream(view.device_type, view.device_id, &stream) != 0)
    throw nb::python_error();
  return reinterpret_cast<std::uintptr_t>(stream);
}

}  // namespace fwpy
