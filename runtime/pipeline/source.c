/* source.c - what the driver says: messages come in, bounded by count and bytes; some are fenced away; keys
 * are marked. */
#include <stdio.h>
#include <string.h>

#include "core/host.h"
#include "core/shared/ledger.h"
#include "pipeline/defs.h"

enum { DEATHS_NEARBY = 64 };

/* Where a commit answers for many at once, the buffer would otherwise be full of messages that are done, and
 * the rate no more than one buffer a commit. */
uint32_t mw_source_held(const mw_pipeline *p) {
    uint64_t apart = (uint64_t)p->spec.buffer_count * p->driver->handled_buffers;
    return p->in_flight - (p->handled < apart ? p->handled : (uint32_t)apart);
}

static bool has_room(const mw_pipeline *p, uint32_t count, size_t bytes) {
    return mw_source_held(p) < count && p->in_flight_bytes < bytes;
}

size_t mw_source_room(mw_source *s, size_t *bytes) {
    mw_pipeline *p = s->pipeline;
    bool open = !p->draining && !p->stopped && p->breaker != MW_OPEN && !p->output_full &&
                has_room(p, p->spec.buffer_count, p->spec.buffer_bytes);
    *bytes = open ? p->spec.buffer_bytes - p->in_flight_bytes : 0;
    p->paused = !open;
    return open ? p->spec.buffer_count - mw_source_held(p) : 0;
}

/* Below the low mark, half of the high one: not at every message, so that the driver fetches whole batches.
 */
void mw_source_maybe_resume(mw_pipeline *p) {
    if (!p->paused || p->stopped || p->draining || p->breaker == MW_OPEN || p->output_full || !p->sub) return;
    if (!has_room(p, p->spec.buffer_count / 2 + 1, p->spec.buffer_bytes / 2 + 1)) return;
    p->paused = false;
    p->driver->resume(p->sub);
}

void mw_source_full(mw_source *s, bool full) {
    mw_pipeline *p = s->pipeline;
    p->output_full = full;
    if (full) return;
    mw_source_maybe_resume(p);
    mw_pipeline_wake(p);
}

static void held_until(mw_timer *t) {
    mw_delivery *d = mw_container_of(t, mw_delivery, timer);
    mw_delivery_make_ready(d);
}

/* A retry that a crash interrupted: it holds its lane until its time, as it did before. */
static void hold(mw_delivery *d, int64_t wait_ms) {
    d->state = MW_D_HELD;
    mw_timer_start(d->pipeline->loop, &d->timer, wait_ms, held_until);
}

static mw_delivery *accept(mw_pipeline *p, const mw_incoming *in) {
    mw_delivery *d = mw_delivery_new(p);
    d->msg = in->msg;
    d->tag = in->tag;
    d->unit = in->unit;
    d->attempt = in->attempt ? in->attempt : 1;
    d->first_error = in->first_error;
    d->not_before = in->not_before;
    d->invalid = in->invalid;
    p->in_flight++;
    p->in_flight_bytes += mw_message_size(in->msg);
    p->tally->counters.received++;
    return d;
}

void mw_source_deliver(mw_source *s, const mw_incoming *in, size_t count) {
    mw_pipeline *p = s->pipeline;
    for (size_t i = 0; i < count; i++) {
        mw_delivery *d = accept(p, &in[i]);
        if (p->draining) {
            mw_settle_simple(d, MW_SETTLE_RELEASE);
        } else if (p->spec.own_key) {
            d->state = MW_D_UNKEYED;
            mw_list_push(&p->unkeyed, d);
        } else {
            if (p->spec.order == MW_ORDER_KEY)
                d->lane_key = mw_message_lane(d->msg);
            else if (p->spec.order == MW_ORDER_SOURCE)
                d->lane_key = (uint64_t)d->unit + 1;
            uint64_t lane = d->lane_key;
            mw_lane_enter(d);
            if (in[i].held) mw_lane_held(p, lane);
        }
    }
    /* A driver that used up the room it was told of need not ask again: it is called when there is some. */
    if (!has_room(p, p->spec.buffer_count, p->spec.buffer_bytes)) p->paused = true;
    if (p->main.ready_count || p->trial.ready_count || p->unkeyed.first) mw_pipeline_wake(p);
}

/* By the current generation's key alone: two would give one message two lanes. */
mw_delivery *mw_pipeline_unkeyed(mw_pipeline *p) { return p->turn == &p->main ? p->unkeyed.first : NULL; }

