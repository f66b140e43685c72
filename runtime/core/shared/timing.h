/* timing.h - how long handlers take and how many end a second, as of the recent past: a histogram of fixed
 * size and a ring of seconds. Nothing is allocated, nothing is sorted. The caller brings the clock. */
#pragma once
#include <stdint.h>

enum { MW_TIMING_BUCKETS = 256, MW_TIMING_HALF_MS = 30000, MW_RATE_SECONDS = 10 };

/* Eight buckets to each doubling, from 0.25 us to over an hour: a quantile is right within an eighth. Two
 * halves of 30 s: what is told covers the last 30 to 60 s. */
typedef struct mw_timing {
    uint64_t half; /* the number of the current one */
    uint32_t now[MW_TIMING_BUCKETS], before[MW_TIMING_BUCKETS];
} mw_timing; /* zero-initialised is empty */

uint64_t mw_timing_clock_ns(void);
void mw_timing_add(mw_timing *t, uint64_t mono_ms, uint64_t ns, uint32_t weight);
/* q in 0..1 -> seconds; -1 when nothing was measured lately */
double mw_timing_quantile(mw_timing *t, uint64_t mono_ms, double q);

typedef struct mw_rate {
    uint64_t seen, since_ms; /* the total when it was last told; when it was first */
    struct {
        uint64_t second;
        int64_t count;
    } ring[MW_RATE_SECONDS + 1];
} mw_rate; /* zero-initialised is empty */

void mw_rate_note(mw_rate *r, uint64_t mono_ms, uint64_t total); /* now and then: once a turn is plenty */
double mw_rate_per_second(mw_rate *r, uint64_t mono_ms, uint64_t total); /* over the last ten seconds */
