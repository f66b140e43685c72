/* client_defs.h - the inside of client.h, for its two files: client.c and greeting.c. */
#pragma once
#include <string.h>

#include "redis/client.h"

typedef struct pending { /* a command not answered yet, oldest first in a ring */
    mwr_on_reply *reply;
    void *cookie;
    uint64_t deadline;
    uint32_t bytes; /* of one that was not sent: what it takes in `out` */
    int8_t depth;
} pending;

typedef enum { LOGGED_OUT, GREETING, READY } client_state;

struct mwr_client {
    mw_loop *loop;
    mwr_client_options o;
    mwr_client_events events;
    void *owner;
    mw_stream *stream;
    client_state state;
    mwr_parser parser;
    mw_buf out;    /* commands that were not handed to the stream yet */
    size_t begun;  /* where the last one begins in it */
    pending *ring; /* of `capacity`, a power of two */
    uint32_t first, count, capacity, sent;
    uint8_t steps[8 + MWR_SCRIPTS_MOST]; /* of the greeting, in the order of their answers */
    int step_count, step_at;
    bool rejected;        /* the greeting failed: the answers that follow are nobody's */
    bool overdue;         /* its time is over: only what has come already may still save it */
    uint64_t greet_until; /* real ms: for all of it, however it dribbles in */
    bool clustered;       /* the server is a node of a cluster */
    int64_t id;
    uint64_t heard;          /* real ms: the last reply */
    char why[MW_ERROR_TEXT]; /* it is not ready */
    mw_timer check;
    bool expiring;       /* what fails now was never sent */
    bool inside, closed; /* freed when the parser lets go of it */
    bool full;           /* told so */
};

static inline bool mwr_error_begins(const mwr_unit *u, const char *prefix) {
    return u->node->type == MWR_ERROR && u->node->len >= strlen(prefix) &&
           memcmp(u->base + u->node->at, prefix, strlen(prefix)) == 0;
}

/* greeting.c */
void mwr_greeting_write(mwr_client *c);
bool mwr_greeting_reply(mwr_client *c, const mwr_unit *u); /* true: it was the last, and all is well */
