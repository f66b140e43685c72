#include "app/app.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "app/inside.h"
#include "process/notify.h"
#include "base/log.h"
#include "core/shared/shared.h"
#include "lua/core.h"
#include "lua/vm.h"
#include "pipeline/insight.h"
#include "supervisor/worker.h"

enum { IDLE_CHECK_MS = 50, LOOK_MS = 1000 };

app *mw_app_check(lua_State *L) {
    app *a = luaL_checkudata(L, 1, "moonwire.app");
    luaL_argcheck(L, a->site, 1, "the app is closed");
    return a;
}

int mw_app_failed(lua_State *L, const mw_error *e) {
    lua_pushnil(L);
    lua_pushstring(L, e->text);
    return 2;
}

void mw_app_set(lua_State *L, const char *name, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, name);
}

/* Calls a function that `run` was given, in the state that called `run`. */
static void call_back(app *a, int function, const char *argument) {
    mw_error e;
    if (function == LUA_REFNIL || function == LUA_NOREF) return;
    lua_rawgeti(a->L, LUA_REGISTRYINDEX, function);
    lua_pushstring(a->L, argument);
    if (mw_vm_call(a->L, 1, 0, &e) == 0) return;
    mw_log_begin(MW_ERROR, "internal error while reloading");
    mw_log_text("error", e.text);
    mw_log_end();
}

/* announce(reloading): to systemd */
static int l_announce(lua_State *L) {
    app *a = mw_app_check(L);
    if (!a->running || mw_site_draining(a->site)) return 0;
    if (lua_toboolean(L, 2)) {
        mw_notify_reloading();
    } else {
        mw_notify_ready(a->loop);
    }
    return 0;
}

static void beats(mw_timer *t) {
    app *a = mw_container_of(t, app, beating);
    call_back(a, a->beat, "");
}

/* beat(ms): the function `beat` that run was given is called once, then */
static int l_beat(lua_State *L) {
    app *a = mw_app_check(L);
    int64_t ms = (int64_t)luaL_checknumber(L, 2);
    if (a->running) mw_timer_start(a->loop, &a->beating, ms, beats);
    return 0;
}

static void on_hangup(mw_signal *s, int n) {
    (void)n;
    app *a = mw_container_of(s, app, hangup);
    if (mw_worker_wants_reload()) return; /* all workers change together */
    call_back(a, a->changed, "HUP");
}

/* ---- ending ---- */

static void site_drained(void *owner) {
    app *a = owner;
    a->drained = true;
    if (a->running) mw_loop_stop(a->loop);
}

static void limit_reached(mw_timer *t) {
    app *a = mw_container_of(t, app, drain_limit);
    mw_log_begin(MW_WARN, "drain limit reached: what still runs will be delivered again");
    mw_log_num("seconds", a->drain_seconds);
    mw_log_end();
    mw_loop_stop(a->loop);
}

static void begin_drain(app *a) {
    mw_timer_stop(&a->idle_check);
    mw_notify_stopping();
    mw_timer_start(a->loop, &a->drain_limit, (int64_t)(a->drain_seconds * 1000), limit_reached);
    mw_site_drain(a->site);
}

static void signalled(app *a, const char *name) {
    if (mw_site_draining(a->site)) { /* the second one: now */
        if (mw_shared_mine())
            return; /* which is the supervisor's to say: a manager may signal us and it at once */
        a->forced = true;
        mw_loop_stop(a->loop);
        return;
    }
    mw_log_begin(MW_INFO, "draining");
    mw_log_text("signal", name);
    mw_log_end();
    begin_drain(a);
}

static void on_term(mw_signal *s, int n) {
    (void)n;
    signalled(mw_container_of(s, app, term), "TERM");
}
static void on_interrupt(mw_signal *s, int n) {
    (void)n;
    signalled(mw_container_of(s, app, interrupt), "INT");
}

static void check_idle(mw_timer *t) {
    app *a = mw_container_of(t, app, idle_check);
    a->idle_turns = mw_site_idle(a->site) ? a->idle_turns + 1 : 0;
    if (a->idle_turns >= 2)
        begin_drain(a); /* twice: what one pipeline published may be on its way to the next */
    else
        mw_timer_start(a->loop, t, IDLE_CHECK_MS, check_idle);
}

static void on_change(void *owner) {
    app *a = owner;
    mw_log_begin(MW_INFO, "files changed");
    mw_log_end();
    call_back(a, a->changed, "files");
}

/* A command comes in: the function that `run` was given answers it, in the state that called `run`. */
static char *on_command(void *owner, const char *line) {
    app *a = owner;
    mw_error e;
    lua_rawgeti(a->L, LUA_REGISTRYINDEX, a->command);
    lua_pushstring(a->L, line);
    int rc = mw_vm_call(a->L, 1, 1, &e);
    char *reply = strdup(rc ? e.text : lua_isstring(a->L, -1) ? lua_tostring(a->L, -1) : "");
    if (!rc) lua_pop(a->L, 1);
    return reply;
}

/* Through the socket of a process that runs alone: the answer may come later, by app:answer. */
static void on_asked(void *owner, uint64_t number, const char *line) {
    app *a = owner;
    mw_error e;
    lua_rawgeti(a->L, LUA_REGISTRYINDEX, a->command);
    lua_pushstring(a->L, line);
    lua_pushnumber(a->L, (double)number);
    if (mw_vm_call(a->L, 2, 1, &e)) {
        mw_control_answer(a->control, number, e.text);
        return;
    }
    if (lua_isstring(a->L, -1)) mw_control_answer(a->control, number, lua_tostring(a->L, -1));
    lua_pop(a->L, 1);
}

