#include "loop/loop.h"

#include <errno.h>
#include <ev.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { TIMERS_PER_TURN = 4096 }; /* a million timers due at once must not starve heartbeats */

struct mw_loop {
    struct ev_loop *ev;
    ev_timer clock; /* the one libev timer: when the wheel must run next */
    mw_wheel wheel, real_wheel;
    mw_deferred *deferred, **deferred_tail;
    mw_deferred *last, **last_tail;
    mw_deferred turn_end; /* a marker: what stands before it was deferred before this turn */
    uint64_t mono, real;  /* real: the system's; mono: the same with what was skipped, or virtual */
    int64_t wall, skipped;
    int outside; /* how many things wait for the world */
    bool stopping, is_virtual;
    void (*before_wait)(void);
};

static uint64_t clock_ms(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void mw_loop_now_update(mw_loop *l) {
    l->real = clock_ms(CLOCK_MONOTONIC);
    if (l->is_virtual) return;
    l->mono = (uint64_t)((int64_t)l->real + l->skipped);
    l->wall = (int64_t)clock_ms(CLOCK_REALTIME);
}

static void clock_fired(struct ev_loop *ev, ev_timer *t, int events) { (void)ev, (void)t, (void)events; }

mw_loop *mw_loop_new(void) {
    mw_loop *l = calloc(1, sizeof *l);
    if (!l) abort();
    l->ev = ev_loop_new(EVFLAG_AUTO |
                        EVFLAG_NOENV); /* not the default loop: that one reaps every child of the process */
    if (!l->ev) abort();
    mw_loop_now_update(l);
    mw_wheel_init(&l->wheel, l->mono);
    mw_wheel_init(&l->real_wheel, l->real);
    l->deferred_tail = &l->deferred;
    l->last_tail = &l->last;
    ev_timer_init(&l->clock, clock_fired, 0, 0);
    return l;
}

void mw_loop_free(mw_loop *l) {
    if (!l) return;
    ev_timer_stop(l->ev, &l->clock);
    ev_loop_destroy(l->ev);
    free(l);
}

uint64_t mw_loop_mono_ms(mw_loop *l) { return l->mono; }
int64_t mw_loop_wall_ms(mw_loop *l) { return l->wall; }
uint64_t mw_loop_real_ms(mw_loop *l) { return l->real; }
void mw_loop_stop(mw_loop *l) { l->stopping = true; }

static void append(mw_deferred ***tail, mw_deferred *d, void (*run)(mw_deferred *d)) {
    if (d->back) return;
    d->run = run;
    d->next = NULL;
    d->back = *tail;
    **tail = d;
    *tail = &d->next;
}

void mw_defer(mw_loop *l, mw_deferred *d, void (*run)(mw_deferred *d)) { append(&l->deferred_tail, d, run); }

void mw_defer_last(mw_loop *l, mw_deferred *d, void (*run)(mw_deferred *d)) { append(&l->last_tail, d, run); }

void mw_deferred_cancel(mw_loop *l, mw_deferred *d) {
    if (!d->back) return;
    *d->back = d->next;
    if (d->next)
        d->next->back = d->back;
    else if (l->deferred_tail == &d->next)
        l->deferred_tail = d->back;
    else
        l->last_tail = d->back;
    d->next = NULL;
    d->back = NULL;
}

/* Runs what stands in the list before this call; what those calls add waits for the next turn. */
static void run_list(mw_loop *l, mw_deferred **list, mw_deferred ***tail) {
    if (!*list) return;
    append(tail, &l->turn_end, NULL);
    while (*list != &l->turn_end) {
        mw_deferred *d = *list;
        mw_deferred_cancel(l, d);
        d->run(d);
    }
    mw_deferred_cancel(l, &l->turn_end);
}

/* ---- the virtual clock ---- */

bool mw_loop_is_virtual(const mw_loop *l) { return l->is_virtual; }

void mw_loop_virtual(mw_loop *l, bool on) {
    mw_loop_now_update(l);
    if (l->is_virtual && !on) l->skipped = (int64_t)(l->mono - l->real);
    l->is_virtual = on;
    mw_loop_now_update(l);
}

void mw_loop_set_wall(mw_loop *l, int64_t wall_ms) {
    if (l->is_virtual) l->wall = wall_ms;
}

int64_t mw_loop_next_ms(const mw_loop *l) {
    uint64_t first = mw_wheel_first(&l->wheel);
    if (first == UINT64_MAX) return -1;
    return first > l->mono ? (int64_t)(first - l->mono) : 0;
}

int64_t mw_loop_advance(mw_loop *l, int64_t max_ms) {
    if (!l->is_virtual) return 0;
    int64_t by = mw_loop_next_ms(l);
    if (by < 0 || by > max_ms) by = max_ms > 0 ? max_ms : 0;
    l->mono += (uint64_t)by;
    l->wall += by;
    return by;
}

bool mw_loop_pending(const mw_loop *l) {
    return l->deferred || l->last || l->wheel.due || l->outside > 0 || mw_wheel_next(&l->wheel) <= l->mono;
}

void mw_loop_outside(mw_loop *l, int by) { l->outside += by; }

/* ---- turns ---- */

static void wait_until(double *wait, uint64_t next, uint64_t now) {
    if (next == UINT64_MAX) return;
    double until = next > now ? (double)(next - now) / 1000 : 0;
    if (until < *wait) *wait = until;
}

static void arm_clock(mw_loop *l, int64_t max_wait_ms) {
    uint64_t next = mw_wheel_next(&l->wheel), real = mw_wheel_next(&l->real_wheel);
    double wait = max_wait_ms < 0 ? 3600 : (double)max_wait_ms / 1000;
    if (next != UINT64_MAX || real != UINT64_MAX) mw_loop_now_update(l);
    if (!l->is_virtual || next <= l->mono) wait_until(&wait, next, l->mono);
    wait_until(&wait, real, l->real);
    ev_timer_stop(l->ev, &l->clock);
    ev_now_update(l->ev);
    ev_timer_set(&l->clock, wait, 0);
    ev_timer_start(l->ev, &l->clock);
}

void mw_loop_before_wait(mw_loop *l, void (*hook)(void)) { l->before_wait = hook; }

void mw_loop_step(mw_loop *l, int64_t max_wait_ms) {
    if (l->before_wait) l->before_wait();
    if (l->deferred || l->last || max_wait_ms == 0) {
        ev_run(l->ev, EVRUN_NOWAIT);
    } else {
        arm_clock(l, max_wait_ms);
        ev_run(l->ev, EVRUN_ONCE);
    }
    mw_loop_now_update(l);
    mw_wheel_run(&l->wheel, l->mono, TIMERS_PER_TURN);
    mw_wheel_run(&l->real_wheel, l->real, TIMERS_PER_TURN);
    run_list(l, &l->deferred, &l->deferred_tail);
    run_list(l, &l->last, &l->last_tail);
}

void mw_loop_run(mw_loop *l) {
    l->stopping = false;
    while (!l->stopping) mw_loop_step(l, -1);
}

void mw_timer_start(mw_loop *l, mw_timer *t, int64_t delay_ms, void (*fire)(mw_timer *t)) {
    t->fire = fire;
    mw_wheel_add(&l->wheel, t, l->mono + (uint64_t)(delay_ms > 0 ? delay_ms : 0));
}

void mw_timer_start_real(mw_loop *l, mw_timer *t, int64_t delay_ms, void (*fire)(mw_timer *t)) {
    t->fire = fire;
    mw_wheel_add(&l->real_wheel, t, l->real + (uint64_t)(delay_ms > 0 ? delay_ms : 0));
}

/* ---- watchers ---- */

static void io_ready(struct ev_loop *ev, ev_io *w, int events) {
    (void)ev;
    mw_io *io = w->data;
    io->ready(io, (events & EV_READ ? MW_READ : 0) | (events & EV_WRITE ? MW_WRITE : 0));
}

void mw_io_start(mw_loop *l, mw_io *io, int fd, int events, void (*ready)(mw_io *io, int events)) {
    mw_io_stop(io);
    ev_io *w = malloc(sizeof *w);
    if (!w) abort();
    ev_io_init(w, io_ready, fd, (events & MW_READ ? EV_READ : 0) | (events & MW_WRITE ? EV_WRITE : 0));
    w->data = io;
    io->loop = l;
    io->watcher = w;
    io->ready = ready;
    ev_io_start(l->ev, w);
}

void mw_io_stop(mw_io *io) {
    if (!io->watcher) return;
    ev_io_stop(io->loop->ev, io->watcher);
    free(io->watcher);
    io->watcher = NULL;
}

static void signal_caught(struct ev_loop *ev, ev_signal *w, int events) {
    (void)ev, (void)events;
    mw_signal *s = w->data;
    s->caught(s, w->signum);
}

void mw_signal_start(mw_loop *l, mw_signal *s, int signum, void (*caught)(mw_signal *s, int signum)) {
    ev_signal *w = malloc(sizeof *w);
    if (!w) abort();
    ev_signal_init(w, signal_caught, signum);
    w->data = s;
    s->loop = l;
    s->watcher = w;
    s->caught = caught;
    ev_signal_start(l->ev, w);
}

void mw_signal_stop(mw_signal *s) {
    if (!s->watcher) return;
    ev_signal_stop(s->loop->ev, s->watcher);
    free(s->watcher);
    s->watcher = NULL;
}

static void wake_ready(mw_io *io, int events) {
    (void)events;
    mw_wake *w = mw_container_of(io, mw_wake, io);
    uint64_t count;
    if (read(w->fd, &count, sizeof count) < 0 && errno != EAGAIN) return;
    w->woken(w);
}

int mw_wake_start(mw_loop *l, mw_wake *w, void (*woken)(mw_wake *w)) {
    *w = (mw_wake){.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), .woken = woken};
    if (w->fd < 0) return -1;
    mw_io_start(l, &w->io, w->fd, MW_READ, wake_ready);
    return 0;
}

void mw_wake_stop(mw_wake *w) {
    if (!w->woken) return;
    mw_io_stop(&w->io);
    close(w->fd);
    *w = (mw_wake){0};
}

void mw_wake_signal(mw_wake *w) {
    uint64_t one = 1;
    while (write(w->fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}
