/* consume.c - a subscription: its own line, one channel, one consumer. The prefetch is the pipeline's window,
 * so the broker keeps the rest. With an order the consumer is exclusive (or the queue has a single active
 * consumer): others of the group stand by and ask again. Tags live as long as the channel: each opening is a
 * new unit, and the former one is fenced. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "drivers/amqp/amqp.h"

enum { BUSY = 4, REST_MS = 1 };
enum { SPAN_MAX = 1000000 }; /* how far beyond its mark a stream is read */
enum { BATCH = 256, PREFETCH_MAX = 20000, STANDBY_MS = 300, AGAIN_MS = 2000, HOLD_BYTES = 4 << 20 };

/* ---- the window: deliveries by tag ---- */

rmq_entry *rmq_entry_of(rmq_sub *s, uint64_t tag) {
    if (tag < s->base || tag >= s->top) return NULL;
    return &s->window[tag & (s->window_room - 1)];
}

static rmq_entry *window_add(rmq_sub *s, uint64_t tag) {
    if (s->base == s->top) s->base = s->top = tag;
    while (tag - s->base >= s->window_room) {
        size_t room = s->window_room ? s->window_room * 2 : 256;
        rmq_entry *ring = calloc(room, sizeof *ring);
        if (!ring) abort();
        for (uint64_t i = s->base; i < s->top; i++)
            ring[i & (room - 1)] = s->window[i & (s->window_room - 1)];
        free(s->window);
        s->window = ring;
        s->window_room = room;
    }
    s->top = tag + 1;
    s->unsettled++;
    return &s->window[tag & (s->window_room - 1)];
}