/* answer(number, text) */
static int l_answer(lua_State *L) {
    app *a = mw_app_check(L);
    if (a->control) mw_control_answer(a->control, (uint64_t)luaL_checknumber(L, 2), luaL_checkstring(L, 3));
    return 0;
}

/* Keeps the shared figures fresh, for when nobody can answer. */
static void look(mw_timer *t) {
    app *a = mw_container_of(t, app, look);
    mw_pipeline **list;
    size_t count = mw_site_pipelines(a->site, &list);
    for (size_t i = 0; i < count; i++) mw_pipeline_look(list[i]);
    free(list);
    mw_timer_start(a->loop, t, LOOK_MS, look);
}

static const char *text_option(lua_State *L, const char *name) { /* lives as long as the table */
    lua_getfield(L, 2, name);
    const char *text = lua_tostring(L, -1);
    lua_pop(L, 1);
    return text;
}

static int take_function(lua_State *L, const char *name) {
    lua_getfield(L, 2, name);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

static void drop_function(lua_State *L, int *function) {
    luaL_unref(L, LUA_REGISTRYINDEX, *function);
    *function = LUA_NOREF;
}

static int open_doors(app *a, lua_State *L, mw_error *e) {
    const char *watched = text_option(L, "watch"), *path = text_option(L, "control");
    a->command = take_function(L, "command");
    a->changed = take_function(L, "changed");
    a->beat = take_function(L, "beat");
    if (watched && !(a->watch = mw_watch_new(a->loop, watched, on_change, a, e))) return -1;
    if (path && !(a->control = mw_control_new(a->loop, path, on_asked, a, e))) return -1;
    return 0;
}

static void close_doors(app *a, lua_State *L) {
    mw_watch_free(a->watch);
    mw_control_free(a->control);
    a->watch = NULL;
    a->control = NULL;
    drop_function(L, &a->command);
    drop_function(L, &a->changed);
    drop_function(L, &a->beat);
}

static double option(lua_State *L, const char *name, double otherwise) {
    lua_getfield(L, 2, name);
    double value = lua_isnumber(L, -1) ? lua_tonumber(L, -1) : otherwise;
    lua_pop(L, 1);
    return value;
}

/* Whoever starts us may hold them until somebody is there to take them; threads made meanwhile keep them
 * blocked. */
static void free_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static int l_run(lua_State *L) {
    app *a = mw_app_check(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    a->drain_seconds = option(L, "drain", 25);
    lua_getfield(L, 2, "once");
    bool once = lua_toboolean(L, -1);
    mw_error e;
    if (open_doors(a, L, &e)) {
        close_doors(a, L);
        return mw_app_failed(L, &e);
    }
    a->running = true;
    mw_signal_start(a->loop, &a->term, SIGTERM, on_term);
    mw_signal_start(a->loop, &a->interrupt, SIGINT, on_interrupt);
    mw_signal_start(a->loop, &a->hangup, SIGHUP, on_hangup);
    free_signals();
    if (once) mw_timer_start(a->loop, &a->idle_check, IDLE_CHECK_MS, check_idle);
    mw_notify_ready(a->loop);
    mw_worker_serve(a->loop, on_command, a);
    if (mw_shared_mine()) mw_timer_start(a->loop, &a->look, LOOK_MS, look);
    if (!a->drained) mw_loop_run(a->loop);
    mw_notify_end();
    mw_signal_stop(&a->term);
    mw_signal_stop(&a->interrupt);
    mw_signal_stop(&a->hangup);
    mw_timer_stop(&a->drain_limit);
    mw_timer_stop(&a->idle_check);
    mw_timer_stop(&a->beating);
    mw_timer_stop(&a->look);
    mw_worker_end();
    close_doors(a, L);
    a->running = false;
    lua_pushinteger(L, a->forced ? 1 : 0);
    return 1;
}

static int l_drain(lua_State *L) {
    app *a = mw_app_check(L);
    if (a->running)
        begin_drain(a);
    else
        mw_site_drain(a->site);
    return 0;
}

static int l_done(lua_State *L) {
    lua_pushboolean(L, mw_app_check(L)->drained);
    return 1;
}

static int l_idle(lua_State *L) {
    lua_pushboolean(L, mw_site_idle(mw_app_check(L)->site));
    return 1;
}

static int l_close(lua_State *L) {
    app *a = luaL_checkudata(L, 1, "moonwire.app");
    luaL_unref(L, LUA_REGISTRYINDEX, a->options);
    a->options = LUA_NOREF;
    mw_site_free(a->site);
    a->site = NULL;
    a->next = NULL;
    return 0;
}

static lua_State *main_thread(lua_State *L) {
    lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.vm");
    mw_vm *vm = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return vm->L;
}

int mw_app_new(lua_State *L) {
    static const luaL_Reg life[] = {
        {"run", l_run},     {"announce", l_announce}, {"beat", l_beat}, {"answer", l_answer},
        {"drain", l_drain}, {"done", l_done},         {"idle", l_idle}, {"close", l_close},
        {"kill", l_close},  {"__gc", l_close},        {NULL, NULL}};
    app *a = lua_newuserdata(L, sizeof *a);
    memset(a, 0, sizeof *a);
    if (luaL_newmetatable(L, "moonwire.app")) {
        luaL_register(L, NULL, life);
        luaL_register(L, NULL, mw_app_reload);
        luaL_register(L, NULL, mw_app_views);
        lua_pushvalue(L, -1);
        lua_setfield(L, -2, "__index");
    }
    lua_setmetatable(L, -2);
    a->loop = mw_core_loop();
    a->options = a->command = a->changed = a->beat = LUA_NOREF;
    a->L = main_thread(L);
    a->site = mw_site_new(a->loop, site_drained, a);
    return 1;
}
