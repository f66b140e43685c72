/* apart.c - settling in a cluster, where a script may touch one slot only: what lies elsewhere is published
 * and confirmed first, then the entry is acked. A crash between the two publishes again. */
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/redis.h"

typedef struct apart {
    mw_sub *s;
    mw_settlement x; /* what it points to is valid until `settled` */
    size_t left;
    bool failed;
    mw_error why;
} apart;

bool mwr_settles_apart(const mw_sub *s, const mw_settlement *x) {
    const mw_conn *c = s->conn;
    if (!mwr_client_clustered(c->client)) return false;
    unsigned home = mwr_slot(s->channel->name, strlen(s->channel->name));
    for (size_t i = 0; i < x->publish_count; i++)
        if (mwr_slot(x->publish[i].channel, strlen(x->publish[i].channel)) != home) return true;
    if (!x->done_key) return false;
    mw_buf key = {0};
    mwr_dedupe_key(c, x->done_key, x->done_len, &key);
    bool away = mwr_slot(key.data, key.len) != home;
    mw_buf_free(&key);
    return away;
}

/* One connection, so what is given first is done first: "done" stands before the ack. */
static void finish(apart *a, mwr_flight *f) {
    mw_sub *s = a->s;
    if (a->x.done_key) {
        mw_dedupe done = {
            .op = MW_DEDUPE_DONE, .key = a->x.done_key, .key_len = a->x.done_len, .ttl_ms = a->x.done_ttl_ms};
        mwr_dedupe(s->conn, &done, 1);
    }
    a->x.publish_count = 0;
    a->x.done_key = NULL;
    mwr_settle_one(s, &a->x, f);
    mwr_flush(s->conn->client);
}

static void end(apart *a) {
    mw_sub *s = a->s;
    mw_conn *c = s->conn;
    mwr_flight *f = mwr_flight_of(s, a->x.tag);
    mw_error fenced;
    mw_fail(&fenced, MW_EFENCED, false, "another consumer has it by now");
    if (f && !a->failed) {
        f->published = true;
        finish(a, f);
    } else {
        if (f) f->settling = false;
        c->host->settled(s->source, a->x.cookie, f ? &a->why : &fenced);
    }
    free(a);
}

static void published(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)u, (void)more;
    mw_conn *c = owner;
    apart *a = cookie;
    if (e && (!a->failed || (a->why.retryable && !e->retryable))) { /* one that cannot be helped decides */
        a->failed = true;
        a->why = *e;
    }
    if (--a->left) return;
    if (c->closing)
        free(a);
    else
        end(a);
}

void mwr_settle_apart(mw_sub *s, const mw_settlement *x, mwr_flight *f) {
    apart *a = mwr_alloc(sizeof *a);
    *a = (apart){.s = s, .x = *x, .left = x->publish_count};
    if (f->published || !x->publish_count) {
        finish(a, f);
        free(a);
        return;
    }
    for (size_t i = 0; i < x->publish_count; i++) mwr_publish_one(s->conn, &x->publish[i], published, a);
}
