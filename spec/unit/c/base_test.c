/* base_test.c - runtime/base where it calls back or needs the process to itself: the timing wheel and the map
 * against models, the loop, log lines as they reach stderr, shared texts, random numbers across a fork. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "loop/loop.h"
#include "base/text.h"
#include "base/uuid.h"
#include "loop/wheel.h"
#include "core/acks.h"
#include "check.h"

/* ---- the wheel against a model: every timer fires once, not early, not late ---- */

typedef struct model_timer {
    mw_timer timer;
    uint64_t due; /* when it must fire: UINT64_MAX when it is not running */
    uint32_t fired;
} model_timer;

static mw_wheel wheel;
static uint64_t clock_now, last_fired_at;

static void model_start(model_timer *m, uint64_t at) {
    mw_wheel_add(&wheel, &m->timer, at);
    m->due = at > wheel.now ? at : wheel.now + 1; /* what is past is due at the next tick */
}

static void model_stop(model_timer *m) {
    mw_timer_stop(&m->timer);
    m->due = UINT64_MAX;
}

static void model_fire(mw_timer *t) {
    model_timer *m = mw_container_of(t, model_timer, timer);
    CHECK(m->due != UINT64_MAX, "a stopped timer fired");
    CHECK(!mw_timer_running(t), "a firing timer still counts as running");
    EQUAL(m->due, wheel.now); /* the wheel steps through time: not one tick early or late */
    CHECK(wheel.now >= last_fired_at, "out of order: %llu after %llu", (unsigned long long)wheel.now,
          (unsigned long long)last_fired_at);
    last_fired_at = wheel.now;
    m->fired++;
    m->due = UINT64_MAX;
}

static uint64_t earliest(const model_timer *m, int n) {
    uint64_t first = UINT64_MAX;
    for (int i = 0; i < n; i++)
        if (m[i].due < first) first = m[i].due;
    return first;
}

static uint64_t some_delay(void) {
    static const uint64_t spans[] = {1,     3,       256,        300,        65536,
                                     70000, 1 << 24, 1ull << 32, 1ull << 33, 1ull << 40};
    return rnd(spans[rnd(sizeof spans / sizeof *spans)]);
}

static void wheel_random(void) {
    enum { N = 200, STEPS = 20000 };
    static model_timer m[N];
    for (int round = 0; round < 20; round++) {
        memset(m, 0, sizeof m);
        for (int i = 0; i < N; i++) {
            m[i].timer.fire = model_fire;
            m[i].due = UINT64_MAX;
        }
        static const uint64_t starts[] = {0, 1, 255, 256, 0xffffff, 0xffffffff, 0x100000000, 0xfffffffffe};
        clock_now = round < 8 ? starts[round] : rnd(1ull << 44);
        last_fired_at = 0;
        mw_wheel_init(&wheel, clock_now);
        for (int step = 0; step < STEPS / 20; step++) {
            model_timer *t = &m[rnd(N)];
            switch (rnd(4)) {
            case 0:
            case 1: model_start(t, clock_now + some_delay()); break;
            case 2: model_stop(t); break;
            default: {
                uint64_t next = mw_wheel_next(&wheel), first = earliest(m, N);
                CHECK(next <= first, "next() is %llu, a timer is due at %llu", (unsigned long long)next,
                      (unsigned long long)first);
                CHECK(next > wheel.now, "next() lies in the past");
                if (first != UINT64_MAX) EQUAL(first, mw_wheel_first(&wheel));
                clock_now = rnd(3) && next != UINT64_MAX ? next + rnd(3) : clock_now + some_delay();
                mw_wheel_run(&wheel, clock_now, UINT32_MAX);
                for (int i = 0; i < N; i++)
                    CHECK(m[i].due > clock_now, "timer %d of %llu did not fire by %llu", i,
                          (unsigned long long)m[i].due, (unsigned long long)clock_now);
            }
            }
        }
    }
}

static void wheel_far_future(void) {
    static const uint64_t delays[] = {
        (1ull << 32) - 1,  1ull << 32,       (1ull << 32) + 1, (1ull << 32) + 12345,
        (1ull << 33) + 99, (1ull << 40) + 7, 1ull << 45};
    static const uint64_t starts[] = {0, 1, 0x1000001, 0xffffffff, 0x1fffffff0};
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (size_t i = 0; i < sizeof delays / sizeof *delays; i++) {
            model_timer m = {.timer.fire = model_fire};
            last_fired_at = 0;
            mw_wheel_init(&wheel, starts[s]);
            model_start(&m, starts[s] + delays[i]);
            int wakes = 0;
            while (!m.fired && wakes++ < 100000) { /* as the loop does: sleep until next(), run */
                uint64_t next = mw_wheel_next(&wheel);
                CHECK(next <= m.due, "next() is late");
                if (next == UINT64_MAX) break;
                mw_wheel_run(&wheel, next, 100);
            }
            EQUAL(1, m.fired);
            EQUAL(starts[s] + delays[i], wheel.now);
            CHECK(mw_wheel_next(&wheel) == UINT64_MAX, "an empty wheel wants to run");
            CHECK(mw_wheel_first(&wheel) == UINT64_MAX, "an empty wheel has a timer");
        }
}