void rmq_window_clear(rmq_sub *s) {
    for (uint64_t i = s->base; i < s->top; i++) {
        rmq_entry *e = &s->window[i & (s->window_room - 1)];
        mw_message_unref(e->msg);
        mw_text_unref(e->first_error);
        *e = (rmq_entry){0};
    }
    s->base = s->top = 0;
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

/* ---- handing on ---- */

static size_t waiting_count(const rmq_sub *s) { return s->waiting.len / sizeof(mw_incoming) - s->waiting_at; }

static void hold(rmq_sub *s, bool on) {
    if (s->held == on || !s->line || s->line->state != RMQ_READY) return;
    s->held = on;
    mw_stream_hold(s->line->stream, on);
}

/* Messages that came before wait until their history is known, and written down with this delivery in it. */
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

static void consume_stream(rmq_sub *s);

void rmq_sub_pump(rmq_sub *s) {
    if (s->paused || s->closing) return;
    if (s->step == RMQ_READING) {
        if (rmq_journal_loaded(s->journal)) consume_stream(s);
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
        s->waiting.len = 0;
        s->waiting_at = s->waiting_bytes = 0;
    }
    hold(s, s->waiting_bytes > HOLD_BYTES);
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

/* Nobody could ever read it, and it would come again for ever: it goes the way of the broker's dead letters.
 */
static void refuse(rmq_sub *s, uint64_t tag) {
    mw_log_begin(MW_ERROR, "rejected a message that is malformed");
    mw_log_text("queue", s->queue);
    mw_log_end();
    if (s->place) {
        rmq_skip(s, tag);
        return;
    }
    s->unsettled--;
    mw_buf *b = rmq_line_out(s->line);
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_NACK);
    rmq_put_u64(b, tag);
    rmq_put_u8(b, 0);
    rmq_frame_end(b, f);
    rmq_line_send(s->line);
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
static void came(rmq_chan *chan, rmq_content *k) {
    rmq_sub *s = chan->owner;
    rmq_envelope e;
    rmq_route route = {.exchange = k->exchange, .key = k->key, .queue = s->queue};
    uint64_t size;
    if (k->method != RMQ_DELIVER || s->closing) return;
    if (s->top > s->base && k->tag != s->top) return; /* tags rise one by one */
    bool good = rmq_envelope_read(k->header, &route, &s->conn->scratch, &e, &size);
    if (s->place) {
        good = good && e.has_offset;
        e.failures = 0; /* whatever the header says, it was about another reader */
    }
    mw_message *m = good ? make_message(k, &e) : NULL;
    mw_text *first = good && e.first_error.len ? mw_text_new(e.first_error.data, e.first_error.len) : NULL;
    *window_add(s, k->tag) = (rmq_entry){.msg = m,
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
        refuse(s, k->tag);
        return;
    }
    mw_incoming *in = (mw_incoming *)(void *)mw_buf_reserve(&s->waiting, sizeof *in);
    *in = (mw_incoming){.msg = mw_message_ref(m),
                        .tag = k->tag,
                        .unit = s->unit,
                        .attempt = e.failures + 1,
                        .first_error = mw_text_ref(first)};
    s->waiting.len += sizeof *in;
    s->waiting_bytes += mw_message_size(m);
    s->came++;
    s->activity++;
    if (e.failures && s->delayed) s->delayed--;
}

/* ---- the way to a consumer: find or make the queue, set the prefetch, consume ---- */

static void ask(rmq_sub *s, bool make) {
    s->step = make ? RMQ_MAKING : RMQ_FINDING;
    rmq_put_declare(rmq_line_out(s->line), s->conn, RMQ_CHAN_CONSUME, s->queue, !make);
    rmq_line_send(s->line);
}

/* The broker compares what is there with what is declared once more, and closes the channel if it differs. */
static bool worth_comparing(const rmq_sub *s) {
    const rmq_queue_options *o = rmq_options_of(s->conn, s->queue);
    bool any = o->type || o->overflow || o->dead_exchange || o->max_priority || o->ttl_ms || o->expires_ms ||
               o->max_length || o->max_bytes || o->delivery_limit >= 0 || o->single_active || o->lazy ||
               o->transient || o->exclusive || o->auto_delete;
    return any && !s->compared && s->conn->declare == RMQ_DECLARE_AUTO;
}

static void compare(rmq_sub *s) {
    s->step = RMQ_COMPARING;
    rmq_put_declare(rmq_line_out(s->line), s->conn, RMQ_CHAN_CONSUME, s->queue, false);
    rmq_line_send(s->line);
}

/* What differs is theirs to decide, as long as the order does not hang on it: others could read beside us.
 * What was not said here does not differ; the topology, or somebody else, has said more. */
static void differs(rmq_sub *s, const mw_error *why) {
    bool vital = strstr(why->text, "'x-single-active-consumer'") || strstr(why->text, "'x-queue-type'");
    bool fatal = vital && s->order != MW_ORDER_NONE && rmq_options_of(s->conn, s->queue)->single_active;
    s->compared = !fatal;
    if (fatal) s->wait_ms = AGAIN_MS;
    if (!vital && strstr(why->text, "received none")) return;
    if (s->told_differs) return;
    s->told_differs = true;
    mw_log_begin(
        fatal ? MW_ERROR : MW_WARN,
        fatal ? "the queue is not as declared here, and the order needs that: not reading it; delete it when "
                "it is empty, or declare it as it is"
              : "the queue is not as declared here, and is used as it is; `moonwire topology plan` compares");
    mw_log_text("queue", s->queue);
    mw_log_text("error", why->text);
    mw_log_end();
}

static bool exclusive(const rmq_sub *s) {
    if (s->place) return false; /* not on streams; see lock */
    return s->order != MW_ORDER_NONE && !rmq_options_of(s->conn, s->queue)->single_active;
}

static bool needs_lock(const rmq_sub *s) {
    return s->place || (s->journal && s->order == MW_ORDER_NONE && !s->keeps && !s->without);
}

/* A stream has no exclusive consumers, but a queue can be one connection's own, and goes with it: whoever has
 * the one of this name reads for the group. Where all may read, it has the journal. */
static void lock(rmq_sub *s) {
    char name[300];
    s->step = RMQ_LOCKING;
    if (s->place)
        snprintf(name, sizeof name, "mw.lock.%s@%s", s->group, s->queue);
    else
        snprintf(name, sizeof name, "mw.lock.%s", s->queue);
    mw_buf *b = rmq_line_out(s->line);
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_QUEUE_DECLARE);
    rmq_put_u16(b, 0);
    rmq_put_string(b, name);
    rmq_put_u8(b, 4); /* exclusive */
    rmq_close(b, rmq_open(b));
    rmq_frame_end(b, f);
    rmq_line_send(s->line);
}

static void put_offset(rmq_sub *s, mw_buf *b) {
    uint64_t mark, since;
    size_t table = rmq_open(b);
    if (!s->place) {
        /* a queue has no places */
    } else if (rmq_place_known(s->place, &mark)) {
        rmq_put_number(b, "x-stream-offset", (int64_t)mark);
    } else if (!s->newest) {
        rmq_put_text(b, "x-stream-offset", "first");
    } else if ((since = rmq_place_since(s->place, (uint64_t)mw_loop_wall_ms(s->conn->loop) / 1000))) {
        rmq_put_field(b, "x-stream-offset", 'T'); /* nothing has come since the group began */
        rmq_put_u64(b, since);
    } else {
        rmq_put_text(b, "x-stream-offset", "next");
    }
    rmq_close(b, table);
}

static void consume(rmq_sub *s) {
    s->step = RMQ_TUNING_IN;
    mw_buf *b = rmq_line_out(s->line);
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_QOS);
    rmq_put_u32(b, 0);
    rmq_put_u16(b, (uint16_t)s->prefetch);
    rmq_put_u8(b, 0);
    rmq_frame_end(b, f);
    f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_CONSUME);
    rmq_put_u16(b, 0);
    rmq_put_string(b, s->queue);
    rmq_put_string(b, s->tag);
    rmq_put_u8(b, exclusive(s) ? 4 : 0);
    put_offset(s, b);
    rmq_frame_end(b, f);
    rmq_line_send(s->line);
}

