#include "supervisor/supervisor.h"

#include <lauxlib.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "app/notify.h"
#include "app/watch.h"
#include "base/log.h"
#include "lua/core.h"
#include "lua/vm.h"
#include "supervisor/crew.h"

enum { GRACE_MS = 5000, RELOAD_PATIENCE_MS = 10000, USAGE = 64, CONFIG = 78 };

typedef struct supervisor {
    mw_loop *loop;
    lua_State *L; /* of the CLI; its table of options stands at index 1 */
    mw_ledger *ledger;
    mw_crew *crew;
    mw_watch *watch;
    mw_signal term, interrupt, hangup;
    mw_timer limit, reload_limit;
    double drain;
    int code;
    uint32_t count, reloading; /* workers that have not answered a reload yet */
    bool once, ready;
    bool ending, told; /* told: by us, with TERM; a drain by command reaches the workers without us */
} supervisor;

/* ---- ending ---- */

static void signal_all(supervisor *s, int signum, bool all) {
    mw_hand *h;
    for (uint32_t i = 0; (h = mw_crew_hand(s->crew, i)); i++) {
        if (!h->pid || (!all && h->leaving)) continue;
        if (signum == SIGTERM) h->leaving = true; /* a second TERM would mean "now" */
        kill(h->pid, signum);
    }
}

static void too_long(mw_timer *t) {
    supervisor *s = mw_container_of(t, supervisor, limit);
    mw_log_begin(MW_WARN, "drain limit reached: workers are killed");
    mw_log_int("workers", mw_crew_running(s->crew));
    mw_log_end();
    signal_all(s, SIGKILL, true);
}

static void begin_end(supervisor *s) {
    if (s->ending) return;
    s->ending = true;
    mw_crew_no_more(s->crew);
    mw_notify_stopping();
    mw_timer_start(s->loop, &s->limit, (int64_t)(s->drain * 1000) + GRACE_MS, too_long);
    if (!mw_crew_running(s->crew)) mw_loop_stop(s->loop);
}

static void tell_to_end(supervisor *s) {
    s->told = true;
    begin_end(s);
    signal_all(s, SIGTERM, false);
}

static void signalled(supervisor *s, const char *name) {
    if (s->told) { /* the second one: now */
        s->code = 1;
        signal_all(s, SIGKILL, true);
        mw_loop_stop(s->loop);
        return;
    }
    mw_log_begin(MW_INFO, "draining all workers");
    mw_log_text("signal", name);
    mw_log_end();
    tell_to_end(s);
}

static void on_term(mw_signal *g, int n) {
    (void)n;
    signalled(mw_container_of(g, supervisor, term), "TERM");
}

static void on_interrupt(mw_signal *g, int n) {
    (void)n;
    signalled(mw_container_of(g, supervisor, interrupt), "INT");
}

/* ---- reloading ---- */

static void reload_over(supervisor *s) {
    mw_timer_stop(&s->reload_limit);
    s->reloading = 0;
    if (!s->ending) mw_notify_ready(s->loop);
}

static void reload_late(mw_timer *t) { reload_over(mw_container_of(t, supervisor, reload_limit)); }

/* Calls check: false when the project is broken. */
static bool project_is_fine(supervisor *s) {
    mw_error e;
    lua_getfield(s->L, 1, "check");
    if (mw_vm_call(s->L, 0, 2, &e)) {
        mw_log_begin(MW_ERROR, "reload refused");
        mw_log_text("error", e.text);
        mw_log_end();
        return false;
    }
    bool fine = lua_isnumber(s->L, -2) && lua_isnumber(s->L, -1);
    if (fine) {
        s->drain = lua_tonumber(s->L, -2);
        mw_ledger_allow(s->ledger, (uint32_t)lua_tointeger(s->L, -1));
    }
    lua_pop(s->L, 2);
    return fine;
}

static void reload(supervisor *s) {
    if (s->ending) return;
    mw_notify_reloading();
    if (project_is_fine(s)) s->reloading = mw_crew_up(s->crew);
    if (!s->reloading) {
        reload_over(s);
        return;
    }
    mw_timer_start(s->loop, &s->reload_limit, RELOAD_PATIENCE_MS, reload_late);
    mw_log_begin(MW_INFO, "reloading all workers");
    mw_log_int("workers", s->reloading);
    mw_log_end();
    signal_all(s, SIGHUP, false);
}

static void on_hangup(mw_signal *g, int n) {
    (void)n;
    reload(mw_container_of(g, supervisor, hangup));
}

static void on_change(void *owner) {
    mw_log_begin(MW_INFO, "files changed");
    mw_log_end();
    reload(owner);
}

/* ---- what workers do ---- */

