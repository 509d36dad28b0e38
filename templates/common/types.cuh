//~ Short names for the integer types. No CUDA header is used anywhere.

using u16 = unsigned short;

using u32 = unsigned int;

using u64 = unsigned long long;

using i64 = long long;

// Sixteen bytes, the widest access to memory.
struct alignas(16) Bytes16 {
  u32 word[4];
};
