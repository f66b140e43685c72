/* fetch.c - delivering: a short read-only transaction on the loop's thread finds what this subscription may
 * have now and hands it to the core. Nothing is written: a slot has one owner, so what lies in our slots and
 * is not in flight is ours.
 *
 * Sequence numbers rise in commit order, so per priority a position suffices: what lies before it was seen.
 * What falls due behind it is kept in a small heap; a lane of which something stays behind it has a scan of
 * its own (lanes.c). Each fetch starts at the highest priority. Work per turn is bounded; the rest follows in
 * the next one. */
#include <stdlib.h>

#include "base/log.h"
#include "drivers/embedded/embedded.h"

enum {
    BATCH = 512,       /* deliveries per turn */
    WALK = 4096,       /* rows looked at per turn, */
    LANES_WALK = 4096, /* and by the scans of lanes */
    BACK_MOST = 1024,  /* beyond it the scan goes back instead */
    UNREADABLE_MOST = 100,
    DUE_WALK = 64, /* overdue rows of others passed by */
    DUE_POLL_MS = 250,
    DUE_FAR_MS = 60000 /* the wall clock may jump */
};

typedef struct mark_change {
    uint64_t lane;
    mw_mark mark;
} mark_change;

typedef struct look { /* one fetch */
    mw_sub *s;
    MDB_txn *txn;
    MDB_cursor *ready, *messages;
    MDB_cursor *parked; /* NULL when nothing is */
    MDB_cursor *behind; /* of the scans of lanes; NULL when there are none */
    mw_incoming in[BATCH];
    size_t count, room, bytes;
    size_t lanes_room; /* of the room: the rest is for keys that are not long */
    int walk, lanes_walk;
    bool more;  /* stopped early: come again */
    bool freed; /* marks are gone: the core must hear that before it gets messages */
    uint64_t fenced;
    mark_change *marks;
    size_t mark_count;
    int64_t due_in; /* ms until something falls due; -1 never */
} look;

/* ---- flights ---- */

mwe_flight *mwe_flight_new(mw_sub *s, uint64_t seq) {
    mwe_flight *f = s->spare;
    s->spare = NULL;
    if (!f) f = mwe_alloc(sizeof *f);
    *f = (mwe_flight){.seq = seq};
    mw_map_put(&s->flights, seq, f);
    return f;
}

void mwe_flight_end(mw_sub *s, mwe_flight *f) {
    mwe_worker_end(s->conn->store->worker, f->begun);
    mw_map_remove(&s->flights, f->seq);
    mwe_slot *slot = &s->slot[f->slot];
    if (slot->in_flight) slot->in_flight--;
    if (f->moving) mwe_lane_moved(s, f->hash);
    if (s->spare)
        free(f);
    else
        s->spare = f;
}

/* ---- what comes back ---- */

static bool before(const mwe_place *a, uint8_t priority, uint64_t seq) {
    return a->priority != priority ? a->priority > priority : a->seq < seq;
}

void mwe_fetch_back(mw_sub *s, const mwe_place *p) {
    if (p->seq >= s->scan[p->priority]) return; /* the scan will find it */
    if (s->back_count >= BACK_MOST) {
        s->scan[p->priority] = p->seq;
        return;
    }
    if (s->back_count == s->back_capacity) {
        s->back_capacity = s->back_capacity ? s->back_capacity * 2 : 16;
        s->back = realloc(s->back, s->back_capacity * sizeof *s->back);
        if (!s->back) abort();
    }
    size_t i = s->back_count++;
    for (; i > 0; i = (i - 1) / 2) {
        mwe_place *parent = &s->back[(i - 1) / 2];
        if (!before(p, parent->priority, parent->seq)) break;
        s->back[i] = *parent;
    }
    s->back[i] = *p;
}

static void back_pop(mw_sub *s) {
    mwe_place last = s->back[--s->back_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->back_count; i = child) {
        mwe_place *c = &s->back[child];
        if (child + 1 < s->back_count && before(c + 1, c->priority, c->seq)) c++, child++;
        if (!before(c, last.priority, last.seq)) break;
        s->back[i] = *c;
    }
    s->back[i] = last;
}

void mwe_fetch_rewind(mw_sub *s) {
    memset(s->scan, 0, sizeof s->scan);
    s->back_count = 0;
    mwe_lanes_rewind(s);
}

