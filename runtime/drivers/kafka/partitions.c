/* partitions.c - the partitions a consumer has, and taking messages out of them in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/kafka/kafka.h"

enum { BATCH = 256, SHARE = 64, EPOCH_SHIFT = 48 };
enum { SPAN_MAX = 100000 }; /* between the mark and the newest: what is remembered beyond the mark */

static uint64_t tag_of(const kafka_part *p, int64_t offset) {
    return (uint64_t)p->epoch << EPOCH_SHIFT | (uint64_t)offset;
}

uint64_t kafka_tag_offset(uint64_t tag) { return tag & ((1ull << EPOCH_SHIFT) - 1); }

kafka_part *kafka_part_find(const kafka_sub *s, int32_t partition) {
    for (uint32_t i = 0; i < s->part_count; i++)
        if (s->parts[i]->partition == partition) return s->parts[i];
    return NULL;
}

kafka_part *kafka_part_of(const kafka_sub *s, uint64_t tag, uint32_t unit) {
    kafka_part *p = kafka_part_find(s, (int32_t)unit);
    return p && p->epoch == tag >> EPOCH_SHIFT ? p : NULL;
}

kafka_part *kafka_part_new(kafka_sub *s, int32_t partition) {
    size_t space = strlen(s->topic) + 16;
    kafka_part *p = calloc(1, sizeof *p + space);
    if (!p) abort();
    p->sub = s;
    p->partition = partition;
    p->epoch = ++s->epochs;
    p->prefix_len = (uint32_t)snprintf(p->prefix, space, "%s-%d-", s->topic, partition);
    if (s->part_count == s->part_capacity) {
        s->part_capacity = s->part_capacity ? s->part_capacity * 2 : 16;
        s->parts = realloc(s->parts, s->part_capacity * sizeof *s->parts);
        if (!s->parts) abort();
    }
    s->parts[s->part_count++] = p;
    return p;
}

void kafka_part_free(kafka_part *p) {
    kafka_sub *s = p->sub;
    uint32_t i = 0;
    while (s->parts[i] != p) i++;
    s->parts[i] = s->parts[--s->part_count];
    if (p->queue) {
        rd_kafka_queue_io_event_enable(p->queue, -1, NULL, 0);
        rd_kafka_queue_destroy(p->queue);
    }
    kafka_marks_free(p->marks);
    free(p);
}

/* Before the partition is assigned, so that none of its messages reaches the consumer's own queue. */
void kafka_part_open(kafka_part *p) {
    static const uint64_t one = 1;
    p->queue = rd_kafka_queue_get_partition(p->sub->rk, p->sub->topic, p->partition);
    if (!p->queue) return;
    rd_kafka_queue_forward(p->queue, NULL);
    rd_kafka_queue_io_event_enable(p->queue, p->sub->wake.fd, &one, sizeof one);
    p->state = KAFKA_PART_FLOWS;
}

/* ---- messages ---- */

static void trouble(kafka_part *p, const rd_kafka_message_t *m) {
    mw_log_begin(MW_WARN, "kafka: cannot fetch");
    mw_log_text("topic", p->sub->topic);
    mw_log_int("partition", p->partition);
    mw_log_text("code", rd_kafka_err2name(m->err));
    mw_log_text("error", rd_kafka_message_errstr(m));
    mw_log_end();
}

/* The end of the partition. What was never delivered before it does not exist: compacted away, or a mark of a
 * transaction. */
static void reached_end(kafka_part *p, int64_t offset) {
    uint64_t before = kafka_marks_mark(p->marks);
    kafka_marks_skip(p->marks, (uint64_t)offset);
    if (kafka_marks_mark(p->marks) == before) return;
    p->dirty = true;
    kafka_commit_soon(p->sub);
}

/* true: `in` is filled */
static bool received(kafka_part *p, const rd_kafka_message_t *m, mw_incoming *in) {
    kafka_past past;
    switch (kafka_marks_add(p->marks, (uint64_t)m->offset, &past)) {
    case KAFKA_OLD: return false;
    case KAFKA_DONE_BEFORE:
        p->dirty = true;
        kafka_commit_soon(p->sub);
        return false;
    case KAFKA_NEW: break;
    }
    *in = (mw_incoming){.msg = kafka_record_read(m, p->prefix, p->prefix_len, &p->sub->headers),
                        .tag = tag_of(p, m->offset),
                        .unit = (uint32_t)p->partition,
                        .attempt = past.attempts + 1,
                        .not_before = past.due_ms,
                        .first_error = mw_text_ref(past.error)};
    p->out++;
    return true;
}

static bool may_read(const kafka_part *p) {
    return p->state == KAFKA_PART_FLOWS && !p->crowded && kafka_marks_span(p->marks) < SPAN_MAX;
}

static size_t take(kafka_part *p, mw_incoming *in, size_t most, size_t *bytes) {
    size_t n = 0;
    while (n < most && *bytes && may_read(p)) {
        rd_kafka_message_t *m = rd_kafka_consume_queue(p->queue, 0);
        if (!m) break;
        if (m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
            reached_end(p, m->offset);
        } else if (m->err) {
            trouble(p, m);
        } else if (received(p, m, &in[n])) {
            size_t size = mw_message_size(in[n++].msg);
            *bytes -= size < *bytes ? size : *bytes;
        }
        rd_kafka_message_destroy(m);
    }
    return n;
}

size_t kafka_parts_deliver(kafka_sub *s) {
    mw_incoming in[BATCH];
    size_t bytes, n = 0, idle = 0;
    if (s->paused || !s->part_count) return 0;
    size_t most = s->conn->host->room(s->source, &bytes);
    if (most > BATCH) most = BATCH;
    while (n < most && bytes && idle < s->part_count) {
        kafka_part *p = s->parts[s->turn++ % s->part_count];
        size_t got = take(p, in + n, most - n < SHARE ? most - n : SHARE, &bytes);
        idle = got ? 0 : idle + 1;
        n += got;
    }
    if (!n) return 0;
    kafka_up(s->conn);
    s->conn->host->deliver(s->source, in, n);
    return n;
}
