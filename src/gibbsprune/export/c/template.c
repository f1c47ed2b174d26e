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
  GP_STATIC void gp_one_##k(const float *x, float *y, const float *z, gp_taps w, int n, int part, int parts) { \
    enum { L = 1 };                                                                        \
    (void)z;                                                                               \
    __VA_ARGS__                                                                            \
  }                                                                                        \
  GP_STATIC void gp_many_##k(const float *x, float *y, const float *z, gp_taps w, int n, int part, int parts) { \
    enum { L = GP_V };                                                                     \
    (void)z;                                                                               \
    __VA_ARGS__                                                                            \
  }
#if ${NET}_LANES
#define GP_MANY m->many
#else
#define GP_MANY (int32_t *)0
#endif
/* Layer i by kernel k: this thread's part of n filters. */
#define GP_CALL(part, parts, k, i, x, y, z, n)                                                                       \
  {                                                                                                         \
    const int32_t *begin = m->begin + BEGIN##i, *offset = ((L) == 1 ? m->offset : GP_MANY) + OFFSET##i;     \
    const gp_taps taps = {m->bias + BIAS##i, m->value + VALUE##i, offset, begin};                           \
    ((L) == 1 ? gp_one_##k : gp_many_##k)(x, y, z, taps, n, part, parts);                                   \
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

#if ${NET}_SHARED
/* Look again soon, and after a while let others run. */
GP_INLINE void gp_pause(int n) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
  if (n > 2000) sched_yield();
}
#endif

/* All threads of an image wait here for each other before the next operation. */
GP_INLINE void gp_wait(${net}_context *c, const int parts) {
#if ${NET}_SHARED
  if (parts == 1) return;
  const int turn = atomic_load(&c->turn);
  if (atomic_fetch_add(&c->arrived, 1) == parts - 1) {
    atomic_store(&c->arrived, 0);
    atomic_fetch_add(&c->turn, 1);
  } else {
    for (int n = 0; atomic_load(&c->turn) == turn; n++) gp_pause(n);
  }
#else
  (void)c, (void)parts;
#endif
}

/* What takes long is shared out among the parts; the first part alone does the rest. */
GP_INLINE void gp_forward(const ${net}_model *m, ${net}_context *c, float *a, $arguments, const int L, const int part,
                          const int parts) {
$calls
  (void)m, (void)c, (void)parts;
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
