/* publish.c - publications: taken over on the loop's thread, written by the writer. A channel exists from its
 * first publication on. Each of its groups gets a row in ready, or in due when the message is delayed; a
 * channel without groups just keeps the message until the first group comes. */
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum { ITEMS_PER_OP = 1024 };

typedef struct publish_op {
    mwe_op op;
    mwe_publish items[];
} publish_op;

/* ---- the loop's side ---- */

void mwe_publish_take(mw_conn *c, mwe_publish *out, const mw_publication *from) {
    mwe_channel *last = c->last_channel;
    if (!last || !from->channel || strcmp(last->name, from->channel) != 0)
        last = mwe_channel_named(c->store, from->channel);
    if (last) c->last_channel = last;
    int64_t due = from->delay_ms > 0 ? mw_loop_wall_ms(c->loop) + from->delay_ms : 0;
    *out = (mwe_publish){.channel = last, .msg = from->msg, .due_ms = due, .cookie = from->cookie};
}

static void finish(mwe_op *op) {
    publish_op *p = (publish_op *)op;
    mw_conn *c = op->conn;
    mw_error e;
    int last = 0;
    for (uint32_t i = 0; i < op->count; i++) {
        int code = mwe_code(op, i, p->items[i].code);
        if (code && code != last) mwe_store_error(c->store, last = code, &e);
        c->host->published(c->link, p->items[i].cookie, code ? &e : NULL);
    }
    free(p);
}

static int apply(mwe_txn *t, mwe_op *op, uint32_t i) {
    mwe_publish *item = &((publish_op *)op)->items[i];
    return mwe_publish_apply(t, item, 1, 0, &item->code);
}

static const mwe_op_kind PUBLISH = {apply, finish, MWE_TRY_ONCE};

void mwe_publish_list(mw_conn *c, const mw_publication *list, size_t count) {
    while (count) {
        size_t n = count < ITEMS_PER_OP ? count : ITEMS_PER_OP;
        publish_op *p = mwe_alloc(sizeof *p + n * sizeof *p->items);
        p->op.kind = &PUBLISH;
        p->op.count = (uint32_t)n;
        for (size_t i = 0; i < n; i++) mwe_publish_take(c, &p->items[i], &list[i]);
        mwe_submit(c, &p->op);
        list += n;
        count -= n;
    }
}

/* ---- the writer's side ---- */

static int ask_for_room(mwe_txn *t, mwe_publish *list, size_t count, int64_t freed, int *code) {
    int64_t need = 0;
    for (size_t i = 0; i < count; i++) {
        mw_parts p;
        if (!list[i].channel) {
            *code = MW_EUSAGE;
            return 0;
        }
        mwe_tchannel *c;
        int rc = mwe_txn_channel(t, list[i].channel, false, &c);
        if (!rc && c) rc = mwe_txn_groups(t, c);
        if (rc) return rc;
        mw_message_parts(list[i].msg, &p);
        mwe_record r = mwe_record_of(&p, 0, 0);
        need += mwe_room_cost(t, mwe_record_size(&r), c);
    }
    return mwe_room_take(t, need, freed, code);
}

int mwe_wait_put(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint8_t priority, uint64_t seq, mwe_waiting *w,
                 int64_t due_ms) {
    mwe_key k;
    bool later = due_ms > t->now;
    MDB_val *key = later ? mwe_key_sorted(&k, c->row.id, g->row.id, (uint64_t)due_ms, priority, seq)
                         : mwe_key_ready(&k, c->row.id, g->row.id, priority, seq);
    MDB_val value = mwe_write_waiting(w);
    int rc = mwe_put(t, later ? MWE_DUE : MWE_READY, key, &value, 0);
    if (rc) return rc;
    ++*(later ? &g->row.due : &g->row.ready);
    g->dirty = c->news = true;
    return 0;
}

static int publish_one(mwe_txn *t, const mwe_publish *item) {
    mwe_tchannel *c;
    mw_parts p;
    int rc = mwe_txn_channel(t, item->channel, true, &c);
    if (!rc) rc = mwe_txn_groups(t, c);
    if (rc) return rc;
    mw_message_parts(item->msg, &p);
    if (p.priority > MW_PRIORITY_MAX) p.priority = MW_PRIORITY_MAX;
    uint64_t seq = c->row.next_seq++;
    c->dirty = true;
    if ((rc = mwe_record_put(t, c->row.id, seq, &p, item->due_ms))) return rc;
    c->row.messages++;
    mwe_waiting w = {.hash = mwe_record_hash(&p, seq)};
    for (size_t i = 0; i < c->group_count; i++)
        if ((rc = mwe_wait_put(t, c, c->groups[i], p.priority, seq, &w, item->due_ms))) return rc;
    c->news = true; /* somebody may watch a channel without groups, too */
    return c->group_count > 1 ? mwe_refs_set(t, c, seq, (uint32_t)c->group_count) : 0;
}

int mwe_publish_apply(mwe_txn *t, mwe_publish *list, size_t count, int64_t freed, int *code) {
    *code = 0;
    int rc = count ? ask_for_room(t, list, count, freed, code) : 0;
    if (rc == MW_EFORMAT) {
        *code = rc;
        return 0;
    }
    for (size_t i = 0; i < count && !rc && !*code; i++) rc = publish_one(t, &list[i]);
    return rc;
}
