/* Ranks of any program, in C: each says hello in the job's store, rank 0 reads them all.
 *   cc example.c $(pkg-config --cflags --libs ddprun-store) -o hello && ddprun --nproc-per-node=4 --no-python ./hello
 */
#include <ddprun_store.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  const char* rank = getenv("RANK");
  const char* world = getenv("WORLD_SIZE");
  char error[512], key[64], text[128];
  ddprun_store* store = NULL;
  if (ddprun_store_connect(NULL, 0, 60000, &store, error, sizeof error) != DDPRUN_STORE_OK) {
    fprintf(stderr, "hello: %s\n", error);
    return 1;
  }
  snprintf(key, sizeof key, "hello/%s", rank);
  const int length = snprintf(text, sizeof text, "rank %s of %s", rank, world);
  int64_t here = 0;
  int bad = ddprun_store_set(store, key, text, (size_t)length) || ddprun_store_add(store, "here", 1, &here);
  for (int other = 0; !bad && atoi(rank) == 0 && other < atoi(world); ++other) {
    size_t size = sizeof text - 1;
    snprintf(key, sizeof key, "hello/%d", other);
    bad = ddprun_store_get(store, key, text, &size, 60000);
    if (!bad) printf("%.*s\n", (int)size, text);
  }
  /* Rank 0 serves nothing here, but nobody should go while others still ask. */
  if (!bad && here == atoi(world)) bad = ddprun_store_set(store, "all", "", 0);
  const char* all[] = {"all"};
  if (!bad) bad = ddprun_store_wait(store, all, 1, 60000);
  if (bad) fprintf(stderr, "hello: %s\n", ddprun_store_error(store));
  ddprun_store_close(store);
  return bad != 0;
}