/* ---- what a timer may do while it fires ---- */

static model_timer first, second, third;
static int restarts;

static void stop_second(mw_timer *t) {
    model_fire(t);
    model_stop(t == &first.timer ? &second : &first);
}

static void wheel_stop_inside_fire(void) {
    for (int far = 0; far < 2; far++) { /* both due at one tick: the first to fire stops the other */
        first = second = third = (model_timer){.due = UINT64_MAX};
        first.timer.fire = second.timer.fire = stop_second;
        third.timer.fire = model_fire;
        last_fired_at = 0;
        mw_wheel_init(&wheel, 100);
        uint64_t at = far ? 70000 : 110;
        model_start(&first, at);
        model_start(&second, at);
        model_start(&third, at);
        CHECK(!mw_wheel_run(&wheel, at, 100), "more is said to be due");
        EQUAL(1, first.fired + second.fired);
        EQUAL(1, third.fired);
        CHECK(!mw_timer_running(&first.timer) && !mw_timer_running(&second.timer), "still running");
    }
}

static void restart_now(mw_timer *t) {
    model_fire(t);
    if (++restarts < 5) model_start(mw_container_of(t, model_timer, timer), clock_now);
}

static void restart_later(mw_timer *t) {
    model_fire(t);
    if (++restarts < 5) model_start(mw_container_of(t, model_timer, timer), wheel.now + 300);
}

static void wheel_restart_inside_fire(void) {
    first = (model_timer){.timer.fire = restart_now};
    restarts = 0;
    last_fired_at = 0;
    clock_now = 1000;
    mw_wheel_init(&wheel, 990);
    model_start(&first, 1000);
    mw_wheel_run(&wheel, clock_now, 1000); /* "at once" is the next tick: no endless loop in one run */
    EQUAL(1, first.fired);
    EQUAL(1001, mw_wheel_next(&wheel));
    for (clock_now = 1001; clock_now < 1010; clock_now++) mw_wheel_run(&wheel, clock_now, 1000);
    EQUAL(5, first.fired);

    first = (model_timer){.timer.fire = restart_later};
    restarts = 0;
    mw_wheel_init(&wheel, 0);
    last_fired_at = 0;
    model_start(&first, 10);
    mw_wheel_run(&wheel, 10 + 4 * 300,
                 1000); /* a late run catches up with every one of them, in time's order */
    EQUAL(5, first.fired);
    EQUAL(10 + 4 * 300, wheel.now);
}

static void wheel_budget(void) {
    enum { N = 1000 };
    static model_timer m[N];
    memset(m, 0, sizeof m);
    mw_wheel_init(&wheel, 0);
    last_fired_at = 0;
    for (int i = 0; i < N; i++) {
        m[i].timer.fire = model_fire;
        model_start(&m[i], 1 + (uint64_t)i % 7);
    }
    int turns = 1;
    while (mw_wheel_run(&wheel, 10, 64)) {
        uint32_t fired = 0;
        for (int i = 0; i < N; i++) fired += m[i].fired;
        EQUAL(64 * turns, fired);
        CHECK(mw_wheel_next(&wheel) <= 10, "what is due does not keep the loop awake");
        turns++;
    }
    EQUAL(N / 64 + 1, turns);
    for (int i = 0; i < N; i++) EQUAL(1, m[i].fired);
}

static void wheel_million(void) {
    enum { N = 1000000 };
    model_timer *m = calloc(N, sizeof *m);
    if (!m) abort();
    mw_wheel_init(&wheel, 5000);
    last_fired_at = 0;
    for (int i = 0; i < N; i++) {
        m[i].timer.fire = model_fire;
        model_start(&m[i], 5000 + rnd(1 << 20));
    }
    for (int i = 0; i < N; i += 3) model_stop(&m[i]);
    while (mw_wheel_next(&wheel) != UINT64_MAX) mw_wheel_run(&wheel, mw_wheel_next(&wheel), UINT32_MAX);
    uint32_t fired = 0, wrong = 0;
    for (int i = 0; i < N; i++) {
        fired += m[i].fired;
        wrong += m[i].fired != (i % 3 != 0);
    }
    EQUAL(N - (N + 2) / 3, fired);
    EQUAL(0, wrong);
    free(m);
}

/* ---- the map against a plain table ---- */

