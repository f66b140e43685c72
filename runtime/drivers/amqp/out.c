/* out.c - publishing, on a line of its own. Every publication is persistent, mandatory and confirmed. The
 * broker confirms in any order and many at a time; what it returns as unroutable it returns before the
 * confirm. While the broker blocks us (an alarm) or does not read fast enough, publications wait here; that
 * is no error. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/amqp/amqp.h"

enum { PATIENCE_MS = 10000, TRIES = 5 };

void rmq_fifo_push(rmq_fifo *f, rmq_pub *p) {
    p->next = NULL;
    if (f->first)
        f->last->next = p;
    else
        f->first = p;
    f->last = p;
}

rmq_pub *rmq_fifo_pop(rmq_fifo *f) {
    rmq_pub *p = f->first;
    if (p) f->first = p->next;
    return p;
}

void rmq_finish(rmq_pub *p, const mw_error *e) {
    mw_message_unref(p->msg);
    p->msg = NULL;
    free(p->key);
    p->key = NULL;
    p->done(p, e);
}

/* ---- what was sent and is not confirmed ---- */

static void note_sent(rmq_conn *c, rmq_pub *p) {
    if (c->next_seq - c->first_seq == c->sent_room) {
        size_t room = c->sent_room ? c->sent_room * 2 : 256;
        rmq_pub **ring = calloc(room, sizeof *ring);
        if (!ring) abort();
        for (uint64_t i = c->first_seq; i < c->next_seq; i++)
            ring[i & (room - 1)] = c->sent[i & (c->sent_room - 1)];
        free(c->sent);
        c->sent = ring;
        c->sent_room = room;
    }
    c->sent[c->next_seq++ & (c->sent_room - 1)] = p;
}

static rmq_pub *take_sent(rmq_conn *c, uint64_t seq) {
    if (seq < c->first_seq || seq >= c->next_seq) return NULL;
    rmq_pub **slot = &c->sent[seq & (c->sent_room - 1)], *p = *slot;
    *slot = NULL;
    while (c->first_seq < c->next_seq && !c->sent[c->first_seq & (c->sent_room - 1)]) c->first_seq++;
    return p;
}

static void end(rmq_conn *c, rmq_pub *p, bool routed, const mw_error *e) {
    rmq_target_over(c, p, routed);
    rmq_finish(p, e);
}

/* A reply declares nothing: whoever names a queue in reply-to could make queues here otherwise. */
static bool was_reply(const rmq_pub *p) {
    if (p->to->kind != RMQ_TO_EXCHANGE || *p->to->exchange) return false;
    mw_log_begin(MW_WARN, "a reply was dropped: the queue that it was wanted on is not there");
    mw_log_text("queue", p->key);
    mw_log_end();
    return true;
}

static void confirmed(rmq_conn *c, uint64_t seq, bool taken) {
    rmq_pub *p = take_sent(c, seq);
    if (!p) return;
    if (c->alone) c->alone--;
    mw_error e;
    if (!taken && p->to->state == RMQ_TRYING && p->tries < TRIES) {
        rmq_target_unready(p);
    } else if (!taken) {
        mw_fail(&e, MW_ECLOSED, true,
                "%s: the broker did not take the message: its queue is full (overflow = \"reject-publish\") "
                "or failed",
                p->to->name);
        end(c, p, true, &e);
    } else if (p->returned && p->to->kind != RMQ_TO_EXCHANGE && p->tries < TRIES) {
        rmq_target_back(c, p); /* deleted: declared, and once more */
    } else if (p->returned && !was_reply(p)) {
        if (p->to->kind == RMQ_TO_EXCHANGE)
            mw_fail(&e, MW_EUSAGE, true, "unroutable: exchange \"%s\" has no queue bound for \"%s\"",
                    p->to->exchange, p->key ? p->key : "");
        else
            mw_fail(&e, MW_EUSAGE, true, "unroutable: there is no queue \"%s\"", p->to->key);
        end(c, p, false, &e);
    } else {
        end(c, p, true, NULL);
    }
}

static void confirms(rmq_conn *c, rmq_reader *r, bool taken) {
    uint64_t seq = rmq_u64(r);
    bool multiple = rmq_u8(r) & 1;
    if (r->bad) return;
    if (!multiple) {
        confirmed(c, seq, taken);
        return;
    }
    uint64_t last = seq && seq < c->next_seq ? seq : c->next_seq - 1; /* 0 means all of them */
    for (uint64_t i = c->first_seq; i <= last; i++) confirmed(c, i, taken);
}

static const char *key_of(const rmq_pub *p) { return p->key ? p->key : p->to->key; }

static bool same(rmq_str a, const char *b) { return a.len == strlen(b) && memcmp(a.data, b, a.len) == 0; }

