/* Vectors: as wide as the machine's registers, or as GP_BYTES says (16, 32 or 64). */
#ifndef GP_BYTES
#if defined(__AVX512F__) && !defined(__znver3__) && !defined(__znver4__)
#define GP_BYTES 64
#elif defined(__AVX__)
#define GP_BYTES 32 /* also where wide registers are computed in halves: narrow loads cross fewer cache lines */
#else
#define GP_BYTES 16
#endif
#endif
#define GP_V (GP_BYTES / 4)
#if defined(__AVX512VL__) || defined(__aarch64__)
#define GP_TILE 16 /* vectors of one filter that stay in registers */
#define GP_K 8     /* filters that are computed together where few weights are zero */
#else
#define GP_TILE 12
#define GP_K 4
#endif
#define GP_WIDE 3 /* vectors of each of them */
#define GP_MOST 24
#define GP_INLINE static inline __attribute__((always_inline, unused))
#define GP_STATIC static __attribute__((noinline, unused))
#ifdef __clang__
#define GP_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GP_UNROLL _Pragma("GCC unroll 32")
#endif
#define GP_LESS(a, b) ((a) < (b) ? (a) : (b))
#define GP_UP(a, b) (((a) + (b) - 1) / (b))

typedef float gp_vec __attribute__((vector_size(GP_BYTES)));
typedef int32_t gp_int __attribute__((vector_size(GP_BYTES)));
typedef float gp_any __attribute__((vector_size(GP_BYTES), aligned(4), may_alias));
typedef float gp_row __attribute__((vector_size(GP_K * 4), aligned(4), may_alias));

/* Planes: h rows of w pixels, `step` pixels from row to row and `plane` from channel to channel, L images interleaved.
   Between the rows lie `wide` zeros, between the channels `high` rows of zeros: what a kernel sees beyond the edge.
   Rows that fill whole vectors begin at multiples of a vector. */
#define GP_STEP(w, wide, L) ((w) * (L) % GP_V ? (w) + (wide) : GP_UP(((w) + (wide)) * (L), GP_V) * GP_V / (L))
#define GP_PLANE(h, high, step) (((h) + (high)) * (step))
#define GP_ALIGNED(n) (GP_UP(n, 16) * 16)

enum { GP_NONE, GP_CLIP, GP_LEAKY, GP_SIGMOID, GP_SILU, GP_TANH, GP_GELU, GP_GELU_TANH, GP_HARDSWISH, GP_HARDSIGMOID };

GP_INLINE gp_vec gp_all(float x) { return x - (gp_vec){0}; }
GP_INLINE gp_vec gp_choose(gp_int c, gp_vec a, gp_vec b) { return (gp_vec)(((gp_int)a & c) | ((gp_int)b & ~c)); }
GP_INLINE gp_vec gp_clip(gp_vec x, float low, float high) {
  x = gp_choose(x < low, gp_all(low), x);
  return high < INFINITY ? gp_choose(x > high, gp_all(high), x) : x;
}