static void map_random(void) {
    enum { KEYS = 3000, STEPS = 200000 };
    static uint64_t key[KEYS];
    static uintptr_t value[KEYS];
    memset(value, 0, sizeof value);
    mw_map map = {0};
    CHECK(!mw_map_get(&map, 5) && !mw_map_remove(&map, 5), "an empty map has something");
    uint32_t count = 0;
    for (int i = 0; i < KEYS; i++) /* small, scattered, and apart by powers of two: all that probes badly */
        key[i] = i % 3 == 0 ? (uint64_t)i + 1 : i % 3 == 1 ? rnd(UINT64_MAX) | 1 : ((uint64_t)i + 1) << 40;
    for (int step = 0; step < STEPS; step++) {
        size_t i = rnd(KEYS);
        uintptr_t before = value[i];
        if (rnd(100) < (step / 40000 % 2 ? 35u : 65u)) { /* grows and shrinks in turn */
            value[i] = 1 + rnd(1000);
            mw_map_put(&map, key[i], (void *)value[i]);
            count += !before;
        } else {
            CHECK((uintptr_t)mw_map_remove(&map, key[i]) == before, "remove returned something else");
            value[i] = 0;
            count -= before != 0;
        }
        EQUAL(count, map.count);
        if (step % 1000 == 0)
            for (size_t k = 0; k < KEYS; k++)
                CHECK((uintptr_t)mw_map_get(&map, key[k]) == value[k], "key %zu at step %d", k, step);
    }
    uint32_t at = 0, seen = 0;
    uint64_t k;
    for (void *v; (v = mw_map_next(&map, &at, &k)); seen++)
        CHECK(mw_map_get(&map, k) == v, "walk differs from get");
    EQUAL(count, seen);
    mw_map_free(&map);
    CHECK(!map.count && !mw_map_get(&map, key[0]), "a freed map is not empty");
}

/* ---- the low-water mark against a model ---- */

static void acks_random(void) {
    enum { N = 4000 };
    static uint64_t offset[N];
    static bool done[N];
    for (int round = 0; round < 30; round++) {
        uint64_t start = rnd(100000), next = start + rnd(5);
        mw_acks *a = mw_acks_new(start);
        EQUAL(start, mw_acks_mark(a));
        EQUAL(0, mw_acks_span(a));
        int added = 0, low = 0;
        uint32_t pending = 0;
        memset(done, 0, sizeof done);
        while (added < N || pending) {
            if (added < N && rnd(2)) {
                offset[added++] = next;
                CHECK(mw_acks_add(a, next), "refused");
                CHECK(!mw_acks_add(a, next), "took an offset twice");
                CHECK(next == 0 || !mw_acks_add(a, next - 1), "took a falling offset");
                next += 1 + (rnd(4) ? 0 : rnd(50)); /* gaps */
                pending++;
            } else if (added > low) {
                int i = low + (int)rnd((uint64_t)(added - low));
                if (rnd(3) == 0) i = low;
                CHECK(mw_acks_done(a, offset[i]) == !done[i], "done twice, or not at all");
                pending -= !done[i];
                done[i] = true;
                CHECK(!mw_acks_done(a, offset[i]), "done twice");
            }
            CHECK(!mw_acks_done(a, next + 7), "an unknown offset is done");
            while (low < added && done[low]) low++;
            EQUAL(low ? offset[low - 1] + 1 : start, mw_acks_mark(a));
            EQUAL(pending, mw_acks_pending(a));
            EQUAL(added && offset[added - 1] >= mw_acks_mark(a) ? offset[added - 1] + 1 - mw_acks_mark(a) : 0,
                  mw_acks_span(a));
            if (added == N && low == N) break;
        }
        mw_acks_free(a);
    }
    mw_acks *a = mw_acks_new(10);
    CHECK(!mw_acks_add(a, 9), "took an offset below the mark");
    CHECK(!mw_acks_add(a, 1ull << 63), "took an offset that the table cannot hold");
    CHECK(!mw_acks_done(a, 10), "done before it was added");
    CHECK(mw_acks_add(a, 10) && mw_acks_done(a, 10), "the start itself is an offset");
    mw_acks_free(a);
    mw_acks_free(NULL);
}

/* ---- the loop ---- */

static mw_loop *loop;
static char trace[256];
static void note(const char *what) { strncat(trace, what, sizeof trace - strlen(trace) - 1); }

typedef struct job {
    mw_deferred d;
    const char *name;
    struct job *then, *cancel;
} job;

static void run_job(mw_deferred *d) {
    job *j = mw_container_of(d, job, d);
    note(j->name);
    if (j->then) mw_defer(loop, &j->then->d, run_job);
    if (j->cancel) mw_deferred_cancel(loop, &j->cancel->d);
}

static void expect_trace(const char *expected) {
    CHECK(strcmp(trace, expected) == 0, "\"%s\", expected \"%s\"", trace, expected);
    trace[0] = 0;
}

