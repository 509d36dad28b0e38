//~ Forward attention for Hopper: TMA, wgmma, a producer and consumers.
#include "options.h"
#include "common/types.cuh"
#include "ptx/tma.cuh"
#include "constants.h"
#include "ptx/index.cuh"
#include "ptx/math.cuh"
#include "ptx/memory.cuh"
#include "ptx/barrier.cuh"
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
#include "sm90/pipeline.cuh"
#include "sm90/tile_copy.cuh"
#include "sm90/produce.cuh"
#include "sm90/products.cuh"
#include "sm90/hide_scores.cuh"
#include "sm90/write.cuh"
#include "sm90/consumer.cuh"
#include "sm90/consume.cuh"

// Brings what a query tile needs: one thread by TMA, or all of the warpgroup.
template <bool kByTma>
__device__ __forceinline__ void produce_tile(const Params& params, const QueryTile& work,
                                             u32 memory, const Barriers& barriers, Walk& walk) {
  if constexpr (kByTma) {
    load_tiles(params, work, memory, barriers, walk);
  } else {
    copy_tiles(params, work, memory, barriers, walk);
  }
}

// The same for all query tiles of this block.
template <bool kByTma>
__device__ __forceinline__ void produce_tiles(const Params& params, u32 memory) {
  const Barriers barriers = find_barriers(memory);
  Walk walk = {};
#if FW_PERSISTENT
#pragma unroll 1
  for (Turn turn(params); turn.exists; turn.next(params))
    produce_tile<kByTma>(params, turn.work, memory, barriers, walk);
  if (kByTma || thread_index() % 128 == 0) tell_end(memory, barriers, walk.queries);
#else
  produce_tile<kByTma>(params, find_work(params), memory, barriers, walk);
#endif
}

// The producer warpgroup. It gives most of its registers to the consumers.
__device__ __forceinline__ void produce(const Params& params, u32 memory) {
  if (params.aligned) {
    if (warp_index() % 4 == 0 && elect_lane()) produce_tiles<true>(params, memory);
  } else {
    produce_tiles<false>(params, memory);
  }
}

#if FW_PERSISTENT
// kPersistentBlocks blocks take turns in computing kTileQ rows of the output of one head.
#else
// One block computes kTileQ rows of the output of one head.
#endif
extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    fw_forward(const __grid_constant__ Params params) {
  const u32 memory = swizzled_memory();
  if (thread_index() == 0) find_barriers(memory).make();
  synchronize_block();
  start_next_kernel();  // it waits here, too
  wait_for_previous_kernel();
  const int group = static_cast<int>(shuffle(warp_index() / 4, 0));
  if (group == kConsumers) {
    give_registers<kProducerRegisters>();
    produce(params, memory);
  } else {
    take_registers<kConsumerRegisters>();
    consume(params, memory, group);
  }
}
