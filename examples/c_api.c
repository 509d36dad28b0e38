/* The C interface from C99: ask, get a kernel, launch it, and have the result judged. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "flashwright/flashwright.h"

enum { SEQ = 100, HEADS = 4, HEADS_KV = 2, DIM = 32 };

static float q[SEQ * HEADS * DIM], k[SEQ * HEADS_KV * DIM], v[SEQ * HEADS_KV * DIM],
    o[SEQ * HEADS * DIM];
static int64_t q_shape[] = {1, SEQ, HEADS, DIM}, k_shape[] = {1, SEQ, HEADS_KV, DIM};

/* Every function that can fail returns a status; the words of the failure are kept for this thread. */
static void check(flashwright_status status) {
  if (status == FLASHWRIGHT_OK) return;
  fprintf(stderr, "%s\n%s", flashwright_last_error(), flashwright_last_error_detail());
  exit(1);
}

static flashwright_tensor tensor(float* data, int64_t* shape) {
  flashwright_tensor out = {0};
  out.data = data;
  out.device_type = 1; /* host memory */
  out.ndim = 4;
  out.type_code = 2; /* float */
  out.type_bits = 32;
  out.type_lanes = 1;
  out.shape = shape; /* without strides: dense, last dimension fastest */
  return out;
}

int main(void) {
  const char* const config =
      "{\"dtype\":\"fp32\",\"head_dim\":32,\"mask\":\"window:16,0\",\"target\":\"cpu\"}";
  char *text = NULL, *report = NULL;
  flashwright_kernel* kernel = NULL;
  flashwright_tensor tq = tensor(q, q_shape), tk = tensor(k, k_shape), tv = tensor(v, k_shape),
                     to = tensor(o, q_shape);
  flashwright_arguments arguments = {0};
  size_t workspace_bytes = 0;
  void* workspace = NULL;
  int i;

  printf("%s\n", flashwright_build_info());
  check(flashwright_supports(NULL, config, &text));
  printf("reasons against it: %s\n", text); /* a JSON array, empty if it can be done */
  flashwright_free(text);

  for (i = 0; i < SEQ * HEADS * DIM; ++i) q[i] = sinf((float)i);
  for (i = 0; i < SEQ * HEADS_KV * DIM; ++i) k[i] = cosf((float)i), v[i] = sinf(0.5f * (float)i);

  /* NULL for the engine: that of the process. NULL for the shape: no particular one. */
  check(flashwright_get_kernel(NULL, config, NULL, FLASHWRIGHT_COMPILE, &kernel));
  arguments.size = sizeof arguments;
  arguments.q = &tq;
  arguments.k = &tk;
  arguments.v = &tv;
  arguments.o = &to;
  check(flashwright_kernel_workspace_bytes(kernel, &arguments, &workspace_bytes));
  if (workspace_bytes > 0) check(flashwright_allocate(NULL, "cpu", workspace_bytes, &workspace));
  check(flashwright_kernel_launch(kernel, &arguments, workspace, NULL));

  check(flashwright_check(config, &arguments, 50, &report));
  printf("against the float64 reference: %s\n", report);
  flashwright_free(report);
  if (workspace != NULL) check(flashwright_deallocate(NULL, "cpu", workspace));
  flashwright_kernel_release(kernel);
  return 0;
}
