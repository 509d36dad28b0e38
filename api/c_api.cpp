// The C interface: arguments in, exceptions to statuses, texts out. No logic of its own.
#include "flashwright/flashwright.h"

#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "api/arguments_c.hpp"
#include "api/devices.hpp"
#include "api/engine.hpp"
#include "api/reports.hpp"
#include "core/device_profiles.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "core/reference.hpp"
#include "core/version.hpp"
#include "generator/emit.hpp"
#include "tuner/bench.hpp"

namespace fw = flashwright;
using nlohmann::json;

struct flashwright_engine {
  fw::Engine engine;
};

namespace {

thread_local std::string last_message, last_detail;

// Runs the body of a function of the interface. No exception leaves it.
template <typename Body>
flashwright_status guarded(Body&& body) noexcept {
  try {
    body();
    return FLASHWRIGHT_OK;
  } catch (const fw::Error& error) {
    last_message = error.message;
    last_detail = error.detail;
    return static_cast<flashwright_status>(error.status);
  } catch (const std::bad_alloc&) {
    last_message = "out of host memory";
    last_detail.clear();
    return FLASHWRIGHT_INTERNAL;
  } catch (const std::exception& error) {
    last_message = std::string("internal error: ") + error.what();
    last_detail.clear();
    return FLASHWRIGHT_INTERNAL;
  }
}

fw::Engine& engine_of(flashwright_engine* engine) {
  return engine == nullptr ? fw::default_engine() : engine->engine;
}

template <typename Pointer>
Pointer required(Pointer pointer, const char* name) {
  if (pointer == nullptr)
    throw fw::Error(fw::Status::bad_argument,
                    fmt::format("{}: given a null pointer; expected an address", name));
  return pointer;
}

// A copy that the caller frees.
char* copy_out(std::string_view text) {
  auto* const out = static_cast<char*>(std::malloc(text.size() + 1));
  if (out == nullptr) throw std::bad_alloc();
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
  return out;
}

constexpr std::int64_t kMaxHeads = std::int64_t{1} << 31;  // of all batch entries

std::optional<fw::Shape> shape_of(const flashwright_shape* shape) {
  if (shape == nullptr) return std::nullopt;
  const fw::Shape out{shape->batch, shape->heads_q, shape->heads_kv, shape->seq_q, shape->seq_kv};
  if (out.batch < 1 || out.heads_q < 1 || out.heads_kv < 1 || out.seq_q < 0 || out.seq_kv < 0 ||
      out.heads_q % out.heads_kv != 0 || out.batch > kMaxHeads ||
      out.heads_q > kMaxHeads / out.batch || out.seq_q >= (std::int64_t{1} << 30) ||
      out.seq_kv >= (std::int64_t{1} << 30))
    throw fw::Error(
        fw::Status::bad_argument,
        fmt::format(
            "shape: given {}; expected at least one batch entry and head, query heads divisible by "
            "key heads, at most {} heads in all, and lengths below {}",
            to_string(out), kMaxHeads, std::int64_t{1} << 30));
  return out;
}

const fw::Shape* pointer_to(const std::optional<fw::Shape>& shape) {
  return shape ? &*shape : nullptr;
}

fw::Effort effort_of(flashwright_effort effort) {
  if (effort < FLASHWRIGHT_LOADED || effort > FLASHWRIGHT_TUNE)
    throw fw::Error(
        fw::Status::bad_argument,
        fmt::format("effort: given {}; expected FLASHWRIGHT_LOADED .. FLASHWRIGHT_TUNE", effort));
  return static_cast<fw::Effort>(effort);
}

const fw::Kernel& kernel_of(const flashwright_kernel* kernel) {
  return *reinterpret_cast<const fw::Kernel*>(required(kernel, "kernel"));
}

// Reads a JSON object of options; unknown names are errors.
json options_of(const char* text, std::initializer_list<const char*> known) {
  if (text == nullptr || *text == '\0') return json::object();
  json object;
  try {
    object = json::parse(text);
  } catch (const json::exception& error) {
    throw fw::Error(fw::Status::bad_argument, fmt::format("options: not JSON: {}", error.what()));
  }
  if (!object.is_object())
    throw fw::Error(fw::Status::bad_argument,
                    fmt::format("options: given {}; expected a JSON object", object.dump()));
  for (const auto& [name, value] : object.items())
    if (std::find_if(known.begin(), known.end(),
                     [&name = name](const char* k) { return name == k; }) == known.end())
      throw fw::Error(
          fw::Status::bad_argument,
          fmt::format("options: unknown field '{}'; known: {}", name, fmt::join(known, ", ")));
  return object;
}

double number_option(const json& options, const char* name, double fallback) {
  if (!options.contains(name)) return fallback;
  const json& value = options[name];
  if (!value.is_number() || !(value.get<double>() >= 0))
    throw fw::Error(
        fw::Status::bad_argument,
        fmt::format("options: {} is {}; allowed: a number from 0 on", name, value.dump()));
  return value.get<double>();
}

fw::DeviceInfo device_of(const char* target) {
  return fw::device_for(target == nullptr ? "" : target);
}

}  // namespace

