/* settle.c - verdicts. Acks of a turn leave in one command; an ack with publications, or with a row to strike
 * out, is a script of its own; failures and what is given back are noted together. Each of them carries our
 * token, and the server refuses all of it when that is not the one on record. */
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/redis.h"

enum { ACKS_MOST = 1000, NOTES_MOST = 500, BEATS_MOST = 1000 };

typedef struct settled_one {
    void *cookie;
    uint64_t tag;
    mw_settle_op op;
    uint32_t attempt;
    int64_t delay_ms;
    bool hold;
} settled_one;

typedef struct settling { /* one command, and whom to tell */
    mw_sub *s;
    size_t count;
    settled_one list[];
} settling;

static settling *begin_batch(mw_sub *s, size_t count) {
    settling *x = malloc(sizeof *x + count * sizeof *x->list);
    if (!x) abort();
    x->s = s;
    x->count = 0;
    return x;
}

static void add(settling *x, const mw_settlement *from) {
    x->list[x->count++] = (settled_one){.cookie = from->cookie,
                                        .tag = from->tag,
                                        .op = from->op,
                                        .attempt = from->attempt,
                                        .delay_ms = from->delay_ms,
                                        .hold = from->hold};
}

/* ---- answers ---- */

static void stands(mw_sub *s, const settled_one *x) {
    mwr_flight *f = mwr_flight_of(s, x->tag);
    if (!f) return;
    if (x->op != MW_SETTLE_RETRY || !x->hold) {
        if (x->op == MW_SETTLE_RETRY) mwr_due_at(s, x->delay_ms);
        mwr_flight_end(s, f);
        return;
    }
    if (f->begun) mwr_crumbs_end(s->crumbs, (uint32_t)x->tag);
    f->tries = x->attempt;
    f->attempt = x->attempt + 1;
    f->noted = true;
    f->begun = f->seen = f->marked = f->settling = f->again = f->published = false;
}

static void settled(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner, (void)more;
    settling *x = cookie;
    mw_sub *s = x->s;
    mw_conn *c = s->conn;
    mw_error fenced;
    bool ours = true;
    if (c->closing) { /* it stays pending, and comes again */
        free(x);
        return;
    }
    if (!e && u->node->type == MWR_INTEGER && u->node->integer == -1) {
        mw_fail(&fenced, MW_EFENCED, false, "another consumer has the group by now");
        e = &fenced;
        ours = false;
    }
    if (!e && u->node->type == MWR_INTEGER && u->node->integer == 2) mwr_gap(s);
    for (size_t i = 0; i < x->count; i++) {
        mwr_flight *f = mwr_flight_of(s, x->list[i].tag);
        if (e && f) {
            f->settling = false;
            f->again = f->again || (!u && !mwr_client_unsent(c->client));
        }
        if (!e) stands(s, &x->list[i]);
        c->host->settled(s->source, x->list[i].cookie, e);
    }
    free(x);
    if (!ours) mwr_fenced(s);
}

/* ---- one with publications ---- */

void mwr_settle_one(mw_sub *s, const mw_settlement *x, const mwr_flight *f) {
    mw_conn *c = s->conn;
    settling *batch = begin_batch(s, 1);
    add(batch, x);
    size_t arguments = 3 + 4 + x->publish_count + 8;
    for (size_t i = 0; i < x->publish_count; i++) arguments += mwr_publication_count(&x->publish[i]);
    mw_buf *b = mwr_command(c->client, arguments, settled, batch, 0);
    mwr_write_text(b, "EVALSHA");
    mwr_write(b, mwr_script_sha(MWR_SETTLE), 40);
    mwr_write_number(b, (int64_t)(4 + x->publish_count));
    mwr_write_text(b, s->channel->name);
    mwr_write_text(b, s->key_record);
    mwr_write_text(b, s->key_tries);
    if (x->done_key)
        mwr_write_dedupe_key(c, b, x->done_key, x->done_len);
    else
        mwr_write_text(b, s->key_tries);
    for (size_t i = 0; i < x->publish_count; i++) {
        char *key = mwr_publication_key(&x->publish[i]);
        mwr_write_text(b, key);
        free(key);
    }
    mwr_write_text(b, s->group);
    mwr_write_text(b, s->row);
    mwr_write_text(b, s->token);
    mwr_write_text(b, s->consumer);
    mwr_write_text(b, s->channel->delete_acked ? "1" : "0");
    mwr_write_id(b, f->id);
    mwr_write_number(b, x->done_key ? (x->done_ttl_ms > 0 ? x->done_ttl_ms : 1) : 0);
    mwr_write_text(b, f->again ? "1" : "0");
    for (size_t i = 0; i < x->publish_count; i++) mwr_publication_write(c, b, &x->publish[i]);
}

