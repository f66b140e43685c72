/* backoff.h - how long until the next attempt. A pure function: the random number is passed in. */
#pragma once
#include <stdint.h>

enum { MW_BACKOFF_STEPS = 32 };

typedef enum { MW_BACKOFF_EXPONENTIAL, MW_BACKOFF_FIXED, MW_BACKOFF_LIST } mw_backoff_kind;

typedef struct mw_backoff {
    mw_backoff_kind kind;
    double base, cap;               /* seconds */
    double jitter;                  /* 0..1: the share of the delay that is random, to both sides */
    double steps[MW_BACKOFF_STEPS]; /* LIST: seconds; the last one repeats */
    uint32_t step_count;
} mw_backoff;

/* After the failure of attempt number `attempt` (from 1): milliseconds. random01 in [0, 1). */
int64_t mw_backoff_delay(const mw_backoff *b, uint32_t attempt, double random01);
