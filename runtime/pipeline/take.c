/* take.c - handing deliveries to the Lua worker: by priority, within the concurrency, in batches, while the
 * breaker is closed. */
#include "base/log.h"
#include "core/shared/ledger.h"
#include "pipeline/defs.h"

enum { MEASURE_EVERY = 16 };

volatile bool mw_slice_ended;

bool mw_slice_over(void) { return mw_slice_ended; }

void mw_slice_begin(mw_loop *loop) {
    if (!mw_slice_ended) return; /* hardly any time has passed */
    mw_slice_ended = false;
    mw_loop_now_update(loop); /* a deadline must not begin before its handler does */
}

static void batch_waited(mw_timer *t) {
    mw_outlet *o = mw_container_of(t, mw_outlet, batch_timer);
    o->batch_due = true;
    mw_outlet_wake(o);
}

static mw_outlet *outlet_of(mw_delivery *d) { /* of a ready one */
    return d->on_trial ? &d->pipeline->trial : &d->pipeline->main;
}

static void take_out(mw_outlet *o, mw_delivery *d) {
    uint32_t level = mw_message_priority(d->msg);
    mw_list_remove(&o->ready[level], d);
    if (!o->ready[level].first) o->ready_levels &= ~(1u << level);
    o->ready_count--;
    d->on_trial = false;
}

void mw_delivery_make_ready(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    uint32_t level = mw_message_priority(d->msg);
    mw_outlet *o = mw_trial_outlet(p, d);
    d->state = MW_D_READY;
    d->on_trial = o == &p->trial;
    mw_list_push(&o->ready[level], d);
    o->ready_levels |= 1u << level;
    if (o->ready_count++ == 0 && p->spec.batch_size > 1)
        mw_timer_start(p->loop, &o->batch_timer, p->spec.batch_wait_ms, batch_waited);
    mw_outlet_wake(o);
}

void mw_delivery_unready(mw_delivery *d) {
    mw_outlet *o = outlet_of(d);
    take_out(o, d);
    if (o->ready_count) return;
    mw_timer_stop(&o->batch_timer);
    o->batch_due = false;
}

/* A busy pipeline would never let the other generation in: what is ready for the trial has its share of the
 * concurrency kept free, and no more than that. */
static bool has_place(const mw_pipeline *p, uint32_t limit) {
    if (!p->trial_below) return p->running < limit;
    uint32_t quota = mw_trial_quota(p), trial = p->trial.running;
    if (p->turn == &p->trial) return p->running < limit && trial < quota;
    uint32_t kept = trial < quota ? quota - trial : 0;
    return p->running + (kept < p->trial.ready_count ? kept : p->trial.ready_count) < limit;
}

static bool is_open(const mw_pipeline *p) {
    return p->turn && p->turn->ready_count && p->breaker != MW_OPEN && !p->draining && !p->stopped &&
           !p->choked && !p->output_full;
}

static bool may_start(const mw_pipeline *p) {
    return is_open(p) && p->budget && (p->first_of_turn || !mw_slice_ended) &&
           has_place(p, p->breaker == MW_HALF_OPEN ? 1 : p->spec.concurrency);
}

bool mw_pipeline_more(const mw_pipeline *p) {
    return is_open(p) && (!p->budget || mw_slice_ended) && has_place(p, p->spec.concurrency);
}

static mw_delivery *next_ready(const mw_outlet *o) {
    return o->ready[31u - (uint32_t)__builtin_clz(o->ready_levels)].first;
}

/* Is there one, and do suspects let it begin? Those that killed too often are buried on the way. */
static bool next_may_begin(mw_pipeline *p) {
    if (!mw_ledger_on()) return p->turn->ready_count;
    while (p->turn->ready_count) {
        mw_delivery *d = next_ready(p->turn);
        switch (mw_isolate_ask(d)) {
        case MW_GO: return true;
        case MW_WAIT: return false;
        case MW_BURY:
            mw_delivery_unready(d);
            mw_isolate_bury(d);
            break;
        }
    }
    return false;
}

static mw_delivery *begin(mw_pipeline *p) {
    mw_delivery *d = next_ready(p->turn);
    take_out(p->turn, d);
    d->taken = mw_loop_mono_ms(p->loop);
    d->state = MW_D_RUNNING;
    d->deadline = mw_loop_mono_ms(p->loop) + (uint64_t)p->spec.timeout_ms;
    d->late = false;
    d->taker = p->turn->events.owner;
    d->running = p->turn->events.running;
    if (d->running) ++*d->running;
    if (mw_ledger_on()) mw_isolate_begin(d);
    if (p->driver->begin) p->driver->begin(p->sub, d->tag, d->unit);
    return d;
}

/* A clock costs more than a small handler: the first of a turn is measured, then one in 16, each standing for
 * those before it that were not; and whatever waits (mw_delivery_wait). */
static void measure(mw_pipeline *p, mw_delivery *d) {
    if (p->unmeasured++ < p->measure_after) return;
    d->began_ns = mw_timing_clock_ns();
    d->weight = (uint8_t)(p->unmeasured < MEASURE_EVERY ? p->unmeasured : MEASURE_EVERY);
    p->unmeasured = 0;
    p->measure_after = MEASURE_EVERY - 1;
}

static void measured(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    mw_timing_add(&p->tally->timing, mw_loop_mono_ms(p->loop), mw_timing_clock_ns() - d->began_ns, d->weight);
    d->began_ns = 0;
}

