//~ The consumers of fw_backward_keys: gradients of keys and values.
//~
//~ A consumer owns 64 keys of one head and meets all queries that see them. It computes scores with
//~ keys as rows, so that weights are left operands as they are: those of a lane are of two keys, g
//~ and g + 8 of the warp's sixteen, and of the queries 8n + 2t and 8n + 2t + 1 of each column n of
//~ accumulators.

#if FW_BLOCKS
// Clears the weights of keys that a query does not see. `key` is the lane's first.
__device__ __forceinline__ void hide_weights(float (&weights)[kPartQueries / 2],
                                             const Params& params, const KeyTile& work,
                                             const Step& step, int key) {
  const int first = step.first + lane_index() % 4 * 2;
  const int words = (params.block_kv + 31) / 32;
#pragma unroll
  for (int n = 0; n < kPartQueries / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = first + n * 8 + i;
      const bool exists = query < step.end;
      const u32* bits = params.partial_bits;
      if (step.partial >= 0 && exists)
        bits += (static_cast<i64>(step.partial) * params.block_q + query % params.block_q) * words;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own = key + half * 8;
        bool visible = exists && own < work.key_end;
        if (visible && step.partial >= 0) {
          const int bit = own % params.block_kv;
          visible = (load_global(bits + bit / 32) >> bit % 32 & 1) != 0;
        }
        if (!visible) weights[4 * n + 2 * half + i] = 0.0f;
      }
    }
  }
}
#else
// Clears the weights of keys that a query does not see. `key` is the lane's first.
__device__ __forceinline__ void hide_weights(float (&weights)[kPartQueries / 2],
                                             const Params& params, const KeyTile& work,
                                             const Step& step, int key) {
  const int first = step.first + lane_index() % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int own = key + half * 8;
    const RowRange queries = visible_rows(params, own, own);
    const int begin = queries.begin - first;
    const int end = own < work.key_end ? queries.end - first : begin;
#pragma unroll
    for (int n = 0; n < kPartQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (n * 8 + i < begin || n * 8 + i >= end) weights[4 * n + 2 * half + i] = 0.0f;
    }
  }
}
#endif

// A consumer on its way.
struct KeysConsumer {
  int group;                          // which of the consumers
  int part;                           // which 64 keys of the block are its own
  u32 keys, values;                   // those, in shared memory
  u32 queries, outputs, rows, steps;  // the first stage of each
  Barriers barriers;
  KeyTile work;
  int key;                  // the first of the lane
  WarpQueries own_queries;  // that see some of the 64 keys
  RingPlace<kStages> at;
  float scale_log2;
#if FW_SPLIT_KEYS
  u32 shared;              // the first slot
  RingPlace<kSlots> slot;  // of weights
#endif
#if FW_ADD_QUERIES
  u32 shared;              // the first slot
  RingPlace<kSlots> slot;  // of gradients of scores
#if !FW_ADDER
  // The keys of all consumers, the place that sums leave from, and whose turn it is to make those.
  u32 all_keys, sums;
  int turn;
#endif
#endif

  __device__ __forceinline__ void start(const Params& params, u32 memory, int own_group) {
    group = own_group;
    part = kKeysPerBlock == 64 ? 0 : group;
    work = find_key_tile(params);
    keys = memory + part * kOwnKeysStride;
    values = memory + kOwnValuesOffset + part * kOwnValuesStride;
    queries = memory + kStepQueriesOffset;
    outputs = memory + kStepOutputsOffset;
    rows = memory + kRowsOffset;
    steps = memory + kStepsOffset;
    barriers = find_barriers(memory + kKeysBarriersOffset);
    key = work.key_begin + part * 64 + warp_index() % 4 * 16 + lane_index() / 4;
    own_queries.start(params, work, part * 64, 64);
    at = {};
#if FW_SPLIT_KEYS
    shared = memory + kSharedOffset;
    slot = {};
#endif
#if FW_ADD_QUERIES
    shared = memory + kSharedOffset;
    slot = {};
#if !FW_ADDER
    all_keys = memory;
    sums = memory + kSumsOffset + group * kSumsStride;
    turn = 0;
#endif
#endif
#if FW_SOFTCAP
    scale_log2 = params.softcap_log2;
#else
    scale_log2 = params.scale_log2;
#endif
  }

#if FW_BLOCKS
  // Lists tell of whole blocks only.
  __device__ __forceinline__ bool is_seen(const Step& step) const { return true; }
#else
  // Whether some query of a step sees one of the keys.
  __device__ __forceinline__ bool is_seen(const Step& step) const {
    return step.first < own_queries.rows.end && step.first + kQueryStep > own_queries.rows.begin;
  }
#endif