/* ---- many ---- */

static bool too_large(const mw_conn *c, const mw_settlement *x, mw_error *e) {
    for (size_t i = 0; i < x->publish_count; i++)
        if (mwr_publication_check(c, &x->publish[i], e)) return true;
    return false;
}

static bool is_plain(const mw_settlement *x, const mwr_flight *f) {
    return x->op == MW_SETTLE_ACK && !x->publish_count && !x->done_key && !f->noted;
}

static void ack_many(mw_sub *s, const mw_settlement *list, const uint32_t *which, size_t count) {
    mw_conn *c = s->conn;
    settling *batch = begin_batch(s, count);
    mw_buf *b = mwr_command(c->client, 10 + count, settled, batch, 0);
    mwr_write_text(b, "EVALSHA");
    mwr_write(b, mwr_script_sha(MWR_ACK), 40);
    mwr_write_text(b, "2");
    mwr_write_text(b, s->channel->name);
    mwr_write_text(b, s->key_record);
    mwr_write_text(b, s->group);
    mwr_write_text(b, s->row);
    mwr_write_text(b, s->token);
    mwr_write_text(b, s->consumer);
    mwr_write_text(b, s->channel->delete_acked ? "1" : "0");
    for (size_t i = 0; i < count; i++) {
        const mw_settlement *x = &list[which[i]];
        add(batch, x);
        mwr_write_id(b, mwr_flight_of(s, x->tag)->id);
    }
}

static void note_many(mw_sub *s, const mw_settlement *list, const uint32_t *which, size_t count) {
    settling *batch = begin_batch(s, count);
    mw_buf *b = mwr_group_script(s, MWR_NOTE, 6 * count, settled, batch, 0);
    for (size_t i = 0; i < count; i++) {
        const mw_settlement *x = &list[which[i]];
        const mwr_flight *f = mwr_flight_of(s, x->tag);
        bool retry = x->op == MW_SETTLE_RETRY;
        add(batch, x);
        mwr_write_id(b, f->id);
        mwr_write_number(b, retry ? x->attempt : f->tries);
        mwr_write_number(b, !retry ? -1 : x->delay_ms > 0 ? x->delay_ms : 0);
        mwr_write_text(b, retry && !x->hold ? "wait" : "keep");
        mwr_write(b, x->error ? x->error->data : "", retry && x->error ? x->error->len : 0);
        mwr_write_text(b, f->again ? "1" : "0");
    }
}

static void flush_some(mw_sub *s, const mw_settlement *list, uint32_t *which, size_t *count,
                       void (*send)(mw_sub *, const mw_settlement *, const uint32_t *, size_t)) {
    if (*count) send(s, list, which, *count);
    *count = 0;
}

