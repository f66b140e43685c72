/* admin.c - looking into a channel and taking messages out of it from outside: browse, remove. Browsing is a
 * read on the loop's thread, answered in a deferred call; a removal is an operation of the writer, with its
 * publications in the same transaction. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum {
    ENTRIES_MOST = 1000,
    BYTES_MOST = 16 << 20,
    DUE_MOST = 1 << 16, /* delayed messages looked at to tell their time */
};

typedef struct mwe_browsing {
    struct mwe_browsing *next;
    mwe_channel *channel;
    mw_browse b;
} browsing;

typedef struct remove_op {
    mwe_op op;
    mwe_channel *channel;
    mw_removal r;
    mwe_publish *publish;
    size_t removed;
    int code;
} remove_op;

/* ---- browse ---- */

static bool find_channel(mw_conn *c, const mwe_channel *channel, uint32_t *id) {
    MDB_val key = {channel->len, (void *)channel->name}, value;
    mwe_channel_row row;
    if (mdb_get(c->reader, c->store->table[MWE_CHANNELS], &key, &value)) return false;
    if (!mwe_read_row(&value, &row, sizeof row)) return false;
    *id = row.id;
    return true;
}

/* seq -> due time + 1, for what waits for a retry: its row in messages does not tell. */
static void read_due(mw_conn *c, uint32_t channel, mw_map *due) {
    mwe_key prefix;
    MDB_cursor *at;
    MDB_val *range = mwe_key_channel(&prefix, channel), key = *range, value;
    if (mdb_cursor_open(c->reader, c->store->table[MWE_DUE], &at)) return;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, range); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        uint8_t priority;
        uint64_t seq;
        if (due->count >= DUE_MOST) break;
        if (!mwe_read_place(&key, MWE_SORTED_KEY, &priority, &seq) || seq == 0) continue;
        uint64_t when = mwe_get64((const char *)key.mv_data + MWE_GROUP_KEY);
        mw_map_put(due, seq, (void *)(uintptr_t)(when + 1));
    }
    mdb_cursor_close(at);
}

static size_t read_entries(mw_conn *c, const mw_browse *b, uint32_t channel, mw_entry *out, size_t max,
                           uint64_t *last) {
    mwe_key k, prefix;
    MDB_cursor *at;
    MDB_val *range = mwe_key_channel(&prefix, channel), value;
    MDB_val key = *mwe_key_message(&k, channel, b->after.low + 1);
    size_t count = 0, bytes = 0;
    mw_map due = {0};
    if (b->after.low == UINT64_MAX || mdb_cursor_open(c->reader, c->store->table[MWE_MESSAGES], &at))
        return 0;
    read_due(c, channel, &due);
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && count < max && bytes < BYTES_MOST && mwe_has_prefix(&key, range);
         rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        mw_parts parts;
        int64_t due_ms;
        if (key.mv_size != 12) continue;
        *last = mwe_get64((const char *)key.mv_data + 4);
        if (!mwe_record_read(&value, &parts, &due_ms)) continue;
        uintptr_t retry = *last ? (uintptr_t)mw_map_get(&due, *last) : 0;
        if (retry) due_ms = (int64_t)retry - 1;
        if (due_ms <= mw_loop_wall_ms(c->loop)) due_ms = 0;
        out[count++] =
            (mw_entry){.position = {.low = *last}, .msg = mw_message_new(&parts), .due_ms = due_ms};
        bytes += value.mv_size;
    }
    mdb_cursor_close(at);
    mw_map_free(&due);
    return count;
}

static uint64_t read_newest(mw_conn *c, uint32_t channel) {
    mwe_key k;
    MDB_cursor *at;
    MDB_val key = *mwe_key_message(&k, channel, UINT64_MAX), value;
    uint64_t newest = 0;
    if (mdb_cursor_open(c->reader, c->store->table[MWE_MESSAGES], &at)) return 0;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    rc = mdb_cursor_get(at, &key, &value, rc == 0 ? MDB_PREV : MDB_LAST);
    if (rc == 0 && key.mv_size == 12 && mwe_get32(key.mv_data) == channel)
        newest = mwe_get64((const char *)key.mv_data + 4);
    mdb_cursor_close(at);
    return newest;
}

