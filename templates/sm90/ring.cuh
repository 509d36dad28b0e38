//~ Stages in shared memory that a producer fills and consumers give back.

// A place in a ring of kCount stages, and the parity of the phase that its barriers are in.
template <int kCount>
struct RingPlace {
  int stage;
  u32 parity;

  __device__ __forceinline__ void advance() {
    ++stage;
    if (stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// One thread of a warpgroup speaks for it: its wait has covered the products of all.
__device__ __forceinline__ void release(u32 barrier) {
  if (thread_index() % 128 == 0) arrive(barrier);
}

// What all threads of the warpgroup have written is there.
__device__ __forceinline__ void announce(u32 barrier) {
  fence_async_shared();
  synchronize_named<1, 128>();
  release(barrier);
}
