#include "tests/support/fake_backend.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/device_profiles.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/expr_parse.hpp"
#include "tests/support/tiny_attention.hpp"

namespace flashwright::testing {
namespace {

constexpr std::int64_t kFewElements = 1 << 16;  // larger outputs are not computed

struct FakeModule final : Module {
  FakeModule(std::shared_ptr<std::atomic<int>> alive, Outcome what, LaunchPlan how, DType element)
      : counter(std::move(alive)), outcome(what), plan(std::move(how)), dtype(element) {
    ++*counter;
  }
  ~FakeModule() override { --*counter; }
  const std::shared_ptr<std::atomic<int>> counter;  // the process's engine outlives a backend
  Outcome outcome;
  LaunchPlan plan;
  DType dtype;
};

ParamLayout all_params() {
  ParamLayout layout;
  for (int i = 0; i < kParamCount; ++i) layout.add(static_cast<Param>(i));
  return layout;
}

// Reads the parameter block as a kernel would.
struct Reader {
  const ParamLayout& layout;
  const unsigned char* block;
  std::uint64_t raw(Param param) const {
    for (const ParamLayout::Field& field : layout.fields()) {
      std::uint64_t value = 0;
      if (field.param != param) continue;
      std::memcpy(&value, block + field.offset, static_cast<std::size_t>(size_of(field.type)));
      return value;
    }
    return 0;
  }
  std::int64_t integer(Param param) const {
    return size_of(info(param).type) == 4 ? static_cast<std::int32_t>(raw(param))
                                          : static_cast<std::int64_t>(raw(param));
  }
  char* pointer(Param param) const { return reinterpret_cast<char*>(raw(param)); }
  double number(Param param) const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(raw(param)));
  }
};

TinyAttention problem_of(const Reader& r, DType dtype, int head_dim) {
  TinyAttention tiny;
  tiny.batch = r.integer(Param::batch);
  tiny.heads_q = r.integer(Param::heads_q);
  tiny.heads_kv = r.integer(Param::heads_kv);
  tiny.seq_q = r.integer(Param::seq_q);
  tiny.seq_kv = r.integer(Param::seq_kv);
  tiny.head_dim = tiny.head_dim_v = head_dim;
  tiny.scale = r.number(Param::scale_log2) * std::log(2.0);
  const auto element = [r, dtype](Param data, Param strides) {
    const int first = static_cast<int>(strides);
    const std::array<std::int64_t, 3> stride = {r.integer(static_cast<Param>(first)),
                                                r.integer(static_cast<Param>(first + 1)),
                                                r.integer(static_cast<Param>(first + 2))};
    return [base = r.pointer(data), stride, dtype](std::int64_t b, std::int64_t s, std::int64_t h,
                                                   std::int64_t d) -> double {
      const std::int64_t at = b * stride[0] + s * stride[1] + h * stride[2] + d;
      return to_float(dtype, base + at * info(dtype).bytes);
    };
  };
  tiny.q = element(Param::q, Param::q_batch_stride);
  tiny.k = element(Param::k, Param::k_batch_stride);
  tiny.v = element(Param::v, Param::v_batch_stride);
  if (const char* const slopes = r.pointer(Param::alibi_slopes); slopes != nullptr)
    tiny.change = [r, slopes](double score, std::int64_t b, std::int64_t h, std::int64_t i,
                              std::int64_t j) {
      const std::int64_t place =
          b * r.integer(Param::alibi_batch_stride) + h * r.integer(Param::alibi_head_stride);
      return score + reinterpret_cast<const float*>(slopes)[place] *
                         static_cast<double>(j - i - r.integer(Param::q_position));
    };
  return tiny;
}

