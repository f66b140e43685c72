#include "process/watch.h"

#include <dirent.h>
#include <errno.h>
#include <lauxlib.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "lua/core.h"

enum { SETTLE_MS = 100, DEEPEST = 8 };
static const uint32_t EVENTS =
    IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ONLYDIR;

typedef struct folder {
    int id; /* inotify's */
    int depth;
    char *path;
} folder;

struct mw_watch {
    mw_loop *loop;
    mw_io io;
    int fd;
    mw_timer settle;
    mw_buf folders; /* of folder */
    void (*changed)(void *owner);
    void *owner;
};

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool counts(const char *name) {
    if (strcmp(name, ".env") == 0) return true;
    return name[0] != '.' && (ends_with(name, ".lua") || ends_with(name, ".json"));
}

static bool
is_store(const char *path) { /* its files change all the time, and none of them is the project's */
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s/moonwire.mdb", path);
    return access(file, F_OK) == 0;
}

static folder *folder_at(const mw_watch *w, size_t i) { return &((folder *)(void *)w->folders.data)[i]; }
static size_t folder_count(const mw_watch *w) { return w->folders.len / sizeof(folder); }

/* inotify knows a folder by what it is, not by its name: one that was moved keeps its id, and has another
 * path now. One that is reached twice, through a link, is watched once. */
static bool is_known(mw_watch *w, int id, const char *path) {
    for (size_t i = 0; i < folder_count(w); i++) {
        folder *f = folder_at(w, i);
        if (f->id != id) continue;
        struct stat was, is;
        bool moved =
            stat(f->path, &was) || stat(path, &is) || was.st_ino != is.st_ino || was.st_dev != is.st_dev;
        if (moved) {
            free(f->path);
            if (!(f->path = strdup(path))) abort();
        }
        return !moved;
    }
    return false;
}

static bool is_folder(const char *path, const struct dirent *entry) {
    struct stat s; /* a link to a folder is one, and some file systems do not tell */
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* A folder that cannot be watched (gone again, no permission) is passed by: the others still count. Returns
 * whether there are files in it that matter. */
static bool add_folder(mw_watch *w, const char *path, int depth) {
    bool matters = false;
    if (depth > DEEPEST || is_store(path)) return false;
    folder f = {.id = inotify_add_watch(w->fd, path, EVENTS), .depth = depth};
    if (f.id < 0 || is_known(w, f.id, path)) return false;
    bool again = false;
    for (size_t i = 0; i < folder_count(w); i++) again = again || folder_at(w, i)->id == f.id;
    if (!again) {
        if (!(f.path = strdup(path))) abort();
        mw_buf_add(&w->folders, &f, sizeof f);
    }
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char below[PATH_MAX];
        if (snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= (int)sizeof below) continue;
        matters = matters || counts(entry->d_name);
        if (entry->d_name[0] != '.' && is_folder(below, entry))
            matters = add_folder(w, below, depth + 1) || matters;
    }
    if (dir) closedir(dir);
    return matters;
}

static void settled(mw_timer *t) {
    mw_watch *w = mw_container_of(t, mw_watch, settle);
    w->changed(w->owner);
}

/* The kernel has dropped it: it is gone, and its number may come again. */
static void forget(mw_watch *w, int id) {
    for (size_t i = 0; i < folder_count(w); i++) {
        if (folder_at(w, i)->id != id) continue;
        free(folder_at(w, i)->path);
        w->folders.len -= sizeof(folder);
        *folder_at(w, i) = *folder_at(w, folder_count(w));
        return;
    }
}

/* A folder, or a link to one, has come: what it holds already was not seen coming. One that has gone matters
 * if we knew it. */
static bool folder_matters(mw_watch *w, const struct inotify_event *event) {
    for (size_t i = 0; i < folder_count(w); i++) {
        folder f = *folder_at(w, i);
        char below[PATH_MAX];
        if (f.id != event->wd ||
            snprintf(below, sizeof below, "%s/%s", f.path, event->name) >= (int)sizeof below)
            continue;
        if (event->mask & (IN_CREATE | IN_MOVED_TO)) return add_folder(w, below, f.depth + 1);
        for (size_t k = 0; k < folder_count(w); k++)
            if (strcmp(folder_at(w, k)->path, below) == 0) return true;
        return false;
    }
    return false;
}

static void note(mw_watch *w, const struct inotify_event *event) {
    static const uint32_t of_names = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE;
    bool matters = event->len && counts(event->name);
    if (event->mask & of_names && event->len && event->name[0] != '.' && !matters)
        matters = folder_matters(w, event);
    if (event->mask & IN_IGNORED) forget(w, event->wd);
    if (event->mask & IN_Q_OVERFLOW) matters = true;
    if (matters) mw_timer_start(w->loop, &w->settle, SETTLE_MS, settled);
}

static void readable(mw_io *io, int events) {
    (void)events;
    mw_watch *w = mw_container_of(io, mw_watch, io);
    _Alignas(struct inotify_event) char space[16 * 1024];
    for (ssize_t n; (n = read(w->fd, space, sizeof space)) > 0;)
        for (char *at = space; at < space + n;) {
            struct inotify_event *event = (struct inotify_event *)(void *)at;
            note(w, event);
            at += sizeof *event + event->len;
        }
}

mw_watch *mw_watch_new(mw_loop *loop, const char *dir, void (*changed)(void *owner), void *owner,
                       mw_error *e) {
    mw_watch *w = calloc(1, sizeof *w);
    if (!w) abort();
    w->loop = loop;
    w->changed = changed;
    w->owner = owner;
    w->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (w->fd >= 0) add_folder(w, dir, 0);
    if (w->fd < 0 || !w->folders.len) {
        mw_fail(e, errno, true, "cannot watch %s: %s", dir, strerror(errno));
        mw_watch_free(w);
        return NULL;
    }
    mw_io_start(loop, &w->io, w->fd, MW_READ, readable);
    return w;
}

void mw_watch_free(mw_watch *w) {
    if (!w) return;
    mw_io_stop(&w->io);
    mw_timer_stop(&w->settle);
    if (w->fd >= 0) close(w->fd);
    for (size_t i = 0; i < folder_count(w); i++) free(folder_at(w, i)->path);
    mw_buf_free(&w->folders);
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
