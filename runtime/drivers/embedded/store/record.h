/* record.h - what stands on the disk: the keys and rows of every table, built and taken apart.
 * Keys are big endian, so that LMDB's byte order is our order. Rows are native structs: an LMDB file does not
 * travel between machines of different byte order anyway. LMDB gives no alignment, so rows are copied out,
 * and every length is checked before anything is read: a bad row is "not there", never a crash. Pure
 * functions, any thread. */
#pragma once
#include <lmdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/hash.h"
#include "core/message.h"

enum {
    MWE_NAME_MAX = 480, /* channel and group names: LMDB keys end at 511 bytes */
    MWE_KEY_SPACE = 40, /* the longest fixed key */
    MWE_SLOTS = 64,     /* of a group whose messages are spread over consumers */
    MWE_LEVELS = MW_PRIORITY_MAX + 1,
    MWE_ERROR_MAX = 4000,       /* with its key it fits a page: see pieces.c */
    MWE_ERROR_READ_MAX = 16384, /* format 1 kept more */
    MWE_GROUPS_MAX = 1000,      /* of one channel */
};

/* ---- rows ---- */

typedef struct mwe_channel_row { /* channels: name -> this */
    uint32_t id, groups;
    uint64_t next_seq;
    uint64_t
        owned_from; /* below it a message without a refs row is owed to nobody, from it on to one group */
    uint64_t messages, refs; /* rows of this channel in those tables */
    int64_t retain_age_ms;
    uint64_t retain_count;
} mwe_channel_row;

typedef struct mwe_group_row { /* groups: [channel][name] -> this */
    uint32_t id, slots;
    uint64_t ready, due, parked; /* rows of this group in those tables */
} mwe_group_row;

typedef struct mwe_owner {
    uint64_t consumer; /* 0: free */
    uint32_t epoch, unused;
} mwe_owner;

typedef struct mwe_owners { /* slots: [channel][group] -> this, with as many owners as the group has slots */
    uint64_t marks_version;
    mwe_owner slot[MWE_SLOTS];
} mwe_owners;

typedef struct mwe_consumer_row { /* consumers: [channel][group][consumer] -> this */
    uint64_t worker;
    int64_t lease_ms;
} mwe_consumer_row;

/* ready, due, parked: what is known about a message that waits. Nearly all of them have never failed: those
 * are stored as the hash alone. */
typedef struct mwe_waiting {
    uint32_t hash; /* of the key: hash % slots is the slot */
    uint32_t attempts;
    int64_t not_before;
} mwe_waiting;

typedef struct mwe_claim_row { /* dedupe: key -> this */
    int64_t expires;
    uint64_t worker, conn;
    uint64_t done;
} mwe_claim_row;

/* messages: [channel][seq] -> this, then id, key, type, headers, body. What is larger than a page goes on in
 * pieces: [channel][seq][number, from 1]. */
typedef struct mwe_record {
    int64_t time_ms, due_ms;
    uint32_t body_len, key_len, headers_len;
    uint8_t id_len, type_len, priority, has_key;
} mwe_record;

/* ---- keys ---- */

static inline uint8_t *mwe_put32(uint8_t *at, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(at, &v, sizeof v);
    return at + sizeof v;
}

static inline uint8_t *mwe_put64(uint8_t *at, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(at, &v, sizeof v);
    return at + sizeof v;
}

static inline uint32_t mwe_get32(const void *at) {
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return __builtin_bswap32(v);
}

static inline uint64_t mwe_get64(const void *at) {
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return __builtin_bswap64(v);
}

/* A key under construction: MDB_val and its bytes together. */
typedef struct mwe_key {
    MDB_val val;
    uint8_t bytes[MWE_KEY_SPACE + MWE_NAME_MAX];
} mwe_key;

static inline MDB_val *mwe_key_end(mwe_key *k, const uint8_t *end) {
    k->val.mv_data = k->bytes;
    k->val.mv_size = (size_t)(end - k->bytes);
    return &k->val;
}

static inline MDB_val *mwe_key_message(mwe_key *k, uint32_t channel, uint64_t seq) { /* messages, refs */
    return mwe_key_end(k, mwe_put64(mwe_put32(k->bytes, channel), seq));
}

