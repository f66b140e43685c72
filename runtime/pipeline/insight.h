/* insight.h - looking into a running pipeline without touching it: how it stands, what holds a lane, where a
 * message is. For status and explain: each call walks what is in flight once. Loop thread only. */
#pragma once
#include "core/shared/tally.h"
#include "pipeline/pipeline.h"

const mw_tally *mw_pipeline_look(mw_pipeline *p);                     /* its `look` is of now */
size_t mw_pipeline_places(mw_pipeline *p, mw_place *out, size_t max); /* 0: the driver knows none */

typedef struct mw_lane_view {
    uint64_t lane;
    mw_mark mark;              /* MW_MARK_KEEP: none */
    bool parked;               /* it is long: the broker keeps what comes later */
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
