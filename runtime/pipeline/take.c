/* take.c - handing deliveries to the Lua worker: by priority, within the concurrency, in batches, while the
 * breaker is closed. */
#include "base/log.h"
#include "core/ledger.h"
#include "pipeline/defs.h"

enum { MEASURE_EVERY = 16 };

static void batch_waited(mw_timer *t) {
    mw_pipeline *p = mw_container_of(t, mw_pipeline, batch_timer);
    p->batch_due = true;
    mw_pipeline_wake(p);
}

void mw_delivery_make_ready(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    uint32_t level = mw_message_priority(d->msg);
    d->state = MW_D_READY;
    mw_list_push(&p->ready[level], d);
    p->ready_levels |= 1u << level;
    if (p->ready_count++ == 0 && p->spec.batch_size > 1)
        mw_timer_start(p->loop, &p->batch_timer, p->spec.batch_wait_ms, batch_waited);
    mw_pipeline_wake(p);
}

void mw_delivery_unready(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    uint32_t level = mw_message_priority(d->msg);
    mw_list_remove(&p->ready[level], d);
    if (!p->ready[level].first) p->ready_levels &= ~(1u << level);
    if (--p->ready_count) return;
    mw_timer_stop(&p->batch_timer);
    p->batch_due = false;
}

static bool may_start(const mw_pipeline *p) {
    uint32_t limit = p->breaker == MW_HALF_OPEN ? 1 : p->spec.concurrency;
    return p->ready_count && p->budget && p->running < limit && p->breaker != MW_OPEN && !p->draining &&
           !p->stopped;
}

bool mw_pipeline_more(const mw_pipeline *p) {
    return p->ready_count && !p->budget && p->running < p->spec.concurrency && p->breaker != MW_OPEN &&
           !p->draining && !p->stopped;
}

static mw_delivery *next_ready(const mw_pipeline *p) {
    return p->ready[31u - (uint32_t)__builtin_clz(p->ready_levels)].first;
}

/* Is there one, and do suspects let it begin? Those that killed too often are buried on the way. */
static bool next_may_begin(mw_pipeline *p) {
    if (!mw_ledger_on()) return p->ready_count;
    while (p->ready_count) {
        mw_delivery *d = next_ready(p);
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
    mw_delivery *d = next_ready(p);
    uint32_t level = mw_message_priority(d->msg);
    mw_list_remove(&p->ready[level], d);
    if (!p->ready[level].first) p->ready_levels &= ~(1u << level);
    p->ready_count--;
    d->taken = mw_loop_mono_ms(p->loop);
    d->state = MW_D_RUNNING;
    d->deadline = mw_loop_mono_ms(p->loop) + (uint64_t)p->spec.timeout_ms;
    d->late = false;
    d->taker = p->events.owner;
    d->running = p->events.running;
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
    p->running++;
    mw_delivery *d = begin(p);
    d->counted = true;
    measure(p, d);
    return d;
}

uint32_t mw_pipeline_take_batch(mw_pipeline *p, mw_delivery **out, uint32_t max) {
    if (!may_start(p) || (p->ready_count < p->spec.batch_size && !p->batch_due)) return 0;
    uint32_t n = 0;
    while (n < max && n < p->spec.batch_size && next_may_begin(p)) out[n++] = begin(p);
    if (!n) return 0;
    out[0]->began_ns = mw_timing_clock_ns();
    out[0]->weight = 1;
    out[0]->counted = true; /* the batch is one handler: the first of it carries the count */
    p->running++;
    p->budget -= n < p->budget ? n : p->budget;
    p->batch_due = false;
    mw_timer_stop(&p->batch_timer);
    if (p->ready_count) mw_timer_start(p->loop, &p->batch_timer, p->spec.batch_wait_ms, batch_waited);
    return n;
}

void mw_pipeline_budget(mw_pipeline *p, uint32_t messages) {
    p->budget = messages;
    p->measure_after = 0;
}

void mw_delivery_end_run(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    if (d->counted) p->running--;
    d->counted = false;
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
    d->pipeline->events.expired(d->taker, d->pipeline);
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

void mw_breaker_outage(mw_pipeline *p, const mw_policy *policy) {
    if (p->breaker == MW_OPEN) return;
    p->outages++;
    int64_t pause = mw_backoff_delay(&policy->backoff, p->outages, mw_pipeline_random(p));
    p->breaker = MW_OPEN;
    mw_timer_start(p->loop, &p->breaker_timer, pause, try_again);
    mw_log_begin(MW_WARN, "source paused");
    mw_log_text("pipeline", p->spec.name);
    mw_log_text("class", policy->name);
    mw_log_num("seconds", (double)pause / 1000);
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
