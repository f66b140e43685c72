/* entry.c - a message as the fields of an entry, and back:
 *   body      the body, under this name or the channel's body_field
 *   id, key, type, time (ms since 1970), priority     where they say something
 *   h:NAME    a header
 * Entries of other programs have other fields: those become headers under their own names, and what is
 * missing comes from the entry's id. A dead letter remembers the body_field of where it died: a replay by
 * somebody who does not know that channel's options says it in a header, which is not written. */
#include <stdlib.h>
#include <string.h>

#include "base/uuid.h"
#include "drivers/redis/redis.h"

enum { HEADERS_MOST = 1000 }; /* a script can pass on about 8,000 arguments */

/* ---- ids ---- */

size_t mwr_id_print(mwr_id id, char out[MWR_ID_TEXT]) {
    size_t n = mwr_print_number(out, id.ms);
    out[n++] = '-';
    n += mwr_print_number(out + n, id.seq);
    out[n] = 0;
    return n;
}

bool mwr_id_read(const char *s, size_t len, mwr_id *out) {
    uint64_t part[2] = {0, 0};
    int at = 0;
    if (!len || len > 41) return false;
    for (const char *end = s + len; s < end; s++) {
        if (*s == '-' && at == 0) {
            at = 1;
            continue;
        }
        if (*s < '0' || *s > '9') return false;
        part[at] = part[at] * 10 + (uint64_t)(*s - '0');
    }
    *out = (mwr_id){part[0], part[1]};
    return at == 1;
}

void mwr_write_id(mw_buf *b, mwr_id id) {
    char text[MWR_ID_TEXT];
    mwr_write(b, text, mwr_id_print(id, text));
}

/* ---- reading ---- */

static bool is(const char *name, size_t len, const char *what, size_t what_len) {
    return len == what_len && memcmp(name, what, len) == 0;
}
#define IS(text) is(name, name_len, text, sizeof text - 1)

static void add_header(mw_headers *h, const char *name, size_t name_len, const char *value, size_t len) {
    if (name_len && name_len <= MW_HEADER_NAME_MAX && h->len + name_len + len + 8 <= MW_HEADERS_MAX)
        mw_headers_add(h, name, name_len, value, len);
}

static int64_t number_of(const char *text, size_t len, int64_t otherwise) {
    int64_t n = 0;
    if (!len || len > 18) return otherwise;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return otherwise;
        n = n * 10 + (text[i] - '0');
    }
    return n;
}

static void read_field(mw_parts *p, mw_headers *h, const char *body, size_t body_len, const char *name,
                       size_t name_len, const char *value, size_t len) {
    if (is(name, name_len, body, body_len)) {
        p->body = value;
        p->body_len = len;
    } else if (IS("id") && len && len <= MW_ID_MAX) {
        p->id = value;
        p->id_len = len;
    } else if (IS("time")) {
        p->time_ms = number_of(value, len, p->time_ms);
    } else if (IS("key") && len <= MW_KEY_MAX) {
        p->key = value;
        p->key_len = len;
        p->has_key = true;
    } else if (IS("type") && len <= 255) {
        p->type = value;
        p->type_len = len;
    } else if (IS("priority")) {
        int64_t n = number_of(value, len, MW_PRIORITY_DEFAULT);
        p->priority = (uint8_t)(n > MW_PRIORITY_MAX ? MW_PRIORITY_MAX : n);
    } else if (name_len > 2 && memcmp(name, "h:", 2) == 0) {
        add_header(h, name + 2, name_len - 2, value, len);
    } else {
        add_header(h, name, name_len, value, len);
    }
}

mw_message *mwr_entry_message(const mwr_channel *c, const mwr_unit *u, const mwr_node *fields, mwr_id id) {
    char own_id[MWR_ID_TEXT];
    mw_headers h = {0};
    const char *body = c->body_field ? c->body_field : "body";
    size_t body_len = strlen(body);
    mw_parts p = {.body = "",
                  .key = "",
                  .id = own_id,
                  .id_len = mwr_id_print(id, own_id),
                  .type = "",
                  .priority = MW_PRIORITY_DEFAULT,
                  .time_ms = id.ms < INT64_MAX ? (int64_t)id.ms : 0};
    const mwr_node *n = fields + 1;
    for (uint32_t i = 0; fields->type == MWR_ARRAY && i + 1 < fields->count; i += 2) {
        size_t name_len, len;
        const char *name = mwr_text(u, n, &name_len);
        const mwr_node *value = n + n->span;
        const char *text = mwr_text(u, value, &len);
        read_field(&p, &h, body, body_len, name, name_len, text, len);
        n = value + value->span;
    }
    p.headers = h.data;
    p.headers_len = h.len;
    mw_error e;
    if (mw_message_check(&p, &e)) { /* not from us: what can be had of it is its body */
        p.headers_len = p.type_len = 0;
        p.has_key = false;
    }
    mw_message *m = mw_message_new(&p);
    mw_headers_free(&h);
    return m;
}

