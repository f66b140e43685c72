/* pieces.c - the bytes of a message on the disk. A record that fits a page is one row of messages. A larger
 * one is cut into pieces of a page each: the first is the row in messages, the others stand in pieces, in
 * order. LMDB gives a row larger than a page pages that lie side by side, and in a well used file there may
 * be none although most of it is free; single pages there always are. Rows of format 1 are whole at any size,
 * and are read as they are.
 *
 * Reading: any thread with a transaction. Writing: the writer. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum { SEGMENTS = 6 };

typedef struct bytes { /* a record before it is written: its parts one after the other */
    MDB_val part[SEGMENTS];
    int at;
} bytes;

/* ---- writing ---- */

static void bytes_take(bytes *b, char *space, size_t size) {
    while (size) {
        MDB_val *from = &b->part[b->at];
        size_t n = from->mv_size < size ? from->mv_size : size;
        space = mwe_append(space, from->mv_data, n);
        from->mv_data = (char *)from->mv_data + n;
        from->mv_size -= n;
        size -= n;
        if (from->mv_size == 0) b->at++;
    }
}

/* Appending fills pages to the brim and searches nothing, but the key must be the table's last; LMDB says so
 * when it is not. */
static int reserve(mwe_txn *t, int table, MDB_val *key, MDB_val *value) {
    size_t size = value->mv_size;
    int rc = mwe_put(t, table, key, value, MDB_RESERVE | MDB_APPEND);
    if (rc != MDB_KEYEXIST) return rc;
    *value = (MDB_val){size, NULL};
    return mwe_put(t, table, key, value, MDB_RESERVE);
}

static int put_pieces(mwe_txn *t, uint32_t channel, uint64_t seq, const mw_parts *p, const mwe_record *r,
                      size_t size) {
    bytes b = {.part = {{sizeof *r, (void *)r},
                        {p->id_len, (void *)p->id},
                        {r->key_len, (void *)p->key},
                        {p->type_len, (void *)p->type},
                        {p->headers_len, (void *)p->headers},
                        {p->body_len, (void *)p->body}}};
    size_t most = mwe_piece_size(t->store);
    for (uint32_t i = 0; size; i++) {
        mwe_key k;
        MDB_val *key = i ? mwe_key_piece(&k, channel, seq, i) : mwe_key_message(&k, channel, seq);
        MDB_val value = {size < most ? size : most, NULL};
        size -= value.mv_size;
        int rc = reserve(t, i ? MWE_PIECES : MWE_MESSAGES, key, &value);
        if (rc) return rc;
        bytes_take(&b, value.mv_data, value.mv_size);
    }
    return 0;
}

int mwe_record_put(mwe_txn *t, uint32_t channel, uint64_t seq, const mw_parts *p, int64_t due_ms) {
    mwe_key k;
    mwe_record r = mwe_record_of(p, p->time_ms ? p->time_ms : t->now, due_ms);
    MDB_val value = {mwe_record_size(&r), NULL};
    t->bytes += value.mv_size;
    if (value.mv_size > mwe_piece_size(t->store)) return put_pieces(t, channel, seq, p, &r, value.mv_size);
    int rc = reserve(t, MWE_MESSAGES, mwe_key_message(&k, channel, seq), &value);
    if (rc == 0) mwe_record_write(value.mv_data, p, &r);
    return rc;
}

int mwe_record_drop(mwe_txn *t, uint32_t channel, uint64_t seq) {
    mwe_key k;
    mwe_record r;
    MDB_val *row = mwe_key_message(&k, channel, seq), value, key;
    MDB_cursor *at = mwe_cursor(t, MWE_MESSAGES);
    int rc = at ? mdb_cursor_get(at, row, &value, MDB_SET_KEY) : ENOMEM;
    if (rc) return rc;
    bool cut = mwe_record_head(&value, &r) && value.mv_size < mwe_record_size(&r);
    rc = mwe_del_here(t, MWE_MESSAGES);
    if (rc || !cut) return rc;
    MDB_val *prefix = mwe_key_message(&k, channel, seq); /* a prefix of its pieces' keys */
    if (!(at = mwe_cursor(t, MWE_PIECES))) return ENOMEM;
    key = *prefix;
    rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, prefix); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT))
        if ((rc = mwe_del_here(t, MWE_PIECES))) return rc;
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* ---- reading ---- */

/* The whole record in memory of our own; NULL when pieces are missing. */
static char *gather(mwe_store *s, MDB_txn *txn, uint32_t channel, uint64_t seq, const MDB_val *row,
                    size_t size) {
    mwe_key k, prefix;
    MDB_cursor *at;
    MDB_val *ours = mwe_key_message(&prefix, channel, seq), key = *mwe_key_piece(&k, channel, seq, 1), value;
    char *all = row->mv_size < size ? malloc(size) : NULL;
    if (!all) return NULL;
    char *end = mwe_append(all, row->mv_data, row->mv_size);
    size -= row->mv_size;
    int rc = mdb_cursor_open(txn, s->table[MWE_PIECES], &at);
    if (rc) goto bad;
    rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (uint32_t i = 1; rc == 0 && size; rc = size ? mdb_cursor_get(at, &key, &value, MDB_NEXT) : 0, i++) {
        bool next = key.mv_size == MWE_PIECE_KEY && mwe_has_prefix(&key, ours) &&
                    mwe_get32((const char *)key.mv_data + MWE_PIECE_KEY - 4) == i;
        if (!next || value.mv_size > size || value.mv_size == 0) break;
        end = mwe_append(end, value.mv_data, value.mv_size);
        size -= value.mv_size;
    }
    mdb_cursor_close(at);
    if (size == 0) return all;
bad:
    free(all);
    return NULL;
}

mw_message *mwe_record_message(mwe_store *s, MDB_txn *txn, uint32_t channel, uint64_t seq, const MDB_val *row,
                               int64_t *due_ms) {
    mwe_record r;
    mw_parts p;
    if (mwe_record_read(row, &p, due_ms)) return mw_message_new(&p);
    if (!mwe_record_head(row, &r)) return NULL;
    char *all = gather(s, txn, channel, seq, row, mwe_record_size(&r));
    if (!all) return NULL;
    MDB_val whole = {mwe_record_size(&r), all};
    if (mwe_record_read(&whole, &p, due_ms)) return mw_message_borrow(&p, free, all);
    free(all);
    return NULL;
}
