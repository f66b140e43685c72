/* writer.c - the thread that writes: takes everything that is queued, applies it in one transaction, commits,
 * hands the operations back. While it waits for the disk the next group gathers by itself, so nobody sleeps
 * to make a batch. Operations take effect in the order given.
 *
 * When a transaction fails as a whole, its operations are told so; those that nobody waits for are kept and
 * tried again. An operation that finds room only in a later transaction waits for that, at the head of the
 * line; see room.c. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "drivers/embedded/embedded.h"

enum {
    MOST_ITEMS = 4096,
    MOST_BYTES = 64 << 20,
    BEAT_MS = 200,
    PAUSE_MS = 50, /* after a failure: a full disk does not get emptier by asking */
    PART_MS = 5000,
    READER_MS = 5, /* after which those who read are asked for their pages again, so often */
    READER_WAITS = 40,
    MOST_TURNS = 3, /* two bring everything within reach that nobody reads */
};

static void deadline_in(struct timespec *at, int64_t ms) {
    clock_gettime(CLOCK_MONOTONIC, at);
    at->tv_sec += ms / 1000;
    at->tv_nsec += ms % 1000 * 1000000;
    if (at->tv_nsec >= 1000000000) at->tv_sec++, at->tv_nsec -= 1000000000;
}

/* ---- one transaction ---- */

/* Applies up to store->limit items, or until one has to wait for the next transaction; *items tells how many.
 */
static int apply_items(mwe_txn *t, mwe_store *s, uint32_t *items) {
    for (mwe_op *op = s->active; op; op = op->next)
        for (; op->applied < op->count; op->applied++) {
            if (*items >= s->limit || t->bytes >= MOST_BYTES) return 0;
            t->patient = *items > 0 || s->turned < MOST_TURNS;
            int rc = op->kind->apply(t, op, op->applied);
            if (rc == MWE_LATER) return *items ? 0 : mwe_room_turn(t);
            ++*items;
            if (rc) {
                op->applied++; /* it was in the transaction that failed */
                return rc;
            }
        }
    return 0;
}

static int try_once(mwe_store *s, bool refuse, uint32_t *items, bool *news) {
    mwe_txn t;
    *items = 0;
    int rc = mwe_txn_begin(&t, s, refuse);
    if (rc) return rc;
    rc = apply_items(&t, s, items);
    if (rc) {
        mwe_txn_abort(&t);
        return rc;
    }
    *news = false;
    for (mwe_tchannel *c = t.channels; c; c = c->next) *news |= c->news;
    rc = mwe_txn_commit(&t);
    if (rc == 0 && t.wrote) atomic_fetch_add(&s->commits, 1); /* LMDB counts no empty ones */
    return rc;
}

static void undo(mwe_store *s) {
    for (mwe_op *op = s->active; op && op->applied > op->done; op = op->next) op->applied = op->done;
}

/* Pages may be short although room.c let everything in: others read an old state and hold its pages, or many
 * settlements touch a page each. So fewer are tried, down to one. That one fits as soon as the readers have
 * gone on, which they do within milliseconds; the last word is to refuse its publications. */
static int write_group(mwe_store *s, bool *news) {
    int waits = READER_WAITS;
    for (bool refuse = false;;) {
        uint32_t items;
        int rc = try_once(s, refuse, &items, news);
        if (rc == 0) {
            s->turned = items ? 0 : s->turned + 1;
            if (s->limit < MOST_ITEMS) s->limit *= 2;
            return 0;
        }
        if (rc != MDB_MAP_FULL || (refuse && items <= 1)) return rc;
        undo(s);
        s->limit = items / 4 ? items / 4 : 1;
        if (items > 1) continue;
        refuse = waits-- == 0;
        if (!refuse) usleep(READER_MS * 1000);
    }
}

/* ---- handing back ---- */

static void give_back(mwe_op *op) { /* locked */
    mw_conn *c = op->conn;
    if (!c->answers) mw_wake_signal(&c->wake);
    op->next = NULL;
    *c->answers_tail = op;
    c->answers_tail = &op->next;
    c->queued--;
}

static uint32_t tries_left(const mwe_op *op) { /* locked */
    uint32_t tries = op->kind->tries;
    return op->conn->parting && tries > MWE_TRY_SOME ? MWE_TRY_SOME : tries;
}

/* After a commit: what is complete leaves the list. After a failure: what was touched leaves it, too. */
static void sort_out(mwe_store *s, int rc) {
    mwe_op **at = &s->active;
    bool began = s->active->applied > s->active->done; /* else the transaction itself could not begin */
    pthread_mutex_lock(&s->lock);
    while (*at) {
        mwe_op *op = *at;
        bool touched = op->applied > op->done || !began;
        if (!touched && op->applied < op->count) break;
        if (rc == 0) op->done = op->applied;
        bool again = rc ? ++op->failures < tries_left(op) : op->done < op->count;
        if (again) {
            op->applied = op->done;
            at = &op->next;
            continue;
        }
        op->rc = rc;
        *at = op->next;
        give_back(op);
    }
    s->active_tail = &s->active;
    while (*s->active_tail) s->active_tail = &(*s->active_tail)->next;
    pthread_cond_broadcast(&s->finished);
    pthread_mutex_unlock(&s->lock);
}

