/* txn.c - one write transaction of the writer thread: one cursor per table, and the rows that many items of a
 * transaction share (channels, groups, slot owners), read once and written once at the end. An aborted
 * transaction leaves nothing behind in memory either. Writer thread only. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/store/store.h"

/* ---- begin and end ---- */

int mwe_txn_begin(mwe_txn *t, mwe_store *s, bool refuse) {
    *t = (mwe_txn){.store = s, .now = mwe_wall_ms(), .refuse = refuse};
    for (int tries = 0;; tries++) {
        pthread_rwlock_rdlock(&s->map);
        int rc = mdb_txn_begin(s->env, NULL, 0, &t->mdb);
        if (rc == 0) break;
        pthread_rwlock_unlock(&s->map);
        if (rc != MDB_MAP_RESIZED || tries == 3) return rc;
        mwe_store_resized(s);
    }
    if (!refuse) mwe_room_look(t);
    return 0;
}

static void forget_channel(mwe_tchannel *c) {
    c->channel->open = NULL;
    for (size_t i = 0; i < c->group_count; i++) free(c->groups[i]);
    free(c->groups);
    free(c);
}

static void end(mwe_txn *t, bool committed) {
    mwe_workers_done(t, committed);
    while (t->channels) {
        mwe_tchannel *c = t->channels;
        t->channels = c->next;
        if (committed && c->news) atomic_fetch_add(&c->channel->changes, 1);
        forget_channel(c);
    }
    pthread_rwlock_unlock(&t->store->map);
}

static void close_cursors(mwe_txn *t) {
    for (int i = 0; i < MWE_TABLES; i++)
        if (t->cursor[i]) mdb_cursor_close(t->cursor[i]);
}

void mwe_txn_abort(mwe_txn *t) {
    close_cursors(t);
    mdb_txn_abort(t->mdb);
    end(t, false);
}

static int flush_group(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g) {
    mwe_key k;
    int rc = 0;
    if (g->dirty) {
        MDB_val value = {sizeof g->row, &g->row};
        rc = mwe_put(t, MWE_GROUPS, mwe_key_name(&k, c->row.id, g->name, g->len), &value, 0);
    }
    if (!rc && g->owners_dirty) {
        MDB_val value = {mwe_owners_size(g->row.slots), &g->owners};
        rc = mwe_put(t, MWE_OWNERS, mwe_key_group(&k, c->row.id, g->row.id), &value, 0);
    }
    return rc;
}

static int flush(mwe_txn *t) {
    for (mwe_tchannel *c = t->channels; c; c = c->next) {
        for (size_t i = 0; i < c->group_count; i++) {
            int rc = flush_group(t, c, c->groups[i]);
            if (rc) return rc;
        }
        if (!c->dirty) continue;
        MDB_val key = {c->channel->len, c->channel->name}, value = {sizeof c->row, &c->row};
        int rc = mwe_put(t, MWE_CHANNELS, &key, &value, 0);
        if (rc) return rc;
    }
    return 0;
}

int mwe_txn_commit(mwe_txn *t) {
    int rc = flush(t);
    if (rc) {
        mwe_txn_abort(t);
        return rc;
    }
    close_cursors(t);
    rc = mdb_txn_commit(t->mdb);
    end(t, rc == 0);
    return rc;
}

/* ---- rows ---- */

MDB_cursor *mwe_cursor(mwe_txn *t, int table) {
    if (!t->cursor[table] && mdb_cursor_open(t->mdb, t->store->table[table], &t->cursor[table])) return NULL;
    return t->cursor[table];
}

int mwe_get(mwe_txn *t, int table, MDB_val *key, MDB_val *value) {
    return mdb_get(t->mdb, t->store->table[table], key, value);
}

/* Through the table's cursor: LMDB then tries the page it stands on before it searches from the root. */
int mwe_put(mwe_txn *t, int table, MDB_val *key, MDB_val *value, unsigned flags) {
    MDB_cursor *c = mwe_cursor(t, table);
    int rc = c ? mdb_cursor_put(c, key, value, flags) : ENOMEM;
    if (rc == 0) t->wrote = true;
    return rc;
}