static void loop_deferred(void) {
    job a = {.name = "a"}, b = {.name = "b"}, c = {.name = "c"}, d = {.name = "d"};
    mw_defer(loop, &a.d, run_job);
    mw_defer(loop, &b.d, run_job);
    mw_defer(loop, &a.d, run_job); /* twice is once */
    mw_defer(loop, &c.d, run_job);
    mw_deferred_cancel(loop, &b.d);
    mw_deferred_cancel(loop, &b.d);
    mw_defer(loop, &b.d, run_job);
    mw_loop_step(loop, 0);
    expect_trace("acb");
    mw_loop_step(loop, 0);
    expect_trace("");

    a.then = &a; /* defers itself: once a turn, or no poll would ever come */
    b.then = &d;
    mw_defer(loop, &a.d, run_job);
    mw_defer(loop, &b.d, run_job);
    mw_loop_step(loop, 1000); /* does not wait while something is deferred */
    expect_trace("ab");
    mw_loop_step(loop, 1000);
    expect_trace("ad");
    a.then = NULL;
    mw_loop_step(loop, 1000);
    expect_trace("a");

    b = (job){.name = "b"};
    a.cancel = &b; /* cancelled by the one before it, in the same turn */
    mw_defer(loop, &a.d, run_job);
    mw_defer(loop, &b.d, run_job);
    mw_defer(loop, &c.d, run_job);
    mw_loop_step(loop, 0);
    expect_trace("ac");
    c.cancel = &d; /* the last of the queue: the tail must survive */
    a.cancel = NULL;
    mw_defer(loop, &c.d, run_job);
    mw_defer(loop, &d.d, run_job);
    mw_loop_step(loop, 0);
    mw_defer(loop, &a.d, run_job);
    mw_loop_step(loop, 0);
    expect_trace("ca");
}

static void run_last(mw_deferred *d) {
    job *j = mw_container_of(d, job, d);
    note(j->name);
    if (j->then) mw_defer_last(loop, &j->then->d, run_last);
}

static void defer_from_deferred(mw_deferred *d) {
    job *j = mw_container_of(d, job, d);
    note(j->name);
    mw_defer_last(loop, &j->then->d, run_last);
}

static void loop_deferred_last(void) {
    job a = {.name = "a"}, b = {.name = "b"}, x = {.name = "x"}, y = {.name = "y"}, z = {.name = "z"};
    mw_defer_last(loop, &x.d, run_last);
    mw_defer(loop, &a.d, run_job);
    CHECK(mw_loop_pending(loop), "something is to be done");
    mw_loop_step(loop, 1000); /* does not wait */
    expect_trace("ax");
    b.then = &y; /* from a deferred call: still in this turn, behind everything */
    mw_defer(loop, &b.d, defer_from_deferred);
    mw_defer(loop, &a.d, run_job);
    mw_loop_step(loop, 1000);
    expect_trace("bay");
    x.then = &z; /* from one of them: in the next turn */
    mw_defer_last(loop, &x.d, run_last);
    mw_loop_step(loop, 0);
    expect_trace("x");
    mw_loop_step(loop, 1000);
    expect_trace("z");
    x.then = NULL;
    mw_defer_last(loop, &x.d, run_last);
    mw_defer_last(loop, &y.d, run_last);
    mw_deferred_cancel(loop, &y.d); /* the tail must survive, of both lists */
    mw_defer(loop, &a.d, run_job);
    mw_defer(loop, &b.d, run_job);
    mw_deferred_cancel(loop, &b.d);
    mw_defer_last(loop, &z.d, run_last);
    mw_defer(loop, &b.d, run_job);
    b.then = NULL;
    mw_loop_step(loop, 0);
    expect_trace("abxz");
    CHECK(!mw_loop_pending(loop), "nothing is left");
}

static uint64_t real_ms(void) {
    mw_loop_now_update(loop);
    return mw_loop_mono_ms(loop);
}

static int timers_fired;
static void timer_fired(mw_timer *t) {
    (void)t;
    timers_fired++;
}

static void loop_timers(void) {
    mw_timer t = {0}, never = {0}, past = {0};
    timers_fired = 0;
    uint64_t began = real_ms();
    mw_timer_start(loop, &t, 30, timer_fired);
    mw_timer_start(loop, &never, 30, timer_fired);
    mw_timer_stop(&never);
    while (!timers_fired) mw_loop_step(loop, -1);
    uint64_t took = mw_loop_mono_ms(loop) - began;
    CHECK(took >= 30 && took < 3000, "took %llu ms", (unsigned long long)took);
    EQUAL(1, timers_fired);
    CHECK(!mw_timer_running(&t) && !mw_timer_running(&never), "still running");
    mw_timer_start(loop, &past, -500, timer_fired);
    mw_loop_step(loop, 1000);
    mw_loop_step(loop, 1000);
    EQUAL(2, timers_fired);
    began = real_ms();
    mw_loop_step(loop, 20);
    took = mw_loop_mono_ms(loop) - began;
    CHECK(took >= 15 && took < 3000, "an idle step of 20 ms took %llu", (unsigned long long)took);
}

static void stop_loop(mw_timer *t) {
    (void)t;
    mw_loop_stop(loop);
}
static int hooks;
static void hook(void) { hooks++; }

static void loop_run_and_stop(void) {
    mw_timer t = {0};
    hooks = 0;
    mw_loop_before_wait(loop, hook);
    mw_timer_start(loop, &t, 5, stop_loop);
    mw_loop_run(loop);
    CHECK(hooks > 0, "the hook was not called before a wait");
    mw_loop_before_wait(loop, NULL);
    mw_timer_start(loop, &t, 5, stop_loop);
    mw_loop_run(loop); /* may be run again */
    CHECK(!mw_timer_running(&t), "stopped before its time");
}

static int readable, writable, closed_fds;
static void io_ready(mw_io *io, int events) {
    readable += !!(events & MW_READ);
    writable += !!(events & MW_WRITE);
    if (closed_fds) mw_io_stop(io);
}

