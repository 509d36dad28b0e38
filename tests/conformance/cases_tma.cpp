// TMA: boxes with every swizzle and over every edge of a tensor, rows of bytes, stores and sums.
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "tests/conformance/case.hpp"
#include "tests/conformance/tiles.hpp"

namespace flashwright::conformance {
namespace {

// Of a box, first the coordinate along the row: whole times 16 bytes, or a device calls the instruction
// illegal; so it does where a store begins before the tensor.
using Start = std::array<int, 5>;

constexpr std::size_t kStartBytes = 1024;  // of the input, before the tensor

Case tma_case(const std::string& name, const std::string& covers, DType dtype) {
  Case c;
  c.group = "tma";
  c.name = name;
  c.covers = covers;
  c.needs = Needs::sm_90a;
  c.dtype = dtype;
  c.threads = 64;
  return c;
}

// A tensor whose rows have gaps between them.
TensorMapSpec spec_of(DType dtype, const std::vector<int>& shape, const std::vector<int>& box,
                      int swizzle) {
  TensorMapSpec spec;
  spec.dtype = dtype;
  spec.rank = static_cast<int>(shape.size());
  spec.swizzle = swizzle;
  std::size_t stride = round_up(static_cast<std::size_t>(shape[0] * info(dtype).bytes), 16) + 16;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    spec.shape[i] = shape[i];
    spec.box[i] = box[i];
    if (i + 1 == shape.size()) break;
    spec.stride_bytes[i] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::size_t>(shape[i + 1]);
    stride += 32;
  }
  return spec;
}

std::size_t tensor_bytes(const TensorMapSpec& spec) {
  const auto last = static_cast<std::size_t>(spec.rank - 1);
  return static_cast<std::size_t>(spec.shape[last] * spec.stride_bytes[last - 1]);
}

// Calls visit(offset in the box, offset in the tensor or -1) for every element of a box.
template <typename Visit>
void for_box(const TensorMapSpec& spec, const Start& start, Visit&& visit) {
  const auto rank = static_cast<std::size_t>(spec.rank);
  const int bytes = info(spec.dtype).bytes;
  std::array<int, 5> at{};
  const std::int64_t count = box_bytes(spec) / bytes;
  for (std::int64_t element = 0; element < count; ++element) {
    std::int64_t offset = 0;
    bool inside = true;
    for (std::size_t i = 0; i < rank; ++i) {
      const std::int64_t x = start[i] + at[i];
      inside = inside && x >= 0 && x < spec.shape[i];
      offset += x * (i == 0 ? bytes : spec.stride_bytes[i - 1]);
    }
    visit(static_cast<std::size_t>(element * bytes), inside ? offset : -1);
    for (std::size_t i = 0; i < rank && ++at[i] == spec.box[i]; ++i) at[i] = 0;
  }
}

// The box as it lies in shared memory.
Bytes loaded_box(const TensorMapSpec& spec, const Start& start, const Bytes& memory,
                 std::size_t tensor) {
  Bytes box(static_cast<std::size_t>(box_bytes(spec)));
  const auto bytes = static_cast<std::size_t>(info(spec.dtype).bytes);
  for_box(spec, start, [&](std::size_t from, std::int64_t at) {
    if (at >= 0)
      std::memcpy(&box[swizzled(from, spec.swizzle)],
                  &memory[tensor + static_cast<std::size_t>(at)], bytes);
  });
  return box;
}

// The starts of all boxes as words, `rank` for each.
void append_starts(Case& c, const std::vector<Start>& starts, int rank) {
  for (const Start& start : starts)
    append(c.input, std::vector<std::int32_t>(start.begin(), start.begin() + rank));
  c.input.resize(kStartBytes);
}

// "coordinate(0), coordinate(1)": arguments of a wrapper, from the input.
std::string coordinates(int rank) {
  std::string text;
  for (int i = 0; i < rank; ++i)
    text += fmt::format("{}static_cast<int>(input_word(params, {} * i + {}))", i == 0 ? "" : ", ",
                        rank, i);
  return text;
}

constexpr const char* kLoadBody = R"(
const u32 shared = swizzled_memory(), barrier = shared + {0} * {1};
if (thread_index() == 0) {{
  prefetch_map(params.map);
  init_barrier(barrier, 1);
  publish_barriers();
}}
synchronize_block();
if (thread_index() == 0) {{
  arrive_expecting(barrier, {0} * {2});
  for (int i = 0; i < {0}; ++i)
    {3}(shared + i * {1}, params.map, barrier, {4});
}}
wait_barrier(barrier, 0);
for (int i = 0; i < {0}; ++i) dump_shared(params, shared + i * {1}, i * {2}, {2});
)";

