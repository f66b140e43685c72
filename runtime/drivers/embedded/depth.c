/* depth.c - how much waits for a group, and since when: read from its counters and the first rows of its
 * tables. */
#include "drivers/embedded/embedded.h"

static int64_t message_time(mw_sub *s, MDB_txn *txn, uint64_t from) {
    mwe_key k;
    MDB_cursor *c;
    mwe_record r = {0};
    MDB_val key = *mwe_key_message(&k, s->channel_id, from), value;
    if (mdb_cursor_open(txn, s->conn->store->table[MWE_MESSAGES], &c)) return 0;
    int rc = mdb_cursor_get(c, &key, &value, MDB_SET_RANGE);
    if (rc == 0 && key.mv_size == 12 && mwe_get32(key.mv_data) == s->channel_id && value.mv_size >= sizeof r)
        memcpy(&r, value.mv_data, sizeof r);
    mdb_cursor_close(c);
    return r.time_ms;
}

/* The oldest of the group: the first row of each priority in ready, or of what is delayed or parked. */
static uint64_t oldest_seq(mw_sub *s, MDB_txn *txn) {
    static const struct {
        int table;
        size_t key_size;
    } places[] = {{MWE_READY, MWE_READY_KEY}, {MWE_DUE, MWE_SORTED_KEY}, {MWE_PARKED, MWE_SORTED_KEY}};
    uint64_t oldest = UINT64_MAX;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        mwe_key k, prefix;
        MDB_cursor *c;
        MDB_val *group = mwe_key_group(&prefix, s->channel_id, s->group_id), key = *group, value;
        if (mdb_cursor_open(txn, s->conn->store->table[places[i].table], &c)) continue;
        uint8_t priority;
        uint64_t seq;
        while (mdb_cursor_get(c, &key, &value, MDB_SET_RANGE) == 0 && mwe_has_prefix(&key, group) &&
               mwe_read_place(&key, places[i].key_size, &priority, &seq)) {
            if (seq < oldest) oldest = seq;
            if (places[i].table != MWE_READY || priority == 0) break;
            key = *mwe_key_ready(&k, s->channel_id, s->group_id, (uint8_t)(priority - 1), 0);
        }
        mdb_cursor_close(c);
    }
    return oldest;
}

/* When the next delayed one is due: their rows are sorted by it. */
static int64_t next_due(mw_sub *s, MDB_txn *txn) {
    mwe_key prefix;
    MDB_cursor *c;
    MDB_val *group = mwe_key_group(&prefix, s->channel_id, s->group_id), key = *group, value;
    int64_t due = 0;
    if (mdb_cursor_open(txn, s->conn->store->table[MWE_DUE], &c)) return 0;
    if (mdb_cursor_get(c, &key, &value, MDB_SET_RANGE) == 0 && mwe_has_prefix(&key, group) &&
        key.mv_size == MWE_SORTED_KEY)
        due = (int64_t)mwe_get64((const uint8_t *)key.mv_data + MWE_GROUP_KEY);
    mdb_cursor_close(c);
    return due;
}

bool mwe_depth(mw_sub *s, mw_depth *out) {
    *out = (mw_depth){0};
    mwe_key k;
    MDB_val value;
    mwe_group_row row;
    mwe_store *store = s->conn->store;
    if (s->state == MWE_JOINING || mwe_read_begin(store, &s->conn->reader)) return false;
    MDB_txn *txn = s->conn->reader;
    int rc = mdb_get(txn, store->table[MWE_GROUPS], mwe_key_name(&k, s->channel_id, s->group, s->group_len),
                     &value);
    if (rc == 0 && mwe_read_row(&value, &row, sizeof row)) {
        uint64_t flying = s->flights.count;
        *out = (mw_depth){.ready = row.ready > flying ? row.ready - flying : 0,
                          .delayed = row.due,
                          .parked = row.parked,
                          .unsettled = flying,
                          .known = true};
        if (row.due) out->next_due_ms = next_due(s, txn);
        uint64_t seq = oldest_seq(s, txn);
        if (seq != UINT64_MAX) out->oldest_ms = message_time(s, txn, seq);
    }
    mwe_read_end(store, txn);
    return out->known;
}
