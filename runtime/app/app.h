/* app.h - a running project: generations on the process's loop, its signals and its drain. A userdata for the
 * CLI and for specs, made by core.app():
 *     app:load{ dir = ... } -> true, settings | nil, text       reads and checks the project
 *     app:start() -> true | nil, text                           opens its pipelines
 *     app:run{ drain, once, watch, control, command, changed, beat } -> exit code
 *         command(line, number) answers, or app:answer(number, text) does later; changed(by) on HUP and
 *         changed files; beat() once after app:beat(ms)
 *     app:prepare(), app:commit() | app:abandon()               a reload, in steps; app:reload(): all at once
 *     app:try(share, code), app:trial(), app:promote() | app:rollback()       a canary of what is prepared
 *     app:status(), app:explain(text), app:pause(name, paused), app:generation(), app:draining()
 *     app:drain(), app:done(), app:idle(), app:kill(), app:close()            for specs, with core.step */
#pragma once
#include <lua.h>

int mw_app_new(lua_State *L);
