/* settle.c - telling the broker. Settlements gather during a turn and go to the driver as one batch. An ack
 * comes after the publishes it depends on: in the same transaction where the broker has one, otherwise after
 * every confirm. What cannot be settled now is tried again; nothing is given up except what was fenced. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/host.h"
#include "pipeline/defs.h"

enum { TRY_AGAIN_MS = 100, TRY_AGAIN_CAP_MS = 5000 };
static const size_t RUN_MOST = (size_t)64 << 20; /* bytes that one run may publish, at least */

/* ---- the batch ---- */

static void turn_end(mw_deferred *f) {
    mw_pipeline *p = mw_container_of(f, mw_pipeline, flush);
    mw_pipeline_flush(p);
    if (p->draining && !p->all && p->sub && !p->unsubscribed) {
        p->unsubscribed = true;
        p->driver->unsubscribe(p->sub);
    }
}

void mw_pipeline_check_drained(mw_pipeline *p) {
    if (p->draining && !p->all) mw_defer(p->loop, &p->flush, turn_end);
}

void mw_pipeline_flush(mw_pipeline *p) {
    if (!p->settlements.len) return;
    mw_rate_note(&p->tally->rate, mw_loop_mono_ms(p->loop), p->tally->counters.handled);
    if (p->spec.dedupe) mw_link_flush(p->spec.dedupe); /* "done" stands before the ack */
    mw_buf batch = p->settlements;
    p->settlements = (mw_buf){0}; /* the driver may cause new ones */
    p->driver->settle(p->sub, (mw_settlement *)(void *)batch.data, batch.len / sizeof(mw_settlement));
    if (p->settlements.data) {
        mw_buf_free(&batch);
    } else {
        batch.len = 0;
        p->settlements = batch;
    }
}

static bool done_with_ack(const mw_delivery *d);

static void submit(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    bool done = d->op == MW_SETTLE_ACK && done_with_ack(d);
    mw_settlement *s = (mw_settlement *)(void *)mw_buf_reserve(&p->settlements, sizeof *s);
    *s = (mw_settlement){.op = (mw_settle_op)d->op,
                         .tag = d->tag,
                         .unit = d->unit,
                         .attempt = d->attempt,
                         .delay_ms = d->delay_ms,
                         .hold = d->hold,
                         .error = d->error,
                         .lane = d->lane_key,
                         .mark = (mw_mark)d->mark,
                         .publish = d->publications,
                         .publish_count = d->publications ? d->outgoing_count : 0,
                         .done_key = done ? d->dedupe_key : NULL,
                         .done_len = d->dedupe_len,
                         .done_ttl_ms = p->spec.dedupe_ttl_ms,
                         .cookie = d};
    p->settlements.len += sizeof *s;
    mw_defer(p->loop, &p->flush, turn_end);
}

void mw_settle_simple(mw_delivery *d, mw_settle_op op) {
    mw_pipeline *p = d->pipeline;
    mw_timer_stop(&d->timer); /* a held one must not become ready while the broker takes it back */
    d->state = MW_D_SETTLING;
    d->op = (uint8_t)op;
    if (op == MW_SETTLE_PARK)
        p->tally->counters.parked++;
    else
        p->tally->counters.released++;
    submit(d);
}

/* ---- ack ---- */

/* The record stands where the messages do: it is written with the ack. */
static bool done_with_ack(const mw_delivery *d) {
    const mw_pipeline *p = d->pipeline;
    return d->dedupe_key && !d->dead_letter && d->dedupe == p->spec.from && p->driver->can & MW_CAN_ATOMIC;
}

/* In another store "done" stands before the ack, so that a crash in between does not handle it again; but
 * never before the publishes are out (mw_settle_ack): a refusal would leave a message that looks handled and
 * is not. */
static void submit_ack(mw_delivery *d) {
    if (d->dedupe_key && d->dead_letter)
        mw_link_release(d->dedupe, d->dedupe_key, d->dedupe_len);
    else if (d->dedupe_key && !done_with_ack(d))
        mw_link_done(d->dedupe, d->dedupe_key, d->dedupe_len, d->pipeline->spec.dedupe_ttl_ms);
    submit(d);
}

static bool all_in_one_transaction(const mw_delivery *d) {
    const mw_pipeline *p = d->pipeline;
    if (!(p->driver->can & MW_CAN_ATOMIC) && !p->spec.exactly_once) return false;
    if (d->dedupe_key && !d->dead_letter && !done_with_ack(d))
        return false; /* "done" must come between the two */
    for (const mw_outgoing *o = d->outgoing; o; o = o->next)
        if (o->link != p->spec.from) return false;
    return true;
}

static void attach_publications(mw_delivery *d) {
    d->publications = malloc(d->outgoing_count * sizeof *d->publications);
    if (!d->publications) abort();
    size_t n = 0;
    for (mw_outgoing *o = d->outgoing; o; o = o->next)
        d->publications[n++] =
            (mw_publication){.channel = o->channel, .msg = o->msg, .delay_ms = o->delay_ms};
}

static void confirmed(mw_confirm *c, const mw_error *e);