void mw_delivery_set_lane(mw_delivery *d, const char *key, size_t len, bool has_key) {
    mw_list_remove(&d->pipeline->unkeyed, d);
    d->lane_key = has_key ? mw_hash64(key, len) : 0;
    mw_lane_enter(d);
}

void mw_delivery_no_lane(mw_delivery *d, const char *reason, size_t reason_len) {
    mw_list_remove(&d->pipeline->unkeyed, d);
    mw_delivery_reject(d, "invalid", reason, reason_len);
}

/* More attempts than any policy grants: the last ones ended without a verdict, with the process that made
 * them; or the policy grants fewer than it did when they failed. */
static bool tried_too_often(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->spec.policy_count; i++)
        if (p->spec.policies[i].attempts > most) most = p->spec.policies[i].attempts;
    /* The ledger knows who did it; this is for when it was lost. */
    if (d->attempt <= most + (mw_ledger_on() ? DEATHS_NEARBY : 0)) return false;
    d->attempt--; /* this one is not made */
    char reason[96];
    int n = snprintf(reason, sizeof reason,
                     d->first_error ? "gave up after %u attempts: no more than %u are granted now"
                                    : "the worker died while handling it, too often",
                     d->attempt, most);
    mw_verdict_dead(d, d->first_error ? "transient" : "crash", reason, (size_t)n);
    return true;
}

static void bury_invalid(mw_delivery *d) {
    size_t len = strlen(d->invalid);
    mw_text_unref(d->error);
    d->error = mw_text_new(d->invalid, len);
    if (!d->first_error) d->first_error = mw_text_ref(d->error);
    mw_verdict_dead(d, "invalid", d->invalid, len);
}

/* An interrupted held retry, once its lane is its own, waits out its time. */
void mw_delivery_start_or_hold(mw_delivery *d) {
    if (d->invalid) {
        bury_invalid(d);
        return;
    }
    if (d->attempt > d->pipeline->spec.policies[0].attempts && tried_too_often(d)) return;
    int64_t wait = d->not_before ? d->not_before - mw_loop_wall_ms(d->pipeline->loop) : 0;
    d->not_before = 0;
    if (wait > 0)
        hold(d, wait);
    else
        mw_delivery_make_ready(d);
}

/* Takes one out that no handler has begun and that is not being settled. false: it is one of those. */
static bool take_out(mw_delivery *d) {
    switch ((mw_delivery_state)d->state) {
    case MW_D_RUNNING:
    case MW_D_SETTLING: return false;
    case MW_D_READY:
        mw_delivery_unready(d);
        mw_lane_leave(d);
        break;
    case MW_D_UNKEYED: mw_list_remove(&d->pipeline->unkeyed, d); break;
    case MW_D_HELD: mw_lane_leave(d); break;
    case MW_D_WAITING: mw_lane_forget(d); break;
    }
    mw_delivery_free(d);
    return true;
}

/* Running handlers go on, but their verdict will be discarded; a settlement under way is answered by the
 * driver. The lane of a running one stays taken until it ends, so that its twin does not run beside it. */
void mw_source_fence(mw_source *s, uint32_t unit) {
    mw_pipeline *p = s->pipeline;
    for (mw_delivery *d = p->all, *next; d; d = next) {
        next = d->all_next;
        if (d->fenced || (unit != MW_UNIT_ALL && d->unit != unit)) continue;
        p->tally->counters.fenced++;
        d->fenced = true;
        take_out(d);
    }
    mw_settle_withdraw(p); /* the same tag may be delivered again before they would have gone */
    mw_source_maybe_resume(p);
}

/* The lane of one that is taken out may hand over to another of the same unit: those that wait go first. */
uint32_t mw_source_recall(mw_source *s, uint32_t unit) {
    mw_pipeline *p = s->pipeline;
    uint32_t left = 0;
    for (int waiting = 1; waiting >= 0; waiting--) {
        for (mw_delivery *d = p->all, *next; d; d = next) {
            next = d->all_next;
            if (d->fenced || d->unit != unit || (waiting && d->state != MW_D_WAITING)) continue;
            if (take_out(d))
                p->tally->counters.released++;
            else
                left++;
        }
    }
    mw_source_maybe_resume(p);
    return left;
}

void mw_source_mark(mw_source *s, uint64_t lane, mw_mark mark) {
    mw_pipeline *p = s->pipeline;
    mw_lane_mark(p, lane, mark);
    if (mark != MW_MARK_NONE || !p->sub) return;
    mw_pipeline_flush(p); /* what was still being parked under the mark comes back too */
    p->driver->unpark(p->sub, lane);
}
