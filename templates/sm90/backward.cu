//~ Backward attention for Hopper: TMA, wgmma, producers and consumers.
#include "options.h"
#include "common/types.cuh"
#include "ptx/tensor_map.cuh"
#include "constants.h"
#include "ptx/index.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/barrier.cuh"
#include "ptx/warpgroup.cuh"
#include "products.h"
#include "mask.h"
#include "score.h"
#include "common/work.cuh"
#include "common/key_tiles.cuh"
#include "common/query_tiles.cuh"
#include "common/dropout.cuh"
#include "common/modify_scores.cuh"
#include "common/backward_rows.cuh"
#include "sm90/ring.cuh"
#include "sm90/told_tile.cuh"
#include "sm90/tile_copy.cuh"
#include "sm90/hide_scores.cuh"
#include "sm90/backward_pipeline.cuh"
#include "sm90/backward_products.cuh"
#include "sm90/backward_write.cuh"
#include "sm90/backward_add.cuh"
#include "sm90/backward_keys_produce.cuh"
#include "sm90/backward_keys.cuh"
#include "sm90/backward_keys_apart.cuh"
#include "sm90/backward_queries_produce.cuh"
#include "sm90/backward_queries.cuh"

// What the other kernels need to know of each row.
extern "C" __global__ void __launch_bounds__(kPrepareThreads)
    fw_backward_rows(const __grid_constant__ Params params) {
  start_next_kernel();  // it waits for this one
  wait_for_previous_kernel();
  prepare_rows(params);
}

// One block computes the gradients of kKeysPerBlock keys of one head, and of their values.
extern "C" __global__ void __launch_bounds__(kKeysThreads, kBlocksPerSm)
    fw_backward_keys(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory + kKeysBarriersOffset).make(4);
  synchronize_block();
  start_next_kernel();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    wait_for_previous_kernel();
    produce_queries(params, memory);
#if FW_ADDER
  } else if (group > kConsumers) {
    give_registers<kAdderRegisters>();
    wait_for_previous_kernel();
    add_all_queries(params, memory);
#endif
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_kernel();
#if FW_SPLIT_KEYS
    if (group == 0) {
      consume_queries_for_values(params, memory);
    } else {
      consume_queries_for_keys(params, memory);
    }
#else
    consume_queries(params, memory, group);
#endif
  }
}

#if !FW_SPLIT_KEYS
// The same for the values alone, where nobody wants what fw_backward_keys would compute with them.
extern "C" __global__ void __launch_bounds__(kKeysThreads, kBlocksPerSm)
    fw_backward_values(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory + kKeysBarriersOffset).make(4);
  synchronize_block();
  start_next_kernel();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    wait_for_previous_kernel();
    produce_queries(params, memory);
#if FW_ADDER
  } else if (group > kConsumers) {
    give_registers<kAdderRegisters>();  // and has nothing to add
#endif
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_kernel();
    consume_queries_for_values(params, memory, group);
  }
}
#endif

// One block computes the gradients of kTileQ queries of one head.
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_backward_queries(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory + kQueriesBarriersOffset).make(1);
  synchronize_block();
  start_next_kernel();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    wait_for_previous_kernel();
    produce_keys(params, memory);
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_kernel();
    consume_keys(params, memory, group);
  }
}

#if FW_ADD_QUERIES
// One block finishes the gradients of 64 queries of one head that fw_backward_keys has summed up.
extern "C" __global__ void __launch_bounds__(128)
    fw_backward_convert(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  start_next_kernel();
  wait_for_previous_kernel();
  convert_queries(params, memory);
}
#endif
