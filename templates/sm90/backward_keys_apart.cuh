//~ The consumers of fw_backward_keys where none can hold the sums of both gradients: one computes
//~ those of values, the other those of keys, of the same 64 keys. Weights, which both need, come
//~ from the first, a step ahead of the other.

#if FW_SPLIT_KEYS
// Hands weights to the consumer of keys, each thread to the one that holds the same places. With
#if FW_DROPOUT
// the derivatives of what has modified the scores as a factor; those that are dropped are negative.
#else
// the derivatives of what has modified the scores as a factor.
#endif
__device__ __forceinline__ void hand_over(KeysConsumer& consumer,
                                          const float (&weights)[kQueryStep / 2]) {
  const u32 slot = consumer.slot.stage * 8;
  const u32 place =
      consumer.shared + consumer.slot.stage * kSharedStride + thread_index() % 128 * 16;
  u32 packed[kQueryStep / 16][4];
  pack<kQueryStep>(packed, weights);
  wait_barrier(consumer.barriers.shared_empty + slot, consumer.slot.parity ^ 1);
#pragma unroll
  for (int pair = 0; pair < kQueryStep / 16; ++pair)
    store_shared_16(place + pair * 2048, packed[pair]);
  synchronize_warp();
  if (lane_index() == 0) arrive(consumer.barriers.shared_full + slot);
  consumer.slot.advance();
}

// Takes those weights.
__device__ __forceinline__ void take_over(KeysConsumer& consumer,
                                          float (&weights)[kQueryStep / 2]) {
  const u32 slot = consumer.slot.stage * 8;
  const u32 place =
      consumer.shared + consumer.slot.stage * kSharedStride + thread_index() % 128 * 16;
  wait_barrier(consumer.barriers.shared_full + slot, consumer.slot.parity);
#pragma unroll
  for (int pair = 0; pair < kQueryStep / 16; ++pair) {
    const Bytes16 packed = load_shared_16(place + pair * 2048);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weights[8 * pair + 2 * i] = to_float(static_cast<u16>(packed.word[i]));
      weights[8 * pair + 2 * i + 1] = to_float(static_cast<u16>(packed.word[i] >> 16));
    }
  }
  synchronize_warp();
  if (lane_index() == 0) arrive(consumer.barriers.shared_empty + slot);
  consumer.slot.advance();
}

// Waits for the step that a stage holds.
__device__ __forceinline__ Step wait_for_step(const KeysConsumer& consumer) {
  const RingPlace<kStages>& at = consumer.at;
  wait_barrier(consumer.barriers.first_full + at.stage * 8, at.parity);
  return told_step(consumer.steps + at.stage * 32);
}

// Starts scores of the step at hand.
__device__ __forceinline__ void start_scores(const KeysConsumer& consumer,
                                             float (&scores)[kQueryStep / 2]) {
  fence_products();
  start_product<kQueryStep, kDepth, kSwizzle>(
      scores, consumer.keys, consumer.queries + consumer.at.stage * kStepQueriesStride);
}

// Turns them into weights, once the product has ended.
__device__ __forceinline__ void finish_scores(KeysConsumer& consumer,
                                              float (&scores)[kQueryStep / 2],
                                              u32 (&packed)[kQueryStep / 16][4],
                                              const Params& params, const Step& step) {
  hold(scores);
  consumer.soften(scores, packed, params, step, consumer.numbers());
  release_first(consumer.barriers, consumer.at.stage);
  if (params.dk != nullptr) hand_over(consumer, scores);
}

// Starts what the weights of a step add to gradients of values, unless nobody wants these: then the
// group of products is empty.
__device__ __forceinline__ void start_values(const KeysConsumer& consumer,
                                             float (&dv)[kHeadDimV / 2],
                                             const u32 (&packed)[kQueryStep / 16][4],
                                             const RingPlace<kStages>& at, const Params& params) {
  wait_barrier(consumer.barriers.second_full + at.stage * 8, at.parity);
  if (params.dv != nullptr) {
    fence_products();
    start_gradient<kQueryStep, kSwizzleV>(dv, packed,
                                          consumer.outputs + at.stage * kStepOutputsStride);
  } else {
    fence_products();  // the compiler would add it
    commit_products();
  }
}