int mwe_del_here(mwe_txn *t, int table) {
    t->wrote = true;
    return mdb_cursor_del(t->cursor[table], 0);
}

int mwe_del(mwe_txn *t, int table, MDB_val *key) {
    MDB_cursor *c = mwe_cursor(t, table);
    if (!c) return ENOMEM;
    int rc = mdb_cursor_get(c, key, NULL, MDB_SET);
    return rc ? rc : mwe_del_here(t, table);
}

/* ---- channels ---- */

/* The next of a number kept in meta. */
static int next_id(mwe_txn *t, const char *name, uint32_t *id) {
    MDB_val key = {strlen(name), (void *)name}, value;
    *id = 0;
    int rc = mwe_get(t, MWE_META, &key, &value);
    if (rc && rc != MDB_NOTFOUND) return rc;
    if (rc == 0 && !mwe_read_row(&value, id, sizeof *id)) return MW_EFORMAT;
    ++*id;
    value = (MDB_val){sizeof *id, id};
    return mwe_put(t, MWE_META, &key, &value, 0);
}

static int load_channel(mwe_txn *t, mwe_channel *channel, mwe_tchannel **out) {
    MDB_val key = {channel->len, channel->name}, value;
    mwe_channel_row row = {0};
    int rc = mwe_get(t, MWE_CHANNELS, &key, &value);
    if (rc && rc != MDB_NOTFOUND) return rc;
    if (rc == 0 && !mwe_read_row(&value, &row, sizeof row)) return MW_EFORMAT;
    mwe_tchannel *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->channel = channel;
    c->row = row;
    c->exists = rc == 0;
    c->next = t->channels;
    t->channels = c;
    channel->open = c;
    atomic_store(&channel->kept, row.retain_age_ms || row.retain_count || row.refs);
    *out = c;
    return 0;
}

int mwe_txn_channel(mwe_txn *t, mwe_channel *channel, bool create, mwe_tchannel **out) {
    mwe_tchannel *c = channel->open;
    int rc = c ? 0 : load_channel(t, channel, &c);
    if (!rc && !c->exists && create) {
        c->row = (mwe_channel_row){.next_seq = 1};
        if ((rc = next_id(t, "channels", &c->row.id)) == 0) c->exists = c->dirty = c->groups_loaded = true;
    }
    *out = rc == 0 && c->exists ? c : NULL;
    return rc;
}

/* ---- groups ---- */

static mwe_tgroup *add_group(mwe_tchannel *c, const char *name, size_t len, const mwe_group_row *row) {
    mwe_tgroup *g = calloc(1, sizeof *g + len + 1);
    c->groups = realloc(c->groups, (c->group_count + 1) * sizeof *c->groups);
    if (!g || !c->groups) abort();
    g->row = *row;
    g->len = len;
    memcpy(g->name, name, len);
    c->groups[c->group_count++] = g;
    return g;
}

int mwe_txn_groups(mwe_txn *t, mwe_tchannel *c) {
    if (c->groups_loaded) return 0;
    mwe_key k;
    MDB_val *prefix = mwe_key_channel(&k, c->row.id), key = *prefix, value;
    MDB_cursor *at = mwe_cursor(t, MWE_GROUPS);
    if (!at) return ENOMEM;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, prefix); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        mwe_group_row row;
        if (!mwe_read_row(&value, &row, sizeof row) || (row.slots != 1 && row.slots != MWE_SLOTS))
            return MW_EFORMAT;
        add_group(c, (char *)key.mv_data + prefix->mv_size, key.mv_size - prefix->mv_size, &row);
    }
    if (rc && rc != MDB_NOTFOUND) return rc;
    c->groups_loaded = true;
    return 0;
}

mwe_tgroup *mwe_txn_group_named(mwe_tchannel *c, const char *name, size_t len) {
    for (size_t i = 0; i < c->group_count; i++)
        if (c->groups[i]->len == len && memcmp(c->groups[i]->name, name, len) == 0) return c->groups[i];
    return NULL;
}

mwe_tgroup *mwe_txn_group(mwe_tchannel *c, uint32_t id) {
    for (size_t i = 0; i < c->group_count; i++)
        if (c->groups[i]->row.id == id) return c->groups[i];
    return NULL;
}

