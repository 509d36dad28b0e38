#include "kernel.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <array>
#include <memory>
#include <new>

#include "errors.hpp"

namespace fwpy {
namespace {

constexpr std::align_val_t kWorkspaceAlignment{256};

using ShapeTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

struct AlignedDelete {
  void operator()(char* memory) const { ::operator delete(memory, kWorkspaceAlignment); }
};

// What a workspace has to live on until the launch is enqueued.
struct Workspace {
  void* address = nullptr;
  nb::object owner;
  std::unique_ptr<char, AlignedDelete> memory;
};

Workspace make_workspace(std::size_t bytes, bool cuda, nb::handle given) {
  Workspace out;
  if (bytes == 0) return out;
  if (PyCallable_Check(given.ptr()) != 0) {
    const nb::tuple made = nb::cast<nb::tuple>(given(bytes));
    out.address = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(made[0]));
    out.owner = made[1];
  } else if (!given.is_none()) {
    out.address = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(given));
  } else if (cuda) {
    bad_value("workspace", "None",
              std::to_string(bytes) + " bytes of device memory, on a multiple of 256");
  } else {
    out.memory.reset(static_cast<char*>(::operator new(bytes, kWorkspaceAlignment)));
    out.address = out.memory.get();
  }
  return out;
}

std::size_t workspace_bytes(const flashwright::Kernel& kernel, const Arguments& arguments) {
  std::size_t bytes = 0;
  flashwright::check(flashwright_kernel_workspace_bytes(kernel.get(), &arguments.get(), &bytes));
  return bytes;
}

// Sizes that a kernel can be fast for; no sense for an empty tensor or heads that do not fit.
std::optional<flashwright_shape> shape_of(const Arguments& arguments) {
  const Tensor &q = arguments.q(), &k = arguments.k();
  const flashwright_shape out{q.extent(0), q.extent(2), k.extent(2), q.extent(1), k.extent(1)};
  if (out.batch < 1 || out.heads_q < 1 || out.heads_kv < 1 || out.heads_q % out.heads_kv != 0)
    return std::nullopt;
  return out;
}

void require_rank_4(const char* name, const Tensor& tensor) {
  if (tensor.get()->ndim != 4)
    bad_value(name, "rank " + std::to_string(tensor.get()->ndim),
              "rank 4: (batch, seq, heads, dim)");
}

std::tuple<std::string, int> device(const flashwright::Kernel& kernel) {
  const auto where = kernel.device();
  return {where.cuda ? "cuda" : "cpu", where.index};
}

nb::bytes binary(const flashwright::Kernel& kernel) {
  const auto bytes = kernel.binary();
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

nb::object describe(const flashwright::Kernel& kernel) {
  char* text = nullptr;
  flashwright::check(flashwright_kernel_describe(kernel.get(), &text));
  return loads(text);
}

}  // namespace

flashwright::Kernel get_kernel(const std::string& config, const flashwright_shape* shape,
                               std::int32_t effort) {
  flashwright_kernel* kernel = nullptr;
  flashwright_status status = FLASHWRIGHT_OK;
  {
    const nb::gil_scoped_release released;
    status = flashwright_get_kernel(nullptr, config.c_str(), shape, effort, &kernel);
  }
  flashwright::check(status);
  return flashwright::Kernel(kernel);
}

void launch(const flashwright::Kernel& kernel, const Arguments& arguments, std::uintptr_t stream,
            nb::handle given) {
  const bool cuda = is_cuda(*arguments.q().get());
  const Workspace workspace = make_workspace(workspace_bytes(kernel, arguments), cuda, given);
  flashwright_status status = FLASHWRIGHT_OK;
  {
    const nb::gil_scoped_release released;
    status = flashwright_kernel_launch(kernel.get(), &arguments.get(), workspace.address,
                                       reinterpret_cast<void*>(stream));
  }
  flashwright::check(status);
}

