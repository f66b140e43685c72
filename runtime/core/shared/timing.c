#include "core/shared/timing.h"

#include <string.h>
#include <time.h>

uint64_t mw_timing_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- handler times ---- */

enum { UNIT_BITS = 8 }; /* the smallest bucket: 256 ns */

static unsigned bucket_of(uint64_t ns) {
    uint64_t units = ns >> UNIT_BITS;
    if (units < 8) return (unsigned)units;
    unsigned top = 63u - (unsigned)__builtin_clzll(units);
    unsigned i = (top - 2) * 8 + (unsigned)(units >> (top - 3) & 7);
    return i < MW_TIMING_BUCKETS ? i : MW_TIMING_BUCKETS - 1;
}

static double bucket_begin(unsigned i) { /* in units */
    if (i < 8) return i;
    return (double)((uint64_t)(8 + i % 8) << (i / 8 - 1));
}

static void turn(mw_timing *t, uint64_t mono_ms) {
    uint64_t half = mono_ms / MW_TIMING_HALF_MS;
    if (half <= t->half) return; /* time does not go back */
    if (half == t->half + 1)
        memcpy(t->before, t->now, sizeof t->before);
    else
        memset(t->before, 0, sizeof t->before);
    memset(t->now, 0, sizeof t->now);
    t->half = half;
}

void mw_timing_add(mw_timing *t, uint64_t mono_ms, uint64_t ns, uint32_t weight) {
    turn(t, mono_ms);
    t->now[bucket_of(ns)] += weight;
}

double mw_timing_quantile(mw_timing *t, uint64_t mono_ms, double q) {
    turn(t, mono_ms);
    uint64_t total = 0;
    for (unsigned i = 0; i < MW_TIMING_BUCKETS; i++) total += (uint64_t)t->now[i] + t->before[i];
    if (!total) return -1;
    double rank = q * (double)total, below = 0;
    for (unsigned i = 0; i < MW_TIMING_BUCKETS; i++) {
        double here = (double)t->now[i] + t->before[i];
        if (here > 0 && below + here >= rank) {
            double from = bucket_begin(i), to = bucket_begin(i + 1);
            return (from + (to - from) * (rank - below) / here) * (1 << UNIT_BITS) / 1e9;
        }
        below += here;
    }
    return bucket_begin(MW_TIMING_BUCKETS) * (1 << UNIT_BITS) / 1e9; /* lost to rounding */
}

/* ---- rate ---- */

void mw_rate_note(mw_rate *r, uint64_t mono_ms, uint64_t total) {
    uint64_t second = mono_ms / 1000 + 1, i = second % (MW_RATE_SECONDS + 1);
    if (!r->since_ms) r->since_ms = mono_ms ? mono_ms : 1;
    if (r->ring[i].second != second) {
        r->ring[i].second = second;
        r->ring[i].count = 0;
    }
    r->ring[i].count +=
        (int64_t)(total - r->seen); /* a total may shrink a little: an ack that did not hold */
    r->seen = total;
}

/* The second that has begun counts with its part, and the one ten seconds ago with the rest of it. */
double mw_rate_per_second(mw_rate *r, uint64_t mono_ms, uint64_t total) {
    mw_rate_note(r, mono_ms, total);
    uint64_t second = mono_ms / 1000 + 1;
    double part = (double)(mono_ms % 1000) / 1000, sum = 0;
    for (unsigned i = 0; i <= MW_RATE_SECONDS; i++) {
        if (r->ring[i].second + MW_RATE_SECONDS == second)
            sum += (double)r->ring[i].count * (1 - part);
        else if (r->ring[i].second + MW_RATE_SECONDS > second)
            sum += (double)r->ring[i].count;
    }
    double seconds = (double)(mono_ms - r->since_ms) / 1000;
    if (seconds < 1) seconds = 1;
    if (seconds > MW_RATE_SECONDS) seconds = MW_RATE_SECONDS;
    return sum > 0 ? sum / seconds : 0;
}
