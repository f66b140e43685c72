/* lanes.c - order. A lane is the sequence of deliveries that share an ordering key; one of them holds it at a
 * time, from the moment it may run until it is settled, retries included. Lanes without work take no memory.
 * A marked key (after a dead letter, with on_dead) holds back or buries what follows. A lane that grows too
 * long is held at the broker, so that one slow key cannot fill the window: what is too much is put back, and
 * the next ones are asked for when it has become short.
 *
 * Whatever waits of a key outside of its lane (held, parked, or on its way from or to there) is older than
 * all that the broker may still deliver of it, and comes first. The broker's driver sees to that, because
 * only it knows what is written by now; see put_back, go_on and unpark in driver.h. */
#include <stdlib.h>

#include "pipeline/defs.h"

static mw_lane *lane_of(mw_pipeline *p, uint64_t key) {
    void **place = mw_map_place(&p->lanes, key);
    if (*place) return *place;
    mw_lane *l = p->free_lanes;
    if (l)
        p->free_lanes = l->next_free;
    else if (!(l = malloc(sizeof *l)))
        abort();
    *l = (mw_lane){.key = key};
    return *place = l;
}

static uint32_t longest(const mw_pipeline *p) {
    uint32_t n = p->spec.buffer_count / 4;
    return n < 16 ? 16 : n;
}

static void let_more_come(mw_pipeline *p, mw_lane *l) {
    uint32_t most = longest(p);
    if (!l->held || l->count > most / 2) return;
    l->held = false;
    if (p->sub) p->driver->go_on(p->sub, l->key, most - l->count);
}

void mw_lane_held(mw_pipeline *p, uint64_t key) {
    mw_lane *l = mw_map_get(&p->lanes, key);
    if (l)
        l->held = true;
    else /* it did not enter its lane, or has left it already */
        p->driver->go_on(p->sub, key, longest(p));
}

static void drop_lane(mw_pipeline *p, mw_lane *l) {
    mw_map_remove(&p->lanes, l->key);
    let_more_come(p, l);
    l->next_free = p->free_lanes;
    p->free_lanes = l;
}

static bool is_replay(const mw_delivery *d) {
    mw_parts parts;
    mw_header h;
    mw_message_parts(d->msg, &parts);
    return mw_headers_find(parts.headers, parts.headers_len, "mw-replay", &h);
}

/* true when the mark on its key decided its fate */
static bool marked(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    if (!p->marks.count) return false;
    mw_mark mark = (mw_mark)(uintptr_t)mw_map_get(&p->marks, d->lane_key);
    if (!mark) return false;
    if (is_replay(d)) { /* the dead letter itself, coming back: its success releases the key */
        d->replay = true;
        return false;
    }
    static const char why[] = "an earlier message of this key is dead";
    if (mark == MW_MARK_HOLD)
        mw_settle_simple(d, MW_SETTLE_PARK);
    else
        mw_verdict_dead(d, "key_dead", why, sizeof why - 1);
    return true;
}

/* The broker holds back by the message's own key; it knows no other. */
static bool may_put_back(const mw_pipeline *p) {
    return p->driver->can & MW_CAN_PARK && p->spec.order == MW_ORDER_KEY && !p->spec.own_key;
}

static void put_back(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    p->tally->counters.received--;
    p->driver->put_back(p->sub, d->tag, d->unit, d->lane_key);
    mw_delivery_free(d);
}

void mw_lane_enter(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    if (!d->lane_key) {
        mw_delivery_start_or_hold(d);
        return;
    }
    if (marked(d)) return;
    mw_lane *l = lane_of(p, d->lane_key);
    if (!l->current) {
        l->current = d;
        d->lane = l;
        mw_delivery_start_or_hold(d);
    } else if (may_put_back(p) && (l->held || l->count >= longest(p))) {
        l->held = true;
        put_back(d);
    } else {
        d->lane = l;
        d->state = MW_D_WAITING;
        mw_list q = {l->first, l->last};
        mw_list_push(&q, d);
        l->first = q.first;
        l->last = q.last;
        l->count++;
    }
}

static mw_delivery *pop(mw_lane *l) {
    mw_delivery *d = l->first;
    if (!d) return NULL;
    l->first = d->next;
    if (l->first)
        l->first->prev = NULL;
    else
        l->last = NULL;
    l->count--;
    d->next = d->prev = NULL;
    d->lane = NULL;
    return d;
}

void mw_lane_leave(mw_delivery *d) {
    mw_lane *l = d->lane;
    if (!l) return;
    mw_pipeline *p = d->pipeline;
    d->lane = NULL;
    l->current = NULL;
    for (mw_delivery *next; !l->current && (next = pop(l));) {
        if (marked(next)) continue;
        l->current = next;
        next->lane = l;
        mw_delivery_start_or_hold(next);
    }
    if (l->current)
        let_more_come(p, l);
    else
        drop_lane(p, l);
}

void mw_lane_forget(mw_delivery *d) {
    mw_lane *l = d->lane;
    if (!l) return;
    if (l->current == d) {
        mw_lane_leave(d);
        return;
    }
    mw_list q = {l->first, l->last};
    mw_list_remove(&q, d);
    l->first = q.first;
    l->last = q.last;
    l->count--;
    d->lane = NULL;
}

void mw_lane_mark(mw_pipeline *p, uint64_t lane, mw_mark mark) {
    if (mark == MW_MARK_KEEP || !lane) return;
    if (mark == MW_MARK_NONE)
        mw_map_remove(&p->marks, lane);
    else
        mw_map_put(&p->marks, lane, (void *)(uintptr_t)mark);
}
