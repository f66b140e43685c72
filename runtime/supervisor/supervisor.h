/* supervisor.h - `moonwire run --workers N`: keeps N workers running, passes signals on, tells systemd. It
 * opens no connection and runs no handler, so no handler can take it down. A Lua function of moonwire.core:
 *     supervise { workers = N, argv = { word... }, drain = seconds, crash_attempts = N, once = boolean,
 *                 watch = folder | nil, check = function() -> drain, crash_attempts | nil }
 *       -> exit code | nil, text
 * `check` reads the project before a reload; nil: it is broken, and no worker is bothered. */
#pragma once
#include <lua.h>

int mw_supervise(lua_State *L);
