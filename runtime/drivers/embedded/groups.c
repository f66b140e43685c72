/* groups.c - the groups of a store as seen from outside: listing them, and removing one that nobody uses. A
 * group that will never come back keeps its messages for ever; removing it is as if it had acked them all. A
 * large one is emptied in steps, so that others get their turn. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum { STEP = 4096, LISTED_MOST = 100000, NO_GROUP = 1, LIVING = 2 };

/* ---- listing: the loop's side ---- */

typedef struct listing {
    mw_group_info *list;
    size_t count;
} listing;

static char *text_of(const void *bytes, size_t len) {
    char *text = mwe_alloc(len + 1);
    memcpy(text, bytes, len);
    return text;
}

static void list_channel(mw_conn *c, const MDB_val *name, uint32_t id, listing *l) {
    mwe_key k;
    MDB_cursor *at;
    MDB_val *prefix = mwe_key_channel(&k, id), key = *prefix, value;
    if (mdb_cursor_open(c->reader, c->store->table[MWE_GROUPS], &at)) return;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, prefix); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        mwe_group_row row;
        if (!mwe_read_row(&value, &row, sizeof row) || l->count == LISTED_MOST) continue;
        if ((l->count & (l->count - 1)) == 0) {
            l->list = realloc(l->list, (l->count ? l->count * 2 : 1) * sizeof *l->list);
            if (!l->list) abort();
        }
        const char *group = (const char *)key.mv_data + prefix->mv_size;
        l->list[l->count++] = (mw_group_info){.channel = text_of(name->mv_data, name->mv_size),
                                              .group = text_of(group, key.mv_size - prefix->mv_size),
                                              .ready = row.ready,
                                              .delayed = row.due,
                                              .parked = row.parked,
                                              .consumers = mwe_living(c, id, row.id)};
    }
    mdb_cursor_close(at);
}

static void list_channels(mw_conn *c, const mwe_channel *only, listing *l) {
    MDB_cursor *at;
    MDB_val key = {only ? only->len : 0, (void *)(only ? only->name : NULL)}, value;
    mwe_channel_row row;
    if (mdb_cursor_open(c->reader, c->store->table[MWE_CHANNELS], &at)) return;
    int rc = mdb_cursor_get(at, &key, &value, only ? MDB_SET_KEY : MDB_FIRST);
    for (; rc == 0; rc = only ? MDB_NOTFOUND : mdb_cursor_get(at, &key, &value, MDB_NEXT))
        if (mwe_read_row(&value, &row, sizeof row)) list_channel(c, &key, row.id, l);
    mdb_cursor_close(at);
}

void mwe_groups_answer(mw_conn *c, mwe_channel *channel, bool all, void *cookie) {
    mw_error e;
    listing l = {0};
    int rc = channel || all ? mwe_read_begin(c->store, &c->reader) : MW_EUSAGE;
    if (rc == 0) {
        list_channels(c, all ? NULL : channel, &l);
        mwe_read_end(c->store, c->reader);
    } else {
        mwe_store_error(c->store, rc, &e);
    }
    c->host->grouped(c->link, cookie, l.list, l.count, rc ? &e : NULL);
    for (size_t i = 0; i < l.count; i++) {
        free((char *)(uintptr_t)l.list[i].channel);
        free((char *)(uintptr_t)l.list[i].group);
    }
    free(l.list);
}

void mwe_groups(mw_conn *c, const char *channel, void *cookie) {
    mwe_browsing *b = mwe_alloc(sizeof *b);
    b->groups = true;
    b->all = !channel;
    b->b.cookie = cookie;
    b->channel = channel ? mwe_channel_named(c->store, channel) : NULL;
    mwe_browse_later(c, b);
}

/* ---- removing: the writer's side ---- */

typedef struct group_op {
    mwe_op op;
    mwe_channel *channel;
    void *cookie;
    uint64_t step, total; /* messages let go: in this transaction, and before it */
    int code;
    uint32_t living;
    bool force, over;
    size_t group_len;
    char group[];
} group_op;

