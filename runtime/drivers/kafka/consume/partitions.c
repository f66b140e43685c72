/* partitions.c - the partitions a consumer has, and taking messages out of them in turn. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/tier.h"
#include "drivers/kafka/kafka.h"

enum { BATCH = 256, SHARE = 128, TOPIC_SHIFT = 24, HEAVY = 1024 };
enum { TELL_AGAIN_MS = 30000 };
enum { SPAN_MAX = 100000 }; /* between the mark and the newest: what is remembered beyond the mark */

static uint64_t tag_of(const kafka_part *p, int64_t offset) {
    return (uint64_t)p->epoch << KAFKA_EPOCH_SHIFT | (uint64_t)offset;
}

uint64_t kafka_tag_offset(uint64_t tag) { return tag & ((1ull << KAFKA_EPOCH_SHIFT) - 1); }

static uint32_t topic_index(const kafka_sub *s, const char *topic) {
    uint32_t i = s->topic_count - 1;
    while (i && strcmp(s->topics[i], topic) != 0) i--;
    return i;
}

static uint32_t unit_of(uint32_t topic, int32_t partition) {
    return topic << TOPIC_SHIFT | (uint32_t)partition;
}

static kafka_part *find_unit(kafka_sub *s, uint32_t unit) {
    kafka_part **known = &s->recent[unit % KAFKA_RECENT];
    if (*known && (*known)->unit == unit) return *known;
    for (uint32_t i = 0; i < s->part_count; i++)
        if (s->parts[i]->unit == unit) return *known = s->parts[i];
    return NULL;
}

kafka_part *kafka_part_find(kafka_sub *s, const char *topic, int32_t partition) {
    return find_unit(s, unit_of(topic_index(s, topic), partition));
}

kafka_part *kafka_part_of(kafka_sub *s, uint64_t tag, uint32_t unit) {
    kafka_part *p = find_unit(s, unit);
    return p && p->epoch == tag >> KAFKA_EPOCH_SHIFT ? p : NULL;
}

const char *kafka_part_topic(const kafka_part *p) { return p->sub->topics[p->topic]; }

kafka_part *kafka_part_new(kafka_sub *s, const char *topic, int32_t partition) {
    kafka_part *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->sub = s;
    p->topic = topic_index(s, topic);
    p->partition = partition;
    p->unit = unit_of(p->topic, partition);
    p->epoch = ++s->epochs;
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
    if (s->recent[p->unit % KAFKA_RECENT] == p) s->recent[p->unit % KAFKA_RECENT] = NULL;
    if (p->early) rd_kafka_message_destroy(p->early);
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
    p->queue = rd_kafka_queue_get_partition(p->sub->rk, kafka_part_topic(p), p->partition);
    if (!p->queue) return;
    rd_kafka_queue_forward(p->queue, NULL);
    rd_kafka_queue_io_event_enable(p->queue, p->sub->wake.fd, &one, sizeof one);
    p->state = KAFKA_PART_FLOWS;
}

/* ---- messages ---- */

/* librdkafka says it again and again, for each partition. */
static void trouble(kafka_sub *s, rd_kafka_resp_err_t err, const char *reason) {
    uint64_t now = mw_loop_mono_ms(s->conn->loop);
    if (s->told == err && now - s->told_at < TELL_AGAIN_MS) return;
    s->told = err;
    s->told_at = now;
    kafka_note(s->conn, reason);
    mw_log_begin(MW_WARN, "kafka: cannot fetch");
    mw_log_text("topic", s->topic);
    mw_log_text("group", s->group);
    mw_log_text("code", rd_kafka_err2name(err));
    mw_log_text("error", reason);
    mw_log_end();
}

/* From inside a poll of a partition's queue: only a note is taken. */
void kafka_part_error(rd_kafka_t *rk, int code, const char *reason, void *conn) {
    rd_kafka_resp_err_t err = (rd_kafka_resp_err_t)code;
    kafka_sub *s = ((kafka_conn *)conn)->subs;
    while (s && s->rk != rk) s = s->next;
    if (!s) return;
    trouble(s, err, reason);
    if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART || err == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION ||
        err == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC)
        s->gone = true;
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

/* The first of each share is read at once: when its headers are large, those of the next ones may be, too,
 * and have to count against the pipeline's bytes. */