/* Its id and its way say which one it was; of several alike it does not matter which. */
static void returned(rmq_conn *c, const rmq_content *k) {
    rmq_envelope e;
    uint64_t size;
    rmq_route none = {0};
    if (!rmq_envelope_read(k->header, &none, &c->scratch, &e, &size)) return;
    for (uint64_t i = c->first_seq; i < c->next_seq; i++) {
        rmq_pub *p = c->sent[i & (c->sent_room - 1)];
        if (!p || p->returned || !same(k->key, key_of(p)) || !same(k->exchange, p->to->exchange)) continue;
        mw_parts parts;
        mw_message_parts(p->msg, &parts);
        if (parts.id_len && !same((rmq_str){parts.id, parts.id_len}, "") &&
            (parts.id_len != e.parts.id_len || memcmp(parts.id, e.parts.id, parts.id_len) != 0))
            continue;
        p->returned = true;
        return;
    }
}

/* ---- writing ---- */

static void put_publish(rmq_conn *c, const rmq_pub *p, const mw_parts *parts) {
    mw_buf *b = rmq_line_out(c->out);
    size_t f = rmq_method(b, RMQ_CHAN_PUBLISH, RMQ_PUBLISH);
    rmq_put_u16(b, 0);
    rmq_put_string(b, p->to->exchange);
    rmq_put_string(b, key_of(p));
    rmq_put_u8(b, p->to->mandatory ? 1 : 0);
    rmq_frame_end(b, f);
    f = rmq_frame(b, RMQ_HEADER, RMQ_CHAN_PUBLISH);
    rmq_envelope_write(b, parts, &p->stamp);
    rmq_frame_end(b, f);
}

static void put_body(rmq_conn *c, const mw_parts *parts) {
    size_t most = c->out->frame_max - RMQ_FRAME_EXTRA;
    for (size_t at = 0; at < parts->body_len;) {
        size_t n = parts->body_len - at < most ? parts->body_len - at : most;
        char head[7] = {RMQ_BODY,       0,      RMQ_CHAN_PUBLISH, (char)(n >> 24), (char)(n >> 16),
                        (char)(n >> 8), (char)n};
        char *out = mw_stream_reserve(c->out->stream, n + RMQ_FRAME_EXTRA);
        memcpy(out, head, sizeof head);
        memcpy(out + sizeof head, parts->body + at, n);
        out[sizeof head + n] = (char)RMQ_END;
        mw_stream_commit(c->out->stream, n + RMQ_FRAME_EXTRA);
        at += n;
    }
}

/* A content header cannot be split: it has to fit into one frame. */
static bool fits(rmq_conn *c, rmq_pub *p) {
    if (c->out->out.len <= c->out->frame_max) return true;
    mw_error e;
    mw_fail(&e, MW_EUSAGE, false,
            "%s: headers and key take %zu bytes, and RabbitMQ takes at most %u (frame_max)", p->to->name,
            c->out->out.len, c->out->frame_max);
    end(c, p, false, &e);
    return false;
}

static bool can_write(const rmq_conn *c) {
    if (c->alone && c->next_seq != c->first_seq) return false;
    return c->out && c->confirming && !c->out->blocked && c->out->state == RMQ_READY &&
           !mw_stream_full(c->out->stream);
}

void rmq_pump(rmq_conn *c) {
    while (c->ready.first && can_write(c)) {
        rmq_pub *p = rmq_fifo_pop(&c->ready);
        if (p->dropped) {
            mw_error e;
            mw_fail(&e, MW_ECLOSED, true, "no longer wanted");
            end(c, p, false, &e);
            continue;
        }
        if (rmq_target_recall(c, p)) continue;
        mw_parts parts;
        mw_message_parts(p->msg, &parts);
        put_publish(c, p, &parts);
        if (!fits(c, p)) continue;
        rmq_line_send(c->out);
        put_body(c, &parts);
        note_sent(c, p);
    }
}

/* ---- waiting for a broker that is away ---- */

static void fail_waiting(rmq_conn *c, const mw_error *e) {
    rmq_fifo list = {0};
    rmq_targets_gather(c, &list);
    for (rmq_pub *p; (p = rmq_fifo_pop(&list));) end(c, p, false, e);
}

static void out_of_patience(mw_timer *t) {
    rmq_conn *c = mw_container_of(t, rmq_conn, patience);
    if (!c->out || c->out->state == RMQ_READY) return;
    mw_error e;
    mw_fail(&e, MW_ECLOSED, true, "the broker cannot be reached: %s", c->out->why.text);
    fail_waiting(c, &e);
}

static void mind(rmq_conn *c) {
    if (c->out->state == RMQ_READY || mw_timer_running(&c->patience)) return;
    int64_t ms = c->out->refused ? 0 : PATIENCE_MS;
    mw_timer_start_real(c->loop, &c->patience, ms, out_of_patience);
}