  // Where the numbers of the rows of the step at hand lie.
  __device__ __forceinline__ u32 numbers() const { return rows + at.stage * kRowsStride; }

  // Four of them: of the queries of the lane in two tiles of accumulators from 2 * pair on.
  __device__ __forceinline__ Bytes16 row_words(u32 numbers, int list, int pair) const {
    return load_shared_16(numbers + (list * kQueryStep + pair * 16 + lane_index() % 4 * 4) * 4);
  }

#if FW_DROPOUT
  // Whether a weight is kept, of the words that row_words() has read.
  __device__ __forceinline__ bool kept(u32 word, int half) const {
    return (word >> (warp_index() % 2 * 16 + lane_index() / 4 + half * 8) & 1) != 0;
  }

  // The list of keep words for the keys of the warp.
  __device__ __forceinline__ int keep_list() const { return 2 + part * 2 + warp_index() % 4 / 2; }
#endif

  // Turns scores into weights, and rounds these for the products with gradients of outputs.
#if FW_SOFTCAP
  // Then they get the derivative of the cap as a factor.
#endif
  __device__ __forceinline__ void soften(float (&scores)[kPartQueries / 2],
                                         u32 (&packed)[kPartQueries / 16][4], const Params& params,
                                         const Step& step, u32 numbers) const {
#if FW_ALIBI
    const float slope = find_slope(params, {work.batch, step.head, 0, 0}, scale_log2);
    const float distance =
        static_cast<float>(key - step.first - lane_index() % 4 * 2 - params.q_position);
#endif
#if FW_SOFTCAP
    float derivatives[kPartQueries / 2];
#endif
#if FW_SOFTCAP || FW_ALIBI
#pragma unroll
    for (int i = 0; i < kPartQueries / 2; ++i) {
#if FW_SOFTCAP
      derivatives[i] = derivative(params, scores[i]);
#endif
#if FW_ALIBI
      const int further = i % 4 / 2 * 8 - i / 4 * 8 - i % 2;
      scores[i] = modified(params, scores[i], slope, distance + static_cast<float>(further));
#else
      scores[i] = modified(params, scores[i]);
#endif
    }
#endif
#pragma unroll
    for (int pair = 0; pair < kPartQueries / 16; ++pair) {
      const Bytes16 lse = row_words(numbers, 0, pair);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& score = scores[8 * pair + i];
        score = exp2_approx(
            fused_multiply_add(score, scale_log2, -bits_float(lse.word[i / 4 * 2 + i % 2])));
      }
    }
    if (step.test != 0) hide_weights(scores, params, work, step, key);
#if FW_DROPOUT
    round(packed, scores, numbers);
#else
    pack<kPartQueries>(packed, scores);
#endif
#if FW_SOFTCAP
#pragma unroll
    for (int i = 0; i < kPartQueries / 2; ++i) scores[i] *= derivatives[i];
#endif
  }

#if FW_DROPOUT
  // Makes the weights that are dropped negative, and rounds the others for the products with
  // gradients of outputs.
  __device__ __forceinline__ void round(u32 (&packed)[kPartQueries / 16][4],
                                        float (&weights)[kPartQueries / 2], u32 numbers) const {
#pragma unroll
    for (int pair = 0; pair < kPartQueries / 16; ++pair) {
      const Bytes16 words = row_words(numbers, keep_list(), pair);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float &first = weights[8 * pair + 2 * j], &second = weights[8 * pair + 2 * j + 1];
        if (!kept(words.word[j / 2 * 2], j % 2)) first = -first;
        if (!kept(words.word[j / 2 * 2 + 1], j % 2)) second = -second;
        packed[pair][j] = pack_pair_positive(first, second);
      }
    }
  }
#endif

#if FW_DROPOUT
  // The gradient of a score. That of the weight counts where it is kept, and its sum everywhere.
  __device__ __forceinline__ float score_gradient(float weight, float gradient, float sum) const {
    return fused_multiply_add(larger_float(weight, 0.0f), gradient, -(magnitude(weight) * sum));
  }
#else
  // The gradient of a score.
  __device__ __forceinline__ float score_gradient(float weight, float gradient, float sum) const {
    return weight * (gradient - sum);
  }
