#include "lua/deadline.h"

#include <errno.h>
#include <lauxlib.h>
#include <luajit.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "core/shared/ledger.h"
#include "lua/vm.h"

enum { PERIOD_MS = 10, IDLE_PERIODS = 5, GRACE_MS = 5000 };

/* What the signal handler looks at. It runs on the loop's thread: only the compiler has to be kept in order.
 */
static struct {
    timer_t timer;
    bool made;
    volatile sig_atomic_t running; /* the timer */
    volatile int idle;             /* periods in a row in which nothing ran */
    volatile uint64_t now;         /* monotonic ms, as old as a period */
    mw_vm *volatile vm;            /* whose tick runs */
    mw_delivery *volatile current; /* whose handler runs */
    volatile uint64_t deadline;
    volatile uint64_t read_until; /* a project is read in vm, and may be until then; 0: none is */
    size_t held;                  /* bytes that vm held when that began: they are not the project's */
    volatile sig_atomic_t armed;  /* the hook is set in vm */
    char where[256];              /* file:line where the handler that runs was broken first */
    mw_vm *owner;                 /* of the profiler */
} watch;

static uint64_t mono_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- breaking a handler ---- */

/* The library's own code is never broken: it is short, and what it keeps in order would be left half done. */
static bool in_library(lua_State *L, lua_Debug *ar) {
    lua_getinfo(L, "S", ar);
    return strncmp(ar->source, "=lua/moonwire/", 14) == 0 || strcmp(ar->source, "=worker") == 0;
}

/* A handler is over the memory limit. Lua itself collects in small steps, so it may be garbage that counts.
 */
static bool too_much(mw_vm *vm) {
    lua_gc(vm->L, LUA_GCCOLLECT, 0);
    if (vm->alloc.bytes > vm->alloc.limit / 10 * 9) return true;
    vm->crowded = false;
    vm->alloc.level = vm->alloc.limit;
    if (!watch.armed) lua_sethook(vm->L, NULL, 0, 0);
    return false;
}

static void push_read_too_long(lua_State *L, lua_Debug *ar) {
    lua_getinfo(L, "l", ar);
    lua_pushfstring(L, "%s:%d: still not read after %d s", ar->short_src, ar->currentline,
                    MW_READ_LIMIT_MS / 1000);
}

static void push_read_too_much(lua_State *L, lua_Debug *ar) {
    lua_getinfo(L, "l", ar);
    lua_pushfstring(L, "%s:%d: out of memory while the project is read: the limit is %d MB", ar->short_src,
                    ar->currentline, (int)((watch.vm->alloc.limit - watch.held) >> 20));
}

/* Allocates nothing. One that catches the error is broken again, elsewhere: the first place tells more. */
static void push_deadline(lua_State *L, lua_Debug *ar) {
    lua_getinfo(L, "l", ar);
    if (!*watch.where) snprintf(watch.where, sizeof watch.where, "%s:%d", ar->short_src, ar->currentline);
    lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.deadline");
}

static void hook(lua_State *L, lua_Debug *ar) {
    if (in_library(L, ar)) return;
    if (watch.armed && watch.read_until)
        push_read_too_long(L, ar);
    else if (watch.armed && watch.current)
        push_deadline(L, ar);
    else if (!watch.vm->crowded || !too_much(watch.vm))
        return;
    else if (watch.read_until)
        push_read_too_much(L, ar);
    else
        lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.memory");
    lua_error(L);
}

static void set_hook(void) {
    lua_sethook(watch.vm->L, hook, LUA_MASKCOUNT, 1);
    if (watch.owner == watch.vm) raise(SIGPROF); /* makes compiled code go back to the interpreter */
}

/* Refusing the memory would raise the error inside of compiled code, which LuaJIT does not always survive. */
static void crowded(mw_alloc *a) {
    mw_vm *vm = mw_container_of(a, mw_vm, alloc);
    if (watch.vm != vm) return;
    vm->crowded = true;
    set_hook();
}

static void disarm(mw_vm *vm) {
    if (!watch.armed && !vm->crowded) return;
    watch.armed = vm->crowded = false;
    lua_sethook(vm->L, NULL, 0, 0);
}

/* Set anew each time: the signal may have come while LuaJIT was switching its dispatch. */
static void arm(void) {
    watch.armed = true;
    lua_sethook(watch.vm->L, NULL, 0, 0);
    set_hook();
}

/* What to say on standard output, and the exit code, when a handler takes this process with it. Changed between
 * handlers only. */
static struct {
    mw_buf head, report, words;
    int code;
} last = {.code = MW_EXIT_STUCK};

