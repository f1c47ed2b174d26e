/* $net: a network in C, written by gibbsprune. C11 with the vector extensions of GCC and Clang, libc and libm.
   $command -c $net.c */
#include "$net.h"
#include <math.h>
#include <stddef.h>
#include <string.h>
#if ${NET}_SHARED
#include <sched.h>
#endif
#define GP_INPUT $kind

$kernels
/* The planes of this network, its places in the arena, and those of its expanded weights. */
$geometry
$places
$tables

/* A layer's kernel is compiled twice, for one image and for as many as a vector holds. */
#define GP_KERNEL(k, ...)                                                                  \
  GP_STATIC void gp_one_##k(const float *x, float *y, const float *z, gp_taps w, int f, int n) {  \
    enum { L = 1 };                                                                        \
    (void)z;                                                                               \
    __VA_ARGS__                                                                            \
  }                                                                                        \
  GP_STATIC void gp_many_##k(const float *x, float *y, const float *z, gp_taps w, int f, int n) { \
    enum { L = GP_V };                                                                     \
    (void)z;                                                                               \
    __VA_ARGS__                                                                            \
  }
#if ${NET}_LANES
#define GP_MANY m->many
#else
#define GP_MANY (int32_t *)0
#endif
/* Layer i by kernel k, K filters together: this thread's part of n filters. */
#define GP_CALL(k, i, K, x, y, z, n)                                                                        \
  {                                                                                                         \
    const int32_t *begin = m->begin + BEGIN##i;                                                             \
    const int first = gp_first(begin, GP_UP(n, K), part, parts) * (K);                                      \
    const int end = gp_first(begin, GP_UP(n, K), part + 1, parts) * (K);                                    \
    const int32_t *offset = ((L) == 1 ? m->offset : GP_MANY) + OFFSET##i;                                   \
    ((L) == 1 ? gp_one_##k : gp_many_##k)(x, y, z, (gp_taps){m->bias + BIAS##i, m->value + VALUE##i, offset, begin}, \
                                          first, GP_LESS(end, n));                                          \
    gp_wait(c, parts);                                                                                      \
  }
#define GP_ALONE(...)                  \
  {                                    \
    if (part == 0) { __VA_ARGS__ }     \
    gp_wait(c, parts);                 \
  }

$layers

void ${net}_load(const unsigned char *data, ${net}_model *m) {
#if ${NET}_LANES
#define GP_SIDE(i) m->many + OFFSET##i
#else
#define GP_SIDE(i) 0
#endif
#define GP_LOAD(i)                                                                               \
  data = gp_expand(data, &shape, m->bias + BIAS##i, m->value + VALUE##i, m->offset + OFFSET##i, \
                   GP_SIDE(i), m->begin + BEGIN##i)
$loads
  (void)data, (void)m;
}

/* All threads of an image wait here for each other before the next operation. */
GP_INLINE void gp_wait(${net}_context *c, const int parts) {
#if ${NET}_SHARED
  if (parts == 1) return;
  const int turn = atomic_load(&c->turn);
  if (atomic_fetch_add(&c->arrived, 1) == parts - 1) {
    atomic_store(&c->arrived, 0);
    atomic_fetch_add(&c->turn, 1);
  } else {
    for (int n = 0; atomic_load(&c->turn) == turn; n++)
      if (n > 4000) sched_yield();
  }
#else
  (void)c, (void)parts;
#endif
}

/* Layers are shared out among the parts; the first part alone does the rest. */
GP_INLINE void gp_forward(const ${net}_model *m, ${net}_context *c, float *a, $arguments, const int L, const int part,
                          const int parts) {
$calls
  (void)m;
}

void ${net}_init(${net}_context *c) {
  memset(c, 0, sizeof *c);
#if ${NET}_LANES
  c->side = GP_V;
#endif
}

void ${net}_run(const ${net}_model *m, ${net}_context *c, int images, $arguments) {
  int i = 0;
#if ${NET}_LANES
  for (; images >= c->side && i + GP_V <= images; i += GP_V) gp_forward(m, c, c->many, $given, GP_V, 0, 1);
#endif
  for (; i < images; i++) gp_forward(m, c, c->arena, $given, 1, 0, 1);
}

#if ${NET}_SHARED
void ${net}_share(const ${net}_model *m, ${net}_context *c, int part, int parts, $arguments) {
  gp_forward(m, c, c->arena, $names, 1, part, parts);
}
#endif

$weights
