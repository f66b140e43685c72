#include "loop/wheel.h"

#include <string.h>

enum { BITS = MW_WHEEL_BITS, SLOTS = MW_WHEEL_SLOTS, LEVELS = MW_WHEEL_LEVELS };
static const uint64_t SPAN = 1ull << (BITS * LEVELS); /* 49 days; what lies beyond cascades again and again */

void mw_wheel_init(mw_wheel *w, uint64_t now) {
    memset(w, 0, sizeof *w);
    w->now = now;
}

static void link_in(mw_timer **head, mw_timer *t) {
    t->next = *head;
    if (t->next) t->next->back = &t->next;
    t->back = head;
    *head = t;
}

static void place(mw_wheel *w, mw_timer *t) {
    uint64_t at = t->at <= w->now ? w->now + 1 : t->at; /* never into the slot that is being emptied */
    if (at - w->now >= SPAN) at = w->now + SPAN - 1;
    uint64_t distance = at ^ w->now;
    int level = 0;
    while (level < LEVELS - 1 && (distance >> (BITS * (level + 1)))) level++;
    unsigned slot = (at >> (BITS * level)) & (SLOTS - 1);
    w->used[level][slot / 64] |= 1ull << (slot % 64);
    link_in(&w->slots[level][slot], t);
}

void mw_wheel_add(mw_wheel *w, mw_timer *t, uint64_t at) {
    mw_timer_stop(t);
    t->at = at;
    place(w, t);
}

void mw_timer_stop(mw_timer *t) {
    if (!t->back) return;
    *t->back = t->next;
    if (t->next) t->next->back = t->back;
    t->next = 0;
    t->back = 0;
}

static mw_timer *take_slot(mw_wheel *w, int level, unsigned slot) {
    mw_timer *list = w->slots[level][slot];
    w->slots[level][slot] = 0;
    w->used[level][slot / 64] &= ~(1ull << (slot % 64));
    return list;
}

/* Empties the slot that `now` stands on: into the due list, or down to a finer level. */
static void cascade(mw_wheel *w, int level) {
    mw_timer *t = take_slot(w, level, (w->now >> (BITS * level)) & (SLOTS - 1));
    while (t) {
        mw_timer *next = t->next;
        t->next = 0;
        t->back = 0;
        if (t->at <= w->now)
            link_in(&w->due, t);
        else
            place(w, t);
        t = next;
    }
}

static void move_to(mw_wheel *w, uint64_t tick) {
    uint64_t before = w->now;
    w->now = tick;
    for (int level = LEVELS - 1; level > 0; level--)
        if ((before >> (BITS * level)) != (tick >> (BITS * level))) cascade(w, level);
    cascade(w, 0);
}

/* The first used slot of a level strictly after `from`, or -1. Bits may be stale: the caller finds an empty
 * slot. */
static int next_used(const mw_wheel *w, int level, unsigned from) {
    for (unsigned i = from + 1; i < SLOTS;) {
        uint64_t word = w->used[level][i / 64] >> (i % 64);
        if (word) return (int)(i + (unsigned)__builtin_ctzll(word));
        i = (i / 64 + 1) * 64;
    }
    return -1;
}

/* The next tick at which something can happen: a level-0 slot falls due, or a higher slot cascades. */
static uint64_t next_event(const mw_wheel *w) {
    for (int level = 0; level < LEVELS; level++) {
        unsigned here = (w->now >> (BITS * level)) & (SLOTS - 1);
        int slot = next_used(w, level, here);
        uint64_t base = w->now >> (BITS * (level + 1)) << (BITS * (level + 1));
        if (slot >= 0) return base + ((uint64_t)slot << (BITS * level));
        /* wrapped slots of the top level lie in its next turn */
        if (level == LEVELS - 1)
            for (unsigned i = 0; i < SLOTS / 64; i++)
                if (w->used[level][i]) return base + SPAN;
    }
    return UINT64_MAX;
}

uint64_t mw_wheel_next(const mw_wheel *w) { return w->due ? w->now : next_event(w); }

static uint64_t earliest(const mw_timer *t) {
    uint64_t at = UINT64_MAX;
    for (; t; t = t->next)
        if (t->at < at) at = t->at;
    return at;
}

/* A level lies wholly before the next one. In the last one a far timer stands before its time: all are asked.
 */
uint64_t mw_wheel_first(const mw_wheel *w) {
    uint64_t first = UINT64_MAX;
    if (w->due) return w->now;
    for (int level = 0; level < LEVELS && first == UINT64_MAX; level++) {
        for (unsigned slot = 0; slot < SLOTS; slot++) {
            uint64_t at = earliest(w->slots[level][slot]);
            if (at < first) first = at;
        }
    }
    return first <= w->now ? w->now + 1 : first;
}

bool mw_wheel_run(mw_wheel *w, uint64_t now, unsigned budget) {
    for (;;) {
        while (w->due) {
            if (!budget--) return true;
            mw_timer *t = w->due;
            mw_timer_stop(t);
            t->fire(t);
        }
        uint64_t tick = next_event(w);
        if (tick > now) break;
        move_to(w, tick);
    }
    if (now > w->now) move_to(w, now); /* nothing lies between; new timers are placed from here */
    return false;
}
