/* tune.c - the way to a consumer, over one channel: find or make the queue, compare it with what is declared,
 * take the lock where one reads for many, set the prefetch, consume. A channel that the broker closes says
 * what comes next. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/uuid.h"
#include "drivers/amqp/amqp.h"

enum { STANDBY_MS = 300, STANDBY_MOST_MS = 3000, AGAIN_MS = 2000, AGAIN_MOST_MS = 30000 };

static void ask(rmq_sub *s, bool make) {
    s->step = make ? RMQ_MAKING : RMQ_FINDING;
    if (make)
        rmq_put_make(rmq_line_out(s->line), s->conn, RMQ_CHAN_CONSUME, s->queue, s->made);
    else
        rmq_put_declare(rmq_line_out(s->line), s->conn, RMQ_CHAN_CONSUME, s->queue, true);
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

/* Less and less often, until it runs. */
static void try_later(rmq_sub *s) {
    int64_t ms = (int64_t)AGAIN_MS << (s->tries < 8 ? s->tries : 8);
    s->tries++;
    s->missing = false;
    s->wait_ms = ms < AGAIN_MOST_MS ? ms : AGAIN_MOST_MS;
}

/* What differs is theirs to decide, as long as the order does not hang on it: others could read beside us.
 * What was not said here does not differ; the topology, or somebody else, has said more. */
static void differs(rmq_sub *s, const mw_error *why) {
    bool vital = strstr(why->text, "'x-single-active-consumer'") || strstr(why->text, "'x-queue-type'");
    bool fatal = vital && s->order != MW_ORDER_NONE && rmq_options_of(s->conn, s->queue)->single_active;
    s->compared = !fatal;
    if (fatal) {
        try_later(s);
        snprintf(s->trouble, sizeof s->trouble, "queue %s: %s", s->queue, why->text);
    }
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
    return s->place ||
           (s->journal && s->order == MW_ORDER_NONE && s->conn->declare == RMQ_DECLARE_AUTO && !s->without);
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
    } else if (s->reached) {
        rmq_put_number(b, "x-stream-offset", (int64_t)s->reached);
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

/* Each has a name of its own: the acks of one must not make room for the next. */
static void name_consumer(rmq_sub *s) {
    snprintf(s->tag, sizeof s->tag, "moonwire.%.100s.%ld.%u", s->group, (long)getpid(), ++s->consumers);
}

static void consume(rmq_sub *s) {
    s->step = RMQ_TUNING_IN;
    name_consumer(s);
    uint32_t prefetch = rmq_flow_first(s);
    mw_buf *b = rmq_line_out(s->line);
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_QOS);
    rmq_put_u32(b, 0);
    rmq_put_u16(b, (uint16_t)prefetch);
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

void rmq_consume_again(rmq_sub *s) { consume(s); }

/* The group is ours, and what is known of its place was read. */
void rmq_consume_stream(rmq_sub *s) {
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
    snprintf(s->trouble, sizeof s->trouble, "queue %s: %s", s->queue, why);
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

static const char *what_closed(const rmq_sub *s, int code, const mw_error *why) {
    if (code == 404) return "there is no such queue; waiting for it";
    if (code == 406 && strstr(why->text, "timed out"))
        return "a message was not acked within the broker's consumer_timeout, which took all of them back: "
               "they are handled again; keep the pipeline's timeout and held retries below it";
    return s->step == RMQ_MAKING ? "the broker does not make this queue; trying again"
                                 : "the broker closed the channel";
}

/* To ask for a lock that another has is an error in the broker's log each time. */
static int64_t stand_by_longer(rmq_sub *s) {
    int64_t ms = (int64_t)STANDBY_MS << (s->tries < 8 ? s->tries : 8);
    s->tries++;
    if (ms > STANDBY_MOST_MS) ms = STANDBY_MOST_MS;
    return ms - (int64_t)(mw_random64() % (uint64_t)(ms / 4));
}

/* Who would be refused need not ask: a queue that somebody reads is looked at until nobody does. */
static bool still_read(rmq_sub *s, rmq_reader r) {
    rmq_short(&r);
    rmq_u32(&r); /* messages */
    return s->standby && exclusive(s) && rmq_u32(&r) > 0;
}

/* What the closing of a channel means depends on what was asked last. */
static void why_closed(rmq_sub *s, int code, const mw_error *why) {
    if (code == 404 && s->step == RMQ_FINDING && s->conn->declare == RMQ_DECLARE_AUTO) {
        s->missing = true;
        s->made = 0;
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
        s->wait_ms = s->standby && s->place ? stand_by_longer(s) : STANDBY_MS;
        s->standby = true;
    } else if (code && s->step == RMQ_MAKING && rmq_make_without(s->conn, s->queue, s->made, why)) {
        s->made++;
        s->missing = s->made < rmq_make_steps(s->conn, s->queue);
    } else if (code == 406 && s->step == RMQ_MAKING && strstr(why->text, "inequivalent arg")) {
        s->missing = false; /* somebody made it in the meantime, otherwise */
    } else if (code == 406 && s->step == RMQ_COMPARING) {
        differs(s, why);
    } else if (code == 403 && s->step == RMQ_COMPARING) {
        s->compared = true; /* we may not declare */
    } else if (code) {
        complain(s, code, what_closed(s, code, why), why->text);
        try_later(s);
    }
}

static void closed(rmq_chan *chan, int code, const mw_error *why) {
    rmq_sub *s = chan->owner;
    uint32_t unit = s->unit;
    why_closed(s, code, why);
    s->step = RMQ_ASLEEP;
    s->resting = false;
    s->reached = 0;
    s->left_behind = 0;
    mw_timer_stop(&s->again);
    bool any = s->top > s->base || s->aside.count;
    rmq_deliveries_clear(s);
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

static void method(rmq_chan *chan, uint32_t method, rmq_reader *r) {
    rmq_sub *s = chan->owner;
    if (method == RMQ_QUEUE_DECLARE_OK && s->step == RMQ_FINDING && still_read(s, *r)) {
        later(s, STANDBY_MS);
    } else if (method == RMQ_QUEUE_DECLARE_OK && s->step == RMQ_FINDING && worth_comparing(s)) {
        compare(s);
    } else if (s->step == RMQ_MAKING && ++s->made < rmq_make_steps(s->conn, s->queue)) {
        ask(s, true);
    } else if (s->step == RMQ_MAKING ||
               (method == RMQ_QUEUE_DECLARE_OK && (s->step == RMQ_FINDING || s->step == RMQ_COMPARING))) {
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
        rmq_asked_depth(s, r);
    } else if (method == RMQ_CONSUME_OK) {
        s->step = RMQ_RUNNING;
        s->standby = false;
        s->told_code = 0;
        s->tries = 0;
        if (!s->left_behind) *s->trouble = '\0';
        if (s->place) rmq_journal_touch(s->journal, false); /* the group is there from now on */
        rmq_ask_depth(s);                                   /* for the first one who wants to know */
        if (s->paused) { /* it was told to stop before there was anything to stop */
            s->paused = false;
            rmq_pause((mw_sub *)s);
        }
    } else if (method == RMQ_CANCEL && s->step == RMQ_RUNNING) {
        cancelled(s);
    }
}

const rmq_chan_events rmq_consuming = {
    .opened = opened, .closed = closed, .method = method, .content = rmq_came};
