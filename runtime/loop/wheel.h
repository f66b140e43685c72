/* wheel.h - a hierarchical timing wheel: a million timers for 32 bytes each, started and stopped in constant
 * time. Ticks are milliseconds on whatever clock the owner passes in; the wheel itself knows no clock. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct mw_timer mw_timer;
struct mw_timer { /* embed it in its owner; zero-initialised is "not running" */
    mw_timer *next, **back;
    uint64_t at;
    void (*fire)(mw_timer *t);
};

enum { MW_WHEEL_BITS = 8, MW_WHEEL_SLOTS = 1 << MW_WHEEL_BITS, MW_WHEEL_LEVELS = 4 };

typedef struct mw_wheel {
    uint64_t now;
    mw_timer *slots[MW_WHEEL_LEVELS][MW_WHEEL_SLOTS];
    uint64_t used[MW_WHEEL_LEVELS][MW_WHEEL_SLOTS / 64]; /* a set bit may be stale, a clear one is not */
    mw_timer *due;                                       /* expired, not fired yet */
} mw_wheel;

void mw_wheel_init(mw_wheel *w, uint64_t now);
void mw_wheel_add(mw_wheel *w, mw_timer *t, uint64_t at); /* t->fire is set; restarts a running timer */
void mw_timer_stop(mw_timer *t);                          /* a stopped timer is fine */
static inline bool mw_timer_running(const mw_timer *t) { return t->back != 0; }

/* Moves to `now` and fires what is due, at most `budget` timers; true when more are due still. */
bool mw_wheel_run(mw_wheel *w, uint64_t now, unsigned budget);

/* When mw_wheel_run must next be called: never later than the next timer, UINT64_MAX when there is none. */
uint64_t mw_wheel_next(const mw_wheel *w);

/* When the next timer itself falls due; UINT64_MAX when there is none. Looks at every timer near it: for
 * clocks that jump, not for every turn. */
uint64_t mw_wheel_first(const mw_wheel *w);
