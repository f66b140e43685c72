#include "core/tier.h"

#include <stdio.h>

void mw_tier_channel(char out[MW_TIER_CHANNEL], const char *channel, int64_t delay_ms) {
    if (delay_ms % 1000)
        snprintf(out, MW_TIER_CHANNEL, "%s.retry.%lldms", channel, (long long)delay_ms);
    else
        snprintf(out, MW_TIER_CHANNEL, "%s.retry.%llds", channel, (long long)(delay_ms / 1000));
}
