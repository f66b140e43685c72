/* browse.c - reading a topic without consuming it, on a thread of its own with a consumer of its own. A
 * position is a partition and the offset behind the message. A channel is read partition by partition.
 * Following a channel (`tail`) needs a place in every partition at once: such a position is a cursor, which
 * the connection keeps. */
#include <stdlib.h>
#include <string.h>

#include "drivers/kafka/browse.h"

enum { PARTITIONS_MAX = 1 << 16, ASK_MS = 10000, STEP_MS = 1000, DOWN_MS = 3000, IDLE_MS = 5000 };
static const uint64_t CURSOR = PARTITIONS_MAX; /* instead of a partition */

typedef struct cursor {
    struct cursor *next;
    uint64_t id;
    char *topic;
    int64_t *at; /* by partition */
    int count;
} cursor;

struct kafka_browser {
    rd_kafka_t *rk; /* the errands' thread only, like everything here */
    cursor *cursors;
    uint64_t last_id;
};

typedef struct request {
    kafka_errand errand;
    kafka_conn *conn;
    mw_browse browse;
    char *topic;
    mw_entry *found;
    size_t count, capacity;
    mw_position last;
    bool failed;
    mw_error error;
} request;

static mw_position position_of(int32_t partition, int64_t offset) {
    return (mw_position){.high = (uint64_t)partition, .low = (uint64_t)offset + 1};
}

void kafka_position_split(mw_position position, int32_t *partition, int64_t *offset) {
    *partition = position.high < PARTITIONS_MAX ? (int32_t)position.high : PARTITIONS_MAX;
    *offset = (int64_t)(position.low & INT64_MAX) - 1;
}

/* Called from inside a poll, on the errands' thread. */
void kafka_look_error(rd_kafka_t *rk, int err, const char *reason, void *conn) {
    kafka_conn *c = conn;
    (void)rk;
    if (err == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) c->look_down = true;
    if (err == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN && *c->look_error) return; /* that says more */
    snprintf(c->look_error, sizeof c->look_error, "%s", reason);
    if (err == RD_KAFKA_RESP_ERR__AUTHENTICATION) c->look_refused = true;
}

const char *kafka_look_why(const kafka_conn *c, rd_kafka_resp_err_t err) {
    bool network = err == RD_KAFKA_RESP_ERR__TRANSPORT || err == RD_KAFKA_RESP_ERR__TIMED_OUT ||
                   err == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN;
    return network && *c->look_error ? c->look_error : rd_kafka_err2str(err);
}

static int failed(request *r, const char *what, rd_kafka_resp_err_t err) {
    r->failed = true;
    return mw_fail(&r->error, MW_ECLOSED, true, "Kafka: topic %s: %s: %s", r->topic, what,
                   kafka_look_why(r->conn, err));
}

/* In steps: who is not let in need not wait, and who finds nobody waits for a shorter time. */
rd_kafka_resp_err_t kafka_look_metadata(kafka_conn *c, rd_kafka_t *rk, rd_kafka_topic_t *t,
                                        const struct rd_kafka_metadata **found) {
    rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR_NO_ERROR;
    c->look_refused = c->look_down = false;
    *c->look_error = 0;
    for (int ms = 0; ms < (c->look_down ? DOWN_MS : ASK_MS) && !c->look_refused; ms += STEP_MS) {
        err = rd_kafka_metadata(rk, 0, t, found, STEP_MS);
        if (err != RD_KAFKA_RESP_ERR__TRANSPORT && err != RD_KAFKA_RESP_ERR__TIMED_OUT) break;
        while (rd_kafka_poll(rk, 0) > 0) continue; /* what happened meanwhile */
    }
    return err;
}

