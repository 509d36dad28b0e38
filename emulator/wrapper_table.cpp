#include "emulator/wrapper_table.hpp"

namespace flashwright::emulator {
namespace {

// A default argument is evaluated where the function is called: so a wrapper knows the caller's line.
#define LINE "int line = __builtin_LINE()"
#define LOAD(TYPE)                  \
  "(u32 address, " LINE ") { " TYPE \
  " v; fw_emulator->load_shared(&v, address, sizeof v, FW_SITE(#)); return v; }"
#define STORE "fw_emulator->store_shared(address, &value, sizeof value, FW_SITE(#)); }"
#define MULTIPLY                                                                     \
  "inline void multiply_add(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, " LINE \
  ") { const u32 b[2] = {b0, b1}; "

constexpr Wrapper kWrappers[] = {
    // templates/ptx/index.cuh
    {"thread_index", "threadIdx.x",
     "inline int thread_index() { return fw_emulator->thread_index(); }"},
    {"lane_index", "static_cast<int>(threadIdx.x) % 32",
     "inline int lane_index() { return fw_emulator->thread_index() % 32; }"},
    {"warp_index", "static_cast<int>(threadIdx.x) / 32",
     "inline int warp_index() { return fw_emulator->thread_index() / 32; }"},
    {"block_index", "return blockIdx.x;",
     "inline i64 block_index() { return fw_emulator->block_index(); }"},
    {"synchronize_block", "__syncthreads();",
     "inline void synchronize_block(" LINE ") { fw_emulator->synchronize_block(FW_SITE(#)); }"},
    {"synchronize_warp", "__syncwarp();",
     "inline void synchronize_warp(" LINE ") { fw_emulator->synchronize_warp(FW_SITE(#)); }"},
    {"shuffle_xor", "__shfl_xor_sync(0xffffffffu, value, bits)",
     "inline float shuffle_xor(float value, int bits, " LINE
     ") { return fw_float(fw_emulator->shuffle_xor(fw_bits(value), bits, FW_SITE(#))); }"},
    {"shuffle", "__shfl_sync(0xffffffffu, value, lane)",
     "inline u32 shuffle(u32 value, int lane, " LINE
     ") { return fw_emulator->shuffle(value, lane, FW_SITE(#)); }"},
    {"any_lane", "__any_sync(0xffffffffu, condition)",
     "inline bool any_lane(bool condition, " LINE
     ") { return fw_emulator->any_lane(condition, FW_SITE(#)) != 0; }"},
    // templates/ptx/math.cuh
    {"larger_float", "\"max.f32 %0, %1, %2;\"",
     "inline float larger_float(float a, float b) { return a != a ? b : b != b ? a : a > b ? a : "
     "b; }"},
    {"multiply", "\"mul.rn.f32 %0, %1, %2;\"",
     "inline float multiply(float a, float b) { return a * b; }"},
    {"fused_multiply_add", "\"fma.rn.f32 %0, %1, %2, %3;\"",
     "inline float fused_multiply_add(float a, float b, float c) { return "
     "fw_emulator->fused_multiply_add(a, b, c); }"},
    {"exp2_approx", "\"ex2.approx.ftz.f32 %0, %1;\"",
     "inline float exp2_approx(float x) { return fw_emulator->exp2(x); }"},
    {"log2_approx", "\"lg2.approx.f32 %0, %1;\"",
     "inline float log2_approx(float x) { return fw_emulator->log2(x); }"},
    {"float_bits", "\"mov.b32 %0, %1;\"",
     "inline u32 float_bits(float value) { return fw_bits(value); }"},
    {"bits_float", "\"mov.b32 %0, %1;\"",
     "inline float bits_float(u32 bits) { return fw_float(bits); }"},
    {"pack_pair",
     "asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(pair) : \"f\"(second), \"f\"(first));",
     "inline u32 pack_pair(float first, float second) { return fw_bfloat(first) | "
     "static_cast<u32>(fw_bfloat(second)) << 16; }"},
    {"pack_pair",
     "asm(\"cvt.rn.f16x2.f32 %0, %1, %2;\" : \"=r\"(pair) : \"f\"(second), \"f\"(first));",
     "inline u32 pack_pair(float first, float second) { return fw_emulator->float_to_half(first) | "
     "static_cast<u32>(fw_emulator->float_to_half(second)) << 16; }"},
    {"to_element", "\"cvt.rn.bf16.f32 %0, %1;\"",
     "inline u16 to_element(float value) { return fw_bfloat(value); }", true},
    {"to_element", "\"cvt.rn.f16.f32 %0, %1;\"",
     "inline u16 to_element(float value) { return fw_emulator->float_to_half(value); }", true},
    {"to_float", "\"cvt.f32.f16 %0, %1;\"",
     "inline float to_float(u16 element) { return fw_emulator->half_to_float(element); }", true},
    {"round_tf32", "\"cvt.rna.tf32.f32 %0, %1;\"",
     "inline u32 round_tf32(float value) { return fw_tf32(value); }"},
    {"pick_bytes", "\"prmt.b32 %0, %1, %2, %3;\"",
     "inline u32 pick_bytes(u32 a, u32 b, u32 selector) { return fw_pick_bytes(a, b, selector); }"},
    // templates/ptx/memory.cuh
    {"shared_memory", "__cvta_generic_to_shared(bytes)",
     "inline u32 shared_memory() { return fw_emulator->shared_memory(); }"},
    {"load_shared_float", "\"ld.shared.f32 %0, [%1];\"",
     "inline float load_shared_float" LOAD("float")},
    {"load_shared_u16", "\"ld.shared.u16 %0, [%1];\"", "inline u16 load_shared_u16" LOAD("u16")},
    {"load_shared_16", "\"ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\"",
     "inline Bytes16 load_shared_16" LOAD("Bytes16")},
    {"store_shared_float", "\"st.shared.f32 [%0], %1;\"",
     "inline void store_shared_float(u32 address, float value, " LINE ") { " STORE},
    {"store_shared_float2", "\"st.shared.v2.f32 [%0], {%1, %2};\"",
     "inline void store_shared_float2(u32 address, float x, float y, " LINE
     ") { const float value[2] = {x, y}; " STORE},
    {"store_shared_u16", "\"st.shared.u16 [%0], %1;\"",
     "inline void store_shared_u16(u32 address, u16 value, " LINE ") { " STORE},
    {"store_shared_u32", "\"st.shared.u32 [%0], %1;\"",
     "inline void store_shared_u32(u32 address, u32 value, " LINE ") { " STORE},
    {"load_global", "return *pointer;",
     "template <typename Value> inline Value load_global(const Value* pointer, " LINE
     ") { Value v; fw_emulator->load_global(&v, pointer, sizeof v, FW_SITE(#)); return v; }"},
    {"store_global", "*pointer = value;",
     "template <typename Value> inline void store_global(Value* pointer, Value value, " LINE
     ") { fw_emulator->store_global(pointer, &value, sizeof value, FW_SITE(#)); }"},
    // templates/ptx/async_copy.cuh
    {"copy_async_16", "\"cp.async.cg.shared.global [%0], [%1], 16, %2;\"",
     "inline void copy_async_16(u32 shared, const void* global, bool valid, " LINE
     ") { fw_emulator->copy_async(shared, global, valid, FW_SITE(#)); }"},
    {"commit_copies", "\"cp.async.commit_group;\"",
     "inline void commit_copies(" LINE ") { fw_emulator->commit_copies(FW_SITE(#)); }"},
    {"wait_copies", "\"cp.async.wait_group %0;\"",
     "template <int kPending> inline void wait_copies(" LINE
     ") { fw_emulator->wait_copies(kPending, FW_SITE(#)); }"},
    // templates/ptx/matrix.cuh
    {"load_matrices", "\"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\"",
     "inline void load_matrices(u32 (&r)[4], u32 address, " LINE
     ") { fw_emulator->load_matrices(r, address, 0, FW_SITE(#)); }"},
    {"load_matrices_transposed",
     "\"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\"",
     "inline void load_matrices_transposed(u32 (&r)[4], u32 address, " LINE
     ") { fw_emulator->load_matrices(r, address, 1, FW_SITE(#)); }"},
    {"multiply_add", "\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 \"",
     MULTIPLY "fw_emulator->multiply_bf16(d, a, b, FW_SITE(#)); }", true},
    {"multiply_add", "\"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 \"",
     MULTIPLY "fw_emulator->multiply_fp16(d, a, b, FW_SITE(#)); }", true},
    {"multiply_add_tf32", "\"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 \"",
     "inline void multiply_add_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, " LINE
     ") { const u32 b[2] = {b0, b1}; fw_emulator->multiply_tf32(d, a, b, FW_SITE(#)); }"},
};

}  // namespace

std::span<const Wrapper> wrappers() { return kWrappers; }

}  // namespace flashwright::emulator
