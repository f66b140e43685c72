/* store.c - opens and closes the store of a folder: the checks, the LMDB environment, its tables, and the
 * list of stores of this process (LMDB must open a file once per process). Everything that can be wrong with
 * a folder is found here and said in words, before a byte of it is changed. Loop's thread. */
#include "drivers/embedded/store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

static const char FILE_NAME[] = "moonwire.mdb";
static const char MAGIC[] = "moonwire store";
enum {
    FORMAT = 2,
    READERS = 1024,
    MDB_MAGIC = (int)0xBEEFC0DE,
    OLDEST_PAGE = 512,
    LARGEST_PAGE = 65536,
    DAMAGED = 69
};

static const uint64_t SIZE_DEFAULT = 64ull << 30, SIZE_SMALLEST = 1ull << 30;

static const char *const TABLES[MWE_TABLES] = {"meta",  "channels", "groups",    "messages", "pieces",
                                               "refs",  "ready",    "due",       "parked",   "errors",
                                               "marks", "owners",   "consumers", "dedupe",   "expiry"};

static mwe_store *stores; /* of this process */
static pthread_mutex_t stores_lock = PTHREAD_MUTEX_INITIALIZER;

int64_t mwe_wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int64_t mwe_boot_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- the folder ---- */

static int make_folders(const char *path, mw_error *e) {
    char *copy = strdup(path);
    if (!copy) abort();
    int rc = 0;
    for (char *p = copy + 1; rc == 0; p++) {
        if (*p && *p != '/') continue;
        char was = *p;
        *p = 0;
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            rc = mw_fail(e, errno, false, "cannot create the folder %s: %s", copy, strerror(errno));
        *p = was;
        if (!was) break;
    }
    free(copy);
    return rc;
}

static bool is_ours(const char *name) {
    static const char *const known[] = {".",       "..",   "lost+found", "moonwire.mdb-lock",
                                        "workers", "wake", NULL};
    for (int i = 0; known[i]; i++)
        if (strcmp(known[i], name) == 0) return true;
    return false;
}

