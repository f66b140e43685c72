#include "supervisor/supervisor.h"

#include <lauxlib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/notify.h"
#include "base/log.h"
#include "lua/core.h"
#include "supervisor/desk.h"

enum { GRACE_MS = 5000 };

void mw_supervisor_status(const mw_supervisor *s) {
    char text[128];
    snprintf(text, sizeof text, "%s%u of %u workers serve, generation %u", s->ending ? "draining: " : "",
             mw_crew_up(s->crew), mw_crew_count(s->crew), s->shared->generation);
    mw_notify_status(text);
}

/* ---- ending ---- */

static void signal_all(mw_supervisor *s, int signum, bool all) {
    mw_hand *h;
    for (uint32_t i = 0; (h = mw_crew_hand(s->crew, i)); i++) {
        if (!h->pid || (!all && h->leaving)) continue;
        if (signum == SIGTERM) h->leaving = true; /* a second TERM would mean "now" */
        kill(h->pid, signum);
    }
}

static void too_long(mw_timer *t) {
    mw_supervisor *s = mw_container_of(t, mw_supervisor, limit);
    mw_log_begin(MW_WARN, "drain limit reached: workers are killed");
    mw_log_int("workers", mw_crew_running(s->crew));
    mw_log_end();
    signal_all(s, SIGKILL, true);
}

void mw_supervisor_end(mw_supervisor *s) {
    s->told = true;
    if (s->ending) return;
    s->ending = true;
    mw_crew_no_more(s->crew);
    mw_notify_stopping();
    mw_supervisor_status(s);
    mw_timer_start(s->loop, &s->limit, (int64_t)(s->drain * 1000) + GRACE_MS, too_long);
    signal_all(s, SIGTERM, false);
    if (!mw_crew_running(s->crew)) mw_loop_stop(s->loop);
}

static void signalled(mw_supervisor *s, const char *name) {
    if (s->told) { /* the second one: now */
        s->code = 1;
        signal_all(s, SIGKILL, true);
        mw_loop_stop(s->loop);
        return;
    }
    mw_log_begin(MW_INFO, "draining all workers");
    mw_log_text("signal", name);
    mw_log_end();
    mw_supervisor_end(s);
}

static void on_term(mw_signal *g, int n) {
    (void)n;
    signalled(mw_container_of(g, mw_supervisor, term), "TERM");
}

static void on_interrupt(mw_signal *g, int n) {
    (void)n;
    signalled(mw_container_of(g, mw_supervisor, interrupt), "INT");
}

/* ---- commands ---- */

static void on_hangup(mw_signal *g, int n) {
    (void)n;
    mw_desk_ask(mw_container_of(g, mw_supervisor, hangup)->desk, 0, "reload");
}

static void on_change(void *owner) {
    mw_supervisor *s = owner;
    mw_log_begin(MW_INFO, "files changed");
    mw_log_end();
    mw_desk_ask(s->desk, 0, "reload");
}

static void on_asked(void *owner, uint64_t number, const char *line) {
    mw_desk_ask(((mw_supervisor *)owner)->desk, number, line);
}

/* ---- what workers say ---- */

/* The first worker reads the project and tells what it wants; the others are started then, so that a broken
 * project is told once. */
static void take_settings(mw_supervisor *s, const char *text) {
    mw_error e;
    unsigned workers, attempts;
    double drain;
    if (sscanf(text, "%u %lf %u", &workers, &drain, &attempts) != 3 || !(drain >= 0 && drain < 1e9)) return;
    s->shared->allowed = attempts;
    if (!s->drain_given) s->drain = drain;
    if (s->workers) workers = s->workers;
    if (!s->settled) {
        mw_log_begin(MW_INFO, "supervising");
        mw_log_int("workers", workers);
        mw_log_text("version", MW_VERSION);
        mw_log_end();
    }
    if (!s->settled && mw_crew_want(s->crew, workers, &e)) {
        mw_log_begin(MW_ERROR, "not all workers can be started");
        mw_log_text("error", e.text);
        mw_log_end();
    }
    if (s->settled && workers != mw_crew_count(s->crew)) {
        mw_log_begin(MW_WARN, "the number of workers changes with the next start");
        mw_log_int("now", mw_crew_count(s->crew));
        mw_log_int("then", workers);
        mw_log_end();
    }
    s->settled = true;
}

static void worker_started(mw_supervisor *s) {
    s->served = true;
    mw_supervisor_status(s);
    if (s->ready || s->ending || mw_crew_up(s->crew) < mw_crew_count(s->crew)) return;
    s->ready = true;
    mw_log_begin(MW_INFO, "all workers started");
    mw_log_int("workers", mw_crew_count(s->crew));
    mw_log_end();
    mw_notify_ready(s->loop);
}