int kafka_partition_count(kafka_conn *c, rd_kafka_t *rk, const char *topic, rd_kafka_resp_err_t *err) {
    const struct rd_kafka_metadata *found;
    rd_kafka_topic_t *t = rd_kafka_topic_new(rk, topic, NULL);
    if (!t) {
        *err = rd_kafka_last_error();
        return -1;
    }
    *err = kafka_look_metadata(c, rk, t, &found);
    rd_kafka_topic_destroy(t);
    if (*err) return -1;
    int count = found->topic_cnt == 1 ? found->topics[0].partition_cnt : 0;
    if (found->topic_cnt == 1) *err = found->topics[0].err;
    rd_kafka_metadata_destroy(found);
    return *err ? -1 : count;
}

/* ---- reading ---- */

static bool wanted(const kafka_removed *gone, const rd_kafka_message_t *m) {
    return !gone || !kafka_removed_has(gone, m->partition, (uint64_t)m->offset);
}

static void keep(request *r, const rd_kafka_message_t *m) {
    mw_buf space = {0};
    if (r->count == r->capacity) {
        r->capacity = r->capacity ? r->capacity * 2 : 64;
        r->found = realloc(r->found, r->capacity * sizeof *r->found);
        if (!r->found) abort();
    }
    r->found[r->count++] = (mw_entry){.position = position_of(m->partition, m->offset),
                                      .msg = kafka_record_read(m, &space, NULL)};
    mw_buf_free(&space);
}

/* Reads what is assigned until all ends are reached or enough is found. at: where each partition goes on. */
static int read_on(request *r, rd_kafka_t *rk, int parts, int64_t *at, const kafka_removed *gone) {
    while (r->count < r->browse.max && parts > 0) {
        rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, IDLE_MS);
        if (!m) return failed(r, "reading", RD_KAFKA_RESP_ERR__TIMED_OUT);
        rd_kafka_resp_err_t err = m->err;
        if (!err) {
            if (wanted(gone, m)) keep(r, m);
            at[m->partition] = m->offset + 1;
        } else if (err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
            at[m->partition] = m->offset;
            parts--;
        }
        rd_kafka_message_destroy(m);
        if (err && err != RD_KAFKA_RESP_ERR__PARTITION_EOF && err != RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN &&
            err != RD_KAFKA_RESP_ERR__TRANSPORT)
            return failed(r, "reading", err);
    }
    return 0;
}

static int assign(request *r, rd_kafka_t *rk, int from, int count, const int64_t *at) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(count);
    for (int i = from; i < from + count; i++)
        rd_kafka_topic_partition_list_add(list, r->topic, i)->offset =
            at[i] > 0 ? at[i] : RD_KAFKA_OFFSET_BEGINNING;
    rd_kafka_resp_err_t err = rd_kafka_assign(rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    return err ? failed(r, "assigning", err) : 0;
}

/* One partition after the other, so that a position is enough to go on. */
static void read_in_order(request *r, rd_kafka_t *rk, int count, const kafka_removed *gone) {
    int32_t first;
    int64_t offset, *at = calloc((size_t)count, sizeof *at);
    if (!at) abort();
    kafka_position_split(r->browse.after, &first, &offset);
    if (first < count) at[first] = offset + 1;
    for (int i = first; i < count && r->count < r->browse.max; i++)
        if (assign(r, rk, i, 1, at) || read_on(r, rk, 1, at, gone)) break;
    r->last = r->count ? r->found[r->count - 1].position : r->browse.after;
    free(at);
}

static void read_from_cursor(request *r, rd_kafka_t *rk, cursor *c, const kafka_removed *gone) {
    if (!assign(r, rk, 0, c->count, c->at)) read_on(r, rk, c->count, c->at, gone);
    r->last = r->browse.after;
}

/* ---- cursors ---- */

static cursor *find_cursor(const kafka_browser *b, const request *r) {
    cursor *c = b->cursors;
    while (c && (c->id != r->browse.after.low || strcmp(c->topic, r->topic) != 0)) c = c->next;
    return c;
}

