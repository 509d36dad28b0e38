#include "tests/gpu/device_problem.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>

#include "core/error.hpp"
#include "generator/sm80/family_sm80.hpp"
#include "generator/sm90/family_sm90.hpp"
#include "runtime/cuda/cuda_backend.hpp"

namespace flashwright::testing {
namespace {

// sm80, or with FW_GPU_FAMILY=sm90 that one for all that it can do.
const Family& family(const Problem& problem) {
  static const FamilySm80 sm80;
  static const FamilySm90 sm90;
  const char* const wanted = std::getenv("FW_GPU_FAMILY");
  const bool use_sm90 = wanted != nullptr && std::string_view(wanted) == sm90.name() &&
                        sm90.reasons_against(problem).empty();
  return use_sm90 ? static_cast<const Family&>(sm90) : sm80;
}

// Kernels that were compiled, by what they are.
struct Kept {
  std::mutex mutex;
  std::map<KernelSpec, std::shared_ptr<const LoadedKernel>> kernels;
};
Kept& kept() {
  static Kept instance;
  return instance;
}

std::shared_ptr<const LoadedKernel> compile(const KernelSpec& spec) {
  const Source source = family(spec.problem).emit(spec.problem, spec.schedule);
  const Binary binary = cuda_backend().compile(source);
  return std::make_shared<const LoadedKernel>(cuda_backend(), binary, source.plan, gpu()->index);
}

// Bytes of a mask array whose length the lists tell.
std::size_t partial_words(const BlockLists& lists, std::int64_t blocks) {
  return static_cast<std::size_t>(blocks * lists.block_q * ((lists.block_kv + 31) / 32));
}

}  // namespace

const DeviceInfo* gpu() {
  static const std::vector<DeviceInfo> devices = [] {
    std::vector<DeviceInfo> found = cuda_backend().describe();
    if (found.empty()) std::cout << "no GPU: " << cuda_backend().device_missing() << std::endl;
    return found;
  }();
  return devices.empty() ? nullptr : &devices.front();
}

KernelSpec default_spec(const Config& config, const Shape& shape, Algorithm algorithm) {
  Problem problem = normalise(config, gpu()->target);
  problem.algorithm = algorithm;
  return {problem, family(problem).default_schedule(problem, *gpu(), shape)};
}

KernelSpec any_spec(const Config& config, const Shape& shape, std::uint64_t draw) {
  const std::vector<KernelSpec> legal = all_specs(config, shape);
  return legal.at(draw % legal.size());
}

std::vector<KernelSpec> all_specs(const Config& config, const Shape& shape) {
  const Problem problem = normalise(config, gpu()->target);
  std::vector<KernelSpec> legal;
  for (const Candidate& candidate : family(problem).space(problem, *gpu(), shape))
    if (candidate.rejected.empty()) legal.push_back({problem, candidate.schedule});
  return legal;
}

void compile_all(const std::vector<KernelSpec>& specs) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < specs.size(); i = next++) kernel_for(specs[i]);
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
}

std::shared_ptr<const LoadedKernel> kernel_for(const KernelSpec& spec) {
  {
    const std::scoped_lock lock(kept().mutex);
    if (const auto found = kept().kernels.find(spec); found != kept().kernels.end())
      return found->second;
  }
  std::shared_ptr<const LoadedKernel> kernel = compile(spec);
  const std::scoped_lock lock(kept().mutex);
  return kept().kernels.emplace(spec, std::move(kernel)).first->second;
}

DeviceMemory::DeviceMemory(std::size_t bytes)
    : memory_(cuda_backend().allocate(gpu()->index, bytes)), bytes_(bytes) {}
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}
DeviceMemory::~DeviceMemory() {
  try {
    cuda_backend().deallocate(gpu()->index, memory_);
  } catch (const Error&) {
    // The context is dead, and its memory with it; what killed it is on its way to the test.
  }
}

void DeviceCall::add(void* data, std::size_t bytes) {
  copies_.push_back({static_cast<char*>(data), DeviceMemory(bytes)});
}

void DeviceCall::rebase(TensorView& view) const {
  view.device = BackendKind::cuda;
  view.device_index = gpu()->index;
  for (const Copy& copy : copies_) {
    const auto* const data = static_cast<const char*>(view.data);
    if (data < copy.host || data >= copy.host + copy.device.size()) continue;
    view.data = static_cast<char*>(copy.device.get()) + (data - copy.host);
    return;
  }
}

