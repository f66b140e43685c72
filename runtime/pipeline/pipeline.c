/* pipeline.c - the life of a pipeline: made, started, drained, closed; and the memory of its deliveries. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "core/host.h"
#include "pipeline/defs.h"

enum { SLAB = (32 << 10) / sizeof(mw_delivery) }; /* as many as fill a size of malloc's */

/* ---- making and checking ---- */

static mw_subscription subscription_of(const mw_pipeline_spec *s, mw_source *source) {
    return (mw_subscription){.channel = s->channel,
                             .group = s->group,
                             .order = (mw_order)s->order,
                             .own_key = s->own_key,
                             .from_start = s->from_start,
                             .exactly_once = s->exactly_once,
                             .start_kind = (mw_start_kind)s->start_kind,
                             .start_at = s->start_at,
                             .tiers_ms = s->tiers_ms,
                             .tier_count = s->tier_count,
                             .lease_ms = s->lease_ms,
                             .buffer_bytes = s->buffer_bytes,
                             .source = source};
}

int mw_pipeline_check(const mw_pipeline_spec *s, mw_error *e) {
    unsigned can = mw_link_face(s->from)->can;
    const char *driver = mw_link_face(s->from)->name;
    if (s->on_dead != MW_DEAD_CONTINUE && s->order == MW_ORDER_NONE)
        return mw_fail(e, MW_EUSAGE, false,
                       "on_dead holds keys, but order = \"none\" has none: set order = \"key\"");
    if (s->on_dead != MW_DEAD_CONTINUE && !(can & MW_CAN_PARK))
        return mw_fail(
            e, MW_EUSAGE, false,
            "on_dead = \"hold_key\" and \"dead_key\" need a broker that can park messages; %s cannot",
            driver);
    if (s->on_dead != MW_DEAD_CONTINUE && s->own_key)
        return mw_fail(e, MW_EUSAGE, false,
                       "on_dead = \"hold_key\" and \"dead_key\" go by the message's own key: leave out key = "
                       "..., or publish with a key");
    if (s->start_kind != MW_START_NONE && !(can & MW_CAN_SEEK))
        return mw_fail(
            e, MW_EUSAGE, false,
            "start at a time or an offset needs a broker that keeps what was handled, such as Kafka; %s "
            "knows \"oldest\" and \"newest\"",
            driver);
    if (s->exactly_once && !(can & (MW_CAN_EXACTLY | MW_CAN_ATOMIC)))
        return mw_fail(e, MW_EUSAGE, false, "exactly_once needs a broker with transactions; %s has none",
                       driver);
    if (s->exactly_once && s->dead != s->from)
        return mw_fail(
            e, MW_EUSAGE, false,
            "exactly_once: dead letters must be on the same connection, to be in the same transaction");
    if (s->exactly_once && s->dedupe && s->dedupe != s->from)
        return mw_fail(
            e, MW_EUSAGE, false,
            "exactly_once and dedupe in another store cannot be one transaction: leave out dedupe");
    if (s->tier_count && !(can & MW_CAN_TIERS))
        return mw_fail(e, MW_EUSAGE, false,
                       "retry.topics needs Kafka; %s keeps retries itself: use retry.backoff", driver);
    if (s->tier_count && s->order == MW_ORDER_SOURCE)
        return mw_fail(
            e, MW_EUSAGE, false,
            "retry.topics gives up the order that order = \"source\" promises: use retry.backoff, or "
            "another order");
    if (s->batch_size > 1 && s->order == MW_ORDER_SOURCE)
        return mw_fail(e, MW_EUSAGE, false,
                       "handle_batch with order = \"source\" would get one message at a time: use order = "
                       "\"key\" or handle");
    if (s->dedupe && !(mw_link_face(s->dedupe)->can & MW_CAN_DEDUPE))
        return mw_fail(e, MW_EUSAGE, false, "%s cannot keep dedupe records: name another store",
                       mw_link_face(s->dedupe)->name);
    mw_subscription source = subscription_of(s, NULL);
    return mw_link_check(s->from, &source, e);
}

