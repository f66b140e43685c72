/* worker.c - the file workers/<id> of this process, and the look at those of others.
 *
 * The file is locked (flock) as long as the process lives: whoever can lock it knows that its process is
 * dead. Its first page holds a heartbeat, for processes that live but are stopped; behind it stands a table
 * of the messages whose handlers run right now. Both are plain stores to shared memory, so an idle process
 * writes nothing to the disk. A crash leaves the table behind, and whoever finds it counts an attempt for
 * each entry ("at least the attempt it was at", so that doing it twice changes nothing).
 *
 * begin and end: loop threads, under the table's lock. Heartbeat: any thread. Look, bury: the writer. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drivers/embedded/store/store.h"

enum { HEAD = 4096, FIRST_ENTRIES = 1024, MOST_ENTRIES = 1 << 20, STALE_SECONDS = 3600 };
static const char DIED[] = "worker died while handling it";

typedef struct head {
    char magic[8];
    atomic_int_fast64_t beat; /* ms since the machine started: the wall clock may be set */
} head;

typedef struct begun {
    uint64_t seq;
    uint32_t channel, group, priority;
    atomic_uint_fast32_t attempt; /* written last: 0 is "no entry" */
} begun;

struct mwe_worker {
    uint64_t id;
    int fd;
    char *path;
    head *head;
    pthread_mutex_t lock; /* guards all below */
    begun *table;
    uint32_t capacity, free_count;
    uint32_t *free;
};

uint64_t mwe_random(void) {
    uint64_t v = 0;
    while (getrandom(&v, sizeof v, 0) != sizeof v || v == 0) {
    }
    return v;
}

uint64_t mwe_worker_id(const mwe_worker *w) { return w->id; }

static char *worker_path(const char *folder, uint64_t id, const char *suffix) {
    char *path;
    if (asprintf(&path, "%s/workers/%016llx%s", folder, (unsigned long long)id, suffix) < 0) abort();
    return path;
}

/* ---- ours ---- */

/* Room is taken from the disk at once: a store to a hole that cannot be filled would be a SIGBUS. */
static bool grow_table(mwe_worker *w) {
    uint32_t more = w->capacity ? w->capacity * 2 : FIRST_ENTRIES;
    size_t old_size = w->capacity * sizeof(begun), size = more * sizeof(begun);
    if (more > MOST_ENTRIES || (errno = posix_fallocate(w->fd, HEAD, (off_t)size))) return false;
    void *at = w->table ? mremap(w->table, old_size, size, MREMAP_MAYMOVE)
                        : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, HEAD);
    if (at == MAP_FAILED) return false;
    w->table = at;
    w->free = realloc(w->free, more * sizeof *w->free);
    if (!w->free) abort();
    for (uint32_t i = more; i > w->capacity; i--) w->free[w->free_count++] = i - 1;
    w->capacity = more;
    return true;
}

static bool fill_file(mwe_worker *w) {
    if ((errno = posix_fallocate(w->fd, 0, HEAD))) return false;
    w->head = mmap(NULL, HEAD, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd, 0);
    if (w->head == MAP_FAILED) {
        w->head = NULL;
        return false;
    }
    memcpy(w->head->magic, "mwworker", 8);
    mwe_worker_beat(w);
    return grow_table(w);
}

/* Made and locked under another name first: an unlocked worker file would look dead. */
mwe_worker *mwe_worker_open(const char *folder, mw_error *e) {
    char *dir, *temporary;
    if (asprintf(&dir, "%s/workers", folder) < 0) abort();
    if (mkdir(dir, 0777) < 0 && errno != EEXIST) {
        mw_fail(e, errno, false, "cannot create %s: %s", dir, strerror(errno));
        free(dir);
        return NULL;
    }
    free(dir);
    mwe_worker *w = calloc(1, sizeof *w);
    if (!w) abort();
    pthread_mutex_init(&w->lock, NULL);
    w->id = mwe_random();
    w->path = worker_path(folder, w->id, "");
    temporary = worker_path(folder, w->id, ".new");
    w->fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool made = w->fd >= 0 && flock(w->fd, LOCK_EX | LOCK_NB) == 0 && fill_file(w);
    if (made && rename(temporary, w->path) < 0) made = false;
    if (!made) {
        mw_fail(e, errno, false, "cannot create %s: %s", temporary, strerror(errno));
        unlink(temporary);
        mwe_worker_close(w);
        w = NULL;
    }
    free(temporary);
    return w;
}

