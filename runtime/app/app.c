#include "app/app.h"

#include <lauxlib.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "app/control.h"
#include "app/notify.h"
#include "app/report.h"
#include "app/watch.h"
#include "base/log.h"
#include "lua/core.h"
#include "lua/vm.h"
#include "supervisor/worker.h"

enum { IDLE_CHECK_MS = 50 };

typedef struct app {
    mw_site *site;
    mw_vm *next; /* loaded, not current yet */
    mw_loop *loop;
    lua_State *L; /* of the CLI or spec that made it: the main thread, which outlives its coroutines */
    int options;  /* registry reference there: what load was called with, for reloads */
    mw_signal term, interrupt, hangup;
    mw_timer drain_limit, idle_check;
    mw_watch *watch;
    mw_control *control;
    int command; /* registry reference of the function that answers commands */
    double drain_seconds;
    int idle_turns;
    bool running, drained, forced;
} app;

static app *check_app(lua_State *L) {
    app *a = luaL_checkudata(L, 1, "moonwire.app");
    luaL_argcheck(L, a->site, 1, "the app is closed");
    return a;
}

static int failed(lua_State *L, const mw_error *e) {
    lua_pushnil(L);
    lua_pushstring(L, e->text);
    return 2;
}

/* ---- loading ---- */

static void copy_value(lua_State *from, int at,
                       lua_State *to) { /* one level of plain values is all that crosses */
    size_t len;
    switch (lua_type(from, at)) {
    case LUA_TBOOLEAN: lua_pushboolean(to, lua_toboolean(from, at)); break;
    case LUA_TNUMBER: lua_pushnumber(to, lua_tonumber(from, at)); break;
    case LUA_TSTRING: {
        const char *text = lua_tolstring(from, at, &len);
        lua_pushlstring(to, text, len);
        break;
    }
    default: lua_pushnil(to);
    }
}

static void copy_table(lua_State *from, int at, lua_State *to) {
    lua_newtable(to);
    for (lua_pushnil(from); lua_next(from, at); lua_pop(from, 1)) {
        copy_value(from, -2, to);
        copy_value(from, -1, to);
        lua_rawset(to, -3);
    }
}

/* Reads the project into a fresh generation; the options stand on L at `options`. Pushes true and a value, or
 * nil and why not. */
static bool load(app *a, lua_State *L, int options) {
    mw_error e;
    if (a->next) mw_site_reject(a->site, a->next);
    a->next = mw_site_prepare(a->site);
    lua_State *G = a->next->L;
    lua_getglobal(G, "require");
    lua_pushliteral(G, "moonwire.internal.boot");
    bool ok = mw_vm_call(G, 1, 1, &e) == 0;
    if (ok) {
        copy_table(L, options, G);
        ok = mw_vm_call(G, 1, 2, &e) == 0;
    }
    if (ok) {
        copy_value(G, -2, L);
        if (lua_istable(G, -1))
            copy_table(G, lua_gettop(G), L);
        else
            copy_value(G, -1, L);
        lua_pop(G, 2);
        ok = lua_toboolean(L, -2);
    } else {
        failed(L, &e);
    }
    if (!ok) {
        mw_site_reject(a->site, a->next);
        a->next = NULL;
    }
    return ok;
}

static int l_load(lua_State *L) {
    app *a = check_app(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    luaL_unref(L, LUA_REGISTRYINDEX, a->options);
    lua_pushvalue(L, 2);
    a->options = luaL_ref(L, LUA_REGISTRYINDEX);
    load(a, L, 2);
    return 2;
}

static int switch_to_next(app *a, mw_switch *out, mw_error *e) {
    mw_vm *next = a->next;
    a->next = NULL;
    if (!next) return mw_fail(e, MW_EUSAGE, false, "nothing is loaded");
    if (mw_site_switch(a->site, next, out, e) == 0) return 0;
    mw_site_reject(a->site, next);
    return -1;
}

static int l_start(lua_State *L) {
    app *a = check_app(L);
    mw_error e;
    mw_switch changes;
    if (switch_to_next(a, &changes, &e)) return failed(L, &e);
    lua_pushboolean(L, 1);
    return 1;
}

/* ---- reloading ---- */

static void set_number(lua_State *L, const char *name, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, name);
}