/* ---- one message ---- */

typedef enum { PASSED_BY, NO_ROOM, TAKEN } taken;

static mw_text *first_error(look *l, uint64_t seq) {
    mw_sub *s = l->s;
    mwe_key k;
    MDB_val value;
    int rc = mdb_get(l->txn, s->conn->store->table[MWE_ERRORS],
                     mwe_key_in_group(&k, s->channel_id, s->group_id, seq), &value);
    return rc || value.mv_size > MWE_ERROR_READ_MAX ? NULL : mw_text_new(value.mv_data, value.mv_size);
}

/* Older messages of its key are parked: it waits behind them, unless it is what frees the key. */
static bool held_back(look *l, const mw_parts *parts, uint8_t priority, uint64_t seq) {
    mw_sub *s = l->s;
    if (!l->parked || (!parts->has_key && !s->one_lane)) return false;
    mwe_key k;
    mw_header h;
    uint64_t lane = s->one_lane ? 1 : mw_hash64(parts->key, parts->key_len);
    mwe_put64(mwe_key_group(&k, s->channel_id, s->group_id)->mv_data + MWE_GROUP_KEY, lane);
    MDB_val prefix = {MWE_GROUP_KEY + 8, k.bytes}, key = prefix, value;
    if (mdb_cursor_get(l->parked, &key, &value, MDB_SET_RANGE) || !mwe_has_prefix(&key, &prefix))
        return false;
    if (mw_headers_find(parts->headers, parts->headers_len, "mw-replay", &h)) return false;
    mwe_lane_waits(s, lane, priority, seq);
    return true;
}

/* It stays where it is, and its group never becomes empty: somebody should know why. */
static taken unreadable(mw_sub *s, uint64_t seq) {
    if (s->unreadable.count >= UNREADABLE_MOST || mw_map_get(&s->unreadable, seq)) return PASSED_BY;
    mw_map_put(&s->unreadable, seq, s);
    mw_log_begin(MW_ERROR, "a message cannot be read: the store is damaged");
    mw_log_text("channel", s->channel->name);
    mw_log_text("group", s->group);
    mw_log_int("position", (int64_t)seq);
    mw_log_end();
    return PASSED_BY;
}

/* The message of a row, unless it has to wait. The parts of a small one are looked at where they lie. */
static taken load(look *l, uint8_t priority, uint64_t seq, const MDB_val *row, mw_message **m) {
    mw_sub *s = l->s;
    mwe_record r;
    mw_parts parts;
    int64_t due;
    if (!mwe_record_head(row, &r)) return unreadable(s, seq);
    size_t size = mwe_record_size(&r);
    bool here = mwe_record_parts(row, &parts, &due);
    if (here && held_back(l, &parts, priority, seq)) return PASSED_BY;
    if (l->count == l->room || (l->count && size > l->bytes)) return NO_ROOM;
    *m = here && size == row->mv_size
             ? mw_message_new(&parts)
             : mwe_record_message(s->conn->store, l->txn, s->channel_id, seq, row, &due);
    if (!*m) return unreadable(s, seq);
    if (!here) {
        mw_message_parts(*m, &parts);
        if (held_back(l, &parts, priority, seq)) {
            mw_message_unref(*m);
            return PASSED_BY;
        }
    }
    l->bytes -= size < l->bytes ? size : l->bytes;
    return TAKEN;
}

/* By the scan of its lane, or because it has none (lane: NULL). False: no room for it, stop here. A row that
 * is not ours, in flight, damaged, or of a lane with its own scan is passed by. */
