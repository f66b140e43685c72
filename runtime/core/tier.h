/* tier.h - retry channels: one channel per delay, "orders.retry.5s". A message that failed goes there with
 * what is known about it in headers, and comes back by itself when its time has come. Its order is given up
 * for that. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { MW_TIER_CHANNEL = 300 };

void mw_tier_channel(char out[MW_TIER_CHANNEL], const char *channel, int64_t delay_ms);

/* Where it first stood, as the driver's `locate` names it. It stays on the message until that is settled. */
#define MW_TIER_ORIGIN "mw-retry-origin"

/* On a message in a retry channel; taken off again when it is delivered. */
#define MW_TIER_ATTEMPTS  "mw-retry-attempts"  /* made so far */
#define MW_TIER_DUE       "mw-retry-due"       /* wall ms of the next one */
#define MW_TIER_PUBLISHED "mw-retry-published" /* wall ms of the first publish */
#define MW_TIER_ERROR     "mw-retry-error"     /* the first one */
/* Whose failure it was: groups of one channel share its retry channels, and leave those of others alone. */
#define MW_TIER_GROUP "mw-retry-group"