static inline MDB_val *mwe_key_piece(mwe_key *k, uint32_t channel, uint64_t seq, uint32_t number) {
    return mwe_key_end(k, mwe_put32(mwe_put64(mwe_put32(k->bytes, channel), seq), number));
}

static inline MDB_val *mwe_key_channel(mwe_key *k, uint32_t channel) { /* a prefix */
    return mwe_key_end(k, mwe_put32(k->bytes, channel));
}

static inline MDB_val *mwe_key_name(mwe_key *k, uint32_t channel, const char *name, size_t len) { /* groups */
    uint8_t *at = mwe_put32(k->bytes, channel);
    memcpy(at, name, len);
    return mwe_key_end(k, at + len);
}

static inline MDB_val *mwe_key_group(mwe_key *k, uint32_t channel, uint32_t group) { /* slots; a prefix */
    return mwe_key_end(k, mwe_put32(mwe_put32(k->bytes, channel), group));
}

/* consumers (last = consumer), errors (seq), marks (lane). */
static inline MDB_val *mwe_key_in_group(mwe_key *k, uint32_t channel, uint32_t group, uint64_t last) {
    return mwe_key_end(k, mwe_put64(mwe_put32(mwe_put32(k->bytes, channel), group), last));
}

enum { MWE_PIECE_KEY = 16, MWE_READY_KEY = 17, MWE_SORTED_KEY = 25, MWE_GROUP_KEY = 8 };

static inline uint8_t *mwe_put_place(uint8_t *at, uint8_t priority, uint64_t seq) {
    *at++ = (uint8_t)(MW_PRIORITY_MAX - priority);
    return mwe_put64(at, seq);
}

static inline MDB_val *mwe_key_ready(mwe_key *k, uint32_t channel, uint32_t group, uint8_t priority,
                                     uint64_t seq) {
    return mwe_key_end(k, mwe_put_place(mwe_put32(mwe_put32(k->bytes, channel), group), priority, seq));
}

/* due (first = due time), parked (first = lane). */
static inline MDB_val *mwe_key_sorted(mwe_key *k, uint32_t channel, uint32_t group, uint64_t first,
                                      uint8_t priority, uint64_t seq) {
    uint8_t *at = mwe_put64(mwe_put32(mwe_put32(k->bytes, channel), group), first);
    return mwe_key_end(k, mwe_put_place(at, priority, seq));
}

static inline bool mwe_has_prefix(const MDB_val *key, const MDB_val *prefix) {
    return key->mv_size >= prefix->mv_size && memcmp(key->mv_data, prefix->mv_data, prefix->mv_size) == 0;
}

/* The place at the end of a ready, due or parked key; false when the key is not of that shape. */
static inline bool mwe_read_place(const MDB_val *key, size_t size, uint8_t *priority, uint64_t *seq) {
    const uint8_t *b = key->mv_data;
    if (key->mv_size != size || b[size - 9] > MW_PRIORITY_MAX) return false;
    *priority = (uint8_t)(MW_PRIORITY_MAX - b[size - 9]);
    *seq = mwe_get64(b + size - 8);
    return *seq != 0;
}

/* ---- values ---- */

/* Copies a row of a fixed size out; false when it has another size. */
static inline bool mwe_read_row(const MDB_val *v, void *row, size_t size) {
    if (v->mv_size != size) return false;
    memcpy(row, v->mv_data, size);
    return true;
}

static inline bool mwe_read_waiting(const MDB_val *v, mwe_waiting *out) {
    *out = (mwe_waiting){0};
    if (v->mv_size != sizeof out->hash && v->mv_size != sizeof *out) return false;
    memcpy(out, v->mv_data, v->mv_size);
    return true;
}

static inline MDB_val mwe_write_waiting(mwe_waiting *w) {
    bool plain = w->attempts == 0 && w->not_before == 0;
    return (MDB_val){plain ? sizeof w->hash : sizeof *w, w};
}

