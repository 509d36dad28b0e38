// flashwright for C++: get_kernel, supports, and values with automatic lifetime, as thin inline
// code over the C interface. Include this and link flashwright::flashwright.
//
//   flashwright::Config config;
//   config.head_dim = 128;
//   config.mask = flashwright::Mask::causal();
//   auto kernel = flashwright::get_kernel(config);
//   kernel.launch(arguments, workspace, stream);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "flashwright/config.hpp"
#include "flashwright/flashwright.h"

namespace flashwright {
inline namespace v0 {

// What every function throws. `status` is one of FLASHWRIGHT_BAD_ARGUMENT ...
class Failure : public std::exception {
 public:
  explicit Failure(flashwright_status code)
      : status(code), message(flashwright_last_error()), detail(flashwright_last_error_detail()) {}
  const char* what() const noexcept override { return message.c_str(); }

  flashwright_status status;
  std::string message;
  std::string detail;  // such as a compiler's log
};

inline void check(flashwright_status status) {
  if (status != FLASHWRIGHT_OK) throw Failure(status);
}

// Takes over a text that the library handed out.
inline std::string take(char* text) {
  std::string out = text == nullptr ? std::string() : std::string(text);
  flashwright_free(text);
  return out;
}

// How far a call may go to get a kernel.
enum class Effort : std::int32_t {
  loaded = FLASHWRIGHT_LOADED,
  cached = FLASHWRIGHT_CACHED,
  compile = FLASHWRIGHT_COMPILE,
  tune = FLASHWRIGHT_TUNE,
};

// A view of a tensor of up to four dimensions; owns nothing. Strides count elements.
class Tensor {
 public:
  // Dense, last dimension fastest.
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape, bool cuda = false,
         int device = 0)
      : Tensor(data, dtype, std::span(shape.begin(), shape.size()), {}, cuda, device) {}

  Tensor(void* data, DType dtype, std::span<const std::int64_t> shape,
         std::span<const std::int64_t> strides, bool cuda, int device) {
    view_.data = data;
    view_.device_type = cuda ? 2 : 1;
    view_.device_id = device;
    view_.ndim = static_cast<std::int32_t>(shape.size());
    view_.type_code = dtype == DType::bf16 ? 4 : 2;
    view_.type_bits = dtype == DType::fp32 ? 32 : 16;
    view_.type_lanes = 1;
    for (std::size_t i = 0; i < shape.size() && i < 4; ++i) shape_[i] = shape[i];
    has_strides_ = !strides.empty();
    for (std::size_t i = 0; i < strides.size() && i < 4; ++i) strides_[i] = strides[i];
  }

  // Valid until this Tensor is changed or goes.
  const flashwright_tensor* get() {
    view_.shape = shape_.data();
    view_.strides = has_strides_ ? strides_.data() : nullptr;
    return &view_;
  }

 private:
  flashwright_tensor view_{};
  std::array<std::int64_t, 4> shape_{}, strides_{};
  bool has_strides_ = false;
};

// One call of attention; see flashwright_arguments for shapes and meanings.
struct Arguments {
  Tensor q, k, v, o;
  std::optional<Tensor> lse = std::nullopt;
  const flashwright_blocks* blocks = nullptr;
  std::uint64_t seed = 0, offset = 0;
  const std::uint64_t* rng_state = nullptr;
  std::optional<std::int64_t> q_position = std::nullopt;
  std::optional<Tensor> alibi_slopes = std::nullopt;  // with Config::alibi
  // With the direction "backward": what comes in, and the gradients that are wanted.
  std::optional<Tensor> d_o = std::nullopt, d_lse = std::nullopt;
  std::optional<Tensor> dq = std::nullopt, dk = std::nullopt, dv = std::nullopt;

  flashwright_arguments get() {
    const auto view = [](std::optional<Tensor>& tensor) {
      return tensor ? tensor->get() : nullptr;
    };
    flashwright_arguments out{};
    out.size = sizeof out;
    out.q = q.get();
    out.k = k.get();
    out.v = v.get();
    out.o = o.get();
    out.lse = view(lse);
    out.blocks = blocks;
    out.seed = seed;
    out.offset = offset;
    out.rng_state = rng_state;
    out.has_q_position = q_position.has_value() ? 1 : 0;
    out.q_position = q_position.value_or(0);
    out.alibi_slopes = view(alibi_slopes);
    out.d_o = view(d_o);
    out.d_lse = view(d_lse);
    out.dq = view(dq);
    out.dk = view(dk);
    out.dv = view(dv);
    return out;
  }
};

// A loaded kernel. Copies share it; launching from many threads is fine.
class Kernel {
 public:
  explicit Kernel(flashwright_kernel* handle) : handle_(handle) {}  // takes over one reference
  Kernel(const Kernel& other) : handle_(other.handle_) { flashwright_kernel_retain(handle_); }
  Kernel(Kernel&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Kernel& operator=(Kernel other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Kernel() { flashwright_kernel_release(handle_); }

  struct Device {
    bool cuda;
    int index;
  };
  // Where it runs and its tensors lie.
  Device device() const {
    std::int32_t type = 0, index = 0;
    check(flashwright_kernel_device(handle_, &type, &index));
    return {type == 2, index};
  }

  std::size_t workspace_bytes(Arguments& arguments) const {
    const flashwright_arguments args = arguments.get();
    std::size_t bytes = 0;
    check(flashwright_kernel_workspace_bytes(handle_, &args, &bytes));
    return bytes;
  }

  void launch(Arguments& arguments, void* workspace = nullptr, void* stream = nullptr) const {
    const flashwright_arguments args = arguments.get();
    check(flashwright_kernel_launch(handle_, &args, workspace, stream));
  }

  std::string source() const { return flashwright_kernel_source(handle_); }
  std::string describe() const {
    char* text = nullptr;
    check(flashwright_kernel_describe(handle_, &text));
    return take(text);
  }
  std::span<const std::byte> binary() const {
    std::size_t bytes = 0;
    const void* const data = flashwright_kernel_binary(handle_, &bytes);
    return {static_cast<const std::byte*>(data), bytes};
  }
  flashwright_kernel* get() const { return handle_; }

 private:
  flashwright_kernel* handle_;
};

using Shape = flashwright_shape;

// The kernel of a Config: loaded, from the store, compiled or tuned, as far as the effort allows.
// `shape` says what it should be fast for; it is right for every shape.
inline Kernel get_kernel(const Config& config, Effort effort = Effort::compile,
                         const std::optional<Shape>& shape = std::nullopt,
                         flashwright_engine* engine = nullptr) {
  flashwright_kernel* kernel = nullptr;
  check(flashwright_get_kernel(engine, to_json(config).c_str(), shape ? &*shape : nullptr,
                               static_cast<flashwright_effort>(effort), &kernel));
  return Kernel(kernel);
}

// A JSON array with every reason why the library cannot do it; "[]" when it can.
inline std::string supports(const Config& config, flashwright_engine* engine = nullptr) {
  char* text = nullptr;
  check(flashwright_supports(engine, to_json(config).c_str(), &text));
  return take(text);
}

}  // namespace v0
}  // namespace flashwright