static int load_and_switch(app *a, lua_State *L) {
    mw_error e;
    mw_switch changes;
    lua_rawgeti(L, LUA_REGISTRYINDEX, a->options);
    if (!load(a, L, lua_gettop(L))) return 2;
    if (switch_to_next(a, &changes, &e)) return failed(L, &e);
    lua_newtable(L);
    set_number(L, "generation", changes.generation);
    set_number(L, "kept", changes.kept);
    set_number(L, "added", changes.added);
    set_number(L, "removed", changes.removed);
    return 1;
}

/* Pushes a table of what changed, or nil and why the old generation serves on. */
static int reload(app *a, lua_State *L) {
    mw_error e;
    if (mw_site_draining(a->site)) {
        mw_fail(&e, MW_ECLOSED, false, "it is draining: nothing is loaded any more");
        return failed(L, &e);
    }
    if (!a->running) return load_and_switch(a, L);
    mw_notify_reloading();
    int results = load_and_switch(a, L);
    mw_notify_ready(a->loop);
    mw_worker_tell(MW_WORKER_RELOADED);
    return results;
}

static int l_reload(lua_State *L) { return reload(check_app(L), L); }

static void log_refusal(const char *problems) {
    for (const char *line = problems, *end; *line; line = *end ? end + 1 : end) {
        end = strchrnul(line, '\n');
        mw_log_begin(MW_ERROR, "reload refused");
        mw_log_str("error", line, (size_t)(end - line));
        mw_log_end();
    }
}

static void reload_and_log(app *a) {
    int top = lua_gettop(a->L);
    if (reload(a, a->L) == 1) {
        mw_log_begin(MW_INFO, "reloaded");
        static const char *const names[] = {"generation", "kept", "added", "removed"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            lua_getfield(a->L, -1, names[i]);
            mw_log_int(names[i], lua_tointeger(a->L, -1));
            lua_pop(a->L, 1);
        }
        mw_log_end();
    } else {
        log_refusal(lua_tostring(a->L, -1));
    }
    lua_settop(a->L, top);
}

