/* remove.c - taking messages out of a queue, one by one: a look that acks those that were meant, and gives
 * the others back. One that has a replacement is acked when that is confirmed. */
#include <stdlib.h>

#include "drivers/amqp/admin/look.h"

void rmq_look_ack(rmq_conn *c, uint64_t tag) {
    mw_buf *b = rmq_line_out(c->out);
    size_t f = rmq_method(b, RMQ_CHAN_BROWSE, RMQ_ACK);
    rmq_put_u64(b, tag);
    rmq_put_u8(b, 0);
    rmq_frame_end(b, f);
    rmq_line_send(c->out);
}

typedef struct replacement { /* confirmed first, then the message it replaces is acked */
    rmq_pub pub;
    rmq_look *look;
    uint64_t tag;
} replacement;

static void replaced(rmq_pub *p, const mw_error *e) {
    replacement *r = mw_container_of(p, replacement, pub);
    rmq_look *l = r->look;
    l->publishing--;
    if (e) {
        if (!l->error.code) l->error = *e;
    } else if (l->conn->session && l->conn->look.open) {
        rmq_look_ack(l->conn, r->tag);
        l->removed++;
    }
    free(r);
    rmq_removal_go(l);
}

static void take_out(rmq_look *l, seen *s, size_t index) {
    s->removed = true;
    if (index >= l->removal.publish_count) {
        rmq_look_ack(l->conn, s->tag);
        l->removed++;
        return;
    }
    const mw_publication *p = &l->removal.publish[index];
    replacement *r = calloc(1, sizeof *r);
    if (!r) abort();
    *r = (replacement){.pub = {.msg = p->msg, .done = replaced}, .look = l, .tag = s->tag};
    l->publishing++;
    rmq_send(l->conn, &r->pub, p->channel, p->delay_ms, false);
    rmq_pump(l->conn);
}

/* Places can only have become smaller since it was seen. */
static bool is_meant(mw_position meant, mw_position found) {
    return meant.low == found.low && found.high <= meant.high;
}

static bool all_found(const rmq_look *l) {
    for (size_t i = 0; i < l->removal.count; i++)
        if (!l->found[i]) return false;
    return true;
}

void rmq_removal_match(rmq_look *l, seen *s) {
    for (size_t i = 0; i < l->removal.count; i++) {
        if (l->over || l->found[i] || s->removed || !is_meant(l->removal.positions[i], s->position)) continue;
        l->found[i] = true;
        take_out(l, s, i);
    }
}

void rmq_removal_go(rmq_look *l) {
    if (l->publishing) return;
    if (all_found(l) || l->conn->session == NULL || l->conn->session->ended || l->error.code) {
        rmq_look_over(l, l->error.code ? &l->error : NULL);
    } else {
        rmq_look_more(l);
    }
}

void rmq_remove(mw_conn *conn, const mw_removal *r) {
    rmq_look *l = rmq_look_new((rmq_conn *)conn, r->channel, r->cookie);
    l->removal = *r;
    l->removing = true;
    l->found = calloc(r->count + 1, 1);
    if (!l->found) abort();
}