mw_delivery *mw_pipeline_take(mw_pipeline *p) {
    if (!may_start(p) || !next_may_begin(p)) return NULL;
    p->budget--;
    p->first_of_turn = false;
    p->running++;
    p->trial.running += p->turn == &p->trial;
    mw_delivery *d = begin(p);
    d->counted = true;
    measure(p, d);
    return d;
}

uint32_t mw_pipeline_take_batch(mw_pipeline *p, mw_delivery **out, uint32_t max) {
    if (!may_start(p)) return 0;
    mw_outlet *o = p->turn;
    if (o->ready_count < p->spec.batch_size && !o->batch_due) return 0;
    uint32_t n = 0;
    while (n < max && n < p->spec.batch_size && next_may_begin(p)) out[n++] = begin(p);
    if (!n) return 0;
    out[0]->began_ns = mw_timing_clock_ns();
    out[0]->weight = 1;
    out[0]->counted = true; /* the batch is one handler: the first of it carries the count */
    p->running++;
    p->trial.running += o == &p->trial;
    p->budget -= n < p->budget ? n : p->budget;
    p->first_of_turn = false;
    o->batch_due = false;
    mw_timer_stop(&o->batch_timer);
    if (o->ready_count) mw_timer_start(p->loop, &o->batch_timer, p->spec.batch_wait_ms, batch_waited);
    return n;
}

void mw_pipeline_budget(mw_pipeline *p, uint32_t messages) {
    p->budget = messages;
    p->first_of_turn = true;
    if (mw_slice_ended) mw_loop_now_update(p->loop); /* by its key function */
    p->measure_after = 0;
}

void mw_delivery_end_run(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    bool others = d->taker && d->taker != p->main.events.owner;
    if (d->counted) p->running--;
    if (d->counted && others && d->taker == p->trial.events.owner) p->trial.running--;
    d->counted = false;
    if (others || p->trial_below) mw_pipeline_wake(p); /* the place is free for another generation */
    if (d->running) --*d->running;
    d->running = NULL;
    if (d->on_ledger) mw_isolate_end(d);
    if (d->expired) mw_list_remove(&p->expired, d);
    d->expired = false;
    mw_timer_stop(&d->timer);
    if (d->began_ns) measured(d);
}

/* ---- deadlines ---- */

int64_t mw_delivery_left(const mw_delivery *d) {
    if (d->state != MW_D_RUNNING) return d->pipeline->spec.timeout_ms;
    int64_t left = (int64_t)(d->deadline - mw_loop_mono_ms(d->pipeline->loop));
    return left > 0 ? left : 0;
}

void mw_delivery_set_late(mw_delivery *d) { d->late = true; }
bool mw_delivery_late(const mw_delivery *d) { return d->late; }

static void deadline_passed(mw_timer *t) {
    mw_delivery *d = mw_container_of(t, mw_delivery, timer);
    d->expired = true;
    mw_list_push(&d->pipeline->expired, d);
    d->pipeline->main.events.expired(d->taker, d->pipeline);
}

bool mw_delivery_wait(mw_delivery *d) {
    if (d->expired || mw_timer_running(&d->timer)) return !d->expired;
    if (!d->began_ns) d->began_ns = mw_timing_clock_ns();
    d->weight = 1;
    uint64_t now = mw_loop_mono_ms(d->pipeline->loop);
    int64_t left = (int64_t)(d->deadline - now);
    mw_timer_start(d->pipeline->loop, &d->timer, left, deadline_passed);
    return true;
}

mw_delivery *mw_pipeline_expired(mw_pipeline *p, const void *owner) {
    mw_delivery *d = p->expired.first;
    while (d && d->taker != owner) d = d->next;
    if (!d) return NULL;
    mw_list_remove(&p->expired, d);
    d->expired = false;
    return d;
}

/* ---- the breaker: an outage pauses the whole source, then one message at a time tries again ---- */

static void try_again(mw_timer *t) {
    mw_pipeline *p = mw_container_of(t, mw_pipeline, breaker_timer);
    p->breaker = MW_HALF_OPEN;
    mw_source_maybe_resume(p);
    mw_pipeline_wake(p);
}

void mw_breaker_outage(mw_delivery *d, const mw_policy *policy) {
    mw_pipeline *p = d->pipeline;
    if (p->breaker == MW_OPEN) return;
    p->outages++;
    int64_t pause = mw_backoff_delay(&policy->backoff, p->outages, mw_pipeline_random(p));
    p->breaker = MW_OPEN;
    mw_timer_start(p->loop, &p->breaker_timer, pause, try_again);
    mw_log_begin(MW_WARN, "source paused");
    mw_parts parts;
    mw_message_parts(d->msg, &parts);
    mw_log_text("pipeline", p->spec.name);
    mw_log_str("id", parts.id, parts.id_len);
    mw_log_text("class", policy->name);
    mw_log_num("seconds", (double)pause / 1000);
    mw_log_str("error", d->error->data, d->error->len);
    mw_log_end();
}

void mw_breaker_success(mw_pipeline *p) {
    if (p->breaker != MW_HALF_OPEN) return;
    p->breaker = MW_CLOSED_BREAKER;
    p->outages = 0;
    mw_source_maybe_resume(p);
    mw_log_begin(MW_INFO, "source resumed");
    mw_log_text("pipeline", p->spec.name);
    mw_log_end();
}