static void answer_browse(mw_conn *c, browsing *b) {
    mw_error e;
    uint64_t last = b->b.after.low;
    uint32_t channel;
    size_t max = b->b.max < ENTRIES_MOST ? b->b.max : ENTRIES_MOST, count = 0;
    mw_entry *entries = mwe_alloc((max + 1) * sizeof *entries);
    int rc = b->channel ? mwe_read_begin(c->store, &c->reader) : MW_EUSAGE;
    if (rc == 0) {
        if (find_channel(c, b->channel, &channel)) {
            if (b->b.newest)
                last = read_newest(c, channel);
            else
                count = read_entries(c, &b->b, channel, entries, max, &last);
        } else if (b->b.newest) {
            last = 0;
        }
        mwe_read_end(c->store, c->reader);
    }
    if (rc) mwe_store_error(c->store, rc, &e);
    c->host->browsed(c->link, b->b.cookie, entries, count, (mw_position){.low = last}, rc ? &e : NULL);
    for (size_t i = 0; i < count; i++) mw_message_unref(entries[i].msg);
    free(entries);
    free(b);
}

static void run_browse(mw_deferred *d) {
    mw_conn *c = mw_container_of(d, mw_conn, browse);
    browsing *b = c->browsing;
    c->browsing = NULL;
    c->browsing_tail = &c->browsing;
    while (b) {
        browsing *next = b->next;
        answer_browse(c, b);
        b = next;
    }
}

void mwe_browse(mw_conn *c, const mw_browse *want) {
    browsing *b = mwe_alloc(sizeof *b);
    b->b = *want;
    b->channel = mwe_channel_named(c->store, want->channel);
    *c->browsing_tail = b;
    c->browsing_tail = &b->next;
    mw_defer(c->loop, &c->browse, run_browse);
}

void mwe_browse_cancel(mw_conn *c) {
    mw_deferred_cancel(c->loop, &c->browse);
    run_browse(&c->browse);
}

/* ---- remove ---- */

