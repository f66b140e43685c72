/* browse.c - looking into a queue without consuming it. AMQP has no such thing; the nearest is to get
 * messages, not to ack them, and to close the channel, upon which they go back to their places (marked as
 * redelivered). While one looks, its messages are nobody else's: this is for dead letters and for people, not
 * for queues in full swing.
 *
 * A position is the place counted from the head (high) and the message's hash (low): places move when others
 * take messages out, the hash says which one was meant. A look that filled its page stays open for the next
 * page, and for a removal; it ends at the end of the queue, or after a while.
 *
 * A stream keeps what was read, so there a look is a consumer of its own, from an offset on, and disturbs
 * nobody. Positions are offsets; where it ends is not told: nothing more comes for a moment.
 *
 * Where only the newest position of a queue is wanted, nothing is looked at: count.c. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/amqp/admin/look.h"

enum { AT_ONCE = 200, IDLE_MS = 3000, SILENT_MS = 400, BACK_MS = 20, BACK_TRIES = 25 };
enum { FIRST_MS = 1500, NEXT_MS = 300 }; /* of a stream: how long nothing comes at its end */

static uint64_t hash_of(const mw_parts *p, bool has_id) {
    uint64_t all[2] = {rmq_identity(p, has_id), mw_hash64(p->body, p->body_len)};
    return mw_hash64(all, sizeof all);
}

/* RabbitMQ 3.10 says of every stream that there is nothing in it. */
bool rmq_may_be_stream(rmq_conn *c, const char *queue) { return !rmq_options_of(c, queue)->type; }

/* ---- the session: one channel, opened for one queue ---- */

static const rmq_chan_events look_events;

static void session_free(rmq_conn *c) {
    struct rmq_session *s = c->session;
    if (!s) return;
    free(s->queue);
    mw_buf_free(&s->held);
    free(s);
    c->session = NULL;
}

/* Closing the channel gives everything back that was not acked. */
static void session_end(rmq_conn *c) {
    mw_timer_stop(&c->look_idle);
    bool held = c->session && (c->session->place || c->session->stream);
    session_free(c);
    if (held && c->look.open) rmq_chan_restart(&c->look);
}

static void session_idle(mw_timer *t) { session_end(mw_container_of(t, rmq_conn, look_idle)); }

static void session_begin(rmq_conn *c, const char *queue) {
    session_end(c);
    c->session = calloc(1, sizeof *c->session);
    if (!c->session || !(c->session->queue = strdup(queue))) abort();
    c->session->stream = c->session->consume = c->session->counted = rmq_is_stream(c, queue);
    if (!c->look.line) rmq_chan_add(c->out, &c->look, RMQ_CHAN_BROWSE, &look_events, c);
    c->session->opened = c->look.open;
}

/* ---- answers ---- */

static void free_look(rmq_look *l) {
    mw_entry *e = (mw_entry *)(void *)l->entries.data;
    for (size_t i = 0; i < l->entries.len / sizeof *e; i++) mw_message_unref(e[i].msg);
    mw_buf_free(&l->entries);
    free(l->found);
    free(l->queue);
    free(l);
}

static void answer(mw_deferred *d) {
    rmq_look *l = mw_container_of(d, rmq_look, late);
    rmq_conn *c = l->conn;
    const mw_error *e = l->error.code ? &l->error : NULL;
    mw_entry *list = (mw_entry *)(void *)l->entries.data;
    size_t n = l->entries.len / sizeof *list;
    c->looking = NULL;
    if (l->removing)
        c->host->removed(c->link, l->cookie, l->removed, e);
    else
        c->host->browsed(c->link, l->cookie, list, n, n ? list[n - 1].position : l->browse.after, e);
    free_look(l);
    rmq_looks_go(c);
}

void rmq_look_answer(rmq_look *l) {
    l->over = true;
    mw_defer(l->conn->loop, &l->late, answer);
}

/* Quorum queues take messages back a little after the channel is closed, and so do all of RabbitMQ 4. Whoever
 * looks twice wants to see them. */
static bool comes_back_late(rmq_conn *c) {
    const char *type = rmq_options_of(c, c->session->queue)->type;
    if (c->session->stream) return false;
    return c->session->place &&
           (c->session->consume || c->server >= 4 || (type && strcmp(type, "quorum") == 0));
}

void rmq_look_over(rmq_look *l, const mw_error *e) {
    rmq_conn *c = l->conn;
    if (l->over) return;
    if (e) l->error = *e;
    if (l->publishing) return; /* the replacements are on their way */
    if (c->session && !c->session->ended && !e) {
        mw_timer_start_real(c->loop, &c->look_idle, IDLE_MS, session_idle);
    } else {
        if (c->session && !e && comes_back_late(c)) {
            l->back = c->session->place - l->removed;
            l->back_tries = BACK_TRIES;
        }
        session_end(c);
        if (l->back) return; /* answered when they are back */
    }
    rmq_look_answer(l);
}

