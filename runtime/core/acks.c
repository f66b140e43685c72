#include "core/acks.h"

#include <stdlib.h>

typedef struct { /* the top bit of the offset says "done": offsets are below 2^63 at every broker */
    uint64_t offset;
} entry;
static const uint64_t DONE = 1ull << 63;

struct mw_acks { /* a ring of entries in rising order; the first is never done */
    entry *ring;
    uint32_t capacity, head, count, pending;
    uint64_t mark, newest;
    bool any;
};

mw_acks *mw_acks_new(uint64_t start) {
    mw_acks *a = calloc(1, sizeof *a);
    if (!a) abort();
    a->mark = start;
    return a;
}

void mw_acks_free(mw_acks *a) {
    if (!a) return;
    free(a->ring);
    free(a);
}

static entry *at(const mw_acks *a, uint32_t i) { return &a->ring[(a->head + i) & (a->capacity - 1)]; }

static void grow(mw_acks *a) {
    uint32_t capacity = a->capacity ? a->capacity * 2 : 256;
    entry *ring = malloc(capacity * sizeof *ring);
    if (!ring) abort();
    for (uint32_t i = 0; i < a->count; i++) ring[i] = *at(a, i);
    free(a->ring);
    a->ring = ring;
    a->capacity = capacity;
    a->head = 0;
}

bool mw_acks_add(mw_acks *a, uint64_t offset) {
    if (offset & DONE || (a->any && offset <= a->newest) || offset < a->mark) return false;
    if (a->count == a->capacity) grow(a);
    a->count++;
    *at(a, a->count - 1) = (entry){offset};
    a->pending++;
    a->newest = offset;
    a->any = true;
    return true;
}

static entry *find(const mw_acks *a, uint64_t offset) {
    uint32_t low = 0, high = a->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t there = at(a, middle)->offset & ~DONE;
        if (there == offset) return at(a, middle);
        if (there < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

bool mw_acks_done(mw_acks *a, uint64_t offset) {
    entry *e = find(a, offset);
    if (!e || e->offset & DONE) return false;
    e->offset |= DONE;
    a->pending--;
    while (a->count && at(a, 0)->offset & DONE) {
        a->mark = (at(a, 0)->offset & ~DONE) + 1;
        a->head = (a->head + 1) & (a->capacity - 1);
        a->count--;
    }
    return true;
}

uint64_t mw_acks_mark(const mw_acks *a) { return a->mark; }
uint32_t mw_acks_pending(const mw_acks *a) { return a->pending; }
uint64_t mw_acks_span(const mw_acks *a) {
    return a->any && a->newest >= a->mark ? a->newest + 1 - a->mark : 0;
}

bool mw_acks_run(const mw_acks *a, uint32_t *i, uint64_t *from, uint64_t *to) {
    while (*i < a->count && !(at(a, *i)->offset & DONE)) (*i)++;
    if (*i >= a->count) return false;
    *from = at(a, *i)->offset & ~DONE;
    for (; *i < a->count && at(a, *i)->offset & DONE; (*i)++) *to = (at(a, *i)->offset & ~DONE) + 1;
    return true;
}