static void publish_all(mw_delivery *d) {
    d->confirms_left = d->outgoing_count;
    d->failed_publish = d->refused_publish = false;
    for (mw_outgoing *o = d->outgoing; o; o = o->next) {
        o->confirm.done = confirmed;
        mw_publication m = {.channel = o->channel, .msg = o->msg, .delay_ms = o->delay_ms};
        mw_link_publish(o->link, &m, &o->confirm);
    }
}

void mw_settle_ack(mw_delivery *d) {
    d->state = MW_D_SETTLING;
    d->op = MW_SETTLE_ACK;
    if (!d->outgoing) { /* nothing can fail that would make it run again: the lane may move on */
        d->handled = true;
        d->pipeline->handled++;
        mw_lane_leave(d);
        submit_ack(d);
        if (d->pipeline->driver->locate) mw_delivery_drop_message(d); /* now it is in the cache */
        if (d->pipeline->driver->handled_buffers) mw_source_maybe_resume(d->pipeline);
    } else if (all_in_one_transaction(d)) {
        attach_publications(d);
        submit_ack(d);
    } else {
        publish_all(d);
    }
}

/* ---- publishes outside of the transaction ---- */

static void discard(mw_delivery *d) { /* fenced: somebody else has the message now */
    mw_pipeline *p = d->pipeline;
    if (d->dedupe_key) mw_link_release(d->dedupe, d->dedupe_key, d->dedupe_len);
    if (d->marked) mw_source_mark(&p->source, d->lane_key, MW_MARK_NONE); /* it never stood at the broker */
    mw_lane_leave(d);
    mw_delivery_free(d);
    mw_source_maybe_resume(p);
}

static int64_t settle_backoff(mw_delivery *d) {
    mw_backoff b = {.base = TRY_AGAIN_MS / 1000.0, .cap = TRY_AGAIN_CAP_MS / 1000.0, .jitter = 0.2};
    return mw_backoff_delay(&b, ++d->settle_tries, mw_pipeline_random(d->pipeline));
}

static void publish_again(mw_timer *t) { publish_all(mw_container_of(t, mw_delivery, timer)); }

static void discard_verdict(mw_delivery *d) {
    mw_delivery_log(MW_WARN, "fenced: verdict discarded", d);
    mw_log_end();
    discard(d);
}

/* What the driver has been given it answers itself, and so does a link that has the publishes. */
void mw_settle_withdraw(mw_pipeline *p) {
    mw_buf gathered = p->settlements;
    p->settlements = (mw_buf){0};
    mw_settlement *list = (mw_settlement *)(void *)gathered.data;
    for (size_t i = 0, n = gathered.len / sizeof *list; i < n; i++) {
        mw_delivery *d = list[i].cookie;
        if (d->fenced)
            discard_verdict(d);
        else
            mw_buf_add(&p->settlements, &list[i], sizeof *list);
    }
    mw_buf_free(&gathered);
    for (mw_delivery *d = p->all, *next; d; d = next) {
        next = d->all_next;
        bool tries_again_later = d->state == MW_D_SETTLING && mw_timer_running(&d->timer);
        if (d->fenced && tries_again_later) discard_verdict(d);
    }
}

static void confirmed(mw_confirm *c, const mw_error *e) {
    mw_delivery *d = mw_container_of(c, mw_outgoing, confirm)->delivery;
    mw_pipeline *p = d->pipeline;
    if (e) { /* one that no further attempt can help decides, whenever its answer comes */
        if (!d->failed_publish || (!e->retryable && !d->refused_publish)) {
            mw_text_unref(d->error);
            d->error = mw_text_new(e->text, strlen(e->text));
        }
        d->failed_publish = true;
        if (!e->retryable) d->refused_publish = true;
    }
    if (--d->confirms_left || p->abandoned)
        return; /* abandoned: the links are being closed, there is nobody to tell */
    if (d->fenced) {
        discard_verdict(d);
    } else if (!d->failed_publish) {
        d->settle_tries = 0; /* the ack has its own troubles */
        submit_ack(d);
    } else if (d->dead_letter) { /* it waits for its dead-letter channel; it is never dropped */
        mw_delivery_log(MW_ERROR, "channel for dead letters or retries refuses, waiting", d);
        mw_log_str("error", d->error->data, d->error->len);
        mw_log_end();
        mw_timer_start(p->loop, &d->timer, settle_backoff(d), publish_again);
    } else {
        mw_error why;
        mw_fail(&why, MW_ECLOSED, !d->refused_publish, "%s", d->error->data);
        mw_verdict_publish_failed(d, &why);
    }
}

/* A small message may publish large ones: they count against the buffer until they are confirmed, and while
 * they fill it no handler begins. */
static void count_outgoing(mw_pipeline *p, size_t bytes) {
    p->outgoing_bytes += bytes;
    p->in_flight_bytes += bytes;
    if (p->outgoing_bytes >= p->spec.buffer_bytes) p->choked = true;
}

void mw_outgoing_check(mw_pipeline *p) {
    if (!p->choked || p->outgoing_bytes > p->spec.buffer_bytes / 2) return;
    p->choked = false;
    if (!p->draining) mw_pipeline_wake(p);
}