static void loop_io(void) {
    int fds[2];
    if (pipe(fds)) abort();
    mw_io in = {0}, out = {0};
    readable = writable = closed_fds = 0;
    mw_io_start(loop, &in, fds[0], MW_READ, io_ready);
    mw_loop_step(loop, 0);
    EQUAL(0, readable);
    mw_io_start(loop, &out, fds[1], MW_WRITE, io_ready);
    mw_loop_step(loop, 1000);
    EQUAL(1, writable);
    mw_io_stop(&out);
    mw_io_stop(&out);
    if (write(fds[1], "x", 1) != 1) abort();
    mw_loop_step(loop, 1000);
    mw_loop_step(loop, 1000); /* not read: it is ready again */
    EQUAL(2, readable);
    EQUAL(1, writable);
    closed_fds = 1; /* stops itself from inside its call */
    mw_loop_step(loop, 1000);
    mw_loop_step(loop, 0);
    EQUAL(3, readable);
    closed_fds = 0;
    mw_io_start(loop, &in, fds[0], MW_READ, io_ready); /* and can be started again, also while it runs */
    mw_io_start(loop, &in, fds[0], MW_READ, io_ready);
    mw_loop_step(loop, 1000);
    EQUAL(4, readable);
    mw_io_stop(&in);
    close(fds[0]);
    close(fds[1]);
}

static int wakes;
static void woken(mw_wake *w) {
    (void)w;
    wakes++;
}
static void *wake_from_thread(void *w) {
    usleep(20000);
    for (int i = 0; i < 1000; i++) mw_wake_signal(w);
    return NULL;
}

static void loop_wake(void) {
    mw_wake w;
    pthread_t thread;
    wakes = 0;
    EQUAL(0, mw_wake_start(loop, &w, woken));
    uint64_t began = real_ms();
    pthread_create(&thread, NULL, wake_from_thread, &w);
    while (!wakes && real_ms() - began < 5000) mw_loop_step(loop, 5000);
    CHECK(real_ms() - began < 4000, "the wake-up did not end the wait");
    pthread_join(thread, NULL);
    mw_loop_step(loop, 0);
    mw_loop_step(loop, 0);
    int after = wakes;
    CHECK(after >= 1 && after < 1000, "%d calls for 1000 signals", after);
    mw_loop_step(loop, 0);
    EQUAL(after, wakes); /* taken: it does not ring on */
    mw_wake_stop(&w);
    mw_wake_stop(&w);
}

static int caught_signal;
static void caught(mw_signal *s, int n) {
    (void)s;
    caught_signal = n;
}

static void loop_signal(void) {
    mw_signal s = {0};
    caught_signal = 0;
    mw_signal_start(loop, &s, SIGUSR2, caught);
    raise(SIGUSR2);
    for (int i = 0; i < 10 && !caught_signal; i++) mw_loop_step(loop, 100);
    EQUAL(SIGUSR2, caught_signal);
    mw_signal_stop(&s);
    mw_signal_stop(&s);
}

/* ---- log lines: what write(2) gets ---- */

static char lines[200000];

static void capture(int format, int least, void (*say)(void)) {
    char path[] = "/tmp/mw-base-test-XXXXXX";
    int file = mkstemp(path), saved = dup(STDERR_FILENO);
    if (file < 0 || saved < 0) abort();
    unlink(path);
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    mw_log_setup(format, least);
    say();
    mw_log_flush();
    dup2(saved, STDERR_FILENO);
    ssize_t n = pread(file, lines, sizeof lines - 1, 0);
    lines[n > 0 ? n : 0] = 0;
    close(file);
    close(saved);
}

#define LINE(expected) CHECK(strstr(lines, expected "\n"), "in <<%s>> expected <<%s>>", lines, expected)

static void field(const char *key, const char *value, size_t len) {
    mw_log_begin(MW_INFO, "m");
    mw_log_str(key, value, len);
    mw_log_end();
}
#define FIELD(value) field("k", value, sizeof value - 1)

static void say_values(void) {
    FIELD("plain");
    FIELD("");
    FIELD("two words");
    FIELD("a=b");
    FIELD("say \"hi\"");
    FIELD("back\\slash");
    FIELD("new\nline\tand\rmore\x1b[31m\x7f");
    FIELD("nul\0in it");
    FIELD("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x8c\x99");
    mw_log_begin(MW_WARN, "with spaces \"and\" quotes");
    mw_log_int("min", INT64_MIN);
    mw_log_num("n", 0.25);
    mw_log_num("big", 9007199254740991.0);
    mw_log_num("nan", 0.0 / 0.0);
    mw_log_text("none", NULL);
    mw_log_end();
    mw_log_begin(MW_DEBUG, "too quiet");
    mw_log_int("left", 1);
    mw_log_end();
}

