/* slots.c - subscriptions, and who owns which slot of a group.
 *
 * A group's messages are spread over slots by the hash of their key; each slot has one owner at a time, a
 * consumer (one subscription of one process). Owners stand in one row per group. Every consumer looks about
 * once a second (and when that row changes): the live ones, sorted by id, share the slots evenly; each takes
 * what is its share and free, or owned by the dead, with a new epoch; and gives up what is another's share as
 * soon as nothing of it is in flight. Each settlement checks owner and epoch in its own transaction, so a
 * consumer that was stopped for longer than its lease cannot settle what others have by now. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum { BEAT_MOST_MS = 1000, BEAT_LEAST_MS = 20, LEASE_LEAST_MS = 100, CONSUMERS_MOST = 4096 };

typedef struct beat_op {
    mwe_op op;
    mw_sub *sub;
    mwe_channel *channel;
    uint64_t consumer, give; /* slots given up, as bits */
    int64_t lease_ms;
    uint32_t group_id, slots, channel_id;
    bool join, leave, from_start;
    uint64_t leaving; /* out: owned, and another's share */
    int code;         /* out */
    size_t group_len;
    char group[];
} beat_op;

typedef struct party { /* the consumers of a group */
    struct member {
        uint64_t id, worker;
        mwe_life life;
    } member[CONSUMERS_MOST];
    size_t count, live, rank;
} party;

/* ---- the writer's side ---- */

static int by_id(const void *a, const void *b) {
    uint64_t x = ((const struct member *)a)->id, y = ((const struct member *)b)->id;
    return x < y ? -1 : x > y;
}

static int read_party(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, party *p) {
    mwe_key prefix;
    MDB_val *group = mwe_key_group(&prefix, c->row.id, g->row.id), key = *group, value;
    MDB_cursor *at = mwe_cursor(t, MWE_CONSUMERS);
    if (!at) return ENOMEM;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, group); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        mwe_consumer_row row;
        if (key.mv_size != MWE_GROUP_KEY + 8 || !mwe_read_row(&value, &row, sizeof row)) continue;
        if (p->count == CONSUMERS_MOST) break;
        struct member *m = &p->member[p->count++];
        m->id = mwe_get64((const char *)key.mv_data + MWE_GROUP_KEY);
        m->worker = row.worker;
        m->life = mwe_worker_look(t, row.worker, row.lease_ms);
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* The dead leave the group; what they were handling counts as an attempt. */
static int bury_dead(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, party *p) {
    mwe_key k;
    for (size_t i = 0; i < p->count; i++) {
        if (p->member[i].life != MWE_DEAD) continue;
        int rc = mwe_worker_bury(t, p->member[i].worker);
        if (!rc) rc = mwe_del(t, MWE_CONSUMERS, mwe_key_in_group(&k, c->row.id, g->row.id, p->member[i].id));
        if (rc && rc != MDB_NOTFOUND) return rc;
    }
    return 0;
}

static const struct member *find_member(const party *p, uint64_t id) {
    for (size_t i = 0; i < p->count; i++)
        if (p->member[i].id == id) return &p->member[i];
    return NULL;
}

static void rank_live(party *p, uint64_t me) {
    qsort(p->member, p->count, sizeof *p->member, by_id);
    p->live = 0;
    for (size_t i = 0; i < p->count; i++) {
        if (p->member[i].life != MWE_ALIVE && p->member[i].id != me) continue;
        if (p->member[i].id == me) p->rank = p->live;
        p->live++;
    }
}

static bool is_live(const party *p, uint64_t id) {
    const struct member *m = find_member(p, id);
    return m && m->life == MWE_ALIVE;
}

/* What a silent consumer was handling in the slots taken from it counts as an attempt as well. */
static int blame_silent(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, const party *p, const mwe_owner *before,
                        uint64_t taken) {
    for (size_t i = 0; i < p->count; i++) {
        if (p->member[i].life != MWE_SILENT) continue;
        uint64_t its = 0;
        for (uint32_t s = 0; s < g->row.slots; s++)
            if (taken >> s & 1 && before[s].consumer == p->member[i].id) its |= 1ull << s;
        int rc = its ? mwe_worker_blame(t, p->member[i].worker, c->row.id, g->row.id, g->row.slots, its) : 0;
        if (rc) return rc;
    }
    return 0;
}