static bool take(look *l, uint8_t priority, uint64_t seq, const MDB_val *row, const mwe_lane *lane) {
    mw_sub *s = l->s;
    mwe_waiting w;
    mwe_key k;
    MDB_val value;
    mw_message *m;
    if (!mwe_read_waiting(row, &w)) return true;
    uint32_t slot = w.hash % s->slots, hash = mwe_lane_hash(s, w.hash);
    if (lane && lane->hash != hash) return true;
    if (!s->slot[slot].mine || s->slot[slot].leaving || mw_map_get(&s->flights, seq)) return true;
    mwe_lane *own = lane ? NULL : mwe_lane_find(s, hash);
    if (own) {
        mwe_from_add(&own->from, priority, seq);
        return true;
    }
    if (mdb_cursor_get(l->messages, mwe_key_message(&k, s->channel_id, seq), &value, MDB_SET)) {
        unreadable(s, seq);
        return true;
    }
    taken how = load(l, priority, seq, &value, &m);
    if (how != TAKEN) return how == PASSED_BY;
    mwe_flight *f = mwe_flight_new(s, seq);
    f->hash = hash;
    f->slot = (uint16_t)slot;
    f->priority = priority;
    f->epoch = s->slot[slot].epoch;
    f->attempt = w.attempts + 1;
    s->slot[slot].in_flight++;
    l->in[l->count++] = (mw_incoming){.msg = m,
                                      .tag = seq,
                                      .unit = slot,
                                      .attempt = f->attempt,
                                      .not_before = w.not_before,
                                      .first_error = w.attempts ? first_error(l, seq) : NULL};
    return true;
}

/* What came back and stands before this place. */
static bool take_back(look *l, uint8_t priority, uint64_t seq) {
    mw_sub *s = l->s;
    while (s->back_count && before(&s->back[0], priority, seq)) {
        mwe_place p = s->back[0];
        mwe_key k;
        MDB_val value, *key = mwe_key_ready(&k, s->channel_id, s->group_id, p.priority, p.seq);
        int rc = mdb_get(l->txn, s->conn->store->table[MWE_READY], key, &value);
        if (rc == 0 && !take(l, p.priority, p.seq, &value, NULL)) return false;
        back_pop(s);
    }
    return true;
}

/* One lane, one priority, up to where the scan is. False: no room for it. */
static bool scan_lane(look *l, mwe_lane *lane, uint8_t priority) {
    mw_sub *s = l->s;
    mwe_key k, prefix;
    uint8_t level;
    uint64_t seq, *from = &lane->from.at[priority];
    MDB_val value, *group = mwe_key_group(&prefix, s->channel_id, s->group_id),
                   key = *mwe_key_ready(&k, s->channel_id, s->group_id, priority, *from);
    int rc = mdb_cursor_get(l->behind, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, group); rc = mdb_cursor_get(l->behind, &key, &value, MDB_NEXT)) {
        if (!mwe_read_place(&key, MWE_READY_KEY, &level, &seq)) continue;
        if (level != priority || seq >= s->scan[priority]) break;
        size_t before = l->count;
        if (l->lanes_walk-- <= 0 || !l->lanes_room) return true;
        if (!take(l, priority, seq, &value, lane)) return false;
        *from = seq + 1;
        if (l->count == before) continue;
        l->lanes_room--;
        if (--lane->room) continue;
        l->in[before].held = true;
        return true;
    }
    *from = MWE_NOWHERE;
    return true;
}

/* Before the scan goes on at this priority. */
static bool scan_lanes(look *l, uint8_t priority) {
    mw_sub *s = l->s;
    for (mwe_lane *lane = l->behind ? s->first_lane : NULL; lane; lane = lane->next)
        if (mwe_lane_runs(lane) && lane->from.at[priority] < s->scan[priority] &&
            !scan_lane(l, lane, priority))
            return false;
    return true;
}

static int seek(look *l, uint8_t priority, mwe_key *k, MDB_val *key, MDB_val *value) {
    mw_sub *s = l->s;
    *key = *mwe_key_ready(k, s->channel_id, s->group_id, priority, s->scan[priority]);
    return mdb_cursor_get(l->ready, key, value, MDB_SET_RANGE);
}

static bool scan_lanes_down(look *l, int *level, int to) {
    while (*level > to) {
        *level -= 1;
        if (scan_lanes(l, (uint8_t)*level)) continue;
        l->more = true;
        return false;
    }
    return true;
}

static void scan(look *l) {
    mw_sub *s = l->s;
    mwe_key k, prefix;
    MDB_val key, value, *group = mwe_key_group(&prefix, s->channel_id, s->group_id);
    int level = MWE_LEVELS; /* the lanes have been looked after from here up */
    int rc = seek(l, MW_PRIORITY_MAX, &k, &key, &value);
    while (rc == 0 && mwe_has_prefix(&key, group)) {
        uint8_t priority;
        uint64_t seq;
        if (l->walk-- == 0 || l->count == l->room) {
            l->more = true;
            return;
        }
        if (mwe_read_place(&key, MWE_READY_KEY, &priority, &seq)) {
            if (!scan_lanes_down(l, &level, priority)) return;
            if (seq < s->scan[priority]) { /* a lower level begins: go on where it was left */
                rc = seek(l, priority, &k, &key, &value);
                continue;
            }
            if (!take_back(l, priority, seq) || !take(l, priority, seq, &value, NULL)) {
                l->more = true;
                return;
            }
            s->scan[priority] = seq + 1;
        }
        rc = mdb_cursor_get(l->ready, &key, &value, MDB_NEXT);
    }
    if (scan_lanes_down(l, &level, 0) && !take_back(l, 0, UINT64_MAX)) l->more = true;
}

