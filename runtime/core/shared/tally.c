#include "core/shared/tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/shared/shared.h"

static bool is_shared(const mw_tally *t) {
    mw_shared_slot *s = mw_shared_mine();
    return s && t >= s->tallies && t < s->tallies + MW_TALLIES;
}

uint16_t mw_tally_place(const mw_tally *t) {
    return (uint16_t)(is_shared(t) ? t - mw_shared_mine()->tallies : MW_TALLIES);
}

static bool is_free(const mw_tally *t) { return t->state == MW_TALLY_CLOSED || t->state == MW_TALLY_LEFT; }

/* A pipeline that a reload has changed leaves two under its name: the one that was in use last counts. */
static bool is_later(const mw_tally *a, const mw_tally *b) {
    if (a->state != b->state) return a->state == MW_TALLY_LEFT;
    return a->look.generation > b->look.generation;
}

/* The one that stands under its name, else an unused one, else one whose pipeline has ended. */
static mw_tally *find(mw_shared_slot *s, const char *name) {
    mw_tally *own = NULL, *unused = NULL, *closed = NULL;
    for (uint32_t i = 0; i < MW_TALLIES; i++) {
        mw_tally *t = &s->tallies[i];
        bool named = is_free(t) && strncmp(t->name, name, MW_TALLY_TEXT - 1) == 0;
        if (named && (!own || is_later(t, own))) own = t;
        if (t->state == MW_TALLY_UNUSED && !unused) unused = t;
        if (is_free(t)) closed = t;
    }
    if (own) return own;
    mw_tally *t = unused ? unused : closed;
    if (t) memset(t, 0, sizeof *t);
    return t;
}

mw_tally *mw_tally_new(void) {
    mw_tally *t = calloc(1, sizeof *t);
    if (!t) abort();
    return t;
}

mw_tally *mw_tally_share(mw_tally *own, const char *name, const char *channel) {
    mw_shared_slot *s = mw_shared_mine();
    mw_tally *t = s ? find(s, name) : NULL;
    if (!t) return own;
    free(own);
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->channel, sizeof t->channel, "%s", channel);
    __atomic_store_n(&t->state, MW_TALLY_OPEN, __ATOMIC_RELEASE);
    return t;
}

void mw_tally_free(mw_tally *t) {
    if (!is_shared(t)) {
        free(t);
        return;
    }
    mw_tally_leave(t);
    __atomic_store_n(&t->state, MW_TALLY_CLOSED, __ATOMIC_RELEASE);
}

void mw_tally_leave(mw_tally *t) {
    t->look = (mw_insight){.next_retry_ms = -1,
                           .oldest_age_ms = -1,
                           .breaker_left_ms = -1,
                           .paused = t->paused,
                           .generation = t->look.generation};
    __atomic_store_n(&t->state, MW_TALLY_LEFT, __ATOMIC_RELEASE);
}

void mw_tally_refresh(mw_tally *t, uint64_t mono_ms) {
    t->look.rate = mw_rate_per_second(&t->rate, mono_ms, t->counters.handled);
    t->look.p50 = mw_timing_quantile(&t->timing, mono_ms, 0.5);
    t->look.p99 = mw_timing_quantile(&t->timing, mono_ms, 0.99);
}
