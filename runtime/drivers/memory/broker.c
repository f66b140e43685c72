#include "drivers/memory/broker.h"

#include <stdlib.h>
#include <string.h>

enum { SLAB = (32 << 10) / sizeof(mem_item) }; /* as many as fill a size of malloc's */

static mem_broker *brokers;

/* ---- lists ---- */

void mem_list_append(mem_list *l, mem_item *i) {
    i->next = NULL;
    i->prev = l->last;
    if (l->last)
        l->last->next = i;
    else
        l->first = i;
    l->last = i;
}

void mem_list_remove(mem_list *l, mem_item *i) {
    if (i->prev)
        i->prev->next = i->next;
    else
        l->first = i->next;
    if (i->next)
        i->next->prev = i->prev;
    else
        l->last = i->prev;
    i->next = i->prev = NULL;
}

static void insert_before(mem_list *l, mem_item *i, mem_item *after) { /* NULL: at the end */
    if (!after) {
        mem_list_append(l, i);
        return;
    }
    i->next = after;
    i->prev = after->prev;
    if (after->prev)
        after->prev->next = i;
    else
        l->first = i;
    after->prev = i;
}

/* New ones are the newest and old ones come back near the front, so one of the two ends is always close. */
static void insert_in_order(mem_list *l, mem_item *i) {
    mem_item *after = l->last && l->last->seq > i->seq ? l->first : NULL;
    while (after && after->seq < i->seq) after = after->next;
    insert_before(l, i, after);
}

/* ---- items ---- */

static uint8_t priority_of(const mem_item *i) { return mw_message_priority(i->msg); }

void mem_item_ready(mem_item *i) {
    i->state = MEM_READY;
    insert_in_order(&i->group->ready[priority_of(i)], i);
    i->group->ready_count++;
    mem_group_wake(i->group);
}

/* What was delayed has no place among the others that it must take (a retry that holds its lane is never
 * delayed here), so it need not be searched for: many may fall due at once. */
static void due(mw_timer *t) {
    mem_item *i = mw_container_of(t, mem_item, timer);
    mem_item_detach(i);
    i->state = MEM_READY;
    i->late = true;
    mem_list_append(&i->group->late[priority_of(i)], i);
    i->group->ready_count++;
    mem_group_wake(i->group);
}

void mem_item_delay(mem_item *i, int64_t delay_ms) {
    mw_loop *loop = i->group->channel->broker->loop;
    i->state = MEM_DELAYED;
    mem_list_append(&i->group->delayed, i);
    i->group->delayed_count++;
    mw_timer_start(loop, &i->timer, delay_ms, due);
}

int64_t mem_item_due_ms(const mem_item *i) {
    mw_loop *loop = i->group->channel->broker->loop;
    if (i->state != MEM_DELAYED) return 0;
    return mw_loop_wall_ms(loop) + (int64_t)(i->timer.at - mw_loop_mono_ms(loop));
}

void mem_item_park(mem_item *i, uint64_t lane) {
    mem_list *l = mw_map_get(&i->group->parked, lane);
    if (!l) {
        if (!(l = calloc(1, sizeof *l))) abort();
        mw_map_put(&i->group->parked, lane, l);
    }
    i->state = MEM_PARKED;
    i->lane = lane;
    insert_in_order(l, i);
    i->group->parked_count++;
}

static bool goes_first(const mem_item *a, const mem_item *b) {
    return priority_of(a) != priority_of(b) ? priority_of(a) > priority_of(b) : a->seq < b->seq;
}

void mem_item_hold(mem_item *i, uint64_t lane) {
    void **place = mw_map_place(&i->group->lanes, lane);
    if (!*place && !(*place = calloc(1, sizeof(mem_lane)))) abort();
    mem_list *l = &((mem_lane *)*place)->items;
    mem_item *after = l->last && goes_first(i, l->last) ? l->first : NULL;
    while (after && goes_first(after, i)) after = after->next;
    insert_before(l, i, after);
    i->state = MEM_HELD;
    i->lane = lane;
    i->group->held_count++;
}

