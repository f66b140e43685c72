#include "process/watch.h"

#include <errno.h>
#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lua/core.h"
#include "process/tree.h"

enum { SETTLE_MS = 100 };

struct mw_watch {
    mw_loop *loop;
    char *dir;
    mw_tree tree;
    mw_io io;
    mw_timer settle;
    void (*changed)(void *owner);
    void *owner;
};

static void readable(mw_io *io, int events);

/* The tree is read anew, watches and all: folders come and go, and links lead elsewhere. What changes from here
 * on is seen by the new watches; what changed before is in the new print. A project that cannot be read at the
 * moment keeps its old watches: they see it come back. */
static void settled(mw_timer *timer) {
    mw_watch *w = mw_container_of(timer, mw_watch, settle);
    mw_tree next;
    if (mw_tree_read(&next, w->dir)) {
        mw_tree_free(&next);
        return;
    }
    bool differs = next.print != w->tree.print;
    mw_io_stop(&w->io);
    mw_tree_free(&w->tree);
    w->tree = next;
    mw_io_start(w->loop, &w->io, w->tree.fd, MW_READ, readable);
    if (differs) w->changed(w->owner);
}

static void readable(mw_io *io, int events) {
    (void)events;
    mw_watch *w = mw_container_of(io, mw_watch, io);
    _Alignas(struct inotify_event) char space[16 * 1024];
    for (ssize_t n; (n = read(w->tree.fd, space, sizeof space)) > 0;)
        for (char *at = space; at < space + n;) {
            struct inotify_event *event = (struct inotify_event *)(void *)at;
            if (mw_tree_concerns(&w->tree, event)) mw_timer_start(w->loop, &w->settle, SETTLE_MS, settled);
            at += sizeof *event + event->len;
        }
}

mw_watch *mw_watch_new(mw_loop *loop, const char *dir, void (*changed)(void *owner), void *owner,
                       mw_error *e) {
    mw_watch *w = calloc(1, sizeof *w);
    if (!w || !(w->dir = strdup(dir))) abort();
    w->loop = loop;
    w->changed = changed;
    w->owner = owner;
    if (mw_tree_read(&w->tree, dir)) {
        mw_fail(e, errno, true, "cannot watch %s: %s", dir, strerror(errno));
        mw_watch_free(w);
        return NULL;
    }
    mw_io_start(loop, &w->io, w->tree.fd, MW_READ, readable);
    return w;
}

void mw_watch_free(mw_watch *w) {
    if (!w) return;
    mw_io_stop(&w->io);
    mw_timer_stop(&w->settle);
    mw_tree_free(&w->tree);
    free(w->dir);
    free(w);
}

/* ---- for Lua ---- */

typedef struct watcher {
    mw_watch *watch;
    bool changed;
} watcher;

static void note_change(void *owner) { ((watcher *)owner)->changed = true; }

static int l_changed(lua_State *L) {
    watcher *w = luaL_checkudata(L, 1, "moonwire.watch");
    lua_pushboolean(L, w->changed);
    w->changed = false;
    return 1;
}

static int l_gc(lua_State *L) {
    watcher *w = luaL_checkudata(L, 1, "moonwire.watch");
    mw_watch_free(w->watch);
    w->watch = NULL;
    return 0;
}

int mw_watch_lua(lua_State *L) {
    static const luaL_Reg methods[] = {{"changed", l_changed}, {"__gc", l_gc}, {NULL, NULL}};
    const char *dir = luaL_checkstring(L, 1);
    watcher *w = lua_newuserdata(L, sizeof *w);
    *w = (watcher){0};
    if (luaL_newmetatable(L, "moonwire.watch")) {
        luaL_register(L, NULL, methods);
        lua_pushvalue(L, -1);
        lua_setfield(L, -2, "__index");
    }
    lua_setmetatable(L, -2);
    mw_error e;
    w->watch = mw_watch_new(mw_core_loop(), dir, note_change, w, &e);
    if (w->watch) return 1;
    lua_pushnil(L);
    lua_pushstring(L, e.text);
    return 2;
}
