/* look.h - what browsing (browse.c), counting (count.c) and taking out (remove.c) share: a look at a queue,
 * and what it holds. */
#pragma once
#include "drivers/amqp/amqp.h"

typedef struct seen { /* a message that this look holds */
    uint64_t tag;
    mw_position position;
    bool removed;
} seen;

typedef struct rmq_look rmq_look;
struct rmq_look { /* a browse or a removal */
    rmq_look *next;
    char *queue;
    mw_browse browse;
    mw_removal removal;
    bool removing;
    void *cookie;
    mw_buf entries; /* of mw_entry; references to the messages */
    bool *found;    /* which positions of a removal */
    size_t removed;
    uint64_t back; /* so many are on their way back into the queue */
    int back_tries;
    size_t publishing; /* replacements not confirmed yet */
    mw_error error;
    mw_deferred late;
    rmq_conn *conn;
    bool counting; /* of the newest: how many there are is asked for */
    bool again;    /* the line was lost, and with the next one it begins anew */
    bool over;
};

struct rmq_session { /* the open look at one queue: what it holds */
    char *queue;
    mw_buf held;    /* of seen, by place */
    uint64_t place; /* of the last one */
    uint64_t count; /* how many there were when it began */
    unsigned asked; /* gets without an answer */
    bool opened, counted, ended;
    bool stream;
    bool consume; /* streams, and quorum queues with a single active consumer know no get; one page per
                     session then */
};

/* browse.c */
rmq_look *rmq_look_new(rmq_conn *c, const char *queue, void *cookie);
void rmq_look_more(rmq_look *l); /* the next messages, unless some are on their way */
void rmq_look_over(rmq_look *l, const mw_error *e);
void rmq_look_go(rmq_look *l);                          /* begins to read, or goes on in the open session */
void rmq_look_answer(rmq_look *l);                      /* in a later call: it is over then */
bool rmq_may_be_stream(rmq_conn *c, const char *queue); /* one that says it is empty */

/* count.c */
void rmq_look_count(rmq_look *l); /* answers with the newest position */

/* remove.c */
void rmq_look_ack(rmq_conn *c, uint64_t tag); /* it is gone from the queue, or gives way to the next one */
void rmq_removal_match(rmq_look *l, seen *s); /* takes it out, if it is one of those that were meant */
void rmq_removal_go(rmq_look *l);             /* looks on, or ends it */
