#include "questions.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <optional>

#include "errors.hpp"

namespace fwpy {
namespace {

using Text = const std::string&;
using ShapeTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
using MaybeShape = std::optional<ShapeTuple>;

// A shape in the form of the C interface, or null.
class ShapeView {
 public:
  explicit ShapeView(const MaybeShape& shape) : given_(shape.has_value()) {
    if (!given_) return;
    const auto [batch, heads_q, heads_kv, seq_q, seq_kv] = *shape;
    view_ = {batch, heads_q, heads_kv, seq_q, seq_kv};
  }
  const flashwright_shape* get() const { return given_ ? &view_ : nullptr; }

 private:
  bool given_;
  flashwright_shape view_{};
};

// Calls a function of the C interface without the GIL; its last argument receives a text.
template <typename Function, typename... Arguments>
char* ask(Function function, Arguments... arguments) {
  char* text = nullptr;
  flashwright_status status = FLASHWRIGHT_OK;
  {
    const nb::gil_scoped_release released;
    status = function(arguments..., &text);
  }
  flashwright::check(status);
  return text;
}

// A Python function (done, total, event) -> whether to stop, as a progress callback. What it raises stops the work
// and is raised again; Ctrl-C too.
class Progress {
 public:
  explicit Progress(nb::object function) : function_(std::move(function)) {}

  static std::int32_t call(void* self, std::int64_t done, std::int64_t total, const char* event) {
    auto& progress = *static_cast<Progress*>(self);
    const nb::gil_scoped_acquire acquired;
    if (progress.error_) return 1;
    try {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (progress.function_.is_none()) return 0;
      const nb::object parsed = nb::module_::import_("json").attr("loads")(event);
      return nb::cast<bool>(nb::bool_(progress.function_(done, total, parsed))) ? 1 : 0;
    } catch (nb::python_error& error) {
      progress.error_.emplace(std::move(error));
      return 1;
    }
  }
  void raise_again() {
    if (error_) throw nb::python_error(std::move(*error_));
  }

 private:
  nb::object function_;
  std::optional<nb::python_error> error_;
};

nb::object tune(Text config, const MaybeShape& shape, Text options, nb::object function) {
  const ShapeView wanted(shape);
  Progress progress(std::move(function));
  char* const text = ask(flashwright_tune, nullptr, config.c_str(), wanted.get(), options.c_str(),
                         &Progress::call, static_cast<void*>(&progress));
  const nb::object report = loads(text);
  progress.raise_again();
  return report;
}

nb::object prepare(Text configs, std::int32_t effort, nb::object function) {
  Progress progress(std::move(function));
  char* text = nullptr;
  flashwright_status status = FLASHWRIGHT_OK;
  {
    const nb::gil_scoped_release released;
    status =
        flashwright_prepare(nullptr, configs.c_str(), effort, &Progress::call, &progress, &text);
  }
  progress.raise_again();  // goes before "interrupted"
  flashwright::check(status);
  return loads(text);
}

nb::tuple compile(Text config, const MaybeShape& shape) {
  const ShapeView wanted(shape);
  char *report = nullptr, *binary = nullptr;
  std::size_t bytes = 0;
  flashwright_status status = FLASHWRIGHT_OK;
  {
    const nb::gil_scoped_release released;
    status = flashwright_compile(nullptr, config.c_str(), wanted.get(), &report, &binary, &bytes);
  }
  flashwright::check(status);
  const nb::bytes code(binary, bytes);
  flashwright_free(binary);
  return nb::make_tuple(loads(report), code);
}

nb::object* log_function = nullptr;  // changed by set_log alone, under the GIL

void log_line(void*, std::int32_t level, const char* line) {
  if (Py_IsInitialized() == 0) return;
  const nb::gil_scoped_acquire acquired;
  if (log_function == nullptr) return;
  try {
    const nb::object function = *log_function;
    function(level, line);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("flashwright: log");
  }
}

void set_log(nb::object function) {
  nb::object* const before = log_function;
  log_function = function.is_none() ? nullptr : new nb::object(std::move(function));
  constexpr int kDebug = 3;  // logging.Logger has levels of its own
  {
    const nb::gil_scoped_release released;
    flashwright_set_log(log_function == nullptr ? nullptr : &log_line, nullptr, kDebug);
  }
  delete before;
}

}  // namespace

void bind_questions(nb::module_& module) {
  module.def("version", &flashwright_version);
  module.def("build_info", &flashwright_build_info);
  module.def(
      "supports",
      [](Text config) { return loads(ask(flashwright_supports, nullptr, config.c_str())); },
      nb::arg("config"));
  module.def(
      "normalise",
      [](Text config) { return loads(ask(flashwright_normalise, nullptr, config.c_str())); },
      nb::arg("config"));
  module.def(
      "explain",
      [](Text config, const MaybeShape& shape) {
        const ShapeView wanted(shape);
        return loads(ask(flashwright_explain, nullptr, config.c_str(), wanted.get()));
      },
      nb::arg("config"), nb::arg("shape").none());
  module.def(
      "emit",
      [](Text config, const MaybeShape& shape) {
        const ShapeView wanted(shape);
        return flashwright::take(ask(flashwright_emit, nullptr, config.c_str(), wanted.get()));
      },
      nb::arg("config"), nb::arg("shape").none());
  module.def("compile", &compile, nb::arg("config"), nb::arg("shape").none());
  module.def("tune", &tune, nb::arg("config"), nb::arg("shape").none(), nb::arg("options"),
             nb::arg("progress").none());
  module.def("prepare", &prepare, nb::arg("configs"), nb::arg("effort"),
             nb::arg("progress").none());
  module.def(
      "bench",
      [](Text config, const MaybeShape& shape, Text options) {
        const ShapeView wanted(shape);
        return loads(
            ask(flashwright_bench, nullptr, config.c_str(), wanted.get(), options.c_str()));
      },
      nb::arg("config"), nb::arg("shape").none(), nb::arg("options"));
  module.def("doctor", [] { return loads(ask(flashwright_doctor, nullptr)); });
  module.def(
      "cache",
      [](Text operation, Text argument) {
        return loads(ask(flashwright_cache, nullptr, operation.c_str(), argument.c_str()));
      },
      nb::arg("operation"), nb::arg("argument"));
  module.def("set_log", &set_log, nb::arg("function").none());
}

}  // namespace fwpy
