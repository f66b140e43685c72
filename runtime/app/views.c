/* views.c - what a running project shows of itself, and the pause of a pipeline. */
#include <stdlib.h>
#include <string.h>

#include "app/inside.h"
#include "lua/report.h"
#include "base/url.h"
#include "redis/calls.h"
#include "lua/vm.h"
#include "pipeline/insight.h"

static int l_status(lua_State *L) {
    app *a = mw_app_check(L);
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

/* Those of handlers (mw.redis); vm may be NULL. */
static void report_redis(lua_State *L, const mw_vm *vm, int64_t now_ms) {
    for (const mw_redis *r = vm ? vm->redis : NULL; r; r = mw_redis_next(r, NULL)) {
        mw_peer peer;
        char *shown = mw_url_shown(mw_redis_url(r));
        mw_report_peers(L, shown, &peer, mw_redis_peers(r, &peer), now_ms);
        free(shown);
    }
}

/* connections() -> one table for each connection to a server */
static int l_connections(lua_State *L) {
    app *a = mw_app_check(L);
    mw_link **list;
    size_t count = mw_site_links(a->site, &list);
    lua_newtable(L);
    for (size_t i = 0; i < count; i++) mw_report_connections(L, list[i], mw_loop_wall_ms(a->loop));
    free(list);
    report_redis(L, mw_site_current(a->site), mw_loop_wall_ms(a->loop));
    report_redis(L, mw_site_trial(a->site), mw_loop_wall_ms(a->loop));
    return 1;
}

/* explain(text): for each pipeline what it knows of that key or message id */
static int l_explain(lua_State *L) {
    app *a = mw_app_check(L);
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
    app *a = mw_app_check(L);
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

/* trial() -> { generation, share, pipelines = { { name, messages, failures, old_messages, old_failures } } }
 * while a canary runs; nil */
static int l_trial(lua_State *L) {
    app *a = mw_app_check(L);
    mw_vm *vm = mw_site_trial(a->site);
    if (!vm) return 0;
    lua_newtable(L);
    mw_app_set(L, "generation", vm->generation);
    lua_newtable(L);
    for (size_t i = 0; i < mw_vm_plans(vm); i++) {
        mw_pipeline *p = mw_vm_plan(vm, i)->p;
        mw_trial_view v;
        mw_pipeline_trial(p, &v);
        lua_newtable(L);
        lua_pushstring(L, mw_pipeline_name(p));
        lua_setfield(L, -2, "name");
        mw_app_set(L, "share", v.share);
        mw_app_set(L, "messages", (double)v.messages);
        mw_app_set(L, "failures", (double)v.failures);
        mw_app_set(L, "old_messages", (double)v.old_messages);
        mw_app_set(L, "old_failures", (double)v.old_failures);
        lua_rawseti(L, -2, (int)i + 1);
    }
    lua_setfield(L, -2, "pipelines");
    return 1;
}

static int l_draining(lua_State *L) {
    lua_pushboolean(L, mw_site_draining(mw_app_check(L)->site));
    return 1;
}

static int l_generation(lua_State *L) {
    mw_vm *vm = mw_site_current(mw_app_check(L)->site);
    lua_pushnumber(L, vm ? vm->generation : 0);
    return 1;
}

const luaL_Reg mw_app_views[] = {
    {"status", l_status}, {"connections", l_connections}, {"explain", l_explain},       {"pause", l_pause},
    {"trial", l_trial},   {"draining", l_draining},       {"generation", l_generation}, {NULL, NULL}};