static void ask_back(rmq_conn *c) {
    rmq_put_queue_declare(rmq_line_out(c->out), RMQ_CHAN_BROWSE, c->looking->queue, NULL, true);
    rmq_line_send(c->out);
}

static void ask_back_again(mw_timer *t) { ask_back(mw_container_of(t, rmq_conn, look_idle)); }

static void are_back(rmq_conn *c, uint64_t count) {
    rmq_look *l = c->looking;
    if (count >= l->back || --l->back_tries == 0) { /* or somebody consumes them */
        l->back = 0;
        rmq_look_answer(l);
    } else {
        mw_timer_start_real(c->loop, &c->look_idle, BACK_MS, ask_back_again);
    }
}

/* ---- reading ---- */

static void continue_look(rmq_look *l);

static size_t wanted(const rmq_look *l) {
    const struct rmq_session *s = l->conn->session;
    if (l->removing) return l->removal.count;
    if (s->stream) return l->browse.newest ? UINT16_MAX : l->browse.max;
    uint64_t skip = l->browse.after.high;
    size_t have = l->entries.len / sizeof(mw_entry);
    size_t left = l->browse.max > have ? l->browse.max - have : 0;
    return left + (skip > s->place ? (size_t)(skip - s->place) : 0);
}

/* Somebody else may be the active consumer: then nothing comes. */
static void silent(mw_timer *t) {
    rmq_conn *c = mw_container_of(t, rmq_conn, look_idle);
    if (!c->session || !c->looking || c->looking->over) return;
    c->session->ended = true;
    c->session->asked = 0;
    continue_look(c->looking);
}

static void put_offset(const rmq_look *l, mw_buf *b) {
    size_t table = rmq_open(b);
    if (!l->conn->session->stream) {
        /* a queue has none */
    } else if (l->browse.newest) {
        rmq_put_text(b, "x-stream-offset", "last"); /* what was written last, together */
    } else {
        rmq_put_number(b, "x-stream-offset", (int64_t)l->browse.after.high);
    }
    rmq_close(b, table);
}

static void mind_silence(rmq_conn *c) {
    const struct rmq_session *s = c->session;
    int64_t ms = !s->stream ? SILENT_MS : s->place ? NEXT_MS : FIRST_MS;
    mw_timer_start_real(c->loop, &c->look_idle, ms, silent);
}

static void put_consume(rmq_conn *c, mw_buf *b, size_t n) {
    struct rmq_session *s = c->session;
    s->asked = (unsigned)(n > UINT16_MAX ? UINT16_MAX : n);
    size_t f = rmq_method(b, RMQ_CHAN_BROWSE, RMQ_QOS);
    rmq_put_u32(b, 0);
    rmq_put_u16(b, (uint16_t)s->asked);
    rmq_put_u8(b, 0);
    rmq_frame_end(b, f);
    f = rmq_method(b, RMQ_CHAN_BROWSE, RMQ_CONSUME);
    rmq_put_u16(b, 0);
    rmq_put_string(b, s->queue);
    rmq_put_string(b, "");
    rmq_put_u8(b, 0);
    put_offset(c->looking, b);
    rmq_frame_end(b, f);
    rmq_line_send(c->out);
    mind_silence(c);
}

void rmq_look_more(rmq_look *l) {
    rmq_conn *c = l->conn;
    struct rmq_session *s = c->session;
    if (!s->opened || s->ended || l->over || s->asked) return; /* one round at a time */
    mw_buf *b = rmq_line_out(c->out);
    if (!s->counted) { /* what comes later is for a later look; and gets in vain are dear on quorum queues */
        rmq_put_queue_declare(b, RMQ_CHAN_BROWSE, s->queue, NULL, true);
        rmq_line_send(c->out);
        return;
    }
    size_t n =
        !s->stream && !s->count ? 1 : wanted(l); /* 1: it seems empty, and a stream gives itself away */
    if (s->count && n > s->count - s->place) n = (size_t)(s->count - s->place);
    if (s->consume) {
        put_consume(c, b, n);
        return;
    }
    if (n > AT_ONCE) n = AT_ONCE;
    for (; s->asked < n; s->asked++) {
        size_t f = rmq_method(b, RMQ_CHAN_BROWSE, RMQ_GET);
        rmq_put_u16(b, 0);
        rmq_put_string(b, s->queue);
        rmq_put_u8(b, 0);
        rmq_frame_end(b, f);
    }
    rmq_line_send(c->out);
}

