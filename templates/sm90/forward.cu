//~ Forward attention for Hopper: TMA, wgmma, a producer and consumers.
#include "options.h"
#include "common/types.cuh"
#include "ptx/tensor_map.cuh"
#include "constants.h"
#include "ptx/index.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/barrier.cuh"
#include "ptx/matrix.cuh"
#include "ptx/warpgroup.cuh"
#include "products.h"
#include "mask.h"
#include "score.h"
#include "common/work.cuh"
#include "sm90/work.cuh"
#include "common/key_tiles.cuh"
#include "common/dropout.cuh"
#include "common/weights.cuh"
#include "common/softmax.cuh"
#include "common/modify_scores.cuh"
#include "common/dropout_tile.cuh"
#include "sm90/ring.cuh"
#include "sm90/told_tile.cuh"
#include "sm90/pipeline.cuh"
#include "sm90/tile_copy.cuh"
#include "sm90/produce.cuh"
#include "sm90/products.cuh"
#include "sm90/hide_scores.cuh"
#include "sm90/write.cuh"
#include "sm90/consumer.cuh"
#include "sm90/consume.cuh"

// Brings what the query tiles of this block need: one thread, by TMA.
__device__ __forceinline__ void produce_by_tma(const Params& params, u32 memory) {
  const Barriers barriers = find_barriers(memory);
  prefetch_map(params.q_map);
  prefetch_map(params.k_map);
  prefetch_map(params.v_map);
  Walk walk = {};
  Turn turn(params);
  wait_for_previous_kernel();
#pragma unroll 1
  while (turn.exists) load_tiles(params, turn, memory, barriers, walk);
#if FW_PERSISTENT
  tell_end(memory, barriers, walk.queries);
#endif
}

// The same by all threads of the warpgroup, for rows that start anywhere.
__device__ __forceinline__ void produce_by_copies(const Params& params, u32 memory) {
  const Barriers barriers = find_barriers(memory);
  Walk walk = {};
  Turn turn(params);
  const bool first = thread_index() % 128 == 0;
  wait_for_previous_kernel();
#if FW_PERSISTENT
#pragma unroll 1
  while (true) {
    wait_for_places(barriers, walk.queries);
    if (first)
      tell_work(memory, walk.queries, turn.exists ? turn.work : QueryTile{kNoTile, 0, 0, 0});
    synchronize_named<1, 128>();
    const QueryTile work = told_work(memory, walk.queries.stage);
    if (work.batch == kNoTile) break;
    copy_tiles(params, work, memory, barriers, walk);
    if (first) turn.next(params);
  }
  if (first) announce_work(barriers, walk.queries);
#else
  if (first) tell_work(memory, walk.queries, turn.work);
  copy_tiles(params, turn.work, memory, barriers, walk);
#endif
}

// The producer warpgroup. It gives most of its registers to the consumers.
__device__ __forceinline__ void produce(const Params& params, u32 memory) {
  if (params.aligned) {
    if (warp_index() % 4 == 0 && elect_lane()) produce_by_tma(params, memory);
  } else {
    produce_by_copies(params, memory);
  }
}

#if FW_PERSISTENT
// Blocks take turns in computing kTileQ rows of the output of one head.
#else
// One block computes kTileQ rows of the output of one head.
#endif
#if FW_CLUSTER
extern "C" __global__ void __cluster_dims__(kClusterBlocks, 1, 1)
    __launch_bounds__(kThreads, kBlocksPerSm) fw_forward(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory).make(params.aligned ? 1 : kClusterBlocks);
  synchronize_cluster();
#else
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_forward(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory).make();
  synchronize_block();
#endif
  start_next_kernel();  // it waits for this one, too
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    produce(params, memory);
  } else {
    take_registers<kConsumerRegisters>();
    wait_for_previous_kernel();
    consume(params, memory, group);
  }
#if FW_CLUSTER
  // No block leaves before the others have given back the stages that it filled.
  synchronize_warp();
  synchronize_cluster();
#endif
}
