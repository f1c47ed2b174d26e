/* $command main.c $net.c -lm -o $net */
#include <stdio.h>
#include "$net.h"

static ${net}_model model;
static ${net}_context context;
$arrays

int main(void) {
  ${net}_load(${net}_weights, &model);
  ${net}_init(&context);
  ${net}_run(&model, &context, 1, $names);
  for (int i = 0; i < $first; i++) printf("%g\n", output$suffix[i]);
  return 0;
}
