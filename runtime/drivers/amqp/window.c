/* window.c - deliveries by tag, from when they come until they are settled. Tags rise one by one, so they
 * stand in a ring. One that stays while many pass, such as a retry that is held, would make the ring as long
 * as all of them: it is set aside, into a map. So the room is bounded by what is in flight, not by what went
 * by. */
#include <stdlib.h>

#include "drivers/amqp/amqp.h"

enum { ROOM_FIRST = 256, ROOM_SHARE = 4 }; /* of a ring: ROOM_SHARE times the prefetch at most */

static rmq_entry *in_ring(const rmq_sub *s, uint64_t tag) { return &s->window[tag & (s->window_room - 1)]; }

rmq_entry *rmq_entry_of(const rmq_sub *s, uint64_t tag) {
    if (tag >= s->base && tag < s->top) return in_ring(s, tag);
    return s->aside.count ? mw_map_get(&s->aside, tag) : NULL;
}

static void grow(rmq_sub *s) {
    rmq_sub old = *s;
    s->window_room = s->window_room ? s->window_room * 2 : ROOM_FIRST;
    s->window = calloc(s->window_room, sizeof *s->window);
    if (!s->window) abort();
    for (uint64_t i = s->base; i < s->top; i++) *in_ring(s, i) = *in_ring(&old, i);
    free(old.window);
}

static void set_aside(rmq_sub *s, rmq_entry *e) {
    rmq_entry *copy = malloc(sizeof *copy);
    if (!copy) abort();
    *copy = *e;
    mw_map_put(&s->aside, s->base, copy);
}

/* What is done must be written first: it is acked from here, one by one when some are set aside. */
static void make_room(rmq_sub *s, uint64_t tag) {
    rmq_write_acks(s);
    for (; tag - s->base >= s->window_room; s->base++) {
        rmq_entry *e = in_ring(s, s->base);
        if (e->state == RMQ_OURS) set_aside(s, e);
        *e = (rmq_entry){0};
    }
}

rmq_entry *rmq_window_add(rmq_sub *s, uint64_t tag) {
    if (s->base == s->top) s->base = s->top = tag;
    while (tag - s->base >= s->window_room) {
        if (s->window_room < ROOM_FIRST || s->window_room < (size_t)s->prefetch * ROOM_SHARE)
            grow(s);
        else
            make_room(s, tag);
    }
    s->top = tag + 1;
    s->unsettled++;
    return in_ring(s, tag);
}

void rmq_window_settled(rmq_sub *s, uint64_t tag) {
    if (tag >= s->base)
        *in_ring(s, tag) = (rmq_entry){.state = RMQ_SETTLED};
    else
        free(mw_map_remove(&s->aside, tag));
}

uint64_t rmq_window_advance(rmq_sub *s, size_t *count) {
    uint64_t last = 0;
    for (; s->base < s->top; s->base++) {
        rmq_entry *e = in_ring(s, s->base);
        if (e->state == RMQ_OURS) break;
        if (e->state == RMQ_DONE) {
            last = s->base;
            (*count)++;
        }
        e->state = RMQ_SETTLED;
    }
    return last;
}

static void clear(rmq_entry *e) {
    mw_message_unref(e->msg);
    mw_text_unref(e->first_error);
    *e = (rmq_entry){0};
}

void rmq_window_clear(rmq_sub *s) {
    for (uint64_t i = s->base; i < s->top; i++) clear(in_ring(s, i));
    s->base = s->top = 0;
    uint32_t at = 0;
    for (rmq_entry *e; (e = mw_map_next(&s->aside, &at, NULL));) {
        clear(e);
        free(e);
    }
    mw_map_free(&s->aside);
    s->aside = (mw_map){0};
}
