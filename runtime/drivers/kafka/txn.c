/* txn.c - exactly once: what handlers published and what their commits say become one Kafka transaction, so
 * that a reader of committed messages sees both or neither. Nothing is produced before its handler is done,
 * so an aborted transaction needs no rewind: the same settlements go into the next one. What was done beyond
 * the mark stands in the commit's metadata and is part of the transaction, so keys need not wait for each
 * other. Another member that took over is told by the group's generation, which goes with the offsets: the
 * broker refuses ours then.
 *
 * An output that the broker does not take aborts the transaction that it is in. Where a report names it, its
 * own settlement fails and the others go into the next one. Where none does (what the user may not write to),
 * transactions are halved until it stands alone.
 *
 * librdkafka's calls block, so a thread makes them, one transaction at a time. The core keeps messages and
 * channels until their settlement is answered; the thread only reads them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/uuid.h"
#include "core/shared/shared.h"
#include "drivers/kafka/kafka.h"

enum { INIT_MS = 30000, FULL_MS = 50, TRIES = 5 };

struct kafka_txn {
    kafka_sub *sub;
    kafka_errands *errands;
    rd_kafka_t *rk; /* the thread's */
    bool singly;    /* the thread's: each message is a batch of its own */
    size_t limit;   /* how many settlements with outputs go into a transaction; 0: all */
    char id[300];
};

typedef struct batch {
    kafka_errand errand;
    kafka_txn *txn;
    rd_kafka_topic_partition_list_t *offsets;
    rd_kafka_consumer_group_metadata_t *group;
    mw_publication *list;
    rd_kafka_resp_err_t *reports; /* for each of them */
    size_t count;
    rd_kafka_resp_err_t err;
    char text[MW_ERROR_TEXT];
} batch;

kafka_txn *kafka_txn_new(kafka_sub *s) {
    kafka_txn *t = calloc(1, sizeof *t);
    char uuid[37];
    if (!t) abort();
    t->sub = s;
    t->errands = kafka_errands_new(s->conn->loop);
    mw_uuid(uuid);
    /* A worker's successor has its name: it ends what the dead one left open. Others must not share one. */
    if (kafka_conf_given(s->conn, "group.instance.id") && mw_shared_place() >= 0)
        snprintf(t->id, sizeof t->id, "%s.%s.%d", s->group, s->topic, mw_shared_place());
    else
        snprintf(t->id, sizeof t->id, "%s.%s", s->group, uuid);
    return t;
}