void mwr_settle(mw_sub *s, const mw_settlement *list, size_t count) {
    uint32_t acks[ACKS_MOST], notes[NOTES_MOST];
    size_t ack_count = 0, note_count = 0;
    for (size_t i = 0; i < count; i++) {
        mwr_flight *f = mwr_flight_of(s, list[i].tag);
        mw_error e;
        if (!f) {
            mw_fail(&e, MW_EFENCED, false, "another consumer has it by now");
            mwr_answer_later(s->conn, s->source, list[i].cookie, &e);
            continue;
        }
        if (too_large(s->conn, &list[i], &e)) {
            mwr_answer_later(s->conn, s->source, list[i].cookie, &e);
            continue;
        }
        f->settling = true;
        if (is_plain(&list[i], f))
            acks[ack_count++] = (uint32_t)i;
        else if (list[i].op == MW_SETTLE_ACK && mwr_settles_apart(s, &list[i]))
            mwr_settle_apart(s, &list[i], f);
        else if (list[i].op == MW_SETTLE_ACK)
            mwr_settle_one(s, &list[i], f);
        else
            notes[note_count++] = (uint32_t)i;
        if (ack_count == ACKS_MOST) flush_some(s, list, acks, &ack_count, ack_many);
        if (note_count == NOTES_MOST) flush_some(s, list, notes, &note_count, note_many);
    }
    flush_some(s, list, acks, &ack_count, ack_many);
    flush_some(s, list, notes, &note_count, note_many);
    mwr_flush(s->conn->client);
}

/* ---- handlers that run ---- */

void mwr_begin(mw_sub *s, uint64_t tag, uint32_t unit) {
    (void)unit;
    mwr_flight *f = mwr_flight_of(s, tag);
    if (!f) return;
    f->begun = true;
    mwr_crumbs_begin(s->crumbs, (uint32_t)tag, f->id);
}

/* It may have been settled already, and must not become pending again. */
static bool is_decided(const mwr_flight *f) { return f->settling || f->again; }

static bool needs_mark(mwr_flight *f) {
    if (!f->round || !f->begun || is_decided(f) || f->marked) return false;
    if (f->seen) return true;
    f->seen = true; /* in the next tick: most have ended by then */
    return false;
}

static void noted(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner, (void)more;
    mw_sub *s = cookie;
    if (e || s->conn->closing) return; /* a mark that was lost is no worse than a machine that was */
    if (u->node->type == MWR_INTEGER && u->node->integer == 2) mwr_gap(s);
}

static void mark_some(mw_sub *s, const uint32_t *which, size_t count) {
    mw_buf *b = mwr_group_script(s, MWR_NOTE, 6 * count, noted, s, 0);
    for (size_t i = 0; i < count; i++) {
        mwr_flight *f = &s->flights[which[i]];
        f->marked = f->noted = true;
        mwr_write_id(b, f->id);
        mwr_write_number(b, f->attempt);
        mwr_write_number(b, -1);
        mwr_write_text(b, "keep");
        mwr_write_text(b, "");
        mwr_write_text(b, "0");
    }
}

/* So that programs of other makes, which go by how long an entry was idle, leave ours alone; and so that they
 * are pending again when somebody destroyed the group or deleted our consumer. */
static void beat_some(mw_sub *s, const uint32_t *which, size_t count) {
    mw_buf *b = mwr_group_script(s, MWR_BEAT, count, noted, s, 0);
    for (size_t i = 0; i < count; i++) mwr_write_id(b, s->flights[which[i]].id);
}

void mwr_claim_soon(mw_sub *s) {
    for (uint32_t i = 0; i < s->flight_capacity; i++) s->flights[i].since = 0;
}

void mwr_mark_begun(mw_sub *s) {
    uint32_t marks[NOTES_MOST], beats[BEATS_MOST];
    size_t mark_count = 0, beat_count = 0;
    uint64_t now = mw_loop_real_ms(s->conn->loop), old = (uint64_t)s->lease_ms / 3;
    for (uint32_t i = 0; i < s->flight_capacity && s->flight_count; i++) {
        mwr_flight *f = &s->flights[i];
        if (needs_mark(f)) marks[mark_count++] = i;
        if (f->round && now - f->since > old && !is_decided(f)) {
            f->since = now;
            beats[beat_count++] = i;
        }
        if (mark_count == NOTES_MOST || beat_count == BEATS_MOST) break; /* the rest in the next tick */
    }
    if (mark_count) mark_some(s, marks, mark_count);
    if (beat_count) beat_some(s, beats, beat_count);
    if (mark_count || beat_count) mwr_flush(s->conn->client);
}