// Boxes that the kernel loads, each to a multiple of 1024 bytes, and dumps as they lie.
Case load_case(const std::string& name, const TensorMapSpec& spec,
               const std::vector<Start>& starts) {
  const std::string wrapper = spec.rank == 5 ? "load_box_5d" : "load_box";
  Case c = tma_case(name,
                    wrapper +
                        " prefetch_map init_barrier publish_barriers arrive_expecting "
                        "wait_barrier swizzled_memory",
                    spec.dtype);
  append_starts(c, starts, spec.rank);
  append(c.input, random_words(300, tensor_bytes(spec) / 4));
  c.map = CaseMap{false, kStartBytes, spec};
  const auto bytes = static_cast<std::size_t>(box_bytes(spec));
  const std::size_t pitch = round_up(bytes, 1024);
  c.body = fmt::format(kLoadBody, starts.size(), pitch, bytes, wrapper, coordinates(spec.rank));
  c.smem_bytes = static_cast<int>(pitch * starts.size() + 16);
  for (const Start& start : starts)
    append(c.expected, loaded_box(spec, start, c.input, kStartBytes));
  return c;
}

int elements_in_16_bytes(DType dtype) { return 16 / info(dtype).bytes; }

// The tensor ends within 16 bytes.
Case load(DType dtype, int swizzle, int row_bytes) {
  const int width = row_bytes / info(dtype).bytes, unit = elements_in_16_bytes(dtype);
  const TensorMapSpec spec = spec_of(dtype, {width + 5, 10, 3, 2}, {width, 8, 2, 1}, swizzle);
  // Within, over both ends of each dimension, over several at once, and wholly outside.
  const std::vector<Start> starts = {{0, 0, 0, 0},         {8, 1, 1, 1},
                                     {-8, -3, -1, 0},      {width - unit, 5, 2, 1},
                                     {unit, -7, 0, 1},     {0, 0, 0, -1},
                                     {-unit, 9, 2, 0},     {0, 0, 1, 2},
                                     {width + 8, 0, 0, 0}, {-width - 5 * unit, 0, 0, 0}};
  return load_case(fmt::format("load_box_{}_swizzle_{}", info(dtype).name, swizzle), spec, starts);
}

Case load_five_dimensions() {
  const TensorMapSpec spec = spec_of(DType::bf16, {37, 4, 6, 2, 2}, {32, 4, 4, 1, 1}, 64);
  return load_case("load_box_5d", spec,
                   {{0, 0, 0, 0, 0},
                    {8, 0, 3, 1, 1},
                    {-8, 1, -2, 0, 1},
                    {24, -1, 4, 1, 0},
                    {0, 0, 0, 2, 0},
                    {0, 0, 0, 0, -1}});
}

