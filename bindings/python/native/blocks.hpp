// Block lists of the mask "blocks": made from an element mask in host memory, or views of arrays that lie
// elsewhere.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "flashwright/flashwright.h"

namespace fwpy {

namespace nb = nanobind;

class BlockLists {
 public:
  // keep: bytes, not 0 where the key is visible; dense (batch, heads, seq_q, seq_kv) in host memory.
  static BlockLists from_mask(nb::handle keep, std::int64_t block_q, std::int64_t block_kv);

  // sizes: seq_q, seq_kv, block_q, block_kv, batch, heads. addresses: of the arrays, in the order of array_names().
  BlockLists(const std::vector<std::int64_t>& sizes, const std::vector<std::uintptr_t>& addresses);

  std::vector<std::int64_t> sizes() const;
  static std::vector<const char*> array_names();
  // The arrays as (address, number of elements), in the order of array_names(); of lists in host memory.
  std::vector<std::pair<std::uintptr_t, std::int64_t>> host_arrays() const;

  const flashwright_blocks* get() const { return &view_; }

 private:
  BlockLists() = default;
  std::shared_ptr<flashwright_blocks> owned_;  // empty for a view
  flashwright_blocks view_{};
};

void bind_blocks(nb::module_& module);

}  // namespace fwpy
