/* acks.h - the low-water mark for brokers that commit an offset instead of single messages.
 * Offsets are added in rising order, gaps allowed (compaction, control records), and are done in any order.
 * The mark is the offset to commit: everything below it is done. One table per partition; loop thread only.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct mw_acks mw_acks;

mw_acks *mw_acks_new(uint64_t start); /* the mark before anything was added */
void mw_acks_free(mw_acks *a);        /* NULL is fine */

bool mw_acks_add(mw_acks *a, uint64_t offset);  /* false: not above the last one added */
bool mw_acks_done(mw_acks *a, uint64_t offset); /* false: unknown, or done already */
uint64_t mw_acks_mark(const mw_acks *a);
uint32_t mw_acks_pending(const mw_acks *a); /* added, not done */
/* What is done beyond the mark, run by run: [*from, *to). *at is 0 before the first; false: no more. */
bool mw_acks_run(const mw_acks *a, uint32_t *at, uint64_t *from, uint64_t *to);
uint64_t mw_acks_span(const mw_acks *a); /* from the mark to the newest: bounds what a crash repeats */