void mwe_worker_close(mwe_worker *w) {
    if (!w) return;
    unlink(w->path);
    if (w->table) munmap(w->table, w->capacity * sizeof(begun));
    if (w->head) munmap(w->head, HEAD);
    if (w->fd >= 0) close(w->fd);
    pthread_mutex_destroy(&w->lock);
    free(w->free);
    free(w->path);
    free(w);
}

void mwe_worker_beat(mwe_worker *w) {
    atomic_store_explicit(&w->head->beat, mwe_boot_ms(), memory_order_relaxed);
}

uint32_t mwe_worker_begin(mwe_worker *w, uint32_t channel, uint32_t group, uint64_t seq, uint8_t priority,
                          uint32_t attempt) {
    uint32_t place = 0;
    pthread_mutex_lock(&w->lock);
    if (w->free_count || grow_table(w)) {
        place = w->free[--w->free_count] + 1;
        begun *b = &w->table[place - 1];
        b->seq = seq;
        b->channel = channel;
        b->group = group;
        b->priority = priority;
        atomic_store_explicit(&b->attempt, attempt, memory_order_release);
    }
    pthread_mutex_unlock(&w->lock);
    return place;
}

void mwe_worker_end(mwe_worker *w, uint32_t place) {
    if (!place) return;
    pthread_mutex_lock(&w->lock);
    atomic_store_explicit(&w->table[place - 1].attempt, 0, memory_order_relaxed);
    w->free[w->free_count++] = place - 1;
    pthread_mutex_unlock(&w->lock);
}

/* ---- others ---- */

static mwe_grave look_at_file(mwe_txn *t, uint64_t id) {
    mwe_grave g = {.id = id, .life = MWE_DEAD, .fd = -1};
    char *path = worker_path(t->store->folder, id, "");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    free(path);
    if (fd < 0) {
        if (errno != ENOENT) g.life = MWE_ALIVE, g.beat = INT64_MAX; /* cannot tell: leave it alone */
        return g;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        g.fd = fd;
        return g;
    }
    head h;
    g.life = MWE_ALIVE;
    if (pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h) g.beat = h.beat;
    close(fd);
    return g;
}

static mwe_grave *look(mwe_txn *t, uint64_t id) {
    for (size_t i = 0; i < t->grave_count; i++)
        if (t->graves[i].id == id) return &t->graves[i];
    t->graves = realloc(t->graves, (t->grave_count + 1) * sizeof *t->graves);
    if (!t->graves) abort();
    mwe_grave *g = &t->graves[t->grave_count++];
    if (id == t->store->worker->id)
        *g = (mwe_grave){.id = id, .life = MWE_ALIVE, .fd = -1, .beat = INT64_MAX};
    else
        *g = look_at_file(t, id);
    return g;
}

mwe_life mwe_worker_look(mwe_txn *t, uint64_t id, int64_t lease_ms) {
    const mwe_grave *g = look(t, id);
    if (g->life == MWE_DEAD) return MWE_DEAD;
    return g->beat < mwe_boot_ms() - lease_ms ? MWE_SILENT : MWE_ALIVE;
}