static int share_out(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, const party *p, beat_op *b) {
    mwe_owner before[MWE_SLOTS];
    uint64_t taken = 0;
    memcpy(before, g->owners.slot, sizeof before);
    b->leaving = 0;
    for (uint32_t s = 0; s < g->row.slots; s++) {
        mwe_owner *o = &g->owners.slot[s];
        bool free_slot = !o->consumer || (o->consumer != b->consumer && !is_live(p, o->consumer));
        /* a single slot stays where it is: moving it gains nothing */
        bool share = g->row.slots == 1 ? free_slot || o->consumer == b->consumer : s % p->live == p->rank;
        if (o->consumer == b->consumer && !share) {
            if (!(b->give >> s & 1)) {
                b->leaving |= 1ull << s;
                continue;
            }
            o->consumer = 0;
            g->owners_dirty = c->news = true;
        } else if (share && free_slot) {
            *o = (mwe_owner){.consumer = b->consumer, .epoch = o->epoch + 1};
            taken |= 1ull << s;
            g->owners_dirty = c->news = true;
        }
    }
    int rc = blame_silent(t, c, g, p, before, taken);
    return rc || !taken ? rc : mwe_lanes_adopt(t, c, g, taken);
}

static int leave_group(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, const beat_op *b) {
    mwe_key k;
    for (uint32_t s = 0; s < g->row.slots; s++)
        if (g->owners.slot[s].consumer == b->consumer) {
            g->owners.slot[s].consumer = 0;
            g->owners_dirty = c->news = true;
        }
    int rc = mwe_del(t, MWE_CONSUMERS, mwe_key_in_group(&k, c->row.id, g->row.id, b->consumer));
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* Our own row is put back when it is missing: somebody took us for dead. */
static int take_part(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, beat_op *b) {
    party *p = mwe_alloc(sizeof *p);
    int rc = read_party(t, c, g, p);
    if (!rc) rc = bury_dead(t, c, g, p);
    if (!rc && !find_member(p, b->consumer)) {
        mwe_key k;
        mwe_consumer_row row = {mwe_worker_id(t->store->worker), b->lease_ms};
        MDB_val value = {sizeof row, &row};
        rc = mwe_put(t, MWE_CONSUMERS, mwe_key_in_group(&k, c->row.id, g->row.id, b->consumer), &value, 0);
        if (p->count < CONSUMERS_MOST)
            p->member[p->count++] = (struct member){b->consumer, row.worker, MWE_ALIVE};
    }
    rank_live(p, b->consumer);
    if (!rc && g->row.slots != b->slots) {
        if (p->live > 1 || !b->join) {
            b->code = MW_EUSAGE;
            rc = leave_group(t, c, g, b);
            goto out;
        }
        g->row.slots = b->slots; /* rows carry the hash, not the slot: nothing else changes */
        for (int s = 0; s < MWE_SLOTS; s++)
            g->owners.slot[s] = (mwe_owner){.epoch = g->owners.slot[s].epoch + 1};
        g->dirty = g->owners_dirty = true;
    }
    if (!rc) rc = share_out(t, c, g, p, b);
out:
    free(p);
    return rc;
}

/* From the row where its key is there, else from the whole message. */
static bool hash_of(mwe_txn *t, mwe_tchannel *c, uint64_t seq, const MDB_val *row, uint32_t *hash) {
    mw_parts p;
    int64_t due;
    mw_message *m = NULL;
    if (!mwe_record_parts(row, &p, &due)) {
        if (!(m = mwe_record_message(t->store, t->mdb, c->row.id, seq, row, &due))) return false;
        mw_message_parts(m, &p);
    }
    *hash = mwe_record_hash(&p, seq);
    mw_message_unref(m);
    return true;
}

/* A new group begins with the oldest message: a row for each, and one more group that wants it. */
static int give_all(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g) {
    mwe_key prefix;
    MDB_val *channel = mwe_key_channel(&prefix, c->row.id), key = *channel, value;
    MDB_cursor *at = mwe_cursor(t, MWE_MESSAGES);
    if (!at) return ENOMEM;
    bool first = c->row.groups == 1;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, channel); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        mwe_record r;
        uint32_t refs = 0;
        if (key.mv_size != 12 || !mwe_record_head(&value, &r)) continue;
        uint64_t seq = mwe_get64((const char *)key.mv_data + 4);
        mwe_waiting w = {0};
        if (!hash_of(t, c, seq, &value, &w.hash)) continue;
        int put = mwe_wait_put(t, c, g, r.priority, seq, &w, r.due_ms);
        if (!put && !first) put = mwe_refs_get(t, c, seq, &refs);
        if (!put && (!first || c->row.refs)) put = mwe_refs_set(t, c, seq, refs + 1);
        if (put) return put;
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int find_group(mwe_txn *t, beat_op *b, mwe_tchannel **c, mwe_tgroup **g) {
    int rc = mwe_txn_channel(t, b->channel, b->join, c);
    if (!rc && *c) rc = mwe_txn_groups(t, *c);
    if (rc || !*c) return rc;
    *g = mwe_txn_group_named(*c, b->group, b->group_len);
    if (*g || !b->join) return *g ? mwe_txn_owners(t, *c, *g) : 0;
    if ((rc = mwe_txn_group_new(t, *c, b->group, b->group_len, b->slots, g))) return rc;
    if ((*c)->row.groups == 1) (*c)->row.owned_from = b->from_start ? 0 : (*c)->row.next_seq;
    return b->from_start ? give_all(t, *c, *g) : 0;
}

static int apply(mwe_txn *t, mwe_op *op, uint32_t i) {
    (void)i;
    beat_op *b = (beat_op *)op;
    mwe_tchannel *c = NULL;
    mwe_tgroup *g = NULL;
    b->code = 0;
    int rc = find_group(t, b, &c, &g);
    if (rc && rc != MW_EFORMAT) return rc;
    if (rc || !g) {
        b->code = rc ? rc : MWE_GONE;
        return 0;
    }
    b->channel_id = c->row.id;
    b->group_id = g->row.id;
    return b->leave ? leave_group(t, c, g, b) : take_part(t, c, g, b);
}

/* ---- the loop's side ---- */

static void finish_beat(mwe_op *op);
static void finish_leave(mwe_op *op);
static const mwe_op_kind BEAT = {apply, finish_beat, MWE_TRY_ONCE},
                         LEAVE = {apply, finish_leave, MWE_TRY_SOME};

static beat_op *new_beat(mw_sub *s, const mwe_op_kind *kind) {
    beat_op *b = mwe_alloc(sizeof *b + s->group_len + 1);
    b->op.kind = kind;
    b->op.count = 1;
    b->sub = s;
    b->channel = s->channel;
    b->consumer = s->id;
    b->lease_ms = s->lease_ms;
    b->slots = s->slots;
    b->join = s->state == MWE_JOINING;
    b->from_start = s->from_start;
    b->group_len = s->group_len;
    memcpy(b->group, s->group, s->group_len);
    return b;
}

void mwe_beat_soon(mw_sub *s) {
    if (s->beating || s->state == MWE_LEAVING) return;
    s->beating = true;
    beat_op *b = new_beat(s, &BEAT);
    for (uint32_t i = 0; i < s->slots; i++)
        if (s->slot[i].leaving && !s->slot[i].in_flight) b->give |= 1ull << i;
    mwe_submit(s->conn, &b->op);
}

static void beat_fired(mw_timer *t) { mwe_beat_soon(mw_container_of(t, mw_sub, beat)); }

static void beat_again(mw_sub *s) {
    int64_t ms = s->lease_ms / 6;
    ms = ms > BEAT_MOST_MS ? BEAT_MOST_MS : ms < BEAT_LEAST_MS ? BEAT_LEAST_MS : ms;
    mw_timer_start(s->conn->loop, &s->beat, ms, beat_fired);
}

void mwe_leave_slots(mw_sub *s) {
    for (uint32_t i = 0; i < s->slots; i++)
        if (s->slot[i].mine && s->slot[i].leaving && !s->slot[i].in_flight) {
            mwe_beat_soon(s);
            return;
        }
}

static void note_leaving(mw_sub *s, uint64_t leaving) {
    for (uint32_t i = 0; i < s->slots; i++) {
        bool now = leaving >> i & 1;
        if (s->slot[i].leaving && !now && s->slot[i].mine) mwe_fetch_rewind(s); /* it was passed by */
        s->slot[i].leaving = now;
    }
}

/* Says once that the store cannot be written, and once that it can again. */
static void tell_state(mw_sub *s, int code) {
    mw_conn *c = s->conn;
    mw_error e;
    if (s->down == (code != 0)) return;
    s->down = code != 0;
    if (code) mwe_store_error(c->store, code, &e);
    if (code == MW_EUSAGE)
        mw_fail(&e, code, true, "group %s of %s is consumed with another order by others", s->group,
                s->channel->name);
    c->host->state(c->link, !s->down, code ? &e : NULL);
}

/* Somebody removed the group from outside: what we have of it is not ours any more, and we begin anew. */
static void begin_anew(mw_sub *s) {
    const mw_host *host = s->conn->host;
    const mwe_owners none = {0};
    uint64_t fenced = mwe_owners_read(s, &none), lane;
    s->state = MWE_JOINING;
    for (uint32_t slot = 0; slot < s->slots; slot++)
        if (fenced >> slot & 1) host->fence(s->source, slot);
    mw_map marks = s->marks;
    s->marks = (mw_map){0};
    for (uint32_t at = 0; mw_map_next(&marks, &at, &lane);) host->mark(s->source, lane, MW_MARK_NONE);
    mw_map_free(&marks);
    mwe_fetch_rewind(s);
}

static void finish_beat(mwe_op *op) {
    beat_op *b = (beat_op *)op;
    mw_sub *s = b->sub;
    int code = mwe_code(op, 0, b->code);
    s->beating = false;
    if (code == MWE_GONE) {
        code = 0;
        if (s->state == MWE_RUNNING) begin_anew(s);
        b->channel_id = 0;
    }
    if (code == 0 && s->state == MWE_JOINING && b->channel_id) {
        s->channel_id = b->channel_id;
        s->group_id = b->group_id;
        s->state = MWE_RUNNING;
    }
    if (s->state != MWE_LEAVING) tell_state(s, code);
    if (code == 0 && s->state == MWE_RUNNING) {
        note_leaving(s, b->leaving);
        mwe_leave_slots(s);
    }
    free(b);
    if (s->state == MWE_LEAVING) return;
    beat_again(s);
    mwe_fetch_soon(s);
}

/* Forgets what is in flight in these slots. Gathered first: removing moves entries of the map. */
static void drop_flights(mw_sub *s, uint64_t slots) {
    mwe_flight **lost = mwe_alloc((s->flights.count + 1) * sizeof(void *)), *f;
    size_t count = 0;
    uint64_t seq;
    for (uint32_t at = 0; (f = mw_map_next(&s->flights, &at, &seq));)
        if (slots >> f->slot & 1) lost[count++] = f;
    while (count) mwe_flight_end(s, lost[--count]);
    free(lost);
}

uint64_t mwe_owners_read(mw_sub *s, const mwe_owners *now) {
    uint64_t fenced = 0;
    bool changed = false;
    for (uint32_t i = 0; i < s->slots; i++) {
        bool same = now->slot[i].consumer == s->id && now->slot[i].epoch == s->slot[i].epoch;
        if (s->slot[i].mine && s->slot[i].in_flight && !same) fenced |= 1ull << i;
    }
    if (fenced) drop_flights(s, fenced);
    for (uint32_t i = 0; i < s->slots; i++) {
        mwe_slot *slot = &s->slot[i];
        const mwe_owner *o = &now->slot[i];
        bool mine = o->consumer == s->id;
        if (mine == slot->mine && (!mine || o->epoch == slot->epoch)) continue;
        changed = true;
        *slot = (mwe_slot){.mine = mine, .epoch = o->epoch};
        if (mine) mwe_fetch_rewind(s);
    }
    /* somebody else came or went: look whether that leaves something for us */
    if (!changed && memcmp(now->slot, s->owners.slot, sizeof now->slot) != 0) mwe_beat_soon(s);
    s->owners = *now;
    return fenced;
}

uint32_t mwe_living(mw_conn *c, uint32_t channel, uint32_t group) {
    mwe_txn scratch = {.store = c->store, .now = mwe_wall_ms()};
    mwe_key prefix;
    MDB_cursor *at;
    MDB_val *start = mwe_key_group(&prefix, channel, group), key = *start, value;
    uint32_t living = 0;
    if (mdb_cursor_open(c->reader, c->store->table[MWE_CONSUMERS], &at)) return 0;
    int rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, start); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        mwe_consumer_row row;
        if (mwe_read_row(&value, &row, sizeof row))
            living += mwe_worker_look(&scratch, row.worker, row.lease_ms) == MWE_ALIVE;
    }
    mdb_cursor_close(at);
    mwe_workers_done(&scratch, false);
    return living;
}

