// What an emulated kernel asks of the emulator. The same text is compiled into the unit and into the
// library, so it uses no header. `site` is the line of the emitted file with the number of the wrapper in
// its upper bits.
#pragma once

struct FwEmulator {
  // Bumped when anything below changes its meaning.
  int version;

  // Where the thread is.
  int (*thread_index)();
  long long (*block_index)();
  long long (*block_count)();
  unsigned (*shared_memory)();
  unsigned long long (*grid_index)();

  // Meetings of threads.
  void (*synchronize_block)(unsigned site);
  void (*synchronize_warp)(unsigned site);
  unsigned (*shuffle_xor)(unsigned bits, int lane_bits, unsigned site);
  unsigned (*shuffle)(unsigned bits, int lane, unsigned site);
  int (*any_lane)(int condition, unsigned site);

  // Memory.
  void (*load_shared)(void* value, unsigned address, int bytes, unsigned site);
  void (*store_shared)(unsigned address, const void* value, int bytes, unsigned site);
  void (*load_global)(void* value, const void* address, int bytes, unsigned site);
  void (*store_global)(void* address, const void* value, int bytes, unsigned site);
  unsigned long long (*compare_and_swap)(unsigned long long* address, unsigned long long expected,
                                         unsigned long long value, unsigned site);
  unsigned (*increment_within)(unsigned* address, unsigned last, unsigned site);
  void (*copy_async)(unsigned shared, const void* global, int valid, unsigned site);
  void (*commit_copies)(unsigned site);
  void (*wait_copies)(int pending, unsigned site);

  // Tensor cores. `d` is read and written; `b` holds two words.
  void (*load_matrices)(unsigned* words, unsigned address, int transposed, unsigned site);
  void (*multiply_bf16)(float* d, const unsigned* a, const unsigned* b, unsigned site);
  void (*multiply_fp16)(float* d, const unsigned* a, const unsigned* b, unsigned site);
  void (*multiply_tf32)(float* d, const unsigned* a, const unsigned* b, unsigned site);

  // Barriers of sm_90. `more`: whether registers are taken or given.
  void (*init_barrier)(unsigned barrier, int count, unsigned site);
  void (*publish_barriers)(unsigned site);
  void (*arrive)(unsigned barrier, int bytes, int remote, unsigned site);
  void (*wait_barrier)(unsigned barrier, unsigned parity, unsigned site);
  void (*synchronize_named)(int barrier, int threads, unsigned site);
  void (*arrive_named)(int barrier, int threads, unsigned site);
  void (*fence_async_shared)(unsigned site);
  unsigned (*cluster_rank)();
  unsigned (*address_in_block)(unsigned address, unsigned rank, unsigned site);
  void (*synchronize_cluster)(unsigned site);
  int (*elect_lane)(unsigned site);
  void (*set_registers)(int registers, int more, unsigned site);

  // TMA. `at`: the first element of the box; `blocks`: a bit for each block, 0 for the own one.
  void (*load_box)(unsigned shared, const void* map, unsigned barrier, const int* at, int rank,
                   unsigned blocks, unsigned site);
  void (*load_row)(unsigned shared, const void* global, int bytes, unsigned barrier, unsigned site);
  void (*store_box)(const void* map, unsigned shared, const int* at, int rank, int add,
                    unsigned site);
  void (*store_row)(void* global, unsigned shared, int bytes, int add, unsigned site);
  void (*commit_stores)(unsigned site);
  void (*wait_stores)(int pending, unsigned site);

  // wgmma. `a_words` is null when a lies in shared memory; `form` has a bit for each of: a and b are
  // not K-major, d is overwritten, elements are fp16.
  void (*fence_products)(unsigned site);
  void (*start_product)(float* d, int n, const unsigned* a_words, unsigned long long a,
                        unsigned long long b, int form, unsigned site);
  void (*commit_products)(unsigned site);
  void (*wait_products)(int pending, unsigned site);
  void (*store_matrices)(unsigned address, const unsigned* words, int transposed, unsigned site);

  // A register was used that belongs to a product under way.
  void (*touched)(unsigned site);

  // Called every 2^20 pieces of straight code, so that a loop without any wrapper ends too.
  void (*tick)();

  // Arithmetic that needs a library.
  float (*fused_multiply_add)(float a, float b, float c);
  float (*exp2)(float x);
  float (*tanh)(float x);
  float (*log2)(float x);
  float (*reciprocal)(float x);
  unsigned short (*float_to_half)(float value);
  float (*half_to_float)(unsigned short bits);
};