static void log_logfmt(void) {
    capture(MW_LOG_LOGFMT, MW_INFO, say_values);
    CHECK(strncmp(lines, "time=20", 7) == 0 && strstr(lines, "Z level=info msg=m k=plain\n"), "%s", lines);
    LINE(" k=\"\"");
    LINE(" k=\"two words\"");
    LINE(" k=\"a=b\"");
    LINE(" k=\"say \\\"hi\\\"\"");
    LINE(" k=\"back\\\\slash\"");
    LINE(" k=\"new\\nline\\u0009and\\u000dmore\\u001b[31m\\u007f\"");
    LINE(" k=\"nul\\u0000in it\"");
    LINE(" k=\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x8c\x99\"");
    LINE("level=warn msg=\"with spaces \\\"and\\\" quotes\" min=-9223372036854775808 n=0.25 "
         "big=9007199254740991 nan=nan");
    CHECK(!strstr(lines, "quiet") && !strstr(lines, "left"), "a debug line was written");
}

static void log_json(void) {
    capture(MW_LOG_JSON, MW_DEBUG, say_values);
    LINE("\"level\":\"info\",\"msg\":\"m\",\"k\":\"plain\"}");
    LINE("\"k\":\"new\\nline\\u0009and\\u000dmore\\u001b[31m\\u007f\"}");
    LINE("\"k\":\"nul\\u0000in it\"}");
    LINE("\"min\":-9223372036854775808,\"n\":0.25,\"big\":9007199254740991,\"nan\":\"nan\"}");
    LINE("\"level\":\"debug\",\"msg\":\"too quiet\",\"left\":1}");
    CHECK(strncmp(lines, "{\"time\":\"20", 11) == 0, "%s", lines);
}

static void say_bad_utf8(void) {
    static const char *const bad[] = {"\x80",
                                      "\xc3",
                                      "\xc0\xaf",
                                      "\xe2\x82",
                                      "\xe0\x80\xaf",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\xaf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) field("k", bad[i], strlen(bad[i]));
    field("k", "a\xffz", 3);
    field("bad\xffkey", "v", 1);
    field("two words=\"x\"\n", "v", 1);
}

static bool is_utf8(const unsigned char *s) {
    while (*s) {
        uint32_t c = *s++, more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : 3;
        if (more == 3 && (c < 0xf0 || c > 0xf4)) return false;
        uint32_t code = more ? c & (0x3f >> more) : c;
        for (uint32_t i = 0; i < more; i++, s++) {
            if ((*s & 0xc0) != 0x80) return false;
            code = code << 6 | (*s & 0x3f);
        }
        static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
        if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    }
    return true;
}

static int count_lines(void) {
    int n = 0;
    for (const char *p = lines; *p; p++) n += *p == '\n';
    return n;
}

static void log_hostile(void) {
    for (int format = MW_LOG_LOGFMT; format <= MW_LOG_JSON; format++) {
        capture(format, MW_INFO, say_bad_utf8);
        CHECK(is_utf8((const unsigned char *)lines), "a line is not UTF-8: %s", lines);
        EQUAL(13, count_lines()); /* no key or value can make a line of its own */
    }
    capture(MW_LOG_LOGFMT, MW_INFO, say_bad_utf8);
    LINE(" k=a?z");
    LINE(" bad_key=v");
    LINE(" two_words__x__=v");
}

static void say_long(void) {
    static char text[100000];
    memset(text, 'x', sizeof text);
    field("k", text, sizeof text);
    FIELD("after");
}

static void log_long(void) {
    capture(MW_LOG_LOGFMT, MW_INFO, say_long);
    CHECK(strlen(lines) > 1000 && strlen(lines) < 6000, "a value of 100 kB made %zu bytes", strlen(lines));
    LINE("msg=m k=after");
    capture(MW_LOG_LOGFMT, MW_SILENT, say_values);
    EQUAL(0, strlen(lines));
    CHECK(!mw_log_wants(MW_ERROR), "silent wants errors");
    mw_log_setup(MW_LOG_LOGFMT, MW_INFO);
}

/* ---- shared texts ---- */

static void text_cache(void) {
    mw_text *a = mw_text_new("same cause", 10), *b = mw_text_new("same cause", 10);
    CHECK(a == b, "the same text twice in memory");
    EQUAL(3, a->refs); /* the cache's and two of ours */
    CHECK(strcmp(a->data, "same cause") == 0 && a->len == 10, "%s", a->data);
    mw_text *z = mw_text_new("a\0b", 3), *y = mw_text_new("a\0c", 3), *empty = mw_text_new("", 0);
    CHECK(z != y && memcmp(z->data, "a\0b", 4) == 0 && empty->len == 0 && !*empty->data,
          "bytes after a NUL count");
    mw_text_cache_clear();
    EQUAL(2, a->refs); /* ours outlive the cache */
    CHECK(strcmp(a->data, "same cause") == 0, "%s", a->data);
    mw_text_unref(b);
    mw_text_unref(mw_text_ref(a));
    EQUAL(1, a->refs);
    mw_text_unref(a);
    mw_text_unref(z);
    mw_text_unref(y);
    mw_text_unref(empty);
    mw_text_unref(NULL);
    CHECK(!mw_text_ref(NULL), "NULL has no references");
    for (int i = 0; i < 1000; i++) { /* slots are taken over while we still hold the text */
        char data[32];
        int n = snprintf(data, sizeof data, "cause %d", i);
        mw_text *t = mw_text_new(data, (size_t)n);
        mw_text *other = mw_text_new("in between", 10);
        EQUAL(0, strcmp(t->data, data));
        mw_text_unref(other);
        mw_text_unref(t);
    }
    mw_text_cache_clear();
}

