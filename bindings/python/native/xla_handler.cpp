#include "xla_handler.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "blocks.hpp"
#include "flashwright/flashwright.hpp"
#include "xla_ffi.hpp"

namespace fwpy {
namespace {

constexpr std::int32_t kCpu = 1, kCuda = 2;

// An error of XLA's own, on its way out of a handler.
struct XlaFailure {
  xla::Error* error;
};

void check_xla(xla::Error* error) {
  if (error != nullptr) throw XlaFailure{error};
}

// What the call says besides its buffers.
struct Options {
  std::string_view fields;             // inside of the Config's JSON, without the target
  std::string_view operands, results;  // their names in order, parted by blanks
  std::int64_t q_position = 0;
  bool has_q_position = false;
  std::vector<std::int64_t> block_sizes;  // of BlockLists
};

Options options_of(const xla::Attributes& attributes) {
  Options out;
  for (std::int64_t i = 0; i < attributes.count; ++i) {
    const std::string_view name{attributes.names[i]->data, attributes.names[i]->size};
    const auto text = [&] {
      const auto& value = *static_cast<const xla::Text*>(attributes.items[i]);
      return std::string_view{value.data, value.size};
    };
    if (name == "fields") out.fields = text();
    if (name == "operands") out.operands = text();
    if (name == "results") out.results = text();
    if (name == "q_position") {
      const auto& value = *static_cast<const xla::Scalar*>(attributes.items[i]);
      out.q_position = *static_cast<const std::int64_t*>(value.value);
      out.has_q_position = true;
    }
    if (name == "block_sizes") {
      const auto& value = *static_cast<const xla::Array*>(attributes.items[i]);
      const auto* const sizes = static_cast<const std::int64_t*>(value.data);
      out.block_sizes.assign(sizes, sizes + value.size);
    }
  }
  return out;
}

struct Role {
  const flashwright_tensor* flashwright_arguments::*field;
  std::int64_t rank;
};

const std::map<std::string_view, Role> kRoles = {
    {"q", {&flashwright_arguments::q, 4}},
    {"k", {&flashwright_arguments::k, 4}},
    {"v", {&flashwright_arguments::v, 4}},
    {"o", {&flashwright_arguments::o, 4}},
    {"lse", {&flashwright_arguments::lse, 3}},
    {"alibi_slopes", {&flashwright_arguments::alibi_slopes, 2}},
    {"d_o", {&flashwright_arguments::d_o, 4}},
    {"d_lse", {&flashwright_arguments::d_lse, 3}},
    {"dq", {&flashwright_arguments::dq, 4}},
    {"dk", {&flashwright_arguments::dk, 4}},
    {"dv", {&flashwright_arguments::dv, 4}},
};

// The product of the dimensions before the last `inner`.
std::int64_t batch_of(const xla::Buffer& buffer, std::int64_t inner) {
  std::int64_t out = 1;
  for (std::int64_t i = 0; i < buffer.rank - inner; ++i) out *= buffer.dims[i];
  return out;
}

// A dense buffer as a tensor. The dimensions in front, more of them under vmap, are one: the batch.
struct BufferTensor {
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};
  flashwright_tensor view{};

  // Entry `part` of `parts` equal ones of the batch.
  void set(const xla::Buffer& buffer, std::int64_t rank, std::int32_t device, std::int32_t index,
           std::int64_t part, std::int64_t parts) {
    shape[0] = batch_of(buffer, rank - 1) / parts;
    for (std::int64_t i = 1; i < rank; ++i)
      shape[static_cast<std::size_t>(i)] = buffer.dims[buffer.rank - rank + i];
    view.type_code = buffer.type == xla::kBfloat16 ? 4 : 2;
    view.type_bits = buffer.type == xla::kFloat32 ? 32 : 16;
    view.type_lanes = 1;
    const std::int64_t bytes = shape[0] * shape[1] * shape[2] * shape[3] * (view.type_bits / 8);
    view.data = static_cast<char*>(buffer.data) + part * bytes;
    view.device_type = device;
    view.device_id = index;
    view.ndim = static_cast<std::int32_t>(rank);
    view.shape = shape.data();
  }
};

// Memory of one launch. On a GPU XLA orders its memory by the stream, so it may be given back when the launch is
// enqueued.
class Workspace {
 public:
  Workspace(const xla::CallFrame& frame, std::int32_t device, std::size_t bytes)
      : frame_(frame), cuda_(device == kCuda), bytes_(bytes) {
    if (bytes_ == 0) return;
    if (!cuda_) {
      address_ = ::operator new (bytes_, std::align_val_t{kAligned});
      return;
    }
    bytes_ += kAligned - kAlignedByXla;
    xla::MemoryAllocateArgs memory{sizeof memory, nullptr,       frame_.context,
                                   bytes_,        kAlignedByXla, nullptr};
    check_xla(frame_.api->memory_allocate(&memory));
    allocated_ = memory.data;
    const auto begin = reinterpret_cast<std::uintptr_t>(allocated_);
    address_ = reinterpret_cast<void*>((begin + kAligned - 1) / kAligned * kAligned);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (address_ == nullptr) return;
    if (!cuda_) {
      ::operator delete (address_, std::align_val_t{kAligned});
      return;
    }
    xla::MemoryFreeArgs memory{sizeof memory, nullptr, frame_.context, bytes_, allocated_};
    frame_.api->memory_free(&memory);
  }