// Two barriers; the second also waits for an arrival that comes late.
Case load_rows() {
  Case c = tma_case("load_row", "load_row arrive arrive_expecting init_barrier wait_barrier",
                    DType::bf16);
  c.body = R"(
const u32 shared = swizzled_memory(), barrier = shared + 4096;
if (thread_index() == 0) {
  init_barrier(barrier, 1);
  init_barrier(barrier + 8, 2);
  publish_barriers();
}
synchronize_block();
if (thread_index() == 0) {
  arrive_expecting(barrier, 16 + 48);
  load_row(shared, params.in + 16, 16, barrier);
  load_row(shared + 16, params.in + 256, 48, barrier);
  load_row(shared + 64, params.in + 512, 1024, barrier + 8);
  arrive_expecting(barrier + 8, 1024 + 2048);
  load_row(shared + 1088, params.in + 2048, 2048, barrier + 8);
}
wait_barrier(barrier, 0);
dump_shared(params, shared, 0, 64);
if (thread_index() == 63) arrive(barrier + 8);
wait_barrier(barrier + 8, 0);
dump_shared(params, shared + 64, 64, 1024 + 2048);
)";
  c.smem_bytes = 4096 + 16;
  c.input = bytes_of(random_words(301, 1024));
  for (const auto& [from, bytes] : {std::pair{16, 16}, {256, 48}, {512, 1024}, {2048, 2048}})
    c.expected.insert(c.expected.end(), c.input.begin() + from, c.input.begin() + from + bytes);
  return c;
}

constexpr const char* kStoreBody = R"(
const u32 shared = swizzled_memory();
fill_shared(params, shared, 1024, {0} * {1});
fence_async_shared();
synchronize_block();
if (thread_index() == 0) {{
  for (int i = 0; i < {0}; ++i)
    {2}(params.map, shared + i * {1}, {3});
  commit_stores();
  wait_stores<0>();
}}
)";

// Boxes as random bits in shared memory; what they do to the tensor.
Case store_case(const std::string& name, const std::string& wrapper, const TensorMapSpec& spec,
                const std::vector<Start>& starts, const Bytes& boxes) {
  Case c = tma_case(name, wrapper + " commit_stores wait_stores fence_async_shared", spec.dtype);
  append_starts(c, starts, 4);
  append(c.input, boxes);
  c.map = CaseMap{true, 0, spec};
  c.body =
      fmt::format(kStoreBody, starts.size(), boxes.size() / starts.size(), wrapper, coordinates(4));
  c.smem_bytes = static_cast<int>(boxes.size());
  c.output = untouched(tensor_bytes(spec));
  return c;
}

// Calls visit(offset in `boxes`, offset in the tensor) for every element that is stored.
template <typename Visit>
void for_stored(const TensorMapSpec& spec, const std::vector<Start>& starts, Visit&& visit) {
  for (std::size_t i = 0; i < starts.size(); ++i)
    for_box(spec, starts[i], [&](std::size_t from, std::int64_t at) {
      if (at >= 0)
        visit(i * static_cast<std::size_t>(box_bytes(spec)) + swizzled(from, spec.swizzle),
              static_cast<std::size_t>(at));
    });
}

// Boxes that meet nowhere: whole, cut at the ends of rows and of the tensor, and behind it; 1024 bytes
// each, so that each begins a swizzle's pattern.
std::vector<Start> apart(const TensorMapSpec& spec) {
  const int width = spec.box[0], unit = elements_in_16_bytes(spec.dtype);
  return {{unit, 0, 0, 0, 0},
          {2 * unit, 8, 2, 1, 0},
          {0, 0, 1, 0, 0},
          {width + 2 * unit, 0, 2, 0, 0},
          {0, 0, 0, 2, 0}};
}

// Rows are whole times 16 bytes: a device stores what lies behind another end, up to the next 16.
TensorMapSpec stored_spec(DType dtype, int swizzle, int row_bytes) {
  const int width = row_bytes / info(dtype).bytes, unit = elements_in_16_bytes(dtype);
  return spec_of(dtype, {width + unit, 10, 3, 2}, {width, 1024 / row_bytes, 1, 1}, swizzle);
}

Case store(DType dtype, int swizzle, int row_bytes) {
  const TensorMapSpec spec = stored_spec(dtype, swizzle, row_bytes);
  const std::vector<Start> starts = apart(spec);
  const Bytes boxes = bytes_of(random_words(302, 256 * starts.size()));
  Case c = store_case(fmt::format("store_box_{}_swizzle_{}", info(dtype).name, swizzle),
                      "store_box", spec, starts, boxes);
  c.expected = c.output;
  const auto bytes = static_cast<std::size_t>(info(dtype).bytes);
  for_stored(spec, starts, [&](std::size_t from, std::size_t to) {
    std::memcpy(&c.expected[to], &boxes[from], bytes);
  });
  return c;
}

