/* resolver.h - names to addresses, off the loop: getaddrinfo may take minutes and cannot be stopped, so each
 * lookup has a thread of its own that is left alone when nobody wants its answer any more. */
#pragma once
#include <stdbool.h>
#include <sys/socket.h>

#include "base/error.h"
#include "loop/loop.h"

typedef struct mw_address {
    struct sockaddr_storage at;
    socklen_t len;
} mw_address;

enum { MW_ADDRESSES = 16 }; /* of one name; more are left out */

typedef struct mw_lookup mw_lookup;

/* `done` is called from the poll, once. NULL: it could not be started, and why. */
mw_lookup *mw_lookup_start(mw_loop *loop, const char *host, int port, void (*done)(void *owner), void *owner,
                           mw_error *e);
bool mw_lookup_is_done(const mw_lookup *l);
/* How many addresses, or -1 and why not. Only when it is done. */
int mw_lookup_take(mw_lookup *l, mw_address out[MW_ADDRESSES], mw_error *e);
void mw_lookup_end(mw_lookup *l); /* never waits; after it `done` is not called; NULL is fine */

/* An address that needs no lookup: false when it is a name. */
bool mw_address_literal(const char *host, int port, mw_address *out);
