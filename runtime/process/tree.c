#include "process/tree.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

enum { DEEPEST = 8, MOST_LINKS = 40 };
static const uint32_t OF_NAMES = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE;
static const uint32_t EVENTS =
    IN_CLOSE_WRITE | IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_ONLYDIR;

typedef struct folder {
    int id;
    char *path;
} folder;

typedef struct spot {
    int id; /* of the folder that the name stands in */
    char *name;
} spot;

static folder *folder_at(const mw_tree *t, size_t i) { return &((folder *)(void *)t->folders.data)[i]; }
static size_t folder_count(const mw_tree *t) { return t->folders.len / sizeof(folder); }
static spot *spot_at(const mw_tree *t, size_t i) { return &((spot *)(void *)t->spots.data)[i]; }
static size_t spot_count(const mw_tree *t) { return t->spots.len / sizeof(spot); }

static char *copied(const char *text) {
    char *copy = strdup(text);
    if (!copy) abort();
    return copy;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool counts(const char *name) {
    if (strcmp(name, ".env") == 0) return true;
    return name[0] != '.' && (ends_with(name, ".lua") || ends_with(name, ".json"));
}

/* ---- links ---- */

static const folder *folder_of(const mw_tree *t, int id) {
    for (size_t i = 0; i < folder_count(t); i++)
        if (folder_at(t, i)->id == id) return folder_at(t, i);
    return NULL;
}

static bool is_spot(const mw_tree *t, int id, const char *name) {
    for (size_t i = 0; i < spot_count(t); i++)
        if (spot_at(t, i)->id == id && strcmp(spot_at(t, i)->name, name) == 0) return true;
    return false;
}

/* A folder that cannot be watched (gone again, no permission) is passed by: the others still count. */
static void add_spot(mw_tree *t, const char *in, const char *name) {
    spot s = {.id = inotify_add_watch(t->fd, *in ? in : "/", EVENTS)};
    if (s.id < 0 || is_spot(t, s.id, name)) return;
    s.name = copied(name);
    mw_buf_add(&t->spots, &s, sizeof s);
}

/* Puts `rest` behind what the link at `path` says; relative to the folder `at`, which may become the root. */
static bool follow_link(const char *path, char *at, char *rest) {
    char target[PATH_MAX], whole[PATH_MAX];
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n <= 0) return false;
    target[n] = 0;
    if (snprintf(whole, sizeof whole, "%s/%s", target, rest) >= (int)sizeof whole) return false;
    if (*target == '/') *at = 0;
    strcpy(rest, whole);
    return true;
}

/* Goes along an absolute path, name by name as the system does: each link on the way is a spot, and so is the
 * name at the end, or the first that does not exist. */
static void add_way(mw_tree *t, const char *path) {
    char at[PATH_MAX] = "", rest[PATH_MAX], below[PATH_MAX];
    if (snprintf(rest, sizeof rest, "%s", path) >= (int)sizeof rest) return;
    for (int links = 0; links <= MOST_LINKS;) {
        char *name = rest + strspn(rest, "/"), *end = name + strcspn(name, "/");
        if (!*name) return;
        char *next = end + strspn(end, "/"), after[PATH_MAX];
        strcpy(after, next);
        *end = 0;
        if (strcmp(name, "..") == 0) {
            char *slash = strrchr(at, '/');
            if (slash) *slash = 0;
        } else if (strcmp(name, ".") != 0) {
            if (snprintf(below, sizeof below, "%s/%s", at, name) >= (int)sizeof below) return;
            struct stat s;
            bool there = lstat(below, &s) == 0, link = there && S_ISLNK(s.st_mode);
            if (!there || link || !*after) add_spot(t, at, name);
            if (!there) return;
            if (link) {
                links++;
                if (!follow_link(below, at, after)) return;
            } else {
                strcpy(at, below);
            }
        }
        strcpy(rest, after);
    }
}

/* ---- files ---- */

static void add_print(mw_tree *t, const char *path, const struct stat *s) {
    uint64_t parts[] = {t->print,
                        mw_hash64(path, strlen(path)),
                        (uint64_t)s->st_dev,
                        (uint64_t)s->st_ino,
                        (uint64_t)s->st_size,
                        (uint64_t)s->st_ctim.tv_sec,
                        (uint64_t)s->st_ctim.tv_nsec};
    t->print = mw_hash64(parts, sizeof parts);
}

static bool
is_store(const char *path) { /* its files change all the time, and none of them is the project's */
    char file[PATH_MAX];
    return snprintf(file, sizeof file, "%s/moonwire.mdb", path) < (int)sizeof file && access(file, F_OK) == 0;
}

static int not_dots(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static void add_folder(mw_tree *t, const char *path, int depth);

static void add_entry(mw_tree *t, const char *path, const char *name, int depth) {
    char below[PATH_MAX];
    struct stat s;
    if (name[0] == '.' && !counts(name)) return;
    if (snprintf(below, sizeof below, "%s/%s", path, name) >= (int)sizeof below || lstat(below, &s)) return;
    if (S_ISLNK(s.st_mode)) {
        add_way(t, below);
        if (stat(below, &s)) return; /* it leads nowhere yet */
    }
    if (S_ISDIR(s.st_mode))
        add_folder(t, below, depth + 1);
    else if (counts(name))
        add_print(t, below, &s);
}

/* One that is reached twice, through a link, is read once. In the order of names, so that the print is the
 * same as long as the files are. */
static void add_folder(mw_tree *t, const char *path, int depth) {
    if (depth > DEEPEST || is_store(path)) return;
    folder f = {.id = inotify_add_watch(t->fd, path, EVENTS)};
    if (f.id < 0 || folder_of(t, f.id)) return;
    f.path = copied(path);
    mw_buf_add(&t->folders, &f, sizeof f);
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, not_dots, alphasort);
    for (int i = 0; i < n; i++) {
        add_entry(t, path, entries[i]->d_name, depth);
        free(entries[i]);
    }
    free(entries);
}

int mw_tree_read(mw_tree *t, const char *dir) {
    *t = (mw_tree){.fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC), .print = 1};
    if (t->fd < 0) return -1;
    add_folder(t, dir, 0);
    int why = errno;
    if (*dir == '/') add_way(t, dir);
    errno = why;
    return folder_count(t) ? 0 : -1;
}

static bool is_link(const char *path, const char *name) {
    char below[PATH_MAX];
    struct stat s;
    return snprintf(below, sizeof below, "%s/%s", path, name) < (int)sizeof below && lstat(below, &s) == 0 &&
           S_ISLNK(s.st_mode);
}

/* May the event have changed the print? Of names that are no project's files only folders and links count: a
 * handler may write its own files as often as it likes. */
bool mw_tree_concerns(const mw_tree *t, const struct inotify_event *event) {
    if (event->mask & IN_Q_OVERFLOW) return true;
    if (!event->len) return false;
    if (is_spot(t, event->wd, event->name)) return true;
    const folder *f = folder_of(t, event->wd);
    if (!f) return false;
    if (counts(event->name)) return true;
    if (event->name[0] == '.' || !(event->mask & OF_NAMES)) return false;
    return event->mask & IN_ISDIR || is_link(f->path, event->name);
}

void mw_tree_free(mw_tree *t) {
    if (t->fd >= 0) close(t->fd);
    for (size_t i = 0; i < folder_count(t); i++) free(folder_at(t, i)->path);
    for (size_t i = 0; i < spot_count(t); i++) free(spot_at(t, i)->name);
    mw_buf_free(&t->folders);
    mw_buf_free(&t->spots);
    *t = (mw_tree){.fd = -1};
}
