/* lanes.c - the order of a key whose messages do not all come with the scan.
 *
 * The invariant: what is behind the scan of a lane (put back by the core, parked, or being parked or
 * unparked) is delivered before anything newer of it. In ready the scan (fetch.c) takes messages in order,
 * once. As soon as one of a lane has to stay behind it, the lane gets an entry here, and from then on the
 * scan passes all of it by and only notes the first. The lane then has a scan of its own, from there up to
 * the other one's place, and goes with that again when it has caught up. Its own scan stands still while
 *   - the core has enough of it (put_back, until go_on), or
 *   - a park or unpark of it is on its way to the writer or back: a look between the two would see a state in
 *     which the moved messages are missing, or lie behind where it looks.
 * So no look at the file is ever asked about a lane that is not at rest, and nothing is written for a lane
 * that is merely long.
 *
 * Entries go by the 32 bits of the key's hash that stand in the row, so that passing by costs no look at the
 * message; two lanes that share them wait for each other, no more. What newer messages wait behind parked
 * ones is noted by the whole hash, as that may last for days. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum { SCANS_MOST = 64 }; /* beyond it the scan goes back for all of them at once */

static void clear(mwe_from *f) {
    for (int p = 0; p < MWE_LEVELS; p++) f->at[p] = MWE_NOWHERE;
}

static mwe_from *new_from(void) {
    mwe_from *f = mwe_alloc(sizeof *f);
    clear(f);
    return f;
}

/* ---- on the loop's thread ---- */

static mwe_lane *lane_of(mw_sub *s, uint32_t hash) {
    void **place = mw_map_place(&s->lanes, hash + 1ull);
    if (*place) return *place;
    mwe_lane *l = mwe_alloc(sizeof *l);
    l->hash = hash;
    l->room = UINT32_MAX;
    clear(&l->from);
    if (!s->first_lane) s->last_lane = &s->first_lane;
    *s->last_lane = l;
    s->last_lane = &l->next;
    return *place = l;
}

static bool is_behind(const mwe_lane *l) {
    for (int p = 0; p < MWE_LEVELS; p++)
        if (l->from.at[p] != MWE_NOWHERE) return true;
    return false;
}

static bool may_run(const mwe_lane *l) { return l->room && !l->moving; }

bool mwe_lane_runs(const mwe_lane *l) { return may_run(l) && is_behind(l); }

void mwe_put_back(mw_sub *s, uint64_t tag, uint32_t unit, uint64_t lane) {
    (void)lane;
    mwe_flight *f = mw_map_get(&s->flights, tag);
    if (!f || f->slot != unit) return; /* fenced meanwhile */
    mwe_lane *l = lane_of(s, f->hash);
    l->room = 0;
    mwe_from_add(&l->from, f->priority, f->seq);
    mwe_flight_end(s, f);
    if (s->slot[unit].leaving) mwe_leave_slots(s);
    mwe_fetch_soon(s); /* it took room that others may use */
}

void mwe_go_on(mw_sub *s, uint64_t lane, uint32_t count) {
    mwe_lane *l = mwe_lane_find(s, mwe_lane_hash(s, lane));
    if (!l) return;
    l->room = count;
    mwe_fetch_soon(s);
}

void mwe_lane_moves(mw_sub *s, uint32_t hash) { lane_of(s, hash)->moving++; }

void mwe_lane_moved(mw_sub *s, uint32_t hash) {
    lane_of(s, hash)->moving--;
    mwe_fetch_soon(s);
}

void mwe_lane_waits(mw_sub *s, uint64_t lane, uint8_t priority, uint64_t seq) {
    void **place = mw_map_place(&s->waiting, lane);
    if (!*place) *place = new_from();
    mwe_from_add(*place, priority, seq);
}

void mwe_lane_back(mw_sub *s, uint64_t lane, mwe_from **unparked) {
    mwe_from *both[] = {*unparked, mw_map_remove(&s->waiting, lane)};
    *unparked = NULL;
    for (int i = 0; i < 2; i++) {
        if (!both[i]) continue;
        mwe_lane *l = lane_of(s, mwe_lane_hash(s, lane));
        for (uint8_t p = 0; p < MWE_LEVELS; p++) mwe_from_add(&l->from, p, both[i]->at[p]);
        free(both[i]);
        mwe_fetch_soon(s);
    }
}