/* 2^n times a polynomial in what is left, |rest| <= ln 2 / 2. */
GP_INLINE gp_vec gp_exp(gp_vec x) {
  x = gp_clip(x, -87.0f, 88.0f);
  gp_vec t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f; /* to the nearest integer */
  gp_vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
  gp_vec p = 1.0f + r * (1.0f + r * (0.5f + r * (0.16666667f + r * (0.041666667f + r * (8.3333333e-3f + r * 1.3888889e-3f)))));
  return p * (gp_vec)((((gp_int)t - 0x4B400000) + 127) << 23);
}
GP_INLINE gp_vec gp_sigmoid(gp_vec x) { return 1.0f / (1.0f + gp_exp(-x)); }
GP_INLINE gp_vec gp_tanh(gp_vec x) {
  gp_vec z = x * x, near = x / (1.0f + z / (3.0f + z / (5.0f + z / (7.0f + z / (9.0f + z / 11.0f)))));
  return gp_choose(z < 1.0f, near, 1.0f - 2.0f / (1.0f + gp_exp(2.0f * x)));
}
GP_INLINE gp_vec gp_erf(gp_vec x) { /* Abramowitz and Stegun 7.1.26, |error| <= 1.5e-7 */
  gp_vec a = gp_choose(x < 0, -x, x), t = 1.0f / (1.0f + 0.3275911f * a);
  gp_vec p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  gp_vec y = 1.0f - p * gp_exp(-a * a);
  return gp_choose(x < 0, -y, y);
}
GP_INLINE gp_vec gp_act(gp_vec x, const int act, const float p, const float q) {
  switch (act) {
    case GP_CLIP: return gp_clip(x, p, q);
    case GP_LEAKY: return gp_choose(x < 0, x * p, x);
    case GP_SIGMOID: return gp_sigmoid(x);
    case GP_SILU: return x * gp_sigmoid(x);
    case GP_TANH: return gp_tanh(x);
    case GP_GELU: return 0.5f * x * (1.0f + gp_erf(x * 0.70710678f));
    case GP_GELU_TANH: return 0.5f * x * (1.0f + gp_tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case GP_HARDSWISH: return x * (gp_clip(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f));
    case GP_HARDSIGMOID: return gp_clip(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f);
    default: return x;
  }
}

/* A layer's weights, expanded: filter by filter (or K filters together) where to read and what to multiply with. */
typedef struct {
  const float *bias, *value;
  const int32_t *offset, *begin;
} gp_taps;

/* One tile, R rows of Q vectors, through the filters first..last: it stays in registers while a filter's weights pass.
   The sum begins with the bias and with `other`, and ends in the activation. A small tile has U sums, each of every U-th
   weight, so that none waits for the addition before it. */
GP_INLINE void gp_tile(const int K, const float *x, float *y, const float *other, gp_taps w, int first, int last,
                       const int R, const int Q, const int tail, const long xs, const long ys, const long plane,
                       const int act, const float p, const float q) {
  const int U = K > 1 || R * Q > 5 ? 1 : R * Q > 2 ? 2 : 4;
  for (int o = first; o < last; o += K) {
    gp_vec a[GP_MOST];
    GP_UNROLL for (int k = R * Q; k < U * R * Q; k++) a[k] = gp_all(0);
    GP_UNROLL for (int k = 0; k < K; k++) {
      const float *from = other ? other + GP_LESS(o + k, last - 1) * plane : other;
      GP_UNROLL for (int r = 0; r < R; r++) GP_UNROLL for (int c = 0; c < Q; c++) {
        gp_vec start = gp_all(w.bias[o + k]);
        a[(k * R + r) * Q + c] = other ? start + *(const gp_any *)(from + r * ys + c * GP_V) : start;
      }
    }
    int t = w.begin[o / K];
    const int end = w.begin[o / K + 1];
    for (; U > 1 && t + U <= end; t += U)
      GP_UNROLL for (int u = 0; u < U; u++) {
        const float *from = x + w.offset[t + u];
        gp_vec each = gp_all(w.value[t + u]);
        GP_UNROLL for (int r = 0; r < R; r++) GP_UNROLL for (int c = 0; c < Q; c++)
            a[(u * R + r) * Q + c] += each * *(const gp_any *)(from + r * xs + c * GP_V);
      }
    for (; t < end; t++) {
      const float *from = x + w.offset[t], *v = w.value + (long)t * K;
      if (K == 1) {
        gp_vec each = gp_all(v[0]);
        GP_UNROLL for (int r = 0; r < R; r++) GP_UNROLL for (int c = 0; c < Q; c++)
            a[r * Q + c] += each * *(const gp_any *)(from + r * xs + c * GP_V);
      } else {
        GP_UNROLL for (int r = 0; r < R; r++) GP_UNROLL for (int c = 0; c < Q; c++) {
          gp_vec z = *(const gp_any *)(from + r * xs + c * GP_V);
          GP_UNROLL for (int k = 0; k < K; k++) a[(k * R + r) * Q + c] += z * v[k];
        }
      }
    }
    GP_UNROLL for (int k = R * Q; k < U * R * Q; k++) a[k % (R * Q)] += a[k];
    GP_UNROLL for (int k = 0; k < K; k++) if (K == 1 || o + k < last) {
      float *to = y + (o + k) * plane;
      GP_UNROLL for (int r = 0; r < R; r++) GP_UNROLL for (int c = 0; c < Q; c++) {
        gp_vec z = gp_act(a[(k * R + r) * Q + c], act, p, q);
        if (tail && c == Q - 1) GP_UNROLL for (int l = 0; l < tail; l++) to[r * ys + c * GP_V + l] = z[l];
        else *(gp_any *)(to + r * ys + c * GP_V) = z;
      }
    }
  }
}

/* The first of n pieces of a thread's part. */
#define GP_PART(n, part, parts) ((int)((int64_t)(n) * (part) / (parts)))

/* The first block of filters of a thread's part, such that all parts have about the same number of weights. */
GP_INLINE int gp_first(const int32_t *begin, int blocks, int part, int parts) {
  int b = part == parts ? blocks : 0;
  while (b < blocks && begin[b] < (int64_t)begin[blocks] * part / parts) b++;
  return b;
}

/* Whole planes by tiles; `rows` rows of n floats. With K = 1 a tile has up to GP_TILE vectors, else GP_WIDE. Threads
   share the tiles where these come out even, so that most of what a thread reads it wrote itself, else the filters.
   Of every `period` floats those behind the first `used` ones lie between rows, and become zeros again. */
GP_INLINE void gp_tiles(const int K, const float *x, float *y, const float *other, gp_taps w, int filters, int part, int parts,
                        const int rows, const int n, const int period, const int used, const long xs, const long ys,
                        const long plane, const int act, const float p, const float q) {
  const int most = K == 1 ? GP_TILE : GP_WIDE, vectors = GP_UP(n, GP_V), tail = n % GP_V;
  const int across = GP_UP(vectors, most), Q = GP_UP(vectors, across), end = (across - 1) * Q, rest = vectors - end;
  const int high = GP_LESS(most / Q, rows), down = GP_UP(rows, high), R = GP_UP(rows, down), left = rows % R;
  const int tiles = across * down, even = tiles % parts == 0 || tiles >= 4 * parts;
  const int from = even ? GP_PART(tiles, part, parts) : 0, to = even ? GP_PART(tiles, part + 1, parts) : tiles;
  const int first = even ? 0 : gp_first(w.begin, GP_UP(filters, K), part, parts) * K;
  const int last = even ? filters : GP_LESS(filters, gp_first(w.begin, GP_UP(filters, K), part + 1, parts) * K);
  int i = 0, t = 0;
#define GP_BAND(R)                                                                                              \
  {                                                                                                             \
    const long u = i * xs, v = i * ys;                                                                          \
    for (int c = 0; c < end; c += Q, t++)                                                                       \
      if (t >= from && t < to)                                                                                  \
        gp_tile(K, x + u + c * GP_V, y + v + c * GP_V, other ? other + v + c * GP_V : 0, w, first, last, R, Q, 0, xs, ys, \
                plane, act, p, q);                                                                              \
    if (t >= from && t < to)                                                                                    \
      gp_tile(K, x + u + end * GP_V, y + v + end * GP_V, other ? other + v + end * GP_V : 0, w, first, last, R, rest, \
              tail, xs, ys, plane, act, p, q);                                                                  \
    t++;                                                                                                        \
  }
  for (; i + R <= rows; i += R) GP_BAND(R)
  if (left) GP_BAND(left)
#undef GP_BAND
  for (int o = first; o < last && used < period; o++)
    for (int c = from * Q * GP_V / period * period + used; c < n && c < to * Q * GP_V; c += period)
      for (int k = c < from * Q * GP_V ? from * Q * GP_V : c; k < c + period - used && k < n && k < to * Q * GP_V; k++)
        y[o * plane + k] = 0;
}

GP_INLINE float gp_one(float x, const int act, const float p, const float q) { return gp_act(gp_all(x), act, p, q)[0]; }

/* One pixel of one image: vectors run across outputs where few weights are zero, else number by number. */
GP_INLINE void gp_pixel(const int K, const float *x, float *y, const float *other, gp_taps w, int first, int last,
                        const long plane, const int act, const float p, const float q) {
  for (int o = first; o < last; o += K) {
    int t = w.begin[o / K];
    const int end = w.begin[o / K + 1];
    if (K == 1) {
      float a = w.bias[o], b = 0, c = 0, d = 0;
      if (other) a += other[o * plane];
      for (; t + 3 < end; t += 4) {
        a += w.value[t] * x[w.offset[t]];
        b += w.value[t + 1] * x[w.offset[t + 1]];
        c += w.value[t + 2] * x[w.offset[t + 2]];
        d += w.value[t + 3] * x[w.offset[t + 3]];
      }
      for (; t < end; t++) a += w.value[t] * x[w.offset[t]];
      y[o * plane] = gp_one(a + b + (c + d), act, p, q);
    } else {
      gp_row a = *(const gp_row *)(w.bias + o), b = {0}, c = {0}, d = {0};
      const float *v = w.value + (long)t * K;
      for (; t + 3 < end; t += 4, v += 4 * K) {
        a += x[w.offset[t]] * *(const gp_row *)v;
        b += x[w.offset[t + 1]] * *(const gp_row *)(v + K);
        c += x[w.offset[t + 2]] * *(const gp_row *)(v + 2 * K);
        d += x[w.offset[t + 3]] * *(const gp_row *)(v + 3 * K);
      }
      for (; t < end; t++, v += K) a += x[w.offset[t]] * *(const gp_row *)v;
      a += b + (c + d);
      for (int k = 0; k < K && o + k < last; k++)
        y[(o + k) * plane] = gp_one(a[k] + (other ? other[(o + k) * plane] : 0), act, p, q);
    }
  }
}

/* A layer. Where the rows do not fill vectors and both sides have the same rows, all rows are one long one, and the
   zeros between them are written anew. */
GP_INLINE void gp_layer(const int K, const float *x, float *y, const float *other, gp_taps w, int filters, int part,
                        int parts, const int rows, const int width, const int L, const long xstep, const long ystep,
                        const long plane, const int act, const float p, const float q) {
  if (width * L == 1) {
    const int first = gp_first(w.begin, GP_UP(filters, K), part, parts) * K;
    const int last = GP_LESS(filters, gp_first(w.begin, GP_UP(filters, K), part + 1, parts) * K);
    for (int i = 0; i < rows; i++)
      gp_pixel(K, x + i * xstep, y + i * ystep, other ? other + i * ystep : 0, w, first, last, plane, act, p, q);
  } else if (width * L % GP_V && xstep == ystep && ystep >= width && ystep * rows <= plane + ystep) {
    const int n = (int)((rows - 1) * ystep + width) * L;
    gp_tiles(K, x, y, other, w, filters, part, parts, 1, n, (int)ystep * L, width * L, 0, 0, plane * L, act, p, q);
  } else {
    gp_tiles(K, x, y, other, w, filters, part, parts, rows, width * L, 1, 1, xstep * L, ystep * L, plane * L, act, p, q);
  }
}

/* From here on: shapes c, h, w; s and d are the distances of rows and of channels, in pixels. Threads share channels. */
#define GP_MINE(i, n) for (int i = GP_PART(n, part, parts); i < GP_PART(n, part + 1, parts); i++)
#define GP_EACH(c, h) GP_MINE(i, c) for (int j = 0; j < (h); j++)

GP_INLINE void gp_pointwise(int part, int parts, const float *x, float *y, int c, int h, int w, const int L, long s, long d, const int act,
                            const float p, const float q) {
  if (parts == 1 && s == w && d == s * h) w = c * h * w, c = h = 1;
  GP_EACH(c, h) {
    const float *from = x + (i * d + j * s) * L;
    float *to = y + (i * d + j * s) * L;
    int k = 0;
    for (; k + GP_V <= w * L; k += GP_V) *(gp_any *)(to + k) = gp_act(*(const gp_any *)(from + k), act, p, q);
    for (; k < w * L; k++) to[k] = gp_one(from[k], act, p, q);
  }
}

/* y = scale x + shift for each channel; with slope: y = x where x > 0, else scale x. */
GP_INLINE void gp_affine(int part, int parts, const float *x, float *y, const float *scale, const float *shift, int c, int h, int w, const int L,
                         long s, long d, const int slope) {
  GP_EACH(c, h) for (int k = 0; k < w * L; k++) {
    const long at = (i * d + j * s) * L + k;
    y[at] = slope && x[at] > 0 ? x[at] : scale[i] * x[at] + shift[i];
  }
}

/* Sum, difference or product; the second may have one row, one column or one channel for all. */
GP_INLINE void gp_join(int part, int parts, const float *x, const float *z, float *y, int c, int h, int w, const int L, long xs, long xd, long zc,
                       long zr, long zp, const char kind) {
  GP_EACH(c, h) for (int k = 0; k < w; k++) for (int l = 0; l < L; l++) {
    const float a = x[(i * xd + j * xs + k) * L + l], b = z[(i * zc + j * zr + k * zp) * L + l];
    y[(i * xd + j * xs + k) * L + l] = kind == '+' ? a + b : kind == '-' ? a - b : kind == '*' ? a * b : a / b;
  }
}

/* Pieces of rows from one place to another, counted as if there were no zeros between: to, from (-1: zeros), number,
   distance in the source. */
GP_INLINE long gp_place(long i, int h, int w, long s, long d) { return i / w / h * d + i / w % h * s + i % w; }
GP_INLINE void gp_move(int part, int parts, const float *x, float *y, const int32_t *runs, int count, const int L, int xh, int xw, long xs, long xd,
                       int yh, int yw, long ys, long yd) {
  runs += 4 * GP_PART(count, part, parts);
  GP_MINE(i, count) {
    float *to = y + gp_place(runs[0], yh, yw, ys, yd) * L;
    const float *from = runs[1] < 0 ? 0 : x + gp_place(runs[1], xh, xw, xs, xd) * L;
    if (!from) memset(to, 0, (size_t)runs[2] * L * 4);
    else if (runs[3] == 1) memcpy(to, from, (size_t)runs[2] * L * 4);
    else
      for (long k = 0; k < runs[2]; k++)
        for (int l = 0; l < L; l++) to[k * L + l] = from[k * runs[3] * L + l];
    runs += 4;
  }
}

/* Whole channels, in the same way; with the zeros between them, which are zeros on both sides. */
GP_INLINE void gp_planes(int part, int parts, const float *x, float *y, const int32_t *runs, int count, const int L, int h, int w, long s, long d) {
  const size_t last = (size_t)((h - 1) * s + w) * L * 4, each = (size_t)d * L;
  runs += 4 * GP_PART(count, part, parts);
  GP_MINE(i, count) {
    float *to = y + runs[0] * each;
    if (runs[1] < 0) memset(to, 0, (size_t)(runs[2] - 1) * each * 4 + last);
    else if (runs[3] == 1) memcpy(to, x + runs[1] * each, (size_t)(runs[2] - 1) * each * 4 + last);
    else
      for (long k = 0; k < runs[2]; k++) memcpy(to + k * each, x + (runs[1] + k * runs[3]) * (long)each, last);
    runs += 4;
  }
}

/* Axes turned round: n numbers at distance p in the source, m times at distance q, and so on. */
GP_INLINE void gp_turn(int part, int parts, const float *x, float *y, long from, const int L, int n, long p, int m, long q, int k, long r, int j,
                       long s, int i, long t) {
  GP_MINE(u, i * j * k * m) {
    const float *source = x + (from + u % m * q + u / m % k * r + u / m / k % j * s + u / m / k / j * t) * L;
    float *to = y + (long)u * n * L;
    if (p == 1) memcpy(to, source, (size_t)n * L * 4);
    else
      for (int o = 0; o < n; o++)
        for (int l = 0; l < L; l++) to[o * L + l] = source[o * p * L + l];
  }
}

/* Numbers that are the same for all images. */
GP_INLINE void gp_constant(int part, int parts, const float *x, float *y, int c, int h, int w, const int L, long s, long d) {
  GP_EACH(c, h) for (int k = 0; k < w; k++) for (int l = 0; l < L; l++)
    y[(i * d + j * s + k) * L + l] = x[((long)i * h + j) * w + k];
}

/* M rows of a product of matrices: numbers of x times rows of z. Vectors run across columns, or across images. */
GP_INLINE void gp_rows(const int M, const float *x, const float *z, float *y, int n, int w, const int L, long xs, long zs,
                       long ys) {
  enum { R = 4 };
  const int step = L == 1 ? GP_V : 1;
  int k = 0;
#define GP_COLUMNS(R)                                                                                              \
  for (; k + (R) * step <= w; k += (R) * step) {                                                                   \
    gp_vec a[4 * 4] = {{0}};                                                                                       \
    for (int m = 0; m < n; m++) {                                                                                  \
      const float *next = z + (m * zs + k) * L;                                                                    \
      GP_UNROLL for (int o = 0; o < M; o++) {                                                                      \
        const float *number = x + (o * xs + m) * L;                                                                \
        const gp_vec each = L == 1 ? gp_all(*number) : (gp_vec)*(const gp_any *)number;                            \
        GP_UNROLL for (int r = 0; r < (R); r++) a[o * (R) + r] += each * *(const gp_any *)(next + r * GP_V);       \
      }                                                                                                            \
    }                                                                                                              \
    GP_UNROLL for (int o = 0; o < M; o++) GP_UNROLL for (int r = 0; r < (R); r++)                                  \
        *(gp_any *)(y + (o * ys + k) * L + r * GP_V) = a[o * (R) + r];                                             \
  }
  GP_COLUMNS(R)
  GP_COLUMNS(1)
#undef GP_COLUMNS
  for (; k < w; k++)
    for (int o = 0; o < M; o++)
      for (int l = 0; l < L; l++) {
        float a = 0;
        for (int m = 0; m < n; m++) a += x[(o * xs + m) * L + l] * z[(m * zs + k) * L + l];
        y[(o * ys + k) * L + l] = a;
      }
}

/* y = x z for c pairs of matrices: x has h rows of n numbers, z has n rows of w. */
GP_INLINE void gp_product(int part, int parts, const float *x, const float *z, float *y, int c, int h, int n, int w, const int L,
                          long xs, long xd, long zs, long zd, long ys, long yd) {
  GP_MINE(i, c) {
    int j = 0;
    for (; j + 4 <= h; j += 4)
      gp_rows(4, x + (i * xd + j * xs) * L, z + i * zd * L, y + (i * yd + j * ys) * L, n, w, L, xs, zs, ys);
    for (; j < h; j++)
      gp_rows(1, x + (i * xd + j * xs) * L, z + i * zd * L, y + (i * yd + j * ys) * L, n, w, L, xs, zs, ys);
  }
}

/* Every `a`-th row and `b`-th column, from (v, u) on, as one of the planes that a strided layer reads. */
GP_INLINE void gp_phase(int part, int parts, const float *x, float *y, int c, int h, int w, const int L, long xs, long xd, long ys, long yd, int rows,
                        int columns, const int a, const int b, int v, int u) {
  GP_MINE(i, c)
    for (int j = 0; j < h; j++) {
      float *to = y + (i * yd + j * ys) * L;
      const float *from = x + (i * xd + ((long)j * a + v) * xs + u) * L;
      const int n = j < rows ? columns : 0;
      for (int k = 0; k < n; k++)
        for (int l = 0; l < L; l++) to[k * L + l] = from[(long)k * b * L + l];
      for (int k = n * L; k < w * L; k++) to[k] = 0;
    }
}

/* Windows: for every output row, and for every output column, first, end, step and what a mean divides by. */
GP_INLINE void gp_pool(int part, int parts, const float *x, float *y, int c, int h, int w, const int L, long xs, long xd, long ys, long yd,
                       const int32_t *rows, const int32_t *columns, const int mean) {
  GP_EACH(c, h) for (int k = 0; k < w; k++) {
    const int32_t *r = rows + 4 * j, *q = columns + 4 * k;
    float *to = y + (i * yd + j * ys + k) * L;
    for (int l = 0; l < L; l++) {
      float found = mean ? 0 : -INFINITY;
      for (int m = r[0]; m < r[1]; m += r[2])
        for (int n = q[0]; n < q[1]; n += q[2]) {
          const float z = x[(i * xd + m * xs + n) * L + l];
          if (mean) found += z;
          else if (z > found || z != z) found = z;
        }
      to[l] = mean ? found / ((float)r[3] * (float)q[3]) : found;
    }
  }
}

/* The mean of whole planes, in several sums at once. */
GP_INLINE void gp_mean(int part, int parts, const float *x, float *y, int c, int h, int w, const int L, long xs, long xd, long yd) {
  GP_MINE(i, c) {
    gp_vec sum = {0};
    float each[GP_V] = {0};
    for (int j = 0; j < h; j++) {
      const float *from = x + (i * xd + j * xs) * L;
      int k = 0;
      for (; k + GP_V <= w * L; k += GP_V) sum += *(const gp_any *)(from + k);
      for (; k < w * L; k++) each[k % GP_V] += from[k];
    }
    for (int l = 0; l < L; l++) {
      float total = 0;
      for (int k = l; k < GP_V; k += L) total += sum[k] + each[k];
      y[i * yd * L + l] = total / (float)(h * w);
    }
  }
}

/* Along an axis of n numbers at distance e: softmax, or zero mean and unit variance, then scale and shift. Vectors run
   along the axis where its numbers lie side by side, and across images where those do. */
GP_INLINE float gp_sum(gp_vec x) {
  float sum = 0;
  GP_UNROLL for (int k = 0; k < GP_V; k++) sum += x[k];
  return sum;
}
GP_INLINE void gp_softmax(int part, int parts, const float *x, float *y, int c, long d, int h, long s, int n, long e, const int L) {
  GP_EACH(c, h) for (int l = 0; l < L; l += GP_V) {
    const long at = (i * d + j * s) * L + l;
    if (L == 1) {
      float most = -INFINITY, sum = 0;
      gp_vec sums = {0};
      int k = 0;
      for (int m = 0; m < n; m++) most = x[at + m * e] > most ? x[at + m * e] : most;
      for (; e == 1 && k + GP_V <= n; k += GP_V) {
        const gp_vec z = gp_exp(*(const gp_any *)(x + at + k) - most);
        *(gp_any *)(y + at + k) = z, sums += z;
      }
      for (; k < n; k++) sum += y[at + k * e] = expf(x[at + k * e] - most);
      sum += gp_sum(sums);
      for (int m = 0; m < n; m++) y[at + m * e] /= sum;
    } else {
      gp_vec most = gp_all(-INFINITY), sum = {0};
      for (int k = 0; k < n; k++) {
        const gp_vec z = *(const gp_any *)(x + at + k * e * L);
        most = gp_choose(z > most, z, most);
      }
      for (int k = 0; k < n; k++) {
        const gp_vec z = gp_exp(*(const gp_any *)(x + at + k * e * L) - most);
        *(gp_any *)(y + at + k * e * L) = z, sum += z;
      }
      for (int k = 0; k < n; k++) *(gp_any *)(y + at + k * e * L) /= sum;
    }
  }
}
GP_INLINE void gp_norm(int part, int parts, const float *x, float *y, const float *scale, const float *shift, int c, long d, int h, long s, int n,
                       long e, const int L, float eps) {
  GP_EACH(c, h) for (int l = 0; l < L; l++) {
    const long at = (i * d + j * s) * L + l;
    gp_vec sums = {0}, squares = {0};
    float mean = 0, square = 0;
    int k = 0;
    for (; e * L == 1 && k + GP_V <= n; k += GP_V) sums += *(const gp_any *)(x + at + k);
    for (; k < n; k++) mean += x[at + k * e * L];
    mean = (mean + gp_sum(sums)) / (float)n;
    for (k = 0; e * L == 1 && k + GP_V <= n; k += GP_V) {
      const gp_vec z = *(const gp_any *)(x + at + k) - mean;
      squares += z * z;
    }
    for (; k < n; k++) square += (x[at + k * e * L] - mean) * (x[at + k * e * L] - mean);
    const float by = 1.0f / sqrtf((square + gp_sum(squares)) / (float)n + eps);
    for (k = 0; k < n; k++) y[at + k * e * L] = (x[at + k * e * L] - mean) * by * scale[k] + shift[k];
  }
}

/* Images in and out, L of them one after the other; p, q and r are the distances of their channels, rows and columns. */
GP_INLINE void gp_enter(int part, int parts, const GP_INPUT *x, float *y, int c, int h, int w, const int L, long s, long d, long p, long q, long r,
                        const float *scale, const float *shift) {
  GP_EACH(c, h) for (int k = 0; k < w; k++) for (int l = 0; l < L; l++)
    y[(i * d + j * s + k) * L + l] = (float)x[(long)l * c * h * w + i * p + j * q + k * r] * scale[i] + shift[i];
}
GP_INLINE void gp_leave(int part, int parts, const float *x, float *y, int c, int h, int w, const int L, long s, long d) {
  GP_EACH(c, h) for (int k = 0; k < w; k++) for (int l = 0; l < L; l++)
    y[((long)(l * c + i) * h + j) * w + k] = x[(i * d + j * s + k) * L + l];
}

/* How a layer lies in memory: filters, inputs of each, kernel; groups; dilation, padding, stride; the plane of each
   phase (of `phases` per channel); distances of rows and of channels, for one image and for GP_V interleaved ones. */
typedef struct {
  int filters, inputs, kh, kw, groups, dh, dw, ph, pw, sh, sw, phases, K;
  const int16_t *phase;
  long s, d, vs, vd;
} gp_shape;

GP_INLINE int gp_floor(int a, int b) { return (a - ((a % b + b) % b)) / b; }

static float gp_half(unsigned h) { /* the bits of a float16 as a number */
  const int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
  const float f = e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24);
  return h >> 15 ? -f : f;
}

