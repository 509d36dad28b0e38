//~ TMA: boxes of a tensor and rows of bytes between global and shared memory, by one thread.

// Shared memory whose address is a multiple of 1024: a swizzled tile starts where its pattern does.
__device__ __forceinline__ u32 swizzled_memory() {
  extern __shared__ __align__(1024) unsigned char tiles[];
  return static_cast<u32>(__cvta_generic_to_shared(tiles));
}

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Starts to load the box that begins at element (x, y, z, w), x along the row. What lies outside of
// the tensor becomes 0 and counts all the same: `barrier` gets the bytes of the whole box. For this
// and all other boxes x is a multiple of 16 bytes, even outside: else the instruction is illegal.
__device__ __forceinline__ void load_box(u32 shared, const TensorMap& map, u32 barrier, int x,
                                         int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// The same in five dimensions.
__device__ __forceinline__ void load_box_5d(u32 shared, const TensorMap& map, u32 barrier, int x,
                                            int y, int z, int w, int v) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
      : "memory");
}

// Loads into all blocks of the cluster that have a bit in `blocks`, at the same place in each, and
// tells the barrier at the same place in each.
__device__ __forceinline__ void load_box_to_blocks(u32 shared, const TensorMap& map, u32 barrier,
                                                   int x, int y, int z, int w, u16 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
      : "memory");
}

// Starts to store a box. What lies behind the ends of the tensor is left out, if its rows are
// multiples of 16 bytes; nothing may lie before it: x, y, z and w are at least 0. Belongs to the
// open group of stores of this thread.
__device__ __forceinline__ void store_box(const TensorMap& map, u32 shared, int x, int y, int z,
                                          int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(shared), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Adds a box to the tensor instead, element by element.
__device__ __forceinline__ void add_box(const TensorMap& map, u32 shared, int x, int y, int z,
                                        int w) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group "
      "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(shared), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Starts to load `bytes` in a row; these and both addresses are multiples of 16.
__device__ __forceinline__ void load_row(u32 shared, const void* global, int bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void store_row(void* global, u32 shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void add_row(float* global, u32 shared, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(shared), "r"(bytes)
      : "memory");
}

// Closes the group of the stores that this thread has started.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most kPending groups still read from shared memory.
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until at most kPending groups are not yet in global memory.
template <int kPending>
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