/* Deletes the rows of these messages from due or parked, where a message cannot be found by its number. */
static int remove_sorted(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, int table, uint64_t *counter,
                         const mw_map *gone) {
    mwe_key prefix;
    MDB_val *range = mwe_key_group(&prefix, c->row.id, g->row.id), key = *range, value;
    MDB_cursor *at = mwe_cursor(t, table);
    if (!at) return ENOMEM;
    int rc = *counter && gone->count ? mdb_cursor_get(at, &key, &value, MDB_SET_RANGE) : MDB_NOTFOUND;
    for (; rc == 0 && mwe_has_prefix(&key, range); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        uint8_t priority;
        uint64_t seq;
        if (!mwe_read_place(&key, MWE_SORTED_KEY, &priority, &seq) || !seq || !mw_map_get(gone, seq))
            continue;
        if ((rc = mwe_del_here(t, table))) return rc;
        *counter -= *counter > 0;
        g->dirty = true;
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int remove_from_group(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t seq, uint8_t priority,
                             mw_map *missing) {
    mwe_key k;
    int rc = mwe_del(t, MWE_READY, mwe_key_ready(&k, c->row.id, g->row.id, priority, seq));
    if (rc == 0) {
        g->row.ready -= g->row.ready > 0;
        g->dirty = true;
    } else if (rc == MDB_NOTFOUND && seq) {
        mw_map_put(missing, seq, missing);
    } else if (rc) {
        return rc;
    }
    rc = mwe_del(t, MWE_ERRORS, mwe_key_in_group(&k, c->row.id, g->row.id, seq));
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int remove_one(mwe_txn *t, mwe_tchannel *c, uint64_t seq, mw_map *missing, size_t *removed) {
    mwe_key k;
    MDB_val value;
    mwe_record r = {0};
    int rc = mwe_get(t, MWE_MESSAGES, mwe_key_message(&k, c->row.id, seq), &value);
    if (rc) return rc == MDB_NOTFOUND ? 0 : rc;
    if (value.mv_size >= sizeof r) memcpy(&r, value.mv_data, sizeof r);
    if (r.priority > MW_PRIORITY_MAX) r.priority = 0;
    for (size_t i = 0; i < c->group_count && !rc; i++)
        rc = remove_from_group(t, c, c->groups[i], seq, r.priority, &missing[i]);
    if (rc) return rc;
    ++*removed;
    return mwe_message_drop(t, c, seq);
}

static int remove_all(mwe_txn *t, mwe_tchannel *c, remove_op *o) {
    mw_map *missing = mwe_alloc((c->group_count + 1) * sizeof *missing);
    int rc = 0;
    for (size_t i = 0; i < o->r.count && !rc; i++)
        rc = remove_one(t, c, o->r.positions[i].low, missing, &o->removed);
    for (size_t i = 0; i < c->group_count; i++) {
        mwe_tgroup *g = c->groups[i];
        if (!rc) rc = remove_sorted(t, c, g, MWE_DUE, &g->row.due, &missing[i]);
        if (!rc) rc = remove_sorted(t, c, g, MWE_PARKED, &g->row.parked, &missing[i]);
        mw_map_free(&missing[i]);
    }
    free(missing);
    return rc;
}

/* A replacement goes out only for a message that is still there: two replays at once must not send it twice.
 */
static int publish_replacements(mwe_txn *t, mwe_tchannel *c, remove_op *o) {
    mwe_publish *present = mwe_alloc((o->r.publish_count + 1) * sizeof *present);
    size_t count = 0;
    int rc = 0;
    for (size_t i = 0; i < o->r.publish_count && !rc; i++) {
        mwe_key k;
        MDB_val value;
        rc = mwe_get(t, MWE_MESSAGES, mwe_key_message(&k, c->row.id, o->r.positions[i].low), &value);
        if (rc == 0)
            present[count++] = o->publish[i];
        else if (rc == MDB_NOTFOUND)
            rc = 0;
    }
    if (!rc) rc = mwe_publish_apply(t, present, count, &o->code);
    free(present);
    return rc;
}

static int apply_remove(mwe_txn *t, mwe_op *op, uint32_t i) {
    (void)i;
    remove_op *o = (remove_op *)op;
    mwe_tchannel *c = NULL;
    o->removed = 0;
    o->code = o->channel ? 0 : MW_EUSAGE;
    if (o->code) return 0;
    int rc = mwe_txn_channel(t, o->channel, false, &c);
    if (!rc && c) rc = mwe_txn_groups(t, c);
    if (rc == MW_EFORMAT) {
        o->code = rc;
        return 0;
    }
    if (rc || !c) return rc;
    rc = publish_replacements(t, c, o);
    return rc || o->code ? rc : remove_all(t, c, o);
}

static void finish_remove(mwe_op *op) {
    remove_op *o = (remove_op *)op;
    mw_error e;
    int code = mwe_code(op, 0, o->code);
    if (code) mwe_store_error(op->conn->store, code, &e);
    op->conn->host->removed(op->conn->link, o->r.cookie, code ? 0 : o->removed, code ? &e : NULL);
    free(o->publish);
    free(o);
}

static const mwe_op_kind REMOVE = {apply_remove, finish_remove, MWE_TRY_ONCE};

void mwe_remove(mw_conn *c, const mw_removal *r) {
    remove_op *o = mwe_alloc(sizeof *o);
    o->op.kind = &REMOVE;
    o->op.count = 1;
    o->channel = mwe_channel_named(c->store, r->channel);
    o->r = *r;
    o->publish = mwe_alloc((r->publish_count + 1) * sizeof *o->publish);
    for (size_t i = 0; i < r->publish_count; i++) mwe_publish_take(c, &o->publish[i], &r->publish[i]);
    mwe_submit(c, &o->op);
}
