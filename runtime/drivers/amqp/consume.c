/* consume.c - a subscription: its own line, one channel, one consumer. The prefetch is the pipeline's window,
 * so the broker keeps the rest. With an order the consumer is exclusive (or the queue has a single active
 * consumer): others of the group stand by and ask again. Tags live as long as the channel: each opening is a
 * new unit, and the former one is fenced. */
#include <stdlib.h>
#include <string.h>

#include "drivers/amqp/amqp.h"

enum { BUSY = 4, REST_MS = 1 };
enum { PREFETCH_MAX = 20000 };

/* ---- the line ---- */

static void up(void *owner) {
    rmq_sub *s = owner;
    if (s->without) rmq_journal_silence(s->journal, false); /* whoever had it may be gone */
    s->without = false;
    s->conn->server = s->line->server;
    s->conn->server_minor = s->line->server_minor;
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

/* What cannot be kept here is refused before anything is opened. */
static int check(rmq_conn *c, const mw_subscription *spec, bool stream, mw_error *e) {
    const rmq_queue_options *o = rmq_options_of(c, spec->channel);
    for (rmq_sub *other = c->subs; other; other = other->next)
        if (!other->closing && strcmp(other->queue, spec->channel) == 0 &&
            (!other->place || strcmp(other->group, spec->group) == 0))
            return mw_fail(
                e, MW_EUSAGE, false,
                "queue \"%s\" has a pipeline already, and a RabbitMQ queue gives each message to one "
                "reader: bind a second queue to the exchange that feeds it",
                spec->channel);
    if (stream && c->declare == RMQ_DECLARE_PASSIVE)
        return mw_fail(
            e, MW_EUSAGE, false,
            "stream \"%s\": its reader has to declare mw.place.%s@%s and mw.lock.%s@%s, and the URL "
            "says declare=passive",
            spec->channel, spec->group, spec->channel, spec->group, spec->channel);
    if (stream && strlen(spec->channel) + strlen(spec->group) > 240)
        return mw_fail(e, MW_EUSAGE, false,
                       "the names of stream \"%s\" and group \"%s\" are too long together: 240 bytes",
                       spec->channel, spec->group);
    if (!spec->from_start && !stream)
        return mw_fail(
            e, MW_EUSAGE, false,
            "a RabbitMQ queue has no place to begin at: leave out start = \"newest\", or say type = "
            "\"stream\" if it is one");
    if (spec->order != MW_ORDER_NONE && o->type && strcmp(o->type, "quorum") == 0 && !o->single_active)
        return mw_fail(
            e, MW_EUSAGE, false,
            "order = \"%s\" on quorum queue \"%s\" needs single_active = true: RabbitMQ lets every "
            "consumer of it read, exclusive or not; or set order = \"none\"",
            spec->order == MW_ORDER_KEY ? "key" : "source", spec->channel);
    return 0;
}

/* One that is full refuses, or drops what it has. The broker takes no notice of that when something comes out
 * of a delay queue: it is gone. */
static bool is_bounded(const rmq_queue_options *o) { return o->max_length || o->max_bytes; }

mw_sub *rmq_subscribe(mw_conn *conn, const mw_subscription *spec, mw_error *e) {
    rmq_conn *c = (rmq_conn *)conn;
    bool stream = rmq_is_stream(c, spec->channel);
    if (check(c, spec, stream, e)) return NULL;
    rmq_sub *s = calloc(1, sizeof *s);
    if (!s || !(s->queue = strdup(spec->channel)) || !(s->group = strdup(spec->group))) abort();
    s->conn = c;
    s->host = c->host;
    s->source = spec->source;
    s->order = spec->order;
    size_t bytes, room = s->host->room(s->source, &bytes);
    s->budget = bytes;
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
    s->keeps = c->declare == RMQ_DECLARE_PASSIVE || is_bounded(rmq_options_of(c, s->queue));
    bool fits = strlen(s->queue) <= 255 - strlen("mw.journal.");
    if (s->order != MW_ORDER_NONE || stream || s->keeps || fits) s->journal = rmq_journal_new(s);
    rmq_chan_add(s->line, &s->chan, RMQ_CHAN_CONSUME, &rmq_consuming, s);
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
    rmq_deliveries_clear(s);
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
    if (!s->journal || rmq_journal_quiet(s->journal, leave)) leave(s);
}

/* ---- depth: asked for at the broker, at most so often ---- */

enum { DEPTH_EVERY_MS = 150 };

void rmq_asked_depth(rmq_sub *s, rmq_reader *r) {
    rmq_short(r);
    s->ready_seen = rmq_u32(r);
    s->depth_known = true;
    s->asking = false;
    s->fresh = s->asked_at == s->activity;
}

void rmq_ask_depth(rmq_sub *s) {
    s->asking = true;
    s->asked_ms = mw_loop_real_ms(s->conn->loop);
    s->asked_at = s->activity;
    rmq_put_declare(rmq_line_out(s->line), s->conn, RMQ_CHAN_CONSUME, s->queue, true);
    rmq_line_send(s->line);
}

bool rmq_depth(mw_sub *sub, mw_depth *out) {
    rmq_sub *s = (rmq_sub *)sub;
    uint64_t now = mw_loop_real_ms(s->conn->loop);
    if (s->step == RMQ_RUNNING && !s->asking && now - s->asked_ms >= DEPTH_EVERY_MS) rmq_ask_depth(s);
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