static mw_message *message_of(kafka_part *p, rd_kafka_message_t *m, bool first, kafka_retry *retry) {
    kafka_sub *s = p->sub;
    if (!first && !p->heavy && !p->topic)
        return kafka_record_keep(m, s->unread, mw_loop_mono_ms(s->conn->loop));
    mw_message *msg = kafka_record_read(m, &s->headers, p->topic ? retry : NULL);
    p->heavy = mw_message_size(msg) > m->len + m->key_len + HEAVY;
    rd_kafka_message_destroy(m);
    return msg;
}

/* true: `in` is filled. The record is gone, or its message has it. */
static bool received(kafka_part *p, rd_kafka_message_t *m, bool first, mw_incoming *in) {
    kafka_past past;
    switch (kafka_marks_add(p->marks, (uint64_t)m->offset, &past)) {
    case KAFKA_OLD: /* librdkafka began again: what we had read is not there any more */
        rd_kafka_message_destroy(m);
        p->anew = p->sub->gone = true;
        kafka_note(p->sub->conn, "its log begins anew");
        return false;
    case KAFKA_DONE_BEFORE:
        rd_kafka_message_destroy(m);
        p->dirty = true;
        kafka_commit_soon(p->sub);
        return false;
    case KAFKA_NEW: break;
    }
    /* Groups of one channel share its retry topics, not its failures. */
    if (p->topic && !kafka_record_is_for(m, p->sub->group + strlen(p->sub->conn->prefix))) {
        kafka_marks_done(p->marks, (uint64_t)m->offset);
        rd_kafka_message_destroy(m);
        p->dirty = true;
        kafka_commit_soon(p->sub);
        return false;
    }
    kafka_retry retry = {0};
    int64_t offset = m->offset;
    mw_message *msg = message_of(p, m, first, &retry);
    *in = (mw_incoming){.msg = msg,
                        .tag = tag_of(p, offset),
                        .unit = p->unit,
                        .attempt = (past.attempts > retry.attempts ? past.attempts : retry.attempts) + 1,
                        .not_before = past.due_ms,
                        .first_error = retry.error ? retry.error : mw_text_ref(past.error)};
    p->out++;
    return true;
}

static bool may_read(const kafka_part *p) {
    return p->state == KAFKA_PART_FLOWS && !p->anew && !p->crowded && kafka_marks_span(p->marks) < SPAN_MAX;
}

/* The next one. All of a retry channel wait equally long, so when the first is not due none is. */
static rd_kafka_message_t *next_message(kafka_part *p) {
    rd_kafka_message_t *m = p->early ? p->early : rd_kafka_consume_queue(p->queue, 0);
    p->early = NULL;
    if (!m || !p->topic || m->err) return m;
    p->early_due = kafka_record_due(m);
    if (p->early_due > mw_loop_wall_ms(p->sub->conn->loop)) p->early = m;
    return p->early ? NULL : m;
}