// Dense outputs of a problem without a mask, as bytes: those of O, then those of the LSE.
std::vector<unsigned char> outputs_of(const TinyAttention& tiny, DType dtype) {
  const std::int64_t bytes = info(dtype).bytes, rows = tiny.batch * tiny.seq_q * tiny.heads_q;
  std::vector<unsigned char> out(static_cast<std::size_t>(rows * (tiny.head_dim_v * bytes + 4)));
  auto* const lse = reinterpret_cast<float*>(out.data() + rows * tiny.head_dim_v * bytes);
  for (std::int64_t b = 0; b < tiny.batch; ++b)
    for (std::int64_t i = 0; i < tiny.seq_q; ++i)
      for (std::int64_t h = 0; h < tiny.heads_q; ++h) {
        const TinyRow row = tiny_row(tiny, b, h, i);
        lse[(b * tiny.heads_q + h) * tiny.seq_q + i] = static_cast<float>(row.lse);
        const std::int64_t at = ((b * tiny.seq_q + i) * tiny.heads_q + h) * tiny.head_dim_v;
        for (std::int64_t d = 0; d < tiny.head_dim_v; ++d)
          from_float(dtype, static_cast<float>(row.o[static_cast<std::size_t>(d)]),
                     out.data() + (at + d) * bytes);
      }
  return out;
}

}  // namespace

FakeFamily::FakeFamily(std::vector<std::string> schedules, const Landscape& landscape,
                       std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (const std::string& text : schedules) {
    const auto found = landscape.find(text);
    const Outcome outcome = found == landscape.end() ? Outcome{} : found->second;
    Candidate candidate;
    candidate.schedule = parse_schedule(text);
    candidate.estimate = {128, outcome.smem_bytes, outcome.registers, outcome.time_us};
    candidate.estimate.time_us *= 0.7 + 0.6 * static_cast<double>(random() % 1000) / 1000;
    candidates_.push_back(candidate);
  }
}

std::vector<std::string> FakeFamily::reasons_against(const Problem& problem) const {
  std::vector<std::string> reasons;
  if (problem.mask != Mask::Kind::none)
    reasons.push_back("mask is " + std::string(to_string(problem.mask)));
  if (problem.dropout) reasons.emplace_back("dropout is on");
  if (problem.softcap) reasons.emplace_back("softcap is on");
  return reasons;
}

Candidate FakeFamily::consider(const Problem&, const DeviceInfo& device, const Shape&,
                               const Schedule& schedule) const {
  for (Candidate candidate : candidates_) {
    if (candidate.schedule != schedule) continue;
    if (device.target.backend == BackendKind::cuda &&
        candidate.estimate.smem_bytes > device.smem_per_block)
      candidate.rejected = fmt::format("needs {} bytes of shared memory; a block has {}",
                                       candidate.estimate.smem_bytes, device.smem_per_block);
    return candidate;
  }
  Candidate unknown;
  unknown.schedule = schedule;
  unknown.rejected = "no such schedule";
  return unknown;
}

std::vector<Candidate> FakeFamily::space(const Problem& problem, const DeviceInfo& device,
                                         const Shape& shape) const {
  std::vector<Candidate> out;
  for (const Candidate& candidate : candidates_)
    out.push_back(consider(problem, device, shape, candidate.schedule));
  return out;
}

Schedule FakeFamily::default_schedule(const Problem&, const DeviceInfo&, const Shape&) const {
  return candidates_.front().schedule;
}

Source FakeFamily::emit(const Problem& problem, const Schedule& schedule) const {
  Source source;
  source.target = problem.target;
  source.name = "fake.cu";
  source.text =
      fmt::format("{}\n{}\n{}\n", to_string(schedule), problem.head_dim, to_string(problem.dtype));
  source.lines.resize(3);
  source.plan.params = all_params();
  source.plan.steps = {{"fw_fake", 128,
                        consider(problem, fake_device(), {}, schedule).estimate.smem_bytes,
                        parse_expr("ceil_div(seq_q, 64) * heads_q * batch")}};
  return source;
}

FakeBackend::FakeBackend(BackendKind kind, Landscape landscape)
    : kind_(kind), landscape_(std::move(landscape)) {}

Outcome FakeBackend::outcome_of(const std::string& schedule) const {
  const auto found = landscape_.find(schedule);
  return found == landscape_.end() ? Outcome{} : found->second;
}

