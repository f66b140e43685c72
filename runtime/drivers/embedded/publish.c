/* publish.c - publications: taken over on the loop's thread, written by the writer. A channel exists from its
 * first publication on. Each of its groups gets a row in ready, or in due when the message is delayed; a
 * channel without groups just keeps the message until the first group comes. */
#include <stdlib.h>

#include "drivers/embedded/embedded.h"

enum {
    ITEMS_PER_OP = 1024,
    ROW_COST = 160,      /* what a message costs beside its bytes: index rows, page heads, half-full pages */
    GROUP_COST = 64,     /* and again per group */
    OVERFLOW_FROM = 1900 /* larger rows get pages of their own */
};

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
    return mwe_publish_apply(t, item, 1, &item->code);
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

static int64_t cost(const mwe_txn *t, size_t record, const mwe_tchannel *c) {
    int64_t page = t->store->page_size, index = ROW_COST + (int64_t)(c ? c->group_count : 0) * GROUP_COST;
    if (record < OVERFLOW_FROM) return ((int64_t)record + index) * 3 / 2;
    return ((int64_t)record + 16 + page - 1) / page * page + index;
}

static int check_room(mwe_txn *t, mwe_publish *list, size_t count, int *code) {
    MDB_envinfo info;
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
        need += cost(t, mwe_record_size(&p), c);
    }
    if (need <= t->bytes_left) {
        t->bytes_left -= need;
        return 0;
    }
    mdb_env_info(t->store->env, &info);
    *code = need > (int64_t)(info.me_mapsize - info.me_mapsize / 8) ? MWE_TOO_LARGE : t->full;
    return 0;
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

/* Appending fills pages to the brim and searches nothing, but the key must be the table's last; LMDB says so
 * when it is not. */
static int put_record(mwe_txn *t, MDB_val *key, const mw_parts *p, int64_t due_ms) {
    MDB_val value = {mwe_record_size(p), NULL};
    int rc = mwe_put(t, MWE_MESSAGES, key, &value, MDB_RESERVE | MDB_APPEND);
    if (rc == MDB_KEYEXIST) {
        value = (MDB_val){mwe_record_size(p), NULL};
        rc = mwe_put(t, MWE_MESSAGES, key, &value, MDB_RESERVE);
    }
    if (rc) return rc;
    mwe_record_write(value.mv_data, p, p->time_ms ? p->time_ms : t->now, due_ms);
    t->bytes += value.mv_size;
    return 0;
}

static int publish_one(mwe_txn *t, const mwe_publish *item) {
    mwe_tchannel *c;
    mwe_key k;
    mw_parts p;
    int rc = mwe_txn_channel(t, item->channel, true, &c);
    if (!rc) rc = mwe_txn_groups(t, c);
    if (rc) return rc;
    mw_message_parts(item->msg, &p);
    if (p.priority > MW_PRIORITY_MAX) p.priority = MW_PRIORITY_MAX;
    uint64_t seq = c->row.next_seq++;
    c->dirty = true;
    if ((rc = put_record(t, mwe_key_message(&k, c->row.id, seq), &p, item->due_ms))) return rc;
    c->row.messages++;
    mwe_waiting w = {.hash = mwe_record_hash(&p, seq)};
    for (size_t i = 0; i < c->group_count; i++)
        if ((rc = mwe_wait_put(t, c, c->groups[i], p.priority, seq, &w, item->due_ms))) return rc;
    c->news = true; /* somebody may watch a channel without groups, too */
    return c->group_count > 1 ? mwe_refs_set(t, c, seq, (uint32_t)c->group_count) : 0;
}

int mwe_publish_apply(mwe_txn *t, mwe_publish *list, size_t count, int *code) {
    *code = t->refuse && count ? MW_EFULL : 0;
    int rc = *code ? 0 : check_room(t, list, count, code);
    if (rc == MW_EFORMAT) {
        *code = rc;
        return 0;
    }
    for (size_t i = 0; i < count && !rc && !*code; i++) rc = publish_one(t, &list[i]);
    return rc;
}