static void on_said(void *owner, mw_hand *h, uint32_t kind, uint32_t number, char *text, size_t len) {
    mw_supervisor *s = owner;
    switch (kind) {
    case MW_SAY_SETTINGS:
        if (!mw_crew_keeps(s->crew)) mw_crew_keep(s->crew, h); /* the others start with the same */
        take_settings(s, text);
        break;
    case MW_SAY_STARTED: worker_started(s); break;
    case MW_SAY_RELOAD: mw_desk_ask(s->desk, 0, "reload"); break;
    case MW_SAY_ANSWER: mw_desk_answered(s->desk, h, number, text, len); break;
    }
}

static bool all_done(mw_supervisor *s) {
    const mw_hand *h;
    for (uint32_t i = 0; (h = mw_crew_hand(s->crew, i)); i++)
        if (!h->done) return false;
    return true;
}

static bool on_ended(void *owner, mw_hand *h, int status) {
    mw_supervisor *s = owner;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    mw_desk_gone(s->desk, h);
    if (s->ending) {
        if (!mw_crew_running(s->crew)) mw_loop_stop(s->loop);
        return false;
    }
    if (!s->served && code > 0) { /* nobody ever served: it says why, and a restart would not mend it */
        s->code = code;
        mw_supervisor_end(s);
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

static const char *text(lua_State *L, const char *name) { /* lives as long as the table of options */
    lua_getfield(L, 1, name);
    const char *value = lua_tostring(L, -1);
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

/* Not being able to open the door is no reason not to work. */
static void open_door(mw_supervisor *s) {
    mw_error e;
    const char *path = text(s->L, "control");
    if (!path || (s->control = mw_control_new(s->loop, path, on_asked, s, &e))) return;
    mw_log_begin(MW_WARN, "no control socket: reload by signal only");
    mw_log_text("error", e.text);
    mw_log_end();
}

static int begin(mw_supervisor *s, char **argv, mw_error *e) {
    uint32_t count = (uint32_t)number(s->L, "workers", 0);
    const char *watched = text(s->L, "watch");
    mw_crew_events events = {.said = on_said, .ended = on_ended, .owner = s};
    int fd = -1;
    s->workers = count;
    s->shared = mw_shared_new(count ? count : MW_SHARED_SLOTS, &fd, e);
    if (!s->shared) return -1;
    s->shared->allowed = 3;
    s->crew = mw_crew_new(s->loop, s->shared->slots, 1, argv, s->shared, fd, events, e);
    close(fd);
    if (!s->crew) return -1;
    s->vigil = mw_vigil_new(s->loop, s->crew, s->shared);
    s->desk = mw_desk_new(s);
    if (watched && !(s->watch = mw_watch_new(s->loop, watched, on_change, s, e))) return -1;
    if (mw_crew_start(s->crew, e)) return -1;
    open_door(s);
    return 0;
}

static void serve(mw_supervisor *s) {
    mw_signal_start(s->loop, &s->term, SIGTERM, on_term);
    mw_signal_start(s->loop, &s->interrupt, SIGINT, on_interrupt);
    mw_signal_start(s->loop, &s->hangup, SIGHUP, on_hangup);
    free_signals();
    mw_loop_run(s->loop);
    mw_signal_stop(&s->term);
    mw_signal_stop(&s->interrupt);
    mw_signal_stop(&s->hangup);
    mw_timer_stop(&s->limit);
    mw_notify_end();
}

static void end(mw_supervisor *s) {
    mw_desk_free(s->desk);
    s->desk = NULL;
    mw_control_free(s->control);
    mw_vigil_free(s->vigil);
    mw_crew_free(s->crew);
    mw_watch_free(s->watch);
    mw_shared_free(s->shared);
}

int mw_supervise(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    mw_error e;
    mw_supervisor s = {.loop = mw_core_loop(), .L = L};
    double drain = number(L, "drain", -1), workers = number(L, "workers", 0);
    luaL_argcheck(L, workers >= 0 && workers <= MW_SHARED_SLOTS, 1, "workers: 1 to 256");
    s.drain_given = drain >= 0;
    s.drain = s.drain_given ? drain : 25;
    lua_getfield(L, 1, "once");
    s.once = lua_toboolean(L, -1);
    lua_settop(L, 1);
    char **argv = take_argv(L);
    int rc = begin(&s, argv, &e);
    if (!rc) serve(&s);
    end(&s);
    free(argv);
    if (rc) {
        lua_pushnil(L);
        lua_pushstring(L, e.text);
        return 2;
    }
    lua_pushinteger(L, s.code);
    return 1;
}