static char *keep(char **at, const char *text) {
    char *here = *at;
    size_t n = strlen(text) + 1;
    memcpy(here, text, n);
    *at += n;
    return here;
}

/* Keeps copies of the texts that the spec points at. */
static void set_spec(mw_pipeline *p, const mw_pipeline_spec *spec) {
    char *at = malloc(strlen(spec->name) + strlen(spec->channel) + strlen(spec->group) +
                      strlen(spec->dead_channel) + 4);
    if (!at) abort();
    char *old = p->strings;
    p->strings = at;
    p->spec = *spec;
    p->spec.name = keep(&at, spec->name);
    p->spec.channel = keep(&at, spec->channel);
    p->spec.group = keep(&at, spec->group);
    p->spec.dead_channel = keep(&at, spec->dead_channel);
    free(old);
}

mw_pipeline *mw_pipeline_new(const mw_pipeline_spec *spec, mw_pipeline_events events, mw_error *e) {
    if (mw_pipeline_check(spec, e)) return NULL;
    mw_pipeline *p = calloc(1, sizeof *p);
    if (!p) abort();
    set_spec(p, spec);
    p->main = (mw_outlet){.pipeline = p, .events = events};
    p->trial = (mw_outlet){.pipeline = p};
    p->turn = &p->main;
    p->loop = mw_link_loop(spec->from);
    p->driver = mw_link_driver(spec->from);
    p->source.pipeline = p;
    p->tally = mw_tally_new();
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    p->random = mw_hash64(&now, sizeof now);
    return p;
}

void mw_pipeline_adopt(mw_pipeline *p, const mw_pipeline_spec *spec, mw_pipeline_events events) {
    mw_pipeline_end_trial(p);
    set_spec(p, spec);
    p->main.events = events;
    mw_source_maybe_resume(p); /* the window may be larger now */
    mw_outgoing_check(p);
    if (p->main.ready_count || p->unkeyed.first) mw_pipeline_wake(p);
}

static void told_nothing(void *owner, mw_pipeline *p) { (void)owner, (void)p; }

void mw_pipeline_disown(mw_pipeline *p, const void *owner) {
    if (p->trial.events.owner == owner) mw_pipeline_end_trial(p);
    if (p->main.events.owner != owner) return;
    p->main.events.ready = p->main.events.expired = told_nothing;
    p->main.events.owner = NULL;
    p->main.events.running = NULL;
}

void mw_pipeline_pause(mw_pipeline *p, bool pause) {
    p->stopped = p->tally->paused = pause;
    if (pause) return;
    mw_source_maybe_resume(p);
    mw_pipeline_wake(p);
}

bool mw_pipeline_paused(const mw_pipeline *p) { return p->stopped; }
void mw_pipeline_forget_pause(mw_pipeline *p) { p->tally->paused = false; }
bool mw_pipeline_draining(const mw_pipeline *p) { return p->draining; }

int mw_pipeline_start(mw_pipeline *p, mw_error *e) {
    mw_subscription s = subscription_of(&p->spec, &p->source);
    p->sub = p->driver->subscribe(mw_link_conn(p->spec.from), &s, e);
    if (!p->sub) return -1;
    p->tally = mw_tally_share(p->tally, p->spec.name, p->spec.channel);
    /* The process before was told so, or this one before it could start. */
    p->stopped = p->tally->paused = p->stopped || p->tally->paused;
    return 0;
}

