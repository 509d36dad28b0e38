// The text machinery against the compiler's own preprocessor: the emitted file, and the template as it stands with
// the options defined and what is printed given as headers, must become the same machine code.
#include <cstring>
#include <mutex>

#include "generator/compose.hpp"
#include "generator/sm80/emit_sm80.hpp"
#include "generator/sm90/emit_sm90.hpp"
#include "generator/template_store.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "tests/generator/nvrtc_runs.hpp"
#include "tests/support/testing.hpp"

using namespace flashwright;
using namespace flashwright::testing;

namespace {

Emission emission_of(const NamedKernel& kernel) {
  return kernel.family->name() == "sm90" ? sm90::emission(kernel.problem, kernel.schedule)
                                         : sm80::emission(kernel.problem, kernel.schedule);
}

constexpr int kRandom = 30, kRandomBackward = 10;

Options options_of(const NamedKernel& kernel) { return emission_of(kernel).options; }

std::string compile_emitted(const NamedKernel& kernel, const Target& target) {
  Source source = kernel.emit();
  source.target = target;
  return nvrtc::compile(source).bytes;
}

std::string compile_template(const NamedKernel& kernel, const Target& target,
                             const Options& options) {
  const Emission emission = emission_of(kernel);
  Source source;
  source.target = target;
  source.name = emission.name;
  source.text = template_text(emission.path);
  source.plan = emission.plan;
  nvrtc::CompileOptions how;
  for (const auto& [name, value] : options)
    how.defines.push_back(name + "=" + std::to_string(value));
  for (const std::string& path : template_paths())
    if (path != emission.path) how.headers.push_back({path, template_text(path)});
  for (const auto& [name, lines] : emission.printed) how.headers.push_back({name, join(lines)});
  return nvrtc::compile(source, how).bytes;
}

// PTX without its named constants: the compiler gives each a place in memory, used or not, and the emitted file has
// those that are used.
std::string without_constants(const std::string& ptx) {
  std::string out;
  std::istringstream in(ptx);
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with(".global .align")) out += line + "\n";
  return out;
}

Target ptx_target(const Target& target) {
  return {target.backend, "compute_" + target.arch.substr(3)};
}

template <typename T>
T read(const std::string& bytes, std::uint64_t at) {
  T value{};
  if (at + sizeof value > bytes.size()) throw Error(Status::internal, "a cubin is cut short");
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The sections of a cubin that hold instructions, and their register counts: an ELF file of 64 bits.
std::string machine_code(const std::string& cubin) {
  if (!cubin.starts_with("\177ELF\002")) throw Error(Status::internal, "no ELF file of 64 bits");
  const auto headers = read<std::uint64_t>(cubin, 0x28);
  const auto size = read<std::uint16_t>(cubin, 0x3A), count = read<std::uint16_t>(cubin, 0x3C);
  const auto field = [&](std::uint64_t section, std::uint64_t at) {
    return read<std::uint64_t>(cubin, headers + section * size + at);
  };
  const std::uint64_t names = field(read<std::uint16_t>(cubin, 0x3E), 0x18);
  std::string code;
  for (std::uint16_t i = 0; i < count; ++i) {
    const std::string name =
        cubin.c_str() + names + read<std::uint32_t>(cubin, headers + i * std::uint64_t{size});
    if (!name.starts_with(".text.")) continue;
    const auto registers =
        read<std::uint32_t>(cubin, headers + i * std::uint64_t{size} + 0x2C) >> 24;
    code += name + " " + std::to_string(registers) + "\n" +
            cubin.substr(field(i, 0x18), field(i, 0x20));
  }
  return code;
}

template <typename Compare>
void check_kernels(const std::vector<NamedKernel>& kernels, const Compare& equal) {
  std::mutex mutex;
  std::string differing;
  on_all_cores(kernels.size(), [&](std::size_t i) {
    std::string fault;
    try {
      if (!equal(kernels[i])) fault = "other code";
    } catch (const Error& error) {
      fault = error.message + "\n" + error.detail.substr(0, 1000);
    }
    const std::scoped_lock lock(mutex);
    if (!fault.empty()) differing += "\n" + kernels[i].name + ": " + fault;
  });
  INFO(differing);
  CHECK(differing.empty());
}

bool same_ptx(const NamedKernel& kernel) {
  const Target target = ptx_target(kernel.problem.target);
  return without_constants(compile_emitted(kernel, target)) ==
         without_constants(compile_template(kernel, target, options_of(kernel)));
}

// Machine code reads the address of a variable from a table in which the named constants have places,
// too: of a kernel with a variable the PTX is compared.
bool same_machine_code(const NamedKernel& kernel) {
  if (kernel.emit().text.find("\n__device__ Counter counters") != std::string::npos)
    return same_ptx(kernel);
  const Target& target = kernel.problem.target;
  const std::string emitted = machine_code(compile_emitted(kernel, target));
  return emitted.size() > 1000 &&
         emitted == machine_code(compile_template(kernel, target, options_of(kernel)));
}

std::vector<NamedKernel> compilable(const std::vector<NamedKernel>& kernels) {
  std::vector<NamedKernel> out;
  for (const NamedKernel& kernel : kernels)
    if (nvrtc_knows(kernel.problem.target)) out.push_back(kernel);
  return out;
}

}  // namespace

TEST_SUITE_BEGIN("oracle");

TEST_CASE("golden kernels: the emitted file and its template give the same machine code") {
  if (lacks_nvrtc("oracle over the golden kernels")) return;
  const std::vector<NamedKernel> kernels = compilable(named_kernels());
  CHECK(kernels.size() >= 15);
  check_kernels(kernels, same_machine_code);
}

TEST_CASE("random kernels: the emitted file and its template give the same PTX") {
  if (lacks_nvrtc("oracle over random kernels")) return;
  check_kernels(compilable(random_kernels(test_seed(), kRandom)), same_ptx);
  for (const Family* family :
       {static_cast<const Family*>(&sm80_family()), static_cast<const Family*>(&sm90_family())})
    check_kernels(
        compilable(random_kernels(test_seed(), kRandomBackward, *family, Direction::backward)),
        same_ptx);
}

TEST_CASE("the comparison sees a difference in one option") {
  if (lacks_nvrtc("oracle sees a difference")) return;
  const NamedKernel& kernel = named_kernels().front();
  const Target target = ptx_target(kernel.problem.target);
  const std::string emitted = without_constants(compile_emitted(kernel, target));
  Options options = options_of(kernel);
  CHECK(emitted == without_constants(compile_template(kernel, target, options)));
  options["FW_LAZY_RESCALE"] = 1 - options["FW_LAZY_RESCALE"];
  CHECK(emitted != without_constants(compile_template(kernel, target, options)));
  CHECK(machine_code(compile_emitted(kernel, kernel.problem.target)) !=
        machine_code(compile_template(kernel, kernel.problem.target, options)));
}

TEST_SUITE_END();
