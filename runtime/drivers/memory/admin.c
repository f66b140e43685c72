/* admin.c - looking into a channel of the memory broker and taking single messages out of it. */
#include <stdlib.h>
#include <string.h>

#include "drivers/memory/memory.h"

typedef struct found {
    mw_entry *list;
    size_t count, capacity;
} found;

static void note(found *f, mem_item *i, uint64_t after) {
    if (i->seq <= after) return;
    if (f->count == f->capacity) {
        f->capacity = f->capacity ? f->capacity * 2 : 64;
        f->list = realloc(f->list, f->capacity * sizeof *f->list);
        if (!f->list) abort();
    }
    f->list[f->count++] =
        (mw_entry){.position = {.low = i->seq}, .msg = i->msg, .due_ms = mem_item_due_ms(i)};
}

static void note_list(found *f, const mem_list *l, uint64_t after) {
    for (mem_item *i = l->first; i; i = i->next) note(f, i, after);
}

static void note_group(found *f, mem_group *g, uint64_t after) {
    for (int p = 0; p <= MW_PRIORITY_MAX; p++) {
        note_list(f, &g->ready[p], after);
        note_list(f, &g->late[p], after);
    }
    note_list(f, &g->delayed, after);
    uint32_t at = 0;
    for (mem_list *l; (l = mw_map_next(&g->parked, &at, NULL));) note_list(f, l, after);
    at = 0;
    for (mem_lane *l; (l = mw_map_next(&g->lanes, &at, NULL));) note_list(f, &l->items, after);
    for (mem_sub *s = g->subs; s; s = s->next) note_list(f, &s->out, after);
}

static int by_position(const void *a, const void *b) {
    uint64_t x = ((const mw_entry *)a)->position.low, y = ((const mw_entry *)b)->position.low;
    return x < y ? -1 : x > y;
}

typedef struct request { /* answered from a deferred call, as the contract asks */
    mw_deferred later;
    mem_conn *conn;
    mw_browse browse;
    char *channel;
    void *cookie;
    size_t removed;
} request;

static request *new_request(mem_conn *c, void *cookie) {
    request *r = calloc(1, sizeof *r);
    if (!r) abort();
    r->conn = c;
    r->cookie = cookie;
    return r;
}

static void browse_now(mw_deferred *d) {
    request *r = mw_container_of(d, request, later);
    mem_channel *c = mem_channel_get(r->conn->broker, r->channel);
    found f = {0};
    uint64_t last = c->next_seq - 1;
    if (!r->browse.newest) {
        for (mem_group *g = c->log ? c->log : c->groups; g; g = g->next)
            note_group(&f, g, r->browse.after.low);
        if (f.count) qsort(f.list, f.count, sizeof *f.list, by_position); /* not of NULL */
        size_t kept = 0; /* the same message stands in several groups */
        for (size_t i = 0; i < f.count; i++)
            if (!kept || f.list[kept - 1].position.low != f.list[i].position.low) f.list[kept++] = f.list[i];
        f.count = kept < r->browse.max ? kept : r->browse.max;
        last = f.count ? f.list[f.count - 1].position.low : r->browse.after.low;
    }
    r->conn->host->browsed(r->conn->link, r->cookie, f.list, f.count, (mw_position){.low = last}, NULL);
    free(f.list);
    free(r->channel);
    free(r);
}

void mem_browse(mw_conn *conn, const mw_browse *b) {
    request *r = new_request((mem_conn *)conn, b->cookie);
    r->browse = *b;
    r->channel = strdup(b->channel);
    mw_defer(r->conn->broker->loop, &r->later, browse_now);
}

static bool remove_from(mem_list *l, uint64_t seq) {
    for (mem_item *i = l->first; i; i = i->next) {
        if (i->seq != seq) continue;
        mem_item_detach(i);
        mem_item_free(i);
        return true;
    }
    return false;
}

static bool remove_item(mem_group *g, uint64_t seq) { /* what is handed out is left to its consumer */
    for (int p = 0; p <= MW_PRIORITY_MAX; p++)
        if (remove_from(&g->ready[p], seq) || remove_from(&g->late[p], seq)) return true;
    if (remove_from(&g->delayed, seq)) return true;
    uint32_t at = 0;
    for (mem_list *l; (l = mw_map_next(&g->parked, &at, NULL));)
        if (remove_from(l, seq)) return true;
    at = 0;
    for (mem_lane *l; (l = mw_map_next(&g->lanes, &at, NULL));)
        if (remove_from(&l->items, seq)) return true;
    return false;
}

static void removed_now(mw_deferred *d) {
    request *r = mw_container_of(d, request, later);
    r->conn->host->removed(r->conn->link, r->cookie, r->removed, NULL);
    free(r);
}

void mem_remove(mw_conn *conn, const mw_removal *x) {
    request *r = new_request((mem_conn *)conn, x->cookie);
    mem_channel *c = mem_channel_get(r->conn->broker, x->channel);
    for (size_t i = 0; i < x->count; i++) {
        bool any = false;
        for (mem_group *g = c->log ? c->log : c->groups; g; g = g->next)
            any = remove_item(g, x->positions[i].low) || any;
        r->removed += any;
        if (any && i < x->publish_count)
            mem_publish(mem_channel_get(r->conn->broker, x->publish[i].channel), x->publish[i].msg,
                        x->publish[i].delay_ms);
    }
    mw_defer(r->conn->broker->loop, &r->later, removed_now);
}

void mem_release_key(mw_conn *conn, const char *channel, const char *group, uint64_t lane) {
    mem_conn *c = (mem_conn *)conn;
    mem_group *g = mem_group_get(mem_channel_get(c->broker, channel), group, true);
    mem_group_mark(g, lane, MW_MARK_NONE);
    for (mem_sub *s = g->subs; s; s = s->next) s->conn->host->mark(s->source, lane, MW_MARK_NONE);
}
