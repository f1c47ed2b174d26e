/* Threads that wait for work, for the libraries of compile_c: they look for it for a while, and then sleep. */
#include <pthread.h>
#include <stdlib.h>

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  _Alignas(64) atomic_int turn; /* how often there was work */
  _Alignas(64) atomic_int left; /* threads that are not yet done with it */
  _Alignas(64) atomic_int asleep, begun;
  int parts, stop, images, step; /* each part runs `step` images; 0: all parts share every image */
  const ${net}_model *model;
  ${net}_context *const *contexts;
  $fields
  pthread_t threads[];
} ${net}_team;

static void gp_work(${net}_team *t, int part) {
  if (t->step) {
    const int i = part * t->step, n = GP_LESS(t->step, t->images - i);
    if (n > 0) ${net}_run(t->model, t->contexts[part], n, $given);
  } else {
    for (int i = 0; i < t->images; i++) ${net}_share(t->model, t->contexts[0], part, t->parts, $given);
  }
}

static void *gp_worker(void *given) {
  ${net}_team *t = given;
  const int part = 1 + atomic_fetch_add(&t->begun, 1);
  for (int seen = 0;; seen++) {
    for (int n = 0; n < 2000 && atomic_load(&t->turn) == seen; n++) gp_pause(n);
    if (atomic_load(&t->turn) == seen) {
      pthread_mutex_lock(&t->lock);
      atomic_fetch_add(&t->asleep, 1);
      while (atomic_load(&t->turn) == seen) pthread_cond_wait(&t->wake, &t->lock);
      atomic_fetch_sub(&t->asleep, 1);
      pthread_mutex_unlock(&t->lock);
    }
    if (t->stop) return 0;
    gp_work(t, part);
    atomic_fetch_sub(&t->left, 1);
  }
}

static void gp_call(${net}_team *t) {
  atomic_fetch_add(&t->turn, 1);
  if (!atomic_load(&t->asleep)) return;
  pthread_mutex_lock(&t->lock);
  pthread_cond_broadcast(&t->wake);
  pthread_mutex_unlock(&t->lock);
}

void ${net}_disband(${net}_team *t) {
  t->stop = 1;
  gp_call(t);
  for (int i = 0; i + 1 < t->parts; i++) pthread_join(t->threads[i], 0);
  pthread_cond_destroy(&t->wake);
  pthread_mutex_destroy(&t->lock);
  free(t);
}

/* A team of so many threads, the caller's included; null where they cannot be had. */
${net}_team *${net}_gather(int parts) {
  const size_t size = sizeof(${net}_team) + (size_t)parts * sizeof(pthread_t);
  ${net}_team *t = aligned_alloc(64, (size + 63) / 64 * 64);
  if (!t) return 0;
  memset(t, 0, size);
  pthread_mutex_init(&t->lock, 0);
  pthread_cond_init(&t->wake, 0);
  for (t->parts = 1; t->parts < parts; t->parts++)
    if (pthread_create(&t->threads[t->parts - 1], 0, gp_worker, t)) return ${net}_disband(t), (${net}_team *)0;
  return t;
}

void ${net}_together(${net}_team *t, const ${net}_model *model, ${net}_context *const *contexts, int images, int step,
                     $arguments) {
  t->model = model, t->contexts = contexts, t->images = images, t->step = step;
  $assigned
  atomic_store(&t->left, t->parts - 1);
  gp_call(t);
  gp_work(t, 0);
  for (int n = 0; atomic_load(&t->left); n++) gp_pause(n);
}
