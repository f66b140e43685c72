/* app.h - a running project: one generation on the process's loop, its signals and its drain. A userdata for
 * the CLI and for specs: local app = core.app() app:load{ dir = "...", ... } -> true | nil, text      reads
 * and checks the project app:start() -> true | nil, text                       opens connections and
 * pipelines app:run{ drain = seconds, once = boolean } -> exit code app:drain(), app:done(), app:idle(),
 * app:status(), app:kill(), app:close()                     for specs, with core.step */
#pragma once
#include <lua.h>

int mw_app_new(lua_State *L);