/* ---- what else one look shows ---- */

static void look_at_due(look *l, int64_t now) {
    mw_sub *s = l->s;
    mwe_key prefix;
    MDB_cursor *c;
    MDB_val *group = mwe_key_group(&prefix, s->channel_id, s->group_id), key = *group, value;
    l->due_in = -1;
    if (mdb_cursor_open(l->txn, s->conn->store->table[MWE_DUE], &c)) return;
    int rc = mdb_cursor_get(c, &key, &value, MDB_SET_RANGE);
    for (int i = 0; rc == 0 && mwe_has_prefix(&key, group); rc = mdb_cursor_get(c, &key, &value, MDB_NEXT)) {
        mwe_waiting w;
        if (key.mv_size != MWE_SORTED_KEY || !mwe_read_waiting(&value, &w)) continue;
        int64_t due = (int64_t)mwe_get64((const char *)key.mv_data + MWE_GROUP_KEY);
        l->due_in = due > now ? due - now : s->slot[w.hash % s->slots].mine ? 0 : DUE_POLL_MS;
        if (l->due_in != DUE_POLL_MS || due > now || ++i == DUE_WALK) break;
    }
    mdb_cursor_close(c);
}

/* Lane 0 (no key) has a place in the map as well; the map's keys are not 0. */
static uint64_t mark_key(uint64_t lane) { return lane ? lane : 1; }

void mwe_mark_known(mw_sub *s, uint64_t lane, mw_mark mark) {
    if (mark == MW_MARK_NONE)
        mw_map_remove(&s->marks, mark_key(lane));
    else
        mw_map_put(&s->marks, mark_key(lane), (void *)(uintptr_t)mark);
}

static void note_mark(look *l, uint64_t lane, mw_mark mark) {
    if ((l->mark_count & (l->mark_count - 1)) == 0) {
        l->marks = realloc(l->marks, (l->mark_count ? l->mark_count * 2 : 1) * sizeof *l->marks);
        if (!l->marks) abort();
    }
    l->marks[l->mark_count++] = (mark_change){lane, mark};
}

static void note_gone_marks(look *l, const mw_map *now) {
    uint64_t lane;
    for (uint32_t at = 0; mw_map_next(&l->s->marks, &at, &lane);)
        if (!mw_map_get(now, lane)) {
            note_mark(l, lane, MW_MARK_NONE);
            mwe_fetch_rewind(l->s); /* who cleared it has unparked the lane */
            l->freed = l->more = true;
        }
}

static void look_at_marks(look *l) {
    mw_sub *s = l->s;
    mwe_key prefix;
    MDB_cursor *c;
    mw_map now = {0};
    MDB_val *group = mwe_key_group(&prefix, s->channel_id, s->group_id), key = *group, value;
    if (mdb_cursor_open(l->txn, s->conn->store->table[MWE_MARKS], &c)) return;
    int rc = mdb_cursor_get(c, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, group); rc = mdb_cursor_get(c, &key, &value, MDB_NEXT)) {
        uint8_t mark;
        if (key.mv_size != MWE_GROUP_KEY + 8 || !mwe_read_row(&value, &mark, 1)) continue;
        if (mark != MW_MARK_HOLD && mark != MW_MARK_DEAD) continue;
        uint64_t lane = mwe_get64((const char *)key.mv_data + MWE_GROUP_KEY);
        void *known = mw_map_get(&s->marks, mark_key(lane));
        mw_map_put(&now, mark_key(lane), (void *)(uintptr_t)mark);
        if ((uintptr_t)known != mark) note_mark(l, lane, (mw_mark)mark);
    }
    mdb_cursor_close(c);
    note_gone_marks(l, &now);
    mw_map_free(&s->marks);
    s->marks = now;
}