// The consumer warpgroup that computes gradients of values. While those of one step are summed up,
// it turns the scores of the next into weights.
__device__ __forceinline__ void consume_queries_for_values(const Params& params, u32 memory) {
  KeysConsumer consumer;
  consumer.start(params, memory, 0);
  const Barriers& barriers = consumer.barriers;
  float dv[kHeadDimV / 2] = {}, scores[kQueryStep / 2];
  u32 packed[kQueryStep / 16][4], next_packed[kQueryStep / 16][4];
  wait_barrier(barriers.own_full, 0);
  Step step = wait_for_step(consumer);
  bool is_left = step.head != kNoHead;
  if (is_left) {
    start_scores(consumer, scores);
    wait_products<0>();
    finish_scores(consumer, scores, packed, params, step);
  }
#pragma unroll 1
  while (is_left) {
    const RingPlace<kStages> at = consumer.at;
    consumer.at.advance();
    step = wait_for_step(consumer);
    is_left = step.head != kNoHead;
    if (is_left) {
      start_scores(consumer, scores);
      start_values(consumer, dv, packed, at, params);
      wait_products<1>();
      finish_scores(consumer, scores, next_packed, params, step);
    } else {
      start_values(consumer, dv, packed, at, params);
    }
    wait_products<0>();
    hold(dv);
    hold_operands(packed);
    release(barriers.second_empty + at.stage * 8);
#pragma unroll
    for (int i = 0; i < kQueryStep / 4; ++i) packed[i / 4][i % 4] = next_packed[i / 4][i % 4];
  }
  wait_barrier(barriers.own_free, 0);
  consumer.write_values(dv, params);
  wait_for_output();
}

// Starts gradients of weights of the step at hand.
__device__ __forceinline__ void start_weights(const KeysConsumer& consumer,
                                              float (&gradients)[kQueryStep / 2]) {
  const RingPlace<kStages>& at = consumer.at;
  wait_barrier(consumer.barriers.second_full + at.stage * 8, at.parity);
  fence_products();
  start_product<kQueryStep, kDepthV, kSwizzleV>(gradients, consumer.values,
                                                consumer.outputs + at.stage * kStepOutputsStride);
}

// Turns them into gradients of scores, once the product has ended.
__device__ __forceinline__ void finish_weights(KeysConsumer& consumer,
                                               float (&gradients)[kQueryStep / 2],
                                               u32 (&packed)[kQueryStep / 16][4]) {
  hold(gradients);
  release(consumer.barriers.second_empty + consumer.at.stage * 8);
  float weights[kQueryStep / 2];
  take_over(consumer, weights);
  consumer.differentiate(weights, gradients, packed, consumer.numbers());
}

// Starts what the gradients of the scores of a step add to those of keys.
__device__ __forceinline__ void start_keys(const KeysConsumer& consumer, float (&dk)[kHeadDim / 2],
                                           const u32 (&packed)[kQueryStep / 16][4],
                                           const RingPlace<kStages>& at) {
  fence_products();
  start_gradient<kQueryStep, kSwizzle>(dk, packed,
                                       consumer.queries + at.stage * kStepQueriesStride);
}

// Gives all steps back where nobody wants gradients of keys.
__device__ __forceinline__ void pass_all_steps(KeysConsumer& consumer) {
#pragma unroll 1
  while (wait_for_step(consumer).head != kNoHead) {
    pass_second(consumer.barriers, consumer.at, consumer.group);
    release_first(consumer.barriers, consumer.at.stage);
    consumer.at.advance();
  }
}

// The consumer warpgroup that computes gradients of keys. While those of one step are summed up, it
// makes the gradients of the scores of the next.
__device__ __forceinline__ void consume_queries_for_keys(const Params& params, u32 memory) {
  KeysConsumer consumer;
  consumer.start(params, memory, 1);
  const Barriers& barriers = consumer.barriers;
  float dk[kHeadDim / 2] = {}, gradients[kQueryStep / 2];
  u32 packed[kQueryStep / 16][4], next_packed[kQueryStep / 16][4];
  wait_barrier(barriers.own_full, 0);
  if (params.dk == nullptr) pass_all_steps(consumer);
  bool is_left = wait_for_step(consumer).head != kNoHead;
  if (is_left) {
    start_weights(consumer, gradients);
    wait_products<0>();
    finish_weights(consumer, gradients, packed);
  }
#pragma unroll 1
  while (is_left) {
    const RingPlace<kStages> at = consumer.at;
    consumer.at.advance();
    is_left = wait_for_step(consumer).head != kNoHead;
    if (is_left) {
      start_weights(consumer, gradients);
      start_keys(consumer, dk, packed, at);
      wait_products<1>();
      finish_weights(consumer, gradients, next_packed);
    } else {
      start_keys(consumer, dk, packed, at);
    }
    wait_products<0>();
    hold(dk);
    hold_operands(packed);
    release_first(barriers, at.stage);
#pragma unroll
    for (int i = 0; i < kQueryStep / 4; ++i) packed[i / 4][i % 4] = next_packed[i / 4][i % 4];
  }
  release(barriers.own_free);  // the values; those who read the keys were a step ahead
  consumer.write_keys(dk, params);
  wait_for_output();
}
#endif
