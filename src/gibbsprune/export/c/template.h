/* $net: a network in C, written by gibbsprune; see $net.c. */
#ifndef ${NET}_H
#define ${NET}_H
#include <stdint.h>

$shapes
#ifndef ${NET}_LANES
#define ${NET}_LANES 0 /* 1: batches are computed several images side by side, in a second arena */
#endif
#ifndef ${NET}_SHARED
#define ${NET}_SHARED 0 /* 1: several threads can compute one image together, see ${net}_share */
#endif
#if ${NET}_SHARED
#include <stdatomic.h>
#endif
#define ${NET}_ARENA $arena /* floats */
#define ${NET}_MANY $many /* floats of the second arena */

/* The weights, expanded from the few bytes in the source; threads share them. */
typedef struct {
  float bias[$bias], value[$value];
  int32_t offset[$offset], begin[$begin];
#if ${NET}_LANES
  int32_t many[$offset];
#endif
} ${net}_model;

/* What each thread needs to run the network. */
typedef struct {
#if ${NET}_LANES
  int side; /* from how many images on they are computed side by side */
  _Alignas(64) float many[${NET}_MANY];
#endif
#if ${NET}_SHARED
  _Alignas(64) atomic_int arrived;
  _Alignas(64) atomic_int turn;
#endif
  _Alignas(64) float arena[${NET}_ARENA];
} ${net}_context;

extern const unsigned char *const ${net}_weights;
void ${net}_load(const unsigned char *weights, ${net}_model *model); /* once, with ${net}_weights */
void ${net}_init(${net}_context *context);                           /* once for each context */
void ${net}_run(const ${net}_model *model, ${net}_context *context, int images, $arguments);
#if ${NET}_SHARED
/* One image by several threads: each of them calls this with the same context and a part of its own, from 0 on. */
void ${net}_share(const ${net}_model *model, ${net}_context *context, int part, int parts, $arguments);
#endif
#endif