static void on_hangup(mw_signal *s, int n) {
    (void)n;
    reload_and_log(mw_container_of(s, app, hangup));
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
    mw_log_begin(MW_INFO, "files changed");
    mw_log_end();
    reload_and_log(owner);
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

static const char *text_option(lua_State *L, const char *name) { /* lives as long as the table */
    lua_getfield(L, 2, name);
    const char *text = lua_tostring(L, -1);
    lua_pop(L, 1);
    return text;
}

static int open_doors(app *a, lua_State *L, mw_error *e) {
    const char *watched = text_option(L, "watch"), *path = text_option(L, "control");
    lua_getfield(L, 2, "command");
    a->command = luaL_ref(L, LUA_REGISTRYINDEX);
    if (watched && !(a->watch = mw_watch_new(a->loop, watched, on_change, a, e))) return -1;
    if (path && !(a->control = mw_control_new(a->loop, path, on_command, a, e))) return -1;
    return 0;
}

static void close_doors(app *a, lua_State *L) {
    mw_watch_free(a->watch);
    mw_control_free(a->control);
    a->watch = NULL;
    a->control = NULL;
    luaL_unref(L, LUA_REGISTRYINDEX, a->command);
    a->command = LUA_NOREF;
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
    app *a = check_app(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    a->drain_seconds = option(L, "drain", 25);
    lua_getfield(L, 2, "once");
    bool once = lua_toboolean(L, -1);
    mw_error e;
    if (open_doors(a, L, &e)) {
        close_doors(a, L);
        return failed(L, &e);
    }
    a->running = true;
    mw_signal_start(a->loop, &a->term, SIGTERM, on_term);
    mw_signal_start(a->loop, &a->interrupt, SIGINT, on_interrupt);
    mw_signal_start(a->loop, &a->hangup, SIGHUP, on_hangup);
    free_signals();
    if (once) mw_timer_start(a->loop, &a->idle_check, IDLE_CHECK_MS, check_idle);
    mw_notify_ready(a->loop);
    mw_worker_tell(MW_WORKER_STARTED);
    if (!a->drained) mw_loop_run(a->loop);
    mw_notify_end();
    mw_signal_stop(&a->term);
    mw_signal_stop(&a->interrupt);
    mw_signal_stop(&a->hangup);
    mw_timer_stop(&a->drain_limit);
    mw_timer_stop(&a->idle_check);
    close_doors(a, L);
    a->running = false;
    lua_pushinteger(L, a->forced ? 1 : 0);
    return 1;
}

static int l_drain(lua_State *L) {
    app *a = check_app(L);
    if (a->running) {
        mw_worker_tell(MW_WORKER_DRAINS);
        begin_drain(a);
    } else {
        mw_site_drain(a->site);
    }
    return 0;
}

static int l_done(lua_State *L) {
    lua_pushboolean(L, check_app(L)->drained);
    return 1;
}

static int l_idle(lua_State *L) {
    lua_pushboolean(L, mw_site_idle(check_app(L)->site));
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

/* ---- status ---- */

static int l_status(lua_State *L) {
    app *a = check_app(L);
    mw_pipeline **list;
    size_t count = mw_site_pipelines(a->site, &list);
    lua_newtable(L);
    for (size_t i = 0; i < count; i++) {
        mw_report_status(L, list[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
    free(list);
    return 1;
}

/* connections() -> one table for each connection to a server */
static int l_connections(lua_State *L) {
    app *a = check_app(L);
    mw_link **list;
    size_t count = mw_site_links(a->site, &list);
    lua_newtable(L);
    for (size_t i = 0; i < count; i++) mw_report_connections(L, list[i], mw_loop_wall_ms(a->loop));
    free(list);
    return 1;
}

/* explain(text): for each pipeline what it knows of that key or message id */
static int l_explain(lua_State *L) {
    app *a = check_app(L);
    size_t len;
    const char *text = luaL_checklstring(L, 2, &len);
    mw_pipeline **list;
    size_t count = mw_site_pipelines(a->site, &list);
    lua_newtable(L);
    for (size_t i = 0; i < count; i++) {
        mw_report_explain(L, list[i], text, len);
        lua_rawseti(L, -2, (int)i + 1);
    }
    free(list);
    return 1;
}

/* pause(name, paused) -> was there such a pipeline? One that drains takes nothing anyway. */
static int l_pause(lua_State *L) {
    app *a = check_app(L);
    const char *name = luaL_checkstring(L, 2);
    bool found = false;
    mw_pipeline **list;
    size_t count = mw_site_pipelines(a->site, &list);
    for (size_t i = 0; i < count; i++) {
        if (mw_pipeline_draining(list[i]) || strcmp(mw_pipeline_name(list[i]), name) != 0) continue;
        mw_pipeline_pause(list[i], lua_toboolean(L, 3));
        found = true;
    }
    free(list);
    lua_pushboolean(L, found);
    return 1;
}

static int l_generation(lua_State *L) {
    mw_vm *vm = mw_site_current(check_app(L)->site);
    lua_pushnumber(L, vm ? vm->generation : 0);
    return 1;
}

static lua_State *main_thread(lua_State *L) {
    lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.vm");
    mw_vm *vm = lua_touserdata(L, -1);
    lua_pop(L, 1);
    return vm->L;
}

int mw_app_new(lua_State *L) {
    static const luaL_Reg methods[] = {{"load", l_load},
                                       {"start", l_start},
                                       {"reload", l_reload},
                                       {"run", l_run},
                                       {"drain", l_drain},
                                       {"done", l_done},
                                       {"idle", l_idle},
                                       {"status", l_status},
                                       {"generation", l_generation},
                                       {"explain", l_explain},
                                       {"pause", l_pause},
                                       {"close", l_close},
                                       {"connections", l_connections},
                                       {"kill", l_close},
                                       {"__gc", l_close},
                                       {NULL, NULL}};
    app *a = lua_newuserdata(L, sizeof *a);
    memset(a, 0, sizeof *a);
    if (luaL_newmetatable(L, "moonwire.app")) {
        luaL_register(L, NULL, methods);
        lua_pushvalue(L, -1);
        lua_setfield(L, -2, "__index");
    }
    lua_setmetatable(L, -2);
    a->loop = mw_core_loop();
    a->options = a->command = LUA_NOREF;
    a->L = main_thread(L);
    a->site = mw_site_new(a->loop, site_drained, a);
    return 1;
}
