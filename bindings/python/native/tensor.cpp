#include "tensor.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "errors.hpp"

namespace fwpy {
namespace {

constexpr int kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13;
constexpr const char* kTupleForm = "(address, shape, strides, dtype, device_type, device_id)";

std::int64_t integer(const char* name, nb::handle value) {
  const long long out = PyLong_AsLongLong(value.ptr());
  if (out == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    bad_type(name, python_type(value) + " in its tuple", std::string("integers in ") + kTupleForm);
  }
  return out;
}

int integers(const char* name, nb::handle value, std::array<std::int64_t, 8>& out) {
  const nb::tuple items = nb::tuple(nb::borrow(value));
  if (items.size() > out.size())
    bad_value(name, "rank " + std::to_string(items.size()), "rank 4 at most");
  for (std::size_t i = 0; i < items.size(); ++i) out[i] = integer(name, items[i]);
  return static_cast<int>(items.size());
}

void set_dtype(const char* name, nb::handle value, flashwright_tensor& view) {
  const char* const text =
      PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), nullptr) : "";
  view.type_lanes = 1;
  view.type_bits = 16;
  view.type_code = kFloat;
  if (std::strcmp(text, "bf16") == 0) {
    view.type_code = kBfloat;
  } else if (std::strcmp(text, "fp32") == 0) {
    view.type_bits = 32;
  } else if (std::strcmp(text, "fp16") != 0) {
    bad_type(name, "dtype " + std::string(nb::repr(value).c_str()) + " in its tuple",
             "'fp16', 'bf16' or 'fp32'");
  }
}

}  // namespace

bool is_cuda(const flashwright_tensor& tensor) {
  return tensor.device_type == kCuda || tensor.device_type == kCudaManaged;
}

std::string dtype_name(const flashwright_tensor& tensor) {
  const char* const kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const std::string kind =
      tensor.type_code < std::size(kinds) ? kinds[tensor.type_code] : "element type ";
  return kind + std::to_string(tensor.type_bits);
}

std::string device_name(const flashwright_tensor& tensor) {
  if (is_cuda(tensor)) return "cuda:" + std::to_string(tensor.device_id);
  if (tensor.device_type == kCpu || tensor.device_type == kCudaHost) return "cpu";
  return "DLPack device " + std::to_string(tensor.device_type);
}

std::string python_type(nb::handle value) { return nb::type_name(value.type()).c_str(); }

void Tensor::set(const char* name, nb::handle value, Access access) {
  if (value.is_none()) return;
  if (PyTuple_Check(value.ptr())) {
    set_from_tuple(name, value);
  } else if (const Exchange* exchange = exchange_of(value)) {
    set_from_exchange(name, value, *exchange);
  } else {
    set_from_array(name, value, access);
  }
  if (!is_cuda(view_) && view_.device_type != kCpu && view_.device_type != kCudaHost)
    bad_value(name, "memory of " + device_name(view_), "memory of the CPU or of a CUDA device");
}

void Tensor::put_seq_first() {
  if (!given() || view_.ndim != 4) return;
  const std::int64_t *shape = view_.shape, *strides = view_.strides;
  const std::array<std::int64_t, 4> dense = {shape[1] * shape[2] * shape[3], shape[2] * shape[3],
                                             shape[3], 1};
  if (strides == nullptr) strides = dense.data();
  for (auto [from, to] : {std::pair{shape, &shape_}, std::pair{strides, &strides_}}) {
    if (from != to->data()) std::copy_n(from, 4, to->data());
    std::swap((*to)[1], (*to)[2]);
  }
  view_.shape = shape_.data();
  view_.strides = strides_.data();
}

void Tensor::set_from_tuple(const char* name, nb::handle value) {
  const nb::tuple items = nb::borrow<nb::tuple>(value);
  if (items.size() != 6)
    bad_type(name, "a tuple of " + std::to_string(items.size()) + " items", kTupleForm);
  view_.data = reinterpret_cast<void*>(integer(name, items[0]));
  view_.ndim = integers(name, items[1], shape_);
  if (integers(name, items[2], strides_) != view_.ndim)
    bad_value(name, "shape and strides of different lengths", "one stride for each dimension");
  set_dtype(name, items[3], view_);
  view_.device_type = static_cast<std::int32_t>(integer(name, items[4]));
  view_.device_id = static_cast<std::int32_t>(integer(name, items[5]));
  view_.shape = shape_.data();
  view_.strides = strides_.data();
}

void Tensor::set_from_exchange(const char* name, nb::handle value, const Exchange& exchange) {
  if (exchange.view(value.ptr(), &view_) != 0) {
    const nb::python_error error;
    bad_type(name,
             "a tensor that DLPack has no form for (" +
                 std::string(nb::str(error.value()).c_str()) + ")",
             "a dense one of float16, bfloat16 or float32, on the CPU or on a CUDA device");
  }
  exchange_ = &exchange;
  owner_ = nb::borrow(value);  // shape and strides are the tensor's own
  if (view_.ndim == 0) view_.shape = shape_.data();
}

void Tensor::set_from_array(const char* name, nb::handle value, Access access) {
  nb::ndarray<> writable;
  if (access == Access::write && nb::try_cast(value, writable)) {
    array_ = nb::ndarray<nb::ro>(writable);
  } else if (!nb::try_cast(value, array_)) {
    bad_type(name, "an object of type " + python_type(value) + " that exports no DLPack tensor",
             "an array of numbers (NumPy, PyTorch, CuPy, JAX, anything with __dlpack__)");
  } else if (access == Access::write) {
    bad_value(name, "a read-only array", "one that may be written");
  }
  const auto type = array_.dtype();
  view_.data = array_.data_handle();
  view_.byte_offset = array_.byte_offset();
  view_.device_type = array_.device_type();
  view_.device_id = array_.device_id();
  view_.ndim = static_cast<std::int32_t>(array_.ndim());
  view_.type_code = type.code;
  view_.type_bits = type.bits;
  view_.type_lanes = type.lanes;
  view_.shape = view_.ndim == 0 ? shape_.data() : const_cast<std::int64_t*>(array_.shape_ptr());
  view_.strides = const_cast<std::int64_t*>(array_.stride_ptr());
}

}  // namespace fwpy