static void new_cursor(request *r, kafka_browser *b, int count) {
    cursor *c = calloc(1, sizeof *c);
    if (!c || !(c->at = calloc((size_t)count, sizeof *c->at)) || !(c->topic = strdup(r->topic))) abort();
    c->id = ++b->last_id;
    c->count = count;
    c->next = b->cursors;
    b->cursors = c;
    r->last = (mw_position){.high = CURSOR, .low = c->id};
    for (int i = 0; i < count; i++) {
        int64_t low;
        rd_kafka_resp_err_t err =
            rd_kafka_query_watermark_offsets(b->rk, r->topic, i, &low, &c->at[i], ASK_MS);
        if (err) {
            failed(r, "its end", err);
            return;
        }
    }
}

/* ---- the errand ---- */

static rd_kafka_t *handle_of(kafka_conn *conn, mw_error *e) {
    if (!conn->browser && !(conn->browser = calloc(1, sizeof *conn->browser))) abort();
    kafka_browser *b = conn->browser;
    if (b->rk) return b->rk;
    static const char *const pairs[] = {
        "group.id",  "moonwire.browse", "enable.auto.commit", "false", "enable.partition.eof", "true",
        "log.queue", "false",           "log_level",          "0",     "fetch.wait.max.ms",    "5",
        NULL,
    };
    b->rk = kafka_conf_handle(conn, KAFKA_LOOKS, pairs, e);
    if (b->rk) rd_kafka_poll_set_consumer(b->rk);
    return b->rk;
}

static void work(kafka_errand *e) {
    request *r = (request *)e;
    rd_kafka_resp_err_t err;
    rd_kafka_t *rk = handle_of(r->conn, &r->error);
    if (!rk) {
        r->failed = true;
        return;
    }
    int count = kafka_partition_count(r->conn, rk, r->topic, &err);
    if (count < 0 || count > PARTITIONS_MAX) {
        failed(r, "its partitions", count < 0 ? err : RD_KAFKA_RESP_ERR__INVALID_ARG);
        return;
    }
    if (r->browse.newest) {
        new_cursor(r, r->conn->browser, count);
        return;
    }
    kafka_removed *gone = kafka_removed_read(r->conn, r->topic, count, &err);
    if (err) {
        failed(r, "what was removed", err);
    } else if (r->browse.after.high == CURSOR) {
        cursor *c = find_cursor(r->conn->browser, r);
        if (c) read_from_cursor(r, rk, c, gone);
    } else {
        read_in_order(r, rk, count, gone);
    }
    kafka_removed_free(gone);
    rd_kafka_assign(rk, NULL);
}

static void done(kafka_errand *e, bool alive) {
    request *r = (request *)e;
    kafka_conn *c = r->conn;
    if (alive)
        c->host->browsed(c->link, r->browse.cookie, r->found, r->failed ? 0 : r->count, r->last,
                         r->failed ? &r->error : NULL);
    for (size_t i = 0; i < r->count; i++) mw_message_unref(r->found[i].msg);
    free(r->found);
    free(r->topic);
    free(r);
}

void kafka_conn_errand(kafka_conn *c, kafka_errand *e) {
    if (!c->errands) c->errands = kafka_errands_new(c->loop);
    kafka_errands_send(c->errands, e);
}

void kafka_browse(mw_conn *conn, const mw_browse *b) {
    kafka_conn *c = (kafka_conn *)conn;
    request *r = calloc(1, sizeof *r);
    if (!r) abort();
    r->errand = (kafka_errand){.work = work, .done = done};
    r->conn = c;
    r->browse = *b;
    r->topic = kafka_topic(c, b->channel);
    kafka_conn_errand(c, &r->errand);
}

void kafka_browser_free(kafka_browser *b) {
    if (!b) return;
    for (cursor *c; (c = b->cursors);) {
        b->cursors = c->next;
        free(c->topic);
        free(c->at);
        free(c);
    }
    if (b->rk) rd_kafka_destroy_flags(b->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    free(b);
}
