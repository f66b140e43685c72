/* dedupe.c - claims on keys: claimed -> done, or released. A claim is void when its lease ran out or when the
 * process that made it is dead. Each row has one row in the expiry table, written when it is claimed and
 * moved only when its time comes: a DONE in between costs nothing there. Applied by the writer, in the order
 * given relative to everything else of the connection. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum { SWEEP_MOST = 4096, WHOLE_KEY_MAX = 480, HASHED = 1, WHOLE = 2 };

typedef struct dedupe_item {
    mw_dedupe_op what;
    void *cookie;
    int64_t ttl_ms;
    mw_claim claim;
    MDB_val key; /* points behind the items */
} dedupe_item;

typedef struct dedupe_op {
    mwe_op op;
    uint64_t conn;
    dedupe_item items[];
} dedupe_op;

/* ---- the writer's side ---- */

/* Long keys are stored as two independent hashes of them. */
static MDB_val row_key(const char *key, size_t len, uint8_t *space) {
    if (len <= WHOLE_KEY_MAX) {
        *space = WHOLE;
        memcpy(space + 1, key, len);
        return (MDB_val){len + 1, space};
    }
    uint64_t first = mw_hash64(key, len), second = mw_hash64(key + 1, len - 1);
    *space = HASHED;
    mwe_put64(mwe_put64(space + 1, first), second);
    return (MDB_val){17, space};
}

static int expire_at(mwe_txn *t, int64_t when, MDB_val *row) {
    uint8_t bytes[16];
    mwe_put64(mwe_put64(bytes, (uint64_t)when), mw_hash64(row->mv_data, row->mv_size));
    MDB_val key = {sizeof bytes, bytes}, value = *row;
    return mwe_put(t, MWE_EXPIRY, &key, &value, 0);
}

static int write_row(mwe_txn *t, MDB_val *key, int64_t expires, uint64_t conn, bool done) {
    mwe_claim_row row = {
        .expires = expires, .worker = mwe_worker_id(t->store->worker), .conn = conn, .done = done};
    MDB_val value = {sizeof row, &row};
    return mwe_put(t, MWE_DEDUPE, key, &value, 0);
}

static bool holds(mwe_txn *t, const mwe_claim_row *row) {
    return row->expires > t->now && (row->done || mwe_worker_look(t, row->worker, INT64_MAX / 2) != MWE_DEAD);
}

static int64_t after(int64_t now, int64_t ttl) { return ttl > INT64_MAX / 4 ? INT64_MAX / 2 : now + ttl; }

static int apply(mwe_txn *t, mwe_op *op, uint32_t i) {
    dedupe_op *d = (dedupe_op *)op;
    dedupe_item *item = &d->items[i];
    MDB_val value;
    mwe_claim_row row = {0};
    int rc = mwe_get(t, MWE_DEDUPE, &item->key, &value);
    if (rc && rc != MDB_NOTFOUND) return rc;
    bool there = rc == 0 && mwe_read_row(&value, &row, sizeof row), held = there && holds(t, &row);
    int64_t until = after(t->now, item->ttl_ms);
    switch (item->what) {
    case MW_DEDUPE_CLAIM:
        item->claim = !held ? MW_CLAIM_YOURS : row.done ? MW_CLAIM_SEEN : MW_CLAIM_BUSY;
        if (held) return 0;
        rc = write_row(t, &item->key, until, d->conn, false);
        return rc ? rc : expire_at(t, until, &item->key);
    case MW_DEDUPE_DONE:
        rc = write_row(t, &item->key, until, d->conn, true);
        return rc || there ? rc : expire_at(t, until, &item->key);
    case MW_DEDUPE_RELEASE:
        if (!there || row.done || row.conn != d->conn) return 0;
        return mwe_del(t, MWE_DEDUPE, &item->key);
    }
    return 0;
}

int mwe_dedupe_done(mwe_txn *t, uint64_t conn, const char *key, size_t len, int64_t ttl_ms) {
    uint8_t space[WHOLE_KEY_MAX + 1];
    MDB_val name = row_key(key, len, space), value;
    int64_t until = after(t->now, ttl_ms);
    int rc = mwe_get(t, MWE_DEDUPE, &name, &value);
    if (rc && rc != MDB_NOTFOUND) return rc;
    bool there = rc == 0;
    rc = write_row(t, &name, until, conn, true);
    return rc || there ? rc : expire_at(t, until, &name);
}