double element_at(DType dtype, const Bytes& bytes, std::size_t offset) {
  if (dtype == DType::fp32) return value_at<float>(bytes, offset);
  return decode(dtype, value_at<std::uint16_t>(bytes, offset));
}

// Sums are rounded to the type once, to nearest even.
Case add(DType dtype, int swizzle) {
  const TensorMapSpec spec = stored_spec(dtype, swizzle, 128);
  std::vector<Start> starts = apart(spec);
  starts[4] = {0, 3, 0, 1, 0};
  const std::size_t size = static_cast<std::size_t>(info(dtype).bytes);
  const Bytes boxes = elements(dtype, random_fractions(303, 1024 * starts.size() / size));
  Case c = store_case(fmt::format("add_box_{}_swizzle_{}", info(dtype).name, swizzle), "add_box",
                      spec, starts, boxes);
  c.reads_output = true;
  std::vector<double> before = random_fractions(304, tensor_bytes(spec) / size);
  for (std::size_t i = 0; i < before.size(); ++i)
    before[i] *= std::ldexp(1, static_cast<int>(i % 12) - 4);
  c.output = elements(dtype, before);
  c.expected = c.output;
  for_stored(spec, starts, [&](std::size_t from, std::size_t to) {
    const double sum = element_at(dtype, c.output, to) + element_at(dtype, boxes, from);
    const Bytes rounded = elements(dtype, {sum});
    std::memcpy(&c.expected[to], rounded.data(), size);
  });
  return c;
}

// Shared memory may be written again once a group has read it.
Case store_rows() {
  Case c =
      tma_case("store_row", "store_row commit_stores wait_stores_read wait_stores", DType::bf16);
  c.body = R"(
const u32 shared = swizzled_memory();
fill_shared(params, shared, 0, 1024);
fence_async_shared();
synchronize_block();
if (thread_index() == 0) {
  store_row(params.out + 256, shared, 256);
  commit_stores();
  store_row(params.out + 1024, shared + 256, 768);
  store_row(params.out, shared + 1008, 16);
  commit_stores();
  wait_stores_read<1>();
  for (int i = 0; i < 64; ++i) store_shared_u32(shared + 4 * i, input_word(params, 256 + i));
  fence_async_shared();
  store_row(params.out + 512, shared, 256);
  commit_stores();
  wait_stores_read<0>();
  wait_stores<0>();
}
)";
  c.smem_bytes = 1024;
  c.input = bytes_of(random_words(305, 512));
  c.output = untouched(2048);
  c.expected = c.output;
  for (const auto& [to, from, bytes] :
       {std::array{256, 0, 256}, {1024, 256, 768}, {0, 1008, 16}, {512, 1024, 256}})
    std::copy_n(c.input.begin() + from, bytes, c.expected.begin() + to);
  return c;
}

// A group without stores counts as one.
Case empty_groups() {
  Case c =
      tma_case("store_row_empty_groups", "store_row commit_stores wait_stores_read", DType::bf16);
  c.body = R"(
const u32 shared = swizzled_memory();
fill_shared(params, shared, 0, 1024);
fence_async_shared();
synchronize_block();
if (thread_index() == 0) {
  store_row(params.out, shared, 1024);
  commit_stores();
  commit_stores();
  wait_stores_read<1>();
  for (int i = 0; i < 256; ++i) store_shared_u32(shared + 4 * i, 0);
  wait_stores<0>();
}
)";
  c.smem_bytes = 1024;
  c.input = bytes_of(random_words(309, 256));
  c.expected = c.input;
  return c;
}

