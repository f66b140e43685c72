/* inside.h - what the files of the running project share: app.c its life, reload.c its generations, views.c
 * what it shows of itself. */
#pragma once
#include <lauxlib.h>

#include "process/control.h"
#include "process/watch.h"
#include "loop/loop.h"
#include "lua/site.h"

typedef struct app {
    mw_site *site;
    mw_vm *next; /* loaded, not current yet */
    mw_loop *loop;
    lua_State *L; /* of the CLI or spec that made it: the main thread, which outlives its coroutines */
    int options;  /* registry reference there: what load was called with, for reloads */
    mw_signal term, interrupt, hangup;
    mw_timer drain_limit, idle_check, beating, look;
    mw_watch *watch;
    mw_control *control;
    int command, changed, beat; /* registry references: answers commands; begins a reload; goes on with it */
    double drain_seconds;
    int idle_turns;
    bool running, drained, forced;
} app;

app *mw_app_check(lua_State *L);                               /* the first argument, and not closed */
int mw_app_failed(lua_State *L, const mw_error *e);            /* pushes nil and the text */
void mw_app_set(lua_State *L, const char *name, double value); /* a field of the table on top */

extern const luaL_Reg mw_app_reload[], mw_app_views[]; /* methods */
