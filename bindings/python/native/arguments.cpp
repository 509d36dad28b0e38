#include "arguments.hpp"

#include <nanobind/stl/optional.h>

#include "errors.hpp"

namespace fwpy {
namespace {

void same_type(const char* name, const Tensor& tensor, const Tensor& q) {
  if (!tensor.given()) return;
  const flashwright_tensor &mine = *tensor.get(), &other = *q.get();
  if (mine.type_code != other.type_code || mine.type_bits != other.type_bits)
    bad_type(name, dtype_name(mine), dtype_name(other) + ", the type of q");
}

bool is_float32(const flashwright_tensor& tensor) {
  return tensor.type_code == kFloat && tensor.type_bits == 32;
}

bool is_float16(const flashwright_tensor& tensor) {
  return (tensor.type_code == kFloat || tensor.type_code == kBfloat) && tensor.type_bits == 16;
}

void float32(const char* name, const Tensor& tensor) {
  if (tensor.given() && !is_float32(*tensor.get()))
    bad_type(name, dtype_name(*tensor.get()), "float32");
}

void same_device(const char* name, const Tensor& tensor, const Tensor& q) {
  if (!tensor.given()) return;
  const flashwright_tensor &mine = *tensor.get(), &other = *q.get();
  if (is_cuda(mine) == is_cuda(other) && (!is_cuda(mine) || mine.device_id == other.device_id))
    return;
  bad_value(name, "memory of " + device_name(mine),
            "memory of " + device_name(other) + ", where q lies");
}

}  // namespace

Arguments::Arguments(nb::handle q, nb::handle k, nb::handle v, nb::handle o, nb::handle lse,
                     nb::handle alibi_slopes, nb::object blocks, std::uint64_t seed,
                     std::uint64_t offset, std::uintptr_t rng_state,
                     std::optional<std::int64_t> q_position, nb::handle d_o, nb::handle d_lse,
                     nb::handle dq, nb::handle dk, nb::handle dv, bool heads_first)
    : blocks_(std::move(blocks)) {
  const Access of_outputs = d_o.is_none() ? Access::write : Access::read;
  q_.set("q", q, Access::read);
  k_.set("k", k, Access::read);
  v_.set("v", v, Access::read);
  o_.set("o", o, of_outputs);
  lse_.set("lse", lse, of_outputs);
  alibi_slopes_.set("alibi_slopes", alibi_slopes, Access::read);
  d_o_.set("d_o", d_o, Access::read);
  d_lse_.set("d_lse", d_lse, Access::read);
  dq_.set("dq", dq, Access::write);
  dk_.set("dk", dk, Access::write);
  dv_.set("dv", dv, Access::write);
  if (heads_first)
    for (Tensor* tensor : {&q_, &k_, &v_, &o_, &d_o_, &dq_, &dk_, &dv_}) tensor->put_seq_first();
  if (!blocks_.is_none()) view_.blocks = nb::cast<const BlockLists&>(blocks_).get();
  view_.seed = seed;
  view_.offset = offset;
  view_.rng_state = reinterpret_cast<const std::uint64_t*>(rng_state);
  view_.has_q_position = q_position.has_value() ? 1 : 0;
  view_.q_position = q_position.value_or(0);
  check_types_and_devices();
  set_view();
}

void Arguments::check_types_and_devices() const {
  const std::pair<const char*, const Tensor*> required[] = {
      {"q", &q_}, {"k", &k_}, {"v", &v_}, {"o", &o_}};
  for (const auto& [name, tensor] : required)
    if (!tensor->given()) bad_type(name, "None", "a tensor");
  if (!is_float16(*q_.get()) && !is_float32(*q_.get()))
    bad_type("q", dtype_name(*q_.get()), "float16, bfloat16 or float32");
  const std::pair<const char*, const Tensor*> like_q[] = {
      {"k", &k_}, {"v", &v_}, {"o", &o_}, {"d_o", &d_o_}, {"dq", &dq_}, {"dk", &dk_}, {"dv", &dv_}};
  const std::pair<const char*, const Tensor*> floats[] = {
      {"lse", &lse_}, {"d_lse", &d_lse_}, {"alibi_slopes", &alibi_slopes_}};
  for (const auto& [name, tensor] : like_q) same_type(name, *tensor, q_);
  for (const auto& [name, tensor] : floats) float32(name, *tensor);
  for (const auto& [name, tensor] : like_q) same_device(name, *tensor, q_);
  for (const auto& [name, tensor] : floats) same_device(name, *tensor, q_);
}

void Arguments::set_view() {
  view_.size = sizeof view_;
  view_.q = q_.get();
  view_.k = k_.get();
  view_.v = v_.get();
  view_.o = o_.get();
  view_.lse = lse_.get();
  view_.alibi_slopes = alibi_slopes_.get();
  view_.d_o = d_o_.get();
  view_.d_lse = d_lse_.get();
  view_.dq = dq_.get();
  view_.dk = dk_.get();
  view_.dv = dv_.get();
}

void bind_arguments(nb::module_& module) {
  module.def("use_exchange", &use_exchange, nb::arg("type"),
             "Reads tensors of this type, from now on, through DLPack's C exchange API; False if "
             "it has none.");
  nb::class_<Arguments>(module, "Arguments", R"(The arguments of one launch.

A tensor is an object with DLPack or the buffer protocol, or a tuple
(address, shape, strides, dtype, device_type, device_id): strides in elements, dtype 'fp16', 'bf16' or 'fp32',
device_type 1 (CPU) or 2 (CUDA). Memory behind a tuple has to stay alive until the launch is over.

q, o, d_o, dq: (batch, seq_q, heads_q, dim); k, v, dk, dv: (batch, seq_kv, heads_kv, dim), with heads_first
(batch, heads, seq, dim);
lse, d_lse: float32 (batch, heads_q, seq_q). With d_o it is a backward launch: o and lse are read.
rng_state is the address of {seed, offset} in the kernel's memory, 0 for none.)")
      .def(nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::object, std::uint64_t, std::uint64_t, std::uintptr_t,
                    std::optional<std::int64_t>, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle, bool>(),
           nb::arg("q").none(), nb::arg("k").none(), nb::arg("v").none(), nb::arg("o").none(),
           nb::arg("lse") = nb::none(), nb::arg("alibi_slopes") = nb::none(),
           nb::arg("blocks") = nb::none(), nb::arg("seed") = 0, nb::arg("offset") = 0,
           nb::arg("rng_state") = 0, nb::arg("q_position") = nb::none(),
           nb::arg("d_o") = nb::none(), nb::arg("d_lse") = nb::none(), nb::arg("dq") = nb::none(),
           nb::arg("dk") = nb::none(), nb::arg("dv") = nb::none(), nb::arg("heads_first") = false);
}

}  // namespace fwpy