/* What has expired goes; what was made to last longer meanwhile is looked at again then. */
static int expire_one(mwe_txn *t, MDB_val row_name) {
    uint8_t bytes[512];
    MDB_val key = {row_name.mv_size, bytes}, value;
    mwe_claim_row row;
    if (row_name.mv_size > sizeof bytes || row_name.mv_size == 0) return mwe_del_here(t, MWE_EXPIRY);
    memcpy(bytes, row_name.mv_data, row_name.mv_size);
    int rc = mwe_del_here(t, MWE_EXPIRY);
    if (!rc) rc = mwe_get(t, MWE_DEDUPE, &key, &value);
    if (rc) return rc == MDB_NOTFOUND ? 0 : rc;
    bool sound = mwe_read_row(&value, &row, sizeof row);
    if (sound && row.expires > t->now) return expire_at(t, row.expires, &key);
    return mwe_del(t, MWE_DEDUPE, &key);
}

int mwe_dedupe_sweep(mwe_txn *t) {
    MDB_cursor *at = mwe_cursor(t, MWE_EXPIRY);
    if (!at) return ENOMEM;
    for (int i = 0; i < SWEEP_MOST;
         i++) { /* from the first row each time: the step before moved the cursor */
        MDB_val key, value;
        int rc = mdb_cursor_get(at, &key, &value, MDB_FIRST);
        if (rc) return rc == MDB_NOTFOUND ? 0 : rc;
        if (key.mv_size == 16 && (int64_t)mwe_get64(key.mv_data) > t->now) return 0;
        if ((rc = expire_one(t, value))) return rc;
    }
    return 0;
}

/* ---- the loop's side ---- */

static void finish(mwe_op *op) {
    dedupe_op *d = (dedupe_op *)op;
    mw_conn *c = op->conn;
    mw_error e;
    if (op->rc) mwe_store_error(c->store, op->rc, &e);
    for (uint32_t i = 0; i < op->count; i++)
        if (d->items[i].what == MW_DEDUPE_CLAIM)
            c->host->claimed(c->link, d->items[i].cookie, d->items[i].claim, i < op->done ? NULL : &e);
    free(d);
}

/* A DONE is not answered, and what follows it relies on it: it is kept until it is written. */
static const mwe_op_kind CLAIM = {apply, finish, MWE_TRY_ONCE}, CONCLUDE = {apply, finish, MWE_TRY_ALWAYS};

static void submit(mw_conn *c, const mw_dedupe *list, size_t count, bool claims) {
    size_t space = sizeof(dedupe_op) + count * sizeof(dedupe_item);
    for (size_t i = 0; i < count; i++) space += 1 + (list[i].key_len <= WHOLE_KEY_MAX ? list[i].key_len : 16);
    dedupe_op *d = mwe_alloc(space);
    uint8_t *keys = (uint8_t *)&d->items[count];
    d->op.kind = claims ? &CLAIM : &CONCLUDE;
    d->op.count = (uint32_t)count;
    d->conn = c->id;
    for (size_t i = 0; i < count; i++) {
        d->items[i] = (dedupe_item){.what = list[i].op, .cookie = list[i].cookie, .ttl_ms = list[i].ttl_ms};
        d->items[i].key = row_key(list[i].key, list[i].key_len, keys);
        keys += d->items[i].key.mv_size;
    }
    mwe_submit(c, &d->op);
}

/* In runs of the same kind, so that claims can fail and the rest is kept. */
void mwe_dedupe(mw_conn *c, const mw_dedupe *list, size_t count) {
    for (size_t from = 0, to; from < count; from = to) {
        bool claims = list[from].op == MW_DEDUPE_CLAIM;
        for (to = from + 1; to < count && (list[to].op == MW_DEDUPE_CLAIM) == claims;) to++;
        submit(c, list + from, to - from, claims);
    }
}