/* The group is ours, and what is known of its place was read. */
static void consume_stream(rmq_sub *s) {
    s->met_left = rmq_place_clean(s->place) ? 0 : s->prefetch;
    consume(s);
}

static void go_on(mw_timer *t) {
    rmq_sub *s = mw_container_of(t, rmq_sub, again);
    if (s->chan.open && s->step == RMQ_ASLEEP && !s->closing && !s->paused) ask(s, s->missing);
}

static void later(rmq_sub *s, int64_t ms) {
    s->step = RMQ_ASLEEP;
    mw_timer_start_real(s->conn->loop, &s->again, ms, go_on);
}

/* Once, until it runs or the reason is another one. */
static void complain(rmq_sub *s, int code, const char *text, const char *why) {
    if (s->told_code == code) return;
    s->told_code = code;
    mw_log_begin(MW_ERROR, text);
    mw_log_text("queue", s->queue);
    mw_log_text("error", why);
    mw_log_end();
}

static void opened(rmq_chan *chan) {
    rmq_sub *s = chan->owner;
    s->unit++;
    s->step = RMQ_ASLEEP;
    if (s->closing || s->paused) return;
    if (s->wait_ms)
        later(s, s->wait_ms);
    else
        ask(s, s->missing);
    s->wait_ms = 0;
}

/* What the closing of a channel means depends on what was asked last. */
static void why_closed(rmq_sub *s, int code, const mw_error *why) {
    if (code == 404 && s->step == RMQ_FINDING && s->conn->declare == RMQ_DECLARE_AUTO) {
        s->missing = true;
    } else if (code && s->step == RMQ_LOCKING && !s->place) {
        s->without = true;
        rmq_journal_silence(s->journal, true);
    } else if ((code == 403 && strstr(why->text, "exclusive")) || (code == 405 && s->step == RMQ_LOCKING)) {
        if (!s->standby) {
            mw_log_begin(MW_INFO, s->place ? "another consumer reads for the group; standing by"
                                           : "another consumer has the queue; standing by");
            mw_log_text("queue", s->queue);
            mw_log_end();
        }
        s->standby = true;
        s->wait_ms = STANDBY_MS;
    } else if (code == 406 && s->step == RMQ_MAKING) {
        s->missing = false; /* somebody made it in the meantime, otherwise */
    } else if (code == 406 && s->step == RMQ_COMPARING) {
        differs(s, why);
    } else if (code == 403 && s->step == RMQ_COMPARING) {
        s->compared = true; /* we may not declare */
    } else if (code) {
        complain(s, code,
                 code == 404 ? "there is no such queue; waiting for it" : "the broker closed the channel",
                 why->text);
        s->missing = false;
        s->wait_ms = AGAIN_MS;
    }
}

