#include "emulator/wrapper_table.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace flashwright::emulator {
namespace {

// A default argument is evaluated where the function is called: so a wrapper knows the caller's line.
#define LINE "int line = __builtin_LINE()"
#define LOAD(TYPE)                  \
  "(u32 address, " LINE ") { " TYPE \
  " v; fw_emulator->load_shared(&v, address, sizeof v, FW_SITE(#)); return v; }"
#define SEEN(VALUE) "fw_seen(" #VALUE ", FW_SITE(#))"
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
    {"block_count", "return gridDim.x;",
     "inline i64 block_count() { return fw_emulator->block_count(); }"},
    {"grid_index", "\"mov.u64 %0, %%gridid;\"",
     "inline u64 grid_index() { return fw_emulator->grid_index(); }"},
    {"synchronize_block", "__syncthreads();",
     "inline void synchronize_block(" LINE ") { fw_emulator->synchronize_block(FW_SITE(#)); }"},
    {"synchronize_warp", "__syncwarp();",
     "inline void synchronize_warp(" LINE ") { fw_emulator->synchronize_warp(FW_SITE(#)); }"},
    {"shuffle_xor", "__shfl_xor_sync(0xffffffffu, value, bits)",
     "inline float shuffle_xor(float value, int bits, " LINE
     ") { return fw_float(fw_emulator->shuffle_xor(fw_bits(" SEEN(
         value) "), bits, FW_SITE(#))); }"},
    {"shuffle", "__shfl_sync(0xffffffffu, value, lane)",
     "inline u32 shuffle(u32 value, int lane, " LINE
     ") { return fw_emulator->shuffle(value, lane, FW_SITE(#)); }"},
    {"any_lane", "__any_sync(0xffffffffu, condition)",
     "inline bool any_lane(bool condition, " LINE
     ") { return fw_emulator->any_lane(condition, FW_SITE(#)) != 0; }"},
    // templates/ptx/math.cuh
    {"larger_float", "\"max.f32 %0, %1, %2;\"",
     "inline float larger_float(float a, float b, " LINE
     ") { return fw_larger(" SEEN(a) ", " SEEN(b) "); }"},
    {"magnitude", "\"abs.f32 %0, %1;\"",
     "inline float magnitude(float a, " LINE
     ") { return fw_float(fw_bits(" SEEN(a) ") & 0x7fffffffu); }"},
    {"multiply", "\"mul.rn.f32 %0, %1, %2;\"",
     "inline float multiply(float a, float b, " LINE
     ") { return fw_one_nan(" SEEN(a) " * " SEEN(b) "); }"},
    {"fused_multiply_add", "\"fma.rn.f32 %0, %1, %2, %3;\"",
     "inline float fused_multiply_add(float a, float b, float c, " LINE
     ") { return fw_emulator->fused_multiply_add(" SEEN(a) ", " SEEN(b) ", " SEEN(c) "); }"},
    {"exp2_approx", "\"ex2.approx.ftz.f32 %0, %1;\"",
     "inline float exp2_approx(float x, " LINE ") { return fw_emulator->exp2(" SEEN(x) "); }"},
    {"tanh_approx", "\"tanh.approx.f32 %0, %1;\"",
     "inline float tanh_approx(float x, " LINE ") { return fw_emulator->tanh(" SEEN(x) "); }"},
    {"log2_approx", "\"lg2.approx.f32 %0, %1;\"",
     "inline float log2_approx(float x, " LINE ") { return fw_emulator->log2(" SEEN(x) "); }"},
    {"reciprocal_approx", "\"rcp.approx.ftz.f32 %0, %1;\"",
     "inline float reciprocal_approx(float x, " LINE
     ") { return fw_emulator->reciprocal(" SEEN(x) "); }"},
    {"float_bits", "\"mov.b32 %0, %1;\"",
     "inline u32 float_bits(float value, " LINE ") { return fw_bits(" SEEN(value) "); }"},
    {"bits_float", "\"mov.b32 %0, %1;\"",
     "inline float bits_float(u32 bits) { return fw_float(bits); }"},
    {"pack_pair",
     "asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(pair) : \"f\"(second), \"f\"(first));",
     "inline u32 pack_pair(float first, float second, " LINE
     ") { return fw_pair(fw_bfloat(" SEEN(first) "), fw_bfloat(" SEEN(second) ")); }"},
    {"pack_pair",
     "asm(\"cvt.rn.f16x2.f32 %0, %1, %2;\" : \"=r\"(pair) : \"f\"(second), \"f\"(first));",
     "inline u32 pack_pair(float first, float second, " LINE
     ") { return fw_pair(fw_emulator->float_to_half(" SEEN(
         first) "), fw_emulator->float_to_half(" SEEN(second) ")); }"},
    {"pack_pair_positive",
     "asm(\"cvt.rn.relu.bf16x2.f32 %0, %1, %2;\" : \"=r\"(pair) : \"f\"(second), \"f\"(first));",
     "inline u32 pack_pair_positive(float first, float second, " LINE
     ") { first = fw_positive(" SEEN(first) "); second = fw_positive(" SEEN(
         second) "); return fw_pair(fw_bfloat(first), fw_bfloat(second)); }"},
    {"pack_pair_positive",
     "asm(\"cvt.rn.relu.f16x2.f32 %0, %1, %2;\" : \"=r\"(pair) : \"f\"(second), \"f\"(first));",
     "inline u32 pack_pair_positive(float first, float second, " LINE
     ") { first = fw_positive(" SEEN(first) "); second = fw_positive(" SEEN(
         second) "); return fw_pair(fw_emulator->float_to_half(first), "
                 "fw_emulator->float_to_half(second)); }"},
    {"to_element", "\"cvt.rn.bf16.f32 %0, %1;\"",
     "inline u16 to_element(float value, " LINE ") { return fw_bfloat(" SEEN(value) "); }", true},
    {"to_element", "\"cvt.rn.f16.f32 %0, %1;\"",
     "inline u16 to_element(float value, " LINE
     ") { return fw_emulator->float_to_half(" SEEN(value) "); }",
     true},
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
     "inline void store_shared_float(u32 address, float value, " LINE
     ") { " SEEN(value) "; " STORE},
    {"store_shared_float2", "\"st.shared.v2.f32 [%0], {%1, %2};\"",
     "inline void store_shared_float2(u32 address, float x, float y, " LINE
     ") { const float value[2] = {" SEEN(x) ", " SEEN(y) "}; " STORE},
    {"store_shared_16", "\"st.shared.v4.u32 [%0], {%1, %2, %3, %4};\"",
     "inline void store_shared_16(u32 address, const u32 (&value)[4], " LINE ") { " STORE},
    {"store_shared_u16", "\"st.shared.u16 [%0], %1;\"",
     "inline void store_shared_u16(u32 address, u16 value, " LINE ") { " STORE},
    {"store_shared_u32", "\"st.shared.u32 [%0], %1;\"",
     "inline void store_shared_u32(u32 address, u32 value, " LINE ") { " STORE},
    {"load_global", "return *pointer;",
     "template <typename Value> inline Value load_global(const Value* pointer, " LINE
     ") { Value v; fw_emulator->load_global(&v, pointer, sizeof v, FW_SITE(#)); return v; }"},
    {"store_global", "*pointer = value;",
     "template <typename Value> inline void store_global(Value* pointer, Value value, " LINE
     ") { fw_seen_any(value, FW_SITE(#)); fw_emulator->store_global(pointer, &value, sizeof value, "
     "FW_SITE(#)); }"},
    {"compare_and_swap", "\"atom.global.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;\"",
     "inline u64 compare_and_swap(u64* address, u64 expected, u64 value, " LINE
     ") { return fw_emulator->compare_and_swap(address, expected, value, FW_SITE(#)); }"},
    {"increment_within", "\"atom.global.relaxed.gpu.inc.u32 %0, [%1], %2;\"",
     "inline u32 increment_within(u32* address, u32 last, " LINE
     ") { return fw_emulator->increment_within(address, last, FW_SITE(#)); }"},
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
    // templates/ptx/barrier.cuh
    {"init_barrier", "\"mbarrier.init.shared::cta.b64 [%0], %1;\"",
     "inline void init_barrier(u32 barrier, int count, " LINE
     ") { fw_emulator->init_barrier(barrier, count, FW_SITE(#)); }"},
    {"publish_barriers", "\"fence.mbarrier_init.release.cluster;\"",
     "inline void publish_barriers(" LINE ") { fw_emulator->publish_barriers(FW_SITE(#)); }"},
    {"arrive", "\"mbarrier.arrive.shared::cta.b64 _, [%0];\"",
     "inline void arrive(u32 barrier, " LINE
     ") { fw_emulator->arrive(barrier, 0, 0, FW_SITE(#)); }"},
    {"arrive_expecting", "\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\"",
     "inline void arrive_expecting(u32 barrier, int bytes, " LINE
     ") { fw_emulator->arrive(barrier, bytes, 0, FW_SITE(#)); }"},
    {"arrive_remote", "\"mbarrier.arrive.shared::cluster.b64 _, [%0];\"",
     "inline void arrive_remote(u32 barrier, " LINE
     ") { fw_emulator->arrive(barrier, 0, 1, FW_SITE(#)); }"},
    {"wait_barrier", "\"mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n\"",
     "inline void wait_barrier(u32 barrier, u32 parity, " LINE
     ") { fw_emulator->wait_barrier(barrier, parity, FW_SITE(#)); }"},
    {"synchronize_named", "\"bar.sync %0, %1;\" ::\"n\"(kBarrier), \"n\"(kThreads)",
     "template <int kBarrier, int kThreads> inline void synchronize_named(" LINE
     ") { fw_emulator->synchronize_named(kBarrier, kThreads, FW_SITE(#)); }"},
    {"synchronize_named", "\"bar.sync %0, %1;\" ::\"r\"(barrier), \"r\"(threads)",
     "inline void synchronize_named(int barrier, int threads, " LINE
     ") { fw_emulator->synchronize_named(barrier, threads, FW_SITE(#)); }"},
    {"arrive_named", "\"bar.arrive %0, %1;\"",
     "inline void arrive_named(int barrier, int threads, " LINE
     ") { fw_emulator->arrive_named(barrier, threads, FW_SITE(#)); }"},
    {"fence_async_shared", "\"fence.proxy.async.shared::cta;\"",
     "inline void fence_async_shared(" LINE ") { fw_emulator->fence_async_shared(FW_SITE(#)); }"},
    {"cluster_rank", "\"mov.u32 %0, %%cluster_ctarank;\"",
     "inline u32 cluster_rank() { return fw_emulator->cluster_rank(); }"},
    {"address_in_block", "\"mapa.shared::cluster.u32 %0, %1, %2;\"",
     "inline u32 address_in_block(u32 address, u32 rank, " LINE
     ") { return fw_emulator->address_in_block(address, rank, FW_SITE(#)); }"},
    {"synchronize_cluster", "\"barrier.cluster.arrive.release.aligned;\\n\"",
     "inline void synchronize_cluster(" LINE ") { fw_emulator->synchronize_cluster(FW_SITE(#)); }"},
    {"elect_lane", "\"elect.sync _|chosen, 0xffffffff;\\n\"",
     "inline bool elect_lane(" LINE ") { return fw_emulator->elect_lane(FW_SITE(#)) != 0; }"},
    {"take_registers", "\"setmaxnreg.inc.sync.aligned.u32 %0;\"",
     "template <int kRegisters> inline void take_registers(" LINE
     ") { fw_emulator->set_registers(kRegisters, 1, FW_SITE(#)); }"},
    {"give_registers", "\"setmaxnreg.dec.sync.aligned.u32 %0;\"",
     "template <int kRegisters> inline void give_registers(" LINE
     ") { fw_emulator->set_registers(kRegisters, 0, FW_SITE(#)); }"},
    {"wait_for_previous_kernel", "\"griddepcontrol.wait;\"",
     "inline void wait_for_previous_kernel() {}"},
    {"start_next_kernel", "\"griddepcontrol.launch_dependents;\"",
     "inline void start_next_kernel() {}"},
    // templates/ptx/tma.cuh
    {"swizzled_memory", "extern __shared__ __align__(1024) unsigned char tiles[];",
     "inline u32 swizzled_memory() { return fw_emulator->shared_memory(); }"},
    {"prefetch_map", "\"prefetch.tensormap [%0];\"",
     "inline void prefetch_map(const TensorMap&) {}"},
    {"load_box", "\"cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes \"",
     "inline void load_box(u32 shared, const TensorMap& map, u32 barrier, int x, int y, int z, int "
     "w, " LINE ") { const int at[4] = {x, y, z, w}; fw_emulator->load_box(shared, &map, barrier, "
     "at, 4, 0, FW_SITE(#)); }"},
    {"load_box_5d",
     "\"cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes \"",
     "inline void load_box_5d(u32 shared, const TensorMap& map, u32 barrier, int x, int y, int z, "
     "int w, int v, " LINE ") { const int at[5] = {x, y, z, w, v}; fw_emulator->load_box(shared, "
     "&map, barrier, at, 5, 0, FW_SITE(#)); }"},
    {"load_box_to_blocks", "\".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;\"",
     "inline void load_box_to_blocks(u32 shared, const TensorMap& map, u32 barrier, int x, int y, "
     "int z, int w, u16 blocks, " LINE ") { const int at[4] = {x, y, z, w}; "
     "fw_emulator->load_box(shared, &map, barrier, at, 4, blocks, FW_SITE(#)); }"},
    {"store_box", "\"cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, ",
     "inline void store_box(const TensorMap& map, u32 shared, int x, int y, int z, int w, " LINE
     ") { const int at[4] = {x, y, z, w}; fw_emulator->store_box(&map, shared, at, 4, 0, "
     "FW_SITE(#)); }"},
    {"add_box", "\"cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group \"",
     "inline void add_box(const TensorMap& map, u32 shared, int x, int y, int z, int w, " LINE
     ") { const int at[4] = {x, y, z, w}; fw_emulator->store_box(&map, shared, at, 4, 1, "
     "FW_SITE(#)); }"},
    {"load_row", "\"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], ",
     "inline void load_row(u32 shared, const void* global, int bytes, u32 barrier, " LINE
     ") { fw_emulator->load_row(shared, global, bytes, barrier, FW_SITE(#)); }"},
    {"store_row", "\"cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\"",
     "inline void store_row(void* global, u32 shared, int bytes, " LINE
     ") { fw_emulator->store_row(global, shared, bytes, 0, FW_SITE(#)); }"},
    {"add_row", "\"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\"",
     "inline void add_row(float* global, u32 shared, int bytes, " LINE
     ") { fw_emulator->store_row(global, shared, bytes, 1, FW_SITE(#)); }"},
    {"commit_stores", "\"cp.async.bulk.commit_group;\"",
     "inline void commit_stores(" LINE ") { fw_emulator->commit_stores(FW_SITE(#)); }"},
    {"wait_stores_read", "\"cp.async.bulk.wait_group.read %0;\"",
     "template <int kPending> inline void wait_stores_read(" LINE
     ") { fw_emulator->wait_stores(kPending, FW_SITE(#)); }"},
    {"wait_stores", "\"cp.async.bulk.wait_group %0;\"",
     "template <int kPending> inline void wait_stores(" LINE
     ") { fw_emulator->wait_stores(kPending, FW_SITE(#)); }"},
    // templates/ptx/warpgroup.cuh
    {"fence_products", "\"wgmma.fence.sync.aligned;\"",
     "inline void fence_products(" LINE ") { fw_emulator->fence_products(FW_SITE(#)); }"},
    {"commit_products", "\"wgmma.commit_group.sync.aligned;\"",
     "inline void commit_products(" LINE ") { fw_emulator->commit_products(FW_SITE(#)); }"},
    {"wait_products", "\"wgmma.wait_group.sync.aligned %0;\"",
     "template <int kPending> inline void wait_products(" LINE
     ") { fw_emulator->wait_products(kPending, FW_SITE(#)); }"},
    {"hold", "asm volatile(\"\" : \"+f\"(d[i])::\"memory\");",
     "template <int kCount> inline void hold(float (&)[kCount]) {}"},
    {"hold_operands",
     "asm volatile(\"\" ::\"r\"(a[i][0]), \"r\"(a[i][1]), \"r\"(a[i][2]), \"r\"(a[i][3]) : "
     "\"memory\");",
     "template <int kCount> inline void hold_operands(const u32 (&)[kCount][4]) {}"},
    {"store_matrices", "\"stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\"",
     "inline void store_matrices(u32 address, const u32 (&r)[4], " LINE
     ") { fw_emulator->store_matrices(address, r, 0, FW_SITE(#)); }"},
    {"store_matrices_transposed",
     "\"stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\"",
     "inline void store_matrices_transposed(u32 address, const u32 (&r)[4], " LINE
     ") { fw_emulator->store_matrices(address, r, 1, FW_SITE(#)); }"},
};

}  // namespace