void mw_outgoing_add(mw_delivery *d, mw_link *link, const char *channel, mw_message *m, int64_t delay_ms) {
    size_t n = strlen(channel) + 1;
    mw_outgoing *o = malloc(sizeof *o + n);
    if (!o) abort();
    *o = (mw_outgoing){.delivery = d, .link = link, .msg = mw_message_ref(m), .delay_ms = delay_ms};
    memcpy(o->channel, channel, n);
    if (!d->outgoing) d->outgoing_tail = &d->outgoing;
    *d->outgoing_tail = o;
    d->outgoing_tail = &o->next;
    d->outgoing_count++;
    d->outgoing_bytes += mw_message_size(m);
    count_outgoing(d->pipeline, mw_message_size(m));
}

/* Until the ack all of it is in memory, and a handler may run for long. */
int mw_delivery_publish(mw_delivery *d, mw_link *link, const char *channel, mw_message *m, int64_t delay_ms,
                        mw_error *e) {
    size_t most = d->pipeline->spec.buffer_bytes;
    if (most < RUN_MOST) most = RUN_MOST;
    if (d->outgoing && d->outgoing_bytes + mw_message_size(m) > most)
        return mw_fail(
            e, MW_EFULL, false,
            "this run has published %zu bytes, and %zu may wait for its ack: publish with now = true, or "
            "raise buffer.bytes",
            d->outgoing_bytes, most);
    mw_outgoing_add(d, link, channel, m, delay_ms);
    return 0;
}

void mw_outgoing_discard(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    for (mw_outgoing *o = d->outgoing, *next; o; o = next) {
        next = o->next;
        p->outgoing_bytes -= mw_message_size(o->msg);
        p->in_flight_bytes -= mw_message_size(o->msg);
        mw_message_unref(o->msg);
        free(o);
    }
    free(d->publications);
    d->publications = NULL;
    d->outgoing = NULL;
    d->outgoing_count = 0;
    d->outgoing_bytes = 0;
    mw_outgoing_check(p);
}

/* ---- retry ---- */

void mw_settle_retry(mw_delivery *d, int64_t delay_ms, bool counted, mw_text *error) {
    mw_pipeline *p = d->pipeline;
    d->state = MW_D_SETTLING;
    d->op = MW_SETTLE_RETRY;
    d->hold = d->lane || !(p->driver->can & MW_CAN_RETRY);
    d->delay_ms = delay_ms;
    if (!counted) d->attempt--; /* the broker's count stays where it was */
    mw_text_unref(d->error);
    d->error = mw_text_ref(error);
    if (!d->first_error) d->first_error = mw_text_ref(error);
    if (d->dedupe_key) {
        mw_link_release(d->dedupe, d->dedupe_key, d->dedupe_len);
        free(d->dedupe_key);
        d->dedupe_key = NULL;
    }
    submit(d);
}

static void run_again(mw_timer *t) { mw_delivery_make_ready(mw_container_of(t, mw_delivery, timer)); }

static void retry_stands(mw_delivery *d) {
    if (!d->hold) {
        mw_lane_leave(d);
        mw_delivery_free(d);
    } else if (d->pipeline->draining) {
        mw_lane_leave(d);
        mw_settle_simple(d, MW_SETTLE_RELEASE);
    } else {
        d->attempt++;
        d->state = MW_D_HELD;
        mw_timer_start(d->pipeline->loop, &d->timer, d->delay_ms, run_again);
    }
}

/* ---- the driver's answer ---- */

static void submit_again(mw_timer *t) { submit(mw_container_of(t, mw_delivery, timer)); }

static void not_settled(mw_delivery *d, const mw_error *e) {
    mw_pipeline *p = d->pipeline;
    if (e->code == MW_EFENCED || d->fenced) {
        if (!d->fenced) p->tally->counters.fenced++;
        discard_verdict(d);
    } else if ((!e->retryable || e->code == MW_EREFUSED) && d->publications && !d->dead_letter) {
        mw_verdict_publish_failed(d, e);
    } else {
        mw_delivery_log(MW_ERROR, "cannot settle, trying again", d);
        mw_log_text("error", e->text);
        mw_log_end();
        mw_timer_start(p->loop, &d->timer, settle_backoff(d), submit_again);
    }
}

void mw_source_settled(mw_source *s, void *cookie, const mw_error *e) {
    mw_pipeline *p = s->pipeline;
    mw_delivery *d = cookie;
    if (e) {
        not_settled(d, e);
    } else if (d->op == MW_SETTLE_RETRY) {
        if (d->fenced)
            discard(d);
        else
            retry_stands(d);
    } else {
        if (d->op == MW_SETTLE_ACK)
            p->tally->counters.published += d->outgoing_count - (d->dead_letter ? 1 : 0);
        if (d->mark == MW_MARK_NONE) mw_source_mark(s, d->lane_key, MW_MARK_NONE);
        d->settled = true;
        mw_lane_leave(d);
        mw_delivery_free(d);
    }
    mw_source_maybe_resume(p);
}