void mem_item_detach(mem_item *i) {
    mem_group *g = i->group;
    switch ((mem_state)i->state) {
    case MEM_READY:
        mem_list_remove(i->late ? &g->late[priority_of(i)] : &g->ready[priority_of(i)], i);
        i->late = false;
        g->ready_count--;
        break;
    case MEM_DELAYED:
        mw_timer_stop(&i->timer);
        mem_list_remove(&g->delayed, i);
        g->delayed_count--;
        break;
    case MEM_PARKED: {
        mem_list *l = mw_map_get(&g->parked, i->lane);
        mem_list_remove(l, i);
        g->parked_count--;
        if (!l->first) free(mw_map_remove(&g->parked, i->lane));
        i->timer = (mw_timer){0};
        break;
    }
    case MEM_HELD:
        mem_list_remove(&((mem_lane *)mw_map_get(&g->lanes, i->lane))->items, i);
        g->held_count--;
        i->timer = (mw_timer){0};
        break;
    case MEM_OUT: break;
    }
}

void mem_item_free(mem_item *i) {
    mem_broker *b = i->group->channel->broker;
    mw_message_unref(i->msg);
    mw_text_unref(i->first_error);
    i->next = b->free_items;
    b->free_items = i;
}

static void add_slab(mem_broker *b) {
    mem_item *slab = malloc(SLAB * sizeof *slab);
    if (!slab) abort();
    mw_buf_add(&b->slabs, &slab, sizeof slab);
    for (int i = SLAB - 1; i >= 0; i--) {
        slab[i].next = b->free_items;
        b->free_items = &slab[i];
    }
}

static mem_item *new_item(mem_group *g, mw_message *m, uint64_t seq) {
    mem_broker *b = g->channel->broker;
    if (!b->free_items) add_slab(b);
    mem_item *i = b->free_items;
    b->free_items = i->next;
    *i = (mem_item){.group = g, .msg = mw_message_ref(m), .seq = seq};
    return i;
}

/* ---- groups ---- */

/* Many come back at once, in order: each place is looked for from the one before. */
typedef struct mem_finger {
    mem_item *at[MW_PRIORITY_MAX + 1];
    bool set[MW_PRIORITY_MAX + 1];
} mem_finger;

static void ready_again(mem_item *i, mem_finger *f) {
    mem_group *g = i->group;
    uint8_t p = priority_of(i);
    mem_item **at = &f->at[p];
    if (!f->set[p]) *at = g->ready[p].first;
    f->set[p] = true;
    while (*at && (*at)->seq < i->seq) *at = (*at)->next;
    insert_before(&g->ready[p], i, *at);
    i->state = MEM_READY;
    g->ready_count++;
}

void mem_group_unpark(mem_group *g, uint64_t lane) {
    mem_list *l = mw_map_get(&g->parked, lane);
    bool held = mw_map_get(&g->lanes, lane);
    mem_finger f = {0};
    while (l && l->first) {
        mem_item *i = l->first;
        bool last = i == l->last;
        mem_item_detach(i); /* frees the list with its last item */
        if (held)
            mem_item_hold(i, lane); /* before what is newer */
        else
            ready_again(i, &f);
        if (last) break;
    }
    mem_group_wake(g);
}

mem_lane *mem_group_lane(const mem_group *g, const mem_item *i) {
    return g->lanes.count ? mw_map_get(&g->lanes, mw_message_lane(i->msg)) : NULL;
}

void mem_lane_free(mem_group *g, uint64_t lane) {
    mem_lane *l = mw_map_get(&g->lanes, lane);
    mem_finger f = {0};
    for (mem_item *i; (i = l->items.first);) {
        mem_item_detach(i);
        ready_again(i, &f);
    }
    free(mw_map_remove(&g->lanes, lane));
}

void mem_lanes_free(mem_group *g) {
    uint64_t lane;
    for (uint32_t at = 0; mw_map_next(&g->lanes, &at, &lane); at = 0) mem_lane_free(g, lane);
}

void mem_group_mark(mem_group *g, uint64_t lane, mw_mark mark) {
    if (mark == MW_MARK_KEEP) return;
    if (mark != MW_MARK_NONE) {
        mw_map_put(&g->marks, lane, (void *)(uintptr_t)mark);
        return;
    }
    mw_map_remove(&g->marks, lane);
    mem_group_unpark(g, lane);
}

bool mem_group_holds_back(mem_group *g, const mem_item *i) {
    if (!g->parked.count) return false;
    mem_list *l = mw_map_get(&g->parked, mw_message_lane(i->msg));
    if (!l || l->first->seq > i->seq) return false;
    mw_parts parts;
    mw_header h;
    mw_message_parts(i->msg, &parts);
    return !mw_headers_find(parts.headers, parts.headers_len, "mw-replay",
                            &h); /* what frees the lane may pass */
}

