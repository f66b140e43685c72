/* calls.h - commands of handlers (mw.redis): a connection per generation and URL, made on first use, shared
 * by all its handlers. A call is one command or several in a row; its replies are kept until Lua has read
 * them. Called by FFI, so nothing here runs Lua. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "loop/loop.h"
#include "net/peer.h"

typedef struct mw_redis mw_redis;
typedef struct mw_redis_call mw_redis_call;
struct mw_vm;

/* Checks the URL; nothing is connected before the first call. */
mw_redis *mw_redis_new(mw_loop *loop, const char *url, mw_error *e);
void mw_redis_free(mw_redis *r); /* calls that are under way are forgotten; NULL is fine */
mw_redis *mw_redis_next(const mw_redis *r, mw_redis *set); /* a list for the owner; set: put behind it */
const char *mw_redis_url(const mw_redis *r);
size_t mw_redis_peers(const mw_redis *r,
                      mw_peer *out); /* how its connection stands: 1, or 0 when there is none */

/* `counts[i]` arguments belong to command i. Completes the waiter when all are answered. */
mw_redis_call *mw_redis_start_for(struct mw_vm *vm, mw_redis *r, const char *const *args, const size_t *lens,
                                  const size_t *counts, size_t commands, double waiter);
void mw_redis_call_free(mw_redis_call *c); /* before its end it is cancelled: nobody hears of it any more */

const char *mw_redis_call_error(const mw_redis_call *c); /* the connection failed; NULL: it did not */
/* The values of a reply, parents before children. 's' text, 'e' error, 'i' number, 'n' none, 'a' list of
 * `count`. */
char mw_redis_call_value(const mw_redis_call *c, size_t i, const char **text, size_t *len, double *number);

/* ---- for specs: while it is on, calls wait here for somebody to answer them ---- */
void mw_redis_fake(bool on);
bool mw_redis_fake_pending(void);
mw_redis_call *mw_redis_fake_next(void);
size_t mw_redis_fake_commands(const mw_redis_call *c);
const char *mw_redis_fake_argument(const mw_redis_call *c, size_t command, size_t i,
                                   size_t *len); /* NULL: no more */
/* As a server would: replies in Redis' protocol, to all of its commands. */
void mw_redis_fake_answer(mw_redis_call *c, const char *replies, size_t len, double delay_ms);
void mw_redis_fake_fail(mw_redis_call *c, const char *text);