void DeviceCall::copy_lists(const BlockLists& lists) {
  const std::int64_t rows = lists.batch * lists.heads * lists.query_blocks();
  const auto copy = [&](const auto* values, std::size_t count) {
    const std::size_t bytes = count * sizeof *values;
    lists_.emplace_back(std::max<std::size_t>(bytes, 4));
    cuda_backend().copy_in(gpu()->index, lists_.back().get(), values, bytes);
    return static_cast<decltype(values)>(lists_.back().get());
  };
  BlockLists& out = *arguments_.blocks;
  const auto full = static_cast<std::size_t>(lists.full_offsets[rows]);
  const auto partial = static_cast<std::size_t>(lists.partial_offsets[rows]);
  out.full_offsets = copy(lists.full_offsets, static_cast<std::size_t>(rows + 1));
  out.partial_offsets = copy(lists.partial_offsets, static_cast<std::size_t>(rows + 1));
  out.full_columns = copy(lists.full_columns, full);
  out.partial_columns = copy(lists.partial_columns, partial);
  out.partial_bits =
      copy(lists.partial_bits, partial_words(lists, static_cast<std::int64_t>(partial)));
  if (lists.full_query_offsets == nullptr) return;
  const std::int64_t columns = lists.batch * lists.heads * lists.key_blocks();
  const auto full_rows = static_cast<std::size_t>(lists.full_query_offsets[columns]);
  out.full_query_offsets = copy(lists.full_query_offsets, static_cast<std::size_t>(columns + 1));
  out.full_query_rows = copy(lists.full_query_rows, full_rows);
  out.partial_query_offsets =
      copy(lists.partial_query_offsets, static_cast<std::size_t>(columns + 1));
  out.partial_query_rows = copy(lists.partial_query_rows, partial);
  out.partial_query_places = copy(lists.partial_query_places, partial);
}

DeviceCall::DeviceCall(HostProblem& host)
    : DeviceCall(host.arguments, {{host.q.memory().data(), host.q.memory().size()},
                                  {host.k.memory().data(), host.k.memory().size()},
                                  {host.v.memory().data(), host.v.memory().size()},
                                  {host.o.memory().data(), host.o.memory().size()},
                                  {host.lse.memory().data(), host.lse.memory().size()},
                                  {host.slopes.memory().data(), host.slopes.memory().size()},
                                  {host.d_o.memory().data(), host.d_o.memory().size()},
                                  {host.d_lse.memory().data(), host.d_lse.memory().size()},
                                  {host.dq.memory().data(), host.dq.memory().size()},
                                  {host.dk.memory().data(), host.dk.memory().size()},
                                  {host.dv.memory().data(), host.dv.memory().size()}}) {}

DeviceCall::DeviceCall(const Arguments& host, const std::vector<Buffer>& buffers)
    : arguments_(host) {
  for (const Buffer& buffer : buffers)
    if (buffer.bytes > 0) add(buffer.data, buffer.bytes);
  rebase(arguments_.q);
  rebase(arguments_.k);
  rebase(arguments_.v);
  rebase(arguments_.o);
  for (std::optional<TensorView>* view :
       {&arguments_.lse, &arguments_.alibi_slopes, &arguments_.d_o, &arguments_.d_lse,
        &arguments_.dq, &arguments_.dk, &arguments_.dv})
    if (*view) rebase(**view);
  if (host.blocks) copy_lists(*host.blocks);
  upload();
}

void DeviceCall::upload() {
  for (const Copy& copy : copies_)
    cuda_backend().copy_in(gpu()->index, copy.device.get(), copy.host, copy.device.size());
}

void DeviceCall::fetch() {
  for (const Copy& copy : copies_)
    cuda_backend().copy_out(gpu()->index, copy.host, copy.device.get(), copy.device.size());
}

void launch(const KernelSpec& spec, const Config& config, const Arguments& arguments) {
  const ResolvedArguments resolved = resolve(config, spec.problem, arguments);
  const auto kernel = kernel_for(spec);
  const std::size_t bytes = kernel->workspace_bytes(resolved);
  const DeviceMemory workspace(bytes);
  kernel->launch(resolved, bytes == 0 ? nullptr : workspace.get(), nullptr);
  cuda_backend().synchronize(gpu()->index, nullptr);
}

std::string run_and_judge(HostProblem& host, const KernelSpec& spec, std::int64_t max_rows) {
  const std::string what =
      to_string(spec.problem) + " " + to_string(host.shape) + " " + to_string(spec.schedule);
  if (std::getenv("FW_GPU_PROGRESS") != nullptr)  // the last line tells which launch hangs
    std::clog << what << ", rows of q " << host.arguments.q.stride[1] << " apart" << std::endl;
  DeviceCall call(host);
  launch(spec, host.config, call.arguments());
  call.fetch();
  const std::string fault = host.fault(spec.problem, max_rows);
  return fault.empty() ? fault : what + ": " + fault;
}

}  // namespace flashwright::testing