static void continue_look(rmq_look *l) {
    struct rmq_session *s = l->conn->session;
    if (l->removing) {
        rmq_removal_go(l);
    } else if (s->ended || (!l->browse.newest && l->entries.len / sizeof(mw_entry) >= l->browse.max)) {
        rmq_look_over(l, NULL);
    } else {
        rmq_look_more(l);
    }
}

static void got_of_stream(rmq_conn *c, const rmq_content *k) {
    struct rmq_session *s = c->session;
    rmq_look *l = c->looking;
    rmq_envelope e;
    rmq_route route = {.exchange = k->exchange, .key = k->key};
    uint64_t size;
    s->place++;
    mind_silence(c);
    rmq_envelope_read(k->header, &route, &c->scratch, &e, &size);
    if (k->too_large || !e.has_offset || !l || l->over || e.offset < l->browse.after.high) {
        rmq_look_ack(c, k->tag); /* gives way to the next one */
        return;
    }
    mw_position at = {.high = e.offset + 1};
    if (l->browse.newest) {
        l->browse.after = at;
    } else {
        mw_parts parts = e.parts;
        parts.body = k->body;
        parts.body_len = k->body_len;
        mw_entry entry = {.position = at, .msg = mw_message_new(&parts)};
        mw_buf_add(&l->entries, &entry, sizeof entry);
        if (s->asked) s->asked--;
    }
    s->ended = !s->asked;
    if (s->ended) continue_look(l);
}

static void got(rmq_chan *chan, rmq_content *k) {
    rmq_conn *c = chan->owner;
    struct rmq_session *s = c->session;
    rmq_look *l = c->looking;
    rmq_envelope e;
    rmq_route route = {.exchange = k->exchange, .key = k->key};
    uint64_t size;
    if (!s || k->method == RMQ_RETURN) return;
    if (s->stream) {
        got_of_stream(c, k);
        return;
    }
    if (s->asked) s->asked--;
    if (s->consume) mind_silence(c);
    seen now = {.tag = k->tag};
    s->place++;
    if (!k->too_large) { /* such a one cannot be shown, nor be sent elsewhere */
        rmq_envelope_read(k->header, &route, &c->scratch, &e, &size);
        mw_parts parts = e.parts;
        parts.body = k->body;
        parts.body_len = k->body_len;
        now.position = (mw_position){.high = s->place, .low = hash_of(&parts, e.has_id)};
        if (l && !l->removing && s->place > l->browse.after.high &&
            l->entries.len / sizeof(mw_entry) < l->browse.max) {
            mw_entry entry = {.position = now.position, .msg = mw_message_new(&parts)};
            mw_buf_add(&l->entries, &entry, sizeof entry);
        }
    }
    if (l && l->removing && now.position.high) rmq_removal_match(l, &now);
    mw_buf_add(&s->held, &now, sizeof now);
    if (s->place >= s->count || (s->consume && !s->asked)) s->ended = true;
    if (l && !s->asked) continue_look(l);
}

static void look_method(rmq_chan *chan, uint32_t method, rmq_reader *r) {
    rmq_conn *c = chan->owner;
    struct rmq_session *s = c->session;
    if (!s && method == RMQ_QUEUE_DECLARE_OK && c->looking && c->looking->back) {
        rmq_short(r);
        are_back(c, rmq_u32(r));
        return;
    }
    if (s && method == RMQ_QUEUE_DECLARE_OK && !s->counted) {
        rmq_short(r);
        s->count = rmq_u32(r);
        s->counted = true;
        s->ended = !s->count && !rmq_may_be_stream(c, s->queue);
    } else if (s && method == RMQ_GET_EMPTY) {
        s->ended = true;
        if (s->asked) s->asked--;
    } else {
        return;
    }
    if (c->looking && !s->asked) continue_look(c->looking);
}

static void look_opened(rmq_chan *chan) {
    rmq_conn *c = chan->owner;
    if (c->looking && c->looking->back) ask_back(c);
    if (!c->session) return;
    c->session->opened = true;
    if (c->looking) rmq_look_more(c->looking);
}

/* basic.get on a stream costs the connection. Now that it is known to be one it is read as such. */
static bool was_a_stream(rmq_conn *c) {
    struct rmq_session *s = c->session;
    rmq_look *l = c->looking;
    if (c->out->closed_with != RMQ_NOT_IMPLEMENTED || !s || s->stream || !l || l->over) return false;
    mw_log_begin(MW_WARN,
                 "this is a stream, and is read as one; with streams=NAME in the URL no connection is lost");
    mw_log_text("queue", l->queue);
    mw_log_end();
    rmq_note_stream(c, l->queue);
    if (l->removing) return false;
    session_begin(c, l->queue);
    return l->again = true;
}