/* ---- events of the line ---- */

static void out_up(void *owner) {
    rmq_conn *c = owner;
    mw_timer_stop(&c->patience);
    c->server = c->out->server;
    c->server_minor = c->out->server_minor;
    c->told_down = false;
    if (!c->told_up) c->host->state(c->link, true, NULL);
    c->told_up = true;
}

static void out_down(void *owner, const mw_error *why) {
    rmq_conn *c = owner;
    mw_timer_stop(&c->blocked);
    if (!c->told_down) c->host->state(c->link, false, why);
    c->told_down = true;
    c->told_up = false;
    if (c->out->refused) fail_waiting(c, why);
    if (rmq_targets_waiting(c)) mind(c);
    rmq_jobs_lost(c, why);
    rmq_looks_lost(c, why);
}

static void blocked_too_long(mw_timer *t) {
    rmq_conn *c = mw_container_of(t, rmq_conn, blocked);
    mw_error e;
    mw_fail(&e, MW_ECLOSED, true,
            "the broker blocks publishing: it has an alarm (memory or disk), for %" PRId64
            " s now (blocked_timeout)",
            c->blocked_ms / 1000);
    fail_waiting(c, &e);
    mw_stream_fail(c->out->stream, &e); /* whether it has what was written nobody knows */
}

static void out_blocked(void *owner, bool blocked, rmq_str why) {
    rmq_conn *c = owner;
    mw_timer_stop(&c->blocked);
    if (blocked && c->blocked_ms) mw_timer_start_real(c->loop, &c->blocked, c->blocked_ms, blocked_too_long);
    mw_log_begin(blocked ? MW_WARN : MW_INFO, blocked ? "the broker blocks publishing; publications wait"
                                                      : "the broker takes publications again");
    if (blocked) mw_log_str("reason", why.data, why.len);
    mw_log_end();
    rmq_pump(c);
    for (rmq_sub *s = c->subs, *next; s; s = next) { /* they do not wait for their journals any more */
        next = s->next;
        if (blocked) rmq_sub_pump(s);
    }
}

static void out_drained(void *owner) { rmq_pump(owner); }

static const rmq_line_events out_events = {
    .up = out_up, .down = out_down, .blocked = out_blocked, .drained = out_drained};

/* ---- events of the publishing channel ---- */

static void publish_opened(rmq_chan *chan) {
    mw_buf *b = rmq_line_out(chan->line);
    size_t f = rmq_method(b, chan->id, RMQ_CONFIRM_SELECT);
    rmq_put_u8(b, 0);
    rmq_frame_end(b, f);
    rmq_line_send(chan->line);
    rmq_replies_consume(chan->owner);
}

/* A stream that somebody is just making can be found, but whoever writes to it costs the connection. */
static bool came_too_early(const rmq_conn *c, const rmq_pub *p) {
    unsigned code = c->out->closed_with;
    return (code == RMQ_RESOURCE_ERROR || code == RMQ_INTERNAL_ERROR) && p->to->state == RMQ_TRYING &&
           p->tries < TRIES;
}

/* Whether the broker has them nobody knows: whoever asked decides whether to send again. */
static void publish_closed(rmq_chan *chan, int code, const mw_error *why) {
    rmq_conn *c = chan->owner;
    mw_error e;
    mw_fail(&e, MW_ECLOSED, true, "not confirmed: %s", why->text);
    c->confirming = false;
    rmq_fifo lost = {0};
    for (uint64_t i = c->first_seq; i < c->next_seq; i++) {
        rmq_pub *p = c->sent[i & (c->sent_room - 1)];
        if (p && came_too_early(c, p))
            rmq_target_back(c, p);
        else if (p)
            rmq_fifo_push(&lost, p);
    }
    c->first_seq = c->next_seq = 1;
    rmq_replies_lost(c, &lost);
    for (rmq_pub *p = lost.first; p; p = p->next) rmq_target_over(c, p, false);
    rmq_targets_forget(c);
    for (rmq_pub *p; (p = rmq_fifo_pop(&lost));) rmq_finish(p, &e);
    rmq_requests_lost(c);
    (void)code;
}

static void publish_method(rmq_chan *chan, uint32_t method, rmq_reader *r) {
    rmq_conn *c = chan->owner;
    if (method == RMQ_ACK || method == RMQ_NACK) {
        confirms(c, r, method == RMQ_ACK);
        rmq_pump(c); /* the first to its queue may have been among them */
    } else if (method == RMQ_CONFIRM_SELECT_OK) {
        c->confirming = true;
        c->first_seq = c->next_seq = 1;
        rmq_pump(c);
    }
}

