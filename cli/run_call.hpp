// The tensors of one launch of `flashwright run` with the struct that the library takes.
#pragma once

#include <optional>
#include <vector>

#include "cli/run_inputs.hpp"

namespace cli {

class Call {
 public:
  // Uses the tensors of `inputs`. Forward: writes its o and lse. Backward: reads them, and writes the gradients that
  // it has.
  Call(RunInputs& inputs, bool backward);

  // Arguments in host memory, or in that of the kernel. Valid until the next call of either.
  const flashwright_arguments* on_host();
  const flashwright_arguments* on_device(const Place& place);
  void fetch_outputs(const Place& place);

 private:
  struct Slot {
    const flashwright_tensor* flashwright_arguments::*field;
    Tensor* tensor;
    bool written;
    flashwright_tensor view;
  };
  void add(const flashwright_tensor* flashwright_arguments::*field, Tensor& tensor,
           bool written = false);
  void add(const flashwright_tensor* flashwright_arguments::*field, std::optional<Tensor>& tensor,
           bool written = false);
  const flashwright_arguments* bind(const flashwright_blocks* blocks);

  RunInputs& inputs_;
  std::vector<Slot> slots_;
  std::optional<PlacedBlocks> blocks_;
  flashwright_arguments arguments_{};
};

}  // namespace cli
