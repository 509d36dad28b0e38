//~ What a kernel is told of a tensor that TMA reads or writes.

// Describes a tensor in global memory, its box and its swizzle; made by the driver.
struct alignas(64) TensorMap {
  u64 word[16];
};