void kafka_txn_free(kafka_txn *t) {
    if (!t || !kafka_errands_free(t->errands)) return;
    if (t->rk) {
        rd_kafka_purge(t->rk,
                       RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
        kafka_token_ends(t->sub->conn, t->rk);
        rd_kafka_destroy(t->rk);
    }
    free(t);
}

/* ---- on the thread ---- */

static bool note(batch *b, rd_kafka_error_t *error) { /* true: it failed */
    if (!error) return false;
    b->err = rd_kafka_error_code(error);
    snprintf(b->text, sizeof b->text, "%s", rd_kafka_error_string(error));
    return true;
}

static void forget_producer(kafka_txn *t) {
    rd_kafka_purge(t->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
    kafka_token_ends(t->sub->conn, t->rk);
    rd_kafka_destroy(t->rk);
    t->rk = NULL;
}

static bool ready(batch *b) {
    kafka_txn *t = b->txn;
    if (t->rk) return true;
    const char *pairs[16] = {"transactional.id", t->id, "log.queue", "false", "log_level", "0"};
    size_t n = 6;
    if (!kafka_conf_given(t->sub->conn, "transaction.timeout.ms")) {
        pairs[n++] = "transaction.timeout.ms";
        pairs[n++] = "10000";
    }
    if (t->singly) {
        pairs[n++] = "batch.num.messages";
        pairs[n++] = "1";
    }
    mw_error e;
    if (!(t->rk = kafka_conf_handle(t->sub->conn, KAFKA_TRANSACTS, pairs, &e))) {
        b->err = RD_KAFKA_RESP_ERR__INVALID_ARG;
        snprintf(b->text, sizeof b->text, "%s", e.text);
        return false;
    }
    rd_kafka_error_t *error = rd_kafka_init_transactions(t->rk, INIT_MS);
    if (!note(b, error)) return true;
    rd_kafka_error_destroy(error);
    forget_producer(t);
    return false;
}

/* Called from inside the calls that flush, on the thread. */
void kafka_txn_report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque) {
    (void)rk;
    (void)opaque;
    *(rd_kafka_resp_err_t *)m->_private = m->err;
}

static rd_kafka_resp_err_t produce(batch *b, size_t i) {
    const mw_publication *m = &b->list[i];
    kafka_txn *t = b->txn;
    mw_parts p;
    mw_message_parts(m->msg, &p);
    char *topic = kafka_topic(t->sub->conn, m->channel);
    rd_kafka_resp_err_t err;
    for (;;) {
        rd_kafka_headers_t *headers = kafka_record_headers(&p);
        bool tombstone = kafka_record_is_tombstone(&p);
        err = rd_kafka_producev(
            t->rk, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
            RD_KAFKA_V_VALUE(tombstone ? NULL : (void *)(uintptr_t)(p.body_len ? p.body : ""), p.body_len),
            RD_KAFKA_V_KEY(p.has_key ? (p.key_len ? p.key : "") : NULL, p.key_len),
            RD_KAFKA_V_TIMESTAMP(p.time_ms), RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_OPAQUE(&b->reports[i]),
            RD_KAFKA_V_END);
        if (err) rd_kafka_headers_destroy(headers);
        if (err != RD_KAFKA_RESP_ERR__QUEUE_FULL) break;
        rd_kafka_poll(t->rk, FULL_MS);
    }
    free(topic);
    if (err) b->reports[i] = err;
    return err;
}

/* NULL, or what went wrong */
static rd_kafka_error_t *fill_and_commit(batch *b) {
    kafka_txn *t = b->txn;
    rd_kafka_error_t *error = rd_kafka_begin_transaction(t->rk);
    for (size_t i = 0; i < b->count && !error; i++) {
        rd_kafka_resp_err_t err = produce(b, i);
        if (err) error = rd_kafka_error_new(err, "topic %s: %s", b->list[i].channel, rd_kafka_err2str(err));
    }
    for (int i = 0; !error && i < TRIES; i++) {
        error = rd_kafka_send_offsets_to_transaction(t->rk, b->offsets, b->group, -1);
        if (!error || !rd_kafka_error_is_retriable(error) || i == TRIES - 1) break;
        rd_kafka_error_destroy(error);
        error = NULL;
    }
    for (int i = 0; !error && i < TRIES; i++) {
        error = rd_kafka_commit_transaction(t->rk, -1);
        if (!error || !rd_kafka_error_is_retriable(error) || i == TRIES - 1) break;
        rd_kafka_error_destroy(error);
        error = NULL;
    }
    return error;
}

static void try_once(batch *b) {
    b->err = RD_KAFKA_RESP_ERR_NO_ERROR;
    memset(b->reports, 0, b->count * sizeof *b->reports);
    if (!ready(b)) return;
    rd_kafka_error_t *error = fill_and_commit(b);
    if (!note(b, error)) return;
    bool fatal = rd_kafka_error_is_fatal(error);
    rd_kafka_error_destroy(error);
    rd_kafka_error_t *abort_error = fatal ? NULL : rd_kafka_abort_transaction(b->txn->rk, -1);
    if (abort_error) {
        fatal = true; /* nobody knows what this one would do next */
        rd_kafka_error_destroy(abort_error);
    }
    if (fatal) forget_producer(b->txn);
}

static size_t too_large(const batch *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->count; i++) n += b->reports[i] == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    return n;
}

/* A broker refuses batches, not messages: of several that are too large together, each may be small enough.
 */
static void work(kafka_errand *e) {
    batch *b = (batch *)e;
    kafka_txn *t = b->txn;
    try_once(b);
    if (!b->err || too_large(b) < 2) return;
    if (t->rk) forget_producer(t);
    t->singly = true;
    try_once(b);
    t->singly = false;
    if (t->rk) forget_producer(t);
}

/* ---- on the loop ---- */

static void free_batch(batch *b) {
    rd_kafka_topic_partition_list_destroy(b->offsets);
    rd_kafka_consumer_group_metadata_destroy(b->group);
    free(b->list);
    free(b->reports);
    free(b);
}

static mw_buf take_committing(kafka_sub *s) {
    mw_buf list = s->committing;
    s->committing = (mw_buf){0};
    return list;
}

/* Settlements whose outputs were refused fail; the others stay. `blamed`: without a report, this is why the
 * only one with outputs is to blame; else NULL. How many failed. */
