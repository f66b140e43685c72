/* deliver.c - what the broker delivers, on its way to the core: into the window, where each stays until it is
 * settled, and through the list of those that wait for room, for their history, or to run alone. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/amqp/amqp.h"

enum { SPAN_MAX = 1000000 }; /* how far beyond its mark a stream is read */
enum { BATCH = 256, WAITED_MOST = 1024 };

/* ---- handing on ---- */

void rmq_deliveries_clear(rmq_sub *s) {
    rmq_window_clear(s);
    s->done.len = 0;
    mw_timer_stop(&s->ack_soon);
    s->unsettled = 0;
    mw_incoming *w = (mw_incoming *)(void *)s->waiting.data;
    for (size_t i = s->waiting_at; i < s->waiting.len / sizeof *w; i++) {
        mw_message_unref(w[i].msg);
        mw_text_unref(w[i].first_error);
    }
    s->waiting.len = 0;
    s->waiting_at = s->waiting_bytes = 0;
    s->unmet = 0;
    s->careful = s->alone_ready = false;
    s->alone = 0;
}

static size_t waiting_count(const rmq_sub *s) { return s->waiting.len / sizeof(mw_incoming) - s->waiting_at; }

/* Messages that came before wait until their history is known, and written down with this delivery in it, if
 * the broker takes it now. */
static bool history_known(rmq_sub *s) {
    if (!s->journal) return true;
    mw_incoming *w = (mw_incoming *)(void *)s->waiting.data;
    for (size_t i = s->waiting_at; s->unmet && i < s->waiting.len / sizeof *w; i++) {
        rmq_entry *e = rmq_entry_of(s, w[i].tag);
        if (!e || !e->redelivered) continue;
        if (!rmq_journal_loaded(s->journal)) return false;
        rmq_journal_meet(s->journal, &w[i]);
        e->failures = w[i].attempt - 1;
        e->redelivered = false;
        s->unmet--;
    }
    return rmq_journal_stands(s->journal);
}

static bool is_suspect(rmq_sub *s, const mw_incoming *in) {
    rmq_entry *e = rmq_entry_of(s, in->tag);
    return e && e->suspect;
}

/* A suspect came with two deaths and nothing is known of either: it may have begun, or only have stood beside
 * the one that did it. It is noted as begun before it does, and runs alone: if it kills again it was it. */
static bool may_go_on(rmq_sub *s) {
    rmq_entry *e = s->alone ? rmq_entry_of(s, s->alone) : NULL;
    if (e && e->suspect) return false;
    s->alone = 0;
    mw_incoming *first = (mw_incoming *)(void *)s->waiting.data + s->waiting_at;
    if (!is_suspect(s, first)) return true;
    if (s->unsettled > waiting_count(s)) return false;
    s->alone = first->tag;
    rmq_journal_suspect(s->journal, first->tag);
    return true;
}

static size_t next_batch(rmq_sub *s, mw_incoming **out) {
    mw_incoming *w = (mw_incoming *)(void *)s->waiting.data + s->waiting_at;
    size_t bytes, n = 0, room = s->host->room(s->source, &bytes), left = waiting_count(s);
    while (n < room && n < left && n < BATCH) {
        size_t size = mw_message_size(w[n].msg);
        if (n && (size > bytes || (s->careful && is_suspect(s, &w[n])))) break;
        bytes -= size < bytes ? size : bytes;
        s->waiting_bytes -= size;
        n++;
        if (s->alone) break;
    }
    *out = w;
    return n;
}

/* The room of those that were handed on, also where there are always some that wait. */
static void forget_waited(rmq_sub *s) {
    size_t left = waiting_count(s);
    if (left && (s->waiting_at < WAITED_MOST || s->waiting_at < left)) return;
    if (left)
        memmove(s->waiting.data, (mw_incoming *)(void *)s->waiting.data + s->waiting_at,
                left * sizeof(mw_incoming));
    s->waiting.len = left * sizeof(mw_incoming);
    s->waiting_at = 0;
}

