/* watch.h - tells when a project's files change: Lua, JSON and .env, in its folder and those below. Writes,
 * renames, new folders and links that lead elsewhere count; editors' temporary files and the store's own files
 * do not. Changes within a moment are one. Our own inotify, because ev_stat polls. */
#pragma once
#include <lua.h>

#include "base/error.h"
#include "loop/loop.h"

typedef struct mw_watch mw_watch;

mw_watch *mw_watch_new(mw_loop *loop, const char *dir, void (*changed)(void *owner), void *owner,
                       mw_error *e);
void mw_watch_free(mw_watch *w); /* NULL is fine */

/* core.watch(dir) -> watch | nil, text; watch:changed() -> since it was asked last? The loop must turn. */
int mw_watch_lua(lua_State *L);