static inline size_t mwe_owners_size(uint32_t slots) {
    return offsetof(mwe_owners, slot) + slots * sizeof(mwe_owner);
}

static inline bool mwe_read_owners(const MDB_val *v, uint32_t slots, mwe_owners *out) {
    memset(out, 0, sizeof *out);
    if (slots > MWE_SLOTS || v->mv_size != mwe_owners_size(slots)) return false;
    memcpy(out, v->mv_data, v->mv_size);
    return true;
}

static inline mwe_record mwe_record_of(const mw_parts *p, int64_t time_ms, int64_t due_ms) {
    return (mwe_record){.time_ms = time_ms,
                        .due_ms = due_ms,
                        .body_len = (uint32_t)p->body_len,
                        .key_len = p->has_key ? (uint32_t)p->key_len : 0,
                        .headers_len = (uint32_t)p->headers_len,
                        .id_len = (uint8_t)p->id_len,
                        .type_len = (uint8_t)p->type_len,
                        .priority = p->priority,
                        .has_key = p->has_key};
}

/* The bytes before the body, and all of them. */
static inline size_t mwe_record_meta(const mwe_record *r) {
    return sizeof *r + (size_t)r->id_len + r->key_len + r->type_len + r->headers_len;
}

static inline size_t mwe_record_size(const mwe_record *r) { return mwe_record_meta(r) + r->body_len; }

static inline char *mwe_append(char *at, const char *data, size_t len) {
    if (len) memcpy(at, data, len);
    return at + len;
}

/* Fills the mwe_record_size(r) bytes at `space`. */
static inline void mwe_record_write(char *space, const mw_parts *p, const mwe_record *r) {
    char *at = mwe_append(space, (const char *)r, sizeof *r);
    at = mwe_append(at, p->id, p->id_len);
    at = mwe_append(at, p->key, r->key_len);
    at = mwe_append(at, p->type, p->type_len);
    at = mwe_append(at, p->headers, p->headers_len);
    mwe_append(at, p->body, p->body_len);
}

/* The fixed part, of a whole record or of its first piece. */
static inline bool mwe_record_head(const MDB_val *v, mwe_record *r) {
    if (v->mv_size < sizeof *r) return false;
    memcpy(r, v->mv_data, sizeof *r);
    return r->priority <= MW_PRIORITY_MAX && r->body_len <= MW_BODY_MAX && r->key_len <= MW_KEY_MAX &&
           r->headers_len <= MW_HEADERS_READ_MAX && v->mv_size <= mwe_record_size(r);
}

/* Everything but the body's bytes; false when they are not all in this row. The parts point into it.
 * Everything the core relies on is checked again: the file may be damaged. */
static inline bool mwe_record_parts(const MDB_val *v, mw_parts *p, int64_t *due_ms) {
    mwe_record r;
    if (!mwe_record_head(v, &r) || v->mv_size < mwe_record_meta(&r)) return false;
    const char *at = (const char *)v->mv_data + sizeof r;
    *p = (mw_parts){.time_ms = r.time_ms, .priority = r.priority, .has_key = r.has_key != 0};
    p->id = at, p->id_len = r.id_len, at += r.id_len;
    p->key = at, p->key_len = r.key_len, at += r.key_len;
    p->type = at, p->type_len = r.type_len, at += r.type_len;
    p->headers = at, p->headers_len = r.headers_len, at += r.headers_len;
    p->body = at, p->body_len = r.body_len;
    *due_ms = r.due_ms;
    return mw_message_check(p, NULL) == 0;
}

/* A record that stands in one row. */
static inline bool mwe_record_read(const MDB_val *v, mw_parts *p, int64_t *due_ms) {
    return mwe_record_parts(v, p, due_ms) && p->body + p->body_len == (const char *)v->mv_data + v->mv_size;
}

/* What spreads a message over the slots of a group. */
static inline uint32_t mwe_record_hash(const mw_parts *p, uint64_t seq) {
    if (p->has_key) return (uint32_t)mw_hash64(p->key, p->key_len);
    return (uint32_t)(p->id_len ? mw_hash64(p->id, p->id_len) : mw_hash64(&seq, sizeof seq));
}