static void closed(rmq_chan *chan, int code, const mw_error *why) {
    rmq_sub *s = chan->owner;
    uint32_t unit = s->unit;
    why_closed(s, code, why);
    s->step = RMQ_ASLEEP;
    s->held = s->resting = false;
    mw_timer_stop(&s->again);
    bool any = s->top > s->base;
    rmq_window_clear(s);
    if (s->journal) rmq_journal_reset(s->journal);
    s->fresh = s->asking = false;
    if (any && !s->closing) s->host->fence(s->source, unit);
}

static void cancelled(rmq_sub *s) {
    mw_log_begin(MW_WARN, "the queue was deleted under its consumer; declaring it again");
    mw_log_text("queue", s->queue);
    mw_log_end();
    s->missing = false;
    later(s, 0);
}

static void ask_depth(rmq_sub *s);
static void asked_depth(rmq_sub *s, rmq_reader *r);

static void method(rmq_chan *chan, uint32_t method, rmq_reader *r) {
    rmq_sub *s = chan->owner;
    if (method == RMQ_QUEUE_DECLARE_OK && s->step == RMQ_FINDING && worth_comparing(s)) {
        compare(s);
    } else if (method == RMQ_QUEUE_DECLARE_OK &&
               (s->step == RMQ_FINDING || s->step == RMQ_COMPARING || s->step == RMQ_MAKING)) {
        s->missing = false;
        s->compared = true;
        if (needs_lock(s))
            lock(s);
        else
            consume(s);
    } else if (method == RMQ_QUEUE_DECLARE_OK && s->step == RMQ_LOCKING && !s->place) {
        consume(s);
    } else if (method == RMQ_QUEUE_DECLARE_OK && s->step == RMQ_LOCKING) {
        s->step = RMQ_READING;
        rmq_sub_pump(s);
    } else if (method == RMQ_QUEUE_DECLARE_OK) {
        asked_depth(s, r);
    } else if (method == RMQ_CONSUME_OK) {
        s->step = RMQ_RUNNING;
        s->standby = false;
        s->told_code = 0;
        if (s->place) rmq_journal_touch(s->journal, false); /* the group is there from now on */
        ask_depth(s);                                       /* for the first one who wants to know */
    } else if (method == RMQ_CANCEL && s->step == RMQ_RUNNING) {
        cancelled(s);
    }
}

static const rmq_chan_events chan_events = {
    .opened = opened, .closed = closed, .method = method, .content = came};

/* ---- the line ---- */

static void up(void *owner) {
    rmq_sub *s = owner;
    if (s->without) rmq_journal_silence(s->journal, false); /* whoever had it may be gone */
    s->without = false;
    if (!s->conn->told_up) s->host->state(s->conn->link, true, NULL);
    s->conn->told_up = true;
    s->conn->told_down = false;
}

static void down(void *owner, const mw_error *why) {
    rmq_sub *s = owner;
    if (!s->conn->told_down && !s->closing) s->host->state(s->conn->link, false, why);
    s->conn->told_down = true;
    s->conn->told_up = false;
}

/* A broker that is busy sends a few messages at a time, and waking up for them costs more than the messages
 * themselves. When it does so several times within a millisecond, it is read once a millisecond instead,
 * until hardly anything comes. What comes in that time has to be a small part of the prefetch: nobody may
 * have to wait for our acks. It saves a third of the CPU time at 60,000 messages a second. */
