/* request.c - requests with direct reply-to: the reply comes to the publishing channel itself, without a
 * queue. It lives and dies with that channel, and so do requests that wait for one. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/amqp/amqp.h"

static const char replies[] = "amq.rabbitmq.reply-to";

typedef struct rmq_request rmq_request;
struct rmq_request {
    rmq_pub pub;
    rmq_request *next, **back;
    rmq_conn *conn;
    void *cookie;
    mw_timer limit;
    mw_deferred late;            /* refused before it was sent */
    bool inside, sent_out, over; /* over: answered, but its confirm is still out */
    mw_error error;
    size_t id_len;
    char id[256];
};

static void unlink_request(rmq_request *r) {
    if (!r->back) return;
    *r->back = r->next;
    if (r->next) r->next->back = r->back;
    r->back = NULL;
    mw_timer_stop(&r->limit);
}

static void answer(rmq_request *r, mw_message *m, const mw_error *e) {
    rmq_conn *c = r->conn;
    void *cookie = r->cookie;
    unlink_request(r);
    r->over = true;
    if (!r->sent_out) free(r);
    c->host->replied(c->link, cookie, m, e);
}

static void answer_late(mw_deferred *d) {
    rmq_request *r = mw_container_of(d, rmq_request, late);
    answer(r, NULL, &r->error);
}

static void too_late(mw_timer *t) {
    mw_error e;
    rmq_request *r = mw_container_of(t, rmq_request, limit);
    mw_fail(&e, MW_ECLOSED, true, "no reply in time");
    r->pub.dropped = true; /* not sent yet: nobody waits for what it would do */
    answer(r, NULL, &e);
}

/* Confirmed is not answered; not confirmed never will be. */
static void confirmed(rmq_pub *p, const mw_error *e) {
    rmq_request *r = mw_container_of(p, rmq_request, pub);
    r->sent_out = false;
    if (r->over) {
        free(r);
    } else if (e && r->inside) {
        r->error = *e;
        mw_defer(r->conn->loop, &r->late, answer_late);
    } else if (e) {
        answer(r, NULL, e);
    }
}

void rmq_replies_consume(rmq_conn *c) {
    if (!c->wants_replies) return;
    mw_buf *b = rmq_line_out(c->out);
    size_t f = rmq_method(b, RMQ_CHAN_PUBLISH, RMQ_CONSUME);
    rmq_put_u16(b, 0);
    rmq_put_string(b, replies);
    rmq_put_string(b, "");
    rmq_put_u8(b, 2); /* no ack */
    rmq_close(b, rmq_open(b));
    rmq_frame_end(b, f);
    rmq_line_send(c->out);
}

void rmq_request_send(mw_conn *conn, const mw_publication *p, int64_t timeout_ms) {
    rmq_conn *c = (rmq_conn *)conn;
    rmq_request *r = calloc(1, sizeof *r);
    mw_parts parts;
    mw_header h;
    if (!r) abort();
    r->conn = c;
    r->cookie = p->cookie;
    r->pub.msg = p->msg;
    r->pub.done = confirmed;
    mw_message_parts(p->msg, &parts);
    if (mw_headers_find(parts.headers, parts.headers_len, "correlation-id", &h) &&
        h.value_len < sizeof r->id) {
        memcpy(r->id, h.value, h.value_len);
        r->id_len = h.value_len;
    }
    r->next = c->requests;
    r->back = &c->requests;
    if (r->next) r->next->back = &r->next;
    c->requests = r;
    mw_timer_start(c->loop, &r->limit, timeout_ms, too_late);
    if (!c->wants_replies) {
        c->wants_replies = true;
        if (c->publish.open) rmq_replies_consume(c);
    }
    r->inside = r->sent_out = true;
    rmq_send(c, &r->pub, p->channel, p->delay_ms, false);
    r->inside = false;
    rmq_pump(c);
}

void rmq_replied(rmq_conn *c, rmq_content *k) {
    rmq_envelope e;
    rmq_route route = {0};
    uint64_t size;
    if (!rmq_envelope_read(k->header, &route, &c->scratch, &e, &size)) return;
    for (rmq_request *r = c->requests; r; r = r->next) {
        if (r->id_len != e.correlation.len || memcmp(r->id, e.correlation.data, r->id_len) != 0) continue;
        mw_parts parts = e.parts;
        mw_error why;
        parts.body = k->body;
        parts.body_len = k->body_len;
        if (k->too_large)
            mw_fail(&why, MW_EUSAGE, false, "the reply has %" PRIu64 " bytes, over max_message of the URL",
                    k->too_large);
        answer(r, k->too_large ? NULL : mw_message_new(&parts), k->too_large ? &why : NULL);
        return;
    }
}

/* The address that replies were sent to is gone. */
void rmq_requests_lost(rmq_conn *c) {
    mw_error e;
    mw_fail(&e, MW_ECLOSED, true, "the connection was lost before the reply");
    rmq_request *list = c->requests;
    c->requests = NULL;
    if (list) list->back = &list;
    while (list) {
        rmq_request *r = list;
        r->pub.dropped = true;
        answer(r, NULL, &e);
    }
}

/* Nobody is told any more; those whose confirm is out end with it. */
void rmq_requests_free(rmq_conn *c) {
    for (rmq_request *r; (r = c->requests);) {
        mw_deferred_cancel(c->loop, &r->late);
        unlink_request(r);
        r->over = true;
        if (!r->sent_out) free(r);
    }
}
