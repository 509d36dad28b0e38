/* flashwright: exact attention kernels, generated, compiled, tuned and cached at run time.
 *
 * The C interface (C99) and the only exported symbols. Every function that can fail returns a
 * status; the words of the last failure in this thread are in flashwright_last_error. Functions may
 * be called from any thread. Texts are UTF-8; a `char*` that a function hands out belongs to the
 * caller, who gives it back to flashwright_free. The JSON of a Config is described in
 * docs/configuration.md. */
#ifndef FLASHWRIGHT_H
#define FLASHWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define FLASHWRIGHT_API
#else
#define FLASHWRIGHT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t flashwright_status;
enum {
  FLASHWRIGHT_OK = 0,
  FLASHWRIGHT_BAD_ARGUMENT = 1,   /* a value is not allowed; the message names it */
  FLASHWRIGHT_UNSUPPORTED = 2,    /* no kernel family can do it; the message lists every reason */
  FLASHWRIGHT_NOT_CACHED = 3,     /* the effort allowed was too small */
  FLASHWRIGHT_COMPILE_FAILED = 4, /* the compiler refused a kernel; its log is the detail */
  FLASHWRIGHT_UNAVAILABLE = 5,    /* a driver, a compiler or a device is missing */
  FLASHWRIGHT_CAPTURING = 6,      /* the call cannot be made while a stream is being captured */
  FLASHWRIGHT_DEVICE_ERROR = 7,   /* the driver reported an error */
  FLASHWRIGHT_IO_ERROR = 8,       /* a file could not be read or written */
  FLASHWRIGHT_INTERRUPTED = 9,    /* a progress callback asked to stop */
  FLASHWRIGHT_INTERNAL = 10       /* a mistake of the library */
};

/* How far a call may go to get a kernel. */
typedef int32_t flashwright_effort;
enum {
  FLASHWRIGHT_LOADED = 0,  /* only what this process has loaded */
  FLASHWRIGHT_CACHED = 1,  /* also what the store holds */
  FLASHWRIGHT_COMPILE = 2, /* also compile, with the best schedule that is known */
  FLASHWRIGHT_TUNE = 3     /* also search for a better schedule first, if none was measured yet */
};

/* ---- version and errors ---- */

FLASHWRIGHT_API const char* flashwright_version(void);
FLASHWRIGHT_API int32_t flashwright_abi_version(void);
/* One line: version, compiler, what was built in. */
FLASHWRIGHT_API const char* flashwright_build_info(void);

/* Of the last failure in this thread: what happened, and long material such as a compiler's log
 * (may be empty). Valid until the next call in this thread. */
FLASHWRIGHT_API const char* flashwright_last_error(void);
FLASHWRIGHT_API const char* flashwright_last_error_detail(void);

FLASHWRIGHT_API void flashwright_free(char* text);

/* ---- engine: devices, stores and loaded kernels ---- */

typedef struct flashwright_engine flashwright_engine;

/* options: a JSON object, or NULL for defaults. Fields: "cache_dir", "data_dir" (folders, or
 * ":memory:"), "max_bytes" (of the kernel store), "effort" ("loaded", "cached", "compile", "tune":
 * the most any call may spend), "jobs" (threads that compile), "device" (name of a known device, or a
 * device profile as an object: what every Config is meant for, whatever is present). They go before
 * the FLASHWRIGHT_ environment variables. */
FLASHWRIGHT_API flashwright_status flashwright_engine_create(const char* options,
                                                             flashwright_engine** engine);
/* The engine of the process, made on first use. Functions below take NULL for it. Never release it.
 */
FLASHWRIGHT_API flashwright_engine* flashwright_engine_default(void);
FLASHWRIGHT_API void flashwright_engine_release(flashwright_engine* engine);

/* ---- arguments ---- */

/* The layout of DLPack's DLTensor (v0.x and v1.x): a DLTensor* may be passed as it is. */
typedef struct flashwright_tensor {
  void* data;
  int32_t device_type; /* 1: CPU, 2: CUDA */
  int32_t device_id;
  int32_t ndim;
  uint8_t type_code;   /* 2: float, 4: bfloat */
  uint8_t type_bits;   /* of one element: 16, 32 */
  uint16_t type_lanes; /* 1 */
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: dense, last dimension fastest */
  uint64_t byte_offset;
} flashwright_tensor;

