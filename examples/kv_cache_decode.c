/* Decoding with a cache: keys and values lie in a buffer for the longest sequence, a step adds one token and
 * asks with one query. q_position says where the queries stand among the keys; strides say the rest. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashwright/flashwright.h"

enum { CAPACITY = 64, PROMPT = 40, TOKENS = 50, HEADS = 2, DIM = 16, ROW = HEADS * DIM };

static float q[TOKENS * ROW], k[TOKENS * ROW], v[TOKENS * ROW], whole[TOKENS * ROW],
    stepwise[TOKENS * ROW];
static float k_cache[CAPACITY * ROW], v_cache[CAPACITY * ROW];

static void check(flashwright_status status) {
  if (status == FLASHWRIGHT_OK) return;
  fprintf(stderr, "%s\n%s", flashwright_last_error(), flashwright_last_error_detail());
  exit(1);
}

/* Attention of `count` queries from `first` on over the first `keys` rows of a cache. */
static void attend(const flashwright_kernel* kernel, float* keys_at, float* values_at,
                   int64_t capacity, int64_t first, int64_t count, int64_t keys, float* out) {
  int64_t q_shape[] = {1, count, HEADS, DIM}, k_shape[] = {1, keys, HEADS, DIM};
  int64_t strides[] = {capacity * ROW, ROW, DIM,
                       1}; /* the batch stride is that of the whole buffer */
  flashwright_tensor query = {q + first * ROW, 1, 0, 4, 2, 32, 1, q_shape, NULL, 0};
  flashwright_tensor key = {keys_at, 1, 0, 4, 2, 32, 1, k_shape, strides, 0};
  flashwright_tensor value = {values_at, 1, 0, 4, 2, 32, 1, k_shape, strides, 0};
  flashwright_tensor output = {out + first * ROW, 1, 0, 4, 2, 32, 1, q_shape, NULL, 0};
  flashwright_arguments arguments = {0};
  arguments.size = sizeof arguments;
  arguments.q = &query;
  arguments.k = &key;
  arguments.v = &value;
  arguments.o = &output;
  arguments.has_q_position = 1;
  arguments.q_position = first; /* the number of tokens before the first query */
  /* Without workspace: flashwright_kernel_workspace_bytes says 0 for this kernel. */
  check(flashwright_kernel_launch(kernel, &arguments, NULL, NULL));
}

int main(void) {
  const char* const config =
      "{\"dtype\":\"fp32\",\"head_dim\":16,\"mask\":\"causal\",\"target\":\"cpu\"}";
  flashwright_kernel* kernel = NULL;
  float worst = 0;
  int i;
  for (i = 0; i < TOKENS * ROW; ++i)
    q[i] = sinf((float)i), k[i] = sinf(1.3f * (float)i), v[i] = cosf((float)i);
  check(flashwright_get_kernel(NULL, config, NULL, FLASHWRIGHT_COMPILE, &kernel));

  /* The prompt at once, then a token at a time: the same kernel, whatever the lengths. */
  memcpy(k_cache, k, PROMPT * ROW * sizeof *k);
  memcpy(v_cache, v, PROMPT * ROW * sizeof *v);
  attend(kernel, k_cache, v_cache, CAPACITY, 0, PROMPT, PROMPT, stepwise);
  for (i = PROMPT; i < TOKENS; ++i) {
    memcpy(k_cache + i * ROW, k + i * ROW, ROW * sizeof *k);
    memcpy(v_cache + i * ROW, v + i * ROW, ROW * sizeof *v);
    attend(kernel, k_cache, v_cache, CAPACITY, i, 1, i + 1, stepwise);
  }

  attend(kernel, k, v, TOKENS, 0, TOKENS, TOKENS, whole);
  for (i = 0; i < TOKENS * ROW; ++i) worst = fmaxf(worst, fabsf(whole[i] - stepwise[i]));
  printf("%d tokens of prompt and %d steps; largest difference to all at once: %.1e\n", PROMPT,
         TOKENS - PROMPT, (double)worst);
  flashwright_kernel_release(kernel);
  return worst < 1e-5f ? 0 : 1;
}
