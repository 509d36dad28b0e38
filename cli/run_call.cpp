#include "cli/run_call.hpp"

namespace cli {

Call::Call(RunInputs& inputs, bool backward) : inputs_(inputs) {
  using Arguments = flashwright_arguments;
  add(&Arguments::q, inputs.q);
  add(&Arguments::k, inputs.k);
  add(&Arguments::v, inputs.v);
  add(&Arguments::o, inputs.o, !backward);
  add(&Arguments::lse, inputs.lse, !backward);
  add(&Arguments::alibi_slopes, inputs.alibi_slopes);
  if (backward) {
    add(&Arguments::d_o, inputs.d_o);
    add(&Arguments::d_lse, inputs.d_lse);
    add(&Arguments::dq, inputs.dq, true);
    add(&Arguments::dk, inputs.dk, true);
    add(&Arguments::dv, inputs.dv, true);
  }
  arguments_.size = sizeof arguments_;
  arguments_.seed = inputs.config.seed;
  arguments_.offset = inputs.offset;
  arguments_.has_q_position = inputs.q_position ? 1 : 0;
  arguments_.q_position = inputs.q_position.value_or(0);
}

void Call::add(const flashwright_tensor* flashwright_arguments::*field, Tensor& tensor,
               bool written) {
  slots_.push_back({field, &tensor, written, {}});
}

void Call::add(const flashwright_tensor* flashwright_arguments::*field,
               std::optional<Tensor>& tensor, bool written) {
  if (tensor) add(field, *tensor, written);
}

const flashwright_arguments* Call::on_host() {
  for (Slot& slot : slots_) slot.view = slot.tensor->host_view();
  return bind(inputs_.blocks.get());
}

const flashwright_arguments* Call::on_device(const Place& place) {
  for (Slot& slot : slots_) {
    slot.tensor->to_device(place);
    slot.view = slot.tensor->view(place);
  }
  if (inputs_.blocks) blocks_.emplace(place, *inputs_.blocks);
  return bind(blocks_ ? blocks_->get() : nullptr);
}

void Call::fetch_outputs(const Place& place) {
  for (Slot& slot : slots_)
    if (slot.written) slot.tensor->from_device(place);
}

const flashwright_arguments* Call::bind(const flashwright_blocks* blocks) {
  for (const Slot& slot : slots_) arguments_.*slot.field = &slot.view;
  arguments_.blocks = blocks;
  return &arguments_;
}

}  // namespace cli
