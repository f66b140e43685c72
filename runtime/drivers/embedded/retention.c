/* retention.c - what goes by itself: messages a channel keeps after they were handled (by age, by count),
 * expired dedupe rows, dead workers, readers that crashed. A sweep is one operation of the writer about once
 * a second, bounded; a long walk goes on in the next one. Messages that a group still wants are never swept;
 * in a channel without groups the limits apply to all. */
#include <errno.h>
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum { WALK = 4096 };

typedef struct sweep_op {
    mwe_op op; /* the last item sweeps what belongs to no channel */
    mwe_channel *channels[];
} sweep_op;

typedef struct declare_op {
    mwe_op op;
    mwe_channel *channel;
    mw_channel_options options;
} declare_op;

/* ---- the writer's side ---- */

/* Whether a message is past the limits: there are more than enough behind it, or it is too old. */
static bool past(const mwe_txn *t, const mwe_tchannel *c, const MDB_val *value) {
    const mwe_channel_row *row = &c->row;
    mwe_record r;
    if (!row->retain_age_ms && !row->retain_count) return true;
    uint64_t left =
        row->messages - (row->messages < c->channel->sweep_kept ? row->messages : c->channel->sweep_kept);
    if (row->retain_count && left > row->retain_count) return true;
    if (!row->retain_age_ms || value->mv_size < sizeof r) return false;
    memcpy(&r, value->mv_data, sizeof r);
    return r.time_ms < t->now - row->retain_age_ms;
}

static int sweep_one(mwe_txn *t, mwe_tchannel *c, uint64_t seq) {
    uint32_t refs = 0;
    int rc = c->row.groups ? mwe_refs_get(t, c, seq, &refs) : 0;
    if (rc) return rc;
    if (refs == 0) return mwe_message_drop(t, c, seq);
    c->channel->sweep_kept++;
    return 0;
}

static int sweep_channel(mwe_txn *t, mwe_channel *channel) {
    mwe_tchannel *c;
    mwe_key prefix, from;
    MDB_val key, value;
    int rc = mwe_txn_channel(t, channel, false, &c), walk = WALK;
    if (rc || !c) return rc == MW_EFORMAT ? 0 : rc;
    bool kept = c->row.retain_age_ms || c->row.retain_count;
    if (!kept && (c->row.groups == 0 || c->row.refs == 0)) return 0;
    MDB_val *range = mwe_key_channel(&prefix, c->row.id);
    MDB_cursor *at = mwe_cursor(t, MWE_MESSAGES);
    if (!at) return ENOMEM;
    key = *mwe_key_message(&from, c->row.id, channel->sweep_from);
    rc = mdb_cursor_get(at, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, range); rc = mdb_cursor_get(at, &key, &value, MDB_NEXT)) {
        if (key.mv_size != 12 || !past(t, c, &value)) break;
        uint64_t seq = mwe_get64((const char *)key.mv_data + 4);
        if (walk-- == 0) {
            channel->sweep_from = seq;
            return 0;
        }
        if ((rc = sweep_one(t, c, seq))) return rc;
    }
    channel->sweep_from = channel->sweep_kept = 0;
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int apply_sweep(mwe_txn *t, mwe_op *op, uint32_t i) {
    sweep_op *s = (sweep_op *)op;
    if (i + 1 < op->count) return sweep_channel(t, s->channels[i]);
    int dead;
    mdb_reader_check(t->store->env, &dead);
    int rc = mwe_workers_sweep(t);
    return rc ? rc : mwe_dedupe_sweep(t);
}

static int apply_declare(mwe_txn *t, mwe_op *op, uint32_t i) {
    (void)i;
    declare_op *d = (declare_op *)op;
    mwe_tchannel *c;
    int rc = mwe_txn_channel(t, d->channel, true, &c);
    if (rc) return rc == MW_EFORMAT ? 0 : rc;
    if (c->row.retain_age_ms == d->options.retain_age_ms && c->row.retain_count == d->options.retain_count)
        return 0;
    c->row.retain_age_ms = d->options.retain_age_ms;
    c->row.retain_count = d->options.retain_count;
    c->dirty = true;
    atomic_store(&d->channel->kept, true);
    return 0;
}

/* ---- the loop's side ---- */

static void finish_sweep(mwe_op *op) {
    op->conn->sweeping = false;
    free(op);
}

static void finish_declare(mwe_op *op) { free(op); }

static const mwe_op_kind SWEEP = {apply_sweep, finish_sweep, MWE_TRY_ONCE},
                         DECLARE = {apply_declare, finish_declare, MWE_TRY_ALWAYS};

void mwe_sweep(mw_conn *c) {
    if (c->sweeping) return;
    c->sweeping = true;
    mwe_store *store = c->store;
    size_t count = 0;
    pthread_mutex_lock(&store->lock);
    for (mwe_channel *at = store->all_channels; at; at = at->older) count += atomic_load(&at->kept);
    sweep_op *s = mwe_alloc(sizeof *s + count * sizeof *s->channels);
    for (mwe_channel *at = store->all_channels; at; at = at->older)
        if (atomic_load(&at->kept) && s->op.count < count) s->channels[s->op.count++] = at;
    pthread_mutex_unlock(&store->lock);
    s->op.count++;
    s->op.kind = &SWEEP;
    mwe_submit(c, &s->op);
}

int mwe_declare(mw_conn *c, const char *channel, const mw_channel_options *o, mw_error *e) {
    mwe_channel *named = mwe_channel_named(c->store, channel);
    if (!named) {
        mwe_store_error(c->store, MW_EUSAGE, e);
        return -1;
    }
    if (o->retain_age_ms < 0)
        return mw_fail(e, MW_EUSAGE, false, "channel %s: the age to keep messages cannot be negative",
                       channel);
    declare_op *d = mwe_alloc(sizeof *d);
    d->op.kind = &DECLARE;
    d->op.count = 1;
    d->channel = named;
    d->options = *o;
    mwe_submit(c, &d->op);
    return 0;
}
