#include "lua/app.h"

#include <lauxlib.h>
#include <signal.h>
#include <string.h>

#include "base/log.h"
#include "lua/core.h"
#include "lua/vm.h"

enum { IDLE_CHECK_MS = 50 };

typedef struct app {
    mw_vm *vm;
    mw_loop *loop;
    mw_signal term, interrupt;
    mw_timer drain_limit, idle_check;
    double drain_seconds;
    int idle_turns;
    bool running, drained, forced, over_limit;
} app;

static app *check_app(lua_State *L) {
    app *a = luaL_checkudata(L, 1, "moonwire.app");
    luaL_argcheck(L, a->vm, 1, "the app is closed");
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

static int l_load(lua_State *L) {
    app *a = check_app(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_State *G = a->vm->L;
    mw_error e;
    lua_getglobal(G, "require");
    lua_pushliteral(G, "moonwire.internal.boot");
    if (mw_vm_call(G, 1, 1, &e)) return failed(L, &e);
    lua_newtable(G);
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        copy_value(L, -2, G);
        copy_value(L, -1, G);
        lua_rawset(G, -3);
    }
    if (mw_vm_call(G, 1, 2, &e)) return failed(L, &e);
    copy_value(G, -2, L);
    copy_value(G, -1, L);
    lua_pop(G, 2);
    return 2;
}

static int l_start(lua_State *L) {
    app *a = check_app(L);
    mw_error e;
    if (mw_vm_start(a->vm, &e)) return failed(L, &e);
    lua_pushboolean(L, 1);
    return 1;
}

/* ---- ending ---- */

static void vm_drained(mw_vm *vm) {
    app *a = vm->owner;
    a->drained = true;
    if (a->running) mw_loop_stop(a->loop);
}

static void limit_reached(mw_timer *t) {
    app *a = mw_container_of(t, app, drain_limit);
    a->over_limit = true;
    mw_log_begin(MW_WARN, "drain limit reached: what still runs will be delivered again");
    mw_log_num("seconds", a->drain_seconds);
    mw_log_end();
    mw_loop_stop(a->loop);
}

static void begin_drain(app *a) {
    mw_timer_stop(&a->idle_check);
    mw_timer_start(a->loop, &a->drain_limit, (int64_t)(a->drain_seconds * 1000), limit_reached);
    mw_vm_drain(a->vm);
}

static void signalled(app *a, const char *name) {
    if (a->vm->draining) { /* the second one: now */
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
    a->idle_turns = mw_vm_idle(a->vm) ? a->idle_turns + 1 : 0;
    if (a->idle_turns >= 2)
        begin_drain(a); /* twice: what one pipeline published may be on its way to the next */
    else
        mw_timer_start(a->loop, t, IDLE_CHECK_MS, check_idle);
}

static double option(lua_State *L, const char *name, double otherwise) {
    lua_getfield(L, 2, name);
    double value = lua_isnumber(L, -1) ? lua_tonumber(L, -1) : otherwise;
    lua_pop(L, 1);
    return value;
}

static int l_run(lua_State *L) {
    app *a = check_app(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    a->drain_seconds = option(L, "drain", 25);
    lua_getfield(L, 2, "once");
    bool once = lua_toboolean(L, -1);
    a->running = true;
    mw_signal_start(a->loop, &a->term, SIGTERM, on_term);
    mw_signal_start(a->loop, &a->interrupt, SIGINT, on_interrupt);
    if (once) mw_timer_start(a->loop, &a->idle_check, IDLE_CHECK_MS, check_idle);
    if (!a->drained) mw_loop_run(a->loop);
    mw_signal_stop(&a->term);
    mw_signal_stop(&a->interrupt);
    mw_timer_stop(&a->drain_limit);
    mw_timer_stop(&a->idle_check);
    a->running = false;
    lua_pushinteger(L, a->forced ? 1 : 0);
    return 1;
}

static int l_drain(lua_State *L) {
    mw_vm_drain(check_app(L)->vm);
    return 0;
}

static int l_done(lua_State *L) {
    lua_pushboolean(L, check_app(L)->drained);
    return 1;
}

static int l_idle(lua_State *L) {
    lua_pushboolean(L, mw_vm_idle(check_app(L)->vm));
    return 1;
}

static int l_close(lua_State *L) {
    app *a = luaL_checkudata(L, 1, "moonwire.app");
    mw_vm_free(a->vm);
    a->vm = NULL;
    return 0;
}

/* ---- status ---- */

static void set_number(lua_State *L, const char *name, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, name);
}

static void push_pipeline(lua_State *L, mw_pipeline *p) {
    mw_counters c;
    mw_pipeline_counters(p, &c);
    lua_newtable(L);
    lua_pushstring(L, mw_pipeline_name(p));
    lua_setfield(L, -2, "name");
    lua_pushstring(L, mw_pipeline_settings(p)->channel);
    lua_setfield(L, -2, "channel");
    set_number(L, "in_flight", mw_pipeline_in_flight(p));
    set_number(L, "running", mw_pipeline_running(p));
    set_number(L, "received", (double)c.received);
    set_number(L, "handled", (double)c.handled);
    set_number(L, "retried", (double)c.retried);
    set_number(L, "dead", (double)c.dead);
    set_number(L, "dropped", (double)c.dropped);
    set_number(L, "deduped", (double)c.deduped);
    set_number(L, "fenced", (double)c.fenced);
    set_number(L, "published", (double)c.published);
    set_number(L, "parked", (double)c.parked);
    set_number(L, "released", (double)c.released);
}

static int l_status(lua_State *L) {
    app *a = check_app(L);
    lua_newtable(L);
    size_t count = a->vm->pipelines.len / sizeof(mw_pipeline *);
    for (size_t i = 0; i < count; i++) {
        push_pipeline(L, ((mw_pipeline **)(void *)a->vm->pipelines.data)[i]);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

int mw_app_new(lua_State *L) {
    static const luaL_Reg methods[] = {{"load", l_load},     {"start", l_start}, {"run", l_run},
                                       {"drain", l_drain},   {"done", l_done},   {"idle", l_idle},
                                       {"status", l_status}, {"close", l_close}, {"kill", l_close},
                                       {"__gc", l_close},    {NULL, NULL}};
    static uint32_t generation;
    app *a = lua_newuserdata(L, sizeof *a);
    memset(a, 0, sizeof *a);
    if (luaL_newmetatable(L, "moonwire.app")) {
        luaL_register(L, NULL, methods);
        lua_pushvalue(L, -1);
        lua_setfield(L, -2, "__index");
    }
    lua_setmetatable(L, -2);
    a->loop = mw_core_loop();
    a->vm = mw_vm_new(a->loop, ++generation);
    a->vm->owner = a;
    a->vm->drained = vm_drained;
    return 1;
}