void mw_pipeline_free(mw_pipeline *p) {
    if (!p) return;
    while (p->all) mw_delivery_free(p->all);
    mw_isolate_forget(p);
    mw_timer_stop(&p->main.batch_timer);
    mw_timer_stop(&p->trial.batch_timer);
    mw_timer_stop(&p->breaker_timer);
    mw_deferred_cancel(p->loop, &p->flush);
    uint32_t at = 0;
    for (mw_lane *l; (l = mw_map_next(&p->lanes, &at, NULL));) free(l);
    for (mw_lane *l = p->free_lanes, *next; l; l = next) {
        next = l->next_free;
        free(l);
    }
    mw_map_free(&p->lanes);
    mw_map_free(&p->marks);
    for (size_t i = 0; i < p->slabs.len / sizeof(void *); i++)
        free(((mw_delivery **)(void *)p->slabs.data)[i]);
    mw_buf_free(&p->slabs);
    mw_buf_free(&p->settlements);
    mw_tally_free(p->tally);
    free(p->strings);
    free(p);
}

/* ---- draining ---- */

/* What no handler has begun goes back to the broker; running handlers may finish. */
void mw_pipeline_drain(mw_pipeline *p) {
    if (p->draining) return;
    p->draining = true;
    if (!p->sub) {
        p->closed = true;
        p->main.events.closed(p->main.events.keeper, p);
        return;
    }
    p->driver->pause(p->sub);
    for (mw_delivery *d = p->all, *next; d; d = next) {
        next = d->all_next;
        if (d->state == MW_D_SETTLING || d->state == MW_D_RUNNING) continue;
        if (d->state == MW_D_READY)
            mw_delivery_unready(d);
        else if (d->state == MW_D_UNKEYED)
            mw_list_remove(&p->unkeyed, d);
        mw_timer_stop(&d->timer); /* of a held retry: it must not become ready while it is given back */
        mw_lane_forget(d);
        mw_settle_simple(d, MW_SETTLE_RELEASE);
    }
    mw_pipeline_flush(p);
    mw_pipeline_check_drained(p);
}

void mw_source_closed(mw_source *s) {
    mw_pipeline *p = s->pipeline;
    p->closed = true;
    p->sub = NULL;
    p->main.events.closed(p->main.events.keeper, p);
}

void mw_pipeline_abandon(mw_pipeline *p) {
    mw_sub *sub = p->sub;
    p->draining = p->unsubscribed = p->abandoned = true;
    p->settlements.len = 0;
    p->main.events.closed = told_nothing;
    for (mw_delivery *d = p->all; d; d = d->all_next) /* its next run must not find it taken */
        if (d->dedupe_key) mw_link_release(d->dedupe, d->dedupe_key, d->dedupe_len);
    if (sub) p->driver->unsubscribe(sub);
}

bool mw_pipeline_idle(mw_pipeline *p) {
    mw_depth depth = {0};
    if (p->all || !p->sub || !p->driver->depth(p->sub, &depth) || !depth.known) return false;
    if (depth.parked && !p->marks.count) return false; /* on their way back */
    return depth.ready == 0 && depth.delayed == 0 && depth.unsettled == 0;
}

/* ---- small questions ---- */

void mw_pipeline_set_generation(mw_pipeline *p, uint32_t generation) { p->main.generation = generation; }
const char *mw_pipeline_name(const mw_pipeline *p) { return p->spec.name; }
const mw_pipeline_spec *mw_pipeline_settings(const mw_pipeline *p) { return &p->spec; }
void mw_pipeline_counters(const mw_pipeline *p, mw_counters *out) { *out = p->tally->counters; }
uint32_t mw_pipeline_in_flight(const mw_pipeline *p) { return p->in_flight; }
uint32_t mw_pipeline_running(const mw_pipeline *p) { return p->running; }
mw_message *mw_delivery_message(const mw_delivery *d) { return d->msg; }
void mw_delivery_parts(const mw_delivery *d, mw_parts *out) { mw_message_parts(d->msg, out); }
void mw_delivery_known(const mw_delivery *d, mw_parts *out) { mw_message_known(d->msg, out); }

