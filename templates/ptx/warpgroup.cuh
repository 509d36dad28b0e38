//~ wgmma: matrix products of a warpgroup, four warps from a multiple of four on. The products
//~ themselves are printed for each shape (generator/sm90/print_wgmma.cpp).

// Before the first product that uses registers written by other instructions.
__device__ __forceinline__ void fence_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes the group of the products started since the last one.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending groups are in flight. The registers of those before may then be
// used, and the shared memory they read may be written.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps what follows from using the accumulators before this point.
template <int kCount>
__device__ __forceinline__ void hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Keeps a left operand in its registers up to this point: behind a branch the compiler takes them
// for free as soon as the product has started.
template <int kCount>
__device__ __forceinline__ void hold_operands(const u32 (&a)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]) : "memory");
}

// Describes a tile of 16-bit elements in shared memory, stored in slabs whose rows are as long as
// the swizzle: 128, 64 or 32 bytes. `next_rows`: bytes from eight rows to the next eight;
// `next_slab`: bytes from slab to slab, which only a tile that is read across its rows needs.
template <int kSwizzle>
__device__ __forceinline__ u64 tile_descriptor(u32 address, int next_rows, int next_slab) {
  constexpr u64 kMode = kSwizzle == 128 ? 1 : kSwizzle == 64 ? 2 : 3;
  return kMode << 62 | static_cast<u64>(next_rows >> 4 & 0x3fff) << 32 |
         static_cast<u64>(next_slab >> 4 & 0x3fff) << 16 | (address >> 4 & 0x3fff);
}

// The same tile some bytes further on. Steps that are known when the kernel is compiled cost one
// addition: they change the lower word only, as shared memory ends before the sum could overflow.
__device__ __forceinline__ u64 advance_descriptor(u64 descriptor, int bytes) {
  const u32 low = static_cast<u32>(descriptor) + (bytes >> 4);
  return descriptor >> 32 << 32 | low;
}

// Stores four 8 x 8 matrices of 16-bit elements. Lanes 8i..8i+7 give the addresses of the rows of
// matrix i; lane l gives the two elements of row l / 4 from column l % 4 * 2 on in r[i].
__device__ __forceinline__ void store_matrices(u32 address, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void store_matrices_transposed(u32 address, const u32 (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}