/* Keeps those that `stays` wants. */
static void sort_out(mw_sub *s, bool (*stays)(mw_sub *s, mwe_lane *l)) {
    mwe_lane **at = &s->first_lane;
    for (mwe_lane *l; (l = *at);) {
        if (stays(s, l)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        mw_map_remove(&s->lanes, l->hash + 1ull);
        free(l);
    }
    s->last_lane = at;
}

static bool has_not_caught_up(mw_sub *s, mwe_lane *l) {
    for (int p = 0; p < MWE_LEVELS; p++)
        if (l->from.at[p] >= s->scan[p]) l->from.at[p] = MWE_NOWHERE; /* the scan will find it */
    return !may_run(l) || is_behind(l);
}

static bool cannot_run(mw_sub *s, mwe_lane *l) {
    if (!may_run(l)) return true;
    for (int p = 0; p < MWE_LEVELS; p++)
        if (l->from.at[p] < s->scan[p]) s->scan[p] = l->from.at[p];
    return false;
}

/* Each gets its turn to be the first: there may not be room for all. */
static void take_turns(mw_sub *s) {
    mwe_lane *l = s->first_lane;
    if (!l || !l->next) return;
    s->first_lane = l->next;
    l->next = NULL;
    *s->last_lane = l;
    s->last_lane = &l->next;
}

void mwe_lanes_tidy(mw_sub *s) {
    size_t running = 0;
    sort_out(s, has_not_caught_up);
    for (mwe_lane *l = s->first_lane; l; l = l->next) running += may_run(l);
    if (running > SCANS_MOST) sort_out(s, cannot_run);
    take_turns(s);
}

static bool stays_after_rewind(mw_sub *s, mwe_lane *l) {
    (void)s;
    clear(&l->from);
    return !may_run(l);
}

static void forget_waiting(mw_sub *s) {
    uint32_t at = 0;
    for (void *from; (from = mw_map_next(&s->waiting, &at, NULL));) free(from);
    mw_map_free(&s->waiting);
    s->waiting = (mw_map){0};
}

void mwe_lanes_rewind(mw_sub *s) {
    sort_out(s, stays_after_rewind);
    forget_waiting(s);
}

static bool stays_not(mw_sub *s, mwe_lane *l) {
    (void)s, (void)l;
    return false;
}

void mwe_lanes_free(mw_sub *s) {
    sort_out(s, stays_not);
    mw_map_free(&s->lanes);
    forget_waiting(s);
}

/* ---- on the writer ---- */

static void note_unparked(mwe_from **unparked, uint8_t priority, uint64_t seq) {
    if (!*unparked) *unparked = new_from();
    mwe_from_add(*unparked, priority, seq);
}

int mwe_lane_park(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t lane, uint8_t priority, uint64_t seq,
                  mwe_waiting *w) {
    mwe_key k;
    w->not_before = 0;
    MDB_val value = mwe_write_waiting(w);
    int rc = mwe_put(t, MWE_PARKED, mwe_key_sorted(&k, c->row.id, g->row.id, lane, priority, seq), &value, 0);
    if (rc == 0) g->row.parked++;
    return rc;
}

/* All of it in one transaction: a newer message of the lane must not overtake a parked one. */
int mwe_lane_unpark(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t lane, mwe_from **unparked) {
    mwe_key k;
    mwe_put64(mwe_key_group(&k, c->row.id, g->row.id)->mv_data + MWE_GROUP_KEY, lane);
    MDB_val prefix = {MWE_GROUP_KEY + 8, k.bytes}, key = prefix, value;
    MDB_cursor *at = mwe_cursor(t, MWE_PARKED);
    if (!at) return ENOMEM;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, &prefix); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        uint8_t priority;
        uint64_t seq;
        mwe_waiting w;
        bool sound = mwe_read_place(&key, MWE_SORTED_KEY, &priority, &seq) && mwe_read_waiting(&value, &w);
        if ((rc = mwe_del_here(t, MWE_PARKED))) return rc;
        g->row.parked -= g->row.parked > 0;
        g->dirty = true;
        if (sound && (rc = mwe_wait_put(t, c, g, priority, seq, &w, 0))) return rc;
        if (sound && unparked) note_unparked(unparked, priority, seq);
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

int mwe_lanes_adopt(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t taken) {
    uint64_t next = 0;
    while (g->row.parked) {
        mwe_key k, marked;
        mwe_put64(mwe_key_group(&k, c->row.id, g->row.id)->mv_data + MWE_GROUP_KEY, next);
        MDB_val prefix = {MWE_GROUP_KEY, k.bytes}, key = {MWE_GROUP_KEY + 8, k.bytes}, value, mark;
        MDB_cursor *at = mwe_cursor(t, MWE_PARKED);
        int rc = at ? mdb_cursor_get(at, &key, &value, MDB_SET_RANGE) : ENOMEM;
        if (rc == MDB_NOTFOUND || (rc == 0 && !mwe_has_prefix(&key, &prefix))) break;
        if (rc) return rc;
        uint64_t lane = mwe_get64((const char *)key.mv_data + MWE_GROUP_KEY);
        mwe_waiting w;
        bool ours = mwe_read_waiting(&value, &w) && taken >> (w.hash % g->row.slots) & 1;
        rc = ours ? mwe_get(t, MWE_MARKS, mwe_key_in_group(&marked, c->row.id, g->row.id, lane), &mark) : 0;
        if (rc == MDB_NOTFOUND) rc = mwe_lane_unpark(t, c, g, lane, NULL);
        if (rc) return rc;
        if (lane == UINT64_MAX) break;
        next = lane + 1;
    }
    return 0;
}

int mwe_lane_mark(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t lane, mw_mark mark) {
    mwe_key k;
    uint8_t byte = (uint8_t)mark;
    MDB_val *key = mwe_key_in_group(&k, c->row.id, g->row.id, lane), value = {1, &byte};
    int rc = mark == MW_MARK_NONE ? mwe_del(t, MWE_MARKS, key) : mwe_put(t, MWE_MARKS, key, &value, 0);
    if (rc == MDB_NOTFOUND) return 0; /* there was none to clear */
    g->owners.marks_version++;
    g->owners_dirty = true;
    return rc;
}
