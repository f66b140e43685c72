/* record.c - a Kafka record and a message, both ways. Kafka has key, value, headers and a time. Our id, type
 * and priority travel as headers: mw-id, content-type, mw-priority. A record without an id gets
 * "topic-partition-offset", which is the same whenever it is read. A record without a value (a tombstone) has
 * the header mw-tombstone.
 *
 * librdkafka makes a list of its own of a record's headers, which costs more than everything else that is
 * done with a small message. So messages begin unread: they keep their record, and read it when somebody asks
 * for the id or the headers. A record keeps the whole fetch response it came with in memory, so it is read
 * anyway when its message is still there after a second. */
#include <stdlib.h>
#include <string.h>

#include "core/message.h"
#include "core/tier.h"
#include "drivers/kafka/kafka.h"

static const char ID[] = "mw-id", TYPE[] = "content-type", PRIORITY[] = "mw-priority",
                  TOMBSTONE[] = "mw-tombstone";

static int64_t whole_number(const char *text, size_t len) { /* -1: it is none */
    int64_t v = 0;
    if (!len || len > 16) return -1;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        v = v * 10 + (text[i] - '0');
    }
    return v;
}

/* true: it was one of a retry channel's own */
static bool read_retry(const char *name, const char *text, size_t len, kafka_retry *r, mw_parts *p) {
    int64_t v = whole_number(text, len);
    if (!strcmp(name, MW_TIER_ATTEMPTS)) {
        r->attempts = v > 0 && v < 1000000 ? (uint32_t)v : 0;
    } else if (!strcmp(name, MW_TIER_DUE)) {
        r->due_ms = v;
    } else if (!strcmp(name, MW_TIER_PUBLISHED)) {
        if (v > 0) p->time_ms = v;
    } else if (!strcmp(name, MW_TIER_ERROR)) {
        if (!r->error) r->error = mw_text_new(text, len < 4096 ? len : 4096);
    } else {
        return strcmp(name, MW_TIER_GROUP) == 0;
    }
    return true;
}

bool kafka_record_is_for(const rd_kafka_message_t *m, const char *group) {
    rd_kafka_headers_t *list;
    const void *value;
    size_t len;
    if (rd_kafka_message_headers(m, &list) || rd_kafka_header_get_last(list, MW_TIER_GROUP, &value, &len) ||
        !value)
        return true;
    return len == strlen(group) && memcmp(value, group, len) == 0;
}

int64_t kafka_record_due(const rd_kafka_message_t *m) {
    rd_kafka_headers_t *list;
    const void *value;
    size_t len;
    if (rd_kafka_message_headers(m, &list) || rd_kafka_header_get_last(list, MW_TIER_DUE, &value, &len) ||
        !value)
        return 0;
    return whole_number(value, len);
}

/* Everything a broker sends is checked: what does not fit our limits stays an ordinary header, or out. */
static void read_headers(rd_kafka_headers_t *list, mw_parts *p, mw_headers *out, kafka_retry *retry) {
    const char *name;
    const void *value;
    size_t len;
    for (size_t i = 0; !rd_kafka_header_get_all(list, i, &name, &value, &len); i++) {
        size_t name_len = strlen(name);
        const char *text = value ? value : "";
        if (!value) len = 0;
        if (retry && read_retry(name, text, len, retry, p)) {
            continue;
        } else if (!p->id && !strcmp(name, ID) && len && len <= MW_ID_MAX) {
            p->id = text;
            p->id_len = len;
        } else if (!p->type && !strcmp(name, TYPE) && len <= MW_ID_MAX) {
            p->type = text;
            p->type_len = len;
        } else if (!strcmp(name, PRIORITY) && len == 1 && *text >= '0' && *text <= '9') {
            p->priority = (uint8_t)(*text - '0');
        } else if (name_len && name_len <= MW_HEADER_NAME_MAX && strcmp(name, TOMBSTONE) != 0 &&
                   out->len + name_len + len + 6 <= MW_HEADERS_MAX + MW_HEADERS_OWN_MAX) {
            mw_headers_add(out, name, name_len, text, len);
        }
    }
}

static char *number(char *end, uint64_t v) { /* before `end`; where it begins */
    do *--end = (char)('0' + v % 10);
    while (v /= 10);
    return end;
}

size_t kafka_record_name(const char *topic, int32_t partition, uint64_t offset, char *out, size_t size) {
    char text[48], *end = text + sizeof text, *at = number(end, offset);
    *--at = '-';
    at = number(at, (uint64_t)partition);
    *--at = '-';
    size_t tail = (size_t)(end - at), head = strlen(topic);
    if (head > size - tail) head = size - tail;
    memcpy(out, topic, head);
    memcpy(out + head, at, tail);
    return head + tail;
}

/* The number behind the last dash before `*len`, which moves there; -1: there is none. */
static int64_t last_number(const char *name, size_t *len) {
    size_t dash = *len;
    while (dash && name[dash - 1] != '-') dash--;
    if (!dash) return -1;
    int64_t v = whole_number(name + dash, *len - dash);
    *len = dash - 1;
    return v;
}