static size_t fail_refused(batch *b, const mw_error *blamed) {
    kafka_sub *s = b->txn->sub;
    mw_buf list = take_committing(s);
    kafka_wait *w = (kafka_wait *)(void *)list.data;
    size_t failed = 0;
    for (size_t i = 0, at = 0; i < list.len / sizeof *w; at += w[i++].publish_count) {
        mw_error e;
        bool refused = blamed && w[i].publish_count;
        if (refused) e = *blamed;
        for (size_t k = at; k < at + w[i].publish_count && !refused; k++)
            refused = kafka_refusal(b->reports[k], b->list[k].channel, &e);
        if (!refused || !kafka_commit_part(s, &w[i])) { /* whose partition is gone is answered as fenced */
            mw_buf_add(&s->committing, &w[i], sizeof w[i]);
            continue;
        }
        kafka_commit_undo(s, &w[i]);
        s->conn->host->settled(s->source, w[i].cookie, &e);
        failed++;
    }
    mw_buf_free(&list);
    return failed;
}

static size_t with_outputs(const mw_buf *list) {
    const kafka_wait *w = (const kafka_wait *)(const void *)list->data;
    size_t n = 0;
    for (size_t i = 0; i < list->len / sizeof *w; i++) n += w[i].publish_count > 0;
    return n;
}

/* Who is to blame for an aborted transaction? */
static void sort_out(batch *b) {
    kafka_txn *t = b->txn;
    mw_error e;
    if (fail_refused(b, NULL) || !kafka_refusal(b->err, "of its outputs", &e)) return;
    size_t suspects = with_outputs(&t->sub->committing);
    mw_fail(&e, MW_EREFUSED, e.retryable, "Kafka: %s", b->text);
    if (suspects == 1)
        fail_refused(b, &e);
    else
        t->limit = suspects / 2;
}

/* While it is looked for, no more than `limit` of them go into a transaction; others stand aside, undone. */
void kafka_txn_choose(kafka_txn *t) {
    kafka_sub *s = t->sub;
    if (!t->limit) return;
    mw_buf all = s->gathering, aside = s->aside;
    s->gathering = s->aside = (mw_buf){0};
    kafka_wait *w = (kafka_wait *)(void *)aside.data;
    size_t chosen = 0;
    for (size_t i = 0; i < aside.len / sizeof *w; i++) {
        bool now = chosen < t->limit;
        chosen += now;
        if (now) kafka_commit_redo(s, &w[i]);
        mw_buf_add(now ? &s->gathering : &s->aside, &w[i], sizeof *w);
    }
    w = (kafka_wait *)(void *)all.data;
    for (size_t i = 0; i < all.len / sizeof *w; i++) {
        bool now = !w[i].publish_count || chosen < t->limit;
        chosen += now && w[i].publish_count;
        if (!now) kafka_commit_undo(s, &w[i]);
        mw_buf_add(now ? &s->gathering : &s->aside, &w[i], sizeof *w);
    }
    mw_buf_free(&all);
    mw_buf_free(&aside);
}

static void done(kafka_errand *e, bool alive) {
    batch *b = (batch *)e;
    kafka_sub *s = b->txn->sub;
    rd_kafka_resp_err_t err = b->err;
    if (alive && err) {
        mw_log_begin(MW_WARN, "kafka: transaction aborted");
        mw_log_text("group", s->group);
        mw_log_text("error", b->text);
        mw_log_end();
        sort_out(b);
    } else if (alive && b->txn->limit) {
        b->txn->limit = s->aside.len ? b->txn->limit * 2 : 0;
    }
    free_batch(b);
    if (alive) kafka_commit_ended(s, err);
}

/* Everything that waits in `committing` goes in; the list of offsets passes on. */
void kafka_txn_commit(kafka_txn *t, rd_kafka_topic_partition_list_t *offsets) {
    kafka_sub *s = t->sub;
    kafka_wait *w = (kafka_wait *)(void *)s->committing.data;
    size_t waits = s->committing.len / sizeof *w, count = 0;
    for (size_t i = 0; i < waits; i++) count += w[i].publish_count;
    batch *b = calloc(1, sizeof *b);
    if (!b || !(b->list = malloc((count + 1) * sizeof *b->list)) ||
        !(b->reports = calloc(count + 1, sizeof *b->reports)))
        abort();
    b->errand = (kafka_errand){.work = work, .done = done};
    b->txn = t;
    b->offsets = offsets;
    b->group = rd_kafka_consumer_group_metadata(s->rk);
    for (size_t i = 0; i < waits; i++) {
        if (w[i].publish_count)
            memcpy(b->list + b->count, w[i].publish, w[i].publish_count * sizeof *b->list);
        b->count += w[i].publish_count;
    }
    kafka_errands_send(t->errands, &b->errand);
}