#endif

  // Turns weights and their gradients into gradients of the scores, rounded for the products with
  // queries.
  __device__ __forceinline__ void differentiate(const float (&weights)[kPartQueries / 2],
                                                const float (&gradients)[kPartQueries / 2],
                                                u32 (&scores)[kPartQueries / 16][4],
                                                u32 numbers) const {
#pragma unroll
    for (int pair = 0; pair < kPartQueries / 16; ++pair) {
      const Bytes16 sums = row_words(numbers, 1, pair);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int place = 8 * pair + 2 * j, query = j / 2 * 2;
        scores[pair][j] = pack_pair(
            score_gradient(weights[place], gradients[place], bits_float(sums.word[query])),
            score_gradient(weights[place + 1], gradients[place + 1],
                           bits_float(sums.word[query + 1])));
      }
    }
  }

#if FW_ADD_QUERIES
  // Lays gradients of scores down where all consumers find them, keys as rows.
  __device__ __forceinline__ void lay_scores(const u32 (&packed)[kPartQueries / 16][4],
                                             int first) const {
    const u32 tile = shared + slot.stage * kSharedStride;
    const int row = group * 64 + warp_index() % 4 * 16 + lane_index() % 16;
    if (first == 0) wait_barrier(barriers.shared_empty + slot.stage * 8, slot.parity ^ 1);
    const u32 place = element_address<kKeysPerBlock, 128>(tile, row, first + lane_index() / 16 * 8);
#pragma unroll
    for (int pair = 0; pair < kPartQueries / 16; ++pair)
      store_matrices(place ^ pair * 32, packed[pair]);  // columns further on, in the same row
  }

  // Those of the whole step lie there.
  __device__ __forceinline__ void share() const {
    fence_async_shared();
    synchronize_warp();
    if (lane_index() == 0) arrive(barriers.shared_full + slot.stage * 8);
  }

  // The same where no query of the step sees one of the keys.
  __device__ __forceinline__ void share_nothing() const {
    const u32 packed[kPartQueries / 16][4] = {};
#pragma unroll
    for (int first = 0; first < kQueryStep; first += kPartQueries) lay_scores(packed, first);
    share();
  }
#endif

#if FW_MASK
  // Goes past a step whose queries see none of the keys.
  __device__ __forceinline__ void pass_step(const Params& params) const {
    pass_second(barriers, at, group);
#if FW_ADD_QUERIES
    if (params.dq != nullptr) share_nothing();
#endif
  }
#endif

#if FW_TWO_PARTS
  // The scores of half a step.
  struct Part {
    float scores[kPartQueries / 2], gradients[kPartQueries / 2];
    u32 packed[kPartQueries / 16][4];
  };

  // Adds what a step contributes to gradients of values, and starts the product that adds it to
  // those of keys; `packed_gradients` are its last operands until it has ended. While the scores of
  // one half of the queries become weights, products of the other run.
  __device__ __forceinline__ void start_step(float (&dk)[kHeadDim / 2], float (&dv)[kHeadDimV / 2],
                                             u32 (&packed_gradients)[kPartQueries / 16][4],
                                             const Params& params, const Step& step) const {
    const u32 first_queries = queries + at.stage * kStepQueriesStride;
    const u32 first_outputs = outputs + at.stage * kStepOutputsStride;
    const u32 next_queries = first_queries + kPartQueries * kSwizzle;
    const u32 next_outputs = first_outputs + kPartQueries * kSwizzleV;
    const u32 next_numbers = numbers() + kPartQueries * 4;
    Step next_step = step;
    next_step.first += kPartQueries;
    Part first, next;
    u32 first_gradients[kPartQueries / 16][4];
    fence_products();
    start_product<kPartQueries, kDepth, kSwizzle, kQueryStep>(first.scores, keys, first_queries);
    start_product<kPartQueries, kDepth, kSwizzle, kQueryStep>(next.scores, keys, next_queries);
    wait_barrier(barriers.second_full + at.stage * 8, at.parity);
    fence_products();
    start_product<kPartQueries, kDepthV, kSwizzleV, kQueryStep>(first.gradients, values,
                                                                first_outputs);
    wait_products<2>();
    hold(first.scores);
    soften(first.scores, first.packed, params, step, numbers());
    fence_products();
    start_gradient<kPartQueries, kSwizzleV, kQueryStep>(dv, first.packed, first_outputs);
    wait_products<1>();
    hold(next.scores);
    hold(first.gradients);
    differentiate(first.scores, first.gradients, first_gradients, numbers());
    fence_products();
    start_product<kPartQueries, kDepthV, kSwizzleV, kQueryStep>(next.gradients, values,
                                                                next_outputs);
    start_gradient<kPartQueries, kSwizzle, kQueryStep>(dk, first_gradients, first_queries);
    soften(next.scores, next.packed, params, next_step, next_numbers);
    fence_products();
    start_gradient<kPartQueries, kSwizzleV, kQueryStep>(dv, next.packed, next_outputs);
    wait_products<2>();
    hold(next.gradients);
    differentiate(next.scores, next.gradients, packed_gradients, next_numbers);
#if FW_ADD_QUERIES
    if (params.dq != nullptr) {
      lay_scores(first_gradients, 0);
      lay_scores(packed_gradients, kPartQueries);
      share();
    }
#endif
    fence_products();
    start_gradient<kPartQueries, kSwizzle, kQueryStep>(dk, packed_gradients, next_queries);
    wait_products<1>();
    hold(dv);
    release(barriers.second_empty + at.stage * 8);
  }