/* ---- writing ---- */

static const char FORM[] = "mw-body-field"; /* lua/moonwire/cli/dlq/replay.lua */

static bool is_form(const mw_header *h) { return is(h->name, h->name_len, FORM, sizeof FORM - 1); }

static uint32_t header_count(const mw_parts *p) {
    uint32_t n = 0;
    size_t at = 0;
    for (mw_header h; mw_headers_next(p->headers, p->headers_len, &at, &h);) n += !is_form(&h);
    return n;
}

size_t mwr_entry_count(const mw_parts *p) {
    return 2 * (3 + (size_t)p->has_key + (p->type_len > 0) + (p->priority != MW_PRIORITY_DEFAULT) +
                header_count(p));
}

static void field(mw_buf *b, const char *name, const char *value, size_t len) {
    mwr_write_text(b, name);
    mwr_write(b, value, len);
}

void mwr_entry_write(mw_buf *b, const mwr_channel *c, const mw_parts *p) {
    char number[24];
    field(b, "id", p->id, p->id_len);
    field(b, "time", number, mwr_print_number(number, p->time_ms > 0 ? (uint64_t)p->time_ms : 0));
    if (p->has_key) field(b, "key", p->key, p->key_len);
    if (p->type_len) field(b, "type", p->type, p->type_len);
    if (p->priority != MW_PRIORITY_DEFAULT)
        field(b, "priority", number, mwr_print_number(number, p->priority));
    const char *body = c->body_field ? c->body_field : "body";
    size_t at = 0, body_len = strlen(body);
    for (mw_header h; mw_headers_next(p->headers, p->headers_len, &at, &h);) {
        if (is_form(&h)) {
            if (!c->body_field) body = h.value, body_len = h.value_len;
            continue;
        }
        char name[MW_HEADER_NAME_MAX + 2] = "h:";
        memcpy(name + 2, h.name, h.name_len);
        mwr_write(b, name, h.name_len + 2);
        mwr_write(b, h.value, h.value_len);
    }
    mwr_write(b, body, body_len);
    mwr_write(b, p->body, p->body_len);
}

int mwr_publication_check(const mw_conn *c, const mw_publication *p, mw_error *e) {
    mw_parts parts;
    mw_message_parts(p->msg, &parts);
    if (parts.body_len > c->target.max_message)
        return mw_fail(e, MW_EUSAGE, false,
                       "redis: a body of %zu bytes; at most %zu MiB are taken: ?max_message=MIB, up to 512",
                       parts.body_len, c->target.max_message >> 20);
    if (header_count(&parts) > HEADERS_MOST)
        return mw_fail(e, MW_EUSAGE, false, "redis takes up to %d headers", HEADERS_MOST);
    return 0;
}

/* ---- as arguments of a script; a delayed one begins with a number of its own, for the set keeps no twins
 * ---- */

size_t mwr_publication_count(const mw_publication *p) {
    mw_parts parts;
    mw_message_parts(p->msg, &parts);
    return 3 + (p->delay_ms > 0) + mwr_entry_count(&parts);
}

void mwr_publication_write(mw_conn *c, mw_buf *b, const mw_publication *p) {
    mw_parts parts;
    mwr_channel *channel = mwr_channel_of(c, p->channel);
    mw_message_parts(p->msg, &parts);
    bool later = p->delay_ms > 0;
    mwr_write_text(b, later ? "z" : "x");
    mwr_write_number(b, later ? p->delay_ms : (int64_t)channel->trim_count);
    mwr_write_number(b, (int64_t)mwr_entry_count(&parts) + later);
    if (later) mwr_write_number(b, (int64_t)(mw_random64() >> 1));
    mwr_entry_write(b, channel, &parts);
}

char *mwr_publication_key(const mw_publication *p) {
    if (p->delay_ms > 0) return mwr_key_beside(p->channel, "delayed", "");
    char *key = strdup(p->channel);
    if (!key) abort();
    return key;
}