/* One that is no message. */
static void told(kafka_part *p, rd_kafka_message_t *m) {
    if (m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
        reached_end(p, m->offset);
    else
        trouble(p->sub, m->err, rd_kafka_message_errstr(m));
    rd_kafka_message_destroy(m);
}

int64_t kafka_part_next_ms(kafka_part *p) {
    rd_kafka_timestamp_type_t kind;
    while (!p->early && may_read(p)) {
        rd_kafka_message_t *m = rd_kafka_consume_queue(p->queue, 0);
        if (!m) return 0;
        if (m->err) {
            told(p, m);
            continue;
        }
        p->early = m;
        if (p->topic) p->early_due = kafka_record_due(m);
    }
    int64_t at = p->early ? rd_kafka_message_timestamp(p->early, &kind) : 0;
    return at > 0 ? at : 0;
}

static size_t take(kafka_part *p, mw_incoming *in, size_t most, size_t *bytes) {
    size_t n = 0;
    while (n < most && *bytes && may_read(p)) {
        rd_kafka_message_t *m = next_message(p);
        if (!m) break;
        if (m->err) {
            told(p, m);
            continue;
        }
        p->sub->taken_bytes += m->len + m->key_len;
        p->sub->taken_count++;
        if (received(p, m, n == 0, &in[n])) {
            size_t size = mw_message_size(in[n++].msg);
            *bytes -= size < *bytes ? size : *bytes;
        }
    }
    return n;
}

size_t kafka_parts_deliver(kafka_sub *s) {
    mw_incoming in[BATCH];
    size_t bytes, n = 0, idle = 0;
    if (s->paused || !s->part_count || kafka_commit_late(s)) return 0;
    size_t most = s->conn->host->room(s->source, &bytes);
    if (most > BATCH) most = BATCH;
    while (n < most && bytes && idle < s->part_count) {
        kafka_part *p = s->parts[s->turn++ % s->part_count];
        size_t got = take(p, in + n, most - n < SHARE ? most - n : SHARE, &bytes);
        idle = got ? 0 : idle + 1;
        n += got;
    }
    kafka_ahead_taken(s);
    if (n) {
        kafka_up(s->conn);
        s->conn->host->deliver(s->source, in, n);
    }
    if (s->gone) kafka_gone(s);
    return n;
}

/* ---- where a message stands ---- */

static const char *topic_of(const kafka_sub *s, uint32_t unit) {
    uint32_t topic = unit >> TOPIC_SHIFT;
    return s->topics[topic < s->topic_count ? topic : 0];
}

static uint32_t partition_of(uint32_t unit) { return unit & ((1u << TOPIC_SHIFT) - 1); }

size_t kafka_locate(const mw_sub *sub, uint64_t tag, uint32_t unit, char *out, size_t size) {
    return kafka_record_name(topic_of((const kafka_sub *)sub, unit), (int32_t)partition_of(unit),
                             kafka_tag_offset(tag), out, size);
}

static void add_number(mw_headers *out, const char *name, uint64_t value, int bytes) { /* as Java writes it */
    char text[8];
    for (int i = 0; i < bytes; i++) text[i] = (char)(value >> (8 * (bytes - 1 - i)));
    mw_headers_add(out, name, strlen(name), text, (size_t)bytes);
}

static void add_text(mw_headers *out, const char *name, const char *value, size_t len) {
    mw_headers_add(out, name, strlen(name), value, len);
}

typedef struct origin {
    const char *topic;
    size_t topic_len;
    uint32_t partition;
    uint64_t offset;
} origin;

/* One that came through retry topics says where it stood before. */
static origin origin_of(const kafka_sub *s, const mw_origin *o, const mw_parts *parts) {
    origin at;
    mw_header h;
    if (mw_headers_find(parts->headers, parts->headers_len, MW_TIER_ORIGIN, &h) &&
        kafka_record_place(h.value, h.value_len, &at.topic_len, &at.partition, &at.offset)) {
        at.topic = h.value;
    } else {
        at.topic = topic_of(s, o->unit);
        at.topic_len = strlen(at.topic);
        at.partition = partition_of(o->unit);
        at.offset = kafka_tag_offset(o->tag);
    }
    return at;
}

void kafka_origin(mw_sub *sub, const mw_origin *o, mw_headers *out) {
    kafka_sub *s = (kafka_sub *)sub;
    mw_parts parts;
    mw_message_parts(o->msg, &parts);
    origin at = origin_of(s, o, &parts);
    mw_headers_addf(out, "mw-dead-topic", "%.*s", (int)at.topic_len, at.topic);
    mw_headers_addf(out, "mw-dead-partition", "%u", at.partition);
    mw_headers_addf(out, "mw-dead-offset", "%llu", (unsigned long long)at.offset);
    if (!s->conn->spring) return;
    add_text(out, "kafka_dlt-original-topic", at.topic, at.topic_len);
    add_number(out, "kafka_dlt-original-partition", at.partition, 4);
    add_number(out, "kafka_dlt-original-offset", at.offset, 8);
    add_number(out, "kafka_dlt-original-timestamp", (uint64_t)parts.time_ms, 8);
    add_text(out, "kafka_dlt-original-timestamp-type", "CreateTime", 10);
    add_text(out, "kafka_dlt-original-consumer-group", s->group, strlen(s->group));
    add_text(out, "kafka_dlt-exception-fqcn", "moonwire", 8);
    add_text(out, "kafka_dlt-exception-message", o->reason, o->reason_len);
}