#elif !FW_SPLIT_KEYS
  // Adds what a step contributes to gradients of values, and starts the product that adds it to
  // those of keys; `packed_gradients` are its operands until it has ended.
  __device__ __forceinline__ void start_step(float (&dk)[kHeadDim / 2], float (&dv)[kHeadDimV / 2],
                                             u32 (&packed_gradients)[kPartQueries / 16][4],
                                             const Params& params, const Step& step) const {
    const u32 step_queries = queries + at.stage * kStepQueriesStride;
    const u32 step_outputs = outputs + at.stage * kStepOutputsStride;
    float scores[kQueryStep / 2], gradients[kQueryStep / 2];
    u32 packed[kPartQueries / 16][4];
    fence_products();
    start_product<kQueryStep, kDepth, kSwizzle>(scores, keys, step_queries);
    wait_barrier(barriers.second_full + at.stage * 8, at.parity);
    fence_products();
    start_product<kQueryStep, kDepthV, kSwizzleV>(gradients, values, step_outputs);
    wait_products<1>();
    hold(scores);
    soften(scores, packed, params, step, numbers());
    fence_products();
    start_gradient<kQueryStep, kSwizzleV>(dv, packed, step_outputs);
    wait_products<1>();
    hold(gradients);
    differentiate(scores, gradients, packed_gradients, numbers());
#if FW_ADD_QUERIES
    if (params.dq != nullptr) {
      lay_scores(packed_gradients, 0);
      share();
    }
#endif
    fence_products();
    start_gradient<kQueryStep, kSwizzle>(dk, packed_gradients, step_queries);
    wait_products<1>();
    hold(dv);
    release(barriers.second_empty + at.stage * 8);
  }

#endif

#if !FW_SPLIT_KEYS
  // Adds what a step contributes to gradients of values, and nothing else.
  __device__ __forceinline__ void add_values(float (&dv)[kHeadDimV / 2], const Params& params,
                                             const Step& step) const {
    wait_barrier(barriers.second_full + at.stage * 8, at.parity);
#pragma unroll 1
    for (int first = 0; first < kQueryStep; first += kPartQueries) {
      float scores[kPartQueries / 2];
      u32 packed[kPartQueries / 16][4];
      Step part = step;
      part.first += first;
      fence_products();
      start_product<kPartQueries, kDepth, kSwizzle, kQueryStep>(
          scores, keys, queries + at.stage * kStepQueriesStride + first * kSwizzle);
      wait_products<0>();
      hold(scores);
      soften(scores, packed, params, part, numbers() + first * 4);
      fence_products();
      start_gradient<kPartQueries, kSwizzleV, kQueryStep>(
          dv, packed, outputs + at.stage * kStepOutputsStride + first * kSwizzleV);
      wait_products<0>();
      hold(dv);
    }
    release(barriers.second_empty + at.stage * 8);
  }

  // Until gradients of keys are complete up to this step.
  __device__ __forceinline__ void finish_step(float (&dk)[kHeadDim / 2]) const {
    wait_products<0>();
    hold(dk);
    release_first(barriers, at.stage);
  }
#endif

#if FW_ADD_QUERIES && !FW_ADDER
  // The same, and adds what all keys of the block contribute to gradients of the step's queries.
  __device__ __forceinline__ void make_queries(float (&dk)[kHeadDim / 2], const Params& params,
                                               const Step& step) const {
    float dq[kQueryStep / 64][kHeadDim / 2];
    wait_barrier(barriers.shared_full + slot.stage * 8, slot.parity);
    fence_products();
#pragma unroll
    for (int i = 0; i < kQueryStep / 64; ++i)
      start_queries(dq[i], shared + slot.stage * kSharedStride + i * kKeysPerBlock * 128, all_keys);
    wait_products<kQueryStep / 64>();
    hold(dk);
    release_first(barriers, at.stage);
    wait_products<0>();
#pragma unroll
    for (int i = 0; i < kQueryStep / 64; ++i) hold(dq[i]);
    release(barriers.shared_empty + slot.stage * 8);
    add_queries<0>(dq, sums, tile_sums(params, work.batch, step.head, step.first), group);
  }
