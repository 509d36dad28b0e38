// The tensors and scalars of one launch, as the C interface takes them.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "blocks.hpp"
#include "flashwright/flashwright.h"
#include "tensor.hpp"

namespace fwpy {

namespace nb = nanobind;

// Checks what Python has its own words for: element types (TypeError), and one device for all. The rest is
// checked by the library at the launch.
class Arguments {
 public:
  // With d_o it is a backward launch: o and lse are read. None: not given. heads_first: tensors of rank 4 are
  // (batch, heads, seq, dim).
  Arguments(nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse,
            nb::handle alibi_slopes, nb::object blocks, std::uint64_t seed, std::uint64_t offset,
            std::uintptr_t rng_state, std::optional<std::int64_t> q_position, nb::handle d_o,
            nb::handle d_lse, nb::handle dq, nb::handle dk, nb::handle dv, bool heads_first);

  const flashwright_arguments& get() const { return view_; }
  const Tensor& q() const { return q_; }
  const Tensor& k() const { return k_; }
  const Tensor& v() const { return v_; }

 private:
  void check_types_and_devices() const;
  void set_view();

  Tensor q_, k_, v_, o_, lse_, alibi_slopes_, d_o_, d_lse_, dq_, dk_, dv_;
  nb::object blocks_;
  flashwright_arguments view_{};
};

void bind_arguments(nb::module_& module);

}  // namespace fwpy
