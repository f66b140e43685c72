/* trial.c - canaries: a second generation handles a share of the messages, and both are counted. A message
 * counts once, by its first attempt: one that has failed before, on whichever code, says nothing new. */
#include <string.h>

#include "pipeline/defs.h"

/* ---- which messages ---- */

static uint64_t hash_of(const mw_delivery *d) {
    if (d->pipeline->spec.order == MW_ORDER_KEY && d->lane_key) return d->lane_key;
    uint64_t key = mw_message_lane(d->msg);
    if (key) return key;
    mw_parts parts;
    mw_message_parts(d->msg, &parts);
    return mw_hash64(parts.id, parts.id_len);
}

/* The salt changes from canary to canary: not always the same keys go first. */
bool mw_pipeline_would_try(const mw_pipeline *p, uint64_t hash) {
    if (!p->trial_below) return false;
    uint64_t both[2] = {hash, p->trial_salt};
    return mw_hash64(both, sizeof both) < p->trial_below;
}

mw_outlet *mw_trial_outlet(mw_pipeline *p, const mw_delivery *d) {
    if (!p->trial_below) return &p->main;
    return mw_pipeline_would_try(p, hash_of(d)) ? &p->trial : &p->main;
}

uint32_t mw_trial_quota(const mw_pipeline *p) {
    double places = p->trial_share * p->spec.concurrency;
    uint32_t whole = (uint32_t)places;
    return whole < places || !whole ? whole + 1 : whole;
}

/* ---- beginning and ending ---- */

void mw_pipeline_try(mw_pipeline *p, mw_pipeline_events events, uint32_t generation, double share,
                     uint64_t salt) {
    mw_pipeline_end_trial(p);
    p->trial = (mw_outlet){.pipeline = p, .events = events, .generation = generation};
    p->main.messages = p->main.failures = 0;
    p->trial_share = share;
    p->trial_salt = salt;
    p->trial_below = (uint64_t)(share * 18446744073709549568.0); /* the largest double below 2^64 */
    if (!p->trial_below) p->trial_below = 1;
}

void mw_pipeline_end_trial(mw_pipeline *p) {
    if (!p->trial_below) return;
    mw_delivery *first[MW_LEVELS];
    for (int level = 0; level < MW_LEVELS; level++) first[level] = p->trial.ready[level].first;
    mw_timer_stop(&p->trial.batch_timer);
    p->trial_below = 0;
    if (p->turn == &p->trial) p->turn = NULL;
    p->trial = (mw_outlet){.pipeline = p};
    for (int level = 0; level < MW_LEVELS; level++)
        for (mw_delivery *d = first[level], *next; d; d = next) {
            next = d->next;
            mw_delivery_make_ready(d);
        }
}

/* ---- counting ---- */

static mw_outlet *counted_at(const mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    if (!p->trial_below || !d->taker || d->attempt != 1) return NULL;
    if (d->taker == p->trial.events.owner) return &p->trial;
    return d->taker == p->main.events.owner ? &p->main : NULL;
}

void mw_trial_count(mw_delivery *d, bool failed) {
    mw_outlet *o = counted_at(d);
    if (!o) return;
    o->messages++;
    o->failures += failed;
}

void mw_trial_recount(mw_delivery *d) {
    mw_outlet *o = counted_at(d);
    if (o && o->failures < o->messages) o->failures++;
}

void mw_pipeline_trial(const mw_pipeline *p, mw_trial_view *out) {
    *out = (mw_trial_view){0};
    if (!p->trial_below) return;
    *out = (mw_trial_view){.generation = p->trial.generation,
                           .share = p->trial_share,
                           .messages = p->trial.messages,
                           .failures = p->trial.failures,
                           .old_messages = p->main.messages,
                           .old_failures = p->main.failures};
}

/* ---- the same settings? ---- */

static bool same_backoff(const mw_backoff *a, const mw_backoff *b) {
    if (a->kind != b->kind || a->base != b->base || a->cap != b->cap || a->jitter != b->jitter ||
        a->step_count != b->step_count)
        return false;
    for (uint32_t i = 0; i < a->step_count; i++)
        if (a->steps[i] != b->steps[i]) return false;
    return true;
}

static bool same_policies(const mw_pipeline_spec *a, const mw_pipeline_spec *b) {
    if (a->policy_count != b->policy_count) return false;
    for (uint32_t i = 0; i < a->policy_count; i++) {
        const mw_policy *x = &a->policies[i], *y = &b->policies[i];
        if (strcmp(x->name, y->name) != 0 || x->kind != y->kind || x->attempts != y->attempts ||
            x->max_age_ms != y->max_age_ms || !same_backoff(&x->backoff, &y->backoff))
            return false;
    }
    return true;
}

const char *mw_pipeline_differs(const mw_pipeline *p, const mw_pipeline_spec *b) {
    const mw_pipeline_spec *a = &p->spec;
    if (a->from != b->from || strcmp(a->channel, b->channel) != 0) return "from";
    if (a->dead != b->dead || strcmp(a->dead_channel, b->dead_channel) != 0) return "dead";
    if (strcmp(a->group, b->group) != 0) return "group";
    if (a->dedupe != b->dedupe || a->dedupe_ttl_ms != b->dedupe_ttl_ms) return "dedupe";
    if (a->order != b->order) return "order";
    if (a->own_key != b->own_key) return "key";
    if (a->from_start != b->from_start) return "start";
    if (a->concurrency != b->concurrency) return "concurrency";
    if (a->buffer_count != b->buffer_count || a->buffer_bytes != b->buffer_bytes) return "buffer";
    if (a->timeout_ms != b->timeout_ms) return "timeout";
    if (a->lease_ms != b->lease_ms) return "lease";
    if (a->on_dead != b->on_dead) return "on_dead";
    if (a->batch_size != b->batch_size || a->batch_wait_ms != b->batch_wait_ms) return "batch";
    return same_policies(a, b) ? NULL : "retry";
}