// A row is added twice to the same place, and another one beside it.
Case add_rows(bool denormals) {
  Case c = tma_case(denormals ? "add_row_denormals" : "add_row",
                    "add_row commit_stores wait_stores", DType::fp32);
  c.body = R"(
const u32 shared = swizzled_memory();
fill_shared(params, shared, 0, 1024);
fence_async_shared();
synchronize_block();
float* const out = reinterpret_cast<float*>(params.out);
if (thread_index() == 0) {
  add_row(out + 4, shared, 512);
  commit_stores();
  add_row(out + 4, shared, 512);
  add_row(out + 132, shared + 512, 512);
  commit_stores();
  wait_stores<0>();
}
)";
  c.smem_bytes = 1024;
  c.reads_output = true;
  std::vector<float> rows, out;
  for (const double value : random_integers(306, 256, 1000))
    rows.push_back(static_cast<float>(denormals ? value * 0x1p-149 : value));
  for (const double value : random_integers(307, 264, 1000))
    out.push_back(static_cast<float>(denormals ? value * 0x1p-148 : value));
  c.input = bytes_of(rows);
  c.output = bytes_of(out);
  if (denormals) return c;
  for (std::size_t i = 0; i < 256; ++i) out[4 + i] += rows[i] * (i < 128 ? 2 : 1);
  c.expected = bytes_of(out);
  return c;
}

// In each cluster, block 0 loads a box for both blocks and block 1 one for block 0 alone.
Case multicast() {
  const TensorMapSpec spec = spec_of(DType::bf16, {72, 10, 3, 4}, {64, 8, 1, 1}, 128);
  Case c =
      tma_case("load_box_to_blocks",
               "load_box_to_blocks cluster_rank synchronize_cluster arrive_expecting", DType::bf16);
  c.attributes = "__cluster_dims__(2, 1, 1)";
  c.blocks = 4;
  c.body = R"(
const u32 shared = swizzled_memory(), barrier = shared + 2048;
const u32 rank = cluster_rank();
const int block = static_cast<int>(block_index());
if (thread_index() == 0) {
  init_barrier(barrier, 1);
  publish_barriers();
}
synchronize_cluster();
if (thread_index() == 0) {
  arrive_expecting(barrier, rank == 0 ? 2048 : 1024);
  load_box_to_blocks(shared + rank * 1024, params.map, barrier, 8, rank == 0 ? 4 : -2, 1, block,
                     static_cast<u16>(rank == 0 ? 3 : 1));
}
wait_barrier(barrier, 0);
dump_shared(params, shared, block * 2048, rank == 0 ? 2048 : 1024);
synchronize_cluster();
)";
  c.smem_bytes = 2048 + 16;
  c.input = untouched(kStartBytes);
  append(c.input, random_words(308, tensor_bytes(spec) / 4));
  c.map = CaseMap{false, kStartBytes, spec};
  c.expected = untouched(4 * 2048);
  for (int block = 0; block < 4; ++block)
    for (int half = 0; half < 2 - block % 2; ++half) {
      const Bytes box = loaded_box(spec, {8, half == 0 ? 4 : -2, 1, block / 2 * 2 + half, 0},
                                   c.input, kStartBytes);
      std::copy(box.begin(), box.end(), c.expected.begin() + block * 2048 + half * 1024);
    }
  return c;
}

}  // namespace

std::vector<Case> tma_cases() {
  std::vector<Case> cases = {load(DType::bf16, 128, 128),
                             load(DType::bf16, 64, 64),
                             load(DType::bf16, 32, 32),
                             load(DType::bf16, 0, 48),
                             load(DType::fp16, 128, 128),
                             load(DType::fp32, 128, 128),
                             load(DType::fp32, 0, 128),
                             load_five_dimensions(),
                             load_rows(),
                             store(DType::bf16, 128, 128),
                             store(DType::bf16, 64, 64),
                             store(DType::bf16, 32, 32),
                             store(DType::fp16, 0, 64),
                             store(DType::fp32, 128, 128),
                             store_rows(),
                             empty_groups(),
                             add(DType::fp32, 128),
                             add(DType::fp32, 0),
                             add(DType::bf16, 128),
                             add(DType::fp16, 128),
                             add_rows(false),
                             add_rows(true),
                             multicast()};
  for (Case& c : cases)
    if (c.output.empty()) c.output = untouched(c.expected.size());
  return cases;
}

}  // namespace flashwright::conformance
