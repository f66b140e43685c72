/* reload.c - a project's generations: read, made current, tried as a canary. */
#include <string.h>

#include "app/inside.h"
#include "base/hash.h"
#include "base/log.h"
#include "lua/deadline.h"
#include "lua/vm.h"

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

/* Leaves the function that reads projects on the stack. What loading leaves behind is not worth collecting:
 * it would take a part of the time. (Nor is it worth compiling, see mw_deadline_read.) */
static bool load_library(lua_State *G, mw_error *e) {
    lua_gc(G, LUA_GCSTOP, 0);
    lua_getglobal(G, "require");
    lua_pushliteral(G, "moonwire.internal.boot");
    bool ok = mw_vm_call(G, 1, 1, e) == 0;
    lua_gc(G, LUA_GCRESTART, 0);
    return ok;
}

/* Reads the project into a fresh generation; the options stand on L at `options`. Pushes true and a value, or
 * nil and why not. */
static bool load(app *a, lua_State *L, int options) {
    mw_error e;
    if (a->next) mw_site_reject(a->site, a->next);
    a->next = mw_site_prepare(a->site);
    lua_State *G = a->next->L;
    mw_reading reading = mw_deadline_read(a->next);
    bool ok = load_library(G, &e);
    if (ok) {
        copy_table(L, options, G);
        ok = mw_vm_call(G, 1, 2, &e) == 0;
    }
    lua_getfield(L, options, "jit");
    mw_deadline_read_end(a->next, reading, !lua_isstring(L, -1) || strcmp(lua_tostring(L, -1), "off") != 0);
    lua_pop(L, 1);
    if (ok) {
        copy_value(G, -2, L);
        if (lua_istable(G, -1))
            copy_table(G, lua_gettop(G), L);
        else
            copy_value(G, -1, L);
        lua_pop(G, 2);
        ok = lua_toboolean(L, -2);
    } else {
        mw_app_failed(L, &e);
    }
    if (!ok) {
        mw_site_reject(a->site, a->next);
        a->next = NULL;
    }
    return ok;
}

static int l_load(lua_State *L) {
    app *a = mw_app_check(L);
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
    app *a = mw_app_check(L);
    mw_error e;
    mw_switch changes;
    if (switch_to_next(a, &changes, &e)) return mw_app_failed(L, &e);
    lua_pushboolean(L, 1);
    return 1;
}

/* ---- reloading ---- */

static void push_changes(lua_State *L, const mw_switch *changes) {
    lua_newtable(L);
    mw_app_set(L, "generation", changes->generation);
    mw_app_set(L, "kept", changes->kept);
    mw_app_set(L, "added", changes->added);
    mw_app_set(L, "removed", changes->removed);
}

static void log_changes(lua_State *L) { /* the table on top */
    static const char *const names[] = {"generation", "kept", "added", "removed"};
    mw_log_begin(MW_INFO, "reloaded");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        lua_getfield(L, -1, names[i]);
        mw_log_int(names[i], lua_tointeger(L, -1));
        lua_pop(L, 1);
    }
    mw_log_end();
}

/* In steps, for workers that must change together. prepare() -> true, settings | nil, problems: reads the
 * project anew, into a generation that waits beside the one that serves */
static int l_prepare(lua_State *L) {
    app *a = mw_app_check(L);
    mw_error e;
    if (mw_site_draining(a->site)) {
        mw_fail(&e, MW_ECLOSED, false, "it is draining: nothing is loaded any more");
        return mw_app_failed(L, &e);
    }
    lua_rawgeti(L, LUA_REGISTRYINDEX, a->options);
    load(a, L, lua_gettop(L));
    return 2;
}

/* abandon(): the one that waits is not wanted */
static int l_abandon(lua_State *L) {
    app *a = mw_app_check(L);
    if (a->next) mw_site_reject(a->site, a->next);
    a->next = NULL;
    return 0;
}

/* commit() -> a table of what changed | nil, why the old generation serves on */
static int l_commit(lua_State *L) {
    app *a = mw_app_check(L);
    mw_error e;
    mw_switch changes;
    if (switch_to_next(a, &changes, &e)) return mw_app_failed(L, &e);
    push_changes(L, &changes);
    if (a->running) log_changes(L);
    return 1;
}

/* reload(): both in one */
static int l_reload(lua_State *L) {
    if (l_prepare(L) == 2 && !lua_toboolean(L, -2)) return 2;
    return l_commit(L);
}

/* try(share, code) -> generation | nil, text: the one that waits becomes a canary; `code` only salts the hash
 */
static int l_try(lua_State *L) {
    app *a = mw_app_check(L);
    double share = luaL_checknumber(L, 2);
    size_t len;
    const char *code = luaL_checklstring(L, 3, &len);
    luaL_argcheck(L, share > 0 && share < 1, 2, "a share between 0 and 1");
    mw_error e;
    mw_vm *next = a->next;
    a->next = NULL;
    if (!next) {
        mw_fail(&e, MW_EUSAGE, false, "nothing is loaded");
        return mw_app_failed(L, &e);
    }
    if (mw_site_try(a->site, next, share, mw_hash64(code, len), &e)) {
        mw_site_reject(a->site, next);
        return mw_app_failed(L, &e);
    }
    lua_pushnumber(L, next->generation);
    return 1;
}

static int l_promote(lua_State *L) {
    app *a = mw_app_check(L);
    mw_switch changes;
    if (!mw_site_trial(a->site)) return 0;
    mw_site_promote(a->site, &changes);
    push_changes(L, &changes);
    if (a->running) log_changes(L);
    return 1;
}

static int l_rollback(lua_State *L) {
    mw_site_rollback(mw_app_check(L)->site);
    return 0;
}

const luaL_Reg mw_app_reload[] = {
    {"load", l_load},         {"start", l_start},   {"reload", l_reload}, {"prepare", l_prepare},
    {"abandon", l_abandon},   {"commit", l_commit}, {"try", l_try},       {"promote", l_promote},
    {"rollback", l_rollback}, {NULL, NULL}};
