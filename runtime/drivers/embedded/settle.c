/* settle.c - the end of deliveries: ack, retry, park, release; the unparking of lanes; and what falls due.
 * Settlements are copied on the loop's thread together with what is known of the delivery, and applied in the
 * order given; each checks in its own transaction that its slot is still ours. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum { ITEMS_PER_OP = 1024, DUE_MOST = 1024 };

typedef struct settle_item {
    mw_settlement s;
    mwe_flight flight; /* seq 0: it was fenced before it got here */
    mwe_publish *publish;
    char *done_key; /* our copy of s.done_key */
    uint64_t conn;
    int code;
    uint64_t marks_version; /* after its mark; 0: no mark */
    mwe_from *unparked;     /* with its mark */
} settle_item;

typedef struct settle_op {
    mwe_op op;
    mw_sub *sub;
    mwe_channel *channel;
    uint64_t consumer;
    uint32_t group_id;
    settle_item items[];
} settle_op;

typedef struct lane_op { /* unpark, release_key, promote */
    mwe_op op;
    mw_sub *sub; /* NULL: release_key */
    mwe_channel *channel;
    uint64_t lane, consumer;
    uint32_t group_id;
    mwe_from *unparked;
    mwe_place *due; /* PROMOTE: what became ready */
    uint32_t due_count;
    size_t group_len;
    char group[];
} lane_op;

/* ---- one settlement, on the writer ---- */

typedef struct place { /* the delivery a settlement is about */
    mwe_tchannel *c;
    mwe_tgroup *g;
    MDB_val *key; /* in ready */
    bool there;   /* false: removed from outside meanwhile; then there is nothing left to do */
    mwe_waiting w;
} place;

