//~ Barriers of sm_90: mbarriers in shared memory, named barriers, clusters, and the fences between
//~ ordinary accesses and the asynchronous proxy (TMA, wgmma).

// Makes an mbarrier of 8 bytes whose phases end after `count` arrivals. Once for each barrier, then
// publish_barriers() by the same thread and a barrier for all who use it.
__device__ __forceinline__ void init_barrier(u32 barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Lets the asynchronous proxy and the cluster see the barriers this thread has made.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase wait for `bytes` that asynchronous copies will bring.
__device__ __forceinline__ void arrive_expecting(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives at the barrier of a block of the cluster; `barrier` comes from address_in_block().
__device__ __forceinline__ void arrive_remote(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of the phase of this parity: 0 for the first, 1 for the second, 0 for the
// third. A new barrier counts as having ended a phase of parity 1.
__device__ __forceinline__ void wait_barrier(u32 barrier, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Waits at barrier kBarrier (1 to 15) until kThreads threads have come, those of arrive_named()
// counted.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void synchronize_named() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// The same with a barrier that is known only when the kernel runs.
__device__ __forceinline__ void synchronize_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Counts at the barrier and goes on.
__device__ __forceinline__ void arrive_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// What this thread has written to shared memory can then be read by TMA and wgmma, after a barrier.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The number of this block in its cluster.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Where the block `rank` of the cluster has what this one has at `address`.
__device__ __forceinline__ u32 address_in_block(u32 address, u32 rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// All threads of all blocks of the cluster meet.
__device__ __forceinline__ void synchronize_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// True in one lane of a full warp, always the same one.
__device__ __forceinline__ bool elect_lane() {
  u32 elected;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, chosen;\n"
      "}"
      : "=r"(elected)::"memory");
  return elected != 0;
}

// Registers of each thread of a warpgroup from here on, a multiple of 8; all its warps call it.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits for the kernels before this one in the stream and what they wrote.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// The next kernel in the stream may start, up to its wait.
__device__ __forceinline__ void start_next_kernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