/* Expand a layer: biases; the positions of its survivors as gaps of a byte (255: no survivor, go on) or as one bit
   each; then their values as float32 (4 bytes), float16 (2) or one byte times the filter's scale. Returns the data's end. */
static const unsigned char *gp_expand(const unsigned char *data, const gp_shape *g, float *bias, float *value, int32_t *offset,
                                      int32_t *many, int32_t *begin) {
  const int each = g->inputs * g->kh * g->kw, K = g->K, per = g->filters / g->groups;
  const int blocks = GP_UP(g->filters, K);
  uint32_t head[3]; /* survivors, bytes of positions, kind: bytes of a value, + 16 for bits */
  memcpy(head, data, 12), data += 12;
  memset(bias, 0, (size_t)blocks * K * 4);
  memcpy(bias, data, (size_t)g->filters * 4), data += g->filters * 4;
  const int bytes = (int)(head[2] & 15);
  const unsigned char *scales = data;
  if (bytes == 1) data += g->filters * 4;
  const unsigned char *place = data, *number = data + head[1];
  long at = -1, n = 0;
  if (K > 1) memset(value, 0, (size_t)blocks * each * K * 4);
  for (int b = 0; b <= blocks; b++) begin[b] = K > 1 ? b * each : 0;
  for (uint32_t k = 0; k < head[0]; k++) {
    if (head[2] & 16) {
      do at++; while (!(place[at >> 3] >> (at & 7) & 1));
    } else {
      while (*place == 255) at += 255, place++;
      at += 1 + *place++;
    }
    const int o = (int)(at / each), i = (int)(at % each);
    float v, scale = 1;
    if (bytes == 4) memcpy(&v, number, 4);
    else if (bytes == 2) v = gp_half((unsigned)number[0] | (unsigned)number[1] << 8);
    else memcpy(&scale, scales + 4 * o, 4), v = (float)(signed char)number[0] * scale;
    number += bytes;
    if (K > 1) value[(begin[o / K] + i) * (long)K + o % K] = v;
    else begin[o + 1]++, value[n] = v, offset[n++] = (int32_t)at;
  }
  if (K == 1) for (int o = 0; o < g->filters; o++) begin[o + 1] += begin[o];
  for (int b = 0, from = 0; K > 1 && b < blocks; b++) { /* leave out what all K filters leave out */
    const int start = from;
    from = begin[b + 1];
    begin[b] = (int32_t)n;
    for (int t = start; t < from; t++) {
      int any = 0;
      for (int k = 0; k < K; k++) any |= value[(long)t * K + k] != 0;
      if (!any) continue;
      memmove(value + n * K, value + (long)t * K, (size_t)K * 4);
      offset[n++] = (int32_t)((t - start) + (long)b * K * each);
    }
    if (b == blocks - 1) begin[blocks] = (int32_t)n;
  }
  for (long t = 0; t < n; t++) { /* from places among the weights to places among the planes */
    const int o = offset[t] / each, i = offset[t] % each, kx = i % g->kw, ky = i / g->kw % g->kh;
    const int dy = ky * g->dh - g->ph, dx = kx * g->dw - g->pw, sy = gp_floor(dy, g->sh), sx = gp_floor(dx, g->sw);
    const long channel = (long)(o / per * g->inputs + i / (g->kh * g->kw)) * g->phases +
                         g->phase[(dy - sy * g->sh) * g->sw + dx - sx * g->sw];
    offset[t] = (int32_t)(channel * g->d + sy * g->s + sx);
    if (many) many[t] = (int32_t)((channel * g->vd + sy * g->vs + sx) * GP_V);
  }
  return number + (-(number - scales) & 3);
}