static int check_folder(const char *folder, bool *fresh, mw_error *e) {
    struct stat st;
    if (stat(folder, &st) < 0)
        return mw_fail(e, errno, false, "cannot open the folder %s: %s", folder, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return mw_fail(e, ENOTDIR, false, "%s is not a folder", folder);
    if (access(folder, R_OK | W_OK | X_OK) < 0)
        return mw_fail(e, errno, false, "the folder %s is not readable and writable: %s", folder,
                       strerror(errno));
    DIR *d = opendir(folder);
    if (!d) return mw_fail(e, errno, false, "cannot read the folder %s: %s", folder, strerror(errno));
    char other[64] = "";
    *fresh = true;
    for (struct dirent *entry; (entry = readdir(d));) {
        if (strcmp(entry->d_name, FILE_NAME) == 0)
            *fresh = false;
        else if (!is_ours(entry->d_name) && !*other)
            snprintf(other, sizeof other, "%.60s", entry->d_name);
    }
    closedir(d);
    if (*fresh && *other)
        return mw_fail(e, MW_EFORMAT, false,
                       "the folder %s is not a Moonwire store and not empty (it has %s)", folder, other);
    return 0;
}

typedef struct head { /* the beginning of each of the two meta pages of an LMDB file */
    uint8_t page_header[16];
    uint32_t magic, version;
    uint64_t address, map_size;
    uint32_t page_size;
} head;

static bool sane_head(const head *h) {
    return h->magic == (uint32_t)MDB_MAGIC && h->page_size >= OLDEST_PAGE && h->page_size <= LARGEST_PAGE &&
           (h->page_size & (h->page_size - 1)) == 0;
}

/* LMDB believes the page size in the newer of its heads, so both are looked at first. */
static int check_header(const char *file, mw_error *e) {
    head first, second;
    int fd = open(file, O_RDWR | O_CLOEXEC);
    if (fd < 0) return mw_fail(e, errno, false, "cannot open %s: %s", file, strerror(errno));
    ssize_t n = pread(fd, &first, sizeof first, 0);
    bool sane = n == (ssize_t)sizeof first && sane_head(&first);
    ssize_t more = sane ? pread(fd, &second, sizeof second, first.page_size) : 0;
    int why = errno;
    close(fd);
    if (n < 0 || more < 0) return mw_fail(e, why, false, "cannot read %s: %s", file, strerror(why));
    if (n == 0) return 0; /* made and never written: as good as absent */
    if (!sane) return mw_fail(e, MW_EFORMAT, false, "%s is not a Moonwire store: not an LMDB file", file);
    if (more != (ssize_t)sizeof second || !sane_head(&second) || second.page_size != first.page_size)
        return mw_fail(e, MW_EFORMAT, false,
                       "%s is damaged: its second head makes no sense; put a backup in its place", file);
    return 0;
}

/* ---- a file shorter than it should be ---- */

/* Marks in `missing` the pages from `first` on that the free list names. */
static int note_free_pages(MDB_txn *txn, size_t first, size_t count, bool *missing) {
    MDB_cursor *c;
    int rc = mdb_cursor_open(txn, 0, &c);
    if (rc) return rc;
    MDB_val key, list;
    while ((rc = mdb_cursor_get(c, &key, &list, MDB_NEXT)) == 0) {
        const size_t *pages = list.mv_data;
        size_t n = list.mv_size / sizeof *pages;
        for (size_t i = 1; i < n && i <= pages[0]; i++)
            if (pages[i] >= first && pages[i] - first < count) missing[pages[i] - first] = false;
    }
    mdb_cursor_close(c);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* LMDB does not write pages it took and gave back within one transaction, so a whole file may end a little
 * early; a cut one would crash us on the first touch. The difference: missing pages of a whole file are all
 * in its free list. The file is made longer to look, and cut again when it was damaged; the write lock keeps
 * others from writing meanwhile. */
static int check_length(MDB_env *env, const char *file, unsigned page_size, mw_error *e) {
    MDB_txn *hold, *txn = NULL;
    int fd, rc = mdb_txn_begin(env, NULL, 0, &hold);
    if (rc) return mw_fail(e, MW_EFORMAT, false, "cannot open %s: %s", file, mdb_strerror(rc));
    MDB_envinfo info;
    struct stat st;
    mdb_env_info(env, &info);
    size_t want = info.me_last_pgno + 1;
    bool whole = stat(file, &st) == 0, *missing = NULL;
    size_t have = whole ? (size_t)st.st_size / page_size : 0;
    if (whole && have < want && mdb_env_get_fd(env, &fd) == 0) {
        size_t count = want - have;
        missing = malloc(count);
        whole = missing && ftruncate(fd, (off_t)(want * page_size)) == 0;
        if (whole) {
            memset(missing, true, count);
            whole = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0 &&
                    note_free_pages(txn, have, count, missing) == 0;
            for (size_t i = 0; whole && i < count; i++) whole = !missing[i];
            mdb_txn_abort(txn);
        }
        if (!whole && ftruncate(fd, st.st_size) < 0) whole = false; /* refused either way */
    }
    free(missing);
    mdb_txn_abort(hold);
    if (whole) return 0;
    return mw_fail(e, MW_EFORMAT, false, "%s is damaged: %zu bytes long, %zu expected (was it cut short?)",
                   file, (size_t)st.st_size, want * page_size);
}

/* ---- tables ---- */

/* 0: ours; 1: older, and can be read; -1: refused. */
static int check_format(mwe_store *s, MDB_txn *txn, const char *file, mw_error *e) {
    MDB_val key = {5, "magic"}, value;
    int rc = mdb_get(txn, s->table[MWE_META], &key, &value);
    if (rc || value.mv_size != sizeof MAGIC || memcmp(value.mv_data, MAGIC, sizeof MAGIC) != 0)
        return mw_fail(e, MW_EFORMAT, false, "%s is not a Moonwire store: it has another program's data",
                       file);
    key = (MDB_val){6, "format"};
    uint32_t format = 0;
    rc = mdb_get(txn, s->table[MWE_META], &key, &value);
    if (rc || !mwe_read_row(&value, &format, sizeof format) || format == 0)
        return mw_fail(e, MW_EFORMAT, false, "%s has no readable format number", file);
    if (format > FORMAT)
        return mw_fail(e, MW_EFORMAT, false,
                       "%s has format %u, written by a newer Moonwire; this one knows up to %d", file, format,
                       FORMAT);
    return format == FORMAT ? 0 : 1;
}

static int put_format(mwe_store *s, MDB_txn *txn) {
    uint32_t format = FORMAT;
    MDB_val key = {6, "format"}, value = {sizeof format, &format};
    return mdb_put(txn, s->table[MWE_META], &key, &value, 0);
}

static int make_tables(mwe_store *s, MDB_txn *txn) {
    int rc = 0;
    for (int i = 0; i < MWE_TABLES && !rc; i++) rc = mdb_dbi_open(txn, TABLES[i], MDB_CREATE, &s->table[i]);
    MDB_val key = {5, "magic"}, value = {sizeof MAGIC, (void *)MAGIC};
    if (!rc) rc = mdb_put(txn, s->table[MWE_META], &key, &value, 0);
    return rc ? rc : put_format(s, txn);
}

static int open_tables(mwe_store *s, const char *file, mw_error *e) {
    MDB_txn *txn;
    MDB_dbi main_table;
    MDB_stat stat;
    int rc = mdb_txn_begin(s->env, NULL, 0, &txn);
    if (rc) return mw_fail(e, MW_EFORMAT, false, "cannot open %s: %s", file, mdb_strerror(rc));
    if ((rc = mdb_dbi_open(txn, NULL, 0, &main_table)) || (rc = mdb_stat(txn, main_table, &stat))) goto fail;
    if (stat.ms_entries == 0) {
        if ((rc = make_tables(s, txn))) goto fail;
    } else {
        rc = mdb_dbi_open(txn, TABLES[MWE_META], 0, &s->table[MWE_META]);
        if (rc == MDB_NOTFOUND || rc == MDB_INCOMPATIBLE) {
            mw_fail(e, MW_EFORMAT, false, "%s is not a Moonwire store: it has another program's data", file);
            goto refused;
        }
        if (rc) goto fail;
        int older = check_format(s, txn, file, e);
        if (older < 0) goto refused;
        for (int i = 1; i < MWE_TABLES; i++)
            if ((rc = mdb_dbi_open(txn, TABLES[i], MDB_CREATE, &s->table[i]))) goto fail;
        /* rows of format 1 are sound in format 2; what we add, a program that knows only 1 cannot read */
        if (older && (rc = put_format(s, txn))) goto fail;
    }
    if ((rc = mdb_txn_commit(txn)) == 0) return 0;
    return mw_fail(e, rc, rc == ENOSPC, "cannot write %s: %s", file, mdb_strerror(rc));
fail:
    mw_fail(e, MW_EFORMAT, false, "cannot read %s: %s", file, mdb_strerror(rc));
refused:
    mdb_txn_abort(txn);
    return -1;
}

/* LMDB found what cannot be, deep inside of a call: going on would do harm, and there is no way back. */
static void give_up(MDB_env *env, const char *text) {
    const char *file = "";
    mdb_env_get_path(env, &file);
    mw_log_begin(MW_ERROR, "the store is damaged: put a backup in its place");
    mw_log_text("file", file);
    mw_log_text("error", text);
    mw_log_end();
    mw_log_flush();
    _exit(DAMAGED);
}

static int try_size(mwe_store *s, const char *file, uint64_t size) {
    int rc = mdb_env_create(&s->env);
    if (!rc) rc = mdb_env_set_maxdbs(s->env, MWE_TABLES);
    if (!rc) rc = mdb_env_set_maxreaders(s->env, READERS);
    if (!rc) rc = mdb_env_set_mapsize(s->env, size);
    if (!rc) rc = mdb_env_set_assert(s->env, give_up);
    if (!rc) rc = mdb_env_open(s->env, file, MDB_NOSUBDIR | MDB_NOTLS | MDB_NORDAHEAD, 0666);
    if (rc && s->env) {
        mdb_env_close(s->env);
        s->env = NULL;
    }
    return rc;
}

/* The default size is address space only, but a process may be limited there (ulimit -v, valgrind). */
static int open_file(mwe_store *s, const char *file, uint64_t size, mw_error *e) {
    uint64_t least = size ? size : SIZE_SMALLEST;
    int rc = EINVAL;
    for (uint64_t at = size ? size : SIZE_DEFAULT; at >= least && (rc == EINVAL || rc == ENOMEM); at /= 4)
        rc = try_size(s, file, at);
    if (rc == 0) return 0;
    bool foreign = rc == MDB_INVALID || rc == MDB_VERSION_MISMATCH;
    return mw_fail(e, foreign ? MW_EFORMAT : rc, false, "cannot open %s: %s%s", file,
                   foreign ? "not a Moonwire store: " : "", mdb_strerror(rc));
}

static int open_env(mwe_store *s, uint64_t size, bool fresh, mw_error *e) {
    char *file;
    if (asprintf(&file, "%s/%s", s->folder, FILE_NAME) < 0) abort();
    MDB_stat stat;
    int dead, rc = fresh ? 0 : check_header(file, e);
    if (!rc) rc = mwe_lock_room(file, READERS, e);
    if (!rc) rc = open_file(s, file, size, e);
    if (rc) goto out;
    mdb_reader_check(s->env, &dead);
    mdb_env_stat(s->env, &stat);
    s->page_size = stat.ms_psize;
    if (!fresh) rc = check_length(s->env, file, s->page_size, e);
    if (!rc && !fresh) rc = mwe_verify(s, file, e);
    if (!rc) rc = open_tables(s, file, e);
out:
    free(file);
    return rc;
}

static int open_wake(mwe_store *s, mw_error *e) {
    char *file;
    if (asprintf(&file, "%s/wake", s->folder) < 0) abort();
    s->wake_fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    int rc = s->wake_fd < 0 ? mw_fail(e, errno, false, "cannot create %s: %s", file, strerror(errno)) : 0;
    free(file);
    return rc;
}

/* A new file is safe only when its name is: LMDB syncs what is in it, not the folder. */
static int sync_folder(mwe_store *s, mw_error *e) {
    int fd = open(s->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 || fsync(fd) < 0
                 ? mw_fail(e, errno, true, "cannot sync %s: %s", s->folder, strerror(errno))
                 : 0;
    if (fd >= 0) close(fd);
    return rc;
}

/* ---- open and close ---- */

static void free_store(mwe_store *s) {
    if (s->env) mdb_env_close(s->env);
    mwe_worker_close(s->worker);
    if (s->wake_fd >= 0) close(s->wake_fd);
    while (s->all_channels) {
        mwe_channel *c = s->all_channels;
        s->all_channels = c->older;
        free(c);
    }
    mw_map_free(&s->channels);
    pthread_rwlock_destroy(&s->map);
    free(s->folder);
    free(s);
}

static mwe_store *new_store(const char *folder, uint64_t size, bool fresh, mw_error *e) {
    mwe_store *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->wake_fd = -1;
    pthread_rwlock_init(&s->map, NULL);
    struct stat st;
    s->folder = realpath(folder, NULL); /* the process may change its own folder later */
    if (!s->folder) {
        mw_fail(e, errno, false, "cannot open the folder %s: %s", folder, strerror(errno));
        goto fail;
    }
    if (open_env(s, size, fresh, e) || open_wake(s, e) || (fresh && sync_folder(s, e)) ||
        !(s->worker = mwe_worker_open(s->folder, e)))
        goto fail;
    if (stat(folder, &st) < 0) {
        mw_fail(e, errno, false, "cannot open the folder %s: %s", folder, strerror(errno));
        goto fail;
    }
    s->device = st.st_dev;
    s->inode = st.st_ino;
    if (mwe_writer_start(s, e) == 0) return s;
fail:
    free_store(s);
    return NULL;
}

static mwe_store *find_store(const char *folder) {
    struct stat st;
    if (stat(folder, &st) < 0) return NULL;
    for (mwe_store *s = stores; s; s = s->next)
        if (s->device == st.st_dev && s->inode == st.st_ino) return s;
    return NULL;
}

/* A second connection may ask for a larger map; a smaller one changes nothing. */
static void grow_map(mwe_store *s, uint64_t size) {
    pthread_rwlock_wrlock(&s->map);
    MDB_envinfo info;
    mdb_env_info(s->env, &info);
    if (size > info.me_mapsize) mdb_env_set_mapsize(s->env, size);
    pthread_rwlock_unlock(&s->map);
}

mwe_store *mwe_store_open(const char *folder, uint64_t size, mw_error *e) {
    bool fresh;
    if (make_folders(folder, e) || check_folder(folder, &fresh, e)) return NULL;
    pthread_mutex_lock(&stores_lock);
    mwe_store *s = find_store(folder);
    if (s) {
        grow_map(s, size);
        s->users++;
    } else if ((s = new_store(folder, size, fresh, e))) {
        s->users = 1;
        s->next = stores;
        stores = s;
    }
    pthread_mutex_unlock(&stores_lock);
    return s;
}

void mwe_store_close(mwe_store *s) {
    pthread_mutex_lock(&stores_lock);
    if (--s->users == 0) {
        mwe_store **at = &stores;
        while (*at != s) at = &(*at)->next;
        *at = s->next;
        mwe_writer_stop(s);
        free_store(s);
    }
    pthread_mutex_unlock(&stores_lock);
}

int mwe_store_resized(mwe_store *s) {
    pthread_rwlock_wrlock(&s->map);
    int rc = mdb_env_set_mapsize(s->env, 0);
    pthread_rwlock_unlock(&s->map);
    return rc;
}

mwe_channel *mwe_channel_named(mwe_store *s, const char *name) {
    size_t len = name ? strlen(name) : 0;
    if (len == 0 || len > MWE_NAME_MAX) return NULL;
    uint64_t hash = mw_hash64(name, len);
    pthread_mutex_lock(&s->lock);
    mwe_channel *first = mw_map_get(&s->channels, hash), *c = first;
    while (c && (c->len != len || memcmp(c->name, name, len) != 0)) c = c->next;
    if (!c) {
        c = calloc(1, sizeof *c + len + 1);
        if (!c) abort();
        c->len = len;
        memcpy(c->name, name, len);
        c->next = first;
        c->older = s->all_channels;
        s->all_channels = c;
        mw_map_put(&s->channels, hash, c);
    }
    pthread_mutex_unlock(&s->lock);
    return c;
}

/* ---- reading ---- */

int mwe_read_begin(mwe_store *s, MDB_txn **reader) {
    for (int tries = 0;; tries++) {
        pthread_rwlock_rdlock(&s->map);
        int rc = *reader ? mdb_txn_renew(*reader) : mdb_txn_begin(s->env, NULL, MDB_RDONLY, reader);
        if (rc == 0) return 0;
        pthread_rwlock_unlock(&s->map);
        if (rc != MDB_MAP_RESIZED || tries == 3) return rc;
        mwe_store_resized(s);
    }
}

void mwe_read_end(mwe_store *s, MDB_txn *reader) {
    mdb_txn_reset(reader);
    pthread_rwlock_unlock(&s->map);
}

/* ---- words ---- */

static void full_error(mwe_store *s, mw_error *e) {
    MDB_envinfo info;
    pthread_rwlock_rdlock(&s->map);
    mdb_env_info(s->env, &info);
    pthread_rwlock_unlock(&s->map);
    mw_fail(e, MW_EFULL, true,
            "the store %s is full (size=%zuMB): consume or purge messages, or raise size= in its URL",
            s->folder, info.me_mapsize >> 20);
}

void mwe_store_error(mwe_store *s, int code, mw_error *e) {
    switch (code) {
    case MW_EFENCED: mw_fail(e, code, false, "another consumer has taken this message over"); break;
    case MW_EUSAGE:
        mw_fail(e, code, false, "a channel or group name must have 1 to %d bytes", MWE_NAME_MAX);
        break;
    case MW_ECLOSED: mw_fail(e, code, true, "the store %s is closing", s->folder); break;
    case MWE_TOO_LARGE:
        mw_fail(e, MW_EFULL, false, "the message is larger than the store %s takes: raise size= in its URL",
                s->folder);
        break;
    case MW_EFULL:
    case MDB_MAP_FULL: full_error(s, e); break;
    case ENOSPC: mw_fail(e, MW_EFULL, true, "the disk of the store %s is full", s->folder); break;
    case MW_EFORMAT: mw_fail(e, code, false, "the store %s has a damaged row", s->folder); break;
    case MDB_PANIC:
        mw_fail(e, EIO, true, "the store %s failed to write and must be opened again: restart the process",
                s->folder);
        break;
    default: mw_fail(e, code, true, "the store %s: %s", s->folder, mdb_strerror(code));
    }
}