std::span<const Wrapper> wrappers() { return kWrappers; }

bool read_product(const std::string& name, const std::string& body, ProductForm& form) {
  constexpr std::string_view kPrefix = "wgmma_";
  if (!name.starts_with(kPrefix)) return false;
  const std::size_t kind = body.find("k16.f32."), number = body.find(".m64n");
  const std::size_t tail = body.find(", accumulate, 1, 1, ");
  if (kind == std::string::npos || number == std::string::npos || tail == std::string::npos)
    return false;
  form.n = std::atoi(body.c_str() + number + 5);
  form.fp16 = body.find("k16.f32.f16.f16 ") != std::string::npos;
  if (!form.fp16 && body.find("k16.f32.bf16.bf16 ") == std::string::npos) return false;
  form.first = body.find("setp.ne.u32 accumulate, 0, 0;") != std::string::npos;
  if (!form.first && body.find("setp.eq.u32 accumulate, 0, 0;") == std::string::npos) return false;
  const std::string transposes =
      body.substr(tail + 20, body.find(';', tail) - tail - 20);  // "0, 1" or "1"
  form.a_in_registers = transposes.size() == 1;
  form.a_k_major = form.a_in_registers || transposes[0] == '0';
  form.b_k_major = transposes.back() == '0';
  const auto letter = [](bool k_major) { return k_major ? "k" : "m"; };
  return name == fmt::format("wgmma_{}s_n{}_{}{}{}", form.a_in_registers ? "r" : "s", form.n,
                             form.a_in_registers ? "" : letter(form.a_k_major),
                             letter(form.b_k_major), form.first ? "_first" : "");
}

std::string product_stand_in(const std::string& name, const ProductForm& form) {
  const int bits = (form.a_k_major ? 0 : 1) | (form.b_k_major ? 0 : 2) | (form.first ? 4 : 0) |
                   (form.fp16 ? 8 : 0);
  return fmt::format(
      "inline void {}(float (&d)[{}], {}, u64 b, " LINE
      ") {{ fw_emulator->start_product(d, {}, {}, b, {}, static_cast<unsigned>(line) | {}u << 20); "
      "}}",
      name, form.n / 2, form.a_in_registers ? "const u32 (&a)[4]" : "u64 a", form.n,
      form.a_in_registers ? "a, 0" : "nullptr, a", bits, kProductRow);
}

}  // namespace flashwright::emulator