extern "C" {

const char* flashwright_version(void) { return fw::kVersion; }

int32_t flashwright_abi_version(void) { return 1; }

const char* flashwright_build_info(void) {
  static const std::string text = fmt::format("flashwright {}, {}", fw::kVersion, fw::build_info());
  return text.c_str();
}

const char* flashwright_last_error(void) { return last_message.c_str(); }
const char* flashwright_last_error_detail(void) { return last_detail.c_str(); }
void flashwright_free(char* text) { std::free(text); }

flashwright_status flashwright_engine_create(const char* options, flashwright_engine** engine) {
  return guarded([&] {
    required(engine, "engine");
    auto parsed = fw::engine_options_from_json(options == nullptr ? "" : options);
    *engine = new flashwright_engine{fw::Engine(std::move(parsed))};
  });
}

flashwright_engine* flashwright_engine_default(void) { return nullptr; }

void flashwright_engine_release(flashwright_engine* engine) { delete engine; }

flashwright_status flashwright_supports(flashwright_engine* engine, const char* config,
                                        char** reasons) {
  return guarded([&] {
    required(reasons, "reasons");
    // Asks the engine for its option alone: the one of the process need not be made for it.
    const fw::DeviceInfo* const named = engine == nullptr ? nullptr : engine->engine.device();
    *reasons = copy_out(json(fw::reasons_against_config(required(config, "config"), named)).dump());
  });
}

flashwright_status flashwright_normalise(flashwright_engine* engine, const char* config,
                                         char** normalised) {
  return guarded([&] {
    required(normalised, "normalised");
    *normalised = copy_out(fw::normalised(engine_of(engine), required(config, "config")));
  });
}

flashwright_status flashwright_explain(flashwright_engine* engine, const char* config,
                                       const flashwright_shape* shape, char** explanation) {
  return guarded([&] {
    required(explanation, "explanation");
    const auto wanted = shape_of(shape);
    *explanation =
        copy_out(fw::explain(engine_of(engine), required(config, "config"), pointer_to(wanted)));
  });
}

flashwright_status flashwright_get_kernel(flashwright_engine* engine, const char* config,
                                          const flashwright_shape* shape, flashwright_effort effort,
                                          flashwright_kernel** kernel) {
  return guarded([&] {
    required(kernel, "kernel");
    const auto wanted = shape_of(shape);
    const fw::Kernel* const found = engine_of(engine).get_kernel(
        required(config, "config"), pointer_to(wanted), effort_of(effort));
    *kernel = reinterpret_cast<flashwright_kernel*>(const_cast<fw::Kernel*>(found));
  });
}

void flashwright_kernel_retain(flashwright_kernel* kernel) {
  if (kernel != nullptr) fw::retain(reinterpret_cast<const fw::Kernel*>(kernel));
}

void flashwright_kernel_release(flashwright_kernel* kernel) {
  if (kernel != nullptr) fw::release(reinterpret_cast<const fw::Kernel*>(kernel));
}

flashwright_status flashwright_prepare(flashwright_engine* engine, const char* configs,
                                       flashwright_effort effort, flashwright_progress progress,
                                       void* user, char** report) {
  return guarded([&] {
    required(report, "report");
    const std::string text = required(configs, "configs");
    const fw::Effort how_far = effort_of(effort);
    const fw::PrepareProgress tell = [&](std::int64_t done, std::int64_t total,
                                         const std::string& event) {
      return progress == nullptr || progress(user, done, total, event.c_str()) == 0;
    };
    *report = copy_out(engine_of(engine).prepare(text, how_far, tell));
  });
}

flashwright_status flashwright_kernel_device(const flashwright_kernel* kernel, int32_t* device_type,
                                             int32_t* device_id) {
  return guarded([&] {
    required(device_type, "device_type");
    required(device_id, "device_id");
    const fw::Code& code = *kernel_of(kernel).code;
    *device_type = code.problem.target.backend == fw::BackendKind::cpu ? 1 : 2;
    *device_id = code.device.index;
  });
}

flashwright_status flashwright_kernel_workspace_bytes(const flashwright_kernel* kernel,
                                                      const flashwright_arguments* arguments,
                                                      size_t* bytes) {
  return guarded([&] {
    required(bytes, "bytes");
    const fw::Kernel& k = kernel_of(kernel);
    const fw::ResolvedArguments resolved =
        fw::resolve(k.config, k.code->problem, fw::arguments_of(required(arguments, "arguments")));
    *bytes = k.code->loaded->workspace_bytes(resolved);
  });
}

flashwright_status flashwright_kernel_launch(const flashwright_kernel* kernel,
                                             const flashwright_arguments* arguments,
                                             void* workspace, void* stream) {
  return guarded([&] {
    const fw::Kernel& k = kernel_of(kernel);
    const fw::ResolvedArguments resolved =
        fw::resolve(k.config, k.code->problem, fw::arguments_of(required(arguments, "arguments")));
    k.code->loaded->launch(resolved, workspace, stream);
  });
}

const char* flashwright_kernel_source(const flashwright_kernel* kernel) {
  return kernel == nullptr ? "" : kernel_of(kernel).code->built.source.text.c_str();
}

const void* flashwright_kernel_binary(const flashwright_kernel* kernel, size_t* bytes) {
  if (kernel == nullptr) return nullptr;
  const std::string& binary = kernel_of(kernel).code->built.binary.bytes;
  if (bytes != nullptr) *bytes = binary.size();
  return binary.data();
}

flashwright_status flashwright_kernel_describe(const flashwright_kernel* kernel,
                                               char** description) {
  return guarded([&] {
    required(description, "description");
    *description = copy_out(fw::describe(kernel_of(kernel)));
  });
}

flashwright_status flashwright_emit(flashwright_engine* engine, const char* config,
                                    const flashwright_shape* shape, char** text) {
  return guarded([&] {
    required(text, "text");
    const auto wanted = shape_of(shape);
    const fw::Request request = engine_of(engine).prepare_request(required(config, "config"));
    const fw::Selection selection =
        engine_of(engine).select(request, wanted.value_or(fw::typical_shape()));
    *text = copy_out(request.family->emit(request.problem, selection.schedule).text);
  });
}

flashwright_status flashwright_compile(flashwright_engine* engine, const char* config,
                                       const flashwright_shape* shape, char** report, char** binary,
                                       size_t* binary_bytes) {
  return guarded([&] {
    required(report, "report");
    const auto wanted = shape_of(shape);
    const fw::Request request = engine_of(engine).prepare_request(required(config, "config"));
    const fw::Selection selection =
        engine_of(engine).select(request, wanted.value_or(fw::typical_shape()));
    const fw::Built built = engine_of(engine).compile(request, selection.schedule);
    std::unique_ptr<char, decltype(&std::free)> bytes(nullptr, &std::free);
    if (binary != nullptr) bytes.reset(copy_out(built.binary.bytes));
    *report = copy_out(fw::compile_report(request, selection, built));
    if (binary != nullptr) *binary = bytes.release();
    if (binary_bytes != nullptr) *binary_bytes = built.binary.bytes.size();
  });
}

flashwright_status flashwright_tune(flashwright_engine* engine, const char* config,
                                    const flashwright_shape* shape, const char* options,
                                    flashwright_progress progress, void* user, char** report) {
  return guarded([&] {
    required(report, "report");
    const auto wanted = shape_of(shape);
    const json object = options_of(options, {"budget_s", "device", "seed"});
    fw::TuneOptions how;
    how.budget_s = number_option(object, "budget_s", 60);
    how.seed = static_cast<std::uint64_t>(number_option(object, "seed", 1));
    if (progress != nullptr)
      how.progress = [=](std::int64_t done, std::int64_t total, const std::string& event) {
        return progress(user, done, total, event.c_str()) == 0;
      };
    std::optional<fw::DeviceInfo> device;
    if (object.contains("device")) device = fw::device_from_option(object["device"].dump());
    const fw::DeviceInfo* const replaced = device ? &*device : nullptr;
    const fw::Shape where = wanted.value_or(fw::typical_shape());
    const fw::TuneReport done =
        engine_of(engine).tune(required(config, "config"), where, replaced, std::move(how));
    *report =
        copy_out(fw::tune_report(engine_of(engine).prepare_request(config, replaced), where, done));
  });
}

flashwright_status flashwright_bench(flashwright_engine* engine, const char* config,
                                     const flashwright_shape* shape, const char* options,
                                     char** report) {
  return guarded([&] {
    required(report, "report");
    const auto wanted = shape_of(shape);
    const json object = options_of(options, {"against", "seconds"});
    const bool against = object.contains("against") && object["against"] != "";
    if (against && object["against"] != "unfused")
      throw fw::Error(
          fw::Status::bad_argument,
          fmt::format("options: against is {}; allowed: \"unfused\"", object["against"].dump()));
    const fw::BenchReport done =
        engine_of(engine).bench(required(config, "config"), wanted.value_or(fw::typical_shape()),
                                against, number_option(object, "seconds", 2));
    *report = copy_out(fw::to_json(done));
  });
}

flashwright_status flashwright_check(const char* config, const flashwright_arguments* arguments,
                                     int64_t max_rows, char** report) {
  return guarded([&] {
    required(report, "report");
    const fw::Config parsed = fw::config_from_json(required(config, "config"));
    const fw::Problem problem = fw::normalise(parsed, {fw::BackendKind::cpu, "host"});
    const fw::Arguments args = fw::arguments_of(required(arguments, "arguments"));
    fw::resolve(parsed, problem, args);  // the same checks as a launch
    *report = copy_out(problem.direction == fw::Direction::backward
                           ? fw::check_gradients_report(parsed, problem, args, max_rows)
                           : fw::check_report(fw::judge(parsed, problem, args, max_rows), args));
  });
}

flashwright_status flashwright_doctor(flashwright_engine* engine, char** report) {
  return guarded([&] {
    required(report, "report");
    *report = copy_out(fw::doctor(engine_of(engine)));
  });
}

flashwright_status flashwright_cache(flashwright_engine* engine, const char* operation,
                                     const char* argument, char** report) {
  return guarded([&] {
    required(report, "report");
    *report = copy_out(fw::cache_report(engine_of(engine), required(operation, "operation"),
                                        argument == nullptr ? "" : argument));
  });
}

flashwright_status flashwright_blocks_from_mask(const uint8_t* keep, int64_t batch, int64_t heads,
                                                int64_t seq_q, int64_t seq_kv, int64_t block_q,
                                                int64_t block_kv, flashwright_blocks** blocks) {
  return guarded([&] {
    required(blocks, "blocks");
    if (seq_q > 0 && seq_kv > 0) required(keep, "keep");
    *blocks = fw::make_blocks(
        fw::block_mask_from_dense(keep, batch, heads, seq_q, seq_kv, block_q, block_kv));
  });
}

flashwright_status flashwright_blocks_transpose(const flashwright_blocks* lists,
                                                flashwright_blocks** blocks) {
  return guarded([&] {
    required(blocks, "blocks");
    *blocks = fw::make_blocks(fw::transposed_lists(fw::lists_of(*required(lists, "lists"))));
  });
}

void flashwright_blocks_free(flashwright_blocks* blocks) { fw::free_blocks(blocks); }

flashwright_status flashwright_allocate(flashwright_engine*, const char* target, size_t bytes,
                                        void** memory) {
  return guarded([&] {
    required(memory, "memory");
    const fw::DeviceInfo device = device_of(target);
    *memory = fw::backend_for(device.target.backend).allocate(device.index, bytes);
  });
}

flashwright_status flashwright_deallocate(flashwright_engine*, const char* target, void* memory) {
  return guarded([&] {
    const fw::DeviceInfo device = device_of(target);
    fw::backend_for(device.target.backend).deallocate(device.index, memory);
  });
}

flashwright_status flashwright_copy_to_device(flashwright_engine*, const char* target, void* memory,
                                              const void* host, size_t bytes) {
  return guarded([&] {
    if (bytes == 0) return;
    required(memory, "memory");
    required(host, "host");
    const fw::DeviceInfo device = device_of(target);
    fw::backend_for(device.target.backend).copy_in(device.index, memory, host, bytes);
  });
}

flashwright_status flashwright_copy_to_host(flashwright_engine*, const char* target, void* host,
                                            const void* memory, size_t bytes) {
  return guarded([&] {
    if (bytes == 0) return;
    required(host, "host");
    required(memory, "memory");
    const fw::DeviceInfo device = device_of(target);
    fw::backend_for(device.target.backend).copy_out(device.index, host, memory, bytes);
  });
}

flashwright_status flashwright_synchronize(flashwright_engine*, const char* target, void* stream) {
  return guarded([&] {
    const fw::DeviceInfo device = device_of(target);
    fw::backend_for(device.target.backend).synchronize(device.index, stream);
  });
}

void flashwright_set_log(flashwright_log log, void* user, int32_t level) {
  if (log == nullptr) {
    fw::set_log_sink({});
  } else {
    fw::set_log_sink([log, user](fw::LogLevel line_level, const std::string& line) {
      log(user, static_cast<int32_t>(line_level), line.c_str());
    });
  }
  fw::set_log_level(static_cast<fw::LogLevel>(level));
}

flashwright_status flashwright_set_executor(flashwright_engine*,
                                            const flashwright_executor* executor) {
  return guarded([&] {
    fw::Backend& cpu = fw::backend_for(fw::BackendKind::cpu);
    if (executor == nullptr) return cpu.set_executor(nullptr);
    if (executor->concurrency < 1 || executor->parallel == nullptr)
      throw fw::Error(
          fw::Status::bad_argument,
          fmt::format("executor: given concurrency {}; expected at least 1 and a function",
                      executor->concurrency));
    const fw::Executor own = {executor->concurrency, executor->parallel, executor->self};
    cpu.set_executor(&own);
  });
}

}  // extern "C"
