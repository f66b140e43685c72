/* tally.h - the figures of one pipeline in one worker: what was counted, how long handlers took, how it stood
 * at the last look. Of a supervised worker they stand in the shared memory (shared.h): they can be read while
 * the worker is stuck, and the process that replaces it counts on. Plain data without pointers. */
#pragma once
#include "core/driver.h"
#include "core/spec.h"
#include "core/shared/timing.h"

enum { MW_TALLIES = 64, MW_TALLY_TEXT = 96 };

typedef struct mw_insight { /* how a pipeline stands */
    uint32_t in_flight, running, ready, waiting, held, settling;
    uint32_t held_keys, dead_keys, parked_lanes;
    uint64_t bytes;
    int64_t next_retry_ms;   /* from now; -1: none is known */
    int64_t oldest_age_ms;   /* of what is not settled, since it was published; -1: there is nothing */
    int64_t breaker_left_ms; /* while it is open */
    uint32_t breaker;        /* 0 closed, 1 open, 2 half-open */
    bool paused, full, draining;
    mw_depth depth;
    double rate, p50, p99; /* per second; seconds, -1 when nothing ran lately */
    uint32_t generation;
} mw_insight;

typedef enum { MW_TALLY_UNUSED, MW_TALLY_CLOSED, MW_TALLY_LEFT, MW_TALLY_OPEN } mw_tally_state;

typedef struct mw_tally {
    uint32_t state; /* CLOSED: its pipeline has ended; LEFT: its process died */
    bool paused;    /* by command: holds for the next process too */
    char name[MW_TALLY_TEXT], channel[MW_TALLY_TEXT]; /* cut when they are longer */
    mw_counters counters;
    mw_timing timing;
    mw_rate rate;
    mw_insight look;
    uint64_t looked_ms; /* monotonic; 0: never */
} mw_tally;

/* A worker's side: made in the process's own memory; of a pipeline that starts it moves into the shared one,
 * where there is a supervisor and room, and counts on from what stands there under its name. */
mw_tally *mw_tally_new(void);
mw_tally *mw_tally_share(mw_tally *t, const char *name, const char *channel);
void mw_tally_free(mw_tally *t);
uint16_t mw_tally_place(const mw_tally *t); /* among the shared ones; MW_TALLIES: it is none */

/* Anybody's side: rate and quantiles as of now. The supervisor does it to a copy. */
void mw_tally_refresh(mw_tally *t, uint64_t mono_ms);
void mw_tally_leave(mw_tally *t); /* its process died: nothing is in flight there */