const char *mw_delivery_name(const mw_delivery *d, char space[MW_NAME_SPACE], size_t *len) {
    const mw_pipeline *p = d->pipeline;
    if (p->driver->locate) {
        *len = p->driver->locate(p->sub, d->tag, d->unit, space, MW_NAME_SPACE);
        return space;
    }
    mw_parts parts;
    mw_message_known(d->msg, &parts);
    *len = parts.id_len;
    return parts.id;
}
uint32_t mw_delivery_attempt(const mw_delivery *d) { return d->attempt; }
mw_pipeline *mw_delivery_pipeline(const mw_delivery *d) { return d->pipeline; }
bool mw_delivery_fenced(const mw_delivery *d) { return d->fenced; }
uint32_t mw_delivery_ledger(const mw_delivery *d) { return d->ledger_entry; }

void mw_outlet_wake(mw_outlet *o) { o->events.ready(o->events.owner, o->pipeline); }

void mw_pipeline_wake(mw_pipeline *p) {
    mw_outlet_wake(&p->main);
    if (p->trial_below) mw_outlet_wake(&p->trial);
}

void mw_pipeline_turn(mw_pipeline *p, const void *owner) {
    if (owner == p->main.events.owner)
        p->turn = &p->main;
    else
        p->turn = p->trial_below && owner == p->trial.events.owner ? &p->trial : NULL;
}

double mw_pipeline_random(mw_pipeline *p) { /* xorshift64*: jitter needs spread, not secrecy */
    p->random ^= p->random >> 12;
    p->random ^= p->random << 25;
    p->random ^= p->random >> 27;
    return (double)((p->random * 0x2545f4914f6cdd1du) >> 11) / 9007199254740992.0;
}

/* ---- deliveries ---- */

mw_delivery *mw_delivery_new(mw_pipeline *p) {
    if (!p->free_deliveries) {
        mw_delivery *slab = malloc(SLAB * sizeof *slab);
        if (!slab) abort();
        mw_buf_add(&p->slabs, &slab, sizeof slab);
        for (int i = SLAB - 1; i >= 0; i--) {
            slab[i].next = p->free_deliveries;
            p->free_deliveries = &slab[i];
        }
    }
    mw_delivery *d = p->free_deliveries;
    p->free_deliveries = d->next;
    memset(d, 0, sizeof *d);
    d->pipeline = p;
    d->all_next = p->all;
    d->all_back = &p->all;
    if (p->all) p->all->all_back = &d->all_next;
    p->all = d;
    return d;
}

void mw_delivery_drop_message(mw_delivery *d) {
    d->pipeline->in_flight_bytes -= mw_message_size(d->msg);
    mw_message_unref(d->msg);
    d->msg = NULL;
}

void mw_delivery_free(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    mw_timer_stop(&d->timer);
    if (d->on_ledger) mw_isolate_end(d);
    if (d->outgoing) mw_outgoing_discard(d);
    p->in_flight--;
    p->handled -= d->handled;
    if (d->msg) mw_delivery_drop_message(d);
    mw_text_unref(d->first_error);
    mw_text_unref(d->error);
    free(d->dedupe_key);
    *d->all_back = d->all_next;
    if (d->all_next) d->all_next->all_back = d->all_back;
    d->pipeline = NULL;
    d->next = p->free_deliveries;
    p->free_deliveries = d;
    mw_isolate_settled(d);
    if (p->draining) mw_pipeline_check_drained(p);
}

void mw_list_push(mw_list *l, mw_delivery *d) {
    d->next = NULL;
    d->prev = l->last;
    if (l->last)
        l->last->next = d;
    else
        l->first = d;
    l->last = d;
}

void mw_list_remove(mw_list *l, mw_delivery *d) {
    if (d->prev)
        d->prev->next = d->next;
    else
        l->first = d->next;
    if (d->next)
        d->next->prev = d->prev;
    else
        l->last = d->prev;
    d->next = d->prev = NULL;
}