/* What can be said at once: whether others consume this group with another order now. */
static int check_group(mw_conn *c, const mw_subscription *want, uint32_t slots, mw_error *e) {
    MDB_val key = {strlen(want->channel), (void *)want->channel}, value;
    mwe_channel_row channel;
    mwe_group_row group;
    mwe_key k;
    int rc = mwe_read_begin(c->store, &c->reader);
    if (rc) {
        mwe_store_error(c->store, rc, e);
        return -1;
    }
    const MDB_dbi *table = c->store->table;
    bool other = mdb_get(c->reader, table[MWE_CHANNELS], &key, &value) == 0 &&
                 mwe_read_row(&value, &channel, sizeof channel) &&
                 mdb_get(c->reader, table[MWE_GROUPS],
                         mwe_key_name(&k, channel.id, want->group, strlen(want->group)), &value) == 0 &&
                 mwe_read_row(&value, &group, sizeof group) && group.slots != slots &&
                 mwe_living(c, channel.id, group.id);
    mwe_read_end(c->store, c->reader);
    if (!other) return 0;
    return mw_fail(e, MW_EUSAGE, false,
                   "group %s of %s is being consumed with another order: stop its other consumers first",
                   want->group, want->channel);
}

mw_sub *mwe_subscribe(mw_conn *c, const mw_subscription *want, mw_error *e) {
    size_t len = want->group ? strlen(want->group) : 0;
    mwe_channel *channel = mwe_channel_named(c->store, want->channel);
    uint32_t slots = want->order == MW_ORDER_SOURCE || want->own_key ? 1 : MWE_SLOTS;
    if (!channel || len == 0 || len > MWE_NAME_MAX) {
        mwe_store_error(c->store, MW_EUSAGE, e);
        return NULL;
    }
    if (check_group(c, want, slots, e)) return NULL;
    mw_sub *s = mwe_alloc(sizeof *s + len + 1);
    s->conn = c;
    s->source = want->source;
    s->channel = channel;
    s->slots = slots;
    s->one_lane = want->order == MW_ORDER_SOURCE;
    s->from_start = want->from_start;
    s->lease_ms = want->lease_ms > LEASE_LEAST_MS ? want->lease_ms : LEASE_LEAST_MS;
    s->id = mwe_random();
    s->group_len = len;
    memcpy(s->group, want->group, len);
    s->next = c->subs;
    c->subs = s;
    mwe_beat_soon(s);
    return s;
}

void mwe_unsubscribe(mw_sub *s) {
    if (s->state == MWE_LEAVING) return;
    s->state = MWE_LEAVING;
    mw_timer_stop(&s->beat);
    mw_timer_stop(&s->due);
    mw_deferred_cancel(s->conn->loop, &s->fetch);
    beat_op *b = new_beat(s, &LEAVE);
    b->leave = true;
    mwe_submit(s->conn, &b->op);
}

static void finish_leave(mwe_op *op) {
    mw_sub *s = ((beat_op *)op)->sub, **at = &op->conn->subs;
    const mw_host *host = op->conn->host;
    mw_source *source = s->source;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    drop_flights(s, UINT64_MAX); /* the core settled all; what it did not is forgotten */
    free(s->spare);
    mw_map_free(&s->flights);
    mw_map_free(&s->marks);
    mw_map_free(&s->unreadable);
    mwe_lanes_free(s);
    free(s->back);
    free(s);
    free(op);
    host->closed(source);
}
