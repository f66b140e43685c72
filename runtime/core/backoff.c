#include "core/backoff.h"

#include <math.h>

int64_t mw_backoff_delay(const mw_backoff *b, uint32_t attempt, double random01) {
    uint32_t failures = attempt ? attempt - 1 : 0;
    double seconds = b->base;
    switch (b->kind) {
    case MW_BACKOFF_FIXED: break;
    case MW_BACKOFF_EXPONENTIAL: seconds = ldexp(b->base, failures < 60 ? (int)failures : 60); break;
    case MW_BACKOFF_LIST:
        if (b->step_count) seconds = b->steps[failures < b->step_count ? failures : b->step_count - 1];
        break;
    }
    if (b->kind != MW_BACKOFF_LIST && seconds > b->cap) seconds = b->cap;
    seconds *= 1 + b->jitter * (2 * random01 - 1);
    return seconds > 0 ? (int64_t)llround(seconds * 1000) : 0;
}