static void say_last(const mw_buf *text) {
    for (size_t at = 0; at < text->len;) {
        ssize_t n = write(STDOUT_FILENO, text->data + at, text->len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        at += (size_t)n;
    }
}

void mw_vm_last_words(const char *text, size_t len, int code) {
    last.words.len = 0;
    mw_buf_add(&last.words, text, len);
    last.code = code;
}

void mw_vm_last_report(const char *head, size_t head_len, const char *more, size_t more_len) {
    last.head.len = 0;
    mw_buf_add(&last.head, head, head_len);
    mw_buf_add(&last.report, more, more_len);
}

static void give_up(const mw_delivery *d) {
    char space[MW_NAME_SPACE];
    size_t len;
    const char *name = mw_delivery_name(d, space, &len); /* reading the id would allocate */
    mw_log_last("stuck in a C call past its timeout: the process ends",
                mw_pipeline_name(mw_delivery_pipeline(d)), name, len);
    say_last(&last.head);
    say_last(&last.report);
    say_last(&last.words);
    _exit(last.code);
}

static void set_timer(long ms) {
    struct timespec period = {.tv_nsec = ms * 1000000};
    timer_settime(watch.timer, 0, &(struct itimerspec){period, period}, NULL);
    watch.running = ms > 0;
}

static void on_period(int n) {
    (void)n;
    int kept = errno;
    watch.now = mono_ms();
    mw_slice_ended = true;
    if (watch.vm) mw_log_flush_signal(); /* the loop cannot: a handler may compute on, or kill us */
    mw_delivery *d = watch.current;
    if (d && watch.now >= watch.deadline) {
        mw_delivery_set_late(d);
        arm();
        if (watch.now >= watch.deadline + GRACE_MS && !mw_ledger_on())
            give_up(d); /* or the supervisor does */
    }
    if (watch.read_until && watch.now >= watch.read_until) arm();
    watch.idle = watch.vm ? 0 : watch.idle + 1;
    if (watch.idle >= IDLE_PERIODS) set_timer(0);
    errno = kept;
}

static void make_timer(void) {
    struct sigaction action = {.sa_handler = on_period, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN + 3, &action, NULL);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 3};
    event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
    watch.made = timer_create(CLOCK_MONOTONIC, &event, &watch.timer) == 0;
    if (watch.made) return;
    mw_log_begin(MW_ERROR,
                 "no timer: handlers that compute past their timeout are not ended, and keep the loop");
    mw_log_text("error", strerror(errno));
    mw_log_end();
}

static void run_timer(void) {
    if (watch.running) return;
    if (!watch.made) make_timer();
    if (!watch.made) return;
    watch.now = mono_ms();
    watch.idle = 0;
    set_timer(PERIOD_MS);
}

/* ---- whose turn it is ---- */

static void sampled(void *data, lua_State *L, int samples, int state) {
    (void)data, (void)L, (void)samples, (void)state;
}

static bool compiles(lua_State *L) {
    int top = lua_gettop(L);
    lua_getglobal(L, "jit");
    lua_getfield(L, -1, "status");
    bool on = lua_pcall(L, 0, 1, 0) == 0 && lua_toboolean(L, -1);
    lua_settop(L, top);
    return on;
}

void mw_deadline_own(mw_vm *vm) {
    if (!vm->watched) return;
    if (watch.owner && watch.owner->retired) mw_deadline_disown(watch.owner);
    if (watch.owner && watch.owner != vm) { /* the current one's, while this is on trial; or another app's */
        vm->interpreted = vm->interpreted || compiles(vm->L);
        luaJIT_setmode(vm->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
        return;
    }
    if (vm->interpreted) luaJIT_setmode(vm->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_ON);
    vm->interpreted = false;
    watch.owner = vm;
    luaJIT_profile_start(vm->L, "li2000000", sampled, NULL);
    setitimer(ITIMER_PROF, &(struct itimerval){0}, NULL); /* the signal comes from us only */
}

void mw_deadline_disown(mw_vm *vm) {
    if (watch.owner != vm) return;
    luaJIT_profile_stop(vm->L);
    luaJIT_setmode(vm->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);
    watch.owner = NULL;
}

mw_vm *mw_deadline_begin(mw_vm *vm) {
    mw_vm *before = watch.vm;
    watch.vm = vm;
    if (vm->watched || mw_vm_plans(vm)) run_timer(); /* unwatched handlers too: the loop wants its turns */
    return before;
}

void mw_deadline_end(mw_vm *before) {
    mw_vm_leave(watch.vm, NULL);
    watch.vm = before;
}

/* ---- reading ---- */

mw_reading mw_deadline_read(mw_vm *vm) {
    mw_reading r = {.before = watch.vm};
    luaJIT_setmode(vm->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF); /* compiled code would not look */
    watch.vm = vm;
    watch.read_until = mono_ms() + MW_READ_LIMIT_MS;
    watch.held = vm->alloc.bytes;
    mw_vm_read_memory(vm, MW_READ_MEMORY);
    run_timer();
    return r;
}

void mw_vm_read_memory(mw_vm *vm, double bytes) {
    if (!watch.read_until || watch.vm != vm) return;
    mw_alloc_limit(&vm->alloc, watch.held + (size_t)bytes, crowded);
    mw_alloc_strict(&vm->alloc, true);
}

void mw_deadline_read_end(mw_vm *vm, mw_reading r, bool compile) {
    watch.read_until = 0;
    mw_alloc_strict(&vm->alloc, false);
    disarm(vm);
    watch.vm = r.before;
    if (compile) luaJIT_setmode(vm->L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_ON);
}

/* ---- for Lua ---- */

void mw_vm_limits(mw_vm *vm, bool watched, double memory) {
    vm->watched = watched;
    mw_alloc_limit(&vm->alloc, (size_t)memory, crowded);
}

void mw_vm_enter(mw_vm *vm, mw_delivery *d) {
    mw_alloc_strict(&vm->alloc, true);
    int64_t left = mw_delivery_left(d);
    mw_pulse *pulse = mw_pulse_mine;
    pulse->allow_ms = (uint32_t)left + 1;
    pulse->entry = mw_delivery_ledger(d);
    pulse->turn++;
    if (!vm->watched) return;
    *watch.where = 0;
    watch.deadline = watch.now + (uint64_t)(left + PERIOD_MS); /* never too early */
    watch.current = d;
}

bool mw_vm_leave(mw_vm *vm, mw_delivery *d) {
    watch.current = NULL;
    mw_pulse_mine->entry = mw_pulse_mine->allow_ms = 0;
    mw_pulse_mine->turn++;
    mw_alloc_strict(&vm->alloc, false);
    disarm(vm);
    return d && mw_delivery_late(d);
}

const char *mw_vm_broken_at(void) { return watch.where; }

bool mw_vm_breaking(void) { return watch.armed || (watch.vm && watch.vm->crowded); }
