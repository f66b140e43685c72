#include "pipeline/insight.h"

#include "pipeline/defs.h"

static int64_t until(const mw_pipeline *p, const mw_timer *t) {
    if (!mw_timer_running(t)) return -1;
    uint64_t now = mw_loop_mono_ms(p->loop);
    return t->at > now ? (int64_t)(t->at - now) : 0;
}

static int64_t sooner(int64_t a, int64_t b) { return a < 0 || (b >= 0 && b < a) ? b : a; }

static void count(const mw_delivery *d, mw_insight *out) {
    switch ((mw_delivery_state)d->state) {
    case MW_D_UNKEYED:
    case MW_D_READY: out->ready++; break;
    case MW_D_WAITING: out->waiting++; break;
    case MW_D_RUNNING: break; /* p->running counts handlers, batches as one */
    case MW_D_SETTLING: out->settling++; break;
    case MW_D_HELD:
        out->held++;
        out->next_retry_ms = sooner(out->next_retry_ms, until(d->pipeline, &d->timer));
        break;
    }
}

static void count_keys(const mw_pipeline *p, mw_insight *out) {
    uint32_t at = 0;
    for (void *mark; (mark = mw_map_next(&p->marks, &at, NULL));)
        if ((mw_mark)(uintptr_t)mark == MW_MARK_HOLD)
            out->held_keys++;
        else
            out->dead_keys++;
    at = 0;
    for (mw_lane *l; (l = mw_map_next(&p->lanes, &at, NULL));) out->parked_lanes += l->held;
}

const mw_tally *mw_pipeline_look(mw_pipeline *p) {
    mw_insight *out = &p->tally->look;
    uint64_t mono = mw_loop_mono_ms(p->loop);
    int64_t wall = mw_loop_wall_ms(p->loop), oldest = 0;
    *out = (mw_insight){.in_flight = p->in_flight,
                        .running = p->running,
                        .bytes = p->in_flight_bytes,
                        .next_retry_ms = -1,
                        .oldest_age_ms = -1,
                        .breaker = (uint32_t)p->breaker,
                        .breaker_left_ms = until(p, &p->breaker_timer),
                        .paused = p->stopped,
                        .full = mw_source_held(p) >= p->spec.buffer_count ||
                                p->in_flight_bytes >= p->spec.buffer_bytes,
                        .draining = p->draining,
                        .generation = p->main.generation};
    if (!p->sub || !p->driver->depth(p->sub, &out->depth)) out->depth = (mw_depth){0};
    for (const mw_delivery *d = p->all; d; d = d->all_next) {
        mw_parts parts;
        count(d, out);
        if (!d->msg) continue;
        mw_message_known(d->msg, &parts);
        if (!oldest || parts.time_ms < oldest) oldest = parts.time_ms;
    }
    count_keys(p, out);
    if (out->depth.oldest_ms && (!oldest || out->depth.oldest_ms < oldest)) oldest = out->depth.oldest_ms;
    if (oldest) out->oldest_age_ms = wall > oldest ? wall - oldest : 0;
    if (out->depth.next_due_ms) {
        int64_t left = out->depth.next_due_ms - wall;
        out->next_retry_ms = sooner(out->next_retry_ms, left > 0 ? left : 0);
    }
    mw_tally_refresh(p->tally, mono);
    p->tally->looked_ms = mono;
    return p->tally;
}

void mw_lane_look(const mw_pipeline *p, uint64_t lane, mw_lane_view *out) {
    const mw_lane *l = mw_map_get(&p->lanes, lane);
    *out = (mw_lane_view){.lane = lane, .mark = (mw_mark)(uintptr_t)mw_map_get(&p->marks, lane)};
    if (!l) return;
    out->parked = l->held;
    out->holder = l->current;
    out->first = l->first;
    out->waiting = l->count;
}

static const char *fate_of(const mw_delivery *d) {
    switch ((mw_settle_op)d->op) {
    case MW_SETTLE_ACK: return d->dead_letter ? "dead letter" : "ack";
    case MW_SETTLE_RETRY: return "retry";
    case MW_SETTLE_PARK: return "park";
    case MW_SETTLE_RELEASE: return "release";
    }
    return NULL;
}

void mw_delivery_look(const mw_delivery *d, mw_delivery_view *out) {
    static const char *const states[] = {"unkeyed", "waiting", "ready", "running", "held", "settling"};
    const mw_pipeline *p = d->pipeline;
    *out = (mw_delivery_view){.state = states[d->state],
                              .attempt = d->attempt,
                              .lane = d->lane_key,
                              .since_ms = -1,
                              .left_ms = -1,
                              .error = d->error ? d->error : d->first_error,
                              .fenced = d->fenced};
    mw_message_parts(d->msg, &out->parts);
    if (d->state == MW_D_RUNNING) {
        out->since_ms = (int64_t)(mw_loop_mono_ms(p->loop) - d->taken);
    } else if (d->state == MW_D_HELD || d->state == MW_D_SETTLING) {
        out->left_ms = until(p, &d->timer);
    }
    if (d->state == MW_D_SETTLING) out->fate = fate_of(d);
}

const mw_delivery *mw_delivery_behind(const mw_delivery *d) {
    return d->state == MW_D_WAITING ? d->next : NULL;
}

const mw_delivery *mw_pipeline_each(const mw_pipeline *p, const mw_delivery *d) {
    d = d ? d->all_next : p->all;
    while (d && !d->msg) d = d->all_next;
    return d;
}

size_t mw_pipeline_places(mw_pipeline *p, mw_place *out, size_t max) {
    return p->sub && p->driver->places ? p->driver->places(p->sub, out, max) : 0;
}