void rmq_sub_pump(rmq_sub *s) {
    if (s->paused || s->closing) return;
    if (s->step == RMQ_READING) {
        if (rmq_journal_loaded(s->journal)) rmq_consume_stream(s);
        return;
    }
    if (s->place && rmq_place_span(s->place) > SPAN_MAX && s->unsettled > waiting_count(s)) return;
    if (waiting_count(s) && !history_known(s)) return;
    while (waiting_count(s) && !s->paused && !s->closing) {
        if (s->careful && !(s->alone_ready || may_go_on(s))) return;
        if (s->alone && !s->alone_ready) {
            s->alone_ready = true;
            if (!rmq_journal_stands(s->journal)) return;
        }
        mw_incoming *batch;
        size_t n = next_batch(s, &batch);
        if (!n) break;
        uint32_t unit = s->unit;
        s->waiting_at += n;
        s->alone_ready = false;
        s->host->deliver(s->source, batch, n);
        if (unit != s->unit) return;
    }
    if (!waiting_count(s)) {
        s->careful = s->careful && s->alone;
        s->waiting_bytes = 0;
    }
    forget_waited(s);
    rmq_flow_look(s, waiting_count(s));
}

static mw_message *make_message(rmq_content *k, const rmq_envelope *e) {
    mw_parts parts = e->parts;
    parts.body = k->body;
    parts.body_len = k->body_len;
    if (!k->owned) return mw_message_new(&parts);
    char *body = k->owned;
    k->owned = NULL;
    return mw_message_borrow(&parts, free, body);
}

/* Whoever reads on at the broker's place in a stream needs it: without one it is passed over. */
static void pass_over(rmq_sub *s, uint64_t tag) {
    mw_log_begin(MW_ERROR, "passed over a message of a stream that has no offset");
    mw_log_text("queue", s->queue);
    mw_log_end();
    rmq_skip(s, tag);
}

/* Of a stream: it is done already. */
static void drop(rmq_sub *s, uint64_t tag, mw_message *m, mw_text *first) {
    mw_message_unref(m);
    mw_text_unref(first);
    rmq_skip(s, tag);
}

/* A consumer of a stream that died may have had as many as the prefetch. */
static bool came_before(rmq_sub *s, const rmq_content *k, uint64_t offset) {
    if (!s->place) return k->redelivered && s->journal && !rmq_journal_mute(s->journal);
    if (!s->met_left) return rmq_journal_knows(s->journal, offset);
    s->met_left--;
    return true;
}

/* Both records are filled where they stay: read back from a copy, they would wait for the stores of the
 * message, whose memory is cold. */
void rmq_came(rmq_chan *chan, rmq_content *k) {
    rmq_sub *s = chan->owner;
    rmq_envelope e;
    rmq_route route = {.exchange = k->exchange, .key = k->key, .queue = s->queue};
    uint64_t size;
    if (k->method != RMQ_DELIVER || s->closing) return;
    if (s->top > s->base && k->tag != s->top) return; /* tags rise one by one */
    rmq_envelope_read(k->header, &route, &s->conn->scratch, &e, &size);
    bool good = !k->too_large && (!s->place || e.has_offset);
    if (s->place) e.failures = 0; /* whatever the header says, it was about another reader */
    mw_message *m = good ? make_message(k, &e) : NULL;
    mw_text *first = good && e.first_error.len ? mw_text_new(e.first_error.data, e.first_error.len) : NULL;
    *rmq_window_add(s, k->tag) = (rmq_entry){.msg = m,
                                             .failures = e.failures,
                                             .state = m ? RMQ_OURS : RMQ_SETTLED,
                                             .has_id = e.has_id,
                                             .redelivered = came_before(s, k, e.offset),
                                             .offset = e.offset,
                                             .first_error = first};
    if (s->place && e.has_offset && !rmq_place_add(s->place, e.offset)) {
        drop(s, k->tag, m, first);
        return;
    }
    s->unmet += m && rmq_entry_of(s, k->tag)->redelivered;
    if (!m) {
        if (s->place && e.has_offset) rmq_place_done(s->place, e.offset);
        if (k->too_large)
            rmq_leave_behind(s, k, &e);
        else
            pass_over(s, k->tag);
        return;
    }
    mw_incoming *in = (mw_incoming *)(void *)mw_buf_reserve(&s->waiting, sizeof *in);
    *in = (mw_incoming){.msg = mw_message_ref(m),
                        .tag = k->tag,
                        .unit = s->unit,
                        .attempt = e.failures + 1,
                        .first_error = mw_text_ref(first),
                        .invalid = e.invalid};
    s->waiting.len += sizeof *in;
    s->waiting_bytes += mw_message_size(m);
    rmq_flow_came(s, mw_message_size(m));
    s->reached = e.offset + 1;
    s->came++;
    s->activity++;
    if (e.failures && s->delayed) s->delayed--;
}
