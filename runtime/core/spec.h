/* spec.h - what a pipeline is made of, as plain data. Lua checks the user's table and fills this (the file is
 * also read by LuaJIT's FFI, so it holds declarations only). Pointers are valid during mw_pipeline_new; what
 * is needed later is copied. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/backoff.h"

typedef struct mw_setting { /* of a channel, for its driver alone; fields of tables have dots: "trim.count" */
    const char *name, *value;
} mw_setting;

typedef struct mw_position { /* where a message stands in its channel; brokers that count with one number use
                                low */
    uint64_t high, low;
} mw_position;

enum { MW_POLICIES = 16, MW_CLASS_MAX = 32, MW_TIERS = 32 };

typedef enum { MW_POLICY_RETRY, MW_POLICY_DEAD, MW_POLICY_OUTAGE } mw_policy_kind;

typedef struct mw_policy { /* what an error of this class costs */
    char name[MW_CLASS_MAX];
    mw_policy_kind kind;
    uint32_t attempts;  /* in all, the first included */
    int64_t max_age_ms; /* since it was published; 0 = any */
    mw_backoff
        backoff; /* RETRY: between attempts; OUTAGE: how long the source pauses, per consecutive outage */
    uint32_t tier_count; /* RETRY: more than 0: through retry channels (core/tier.h), one per attempt */
    int64_t tiers_ms[MW_TIERS];
} mw_policy;

typedef enum { MW_START_NONE, MW_START_TIME, MW_START_OFFSET } mw_start_kind; /* wall ms; a position */

typedef enum { MW_DEAD_CONTINUE, MW_DEAD_HOLD_KEY, MW_DEAD_DEAD_KEY } mw_on_dead;

typedef struct mw_pipeline_spec {
    const char *name, *channel, *group, *dead_channel;
    struct mw_link *from, *dead, *dedupe; /* dedupe: NULL = off */
    int64_t dedupe_ttl_ms;
    int order; /* mw_order */
    bool own_key, from_start, exactly_once;
    int start_kind; /* mw_start_kind: where a new group begins; NONE: see from_start */
    int64_t start_at;
    uint32_t tier_count; /* of all policies: the retry channels that are read as well */
    int64_t tiers_ms[MW_TIERS];
    uint32_t concurrency;
    uint32_t buffer_count;
    size_t buffer_bytes;
    int64_t timeout_ms, lease_ms;
    mw_on_dead on_dead;
    uint32_t batch_size; /* 1: handle, more: handle_batch */
    int64_t batch_wait_ms;
    uint32_t policy_count; /* policies[0] is the default */
    mw_policy policies[MW_POLICIES];
} mw_pipeline_spec;

typedef struct mw_counters {
    uint64_t received, handled, retried, dead, dropped, deduped, fenced, published, parked, released;
} mw_counters;
