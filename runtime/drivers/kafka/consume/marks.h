/* marks.h - what a partition's consumer has to remember: which offsets are done, which were begun, which
 * failed how often. The mark is the offset to commit: everything below it is done. What is known beyond the
 * mark goes into the commit's metadata, as a short text, so that whoever goes on from there repeats nothing
 * that was done and counts on. Offsets come in rising order, gaps allowed, and are done in any order.
 * Everything but the error texts is plain data; loop thread only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/text.h"

typedef struct kafka_marks kafka_marks;

typedef struct kafka_past { /* what is known about an offset from earlier attempts */
    uint32_t attempts;
    int64_t due_ms; /* wall time of the next attempt; 0: any time */
    mw_text *error; /* the first one; NULL: none. Belongs to the marks */
} kafka_past;

kafka_marks *kafka_marks_new(uint64_t start); /* the mark before anything was added */
void kafka_marks_free(kafka_marks *m);        /* NULL is fine */

typedef enum { KAFKA_NEW, KAFKA_DONE_BEFORE, KAFKA_OLD } kafka_added;
/* NEW: deliver it, with its past. DONE_BEFORE: somebody handled it; it is done. OLD: not above the last one.
 */
kafka_added kafka_marks_add(kafka_marks *m, uint64_t offset, kafka_past *past);
void kafka_marks_begin(kafka_marks *m, uint64_t offset);
void kafka_marks_done(kafka_marks *m, uint64_t offset);
void kafka_marks_undone(kafka_marks *m,
                        uint64_t offset); /* it is pending after all; no commit said it was done */
void kafka_marks_failed(kafka_marks *m, uint64_t offset, uint32_t attempts, int64_t due_ms, mw_text *error);
void kafka_marks_release(kafka_marks *m, uint64_t offset); /* it is not being handled after all */
void kafka_marks_skip(kafka_marks *m, uint64_t to); /* there is nothing before `to` that was not added */

uint64_t kafka_marks_mark(const kafka_marks *m);
uint32_t kafka_marks_pending(const kafka_marks *m); /* added, not done */
uint32_t kafka_marks_span(const kafka_marks *m);    /* added, from the mark to the newest, done or not */
uint64_t kafka_marks_next(const kafka_marks *m);    /* the lowest offset that was not added yet */

/* The metadata, at most `limit` characters. Returns what had to be left out for that, the least needed first.
 * crowded: little more will fit. */
typedef enum {
    KAFKA_WHOLE,
    KAFKA_SHORT_ERRORS,
    KAFKA_NO_ERRORS,
    KAFKA_NO_TIMES,   /* of the next attempts */
    KAFKA_FEWER_DONE, /* these are repeated by whoever goes on from this commit */
    KAFKA_FEWER_ATTEMPTS,
} kafka_left_out;
kafka_left_out kafka_marks_write(const kafka_marks *m, int64_t now_ms, size_t limit, mw_buf *out,
                                 bool *crowded);
/* Before anything was added. false: it is not ours, or damaged; nothing is known then. */
bool kafka_marks_read(kafka_marks *m, const char *text, size_t len);
/* The same, but only what is done; on any thread. */
bool kafka_marks_read_done(kafka_marks *m, const char *text, size_t len);
bool kafka_marks_is_done(const kafka_marks *m, uint64_t offset); /* of what was read, and below the mark */
void kafka_marks_set_done(kafka_marks *m, uint64_t offset);      /* adds to what was read */
/* For specs: is this offset done, by a commit of `mark` with this metadata? */
bool kafka_marks_says_done(uint64_t mark, const char *text, size_t len, uint64_t offset);