const std::string& Request::text_for(const Arguments& arguments) {
  require_rank_4("q", arguments.q());
  require_rank_4("k", arguments.k());
  require_rank_4("v", arguments.v());
  const flashwright_tensor& q = *arguments.q().get();
  const auto dim = static_cast<std::uint64_t>(q.shape[3]);
  const auto dim_v = static_cast<std::uint64_t>(arguments.v().extent(3));
  const std::uint64_t kind = (q.type_code == 4    ? 1
                              : q.type_bits == 32 ? 2
                                                  : 0) +
                             (is_cuda(q) ? 4 : 0);
  const std::uint64_t key = kind << 60 | (dim & 0x3fffffff) << 30 | (dim_v & 0x3fffffff);
  const std::scoped_lock lock(mutex_);
  const auto found = texts_.find(key);
  if (found != texts_.end()) return found->second;
  constexpr std::array<const char*, 3> kTypes = {"fp16", "bf16", "fp32"};
  return texts_[key] = "{" + fields_ + (fields_.empty() ? "" : ",") + "\"dtype\":\"" +
                       kTypes[kind & 3] + "\",\"head_dim\":" + std::to_string(dim) +
                       ",\"head_dim_v\":" + std::to_string(dim_v) + ",\"target\":\"" +
                       (is_cuda(q) ? "cuda" : "cpu") + "\"}";
}

flashwright::Kernel Request::kernel(const Arguments& arguments, std::int32_t effort) {
  const std::string& text = text_for(arguments);
  const auto shape = shape_of(arguments);
  return get_kernel(text, shape ? &*shape : nullptr, effort);
}

void Request::launch(const Arguments& arguments, std::int32_t effort, nb::handle stream,
                     nb::handle workspace) {
  const Tensor& q = arguments.q();
  std::uintptr_t on = 0;
  if (!stream.is_none()) {
    on = nb::cast<std::uintptr_t>(stream);
  } else if (is_cuda(*q.get())) {
    if (q.exchange() == nullptr) bad_value("stream", "None", "the address of a stream");
    on = current_stream(*q.exchange(), *q.get());
  }
  fwpy::launch(kernel(arguments, effort), arguments, on, workspace);
}

void bind_kernel(nb::module_& module) {
  using flashwright::Kernel;
  nb::class_<Kernel>(module, "Kernel", R"(A compiled attention kernel, loaded on its device.

It serves any batch, head counts, lengths and strides. Made by flashwright.get_kernel; it may be launched from
any thread.)")
      .def(
          "launch", &launch, nb::arg("arguments"), nb::arg("stream") = 0,
          nb::arg("workspace") = nb::none(),
          R"(Enqueues the kernel on a stream (an address; 0: the default stream), or runs it on the CPU.

workspace: an address, or a function (bytes) -> (address, owner) that is called when the launch needs any. On the
CPU it may be left out.)")
      .def("workspace_bytes", &workspace_bytes, nb::arg("arguments"),
           "Bytes that a launch with these arguments needs besides its tensors.")
      .def_prop_ro("device", &device, "('cpu' or 'cuda', index)")
      .def_prop_ro("source", &Kernel::source, "The emitted text: CUDA C++ or LLVM IR.")
      .def_prop_ro("binary", &binary, "The machine code: cubin, PTX or object file.")
      .def("describe", &describe,
           "Problem, schedule, entries with grid and workspace rules, resources: as a dict.");
  nb::class_<Request>(module, "Request",
                      R"(The part of a Config that the tensors of a call do not say.

Request(fields): the inside of a JSON object, without dtype, head_dim, head_dim_v and target.)")
      .def(nb::init<std::string>(), nb::arg("fields"))
      .def("config", &Request::config, nb::arg("arguments"), "The whole Config as JSON text.")
      .def("kernel", &Request::kernel, nb::arg("arguments"),
           nb::arg("effort") = std::int32_t{FLASHWRIGHT_COMPILE},
           "The kernel for these arguments; effort: 0 loaded, 1 cached, 2 compile, 3 tune.")
      .def("launch", &Request::launch, nb::arg("arguments"),
           nb::arg("effort") = std::int32_t{FLASHWRIGHT_COMPILE}, nb::arg("stream") = nb::none(),
           nb::arg("workspace") = nb::none(),
           R"(kernel(arguments, effort).launch(arguments, stream, workspace) in one call.

stream: None for the current stream of PyTorch, where q is a tensor of a type that use_exchange knows.)");
  module.def(
      "get_kernel",
      [](const std::string& config, const std::optional<ShapeTuple>& shape, std::int32_t effort) {
        if (!shape) return get_kernel(config, nullptr, effort);
        const auto [batch, heads_q, heads_kv, seq_q, seq_kv] = *shape;
        const flashwright_shape wanted{batch, heads_q, heads_kv, seq_q, seq_kv};
        return get_kernel(config, &wanted, effort);
      },
      nb::arg("config"), nb::arg("shape").none(), nb::arg("effort"));
}

}  // namespace fwpy