static void pace(rmq_sub *s) {
    uint64_t now = mw_loop_real_ms(s->conn->loop);
    if (now != s->pace_ms) s->looks = 0;
    s->pace_ms = now;
    s->looks++;
    if (s->resting)
        s->resting = s->came >= BUSY && s->came <= s->prefetch / 4;
    else
        s->resting = s->looks >= BUSY && s->came && s->came <= s->prefetch / 16;
    s->came = 0;
    if (s->resting) mw_stream_rest(s->line->stream, REST_MS);
}

static void parsed(void *owner) {
    pace(owner);
    rmq_sub_pump(owner);
}

static const rmq_line_events sub_line_events = {.up = up, .down = down, .parsed = parsed};

/* ---- from the core ---- */

mw_sub *rmq_subscribe(mw_conn *conn, const mw_subscription *spec, mw_error *e) {
    rmq_conn *c = (rmq_conn *)conn;
    for (rmq_sub *o = c->subs; o; o = o->next)
        if (!o->closing && strcmp(o->queue, spec->channel) == 0 &&
            (!o->place || strcmp(o->group, spec->group) == 0)) {
            mw_fail(e, MW_EUSAGE, false,
                    "queue \"%s\" has a pipeline already, and a RabbitMQ queue gives each message to one "
                    "reader: bind a "
                    "second queue to the exchange that feeds it",
                    spec->channel);
            return NULL;
        }
    bool stream = rmq_is_stream(c, spec->channel);
    if (stream && c->declare == RMQ_DECLARE_PASSIVE) {
        mw_fail(e, MW_EUSAGE, false,
                "stream \"%s\": its reader has to declare mw.place.%s@%s and mw.lock.%s@%s, and the URL says "
                "declare=passive",
                spec->channel, spec->group, spec->channel, spec->group, spec->channel);
        return NULL;
    }
    if (stream && strlen(spec->channel) + strlen(spec->group) > 240) {
        mw_fail(e, MW_EUSAGE, false,
                "the names of stream \"%s\" and group \"%s\" are too long together: 240 bytes", spec->channel,
                spec->group);
        return NULL;
    }
    if (!spec->from_start && !stream) {
        mw_fail(e, MW_EUSAGE, false,
                "a RabbitMQ queue has no place to begin at: leave out start = \"newest\", or say type = "
                "\"stream\" if it is one");
        return NULL;
    }
    const rmq_queue_options *o = rmq_options_of(c, spec->channel);
    if (spec->order != MW_ORDER_NONE && o->type && strcmp(o->type, "quorum") == 0 && !o->single_active) {
        mw_fail(e, MW_EUSAGE, false,
                "order = \"%s\" on quorum queue \"%s\" needs single_active = true: RabbitMQ lets every "
                "consumer of it read, "
                "exclusive or not; or set order = \"none\"",
                spec->order == MW_ORDER_KEY ? "key" : "source", spec->channel);
        return NULL;
    }
    rmq_sub *s = calloc(1, sizeof *s);
    if (!s || !(s->queue = strdup(spec->channel)) || !(s->group = strdup(spec->group))) abort();
    s->conn = c;
    s->host = c->host;
    s->source = spec->source;
    s->order = spec->order;
    snprintf(s->tag, sizeof s->tag, "moonwire.%.100s.%ld", spec->group, (long)getpid());
    size_t bytes, room = s->host->room(s->source, &bytes);
    s->prefetch = (uint32_t)(room < 1 ? 1 : room > PREFETCH_MAX ? PREFETCH_MAX : room);
    s->line = rmq_line_new(c->loop, &c->settings, &sub_line_events, s, e);
    if (!s->line) {
        free(s->queue);
        free(s->group);
        free(s);
        return NULL;
    }
    s->newest = !spec->from_start;
    if (stream) s->place = rmq_place_new();
    s->keeps = c->declare == RMQ_DECLARE_PASSIVE;
    bool fits = strlen(s->queue) <= 255 - strlen("mw.journal.");
    if (s->order != MW_ORDER_NONE || stream || s->keeps || fits) s->journal = rmq_journal_new(s);
    rmq_chan_add(s->line, &s->chan, RMQ_CHAN_CONSUME, &chan_events, s);
    s->next = c->subs;
    c->subs = s;
    return (mw_sub *)s;
}