/* Tells consumers to look: ours through their loop, others through a file they watch. */
static void spread_news(mwe_store *s) {
    uint64_t now = (uint64_t)mwe_wall_ms();
    if (pwrite(s->wake_fd, &now, sizeof now, 0) < 0) return; /* they look by themselves a little later */
}

static void wake_conns(mwe_store *s) {
    pthread_mutex_lock(&s->lock);
    for (mw_conn *c = s->conns; c; c = c->next) mw_wake_signal(&c->wake);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the thread ---- */

static void beat(mwe_store *s) {
    int64_t now = mwe_boot_ms();
    if (now - s->last_beat < BEAT_MS) return;
    s->last_beat = now;
    mwe_worker_beat(s->worker);
}

/* Waits for work, beating; takes all of it. False: stop. */
static bool gather(mwe_store *s) {
    pthread_mutex_lock(&s->lock);
    while (!s->queue && !s->active && !s->stop) {
        struct timespec until;
        deadline_in(&until, BEAT_MS);
        pthread_cond_timedwait(&s->work, &s->lock, &until);
        beat(s);
    }
    *s->active_tail = s->queue;
    if (s->queue) s->active_tail = s->queue_tail;
    s->queue = NULL;
    s->queue_tail = &s->queue;
    pthread_mutex_unlock(&s->lock);
    return s->active != NULL;
}

static void *write_all(void *arg) {
    mwe_store *s = arg;
    while (gather(s)) {
        bool news = false;
        beat(s);
        int rc = write_group(s, &news);
        sort_out(s, rc);
        if (rc == MDB_PANIC) atomic_store(&s->broken, true);
        if (rc == 0 && news) {
            wake_conns(s);
            spread_news(s);
        }
        if (rc) usleep(PAUSE_MS * 1000);
    }
    return NULL;
}

int mwe_writer_start(mwe_store *s, mw_error *e) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, &monotonic);
    pthread_cond_init(&s->finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    s->queue_tail = &s->queue;
    s->active_tail = &s->active;
    s->limit = MOST_ITEMS;
    sigset_t all, before; /* signals are the loop's business */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&s->writer, NULL, write_all, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? mw_fail(e, rc, true, "cannot start the writer thread: %s", strerror(rc)) : 0;
}

void mwe_writer_stop(mwe_store *s) {
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->writer, NULL);
    if (s->free_reader) mdb_txn_abort(s->free_reader);
    s->free_reader = NULL;
}

/* ---- the loop's side ---- */

void mwe_submit(mw_conn *c, mwe_op *op) {
    mwe_store *s = c->store;
    op->conn = c;
    op->next = NULL;
    pthread_mutex_lock(&s->lock);
    *s->queue_tail = op;
    s->queue_tail = &op->next;
    c->queued++;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

void mwe_drain(mw_conn *c) {
    pthread_mutex_lock(&c->store->lock);
    mwe_op *op = c->answers;
    c->answers = NULL;
    c->answers_tail = &c->answers;
    pthread_mutex_unlock(&c->store->lock);
    while (op) {
        mwe_op *next = op->next;
        op->kind->finish(op);
        op = next;
    }
}

void mwe_conn_join(mw_conn *c) {
    c->answers_tail = &c->answers;
    pthread_mutex_lock(&c->store->lock);
    c->next = c->store->conns;
    c->store->conns = c;
    pthread_mutex_unlock(&c->store->lock);
}

/* Takes the connection's operations out of the queue: they were never begun. */
static void cancel_queued(mwe_store *s, mw_conn *c) { /* locked */
    mwe_op **at = &s->queue;
    while (*at) {
        mwe_op *op = *at;
        if (op->conn != c) {
            at = &op->next;
            continue;
        }
        *at = op->next;
        op->rc = MW_ECLOSED;
        give_back(op);
    }
    s->queue_tail = at;
}

void mwe_conn_part(mw_conn *c) {
    mwe_store *s = c->store;
    struct timespec until;
    deadline_in(&until, PART_MS);
    pthread_mutex_lock(&s->lock);
    c->parting = true;
    while (c->queued && pthread_cond_timedwait(&s->finished, &s->lock, &until) == 0) {
    }
    cancel_queued(s, c);
    while (c->queued) pthread_cond_wait(&s->finished, &s->lock); /* in a transaction: it ends */
    mw_conn **at = &s->conns;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&s->lock);
    while (c->answers) mwe_drain(c);
}
