// A tensor that a caller passes: anything with DLPack or the buffer protocol, or a tuple
// (address, shape, strides, dtype, device_type, device_id) from a host that has these at hand.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <string>

#include "exchange.hpp"
#include "flashwright/flashwright.h"

namespace fwpy {

namespace nb = nanobind;

constexpr int kFloat = 2, kBfloat = 4;  // codes of DLPack

enum class Access { read, write };

// A view; the memory stays alive as long as this, except behind a tuple. Neither copied nor moved, as the view
// points into it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  // None leaves it empty.
  void set(const char* name, nb::handle value, Access access);

  // (batch, heads, seq, dim) becomes (batch, seq, heads, dim). Nothing happens at another rank.
  void put_seq_first();

  bool given() const { return view_.shape != nullptr; }
  // What it is read through, nullptr for an array or a tuple.
  const Exchange* exchange() const { return exchange_; }
  const flashwright_tensor* get() const { return given() ? &view_ : nullptr; }
  std::int64_t extent(int dimension) const { return view_.shape[dimension]; }

 private:
  void set_from_tuple(const char* name, nb::handle value);
  void set_from_exchange(const char* name, nb::handle value, const Exchange& exchange);
  void set_from_array(const char* name, nb::handle value, Access access);

  static constexpr int kMaxRank = 8;  // those above 4 are refused by the library, in its own words
  const Exchange* exchange_ = nullptr;
  nb::object owner_;
  nb::ndarray<nb::ro> array_;
  flashwright_tensor view_{};
  std::array<std::int64_t, kMaxRank> shape_{}, strides_{};
};

bool is_cuda(const flashwright_tensor& tensor);
std::string dtype_name(const flashwright_tensor& tensor);   // "float16"
std::string device_name(const flashwright_tensor& tensor);  // "cuda:0"
std::string python_type(nb::handle value);                  // of the Python object, for messages

}  // namespace fwpy