static void look_at_owners(look *l) {
    mw_sub *s = l->s;
    mwe_key k;
    MDB_val value;
    mwe_owners now;
    int rc = mdb_get(l->txn, s->conn->store->table[MWE_OWNERS], mwe_key_group(&k, s->channel_id, s->group_id),
                     &value);
    /* no such row: the group was given another number of slots while we were silent, and none is ours */
    if (rc || !mwe_read_owners(&value, s->slots, &now)) now = (mwe_owners){0};
    if (now.marks_version != s->owners.marks_version) look_at_marks(l);
    if (memcmp(&now, &s->owners, sizeof now) != 0) l->fenced = mwe_owners_read(s, &now);
}

/* ---- a fetch ---- */

static void tell_core(look *l) {
    mw_sub *s = l->s;
    const mw_host *host = s->conn->host;
    for (uint32_t slot = 0; slot < s->slots; slot++)
        if (l->fenced >> slot & 1) host->fence(s->source, slot);
    for (size_t i = 0; i < l->mark_count; i++) host->mark(s->source, l->marks[i].lane, l->marks[i].mark);
    free(l->marks);
    if (l->count) host->deliver(s->source, l->in, l->count);
}

static bool any_parked(look *l) {
    mw_sub *s = l->s;
    mwe_key k;
    MDB_val value;
    mwe_group_row row;
    int rc = mdb_get(l->txn, s->conn->store->table[MWE_GROUPS],
                     mwe_key_name(&k, s->channel_id, s->group, s->group_len), &value);
    return rc == 0 && mwe_read_row(&value, &row, sizeof row) && row.parked;
}

static bool read_all(look *l) {
    mw_sub *s = l->s;
    mwe_store *store = s->conn->store;
    if (mwe_read_begin(store, &s->conn->reader)) return false;
    l->txn = s->conn->reader;
    look_at_owners(l);
    if (l->room && !l->freed && mdb_cursor_open(l->txn, store->table[MWE_READY], &l->ready) == 0) {
        mwe_lanes_tidy(s);
        if (s->first_lane) mdb_cursor_open(l->txn, store->table[MWE_READY], &l->behind);
        if (any_parked(l)) mdb_cursor_open(l->txn, store->table[MWE_PARKED], &l->parked);
        if (mdb_cursor_open(l->txn, store->table[MWE_MESSAGES], &l->messages) == 0) {
            scan(l);
            mdb_cursor_close(l->messages);
        }
        for (mwe_lane *lane = s->first_lane; lane; lane = lane->next) l->more |= mwe_lane_runs(lane);
        if (l->behind) mdb_cursor_close(l->behind);
        if (l->parked) mdb_cursor_close(l->parked);
        mdb_cursor_close(l->ready);
    }
    look_at_due(l, mw_loop_wall_ms(s->conn->loop));
    mwe_read_end(store, l->txn);
    return true;
}

static void due_fired(mw_timer *t) { mwe_fetch_soon(mw_container_of(t, mw_sub, due)); }

static void fetch(mw_deferred *d) {
    mw_sub *s = mw_container_of(d, mw_sub, fetch);
    if (s->state != MWE_RUNNING) return;
    look l;
    memset(&l, 0, offsetof(look, in));
    memset(&l.count, 0, sizeof l - offsetof(look, count));
    l.s = s;
    l.walk = WALK;
    l.lanes_walk = LANES_WALK;
    l.room = s->paused ? 0 : s->conn->host->room(s->source, &l.bytes);
    bool full = l.room <= BATCH;
    if (!full) l.room = BATCH;
    l.lanes_room = (l.room + 1) / 2;
    if (!read_all(&l)) {
        mw_timer_start(s->conn->loop, &s->due, DUE_POLL_MS, due_fired);
        return;
    }
    if (l.due_in == 0)
        mwe_promote(s);
    else if (l.due_in > 0)
        mw_timer_start(s->conn->loop, &s->due, l.due_in < DUE_FAR_MS ? l.due_in : DUE_FAR_MS, due_fired);
    if (l.more && (!full || l.count < l.room)) mwe_fetch_soon(s);
    tell_core(&l);
}

void mwe_fetch_soon(mw_sub *s) {
    if (s->state == MWE_RUNNING) mw_defer(s->conn->loop, &s->fetch, fetch);
}