/* Block lists of the mask "blocks". Rows are counted r = ((b % batch) * heads + h % heads) *
 * query_blocks + query / block_q with query_blocks = ceil(seq_q / block_q); the key blocks of row r
 * are columns[offsets[r] .. offsets[r + 1]), entries below 0 are padding. A full block is visible
 * throughout; bit j of word w in row i of partial block p says whether query i of the block sees
 * its key 32 w + j. The arrays lie in the memory of the kernel's device.
 *
 * A backward launch needs the same blocks also by key blocks, which flashwright_blocks_transpose makes and
 * flashwright_blocks_from_mask has made already: for c = ((b % batch) * heads + h % heads) * key_blocks +
 * key / block_kv with key_blocks = ceil(seq_kv / block_kv) the query blocks query_rows[query_offsets[c] ..
 * query_offsets[c + 1]), and for a partial block its index in partial_columns. */
typedef struct flashwright_blocks {
  size_t size;           /* sizeof(flashwright_blocks) */
  int64_t seq_q, seq_kv; /* lengths the lists were made for; must be those of the call */
  int64_t block_q, block_kv;
  int64_t batch, heads;        /* 1, or those of q */
  const int32_t* full_offsets; /* (batch * heads * query_blocks + 1) */
  const int32_t* full_columns;
  const int32_t* partial_offsets; /* (batch * heads * query_blocks + 1) */
  const int32_t* partial_columns;
  const uint32_t* partial_bits;      /* (partial blocks, block_q, ceil(block_kv / 32)) */
  const int32_t* full_query_offsets; /* (batch * heads * key_blocks + 1); NULL: forward only */
  const int32_t* full_query_rows;
  const int32_t* partial_query_offsets; /* (batch * heads * key_blocks + 1); NULL: forward only */
  const int32_t* partial_query_rows;
  const int32_t* partial_query_places; /* one for each of partial_query_rows */
} flashwright_blocks;

/* One call of attention. Zero-fill, set `size`, then the fields.
 *
 * With "direction": "backward" o and lse are read, as a forward launch of the same Config and arguments has
 * written them, and the gradients that are given are written: any of dq, dk and dv, one at least. */
typedef struct flashwright_arguments {
  size_t size; /* sizeof(flashwright_arguments) */
  const flashwright_tensor*
      q; /* (batch, seq_q, heads_q, head_dim); any strides, last dimension contiguous */
  const flashwright_tensor*
      k; /* (batch, seq_kv, heads_kv, head_dim); heads_q divisible by heads_kv */
  const flashwright_tensor* v;      /* (batch, seq_kv, heads_kv, head_dim_v) */
  const flashwright_tensor* o;      /* (batch, seq_q, heads_q, head_dim_v), written */
  const flashwright_tensor* lse;    /* fp32 (batch, heads_q, seq_q), natural log of the sum of
                                       exponentials, written;    NULL: not wanted */
  const flashwright_blocks* blocks; /* with mask "blocks" */
  uint64_t seed, offset;            /* of the dropout bits */
  const uint64_t*
      rng_state; /* {seed, offset} in the kernel's memory, read when it runs; NULL: use the above */
  int64_t q_position;     /* position of query 0 among the keys */
  int32_t has_q_position; /* 0: seq_kv - seq_q */
  int32_t reserved;
  const flashwright_tensor*
      alibi_slopes; /* with "alibi": fp32 (heads_q) or (batch, heads_q), any strides; otherwise NULL.
                       The score of query i and key j grows by slope * (j - i - q_position) */
  /* With "direction": "backward"; otherwise NULL. */
  const flashwright_tensor* d_o;   /* gradient of o, of its shape */
  const flashwright_tensor* d_lse; /* gradient of lse, of its shape; NULL: 0 */
  const flashwright_tensor* dq;    /* gradient of q, written; NULL: not wanted */
  const flashwright_tensor*
      dk; /* gradient of k, summed over the heads that share a key head, written;
                                      NULL: not wanted */
  const flashwright_tensor* dv; /* gradient of v, the same */
} flashwright_arguments;

/* Sizes that a kernel does not depend on but the choice of the fastest one does. */
typedef struct flashwright_shape {
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv;
} flashwright_shape;

/* ---- questions ---- */

/* Sets *reasons to a JSON array with every reason why the library cannot do it: empty when it can.
 */
FLASHWRIGHT_API flashwright_status flashwright_supports(flashwright_engine* engine,
                                                        const char* config, char** reasons);