  void* address() const { return address_; }

 private:
  // XLA refuses to align memory of a GPU to more than this.
  static constexpr std::size_t kAligned = 256, kAlignedByXla = 16;

  const xla::CallFrame& frame_;
  bool cuda_;
  std::size_t bytes_;
  void *allocated_ = nullptr, *address_ = nullptr;  // on a GPU the second lies in the first
};

// Calls use(name, buffer) for each of them; the names are parted by blanks.
template <typename Use>
void for_each(std::string_view names, const xla::Buffers& buffers, Use&& use) {
  for (std::int64_t i = 0; i < buffers.count; ++i) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(name.size() + 1, names.size()));
    use(name, *static_cast<const xla::Buffer*>(buffers.items[i]));
  }
}

class Call {
 public:
  Call(const xla::CallFrame& frame, std::int32_t device)
      : frame_(frame), device_(device), options_(options_of(frame.attributes)) {
    count_parts();
    if (device_ != kCuda) return;
    xla::OrdinalGetArgs ordinal{sizeof ordinal, nullptr, frame_.context, 0};
    check_xla(frame_.api->ordinal_get(&ordinal));
    index_ = ordinal.ordinal;
    if (frame_.stage != xla::Stage::execute) return;
    xla::StreamGetArgs stream{sizeof stream, nullptr, frame_.context, nullptr};
    check_xla(frame_.api->stream_get(&stream));
    stream_ = stream.stream;
  }

  // Gets the kernel, and launches it where it is time to.
  void run() {
    for (std::int64_t part = 0; part < parts_; ++part) {
      Part now;
      now.arguments.size = sizeof now.arguments;
      now.arguments.q_position = options_.q_position;
      now.arguments.has_q_position = options_.has_q_position ? 1 : 0;
      read(options_.operands, frame_.operands, part, now);
      read(options_.results, frame_.results, part, now);
      std::unique_ptr<BlockLists> blocks;
      if (!options_.block_sizes.empty())
        blocks = std::make_unique<BlockLists>(options_.block_sizes, now.lists);
      now.arguments.blocks = blocks == nullptr ? nullptr : blocks->get();
      const flashwright::Kernel kernel = kernel_for(now.arguments);
      if (frame_.stage == xla::Stage::execute) launch(kernel, now.arguments);
    }
  }

 private:
  struct Part {
    std::array<BufferTensor, 11> tensors;
    std::size_t used = 0;
    std::vector<std::uintptr_t> lists;
    flashwright_arguments arguments{};
  };

  // Under vmap a call may have many states of the random numbers, or more batch entries than the block lists have:
  // each part of the batch is then a launch of its own.
  void count_parts() {
    const std::int64_t of_lists = options_.block_sizes.empty() ? 1 : options_.block_sizes.at(4);
    for_each(options_.operands, frame_.operands,
             [&](std::string_view name, const xla::Buffer& buffer) {
               if (name == "rng_state") parts_ = batch_of(buffer, 1);
               if (name == "q" && of_lists > 1 && batch_of(buffer, 3) % of_lists == 0)
                 parts_ = batch_of(buffer, 3) / of_lists;
             });
  }

  void read(std::string_view names, const xla::Buffers& buffers, std::int64_t part, Part& out) {
    for_each(names, buffers, [&](std::string_view name, const xla::Buffer& buffer) {
      if (name == "blocks") {  // under vmap copies of them lie behind
        out.lists.push_back(reinterpret_cast<std::uintptr_t>(buffer.data));
      } else if (name == "rng_state") {
        out.arguments.rng_state = static_cast<const std::uint64_t*>(buffer.data) + 2 * part;
      } else {
        const Role& role = kRoles.at(name);
        BufferTensor& tensor = out.tensors.at(out.used++);
        tensor.set(buffer, role.rank, device_, index_, part, parts_);
        out.arguments.*role.field = &tensor.view;
      }
    });
  }