Binary FakeBackend::compile(const Source& source) {
  ++compilations;
  std::this_thread::sleep_for(std::chrono::duration<double>(compile_seconds));
  const Outcome outcome = outcome_of(source.text.substr(0, source.text.find('\n')));
  if (!outcome.compiles)
    throw Error(Status::compile_failed,
                fmt::format("fake.cu: error: {} is not wanted",
                            source.text.substr(0, source.text.find('\n'))),
                "log");
  Binary binary;
  binary.target = source.target;
  binary.bytes = source.text;
  binary.toolchain = toolchain_name;
  binary.compile_ms = 1;
  binary.resources = {outcome.registers, outcome.spill_bytes, 0, 0, outcome.smem_bytes};
  return binary;
}

std::unique_ptr<Module> FakeBackend::load(const Binary& binary, const LaunchPlan& plan, int) {
  ++loads;
  const std::size_t first = binary.bytes.find('\n'), second = binary.bytes.find('\n', first + 1);
  const Outcome outcome = outcome_of(binary.bytes.substr(0, first));
  if (!outcome.loads) throw Error(Status::device_error, "fake: cannot be loaded");
  const auto dtype = parse_dtype(binary.bytes.substr(second + 1, binary.bytes.size() - second - 2));
  LaunchPlan own = plan;
  own.steps.front().threads = std::atoi(binary.bytes.c_str() + first);  // the head dim, for launch
  return std::make_unique<FakeModule>(alive_count, outcome, own, dtype.value_or(DType::fp32));
}

void FakeBackend::launch(const Module& module, std::span<const StepLaunch>, const void* params, int,
                         void*) {
  ++launches;
  const auto& m = static_cast<const FakeModule&>(module);
  if (!m.outcome.launches) throw Error(Status::device_error, "fake: illegal address");
  const std::scoped_lock lock(mutex_);
  clock_us_ += m.outcome.time_us;
  const Reader reader{m.plan.params, static_cast<const unsigned char*>(params)};
  const int head_dim = m.plan.steps.front().threads;
  const TinyAttention tiny = problem_of(reader, m.dtype, head_dim);
  const std::int64_t elements = tiny.batch * tiny.seq_q * tiny.heads_q * head_dim;
  if (elements > kFewElements) return;
  std::vector<unsigned char>& outputs = computed_[reader.pointer(Param::o)];
  if (outputs.empty()) outputs = outputs_of(tiny, m.dtype);
  const auto bytes = static_cast<std::size_t>(elements * info(m.dtype).bytes);
  std::memcpy(reader.pointer(Param::o), outputs.data(), bytes);
  if (reader.pointer(Param::lse) != nullptr) {
    std::memcpy(reader.pointer(Param::lse), outputs.data() + bytes, outputs.size() - bytes);
    auto* const lse = reinterpret_cast<float*>(reader.pointer(Param::lse));
    for (std::size_t i = 0; i < (outputs.size() - bytes) / sizeof(float); ++i)
      lse[i] += m.outcome.lse_error;
  }
  if (!m.outcome.right) std::memset(reader.pointer(Param::o), 0x3f, bytes);
}

double FakeBackend::time(int, void*, const std::function<void()>& run) {
  double start = 0;
  {
    const std::scoped_lock lock(mutex_);
    start = clock_us_;
  }
  run();
  const std::scoped_lock lock(mutex_);
  std::uniform_real_distribution<double> unit(-1, 1);
  double taken = clock_us_ - start;
  taken *= 1 + noise * unit(random_);
  taken *= 1 + drift * std::sin(clock_us_ / drift_period_us * 6.28);
  if (std::fabs(unit(random_)) < outliers) taken *= 4;
  return taken;
}

void* FakeBackend::allocate(int, std::size_t bytes) {
  ++memory_blocks;
  return std::aligned_alloc(256, (bytes + 256) / 256 * 256);
}

void FakeBackend::deallocate(int, void* memory) {
  if (memory == nullptr) return;
  --memory_blocks;
  const std::scoped_lock lock(mutex_);
  computed_.erase(memory);
  std::free(memory);
}

void FakeBackend::copy_in(int, void* memory, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(memory, host, bytes);
}
void FakeBackend::copy_out(int, void* host, const void* memory, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, memory, bytes);
}

DeviceInfo fake_device(const Target& target) {
  DeviceInfo device = assumed_device(target);
  device.name = "fake device";
  device.present = true;
  return device;
}

}  // namespace flashwright::testing