/* The Config with every default made explicit, as JSON. */
FLASHWRIGHT_API flashwright_status flashwright_normalise(flashwright_engine* engine,
                                                         const char* config, char** normalised);
/* Which kernel serves this Config and shape (NULL: no particular one), from where, and why; JSON.
 * Compiles nothing. */
FLASHWRIGHT_API flashwright_status flashwright_explain(flashwright_engine* engine,
                                                       const char* config,
                                                       const flashwright_shape* shape,
                                                       char** explanation);

/* ---- kernels ---- */

typedef struct flashwright_kernel flashwright_kernel;

/* shape: what the kernel should be fast for, or NULL; it is right for every shape. Release the
 * kernel. */
FLASHWRIGHT_API flashwright_status flashwright_get_kernel(flashwright_engine* engine,
                                                          const char* config,
                                                          const flashwright_shape* shape,
                                                          flashwright_effort effort,
                                                          flashwright_kernel** kernel);
FLASHWRIGHT_API void flashwright_kernel_retain(flashwright_kernel* kernel);
FLASHWRIGHT_API void flashwright_kernel_release(flashwright_kernel* kernel);

/* Called with done of total steps and a line of JSON about the last one; a result other than 0 asks
 * to stop. Calls come from one thread at a time. */
typedef int32_t (*flashwright_progress)(void* user, int64_t done, int64_t total, const char* event);

/* Gets many kernels in parallel: configs is a JSON array of Configs. *report: what each took, JSON.
 */
FLASHWRIGHT_API flashwright_status flashwright_prepare(flashwright_engine* engine,
                                                       const char* configs,
                                                       flashwright_effort effort,
                                                       flashwright_progress progress, void* user,
                                                       char** report);

/* Where the kernel runs and its tensors lie, in the numbers of flashwright_tensor. */
FLASHWRIGHT_API flashwright_status flashwright_kernel_device(const flashwright_kernel* kernel,
                                                             int32_t* device_type,
                                                             int32_t* device_id);
/* Bytes of device memory that a launch with these arguments needs besides its tensors. */
FLASHWRIGHT_API flashwright_status flashwright_kernel_workspace_bytes(
    const flashwright_kernel* kernel, const flashwright_arguments* arguments, size_t* bytes);
/* Enqueues the kernel on a stream of the tensors' device (CUstream; NULL: the default stream). On
 * the CPU the stream is NULL and the call returns when the outputs are written. workspace: 256-byte
 * aligned, as many bytes as asked; NULL when that is 0. On a GPU nothing is allocated and nothing is
 * waited for. On the CPU the first launch starts the library's threads, and a thread allocates its
 * scratch buffer when it first needs one, or a larger one; both are kept. */
FLASHWRIGHT_API flashwright_status flashwright_kernel_launch(const flashwright_kernel* kernel,
                                                             const flashwright_arguments* arguments,
                                                             void* workspace, void* stream);

/* The emitted text (CUDA C++ or LLVM IR); valid as long as the kernel. */
FLASHWRIGHT_API const char* flashwright_kernel_source(const flashwright_kernel* kernel);
/* The machine code (cubin, PTX or object file); valid as long as the kernel. */
FLASHWRIGHT_API const void* flashwright_kernel_binary(const flashwright_kernel* kernel,
                                                      size_t* bytes);
/* JSON: problem, schedule, target, entries with grid and workspace rules, the layout of the
 * parameter block, resources. Enough to launch the binary without this library. */
FLASHWRIGHT_API flashwright_status flashwright_kernel_describe(const flashwright_kernel* kernel,
                                                               char** description);

/* ---- work on Configs, without a kernel in hand ---- */

/* The text that would be compiled; for any known target, present or not. shape may be NULL. */
FLASHWRIGHT_API flashwright_status flashwright_emit(flashwright_engine* engine, const char* config,
                                                    const flashwright_shape* shape, char** text);
/* Compiles for any known target. *report: resources, time, warnings, JSON. *binary (NULL: not
 * wanted) gets the machine code; give it to flashwright_free. */
FLASHWRIGHT_API flashwright_status flashwright_compile(flashwright_engine* engine,
                                                       const char* config,
                                                       const flashwright_shape* shape,
                                                       char** report, char** binary,
                                                       size_t* binary_bytes);