  flashwright::Kernel kernel_for(const flashwright_arguments& arguments) const {
    const std::int64_t *q = arguments.q->shape, *k = arguments.k->shape;
    const flashwright_shape shape{q[0], q[2], k[2], q[1], k[1]};
    const bool useful = shape.batch > 0 && shape.heads_q > 0 && shape.heads_kv > 0;
    std::string config = "{";
    config.append(options_.fields).append(",\"target\":");
    config.append(device_ == kCuda ? "\"cuda\"}" : "\"cpu\"}");
    flashwright_kernel* kernel = nullptr;
    flashwright::check(flashwright_get_kernel(nullptr, config.c_str(), useful ? &shape : nullptr,
                                              FLASHWRIGHT_COMPILE, &kernel));
    return flashwright::Kernel(kernel);
  }

  void launch(const flashwright::Kernel& kernel, const flashwright_arguments& arguments) const {
    std::size_t bytes = 0;
    flashwright::check(flashwright_kernel_workspace_bytes(kernel.get(), &arguments, &bytes));
    const Workspace workspace(frame_, device_, bytes);
    flashwright::check(
        flashwright_kernel_launch(kernel.get(), &arguments, workspace.address(), stream_));
  }

  const xla::CallFrame& frame_;
  std::int32_t device_, index_ = 0;
  Options options_;
  void* stream_ = nullptr;
  std::int64_t parts_ = 1;
};

xla::ErrorCode code_of(flashwright_status status) {
  switch (status) {
    case FLASHWRIGHT_BAD_ARGUMENT:
      return xla::ErrorCode::invalid_argument;
    case FLASHWRIGHT_UNSUPPORTED:
      return xla::ErrorCode::unimplemented;
    case FLASHWRIGHT_NOT_CACHED:
    case FLASHWRIGHT_CAPTURING:
      return xla::ErrorCode::failed_precondition;
    case FLASHWRIGHT_UNAVAILABLE:
      return xla::ErrorCode::unavailable;
    default:
      return xla::ErrorCode::internal;
  }
}

xla::Error* make_error(const xla::Api& api, xla::ErrorCode code, const std::string& message) {
  xla::ErrorCreateArgs args{sizeof args, nullptr, message.c_str(), code};
  return api.error_create(&args);
}

bool answer_metadata(const xla::CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != xla::kMetadataExtension)
    return false;
  xla::Metadata& out = *reinterpret_cast<xla::MetadataExtension*>(frame.extensions)->metadata;
  // XLA takes handlers of versions that it knows. What is used here is the same in all of them, so we say that of the
  // XLA that asks, or the oldest, where it does not introduce itself.
  int minor = xla::kOldestMinor;
  if (frame.api != nullptr && frame.api->version.major == xla::kMajor)
    minor = std::clamp(frame.api->version.minor, xla::kOldestMinor, xla::kNewestMinor);
  out.version.major = xla::kMajor;
  out.version.minor = minor;
  // Not compatible with command buffers: memory of a captured launch would have to outlive it.
  out.traits = 0;
  return true;
}

template <std::int32_t device>
xla::Error* handle(xla::CallFrame* frame) {
  if (answer_metadata(*frame)) return nullptr;
  try {
    Call(*frame, device).run();
    return nullptr;
  } catch (const XlaFailure& failure) {
    return failure.error;
  } catch (const flashwright::Failure& failure) {
    return make_error(*frame->api, code_of(failure.status), failure.message);
  } catch (const std::exception& error) {
    return make_error(*frame->api, xla::ErrorCode::internal, error.what());
  }
}

nb::capsule capsule(xla::Error* (*handler)(xla::CallFrame*)) {
  return nb::capsule(reinterpret_cast<const void*>(handler));
}

}  // namespace

void bind_xla_handler(nb::module_& module) {
  module.def(
      "xla_handler", [](bool cuda) { return capsule(cuda ? &handle<kCuda> : &handle<kCpu>); },
      nb::arg("cuda"),
      "A capsule with the handler for jax.ffi.register_ffi_target; flashwright.jax says with which "
      "attributes.");
}

}  // namespace fwpy
