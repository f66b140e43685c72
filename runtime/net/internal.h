/* internal.h - what the files of runtime/net share. stream.c owns the life and the events, dial.c gets
 * connected, input.c and output.c move bytes once it is. */
#pragma once
#include "net/fifo.h"
#include "net/hosts.h"
#include "net/resolver.h"
#include "net/stream.h"
#include "net/tls/tls.h"

typedef enum { MW_STREAM_RESOLVING, MW_STREAM_CONNECTING, MW_STREAM_UP, MW_STREAM_WAITING } mw_stream_state;

typedef struct mw_dial {
    mw_hosts hosts, redirect; /* redirect: for the next round */
    mw_hosts given;           /* to come back to when a redirect leads nowhere; none: hosts are those */
    bool for_good;            /* the redirect is: there is no way back */
    bool content;             /* the owner is, with this connection */
    bool lost_way;            /* where it was led to, nobody was */
    uint32_t astray;          /* how often in a row */
    unsigned host;            /* the one that is tried, or was last */
    unsigned hosts_left;      /* of this round */
    uint32_t rounds;          /* since the owner was content */
    mw_lookup *lookup;
    mw_address addresses[MW_ADDRESSES];   /* of the host */
    unsigned address_count, first, tried; /* `tried` of them, beginning with `first` */
    bool connected;                       /* TCP is; TLS may not be */
    mw_error failed;                      /* what this round ran into, joined */
    uint32_t failures; /* rounds in a row, and connections that were lost before the owner was content */
} mw_dial;

struct mw_stream {
    mw_loop *loop;
    mw_stream_events events;
    void *owner;
    mw_stream_options o; /* the texts are ours */
    mw_stream_state state;
    mw_dial dial;

    int fd;      /* -1: none */
    mw_tls *tls; /* NULL: plain */
    mw_io read_io, write_io;
    mw_deferred turn, flush;
    mw_timer deadline; /* of the lookup, of the attempt, or until the next round: by state */
    mw_timer idle, stuck, trim, rest;
    int queued;            /* in the kernel, when the output last got stuck or moved */
    uint64_t heard, moved; /* real ms: when something last arrived, or left */

    mw_fifo in, out;
    size_t need;  /* what the parser asked for */
    size_t chunk; /* how much is read at once */

    /* Noted during the poll, for the turn. */
    bool readable, writable, deadline_over, idle_over, stuck_over;
    bool full, told_outside;
    bool is_below;        /* the output fell below the low mark: the owner is still to be told */
    bool doomed;          /* it is over, for this reason; `down` is still to come */
    bool write_failed;    /* likewise, once what the server said last was read */
    bool in_turn, closed; /* closed inside a turn: freed at its end */
    mw_error why;

    char address[MW_ADDRESS_TEXT], error[MW_ERROR_TEXT];
    int64_t since_ms;
    uint64_t connects, bytes_in, bytes_out;
};

static inline bool mw_stream_alive(const mw_stream *s) { return !s->closed && !s->doomed; }

/* stream.c */
void mw_stream_set_state(mw_stream *s, mw_stream_state state);
void mw_stream_soon(mw_stream *s); /* a turn */
void mw_stream_doom(mw_stream *s, const mw_error *why);
void mw_stream_came_up(mw_stream *s);
void mw_stream_drop(mw_stream *s); /* the socket, or the attempt to get one */
void mw_stream_readable(mw_io *io, int events);
void mw_stream_writable(mw_io *io, int events);
void mw_stream_count_outside(mw_stream *s);
void mw_stream_trim_later(mw_stream *s);

/* dial.c */
void mw_dial_begin(mw_stream *s); /* a round */
void mw_dial_go_on(mw_stream *s); /* something it waited for happened */
void mw_dial_later(mw_stream *s); /* the next round, after the backoff */

/* input.c */
void mw_input_run(mw_stream *s);   /* reads and shows */
void mw_input_watch(mw_stream *s); /* asks the poll for what comes, if that is due */

/* output.c */
void mw_output_run(mw_stream *s); /* writes what it can */
void mw_output_flush(mw_deferred *d);
