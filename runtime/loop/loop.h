/* loop.h - the event loop of a worker: file descriptors, timers, deferred calls, signals, wake-ups from
 * threads. libev behind a small face; the only header whose .c includes ev.h. Everything here belongs to the
 * loop's thread, except mw_wake_signal. Callbacks from the poll should only note and defer: what is deferred
 * starts from a flat stack after the poll (see docs/architecture.md). */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "loop/wheel.h"

typedef struct mw_loop mw_loop;

mw_loop *mw_loop_new(void);
void mw_loop_free(mw_loop *l); /* every watcher is stopped by then; NULL is fine */

void mw_loop_run(mw_loop *l); /* until mw_loop_stop */
void mw_loop_stop(mw_loop *l);
void mw_loop_before_wait(mw_loop *l, void (*hook)(void)); /* once a turn, before it sleeps */
void mw_loop_step(mw_loop *l, int64_t max_wait_ms);       /* one turn; waits at most that long */

uint64_t mw_loop_mono_ms(mw_loop *l); /* monotonic, cached once a turn */
int64_t mw_loop_wall_ms(mw_loop *l);  /* since 1970, for what is stored or shown; cached likewise */
uint64_t mw_loop_real_ms(mw_loop *l); /* monotonic, never virtual: goes with mw_timer_start_real */
void mw_loop_now_update(mw_loop *l);  /* after a long computation */

/* The virtual clock, for specs: both clocks stand still until they are advanced, and timers fire only then.
 * Descriptors, deferred calls and real timers go on in real time. It begins at the time it is; back in real
 * time the monotonic clock goes on from where it was moved to, so that timers that run keep their distance.
 */
void mw_loop_virtual(mw_loop *l, bool on);
bool mw_loop_is_virtual(const mw_loop *l);
void mw_loop_set_wall(mw_loop *l, int64_t wall_ms); /* virtual only */
/* To the next timer, but at most so far; what is due there fires in the next step. How far it went. */
int64_t mw_loop_advance(mw_loop *l, int64_t max_ms);
int64_t mw_loop_next_ms(const mw_loop *l); /* from now to the next timer; -1: there is none */

/* Whether a step would do something without time passing. What waits for the world outside says so: +1, and
 * -1 when it does not any more. */
bool mw_loop_pending(const mw_loop *l);
void mw_loop_outside(mw_loop *l, int by);

/* Timers: embed an mw_timer, stop it with mw_timer_stop before its owner goes. */
void mw_timer_start(mw_loop *l, mw_timer *t, int64_t delay_ms, void (*fire)(mw_timer *t));
/* Always real time: for what the world outside times, such as a library with a clock of its own. */
void mw_timer_start_real(mw_loop *l, mw_timer *t, int64_t delay_ms, void (*fire)(mw_timer *t));

/* Deferred: runs once, after the poll of this turn (or of the next, when deferred by a deferred call). */
typedef struct mw_deferred mw_deferred;
struct mw_deferred {
    mw_deferred *next, **back;
    void (*run)(mw_deferred *d);
};
void mw_defer(mw_loop *l, mw_deferred *d, void (*run)(mw_deferred *d)); /* twice is once */
/* The same at the end of the turn, behind everything that was deferred: for what gathers during it. */
void mw_defer_last(mw_loop *l, mw_deferred *d, void (*run)(mw_deferred *d));
void mw_deferred_cancel(mw_loop *l, mw_deferred *d); /* not queued is fine */

/* File descriptors. */
enum { MW_READ = 1, MW_WRITE = 2 };
typedef struct mw_io mw_io;
struct mw_io { /* zero-initialised is "not watching" */
    mw_loop *loop;
    void *watcher;
    void (*ready)(mw_io *io, int events);
};
void mw_io_start(mw_loop *l, mw_io *io, int fd, int events, void (*ready)(mw_io *io, int events));
void mw_io_stop(mw_io *io); /* before the fd is closed */

/* Signals. */
typedef struct mw_signal mw_signal;
struct mw_signal {
    mw_loop *loop;
    void *watcher;
    void (*caught)(mw_signal *s, int signum);
};
void mw_signal_start(mw_loop *l, mw_signal *s, int signum, void (*caught)(mw_signal *s, int signum));
void mw_signal_stop(mw_signal *s);

/* A wake-up that any thread may send; many sends before the loop looks are one call. */
typedef struct mw_wake mw_wake;
struct mw_wake {
    mw_io io;
    int fd;
    void (*woken)(mw_wake *w);
};
int mw_wake_start(mw_loop *l, mw_wake *w, void (*woken)(mw_wake *w)); /* 0, or -1 with errno */
void mw_wake_stop(mw_wake *w);
void mw_wake_signal(mw_wake *w); /* any thread */

#define mw_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
