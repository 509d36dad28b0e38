#include "blocks.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "errors.hpp"
#include "tensor.hpp"

namespace fwpy {
namespace {

using Field = const std::int32_t* flashwright_blocks::*;

struct Array {
  const char* name;
  Field field;
};

// partial_bits, the only one of another type, comes last.
constexpr std::array<Array, 9> kArrays = {{
    {"full_offsets", &flashwright_blocks::full_offsets},
    {"full_columns", &flashwright_blocks::full_columns},
    {"partial_offsets", &flashwright_blocks::partial_offsets},
    {"partial_columns", &flashwright_blocks::partial_columns},
    {"full_query_offsets", &flashwright_blocks::full_query_offsets},
    {"full_query_rows", &flashwright_blocks::full_query_rows},
    {"partial_query_offsets", &flashwright_blocks::partial_query_offsets},
    {"partial_query_rows", &flashwright_blocks::partial_query_rows},
    {"partial_query_places", &flashwright_blocks::partial_query_places},
}};
constexpr std::size_t kSizes = 6;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

BlockLists BlockLists::from_mask(nb::handle keep, std::int64_t block_q, std::int64_t block_kv) {
  nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> mask;
  if (!nb::try_cast(keep, mask, false) || mask.itemsize() != 1)
    bad_type("mask", "an object of type " + python_type(keep),
             "a dense array of bools in host memory");
  if (mask.ndim() != 4)
    bad_value("mask", "rank " + std::to_string(mask.ndim()),
              "rank 4: (batch, heads, seq_q, seq_kv)");
  const auto extent = [&](std::size_t i) { return static_cast<std::int64_t>(mask.shape(i)); };
  flashwright_blocks* made = nullptr;
  const auto* const bytes = static_cast<const std::uint8_t*>(mask.data());
  flashwright_status status = FLASHWRIGHT_OK;
  {
    const nb::gil_scoped_release released;
    status = flashwright_blocks_from_mask(bytes, extent(0), extent(1), extent(2), extent(3),
                                          block_q, block_kv, &made);
  }
  flashwright::check(status);
  BlockLists out;
  out.owned_.reset(made, flashwright_blocks_free);
  out.view_ = *made;
  return out;
}

BlockLists::BlockLists(const std::vector<std::int64_t>& sizes,
                       const std::vector<std::uintptr_t>& addresses) {
  if (sizes.size() != kSizes || addresses.size() != kArrays.size() + 1)
    bad_value(
        "blocks", std::to_string(addresses.size()) + " arrays",
        std::to_string(kArrays.size() + 1) + " arrays and " + std::to_string(kSizes) + " sizes");
  view_.size = sizeof view_;
  view_.seq_q = sizes[0];
  view_.seq_kv = sizes[1];
  view_.block_q = sizes[2];
  view_.block_kv = sizes[3];
  view_.batch = sizes[4];
  view_.heads = sizes[5];
  for (std::size_t i = 0; i < kArrays.size(); ++i)
    view_.*kArrays[i].field = reinterpret_cast<const std::int32_t*>(addresses[i]);
  view_.partial_bits = reinterpret_cast<const std::uint32_t*>(addresses.back());
}

std::vector<std::int64_t> BlockLists::sizes() const {
  return {view_.seq_q, view_.seq_kv, view_.block_q, view_.block_kv, view_.batch, view_.heads};
}

std::vector<const char*> BlockLists::array_names() {
  std::vector<const char*> names;
  for (const Array& array : kArrays) names.push_back(array.name);
  names.push_back("partial_bits");
  return names;
}

std::vector<std::pair<std::uintptr_t, std::int64_t>> BlockLists::host_arrays() const {
  if (owned_ == nullptr)
    bad_value("blocks", "lists that are views of arrays elsewhere", "lists made from a mask");
  const std::int64_t matrices = view_.batch * view_.heads;
  const std::int64_t rows = matrices * ceil_div(view_.seq_q, view_.block_q);
  const std::int64_t columns = matrices * ceil_div(view_.seq_kv, view_.block_kv);
  const std::int64_t full = view_.full_offsets[rows], partial = view_.partial_offsets[rows];
  const std::array<std::int64_t, 9> counts = {rows + 1, full,        rows + 1, partial, columns + 1,
                                              full,     columns + 1, partial,  partial};
  std::vector<std::pair<std::uintptr_t, std::int64_t>> out;
  for (std::size_t i = 0; i < kArrays.size(); ++i)
    out.emplace_back(reinterpret_cast<std::uintptr_t>(view_.*kArrays[i].field), counts[i]);
  out.emplace_back(reinterpret_cast<std::uintptr_t>(view_.partial_bits),
                   partial * view_.block_q * ceil_div(view_.block_kv, 32));
  return out;
}

void bind_blocks(nb::module_& module) {
  nb::class_<BlockLists>(module, "BlockLists",
                         "Lists of full and partial blocks; see flashwright.Blocks.")
      .def(nb::init<const std::vector<std::int64_t>&, const std::vector<std::uintptr_t>&>(),
           nb::arg("sizes"), nb::arg("addresses"))
      .def_static("from_mask", &BlockLists::from_mask, nb::arg("keep"), nb::arg("block_q"),
                  nb::arg("block_kv"))
      .def_static("array_names", &BlockLists::array_names)
      .def_prop_ro("sizes", &BlockLists::sizes)
      .def("host_arrays", &BlockLists::host_arrays);
}

}  // namespace fwpy
