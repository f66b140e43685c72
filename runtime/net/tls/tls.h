/* tls.h - one side of a TLS connection: bytes of the owner to bytes of the wire and back. It reads the socket
 * itself; what it wants to send gathers in a fifo that the owner writes. One object per stream, one session
 * at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"
#include "net/fifo.h"
#include "net/stream.h"

typedef struct mw_tls mw_tls;

mw_tls *mw_tls_new(const mw_tls_options *o,
                   mw_error *e); /* reads the files; the options live as long as it */
void mw_tls_free(mw_tls *t);     /* NULL is fine */

/* Reads the files again when they changed, for the connections that follow. On an error the old ones stay in
 * use. */
int mw_tls_refresh(mw_tls *t, mw_error *e);

int mw_tls_begin(mw_tls *t, int fd, const char *host, mw_error *e); /* on a socket that is connected */
void mw_tls_end(mw_tls *t);                   /* says goodbye if it can; twice is fine */
int mw_tls_handshake(mw_tls *t, mw_error *e); /* 1: done, 0: when there is more to read, -1 */

/* How many bytes, 0 when there are none now, -1 when the connection is over. *more: call it again. */
ssize_t mw_tls_read(mw_tls *t, void *to, size_t room, bool *more, mw_error *e);
int mw_tls_write(mw_tls *t, const void *data, size_t len, mw_error *e); /* all of it, to the wire */
mw_fifo *mw_tls_wire(mw_tls *t);

const char *mw_tls_version(const mw_tls *t); /* static; NULL without a session */