/* Searches for the fastest schedule and stores what it learns. options: JSON or NULL: "budget_s"
 * (default 60), "device" (name of a known device, or a device profile as an object, for one that is
 * absent), "seed". With an absent device candidates are compiled and ranked by the model, and the
 * result is marked as predicted. */
FLASHWRIGHT_API flashwright_status flashwright_tune(flashwright_engine* engine, const char* config,
                                                    const flashwright_shape* shape,
                                                    const char* options,
                                                    flashwright_progress progress, void* user,
                                                    char** report);
/* Times the kernel of a Config. options: JSON or NULL: "against" ("unfused"), "seconds" (default
 * 2). */
FLASHWRIGHT_API flashwright_status flashwright_bench(flashwright_engine* engine, const char* config,
                                                     const flashwright_shape* shape,
                                                     const char* options, char** report);
/* Compares outputs with the float64 reference, on up to max_rows query rows. All tensors, and block
 * lists, in host memory. *report: error, tolerance, verdict, JSON. */
FLASHWRIGHT_API flashwright_status flashwright_check(const char* config,
                                                     const flashwright_arguments* arguments,
                                                     int64_t max_rows, char** report);
/* What this machine has: devices, compilers, stores, environment; JSON. */
FLASHWRIGHT_API flashwright_status flashwright_doctor(flashwright_engine* engine, char** report);
/* Work on the stores. operation: "path", "ls", "show" (argument: the start of a key), "verify",
 * "prune" (argument: bytes to keep, or empty for the limit), "export", "import" and
 * "export-decisions" (argument: a file). JSON. */
FLASHWRIGHT_API flashwright_status flashwright_cache(flashwright_engine* engine,
                                                     const char* operation, const char* argument,
                                                     char** report);

/* ---- block lists from an element mask, on the host ---- */

/* keep: (batch, heads, seq_q, seq_kv) bytes, not 0 where the key is visible. The lists belong to
 * *blocks; give them to flashwright_blocks_free. */
FLASHWRIGHT_API flashwright_status flashwright_blocks_from_mask(const uint8_t* keep, int64_t batch,
                                                                int64_t heads, int64_t seq_q,
                                                                int64_t seq_kv, int64_t block_q,
                                                                int64_t block_kv,
                                                                flashwright_blocks** blocks);
/* A copy of lists in host memory that has them by key blocks as well. */
FLASHWRIGHT_API flashwright_status flashwright_blocks_transpose(const flashwright_blocks* lists,
                                                                flashwright_blocks** blocks);
FLASHWRIGHT_API void flashwright_blocks_free(flashwright_blocks* blocks);

/* ---- memory of a target, for programs that have no allocator of their own ---- */

/* target: "cpu", "cuda", or a Config's target; NULL: the best device present. */
FLASHWRIGHT_API flashwright_status flashwright_allocate(flashwright_engine* engine,
                                                        const char* target, size_t bytes,
                                                        void** memory);
FLASHWRIGHT_API flashwright_status flashwright_deallocate(flashwright_engine* engine,
                                                          const char* target, void* memory);
FLASHWRIGHT_API flashwright_status flashwright_copy_to_device(flashwright_engine* engine,
                                                              const char* target, void* memory,
                                                              const void* host, size_t bytes);
FLASHWRIGHT_API flashwright_status flashwright_copy_to_host(flashwright_engine* engine,
                                                            const char* target, void* host,
                                                            const void* memory, size_t bytes);
FLASHWRIGHT_API flashwright_status flashwright_synchronize(flashwright_engine* engine,
                                                           const char* target, void* stream);

/* ---- hooks ---- */

/* level: 0 error, 1 warning, 2 information, 3 debug. NULL restores stderr. */
typedef void (*flashwright_log)(void* user, int32_t level, const char* line);
FLASHWRIGHT_API void flashwright_set_log(flashwright_log log, void* user, int32_t level);

/* Threads for the CPU backend instead of the library's own: parallel() runs fn(context, task,
 * worker) for every task in [0, tasks), worker in [0, concurrency), and returns when all are done.
 * NULL restores the own pool. The struct is copied. */
typedef struct flashwright_executor {
  int32_t concurrency;
  void (*parallel)(void* self, int64_t tasks,
                   void (*fn)(void* context, int64_t task, int32_t worker), void* context);
  void* self;
} flashwright_executor;
FLASHWRIGHT_API flashwright_status flashwright_set_executor(flashwright_engine* engine,
                                                            const flashwright_executor* executor);

#ifdef __cplusplus
}
#endif

#endif