/* Raises the attempts of a message to `attempt`, if it still waits in ready; notes why. */
static int count_attempt(mwe_txn *t, const begun *b, uint32_t slots, uint64_t taken) {
    mwe_key k, ek;
    MDB_val value;
    mwe_waiting w;
    MDB_val *key = mwe_key_ready(&k, b->channel, b->group, (uint8_t)b->priority, b->seq);
    int rc = mwe_get(t, MWE_READY, key, &value);
    if (rc) return rc == MDB_NOTFOUND ? 0 : rc;
    if (!mwe_read_waiting(&value, &w) || w.attempts >= b->attempt) return 0;
    if (!(taken >> (w.hash % slots) & 1)) return 0;
    w.attempts = (uint32_t)b->attempt;
    w.not_before = 0;
    value = mwe_write_waiting(&w);
    if ((rc = mwe_put(t, MWE_READY, key, &value, 0))) return rc;
    value = (MDB_val){sizeof DIED - 1, (void *)DIED};
    rc = mwe_put(t, MWE_ERRORS, mwe_key_in_group(&ek, b->channel, b->group, b->seq), &value, MDB_NOOVERWRITE);
    return rc == MDB_KEYEXIST ? 0 : rc;
}

/* group 0: all groups. */
static int count_attempts(mwe_txn *t, int fd, uint32_t channel, uint32_t group, uint32_t slots,
                          uint64_t taken) {
    begun some[128];
    off_t at = HEAD;
    for (ssize_t n; (n = pread(fd, some, sizeof some, at)) > 0; at += n) {
        if (at > HEAD + (off_t)(MOST_ENTRIES * sizeof(begun))) break;
        for (size_t i = 0; i < (size_t)n / sizeof *some; i++) {
            const begun *b = &some[i];
            if (b->attempt == 0 || b->priority > MW_PRIORITY_MAX) continue;
            if (group && (b->group != group || b->channel != channel)) continue;
            int rc = count_attempt(t, b, slots, taken);
            if (rc) return rc;
        }
    }
    return 0;
}

int mwe_worker_bury(mwe_txn *t, uint64_t id) {
    mwe_grave *g = look(t, id);
    if (g->fd < 0 || g->buried) return 0;
    int rc = count_attempts(t, g->fd, 0, 0, 1, 1);
    g->buried = rc == 0;
    return rc;
}

int mwe_worker_blame(mwe_txn *t, uint64_t id, uint32_t channel, uint32_t group, uint32_t slots,
                     uint64_t taken) {
    char *path = worker_path(t->store->folder, id, "");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    free(path);
    if (fd < 0) return 0;
    int rc = count_attempts(t, fd, channel, group, slots, taken);
    close(fd);
    return rc;
}

/* What a crash between making and renaming left behind. */
static void remove_stray(int dir, const char *name) {
    struct stat st;
    if (fstatat(dir, name, &st, 0) == 0 && st.st_mtime + STALE_SECONDS < mwe_wall_ms() / 1000)
        unlinkat(dir, name, 0);
}

int mwe_workers_sweep(mwe_txn *t) {
    char *path;
    if (asprintf(&path, "%s/workers", t->store->folder) < 0) abort();
    DIR *d = opendir(path);
    free(path);
    if (!d) return 0;
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(d));) {
        char *end;
        uint64_t id = strtoull(entry->d_name, &end, 16);
        if (end != entry->d_name + 16 || id == 0) continue;
        if (*end)
            remove_stray(dirfd(d), entry->d_name);
        else if (mwe_worker_look(t, id, INT64_MAX / 2) == MWE_DEAD)
            rc = mwe_worker_bury(t, id);
    }
    closedir(d);
    return rc;
}

/* A dead worker's file goes only after what it said was counted and committed. */
void mwe_workers_done(mwe_txn *t, bool committed) {
    for (size_t i = 0; i < t->grave_count; i++) {
        mwe_grave *g = &t->graves[i];
        if (g->fd < 0) continue;
        if (committed && g->buried) {
            char *path = worker_path(t->store->folder, g->id, "");
            unlink(path);
            free(path);
        }
        close(g->fd);
    }
    free(t->graves);
    t->graves = NULL;
    t->grave_count = 0;
}