/* Those that live, and those that are only stopped: they may wake up. */
static int count_living(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint32_t *living) {
    mwe_key k;
    MDB_val *prefix = mwe_key_group(&k, c->row.id, g->row.id), key = *prefix, value;
    MDB_cursor *at = mwe_cursor(t, MWE_CONSUMERS);
    if (!at) return ENOMEM;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (*living = 0; rc == 0 && mwe_has_prefix(&key, prefix);
         rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        mwe_consumer_row row;
        if (mwe_read_row(&value, &row, sizeof row))
            *living += mwe_worker_look(t, row.worker, row.lease_ms) != MWE_DEAD;
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* Deletes up to *left rows of the group; place: the length of keys that name a message, which loses a reader;
 * 0 for tables that do not. */
static int empty_table(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, int table, size_t place, group_op *o,
                       int *left) {
    mwe_key k;
    MDB_val *prefix = mwe_key_group(&k, c->row.id, g->row.id), key = *prefix, value;
    MDB_cursor *at = mwe_cursor(t, table);
    if (!at) return ENOMEM;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && *left && mwe_has_prefix(&key, prefix);
         rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        uint8_t priority;
        uint64_t seq;
        bool message = place && mwe_read_place(&key, place, &priority, &seq);
        if ((rc = mwe_del_here(t, table))) return rc;
        if (message && (rc = mwe_message_unwanted(t, c, seq))) return rc;
        o->step += message;
        --*left;
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int empty_group(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, group_op *o, int *left) {
    static const struct {
        int table;
        size_t place;
    } tables[] = {{MWE_READY, MWE_READY_KEY},
                  {MWE_DUE, MWE_SORTED_KEY},
                  {MWE_PARKED, MWE_SORTED_KEY},
                  {MWE_ERRORS, 0},
                  {MWE_MARKS, 0},
                  {MWE_CONSUMERS, 0},
                  {MWE_OWNERS, 0}};
    uint64_t *counts[] = {&g->row.ready, &g->row.due, &g->row.parked};
    int rc = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables && !rc && *left; i++) {
        int before = *left;
        rc = empty_table(t, c, g, tables[i].table, tables[i].place, o, left);
        uint64_t gone = (uint64_t)(before - *left);
        if (i < 3) *counts[i] -= gone < *counts[i] ? gone : *counts[i];
    }
    g->dirty = true;
    return rc;
}

static int apply(mwe_txn *t, mwe_op *op, uint32_t i) {
    (void)i;
    group_op *o = (group_op *)op;
    mwe_tchannel *c = NULL;
    int left = STEP;
    o->step = 0;
    o->over = true;
    o->code = o->channel ? 0 : MW_EUSAGE;
    int rc = o->code ? 0 : mwe_txn_channel(t, o->channel, false, &c);
    if (!rc && c) rc = mwe_txn_groups(t, c);
    if (rc == MW_EFORMAT) o->code = rc;
    if (o->code) return 0;
    if (rc) return rc;
    mwe_tgroup *g = c ? mwe_txn_group_named(c, o->group, o->group_len) : NULL;
    if (!g) {
        o->code = o->total ? 0 : NO_GROUP; /* somebody else finished what we began */
        return 0;
    }
    if ((rc = count_living(t, c, g, &o->living))) return rc;
    if (o->living && !o->force) {
        o->code = LIVING;
        return 0;
    }
    rc = empty_group(t, c, g, o, &left);
    o->over = left > 0;
    c->news = true;
    return rc || !o->over ? rc : mwe_txn_group_drop(t, c, g);
}

/* ---- removing: the loop's side ---- */

static void explain(const group_op *o, int code, mw_error *e) {
    const char *channel = o->channel ? o->channel->name : "";
    if (code == NO_GROUP)
        mw_fail(e, MW_EUSAGE, false, "%s has no group %s", channel, o->group);
    else if (code == LIVING)
        mw_fail(e, MW_EUSAGE, false, "group %s of %s has %u consumer%s: stop %s first, or force it", o->group,
                channel, o->living, o->living == 1 ? "" : "s", o->living == 1 ? "it" : "them");
    else
        mwe_store_error(o->op.conn->store, code, e);
}

static void finish(mwe_op *op) {
    group_op *o = (group_op *)op;
    mw_conn *c = op->conn;
    mw_error e;
    int code = mwe_code(op, 0, o->code);
    if (code == 0) o->total += o->step;
    if (code == 0 && !o->over && c->parting) code = MW_ECLOSED;
    if (code == 0 && !o->over) {
        op->applied = op->done = op->failures = 0;
        mwe_submit(c, op);
        return;
    }
    if (code) explain(o, code, &e);
    c->host->removed(c->link, o->cookie, o->total, code ? &e : NULL);
    free(o);
}

static const mwe_op_kind REMOVE_GROUP = {apply, finish, MWE_TRY_ONCE};

void mwe_remove_group(mw_conn *c, const char *channel, const char *group, bool force, void *cookie) {
    size_t len = strlen(group);
    group_op *o = mwe_alloc(sizeof *o + len + 1);
    o->op.kind = &REMOVE_GROUP;
    o->op.count = 1;
    o->channel = mwe_channel_named(c->store, channel);
    o->cookie = cookie;
    o->force = force;
    o->group_len = len;
    memcpy(o->group, group, len);
    mwe_submit(c, &o->op);
}
