/* embedded.c - the broker inside the binary: connections and the driver's struct. A connection shares the
 * store of its folder with others of the process (store.h), watches the file by which other processes say
 * that they wrote something, and looks by itself now and then in case that is missed. Loop's thread. */
#include "drivers/embedded/embedded.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/log.h"

enum { POLL_MS = 500 };
static const uint64_t SIZE_LEAST = 4ull << 20, SIZE_MOST = 16ull << 40;

/* ---- what others wrote ---- */

static void look_all(mw_conn *c) {
    for (mw_sub *s = c->subs; s; s = s->next) mwe_fetch_soon(s);
}

/* LMDB counts all commits, we count ours: what is left are those of others. */
static bool others_wrote(mw_conn *c) {
    MDB_envinfo info;
    pthread_rwlock_rdlock(&c->store->map);
    mdb_env_info(c->store->env, &info);
    pthread_rwlock_unlock(&c->store->map);
    uint64_t foreign = info.me_last_txnid - atomic_load(&c->store->commits);
    bool changed = foreign != c->foreign;
    c->foreign = foreign;
    return changed;
}

static void inotify_ready(mw_io *io, int events) {
    (void)events;
    mw_conn *c = mw_container_of(io, mw_conn, inotify);
    char buffer[4096];
    while (read(c->inotify_fd, buffer, sizeof buffer) > 0) {
    }
    if (others_wrote(c)) look_all(c);
}

static void watch_others(mw_conn *c) {
    char *file;
    if (asprintf(&file, "%s/wake", c->store->folder) < 0) abort();
    c->inotify_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (c->inotify_fd >= 0 && inotify_add_watch(c->inotify_fd, file, IN_MODIFY) >= 0)
        mw_io_start(c->loop, &c->inotify, c->inotify_fd, MW_READ, inotify_ready);
    free(file); /* without a watch (their number is limited) the poll below has to do */
}

/* A write to the head of the file failed. What is on the disk is sound, but LMDB refuses to go on with it in
 * this process; another one can. Nothing is lost: what was not settled is delivered again. */
static void end_process(const mwe_store *s) {
    mw_log_begin(MW_ERROR, "the store failed to write; this process ends, for another one to open it again");
    mw_log_text("store", s->folder);
    mw_log_end();
    mw_log_flush();
    _exit(MW_EXIT_AGAIN);
}

static void poll_fired(mw_timer *t) {
    mw_conn *c = mw_container_of(t, mw_conn, poll);
    if (c->subs && atomic_load(&c->store->broken)) end_process(c->store);
    mwe_worker_beat(c->store->worker); /* a commit may keep the writer for long */
    others_wrote(c);
    look_all(c); /* the count of others' commits may hide one that crossed with ours */
    mwe_sweep(c);
    mw_timer_start(c->loop, t, POLL_MS, poll_fired);
}

/* ---- what our writer did ---- */

static void woken(mw_wake *w) {
    mw_conn *c = mw_container_of(w, mw_conn, wake);
    mwe_drain(c);
    for (mw_sub *s = c->subs; s; s = s->next) {
        uint64_t changes = atomic_load(&s->channel->changes);
        if (changes == s->seen) continue;
        s->seen = changes;
        mwe_fetch_soon(s);
    }
}

/* ---- open and close ---- */

static int read_url(const mw_url *url, uint64_t *size, mw_error *e) {
    static const char *const options[] = {"size", NULL};
    if (!*url->path || *url->hosts)
        return mw_fail(e, MW_EUSAGE, false, "the embedded broker needs a folder, such as embedded:data");
    return mw_url_only(url, options, e) ? -1 : mw_url_size(url, "size", SIZE_LEAST, SIZE_MOST, size, e);
}

static int embedded_check(const mw_url *url, mw_error *e) { return read_url(url, &(uint64_t){0}, e); }

static mw_conn *embedded_open(mw_loop *loop, const mw_url *url, mw_link *link, const mw_host *host,
                              mw_error *e) {
    uint64_t size = 0;
    if (read_url(url, &size, e)) return NULL;
    mwe_store *store = mwe_store_open(url->path, size, e);
    if (!store) return NULL;
    mw_conn *c = mwe_alloc(sizeof *c);
    *c = (mw_conn){
        .store = store, .loop = loop, .link = link, .host = host, .id = mwe_random(), .inotify_fd = -1};
    c->browsing_tail = &c->browsing;
    if (mw_wake_start(loop, &c->wake, woken) < 0) {
        mw_fail(e, errno, true, "no file descriptor left: %s", strerror(errno));
        mwe_store_close(store);
        free(c);
        return NULL;
    }
    mwe_conn_join(c);
    watch_others(c);
    others_wrote(c);
    mw_timer_start(loop, &c->poll, POLL_MS, poll_fired);
    return c;
}

static void embedded_close(mw_conn *c) {
    mw_timer_stop(&c->poll);
    mw_io_stop(&c->inotify);
    if (c->inotify_fd >= 0) close(c->inotify_fd);
    mwe_browse_cancel(c);
    mwe_conn_part(c);
    mw_wake_stop(&c->wake);
    if (c->reader) mdb_txn_abort(c->reader);
    mwe_store_close(c->store);
    free(c);
}

/* For good: what is released while draining must not come straight back. */
static void embedded_pause(mw_sub *s) { s->paused = true; }

static const char *const SCHEMES[] = {"embedded", NULL};

const mw_driver mw_driver_embedded;
const mw_driver mw_driver_embedded = {
    .name = "embedded",
    .schemes = SCHEMES,
    .can = MW_CAN_DELAY | MW_CAN_PRIORITY | MW_CAN_ATOMIC | MW_CAN_PARK | MW_CAN_DEDUPE | MW_CAN_BROWSE |
           MW_CAN_REMOVE | MW_CAN_RETRY | MW_CAN_RETAIN | MW_CAN_GROUPS,
    .check = embedded_check,
    .open = embedded_open,
    .close = embedded_close,
    .declare = mwe_declare,
    .subscribe = mwe_subscribe,
    .resume = mwe_fetch_soon,
    .begin = mwe_begin,
    .settle = mwe_settle,
    .unpark = mwe_unpark,
    .put_back = mwe_put_back,
    .go_on = mwe_go_on,
    .depth = mwe_depth,
    .pause = embedded_pause,
    .unsubscribe = mwe_unsubscribe,
    .publish = mwe_publish_list,
    .dedupe = mwe_dedupe,
    .browse = mwe_browse,
    .remove = mwe_remove,
    .release_key = mwe_release_key,
    .groups = mwe_groups,
    .remove_group = mwe_remove_group,
};
