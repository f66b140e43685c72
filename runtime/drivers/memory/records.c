/* records.c - dedupe records in memory: which keys are claimed or done, and until when. A record whose time
 * is over is removed when others come: each claim looks at a few places of the table, so that they go as fast
 * as new ones come, and nobody waits for a sweep. */
#include <stdlib.h>
#include <string.h>

#include "drivers/memory/broker.h"

enum { LOOKED_AT = 4 }; /* places a claim: more than one is added, so the table cannot fill with old ones */

struct mem_record {
    mem_record *next; /* of the same hash */
    int64_t expires;
    uint32_t len;
    bool done;
    char key[];
};

static mem_record *find(const mem_records *t, uint64_t hash, const char *key, size_t len) {
    mem_record *r = mw_map_get(&t->by_hash, hash);
    while (r && (r->len != len || memcmp(r->key, key, len) != 0)) r = r->next;
    return r;
}

/* Keeps those of this hash that the condition spares. */
static void keep_of(mem_records *t, uint64_t hash, const mem_record *gone, int64_t now) {
    mem_record *left = NULL;
    for (mem_record *r = mw_map_get(&t->by_hash, hash), *next; r; r = next) {
        next = r->next;
        if (r == gone || (!gone && r->expires <= now)) {
            free(r);
        } else {
            r->next = left;
            left = r;
        }
    }
    if (left)
        mw_map_put(&t->by_hash, hash, left);
    else
        mw_map_remove(&t->by_hash, hash);
}

static void look_around(mem_records *t, int64_t now) {
    for (int i = 0; i < LOOKED_AT; i++) {
        if (t->hand >= t->by_hash.capacity) t->hand = 0;
        uint32_t end = t->hand + 1;
        if (end > t->by_hash.capacity) return;
        uint64_t hash = t->by_hash.keys[t->hand];
        mem_record *r = hash ? t->by_hash.values[t->hand] : NULL;
        if (r && r->expires <= now)
            keep_of(t, hash, NULL, now); /* another one may move to this place: look at it again */
        else
            t->hand = end;
    }
}

mw_claim mem_records_claim(mem_records *t, const char *key, size_t len, int64_t now, int64_t lease_ms) {
    look_around(t, now);
    uint64_t hash = mw_hash64(key, len);
    mem_record *r = find(t, hash, key, len);
    if (r && r->expires > now) return r->done ? MW_CLAIM_SEEN : MW_CLAIM_BUSY;
    if (!r) {
        if (!(r = malloc(sizeof *r + len))) abort();
        *r = (mem_record){.next = mw_map_get(&t->by_hash, hash), .len = (uint32_t)len};
        memcpy(r->key, key, len);
        mw_map_put(&t->by_hash, hash, r);
    }
    r->expires = now + lease_ms;
    r->done = false;
    return MW_CLAIM_YOURS;
}

void mem_records_done(mem_records *t, const char *key, size_t len, int64_t expires) {
    mem_record *r = find(t, mw_hash64(key, len), key, len);
    if (!r) return; /* its claim ran out long ago */
    r->expires = expires;
    r->done = true;
}

void mem_records_release(mem_records *t, const char *key, size_t len) {
    uint64_t hash = mw_hash64(key, len);
    mem_record *r = find(t, hash, key, len);
    if (r && !r->done) keep_of(t, hash, r, 0);
}

void mem_records_free(mem_records *t) {
    uint32_t at = 0;
    for (mem_record *r, *next; (r = mw_map_next(&t->by_hash, &at, NULL));)
        for (; r; r = next) {
            next = r->next;
            free(r);
        }
    mw_map_free(&t->by_hash);
}
