/* place.c - where a group has got to in a stream. A stream keeps its messages and remembers nothing about its
 * readers, so we do: a low-water mark, and what is done beyond it. It is written in front of the journal
 * (journal.c), in a queue of the group's own. */
#include <stdlib.h>
#include <string.h>

#include "core/acks.h"
#include "drivers/amqp/amqp.h"

enum { KNOWN = 1, CLEAN = 2, MOST_RUNS = 1 << 20 };

typedef struct run { /* offsets in [from, to) are done */
    uint64_t from, to;
} run;

struct rmq_place {
    mw_acks *acks;  /* NULL: no place yet */
    mw_buf before;  /* of run, rising: done before this consumer began */
    uint64_t next;  /* the offset behind the newest that was delivered */
    uint64_t first; /* the oldest of the stream, as far as we know */
    uint64_t since; /* in seconds: when the group began with what would come next; 0: it did not */
    bool clean;     /* the consumer before us ended in order */
};

rmq_place *rmq_place_new(void) {
    rmq_place *p = calloc(1, sizeof *p);
    if (!p) abort();
    return p;
}

void rmq_place_reset(rmq_place *p) {
    mw_acks_free(p->acks);
    p->acks = NULL;
    p->before.len = 0;
    p->next = p->first = p->since = 0;
    p->clean = false;
}

void rmq_place_free(rmq_place *p) {
    if (!p) return;
    mw_acks_free(p->acks);
    mw_buf_free(&p->before);
    free(p);
}

void rmq_place_begin(rmq_place *p, uint64_t mark) {
    mw_acks_free(p->acks);
    p->acks = mw_acks_new(mark);
    p->next = mark;
}

bool rmq_place_known(const rmq_place *p, uint64_t *mark) {
    if (p->acks) *mark = mw_acks_mark(p->acks);
    return p->acks;
}

static bool was_done(const rmq_place *p, uint64_t offset) {
    const run *r = (const run *)(void *)p->before.data;
    size_t low = 0, high = p->before.len / sizeof *r;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (offset < r[middle].from)
            high = middle;
        else if (offset >= r[middle].to)
            low = middle + 1;
        else
            return true;
    }
    return false;
}

bool rmq_place_add(rmq_place *p, uint64_t offset) {
    if (!p->acks) rmq_place_begin(p, p->first = offset);
    if (offset > p->next && !mw_acks_span(p->acks)) p->first = offset; /* what lay between is gone */
    if (!mw_acks_add(p->acks, offset)) return false;
    p->next = offset + 1;
    if (!was_done(p, offset)) return true;
    mw_acks_done(p->acks, offset);
    return false;
}

void rmq_place_done(rmq_place *p, uint64_t offset) {
    if (p->acks) mw_acks_done(p->acks, offset);
}

/* RabbitMQ 3.10 says 0 whatever there is. */
bool rmq_place_behind(const rmq_place *p, uint64_t messages, uint64_t *out) {
    uint64_t end = p->first + messages;
    *out = end > p->next ? end - p->next : 0;
    return messages > 0;
}

uint64_t rmq_place_span(const rmq_place *p) { return p->acks ? mw_acks_span(p->acks) : 0; }

uint64_t rmq_place_since(rmq_place *p, uint64_t now_s) {
    if (!p->since) {
        p->since = now_s;
        return 0;
    }
    return p->since;
}

bool rmq_place_clean(const rmq_place *p) { return p->clean; }

/* ---- as bytes ---- */

static void put_run(mw_buf *b, uint64_t from, uint64_t to, uint32_t *count) {
    rmq_put_u64(b, from);
    rmq_put_u64(b, to);
    (*count)++;
}

void rmq_place_put(const rmq_place *p, bool clean, mw_buf *b) {
    rmq_put_u8(b, (uint8_t)((p->acks ? KNOWN : 0) | (clean ? CLEAN : 0)));
    rmq_put_u64(b, p->acks ? mw_acks_mark(p->acks) : p->since);
    size_t at = rmq_open(b); /* a length in front: the notes follow */
    uint32_t count = 0, i = 0;
    for (run r; p->acks && mw_acks_run(p->acks, &i, &r.from, &r.to);) put_run(b, r.from, r.to, &count);
    const run *before = (const run *)(void *)p->before.data;
    for (size_t k = 0; k < p->before.len / sizeof *before; k++) {
        if (before[k].to <= p->next) continue; /* delivered again, and among ours */
        put_run(b, before[k].from > p->next ? before[k].from : p->next, before[k].to, &count);
    }
    rmq_close(b, at);
}

bool rmq_place_read(rmq_place *p, rmq_reader *r) {
    rmq_place_reset(p);
    uint8_t flags = rmq_u8(r);
    uint64_t mark = rmq_u64(r), last = 0;
    rmq_reader runs = rmq_table(r);
    if (r->bad || mark > INT64_MAX) return false;
    while (!runs.bad && runs.at != runs.end && p->before.len / sizeof(run) < MOST_RUNS) {
        run x = {rmq_u64(&runs), 0};
        x.to = rmq_u64(&runs);
        if (runs.bad || x.from < last || x.to <= x.from) break; /* what follows is done again */
        mw_buf_add(&p->before, &x, sizeof x);
        last = x.to;
    }
    if (flags & KNOWN)
        rmq_place_begin(p, mark);
    else
        p->since = mark;
    p->clean = flags & CLEAN;
    return true;
}
