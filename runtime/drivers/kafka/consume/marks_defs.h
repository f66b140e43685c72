/* marks_defs.h - the inside of marks.h, for its two files: marks.c has the table, marks_text.c writes it into
 * a commit's metadata and reads it from there. */
#pragma once
#include <stdlib.h>

#include "base/hash.h"
#include "drivers/kafka/consume/marks.h"

/* An entry of the ring is an offset with two bits above it. */
static const uint64_t DONE = 1ull << 63, BEGUN = 1ull << 62, OFFSET = (1ull << 62) - 1;

typedef struct range { /* [from, to) */
    uint64_t from, to;
} range;

struct kafka_marks {
    uint64_t *ring; /* rising; the first is never done */
    uint32_t capacity, head, count, pending;
    uint64_t mark, next;
    mw_map pasts;  /* offset + 1 -> kafka_past, for what has one */
    range *before; /* done by whoever had the partition before us; not yet added */
    size_t before_count, before_at;
};

static inline void *must(void *p) {
    if (!p) abort();
    return p;
}

static inline uint64_t *mark_at(const kafka_marks *m, uint32_t i) {
    return &m->ring[(m->head + i) & (m->capacity - 1)];
}

uint64_t *kafka_marks_find(const kafka_marks *m, uint64_t offset); /* its entry; NULL: none */
void kafka_marks_forget(kafka_marks *m, uint64_t offset);          /* its past */