static mem_group *new_group(mem_channel *c, const char *name) {
    mem_group *g = calloc(1, sizeof *g + strlen(name) + 1);
    if (!g) abort();
    g->channel = c;
    strcpy(g->name, name);
    return g;
}

static void adopt_list(mem_group *g, const mem_list *l) {
    for (mem_item *i = l->first; i; i = i->next) {
        mem_item *copy = new_item(g, i->msg, i->seq);
        if (i->state == MEM_DELAYED && !i->failures)
            mem_item_delay(copy, mem_item_due_ms(i) - mw_loop_wall_ms(g->channel->broker->loop));
        else
            mem_item_ready(copy);
    }
}

static void free_list(mem_list *l) {
    for (mem_item *i; (i = l->first);) {
        mem_list_remove(l, i);
        if (i->state == MEM_DELAYED) mw_timer_stop(&i->timer);
        mem_item_free(i);
    }
}

static void free_group(mem_group *g) {
    mw_deferred_cancel(g->channel->broker->loop, &g->pump);
    mem_lanes_free(g);
    for (int p = 0; p <= MW_PRIORITY_MAX; p++) {
        free_list(&g->ready[p]);
        free_list(&g->late[p]);
    }
    free_list(&g->delayed);
    uint32_t at = 0;
    for (mem_list *l; (l = mw_map_next(&g->parked, &at, NULL));) {
        free_list(l);
        free(l);
    }
    mw_map_free(&g->parked);
    mw_map_free(&g->marks);
    mw_map_free(&g->lanes);
    mw_acks_free(g->acks);
    free(g);
}

mem_group *mem_group_get(mem_channel *c, const char *name, bool from_start) {
    mem_group **at = &c->groups;
    for (; *at; at = &(*at)->next)
        if (strcmp((*at)->name, name) == 0) return *at;
    mem_group *g = *at = new_group(c, name);
    mem_group *from = c->log ? c->log : c->groups;
    if (from_start && from != g) {
        for (int p = 0; p <= MW_PRIORITY_MAX; p++) {
            adopt_list(g, &from->ready[p]);
            adopt_list(g, &from->late[p]);
        }
        adopt_list(g, &from->delayed);
        uint32_t i = 0;
        for (mem_lane *l; (l = mw_map_next(&from->lanes, &i, NULL));) adopt_list(g, &l->items);
    }
    if (c->log) free_group(c->log);
    c->log = NULL;
    return g;
}

/* ---- channels and brokers ---- */

mem_channel *mem_channel_get(mem_broker *b, const char *name) {
    uint64_t key = mw_hash64(name, strlen(name));
    mem_channel *c = mw_map_get(&b->channels, key);
    if (c) return c;
    if (!(c = calloc(1, sizeof *c + strlen(name) + 1))) abort();
    c->broker = b;
    c->next_seq = 1;
    strcpy(c->name, name);
    c->log = new_group(c, "");
    mw_map_put(&b->channels, key, c);
    return c;
}

void mem_publish(mem_channel *c, mw_message *m, int64_t delay_ms) {
    uint64_t seq = c->next_seq++;
    for (mem_group *g = c->log ? c->log : c->groups; g; g = g->next) {
        mem_item *i = new_item(g, m, seq);
        if (delay_ms > 0)
            mem_item_delay(i, delay_ms);
        else
            mem_item_ready(i);
    }
}

mem_broker *mem_broker_get(mw_loop *loop, const char *name) {
    mem_broker *b = brokers;
    while (b && strcmp(b->name, name) != 0) b = b->next;
    if (!b) {
        if (!(b = calloc(1, sizeof *b + strlen(name) + 1))) abort();
        strcpy(b->name, name);
        b->loop = loop;
        b->next = brokers;
        brokers = b;
    }
    if (!b->loop) b->loop = loop; /* faults may have named it before anyone connected */
    b->refs++;
    return b;
}

void mem_broker_release(mem_broker *b) {
    if (--b->refs) return;
    mem_broker **at = &brokers;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    uint32_t i = 0;
    for (mem_channel *c; (c = mw_map_next(&b->channels, &i, NULL));) {
        if (c->log) free_group(c->log);
        for (mem_group *g; (g = c->groups);) {
            c->groups = g->next;
            free_group(g);
        }
        free(c);
    }
    mw_map_free(&b->channels);
    mem_records_free(&b->records);
    for (size_t k = 0; k < b->slabs.len / sizeof(void *); k++) free(((mem_item **)(void *)b->slabs.data)[k]);
    mw_buf_free(&b->slabs);
    free(b);
}
