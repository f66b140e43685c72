/* insight.h - looking into a running pipeline without touching it: how it stands, what holds a lane, where a
 * message is. For status and explain: each call walks what is in flight once. Loop thread only. */
#pragma once
#include "pipeline/pipeline.h"

typedef struct mw_insight {
    uint32_t in_flight, running, ready, waiting, held, settling;
    uint32_t held_keys, dead_keys, parked_lanes;
    size_t bytes;
    int64_t next_retry_ms;   /* from now; -1: none is known */
    int64_t oldest_age_ms;   /* of what is not settled, since it was published; -1: there is nothing */
    int64_t breaker_left_ms; /* while it is open */
    const char *breaker;     /* closed, open, half-open */
    bool paused, full, draining;
    mw_depth depth;
    double rate, p50, p99; /* per second; seconds, -1 when nothing ran lately */
    uint32_t generation;
} mw_insight;

size_t mw_pipeline_places(mw_pipeline *p, mw_place *out, size_t max); /* 0: the driver knows none */
void mw_pipeline_look(mw_pipeline *p, mw_insight *out);

typedef struct mw_lane_view {
    uint64_t lane;
    mw_mark mark;              /* MW_MARK_KEEP: none */
    bool parked;               /* the broker keeps what comes later */
    const mw_delivery *holder; /* NULL: nobody is in the lane */
    const mw_delivery *first;  /* behind it */
    uint32_t waiting;
} mw_lane_view;

typedef struct mw_delivery_view {
    mw_parts parts;
    const char *state; /* unkeyed, waiting, ready, running, held, settling */
    uint32_t attempt;
    uint64_t lane;    /* 0: none */
    int64_t since_ms; /* running: for how long; else -1 */
    int64_t left_ms;  /* held: until it runs again; settling: until it is tried again; else -1 */
    const mw_text *error;
    const char *fate; /* settling: ack, dead letter, retry, park, release; else NULL */
    bool fenced;
} mw_delivery_view;

void mw_lane_look(const mw_pipeline *p, uint64_t lane, mw_lane_view *out);
void mw_delivery_look(const mw_delivery *d, mw_delivery_view *out);
const mw_delivery *mw_delivery_behind(const mw_delivery *d); /* the next one that waits in its lane */
const mw_delivery *mw_pipeline_each(const mw_pipeline *p, const mw_delivery *d); /* NULL: the first */