/* So does a get in vain on a quorum queue that somebody is just making. */
static bool is_being_made(const rmq_conn *c) {
    const struct rmq_session *s = c->session;
    return c->out->closed_with == RMQ_INTERNAL_ERROR && s && s->counted && !s->count && !s->stream;
}

/* 404: a queue that is not there is an empty one. */
static void look_closed(rmq_chan *chan, int code, const mw_error *why) {
    rmq_conn *c = chan->owner;
    struct rmq_session *s = c->session;
    if (code == 405 && s && !s->consume && !s->place) {
        s->consume = true;
        s->asked = 0;
        s->opened = false;
        return; /* goes on when the channel is open again */
    }
    if (!code && was_a_stream(c)) return;
    bool empty = code == 404 || (!code && is_being_made(c));
    session_free(c);
    if (c->looking && c->looking->back) {
        c->looking->back = 0;
        rmq_look_answer(c->looking);
        return;
    }
    if ((code || empty) && c->looking && !c->looking->over) rmq_look_over(c->looking, empty ? NULL : why);
}

static const rmq_chan_events look_events = {
    .opened = look_opened, .closed = look_closed, .method = look_method, .content = got};

/* ---- from the core ---- */

void rmq_look_go(rmq_look *l) {
    rmq_conn *c = l->conn;
    struct rmq_session *s = c->session;
    uint64_t skip = l->browse.after.high;
    bool same =
        s && !s->ended && !s->stream && strcmp(s->queue, l->queue) == 0 && (l->removing || s->place == skip);
    if (!same) session_begin(c, l->queue);
    if (same && l->removing) {
        seen *held = (seen *)(void *)s->held.data;
        for (size_t i = 0; i < s->held.len / sizeof *held; i++)
            if (held[i].position.high) rmq_removal_match(l, &held[i]);
    }
    if (c->session->opened) continue_look(l); /* otherwise when the channel is open */
}

void rmq_looks_go(rmq_conn *c) {
    rmq_look *l = c->looks;
    if (c->looking || !l) return;
    c->looks = l->next;
    if (!c->looks) c->looks_end = &c->looks;
    c->looking = l;
    mw_timer_stop(&c->look_idle);
    if (!rmq_out(c)) {
        mw_error e;
        mw_fail(&e, MW_ECLOSED, true, "cannot connect to the broker");
        rmq_look_over(l, &e);
    } else if (l->removing && rmq_is_stream(c, l->queue)) {
        mw_error e;
        mw_fail(&e, MW_EUSAGE, false,
                "\"%s\" is a stream, and nothing can be taken out of one: it keeps its messages until its "
                "max_bytes or their age removes them",
                l->queue);
        rmq_look_over(l, &e);
    } else if (!l->removing && l->browse.newest && !rmq_is_stream(c, l->queue)) {
        rmq_look_count(l);
    } else {
        rmq_look_go(l);
    }
}

static void look_start(mw_deferred *d) { rmq_looks_go(mw_container_of(d, rmq_conn, look_soon)); }

rmq_look *rmq_look_new(rmq_conn *c, const char *queue, void *cookie) {
    rmq_look *l = calloc(1, sizeof *l);
    if (!l || !(l->queue = strdup(queue))) abort();
    l->conn = c;
    l->cookie = cookie;
    if (!c->looks_end) c->looks_end = &c->looks;
    *c->looks_end = l;
    c->looks_end = &l->next;
    mw_defer(c->loop, &c->look_soon, look_start);
    return l;
}

void rmq_browse(mw_conn *conn, const mw_browse *b) {
    rmq_look *l = rmq_look_new((rmq_conn *)conn, b->channel, b->cookie);
    l->browse = *b;
}

/* A look does not wait for a broker that is away: a person does. */
void rmq_looks_lost(rmq_conn *c, const mw_error *why) {
    rmq_look *l = c->looking;
    if (l && l->again) { /* begins once more when the line is back */
        l->again = false;
        return;
    }
    session_free(c);
    if (l && !l->over && !l->counting) rmq_look_over(l, why);
}

void rmq_looks_free(rmq_conn *c) {
    mw_timer_stop(&c->look_idle);
    mw_deferred_cancel(c->loop, &c->look_soon);
    session_free(c);
    if (c->looking) {
        mw_deferred_cancel(c->loop, &c->looking->late);
        free_look(c->looking);
    }
    for (rmq_look *l = c->looks, *next; l; l = next) {
        next = l->next;
        free_look(l);
    }
    c->looking = c->looks = NULL;
}
