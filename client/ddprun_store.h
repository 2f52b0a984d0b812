/* The key-value store of a data-parallel job, from C: what MASTER_ADDR and MASTER_PORT name, or a standing
 * ddprun-rendezvous. It is PyTorch's TCPStore: a key that is set here can be read with torch's TCPStore, and the other
 * way round. Link with `pkg-config --libs ddprun-store`, or find_package(ddprun) and ddprun::store.
 *
 * Every call has a deadline, in milliseconds, or of 30 s where it takes none, and returns 0 or one of the codes below;
 * ddprun_store_error() then has the sentence. A handle is for one thread at a time; threads that wait need a handle
 * each.
 */
#ifndef DDPRUN_STORE_H
#define DDPRUN_STORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddprun_store ddprun_store;

enum {
  DDPRUN_STORE_OK = 0,
  DDPRUN_STORE_TIMED_OUT = 1, /* the deadline passed; the handle stays usable */
  DDPRUN_STORE_CLOSED = 2,    /* the store is gone; the next call tries to connect again */
  DDPRUN_STORE_REFUSED = 3,   /* nobody listens there, or it is no store */
  DDPRUN_STORE_INVALID = 4,   /* an argument cannot be used */
  DDPRUN_STORE_TOO_SMALL = 5, /* ddprun_store_get: *size says how much room is needed */
  DDPRUN_STORE_FAILED = 6     /* anything else: see the sentence */
};

/* Connects, and tries again until the deadline. `host` NULL: MASTER_ADDR and MASTER_PORT of the environment.
 * On failure *store is NULL and `error` (of `error_size` bytes, may be NULL) has the sentence. */
int ddprun_store_connect(const char* host, uint16_t port, int64_t timeout_ms, ddprun_store** store, char* error,
                         size_t error_size);
/* NULL is allowed. */
void ddprun_store_close(ddprun_store* store);

/* The sentence of the last call that failed on this handle; "" if none has. Valid until the next call. */
const char* ddprun_store_error(const ddprun_store* store);

/* Returns when the store has it. */
int ddprun_store_set(ddprun_store* store, const char* key, const void* value, size_t size);
/* Waits for the key. `*size`: room at `value`; afterwards the value's size. With DDPRUN_STORE_TOO_SMALL nothing is
 * written. */
int ddprun_store_get(ddprun_store* store, const char* key, void* value, size_t* size, int64_t timeout_ms);
/* Adds to a counter, which starts at 0; *result is its new value. Exactly once or an error. */
int ddprun_store_add(ddprun_store* store, const char* key, int64_t amount, int64_t* result);
/* Waits until all keys exist. The sentence names those that do not. */
int ddprun_store_wait(ddprun_store* store, const char* const* keys, size_t count, int64_t timeout_ms);

#ifdef __cplusplus
}
#endif
#endif