/* Leaves the ready cursor on the row. */
static int find_ready(mwe_txn *t, place *p) {
    MDB_cursor *at = mwe_cursor(t, MWE_READY);
    MDB_val value, key = *p->key;
    int rc = at ? mdb_cursor_get(at, &key, &value, MDB_SET_KEY) : ENOMEM;
    p->there = rc == 0 && mwe_read_waiting(&value, &p->w);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int leave_ready(mwe_txn *t, place *p) {
    int rc = mwe_del_here(t, MWE_READY);
    p->g->row.ready -= p->g->row.ready > 0;
    p->g->dirty = true;
    return rc;
}

static int forget_error(mwe_txn *t, place *p, uint64_t seq) {
    mwe_key k;
    int rc =
        p->w.attempts ? mwe_del(t, MWE_ERRORS, mwe_key_in_group(&k, p->c->row.id, p->g->row.id, seq)) : 0;
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* The last group that wanted a message takes it away, unless the channel keeps what was handled. */
static int look_whether_last(mwe_txn *t, mwe_tchannel *c, uint64_t seq, uint32_t *refs, bool *last) {
    int rc = mwe_refs_get(t, c, seq, refs);
    *last = rc == 0 && *refs <= 1 && !c->row.retain_age_ms && !c->row.retain_count;
    return rc;
}

int mwe_message_unwanted(mwe_txn *t, mwe_tchannel *c, uint64_t seq) {
    uint32_t refs;
    bool last;
    int rc = look_whether_last(t, c, seq, &refs, &last);
    if (rc) return rc;
    return last ? mwe_message_drop(t, c, seq) : mwe_refs_set(t, c, seq, refs ? refs - 1 : 0);
}

/* What the ack of a message gives back. */
static int room_behind(mwe_txn *t, place *p, uint64_t seq, int64_t *freed) {
    mwe_key k;
    MDB_val value;
    uint32_t refs;
    bool last;
    *freed = 0;
    int rc = look_whether_last(t, p->c, seq, &refs, &last);
    if (rc || !last || !p->there) return rc;
    rc = mwe_get(t, MWE_MESSAGES, mwe_key_message(&k, p->c->row.id, seq), &value);
    if (rc == 0) *freed = mwe_room_of(t, &value, p->c);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int ack(mwe_txn *t, place *p, settle_item *item) {
    const mw_settlement *s = &item->s;
    int64_t freed = 0;
    int rc = s->publish_count ? room_behind(t, p, s->tag, &freed) : 0;
    if (!rc) rc = mwe_publish_apply(t, item->publish, s->publish_count, freed, &item->code);
    if (rc || item->code) return rc;
    if (s->publish_count) rc = find_ready(t, p); /* they have moved the cursor */
    if (!rc && p->there) {
        rc = leave_ready(t, p);
        if (!rc) rc = forget_error(t, p, s->tag);
        if (!rc) rc = mwe_message_unwanted(t, p->c, s->tag);
    }
    if (!rc && item->done_key)
        rc = mwe_dedupe_done(t, item->conn, item->done_key, s->done_len, s->done_ttl_ms);
    if (rc || s->mark == MW_MARK_KEEP) return rc;
    rc = mwe_lane_mark(t, p->c, p->g, s->lane, s->mark);
    item->marks_version = p->g->owners.marks_version;
    if (!rc && s->mark == MW_MARK_NONE) rc = mwe_lane_unpark(t, p->c, p->g, s->lane, &item->unparked);
    return rc;
}

static int keep_error(mwe_txn *t, place *p, const mw_settlement *s) {
    if (!s->error) return 0;
    mwe_key k;
    size_t len = s->error->len < MWE_ERROR_MAX ? s->error->len : MWE_ERROR_MAX;
    MDB_val *key = mwe_key_in_group(&k, p->c->row.id, p->g->row.id, s->tag), value = {len, s->error->data};
    int rc = mwe_put(t, MWE_ERRORS, key, &value, MDB_NOOVERWRITE);
    return rc == MDB_KEYEXIST ? 0 : rc;
}

static int retry(mwe_txn *t, place *p, const settle_item *item) {
    const mw_settlement *s = &item->s;
    if (!p->there) return 0;
    int64_t due = s->delay_ms > 0 ? t->now + s->delay_ms : t->now;
    p->w.attempts = s->attempt;
    p->w.not_before = s->hold ? due : 0;
    int rc = keep_error(t, p, s);
    if (rc) return rc;
    if (s->hold) {
        MDB_val value = mwe_write_waiting(&p->w);
        return mwe_put(t, MWE_READY, p->key, &value, 0);
    }
    rc = leave_ready(t, p);
    /* always by way of due: what is put into ready now would lie behind the scan of its owner */
    return rc ? rc
              : mwe_wait_put(t, p->c, p->g, item->flight.priority, s->tag, &p->w,
                             due > t->now ? due : t->now + 1);
}

static int park(mwe_txn *t, place *p, const settle_item *item) {
    if (!p->there) return 0;
    int rc = leave_ready(t, p);
    return rc ? rc : mwe_lane_park(t, p->c, p->g, item->s.lane, item->flight.priority, item->s.tag, &p->w);
}

static bool still_ours(const mwe_tgroup *g, const settle_op *o, const mwe_flight *f) {
    if (f->slot >= g->row.slots) return false;
    const mwe_owner *owner = &g->owners.slot[f->slot];
    return owner->consumer == o->consumer && owner->epoch == f->epoch;
}

static int apply_settle(mwe_txn *t, mwe_op *op, uint32_t i) {
    settle_op *o = (settle_op *)op;
    settle_item *item = &o->items[i];
    mwe_key k;
    place p = {0};
    item->code = MW_EFENCED;
    item->marks_version = 0;
    free(item->unparked); /* of a try that failed */
    item->unparked = NULL;
    if (!item->flight.seq) return 0;
    int rc = mwe_txn_open(t, o->channel, o->group_id, &p.c, &p.g);
    if (rc == MW_EFORMAT || (rc == 0 && !still_ours(p.g, o, &item->flight))) return 0;
    if (rc) return rc;
    item->code = 0;
    if (item->s.op == MW_SETTLE_RELEASE) return 0;
    p.key = mwe_key_ready(&k, p.c->row.id, p.g->row.id, item->flight.priority, item->flight.seq);
    if ((rc = find_ready(t, &p))) return rc;
    switch (item->s.op) {
    case MW_SETTLE_ACK: return ack(t, &p, item);
    case MW_SETTLE_RETRY: return retry(t, &p, item);
    case MW_SETTLE_PARK: return park(t, &p, item);
    case MW_SETTLE_RELEASE: break;
    }
    return 0;
}

/* ---- settlements on the loop's thread ---- */

void mwe_begin(mw_sub *s, uint64_t tag, uint32_t unit) {
    mwe_flight *f = mw_map_get(&s->flights, tag);
    if (!f || f->slot != unit) return;
    mwe_worker *w = s->conn->store->worker;
    mwe_worker_end(w, f->begun);
    f->begun = mwe_worker_begin(w, s->channel_id, s->group_id, tag, f->priority, f->attempt);
}

/* What the core asked for is done: the delivery goes, or stays for a held retry. */
static void conclude(mw_sub *s, settle_item *item) {
    mwe_flight *f = mw_map_get(&s->flights, item->s.tag);
    if (!f || f->epoch != item->flight.epoch) return; /* fenced meanwhile */
    if (item->s.op == MW_SETTLE_RETRY && item->s.hold) {
        if (f->begun == item->flight.begun) { /* else it has begun again already */
            mwe_worker_end(s->conn->store->worker, f->begun);
            f->begun = 0;
        }
        return;
    }
    mwe_place back = {f->seq, f->priority};
    uint32_t slot = f->slot;
    mwe_flight_end(s, f);
    if (item->s.op == MW_SETTLE_RELEASE) mwe_fetch_back(s, &back);
    if (s->slot[slot].leaving) mwe_leave_slots(s);
}

static void conclude_mark(mw_sub *s, settle_item *item) {
    if (item->marks_version) {
        if (s->owners.marks_version == item->marks_version - 1) s->owners.marks_version++;
        mwe_mark_known(s, item->s.lane, item->s.mark);
    }
    mwe_lane_back(s, item->s.lane, &item->unparked);
}

static void finish_settle(mwe_op *op) {
    settle_op *o = (settle_op *)op;
    mw_sub *s = o->sub;
    mw_error e;
    int last = 0;
    bool look = false;
    for (uint32_t i = 0; i < op->count; i++) {
        settle_item *item = &o->items[i];
        int code = mwe_code(op, i, item->code);
        if (code && code != last) mwe_store_error(op->conn->store, last = code, &e);
        if (code == 0) {
            conclude(s, item);
            conclude_mark(s, item);
        }
        free(item->unparked);
        look |= code == MW_EFENCED || item->s.op == MW_SETTLE_RETRY || item->s.op == MW_SETTLE_RELEASE;
        mw_text_unref(item->s.error);
        free(item->publish);
        free(item->done_key);
        op->conn->host->settled(s->source, item->s.cookie, code ? &e : NULL);
    }
    if (look) mwe_fetch_soon(s);
    free(o);
}

static const mwe_op_kind SETTLE = {apply_settle, finish_settle, MWE_TRY_ONCE};

static void take_settlement(mw_sub *s, settle_item *item, const mw_settlement *from) {
    mwe_flight *f = mw_map_get(&s->flights, from->tag);
    item->s = *from;
    mw_text_ref(item->s.error);
    if (f && f->slot == from->unit) {
        if (!f->moving && (from->op == MW_SETTLE_PARK || from->mark != MW_MARK_KEEP)) {
            f->moving = true; /* until it ends, also when it has to be tried again */
            mwe_lane_moves(s, f->hash);
        }
        item->flight = *f;
        if (from->op == MW_SETTLE_RETRY) {
            f->attempt = from->attempt + 1;
        } else { /* it was handled, or never begun: a crash from here on is not its fault */
            mwe_worker_end(s->conn->store->worker, f->begun);
            f->begun = 0;
        }
    }
    if (from->done_key) {
        item->conn = s->conn->id;
        item->done_key = memcpy(mwe_alloc(from->done_len + 1), from->done_key, from->done_len);
    }
    if (from->publish_count == 0) return;
    item->publish = mwe_alloc(from->publish_count * sizeof *item->publish);
    for (size_t i = 0; i < from->publish_count; i++)
        mwe_publish_take(s->conn, &item->publish[i], &from->publish[i]);
}

void mwe_settle(mw_sub *s, const mw_settlement *list, size_t count) {
    while (count) {
        size_t n = count < ITEMS_PER_OP ? count : ITEMS_PER_OP;
        settle_op *o = mwe_alloc(sizeof *o + n * sizeof *o->items);
        o->op.kind = &SETTLE;
        o->op.count = (uint32_t)n;
        o->sub = s;
        o->channel = s->channel;
        o->consumer = s->id;
        o->group_id = s->group_id;
        for (size_t i = 0; i < n; i++) take_settlement(s, &o->items[i], &list[i]);
        mwe_submit(s->conn, &o->op);
        list += n;
        count -= n;
    }
}

/* ---- unpark, release_key, promote ---- */

/* It is tried until it succeeds: while the store cannot be written its subscription may have ended. */
static mw_sub *sub_of(const lane_op *l) {
    mw_sub *s = l->op.conn->subs;
    while (s && s->id != l->consumer) s = s->next;
    return s;
}

static void finish_unpark(mwe_op *op) {
    lane_op *l = (lane_op *)op;
    mw_sub *s = sub_of(l);
    if (s && op->rc == 0) mwe_lane_back(s, l->lane, &l->unparked);
    if (s) mwe_lane_moved(s, mwe_lane_hash(s, l->lane));
    free(l->unparked);
    free(l);
}

static void finish_release(mwe_op *op) { free(op); }

/* A lane is its owner's: whoever gets the slot unparks what has no mark. */
static int apply_unpark(mwe_txn *t, mwe_op *op, uint32_t i) {
    (void)i;
    lane_op *l = (lane_op *)op;
    mwe_tchannel *c;
    mwe_tgroup *g;
    free(l->unparked); /* of a try that failed */
    l->unparked = NULL;
    int rc = mwe_txn_open(t, l->channel, l->group_id, &c, &g);
    if (rc) return rc == MW_EFORMAT ? 0 : rc;
    if (g->owners.slot[(uint32_t)l->lane % g->row.slots].consumer != l->consumer) return 0;
    return mwe_lane_unpark(t, c, g, l->lane, &l->unparked);
}

static int apply_release(mwe_txn *t, mwe_op *op, uint32_t i) {
    (void)i;
    lane_op *l = (lane_op *)op;
    mwe_tchannel *c;
    int rc = mwe_txn_channel(t, l->channel, false, &c);
    if (!rc && c) rc = mwe_txn_groups(t, c);
    if (rc || !c) return rc == MW_EFORMAT ? 0 : rc;
    mwe_tgroup *g = mwe_txn_group_named(c, l->group, l->group_len);
    if (!g) return 0;
    if (!(rc = mwe_txn_owners(t, c, g))) rc = mwe_lane_mark(t, c, g, l->lane, MW_MARK_NONE);
    if (!rc) rc = mwe_lane_unpark(t, c, g, l->lane, NULL);
    c->news = true; /* consumers see that the marks changed, and look again */
    return rc;
}

/* Moves what is due in our slots; others do theirs. */
static int apply_promote(mwe_txn *t, mwe_op *op, uint32_t i) {
    (void)i;
    lane_op *l = (lane_op *)op;
    mwe_tchannel *c;
    mwe_tgroup *g;
    l->due_count = 0;
    int rc = mwe_txn_open(t, l->channel, l->group_id, &c, &g);
    if (rc) return rc == MW_EFORMAT ? 0 : rc;
    mwe_key k;
    MDB_val *prefix = mwe_key_group(&k, c->row.id, g->row.id), key = *prefix, value;
    MDB_cursor *at = mwe_cursor(t, MWE_DUE);
    if (!at) return ENOMEM;
    rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, prefix); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        uint8_t priority;
        uint64_t seq;
        mwe_waiting w;
        if (!mwe_read_place(&key, MWE_SORTED_KEY, &priority, &seq) || !mwe_read_waiting(&value, &w)) continue;
        if ((int64_t)mwe_get64((const char *)key.mv_data + MWE_GROUP_KEY) > t->now) break;
        if (g->owners.slot[w.hash % g->row.slots].consumer != l->consumer) continue;
        if (l->due_count == DUE_MOST) break; /* the next fetch sees that there is more */
        w.not_before = 0;
        if ((rc = mwe_del_here(t, MWE_DUE))) return rc;
        g->row.due -= g->row.due > 0;
        if ((rc = mwe_wait_put(t, c, g, priority, seq, &w, 0))) return rc;
        if (!l->due) l->due = mwe_alloc(DUE_MOST * sizeof *l->due);
        l->due[l->due_count++] = (mwe_place){seq, priority};
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static void finish_promote(mwe_op *op) {
    lane_op *l = (lane_op *)op;
    l->sub->promoting = false;
    for (uint32_t i = 0; op->rc == 0 && i < l->due_count; i++) mwe_fetch_back(l->sub, &l->due[i]);
    mwe_fetch_soon(l->sub);
    free(l->due);
    free(l);
}

static const mwe_op_kind UNPARK = {apply_unpark, finish_unpark, MWE_TRY_ALWAYS},
                         RELEASE = {apply_release, finish_release, MWE_TRY_ALWAYS},
                         PROMOTE = {apply_promote, finish_promote, MWE_TRY_ONCE};

static void submit_lane(mw_conn *c, mw_sub *s, mwe_channel *channel, const char *group, uint64_t lane,
                        const mwe_op_kind *kind) {
    size_t len = group ? strlen(group) : 0;
    lane_op *l = mwe_alloc(sizeof *l + len + 1);
    l->op.kind = kind;
    l->op.count = 1;
    l->sub = s;
    l->channel = channel;
    l->lane = lane;
    l->consumer = s ? s->id : 0;
    l->group_id = s ? s->group_id : 0;
    l->group_len = len;
    if (len) memcpy(l->group, group, len);
    mwe_submit(c, &l->op);
}

void mwe_unpark(mw_sub *s, uint64_t lane) {
    if (s->state != MWE_RUNNING) return;
    mwe_lane_moves(s, mwe_lane_hash(s, lane));
    submit_lane(s->conn, s, s->channel, NULL, lane, &UNPARK);
}

void mwe_promote(mw_sub *s) {
    if (s->promoting || s->state != MWE_RUNNING) return;
    s->promoting = true;
    submit_lane(s->conn, s, s->channel, NULL, 0, &PROMOTE);
}

void mwe_release_key(mw_conn *c, const char *channel, const char *group, uint64_t lane) {
    mwe_channel *named = mwe_channel_named(c->store, channel);
    if (named && group && *group) submit_lane(c, NULL, named, group, lane, &RELEASE);
}
