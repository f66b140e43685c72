/* record.c - a Kafka record and a message, both ways. Kafka has key, value, headers and a time. Our id, type
 * and priority travel as headers: mw-id, content-type, mw-priority. A record without an id gets
 * "topic-partition-offset", which is the same whenever it is read. A record without a value (a tombstone) has
 * the header mw-tombstone. */
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
        return false;
    }
    return true;
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

static size_t number(char *out, uint64_t v) {
    char digits[20];
    size_t n = 0;
    do digits[n++] = (char)('0' + v % 10);
    while (v /= 10);
    for (size_t i = 0; i < n; i++) out[i] = digits[n - 1 - i];
    return n;
}

mw_message *kafka_record_read(const rd_kafka_message_t *m, const char *prefix, size_t prefix_len,
                              mw_buf *space, kafka_retry *retry) {
    char id[MW_ID_MAX];
    mw_parts p = {.body = m->payload ? m->payload : "",
                  .body_len = m->len,
                  .key = m->key,
                  .key_len = m->key_len <= MW_KEY_MAX ? m->key_len : MW_KEY_MAX,
                  .has_key = m->key != NULL,
                  .priority = MW_PRIORITY_DEFAULT};
    mw_headers block = {space->data, 0, space->capacity};
    rd_kafka_headers_t *list;
    if (!rd_kafka_message_headers(m, &list)) read_headers(list, &p, &block, retry);
    if (!m->payload) mw_headers_add(&block, TOMBSTONE, sizeof TOMBSTONE - 1, "1", 1);
    *space = (mw_buf){block.data, 0, block.capacity};
    if (!p.id) {
        if (prefix_len > sizeof id - 20) prefix_len = sizeof id - 20;
        memcpy(id, prefix, prefix_len);
        p.id = id;
        p.id_len = prefix_len + number(id + prefix_len, (uint64_t)m->offset);
    }
    p.headers = block.data;
    p.headers_len = block.len;
    rd_kafka_timestamp_type_t kind;
    int64_t time = rd_kafka_message_timestamp(m, &kind);
    if (!p.time_ms && time > 0) p.time_ms = time;
    return mw_message_new(&p);
}

bool kafka_record_is_tombstone(const mw_parts *p) {
    mw_header h;
    return !p->body_len && mw_headers_find(p->headers, p->headers_len, TOMBSTONE, &h);
}

rd_kafka_headers_t *kafka_record_headers(const mw_parts *p) {
    rd_kafka_headers_t *list = rd_kafka_headers_new(8);
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
