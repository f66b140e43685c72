/* remove.c - taking single messages out of a topic, for `dlq replay` and `dlq purge`. Kafka cannot do that;
 * it can forget the beginning of a partition, no more. So a message that is removed is marked: in the commits
 * of a group that nobody consumes with (PREFIXmoonwire.removed), in the same form in which a consumer
 * remembers what it has done beyond its mark. Browsing leaves out what is marked. Replacements are published
 * and confirmed before that. */
#include <stdlib.h>
#include <string.h>

#include "drivers/kafka/browse.h"

enum { ASK_MS = 10000, METADATA_MAX = 4096 };

struct kafka_removed {
    int count;
    kafka_marks *parts[];
};

/* ---- the marks ---- */

rd_kafka_t *kafka_admin_handle(kafka_conn *c, mw_error *e) {
    if (c->admin) return c->admin;
    char *group = kafka_topic(c, "moonwire.removed");
    const char *pairs[] = {
        "group.id", group, "enable.auto.commit", "false", "log.queue", "false", "log_level", "0", NULL};
    c->admin = kafka_conf_handle(c, KAFKA_LOOKS, pairs, e);
    free(group);
    return c->admin;
}

kafka_removed *kafka_removed_read(kafka_conn *c, const char *topic, int partitions,
                                  rd_kafka_resp_err_t *err) {
    mw_error e;
    rd_kafka_t *rk = kafka_admin_handle(c, &e);
    kafka_removed *r = calloc(1, sizeof *r + (size_t)partitions * sizeof *r->parts);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(partitions);
    if (!r) abort();
    r->count = partitions;
    for (int i = 0; i < partitions; i++) rd_kafka_topic_partition_list_add(list, topic, i);
    *err = !rk ? RD_KAFKA_RESP_ERR__INVALID_ARG : partitions ? rd_kafka_committed(rk, list, ASK_MS) : 0;
    for (int i = 0; i < partitions; i++) {
        rd_kafka_topic_partition_t *p = &list->elems[i];
        r->parts[i] = kafka_marks_new(!*err && p->offset > 0 ? (uint64_t)p->offset : 0);
        if (!*err && p->metadata_size) kafka_marks_read_done(r->parts[i], p->metadata, p->metadata_size);
    }
    rd_kafka_topic_partition_list_destroy(list);
    return r;
}

bool kafka_removed_has(const kafka_removed *r, int32_t partition, uint64_t offset) {
    return partition < r->count && kafka_marks_is_done(r->parts[partition], offset);
}

void kafka_removed_free(kafka_removed *r) {
    for (int i = 0; r && i < r->count; i++) kafka_marks_free(r->parts[i]);
    free(r);
}

/* ---- a request: looks (thread), publishes (loop), marks (thread), answers (loop) ---- */

typedef struct request {
    kafka_errand errand;
    kafka_conn *conn;
    mw_removal removal;
    char *topic;
    bool *there;
    size_t left; /* publications under way */
    size_t removed;
    bool failed;
    mw_error error;
} request;

typedef struct replacement { /* one publication of it */
    kafka_confirm confirm;
    request *request;
    size_t index;
} replacement;

static int failed(request *r, const char *what, rd_kafka_resp_err_t err) {
    r->failed = true;
    return mw_fail(&r->error, MW_ECLOSED, true, "Kafka: topic %s: %s: %s", r->topic, what,
                   kafka_look_why(r->conn, err));
}

static kafka_removed *marks_of(request *r) {
    rd_kafka_resp_err_t err = RD_KAFKA_RESP_ERR__INVALID_ARG;
    rd_kafka_t *rk = kafka_admin_handle(r->conn, &r->error);
    int count = rk ? kafka_partition_count(r->conn, rk, r->topic, &err) : -1;
    if (count < 0) {
        failed(r, "its partitions", err);
        return NULL;
    }
    kafka_removed *gone = kafka_removed_read(r->conn, r->topic, count, &err);
    if (!err) return gone;
    failed(r, "what was removed", err);
    kafka_removed_free(gone);
    return NULL;
}