int mwe_txn_group_new(mwe_txn *t, mwe_tchannel *c, const char *name, size_t len, uint32_t slots,
                      mwe_tgroup **out) {
    mwe_group_row row = {.slots = slots};
    if (c->group_count >= MWE_GROUPS_MAX) return ENOSPC;
    int rc = next_id(t, "groups", &row.id);
    if (rc) return rc;
    *out = add_group(c, name, len, &row);
    (*out)->dirty = (*out)->owners_dirty = (*out)->owners_loaded = true;
    c->row.groups++;
    c->dirty = true;
    return 0;
}

int mwe_txn_group_drop(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g) {
    mwe_key k;
    size_t at = 0;
    int rc = mwe_del(t, MWE_GROUPS, mwe_key_name(&k, c->row.id, g->name, g->len));
    if (rc && rc != MDB_NOTFOUND) return rc;
    while (c->groups[at] != g) at++;
    c->groups[at] = c->groups[--c->group_count];
    free(g);
    c->row.groups -= c->row.groups > 0;
    c->dirty = true;
    return 0;
}

int mwe_txn_owners(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g) {
    if (g->owners_loaded) return 0;
    mwe_key k;
    MDB_val value;
    int rc = mwe_get(t, MWE_OWNERS, mwe_key_group(&k, c->row.id, g->row.id), &value);
    if (rc && rc != MDB_NOTFOUND) return rc;
    if (rc || !mwe_read_owners(&value, g->row.slots, &g->owners)) memset(&g->owners, 0, sizeof g->owners);
    g->owners_loaded = true;
    return 0;
}

int mwe_txn_open(mwe_txn *t, mwe_channel *channel, uint32_t group, mwe_tchannel **c, mwe_tgroup **g) {
    int rc = mwe_txn_channel(t, channel, false, c);
    if (rc) return rc;
    if (!*c) return MW_EFORMAT;
    if ((rc = mwe_txn_groups(t, *c))) return rc;
    *g = mwe_txn_group(*c, group);
    return *g ? mwe_txn_owners(t, *c, *g) : MW_EFORMAT;
}

/* ---- how many groups want a message ---- */

/* Most channels have one group, and then no refs rows at all: nothing to look up. */
int mwe_refs_get(mwe_txn *t, mwe_tchannel *c, uint64_t seq, uint32_t *refs) {
    *refs = seq >= c->row.owned_from && c->row.groups ? 1 : 0;
    if (c->row.refs == 0) return 0;
    mwe_key k;
    MDB_val value;
    int rc = mwe_get(t, MWE_REFS, mwe_key_message(&k, c->row.id, seq), &value);
    if (rc == 0 && !mwe_read_row(&value, refs, sizeof *refs)) *refs = 0;
    return rc == MDB_NOTFOUND ? 0 : rc;
}

int mwe_refs_set(mwe_txn *t, mwe_tchannel *c, uint64_t seq, uint32_t refs) {
    mwe_key k;
    MDB_val *key = mwe_key_message(&k, c->row.id, seq), value = {sizeof refs, &refs}, old;
    bool there = false;
    int rc = c->row.refs ? mwe_get(t, MWE_REFS, key, &old) : MDB_NOTFOUND;
    if (rc && rc != MDB_NOTFOUND) return rc;
    there = rc == 0;
    if ((rc = mwe_put(t, MWE_REFS, key, &value, 0))) return rc;
    if (!there) {
        c->row.refs++;
        c->dirty = true;
    }
    return 0;
}

int mwe_message_drop(mwe_txn *t, mwe_tchannel *c, uint64_t seq) {
    mwe_key k;
    int rc = mwe_record_drop(t, c->row.id, seq);
    if (rc && rc != MDB_NOTFOUND) return rc;
    if (rc == 0) c->row.messages -= c->row.messages > 0;
    c->dirty = true;
    if (c->row.refs == 0) return 0;
    rc = mwe_del(t, MWE_REFS, mwe_key_message(&k, c->row.id, seq));
    if (rc == 0) c->row.refs--;
    return rc == MDB_NOTFOUND ? 0 : rc;
}