/* ---- identifiers ---- */

static void uuids(void) {
    enum { N = 20000 };
    static char id[N][MW_UUID_TEXT];
    mw_map seen = {0};
    for (int i = 0; i < N; i++) {
        mw_uuid(id[i]);
        bool shape = strlen(id[i]) == 36 && id[i][14] == '7' && strchr("89ab", id[i][19]);
        for (int k = 0; k < 36; k++)
            shape &= k == 8 || k == 13 || k == 18 || k == 23 ? id[i][k] == '-'
                                                             : !!strchr("0123456789abcdef", id[i][k]);
        CHECK(shape, "%s is no version 7 UUID", id[i]);
        uint64_t hash = mw_hash64(id[i], 36);
        CHECK(!mw_map_get(&seen, hash), "%s came twice", id[i]);
        mw_map_put(&seen, hash, id[i]);
        if (i) CHECK(strncmp(id[i], id[i - 1], 13) >= 0, "%s sorts before the older %s", id[i], id[i - 1]);
    }
    mw_map_free(&seen);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char high[9] = {0};
    memcpy(high, id[N - 1], 8);
    int64_t stamp = (int64_t)(strtoull(high, NULL, 16) << 16); /* the upper 32 of 48 bits: steps of 65 s */
    int64_t ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    CHECK(ms >= stamp && ms - stamp < 200000, "its time is %lld, not %lld", (long long)stamp, (long long)ms);
}

static void random_after_fork(void) { /* workers are forked: they must not make the same identifiers */
    mw_random64();
    int fds[2];
    if (pipe(fds)) abort();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        uint64_t theirs = mw_random64();
        _exit(write(fds[1], &theirs, sizeof theirs) == sizeof theirs ? 0 : 1);
    }
    uint64_t ours = mw_random64(), theirs = 0;
    waitpid(child, NULL, 0);
    EQUAL(sizeof theirs, read(fds[0], &theirs, sizeof theirs));
    CHECK(ours != theirs, "parent and child drew the same number");
    close(fds[0]);
    close(fds[1]);
}

/* ---- the virtual clock ---- */

static int virtual_fired;
static uint64_t virtual_at[4];

static void virtual_fire(mw_timer *t) {
    (void)t;
    virtual_at[virtual_fired++ & 3] = mw_loop_mono_ms(loop);
}

static void loop_virtual(void) {
    enum { HOUR = 3600 * 1000 };
    mw_timer near = {0}, far = {0}, real = {0};
    virtual_fired = 0;
    mw_loop_virtual(loop, true);
    uint64_t start = mw_loop_mono_ms(loop);
    int64_t wall = mw_loop_wall_ms(loop);
    EQUAL(-1, mw_loop_next_ms(loop));
    mw_timer_start(loop, &far, 50ll * 24 * HOUR, virtual_fire); /* beyond the wheel's span */
    mw_timer_start(loop, &near, HOUR, virtual_fire);
    EQUAL(HOUR, mw_loop_next_ms(loop));
    CHECK(!mw_loop_pending(loop), "a timer is no work before its time");
    usleep(3000);
    mw_loop_step(loop, 0);
    mw_loop_now_update(loop);
    EQUAL(start, mw_loop_mono_ms(loop)); /* real time does not move it */
    EQUAL(wall, mw_loop_wall_ms(loop));
    EQUAL(1000, mw_loop_advance(loop, 1000));
    mw_loop_step(loop, 0);
    EQUAL(0, virtual_fired);
    EQUAL(HOUR - 1000, mw_loop_advance(loop, 10ll * HOUR)); /* no further than the timer */
    CHECK(mw_loop_pending(loop), "what is due is work");
    mw_loop_step(loop, 1000); /* does not wait */
    EQUAL(1, virtual_fired);
    EQUAL(start + HOUR, virtual_at[0]);
    EQUAL(wall + HOUR, mw_loop_wall_ms(loop));
    EQUAL(49ll * 24 * HOUR + 23ll * HOUR, mw_loop_advance(loop, INT64_MAX));
    mw_loop_step(loop, 0);
    EQUAL(2, virtual_fired);
    EQUAL(start + 50ull * 24 * HOUR, virtual_at[1]);

    mw_timer_start_real(loop, &real, 2, virtual_fire);
    for (int i = 0; i < 1000 && virtual_fired < 3; i++) mw_loop_step(loop, 1);
    EQUAL(3, virtual_fired);
    EQUAL(start + 50ull * 24 * HOUR, virtual_at[2]);

    mw_loop_set_wall(loop, 1000);
    EQUAL(1000, mw_loop_wall_ms(loop));
    mw_loop_outside(loop, 1);
    CHECK(mw_loop_pending(loop), "the world may answer");
    mw_loop_outside(loop, -1);

    mw_timer_start(loop, &near, 2, virtual_fire); /* and back: it keeps its distance */
    mw_loop_virtual(loop, false);
    CHECK(mw_loop_mono_ms(loop) >= start + 50ull * 24 * HOUR, "the monotonic clock went back");
    CHECK(mw_loop_wall_ms(loop) >= wall && mw_loop_wall_ms(loop) < wall + HOUR,
          "the wall clock is not the real one");
    for (int i = 0; i < 1000 && virtual_fired < 4; i++) mw_loop_step(loop, 1);
    EQUAL(4, virtual_fired);
    EQUAL(0, mw_loop_advance(loop, 1000)); /* real time cannot be moved */
}