static void look(kafka_errand *e) {
    request *r = (request *)e;
    kafka_removed *gone = marks_of(r);
    for (size_t i = 0; gone && i < r->removal.count; i++) {
        int32_t partition;
        int64_t offset, low, high;
        kafka_position_split(r->removal.positions[i], &partition, &offset);
        if (partition >= gone->count || offset < 0 || kafka_removed_has(gone, partition, (uint64_t)offset))
            continue;
        rd_kafka_resp_err_t err =
            rd_kafka_query_watermark_offsets(r->conn->admin, r->topic, partition, &low, &high, ASK_MS);
        if (err) {
            failed(r, "its ends", err);
            break;
        }
        r->there[i] = offset >= low && offset < high;
    }
    kafka_removed_free(gone);
}

static void mark(kafka_errand *e) {
    request *r = (request *)e;
    kafka_removed *gone = marks_of(r);
    if (!gone) return;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(gone->count);
    for (size_t i = 0; i < r->removal.count; i++) {
        int32_t partition;
        int64_t offset;
        kafka_position_split(r->removal.positions[i], &partition, &offset);
        if (!r->there[i] || partition >= gone->count) continue;
        kafka_marks_set_done(gone->parts[partition], (uint64_t)offset);
        r->removed++;
        if (!rd_kafka_topic_partition_list_find(list, r->topic, partition))
            rd_kafka_topic_partition_list_add(list, r->topic, partition);
    }
    for (int i = 0; i < list->cnt; i++) {
        mw_buf text = {0};
        bool crowded;
        kafka_marks *m = gone->parts[list->elems[i].partition];
        if (kafka_marks_write(m, 0, METADATA_MAX, &text, &crowded) >= KAFKA_FEWER_DONE) {
            r->failed = true;
            mw_fail(&r->error, MW_EFULL, false,
                    "Kafka: topic %s: more single messages are marked as removed than a commit can hold: "
                    "purge the "
                    "oldest ones",
                    r->topic);
        }
        list->elems[i].offset = (int64_t)kafka_marks_mark(m);
        list->elems[i].metadata = text.data;
        list->elems[i].metadata_size = text.len;
    }
    rd_kafka_resp_err_t err = r->failed || !list->cnt ? 0 : rd_kafka_commit(r->conn->admin, list, 0);
    if (err) failed(r, "marking", err);
    rd_kafka_topic_partition_list_destroy(list);
    kafka_removed_free(gone);
}

static void free_request(request *r) {
    free(r->there);
    free(r->topic);
    free(r);
}

static void answer(request *r) {
    kafka_conn *c = r->conn;
    c->host->removed(c->link, r->removal.cookie, r->failed ? 0 : r->removed, r->failed ? &r->error : NULL);
    free_request(r);
}

static void marked(kafka_errand *e, bool alive) {
    if (alive)
        answer((request *)e);
    else
        free_request((request *)e);
}

static void mark_next(request *r) {
    if (r->failed) {
        answer(r);
        return;
    }
    r->errand = (kafka_errand){.work = mark, .done = marked};
    kafka_conn_errand(r->conn, &r->errand);
}

static void replaced(kafka_confirm *c, const mw_error *e) {
    replacement *p = mw_container_of(c, replacement, confirm);
    request *r = p->request;
    if (e) { /* that one stays; the others go */
        r->there[p->index] = false;
        r->failed = true;
        r->error = *e;
    }
    free(p);
    if (--r->left == 0) mark_next(r);
}

static void looked(kafka_errand *e, bool alive) {
    request *r = (request *)e;
    if (!alive) {
        free_request(r);
        return;
    }
    r->left = 1; /* until all are sent */
    for (size_t i = 0; i < r->removal.publish_count && !r->failed; i++) {
        if (!r->there[i]) continue;
        replacement *p = malloc(sizeof *p);
        if (!p) abort();
        *p = (replacement){.confirm = {replaced}, .request = r, .index = i};
        r->left++;
        kafka_publish_own(r->conn, &r->removal.publish[i], &p->confirm);
    }
    if (--r->left == 0) mark_next(r);
}

void kafka_remove(mw_conn *conn, const mw_removal *x) {
    kafka_conn *c = (kafka_conn *)conn;
    request *r = calloc(1, sizeof *r);
    if (!r || !(r->there = calloc(x->count + 1, sizeof *r->there))) abort();
    r->errand = (kafka_errand){.work = look, .done = looked};
    r->conn = c;
    r->removal = *x;
    r->topic = kafka_topic(c, x->channel);
    kafka_conn_errand(c, &r->errand);
}