static void publish_content(rmq_chan *chan, rmq_content *k) {
    if (k->method == RMQ_RETURN)
        returned(chan->owner, k);
    else
        rmq_replied(chan->owner, k);
}

static const rmq_chan_events publish_events = {
    .opened = publish_opened, .closed = publish_closed, .method = publish_method, .content = publish_content};

/* ---- from the driver's other files, and from the core ---- */

rmq_line *rmq_out(rmq_conn *c) {
    if (c->out) return c->out;
    mw_error e;
    c->out = rmq_line_new(c->loop, &c->settings, &out_events, c, &e);
    if (!c->out) { /* checked at open: only the certificates can have changed since */
        mw_log_begin(MW_ERROR, "cannot connect");
        mw_log_text("error", e.text);
        mw_log_end();
        return NULL;
    }
    rmq_chan_add(c->out, &c->publish, RMQ_CHAN_PUBLISH, &publish_events, c);
    rmq_chan_add(c->out, &c->admin, RMQ_CHAN_ADMIN, &rmq_admin_events, c);
    return c->out;
}

void rmq_send_to(rmq_conn *c, rmq_pub *p, rmq_target *to) {
    mw_message_ref(p->msg);
    p->to = to;
    p->place = ++c->places;
    p->tries = 0;
    p->stamp.waits = to->kind == RMQ_TO_TIER;
    p->returned = p->dropped = p->under_way = false;
    if (!rmq_out(c)) {
        mw_error e;
        mw_fail(&e, MW_ECLOSED, true, "cannot connect to the broker");
        rmq_finish(p, &e);
        return;
    }
    rmq_target_add(c, p);
    mind(c);
}

void rmq_send(rmq_conn *c, rmq_pub *p, const char *channel, int64_t delay_ms, bool retry) {
    mw_error e;
    rmq_target *to =
        delay_ms > 0 ? rmq_target_tier(c, channel, delay_ms, retry, &e) : rmq_target_get(c, channel);
    const char *key = rmq_routing_key(channel);
    p->key = key ? strdup(key) : NULL;
    if (to && rmq_is_direct_reply(to, key)) {
        rmq_conn *r = rmq_replier(c);
        rmq_send_to(r, p, rmq_target_get(r, channel));
        rmq_pump(r);
        return;
    }
    if (to) {
        rmq_send_to(c, p, to);
        return;
    }
    mw_message_ref(p->msg);
    rmq_finish(p, &e);
}

typedef struct given { /* a publication of the core */
    rmq_pub pub;
    rmq_conn *conn;
    void *cookie;
    mw_deferred later; /* refused before it was sent: the answer must not come from inside of the call */
    bool inside;
    mw_error error;
} given;

static void answer_late(mw_deferred *d) {
    given *g = mw_container_of(d, given, later);
    g->conn->host->published(g->conn->link, g->cookie, &g->error);
    free(g);
}

static void given_done(rmq_pub *p, const mw_error *e) {
    given *g = mw_container_of(p, given, pub);
    if (g->inside) {
        g->error = *e;
        mw_defer(g->conn->loop, &g->later, answer_late);
        return;
    }
    g->conn->host->published(g->conn->link, g->cookie, e);
    free(g);
}

void rmq_publish(mw_conn *conn, const mw_publication *list, size_t count) {
    rmq_conn *c = (rmq_conn *)conn;
    for (size_t i = 0; i < count; i++) {
        given *g = calloc(1, sizeof *g);
        if (!g) abort();
        g->conn = c;
        g->cookie = list[i].cookie;
        g->pub.msg = list[i].msg;
        g->pub.done = given_done;
        g->inside = true;
        rmq_send(c, &g->pub, list[i].channel, list[i].delay_ms, false);
        g->inside = false;
    }
    rmq_pump(c);
}

void rmq_out_close(rmq_conn *c) {
    mw_timer_stop(&c->patience);
    mw_timer_stop(&c->blocked);
    rmq_line_free(c->out);
    c->out = NULL;
    rmq_fifo all = {0};
    rmq_targets_gather(c, &all);
    for (uint64_t i = c->first_seq; i < c->next_seq; i++) {
        rmq_pub *p = c->sent[i & (c->sent_room - 1)];
        if (p) rmq_fifo_push(&all, p);
    }
    c->first_seq = c->next_seq;
    mw_error e;
    mw_fail(&e, MW_ECLOSED, true, "the connection is closed");
    for (rmq_pub *p; (p = rmq_fifo_pop(&all));) {
        if (p->done != given_done) {
            rmq_finish(p, &e);
        } else { /* the core is not told any more */
            mw_message_unref(p->msg);
            free(p->key);
            free(mw_container_of(p, given, pub));
        }
    }
    free(c->sent);
    c->sent = NULL;
}
