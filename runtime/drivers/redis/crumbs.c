/* crumbs.c - which entries handlers have begun, in a small file in shared memory that outlives the process.
 * When it dies, whoever takes its entries on the same machine finds there which of them it was working on:
 * for those the attempt counts, for those that merely waited it does not. Beginning a message costs two
 * stores. On another machine the file is not seen; there the marks of settle.c tell of handlers that ran for
 * a while. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "drivers/redis/redis.h"

enum { PLACES = 8192, PATH_MOST = 512, OLD_S = 86400 };
#define SIZE (PLACES * sizeof(mwr_id))

struct mwr_crumbs {
    mwr_id *places;
    int fd; /* locked while we live */
    char path[PATH_MOST];
};

/* A folder of our user alone; NULL: there is none to be had. */
static const char *folder(void) {
    static char path[64];
    if (*path) return path;
    static const char *const ROOTS[] = {"/dev/shm", "/tmp"};
    for (size_t i = 0; i < sizeof ROOTS / sizeof *ROOTS; i++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/moonwire-%u", ROOTS[i], (unsigned)geteuid());
        if (mkdir(path, 0700) && errno != EEXIST) continue;
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077))
            return path;
    }
    *path = 0;
    return NULL;
}

/* The files of one stream and group begin alike; the process makes the rest. */
static void prefix_of(const mw_sub *s, char out[32]) {
    mw_buf name = {0};
    mw_buf_printf(&name, "%s/%lld/%s", s->conn->target.hosts, (long long)s->conn->target.db,
                  s->channel->name);
    mw_buf_add(&name, "\0", 1);
    mw_buf_puts(&name, s->group);
    snprintf(out, 32, "redis-%016llx-", (unsigned long long)mw_hash64(name.data, name.len));
    mw_buf_free(&name);
}

static mwr_id *map(int fd) {
    void *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Files of groups that nobody came back to. */
static void sweep(const char *in) {
    DIR *d = opendir(in);
    struct stat st;
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, "redis-", 6) != 0 || fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        if (st.st_mtime > time(NULL) - OLD_S) continue;
        int fd = openat(dirfd(d), e->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) unlinkat(dirfd(d), e->d_name, 0);
        if (fd >= 0) close(fd);
    }
    if (d) closedir(d);
}

/* ---- our own ---- */

mwr_crumbs *mwr_crumbs_open(mw_sub *s) {
    const char *in = folder();
    char prefix[32];
    static unsigned count;
    if (!in) return NULL;
    sweep(in);
    mwr_crumbs *c = mwr_alloc(sizeof *c);
    prefix_of(s, prefix);
    snprintf(c->path, sizeof c->path, "%s/%s%d.%u", in, prefix, (int)getpid(), count++);
    c->fd = open(c->path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    /* room is taken at once: a write to a hole that cannot be filled would be a SIGBUS */
    if (c->fd >= 0 && flock(c->fd, LOCK_EX | LOCK_NB) == 0 && posix_fallocate(c->fd, 0, SIZE) == 0 &&
        (c->places = map(c->fd)))
        return c;
    if (c->fd >= 0) {
        unlink(c->path);
        close(c->fd);
    }
    free(c);
    return NULL;
}

void mwr_crumbs_close(mwr_crumbs *c) {
    if (!c) return;
    static const mwr_id NONE;
    bool clean = true;
    for (int i = 0; i < PLACES && clean; i++) clean = memcmp(&c->places[i], &NONE, sizeof NONE) == 0;
    if (clean) unlink(c->path);
    munmap(c->places, SIZE);
    close(c->fd);
    free(c);
}

void mwr_crumbs_begin(mwr_crumbs *c, uint32_t place, mwr_id id) {
    if (c && place < PLACES) c->places[place] = id;
}

void mwr_crumbs_end(mwr_crumbs *c, uint32_t place) {
    if (c && place < PLACES) c->places[place] = (mwr_id){0};
}

/* ---- those of others ---- */

typedef void visit(mwr_id *places, void *with);

/* All files of the group but ours. One without an owner and without crumbs is of no use any more. */
static void each_file(mw_sub *s, visit *look, void *with) {
    const char *in = folder();
    DIR *d = in ? opendir(in) : NULL;
    char prefix[32], path[PATH_MOST];
    prefix_of(s, prefix);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) != 0) continue;
        snprintf(path, sizeof path, "%s/%.300s", in, e->d_name);
        if (s->crumbs && strcmp(path, s->crumbs->path) == 0) continue;
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        struct stat st;
        if (fd < 0) continue;
        mwr_id *places = fstat(fd, &st) == 0 && st.st_size == SIZE ? map(fd) : NULL;
        if (places) {
            look(places, with);
            size_t left = 0;
            for (int i = 0; i < PLACES; i++) left += places[i].ms || places[i].seq;
            if (!left && flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path);
            munmap(places, SIZE);
        }
        close(fd);
    }
    if (d) closedir(d);
}

static void collect(mwr_id *places, void *ids) {
    for (int i = 0; i < PLACES; i++)
        if (places[i].ms || places[i].seq) mw_buf_add(ids, &places[i], sizeof *places);
}

void mwr_crumbs_found(mw_sub *s, mw_buf *ids) {
    ids->len = 0;
    each_file(s, collect, ids);
}

static void forget(mwr_id *places, void *with) {
    const mwr_id *id = with;
    for (int i = 0; i < PLACES; i++)
        if (places[i].ms == id->ms && places[i].seq == id->seq) places[i] = (mwr_id){0};
}

void mwr_crumbs_forget(mw_sub *s, mwr_id id) { each_file(s, forget, &id); }