#endif

  // Writes 64 rows of a gradient, unless nobody wants it.
  __device__ __forceinline__ void write_keys(const float (&dk)[kHeadDim / 2],
                                             const Params& params) const {
    if (params.dk == nullptr) return;
    Element* rows =
        params.dk + work.batch * params.dk_batch_stride + work.head * params.dk_head_stride;
    write_rows<kHeadDim, kSwizzle>(
        dk, numerator(params) * params.softmax_scale, keys,
        {params.dk_map, rows, params.dk_row_stride, work.batch, work.head,
         work.key_begin + part * 64, work.key_end, params.seq_kv},
        params.aligned != 0, group);
  }

  __device__ __forceinline__ void write_values(const float (&dv)[kHeadDimV / 2],
                                               const Params& params) const {
    if (params.dv == nullptr) return;
    Element* rows =
        params.dv + work.batch * params.dv_batch_stride + work.head * params.dv_head_stride;
    write_rows<kHeadDimV, kSwizzleV>(
        dv, numerator(params), values,
        {params.dv_map, rows, params.dv_row_stride, work.batch, work.head,
         work.key_begin + part * 64, work.key_end, params.seq_kv},
        params.aligned != 0, group);
  }
};

#if !FW_SPLIT_KEYS
// A consumer warpgroup of fw_backward_values.
__device__ __forceinline__ void consume_queries_for_values(const Params& params, u32 memory,
                                                           int group) {
  KeysConsumer consumer;
  consumer.start(params, memory, group);
  float dv[kHeadDimV / 2] = {};
  wait_barrier(consumer.barriers.own_full, 0);
#pragma unroll 1
  while (true) {
    RingPlace<kStages>& at = consumer.at;
    wait_barrier(consumer.barriers.first_full + at.stage * 8, at.parity);
    const Step step = told_step(consumer.steps + at.stage * 32);
    if (step.head == kNoHead) break;
#if FW_MASK
    if (consumer.is_seen(step)) {
      consumer.add_values(dv, params, step);
    } else {
      consumer.pass_step(params);
    }
#else
    consumer.add_values(dv, params, step);
#endif
    release_first(consumer.barriers, at.stage);
    at.advance();
  }
  consumer.write_values(dv, params);
  wait_for_output();
}

// A consumer warpgroup of fw_backward_keys.
__device__ __forceinline__ void consume_queries(const Params& params, u32 memory, int group) {
  KeysConsumer consumer;
  consumer.start(params, memory, group);
  const Barriers& barriers = consumer.barriers;
  float dk[kHeadDim / 2] = {}, dv[kHeadDimV / 2] = {};
  wait_barrier(barriers.own_full, 0);
#pragma unroll 1
  while (true) {
    RingPlace<kStages>& at = consumer.at;
    wait_barrier(barriers.first_full + at.stage * 8, at.parity);
    const Step step = told_step(consumer.steps + at.stage * 32);
    if (step.head == kNoHead) break;
    u32 packed_gradients[kPartQueries / 16][4];
#if FW_MASK
    if (consumer.is_seen(step)) {
      consumer.start_step(dk, dv, packed_gradients, params, step);
    } else {
      consumer.pass_step(params);
    }
#else
    consumer.start_step(dk, dv, packed_gradients, params, step);
#endif
#if FW_ADDER
    consumer.finish_step(dk);
    consumer.slot.advance();
#elif FW_ADD_QUERIES
    if (params.dq != nullptr && consumer.turn == group) {
      consumer.make_queries(dk, params, step);
    } else {
      consumer.finish_step(dk);
    }
    consumer.slot.advance();
    consumer.turn = consumer.turn + 1 == kConsumers ? 0 : consumer.turn + 1;
#else
    consumer.finish_step(dk);
#endif
    at.advance();
  }
#if FW_ADD_QUERIES && !FW_ADDER
  release(barriers.own_free);
#endif
#if FW_ADD_QUERIES
  wait_barrier(barriers.own_free, 0);
#endif
  consumer.write_values(dv, params);
  consumer.write_keys(dk, params);
  wait_for_output();
}
#endif
