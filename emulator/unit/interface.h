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
  unsigned (*shared_memory)();

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
  void (*copy_async)(unsigned shared, const void* global, int valid, unsigned site);
  void (*commit_copies)(unsigned site);
  void (*wait_copies)(int pending, unsigned site);

  // Tensor cores. `d` is read and written; `b` holds two words.
  void (*load_matrices)(unsigned* words, unsigned address, int transposed, unsigned site);
  void (*multiply_bf16)(float* d, const unsigned* a, const unsigned* b, unsigned site);
  void (*multiply_fp16)(float* d, const unsigned* a, const unsigned* b, unsigned site);
  void (*multiply_tf32)(float* d, const unsigned* a, const unsigned* b, unsigned site);

  // Called every 2^20 pieces of straight code, so that a loop without any wrapper ends too.
  void (*tick)();

  // Arithmetic that needs a library.
  float (*fused_multiply_add)(float a, float b, float c);
  float (*exp2)(float x);
  float (*log2)(float x);
  unsigned short (*float_to_half)(float value);
  float (*half_to_float)(unsigned short bits);
};