static void log_capture(void) {
    size_t len;
    mw_log_setup(MW_LOG_LOGFMT, MW_SILENT);
    CHECK(!mw_log_wants(MW_ERROR), "silent is not silent");
    mw_loop_virtual(loop, true);
    mw_log_capture(loop);
    CHECK(mw_log_wants(MW_DEBUG), "what is captured is not wanted");
    char want[300];
    snprintf(want, sizeof want,
             "{\"at\":%llu,\"project\":true,\"level\":\"debug\",\"msg\":\"a \\\"b\\\"\",\"fields\":{"
             "\"n\":1,\"x\":0.5,\"bad\":\"nan\",\"t\":\"?\"}}\n"
             "{\"at\":%llu,\"project\":false,\"level\":\"error\",\"msg\":\"c\",\"fields\":{}}\n",
             (unsigned long long)mw_loop_mono_ms(loop), (unsigned long long)mw_loop_mono_ms(loop));
    mw_log_project();
    mw_log_begin(MW_DEBUG, "a \"b\"");
    mw_log_int("n", 1);
    mw_log_num("x", 0.5);
    mw_log_num("bad", 0.0 / 0.0);
    mw_log_str("t", "\xff", 1);
    mw_log_end();
    mw_log_begin(MW_ERROR, "c");
    mw_log_end();
    const char *got = mw_log_captured(&len);
    CHECK(len == strlen(want) && memcmp(got, want, len) == 0, "captured: %.*s", (int)len, got);
    mw_log_capture_clear();
    mw_log_captured(&len);
    EQUAL(0, len);
    mw_log_capture(NULL);
    mw_loop_virtual(loop, false);
    mw_log_setup(MW_LOG_LOGFMT, MW_INFO);
}

static void overflow_stack(int n) {
    volatile char space[4096];
    space[0] = (char)n;
    if (n) overflow_stack(n + 1);
    space[1] = space[0];
}

/* What a process that dies by it has written. */
static void crash_with(int signum, char *out, size_t room) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        for (int n = 0; n < 32; n++) signal(n, SIG_DFL); /* a sanitizer's report is not what we look at */
        mw_log_setup(MW_LOG_LOGFMT, MW_INFO);
        mw_log_guard();
        mw_log_begin(MW_INFO, "before");
        mw_log_end();
        mw_log_begin(MW_INFO, "half a line");
        if (signum == SIGSEGV) overflow_stack(1);
        if (signum == SIGABRT) abort();
        kill(getpid(), signum);
        _exit(0);
    }
    close(ends[1]);
    size_t len = 0;
    for (ssize_t n; (n = read(ends[0], out + len, room - 1 - len)) > 0;) len += (size_t)n;
    out[len] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status));
    EQUAL(signum, WTERMSIG(status));
}

static void log_before_crash(void) {
    static const int signals[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        char text[1024];
        crash_with(signals[i], text, sizeof text);
        CHECK(strstr(text, "msg=before\n"));
        CHECK(!strstr(text, "half"));
    }
}

static const test tests[] = {
    {"wheel_random", wheel_random},
    {"wheel_far_future", wheel_far_future},
    {"wheel_stop_inside_fire", wheel_stop_inside_fire},
    {"wheel_restart_inside_fire", wheel_restart_inside_fire},
    {"wheel_budget", wheel_budget},
    {"wheel_million", wheel_million},
    {"map_random", map_random},
    {"acks_random", acks_random},
    {"loop_deferred", loop_deferred},
    {"loop_deferred_last", loop_deferred_last},
    {"loop_timers", loop_timers},
    {"loop_run_and_stop", loop_run_and_stop},
    {"loop_io", loop_io},
    {"loop_wake", loop_wake},
    {"loop_signal", loop_signal},
    {"loop_virtual", loop_virtual},
    {"log_logfmt", log_logfmt},
    {"log_json", log_json},
    {"log_hostile", log_hostile},
    {"log_long", log_long},
    {"log_capture", log_capture},
    {"log_before_crash", log_before_crash},
    {"text_cache", text_cache},
    {"uuids", uuids},
    {"random_after_fork", random_after_fork},
    {NULL, NULL},
};

int main(int argc, char **argv) {
    loop = mw_loop_new();
    int code = run_tests(tests, argc, argv);
    mw_loop_free(loop);
    return code;
}