void rmq_resume(mw_sub *sub) { rmq_sub_pump((rmq_sub *)sub); }

void rmq_begin(mw_sub *sub, uint64_t tag, uint32_t unit) {
    rmq_sub *s = (rmq_sub *)sub;
    rmq_entry *e = s->journal && unit == s->unit ? rmq_entry_of(s, tag) : NULL;
    if (!e || rmq_journal_mute(s->journal)) return;
    e->begun = true;
    rmq_journal_begin(s->journal, tag);
}

/* What is here already and was not handed on goes back when the channel closes. */
void rmq_pause(mw_sub *sub) {
    rmq_sub *s = (rmq_sub *)sub;
    if (s->paused) return;
    s->paused = true;
    if (s->step != RMQ_RUNNING) return;
    s->step = RMQ_STOPPING;
    mw_buf *b = rmq_line_out(s->line);
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_CANCEL);
    rmq_put_string(b, s->tag);
    rmq_put_u8(b, 1);
    rmq_frame_end(b, f);
    rmq_line_send(s->line);
    hold(s, false);
}

void rmq_sub_free(rmq_sub *s) {
    rmq_conn *c = s->conn;
    rmq_sub **at = &c->subs;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    s->closing = true;
    mw_timer_stop(&s->again);
    mw_timer_stop(&s->ack_soon);
    mw_deferred_cancel(c->loop, &s->answering);
    rmq_line_free(s->line);
    rmq_window_clear(s);
    rmq_journal_free(s->journal);
    free(s->window);
    mw_buf_free(&s->done);
    mw_buf_free(&s->waiting);
    rmq_answers_free(s);
    rmq_place_free(s->place);
    free(s->queue);
    free(s->group);
    free(s);
}

static void left(void *owner) {
    rmq_sub *s = owner;
    mw_source *source = s->source;
    const mw_host *host = s->host;
    rmq_sub_free(s);
    host->closed(source);
}

static void leave(rmq_sub *s) { rmq_line_leave(s->line, left); }

void rmq_unsubscribe(mw_sub *sub) {
    rmq_sub *s = (rmq_sub *)sub;
    if (s->closing) return;
    s->closing = true;
    if (s->place && (s->step == RMQ_RUNNING || s->step == RMQ_STOPPING)) rmq_journal_touch(s->journal, true);
    rmq_write_acks(s);
    hold(s, false);
    if (!s->journal || rmq_journal_quiet(s->journal, leave)) leave(s);
}

/* ---- depth: asked for at the broker, at most so often ---- */

enum { DEPTH_EVERY_MS = 150 };

static void asked_depth(rmq_sub *s, rmq_reader *r) {
    rmq_short(r);
    s->ready_seen = rmq_u32(r);
    s->depth_known = true;
    s->asking = false;
    s->fresh = s->asked_at == s->activity;
}

static void ask_depth(rmq_sub *s) {
    s->asking = true;
    s->asked_ms = mw_loop_real_ms(s->conn->loop);
    s->asked_at = s->activity;
    rmq_put_declare(rmq_line_out(s->line), s->conn, RMQ_CHAN_CONSUME, s->queue, true);
    rmq_line_send(s->line);
}

bool rmq_depth(mw_sub *sub, mw_depth *out) {
    rmq_sub *s = (rmq_sub *)sub;
    uint64_t now = mw_loop_real_ms(s->conn->loop);
    if (s->step == RMQ_RUNNING && !s->asking && now - s->asked_ms >= DEPTH_EVERY_MS) ask_depth(s);
    if (s->delayed && now > s->delayed_until) s->delayed = 0; /* another worker has it */
    /* With nothing in hand a number from before the last settlement could hide a retry that is on its way. */
    uint64_t ready = s->ready_seen;
    bool told = !s->place || rmq_place_behind(s->place, s->ready_seen, &ready);
    *out = (mw_depth){.ready = ready,
                      .delayed = s->delayed,
                      .unsettled = s->unsettled,
                      .known = told && s->depth_known &&
                               (s->unsettled || (s->fresh && s->asked_at == s->activity))};
    return true;
}