bool kafka_record_place(const char *name, size_t len, size_t *topic_len, uint32_t *partition,
                        uint64_t *offset) {
    int64_t at = last_number(name, &len), part = last_number(name, &len);
    if (at < 0 || part < 0 || part > INT32_MAX || !len) return false;
    *topic_len = len;
    *partition = (uint32_t)part;
    *offset = (uint64_t)at;
    return true;
}

static int64_t time_of(const rd_kafka_message_t *m) {
    rd_kafka_timestamp_type_t kind;
    int64_t time = rd_kafka_message_timestamp(m, &kind);
    return time > 0 ? time : 0;
}

/* What stands in the record itself. */
static mw_parts content_of(const rd_kafka_message_t *m) {
    return (mw_parts){.body = m->payload ? m->payload : "",
                      .body_len = m->len,
                      .key = m->key,
                      .key_len = m->key_len <= MW_KEY_MAX ? m->key_len : MW_KEY_MAX,
                      .has_key = m->key != NULL,
                      .priority = MW_PRIORITY_DEFAULT};
}

/* p: what is known already */
static mw_message *read_rest(const rd_kafka_message_t *m, mw_parts p, mw_buf *space, kafka_retry *retry) {
    char id[MW_ID_MAX];
    mw_headers block = {space->data, 0, space->capacity};
    rd_kafka_headers_t *list;
    if (!rd_kafka_message_headers(m, &list)) read_headers(list, &p, &block, retry);
    if (!m->payload) mw_headers_add(&block, TOMBSTONE, sizeof TOMBSTONE - 1, "1", 1);
    *space = (mw_buf){block.data, 0, block.capacity};
    if (!p.id) {
        p.id_len =
            kafka_record_name(rd_kafka_topic_name(m->rkt), m->partition, (uint64_t)m->offset, id, sizeof id);
        p.id = id;
    }
    p.headers = block.data;
    p.headers_len = block.len;
    if (!p.time_ms) p.time_ms = time_of(m);
    return mw_message_new(&p);
}

mw_message *kafka_record_read(const rd_kafka_message_t *m, mw_buf *space, kafka_retry *retry) {
    return read_rest(m, content_of(m), space, retry);
}

/* ---- unread ---- */

enum { UNREAD_MS = 1000 };

struct kafka_unread {
    kafka_unread *next, *prev; /* from the oldest to the newest */
    rd_kafka_message_t *record;
    mw_message *msg;
    uint64_t since, unused; /* the size is a multiple of 16 */
};

static mw_message *read_unread(void *owner) {
    const kafka_unread *u = owner;
    mw_buf space = {0};
    mw_message *rest = read_rest(u->record, (mw_parts){.priority = MW_PRIORITY_DEFAULT}, &space, NULL);
    mw_buf_free(&space);
    return rest;
}

static void release_unread(void *owner) {
    kafka_unread *u = owner;
    u->prev->next = u->next;
    u->next->prev = u->prev;
    rd_kafka_message_destroy(u->record);
}

static const mw_unread unread = {sizeof(kafka_unread), read_unread, release_unread};

kafka_unread *kafka_unread_new(void) {
    kafka_unread *list = calloc(1, sizeof *list);
    if (!list) abort();
    list->next = list->prev = list;
    return list;
}

mw_message *kafka_record_keep(rd_kafka_message_t *m, kafka_unread *list, uint64_t now) {
    mw_parts p = content_of(m);
    p.time_ms = time_of(m);
    void *owner;
    mw_message *msg = mw_message_new_unread(&p, &unread, &owner);
    kafka_unread *u = owner;
    *u = (kafka_unread){.next = list, .prev = list->prev, .record = m, .msg = msg, .since = now};
    list->prev->next = u;
    list->prev = u;
    return msg;
}

void kafka_unread_read(kafka_unread *list, uint64_t now) {
    while (list->next != list && now - list->next->since >= UNREAD_MS) mw_message_read(list->next->msg);
}

void kafka_unread_free(kafka_unread *list) {
    if (!list) return;
    while (list->next != list) mw_message_read(list->next->msg);
    free(list);
}

bool kafka_record_is_tombstone(const mw_parts *p) {
    mw_header h;
    return !p->body_len && mw_headers_find(p->headers, p->headers_len, TOMBSTONE, &h);
}

rd_kafka_headers_t *kafka_record_headers(const mw_parts *p) {
    rd_kafka_headers_t *list = rd_kafka_headers_new(p->headers_len ? 8 : 2); /* it allocates for so many */
    if (p->id_len) rd_kafka_header_add(list, ID, sizeof ID - 1, p->id, (ssize_t)p->id_len);
    if (p->type_len) rd_kafka_header_add(list, TYPE, sizeof TYPE - 1, p->type, (ssize_t)p->type_len);
    if (p->priority != MW_PRIORITY_DEFAULT) {
        char digit = (char)('0' + p->priority);
        rd_kafka_header_add(list, PRIORITY, sizeof PRIORITY - 1, &digit, 1);
    }
    mw_header h;
    for (size_t at = 0; mw_headers_next(p->headers, p->headers_len, &at, &h);)
        if (h.name_len != sizeof TOMBSTONE - 1 || memcmp(h.name, TOMBSTONE, h.name_len) != 0)
            rd_kafka_header_add(list, h.name, (ssize_t)h.name_len, h.value, (ssize_t)h.value_len);
    return list;
}
