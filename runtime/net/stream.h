/* stream.h - a byte stream to a server that keeps itself connected: TCP, TLS or a Unix socket, non-blocking,
 * on the loop. It resolves names off the loop, tries every address, reconnects with a jittered and capped
 * backoff, watches its deadlines, gathers what is written during a turn into one write, and hands what
 * arrives to a parser in the place where it was read. It knows nothing of protocols.
 *
 * Events come from deferred calls (a flat stack, see loop/loop.h). Any function here may be called from
 * inside an event, mw_stream_close included; after mw_stream_close no event comes. Everything belongs to the
 * loop's thread. Its clocks are real ones, also in specs; while it connects or has output it counts as
 * waiting for the world (mw_loop_outside). An owner that waits for an answer does that itself. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "loop/loop.h"
#include "base/url.h"
#include "net/peer.h"

typedef struct mw_stream mw_stream;

typedef struct mw_stream_events {
    /* Connected, TLS included: write the greeting. Nothing of an earlier connection is left in either
     * direction. */
    void (*up)(void *owner);
    /* Bytes that were not consumed yet, valid during the call. Returns how many are consumed now; the rest is
     * shown again with more behind it, or when a hold ends. *need (0 at the call) may be set to how many
     * unconsumed bytes there must be before it is worth calling again; more than max_input is a protocol
     * error. A parser that finds nonsense calls mw_stream_fail and returns anything. */
    size_t (*input)(void *owner, const char *data, size_t len, size_t *need);
    /* Lost; or one round over all addresses led nowhere (then `up` was not called). What was written and not
     * answered may or may not have arrived. It connects again by itself. */
    void (*down)(void *owner, const mw_error *why);
    void (*drained)(void *owner); /* optional: the output was above the high mark and is below the low one */
} mw_stream_events;

typedef struct mw_tls_options { /* "" and NULL are the same: not given */
    bool on, insecure;          /* insecure: neither certificate nor name is checked; said in the log */
    const char *ca;             /* a file or folder of certificates; the system's otherwise */
    const char *cert, *key;     /* ours, for servers that want one; PEM; the key may stand in cert's file */
    const char *name;           /* what the certificate must say, and SNI; the host otherwise */
} mw_tls_options;

typedef struct mw_stream_options { /* 0 is the default everywhere */
    const char *hosts; /* host[:port],[v6]:port,...; or the path of a Unix socket when it begins with '/' */
    int default_port;
    mw_tls_options tls;
    int64_t connect_ms; /* one address: TCP and TLS together; also for looking up a name (default 5 s) */
    int64_t idle_ms;    /* nothing arrived for so long: lost (0: never; the owner sees to pings) */
    int64_t write_ms;   /* nothing of what waits could be written for so long: lost (default 15 s) */
    int64_t retry_ms, retry_cap_ms; /* backoff between rounds over all addresses (100 ms .. 10 s) */
    size_t high, low;               /* marks of the output (default 1 MiB, 256 KiB) */
    size_t max_input;               /* what may wait for a parser (default 64 MiB) */
} mw_stream_options;

/* Checks the options (host syntax, files of certificates), copies them, connects from the next turn on. */
mw_stream *mw_stream_open(mw_loop *loop, const mw_stream_options *o, const mw_stream_events *events,
                          void *owner, mw_error *e);
void mw_stream_close(mw_stream *s); /* at once; what was not written is gone; NULL is fine */

bool mw_stream_is_up(const mw_stream *s);
/* Output. Ignored while it is not up. Written at the end of the turn. */
void mw_stream_write(mw_stream *s, const void *data, size_t len);
char *mw_stream_reserve(mw_stream *s, size_t len); /* room for so much at the end of the output ... */
void mw_stream_commit(mw_stream *s, size_t len);   /* ... of which so much was filled */
/* Before a close: writes now, as far as the kernel takes it, and passes over what the server still says,
 * until it is silent. A socket that is closed with something unread in it is reset, and what was just written
 * lost. This blocks, a fifth of a second at most. */
void mw_stream_farewell(mw_stream *s);
bool mw_stream_full(const mw_stream *s);      /* above the high mark: `drained` comes */
size_t mw_stream_pending(const mw_stream *s); /* written by the owner, not taken by the kernel */
/* Read next in so many ms, whatever comes until then: many small pieces of a busy server become a large one.
 * Asked for in `input`; when nothing has come by then, it is read as ever. */
void mw_stream_rest(mw_stream *s, int64_t ms);

void mw_stream_established(mw_stream *s); /* the owner is content (logged in): the backoff begins anew */
/* Drops the connection for this reason, as if it were lost: from here on it is not up, `down` comes with the
 * reason, then it connects again. Nothing when it is not up. */
void mw_stream_fail(mw_stream *s, const mw_error *why);
/* From the next attempt on, go there: for good, or until a round finds nobody there, and then to the hosts of
 * the options again. For what a server said: a Unix socket is refused. */
int mw_stream_redirect(mw_stream *s, const char *hosts, bool for_good, mw_error *e);

void mw_stream_look(const mw_stream *s, const char *name, mw_peer *out); /* name: static */

/* The TLS options that every driver takes in its URL:
 * ?ca=FILE&cert=FILE&key=FILE&tls_name=HOST&insecure=true. out->on is set before: the scheme says it, and
 * without TLS such options are refused. The texts live as long as the URL. The names are for the list of
 * mw_url_only. */
#define MW_TLS_OPTION_NAMES "ca", "cert", "key", "tls_name", "insecure"
int mw_tls_from_url(const mw_url *u, mw_tls_options *out, mw_error *e);