static void on_said(void *owner, mw_hand *h, mw_worker_event event) {
    supervisor *s = owner;
    switch (event) {
    case MW_WORKER_STARTED:
        if (s->ready || s->ending || mw_crew_up(s->crew) < s->count) break;
        s->ready = true;
        mw_log_begin(MW_INFO, "all workers started");
        mw_log_int("workers", s->count);
        mw_log_end();
        mw_notify_ready(s->loop);
        break;
    case MW_WORKER_RELOADED:
        if (s->reloading && --s->reloading == 0) reload_over(s);
        break;
    case MW_WORKER_DRAINS: /* the command asks every worker it can reach; those that still start it cannot */
        if (s->ending) break;
        mw_log_begin(MW_INFO, "draining all workers");
        mw_log_text("by", "command");
        mw_log_int("worker", h->slot + 1);
        mw_log_end();
        begin_end(s);
        for (uint32_t i = 0; (h = mw_crew_hand(s->crew, i)); i++)
            if (h->pid && !h->up) {
                h->leaving = true;
                kill(h->pid, SIGTERM);
            }
        break;
    }
}

static bool all_done(supervisor *s) {
    mw_hand *h;
    for (uint32_t i = 0; (h = mw_crew_hand(s->crew, i)); i++)
        if (!h->done) return false;
    return true;
}

static bool on_ended(void *owner, mw_hand *h, int status) {
    supervisor *s = owner;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (s->ending) {
        if (!mw_crew_running(s->crew)) mw_loop_stop(s->loop);
        return false;
    }
    if ((code == CONFIG || code == USAGE) && !h->up && mw_crew_up(s->crew) == 0) {
        s->code = code; /* it will not be better the next time, and nobody serves */
        tell_to_end(s);
        return false;
    }
    if (!s->once || code != 0) return true;
    h->done = true;
    if (all_done(s)) mw_loop_stop(s->loop);
    return false;
}

/* ---- life ---- */

static double number(lua_State *L, const char *name, double otherwise) {
    lua_getfield(L, 1, name);
    double value = lua_isnumber(L, -1) ? lua_tonumber(L, -1) : otherwise;
    lua_pop(L, 1);
    return value;
}

/* Texts live as long as the table of options. */
static char **take_argv(lua_State *L) {
    lua_getfield(L, 1, "argv");
    luaL_checktype(L, -1, LUA_TTABLE);
    size_t n = lua_objlen(L, -1);
    char **argv = calloc(n + 1, sizeof *argv);
    if (!argv) abort();
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, -1, (int)i + 1);
        argv[i] = (char *)(uintptr_t)lua_tostring(L, -1);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return argv;
}

static void free_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static int begin(supervisor *s, char **argv, mw_error *e) {
    lua_getfield(s->L, 1, "watch");
    const char *watched = lua_tostring(s->L, -1);
    lua_pop(s->L, 1);
    mw_crew_events events = {.said = on_said, .ended = on_ended, .owner = s};
    if (!(s->ledger = mw_ledger_new(s->count, e))) return -1;
    mw_ledger_allow(s->ledger, (uint32_t)number(s->L, "crash_attempts", 3));
    if (watched && !(s->watch = mw_watch_new(s->loop, watched, on_change, s, e))) return -1;
    if (!(s->crew = mw_crew_new(s->loop, s->count, argv, s->ledger, events, e))) return -1;
    return mw_crew_start(s->crew, e);
}

static void serve(supervisor *s) {
    mw_signal_start(s->loop, &s->term, SIGTERM, on_term);
    mw_signal_start(s->loop, &s->interrupt, SIGINT, on_interrupt);
    mw_signal_start(s->loop, &s->hangup, SIGHUP, on_hangup);
    free_signals();
    mw_loop_run(s->loop);
    mw_signal_stop(&s->term);
    mw_signal_stop(&s->interrupt);
    mw_signal_stop(&s->hangup);
    mw_timer_stop(&s->limit);
    mw_timer_stop(&s->reload_limit);
    mw_notify_end();
}

int mw_supervise(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    mw_error e;
    supervisor s = {.loop = mw_core_loop(), .L = L};
    s.count = (uint32_t)number(L, "workers", 1);
    luaL_argcheck(L, s.count >= 1 && s.count <= MW_LEDGER_SLOTS, 1, "workers: 1 to 256");
    s.drain = number(L, "drain", 25);
    lua_getfield(L, 1, "once");
    s.once = lua_toboolean(L, -1);
    lua_settop(L, 1);
    char **argv = take_argv(L);
    int rc = begin(&s, argv, &e);
    if (!rc) serve(&s);
    mw_crew_free(s.crew);
    mw_watch_free(s.watch);
    mw_ledger_free(s.ledger);
    free(argv);
    if (rc) {
        lua_pushnil(L);
        lua_pushstring(L, e.text);
        return 2;
    }
    lua_pushinteger(L, s.code);
    return 1;
}
