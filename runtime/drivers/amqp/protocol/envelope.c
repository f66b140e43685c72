#include "drivers/amqp/protocol/envelope.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/uuid.h"

enum {
    HAS_TYPE = 1 << 15,
    HAS_ENCODING = 1 << 14,
    HAS_HEADERS = 1 << 13,
    HAS_MODE = 1 << 12,
    HAS_PRIORITY = 1 << 11,
    HAS_CORRELATION = 1 << 10,
    HAS_REPLY_TO = 1 << 9,
    HAS_EXPIRATION = 1 << 8,
    HAS_ID = 1 << 7,
    HAS_TIME = 1 << 6,
    HAS_KIND = 1 << 5,
    HAS_USER = 1 << 4,
    HAS_APP = 1 << 3,
    HAS_CLUSTER = 1 << 2,
};
enum { BASIC = 60, PERSISTENT = 2, MOST_FAILURES = 1000000 };

/* Properties that are headers on our side, in the order in which they stand on the wire. */
static const struct property {
    uint16_t flag;
    const char *name;
} properties[] = {
    {HAS_ENCODING, "content-encoding"},
    {HAS_CORRELATION, "correlation-id"},
    {HAS_REPLY_TO, "reply-to"},
    {HAS_EXPIRATION, "expiration"},
    {HAS_KIND, "amqp-type"},
    {HAS_APP, "amqp-app-id"},
};
enum { PROPERTIES = sizeof properties / sizeof *properties };

static bool is(rmq_str s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

static void add_header(rmq_envelope *e, rmq_str name, rmq_str value) {
    if (e->headers->len + name.len + value.len + 16 <= MW_HEADERS_MAX)
        mw_headers_add(e->headers, name.data, name.len, value.data, value.len);
    else
        e->invalid = "its headers are over 1 MB as text";
}

static void add(rmq_envelope *e, const char *name, rmq_str value) {
    add_header(e, (rmq_str){name, strlen(name)}, value);
}

/* ---- reading ---- */

static bool begins(rmq_str s, const char *text) {
    size_t n = strlen(text);
    return s.len >= n && memcmp(s.data, text, n) == 0;
}

/* Deaths in our own delay queues are no news. A death by rejection in the queue itself was an attempt. */
static bool read_deaths(const rmq_value *v, const char *queue, uint32_t *rejected) {
    bool foreign = false;
    rmq_reader r = v->inside;
    rmq_value death, name, reason, count;
    if (v->type != 'A') return true;
    while (r.at != r.end && rmq_value_read(&r, &death)) {
        if (death.type != 'F' || !rmq_table_find(death.inside, "queue", &name)) continue;
        if (begins(name.text, "mw.delay.")) continue;
        foreign = true;
        if (queue && is(name.text, queue) && rmq_table_find(death.inside, "reason", &reason) &&
            is(reason.text, "rejected") && rmq_table_find(death.inside, "count", &count) && count.number > 0)
            *rejected += count.number < MOST_FAILURES ? (uint32_t)count.number : MOST_FAILURES;
    }
    return foreign;
}

static void add_value(rmq_envelope *e, rmq_str name, const rmq_value *v) {
    if (!name.len) return; /* a header of ours has a name */
    if (v->type == 'S' || v->type == 'x') {
        add_header(e, name, v->text);
        return;
    }
    mw_buf text = {0};
    rmq_value_text(v, &text);
    add_header(e, name, (rmq_str){text.data, text.len});
    mw_buf_free(&text);
}

/* Of a message that waits in a delay queue, or for somebody to look at a dead letter: as a property it would
 * end that. */
static const char KEPT_EXPIRATION[] = "mw-expiration";

static void read_own(rmq_envelope *e, rmq_str name, const rmq_value *v) {
    if (is(name, "mw-key") && v->text.len > MW_KEY_MAX) {
        e->invalid = "its key (header mw-key) is too long";
        add_value(e, (rmq_str){"amqp-mw-key", 11}, v);
    } else if (is(name, "mw-key")) {
        e->parts.key = v->text.data ? v->text.data : "";
        e->parts.key_len = v->text.len;
        e->parts.has_key = v->type == 'S' || v->type == 'x';
    } else if (is(name, "mw-time")) {
        if (v->number > 0) e->parts.time_ms = v->number;
    } else if (is(name, "mw-attempts")) {
        e->failures = v->number > 0 && v->number < MOST_FAILURES ? (uint32_t)v->number : 0;
    } else if (is(name, "mw-first-error")) {
        e->first_error = v->text;
    } else if (is(name, "mw-x-death")) {
        add_value(e, (rmq_str){"x-death", 7}, v);
    } else if (is(name, KEPT_EXPIRATION)) {
        add_value(e, (rmq_str){"expiration", 10}, v);
    } else {
        add_value(e, name, v);
    }
}

/* Our headers are text. Those of others that are not keep their types beside it, as they came, so that a
 * retry or a dead letter can write them as they were. */
static const char TYPED[] = "amqp-headers";

static bool keeps_type(rmq_str name, const rmq_value *v) {
    return v->type != 'S' && name.len && !begins(name, "mw-") && !is(name, "x-death") &&
           !is(name, "x-delivery-count") && !is(name, "x-stream-offset");
}

/* Of a message that waited in a delay queue of ours the broker says that it died there. */
static bool tells_of_delay(rmq_reader table, rmq_str name) {
    bool first = begins(name, "x-first-death-");
    rmq_value v;
    if (!first && !begins(name, "x-last-death-")) return false;
    return rmq_table_find(table, first ? "x-first-death-queue" : "x-last-death-queue", &v) && v.type == 'S' &&
           begins(v.text, "mw.delay.");
}

static void read_headers(rmq_envelope *e, rmq_reader table, const char *queue) {
    static mw_buf typed;
    rmq_reader whole = table;
    rmq_str name;
    rmq_value v;
    uint32_t rejected = 0;
    typed.len = 0;
    for (const unsigned char *at = table.at; rmq_field(&table, &name, &v); at = table.at) {
        if (is(name, TYPED)) continue;
        if (e->invalid && !rmq_value_valid(&v)) continue;
        if (keeps_type(name, &v)) mw_buf_add(&typed, at, (size_t)(table.at - at));
        if (v.type == 'l' && v.number >= 0 && is(name, "x-stream-offset")) {
            e->has_offset = true;
            e->offset = (uint64_t)v.number;
        }
        if (begins(name, "mw-"))
            read_own(e, name, &v);
        else if (!begins(name, "x-"))
            add_value(e, name, &v);
        else if (is(name, "x-death") ? read_deaths(&v, queue, &rejected) : !tells_of_delay(whole, name))
            add_value(e, name, &v);
    }
    if (!e->failures) e->failures = rejected;
    if (typed.len && e->headers->len + typed.len + 64 < MW_HEADERS_MAX)
        add(e, TYPED, (rmq_str){typed.data, typed.len});
}

static rmq_str property(rmq_reader *r, uint16_t flags, uint16_t flag) {
    rmq_str s = flags & flag ? rmq_short(r) : (rmq_str){NULL, 0};
    return r->bad ? (rmq_str){NULL, 0} : s;
}

bool rmq_envelope_read(rmq_reader r, const rmq_route *route, mw_headers *scratch, rmq_envelope *e,
                       uint64_t *body_size) {
    static char made[40];
    rmq_str found[PROPERTIES], id;
    rmq_reader table = {0};
    uint64_t seconds = 0;
    scratch->len = 0;
    *e = (rmq_envelope){.headers = scratch};
    e->parts.priority = MW_PRIORITY_DEFAULT;
    bool basic = rmq_u16(&r) == BASIC;
    rmq_u16(&r); /* weight */
    *body_size = rmq_u64(&r);
    uint16_t flags = rmq_u16(&r);
    if (!basic || flags & 3) r.bad = true; /* more flags, or one that does not exist */
    rmq_str type = property(&r, flags, HAS_TYPE);
    found[0] = property(&r, flags, HAS_ENCODING);
    if (flags & HAS_HEADERS) table = rmq_table(&r);
    if (flags & HAS_MODE) rmq_u8(&r);
    if (flags & HAS_PRIORITY) e->parts.priority = rmq_u8(&r);
    found[1] = e->correlation = property(&r, flags, HAS_CORRELATION);
    found[2] = e->reply_to = property(&r, flags, HAS_REPLY_TO);
    found[3] = property(&r, flags, HAS_EXPIRATION);
    id = property(&r, flags, HAS_ID);
    if (flags & HAS_TIME) seconds = rmq_u64(&r);
    found[4] = property(&r, flags, HAS_KIND);
    rmq_str user = property(&r, flags, HAS_USER);
    found[5] = property(&r, flags, HAS_APP);
    if (r.bad)
        e->invalid = "its properties are cut short";
    else if (!rmq_table_valid(table))
        e->invalid = "its header table is malformed, or over 512 tables deep";

    if (e->parts.priority > MW_PRIORITY_MAX) e->parts.priority = MW_PRIORITY_MAX;
    e->parts.time_ms = seconds < INT64_MAX / 1000 ? (int64_t)seconds * 1000 : 0;
    for (size_t i = 0; i < PROPERTIES; i++)
        if (flags & properties[i].flag && found[i].data) add(e, properties[i].name, found[i]);
    if (flags & HAS_USER && user.data) add(e, "amqp-user-id", user);
    if (flags & HAS_HEADERS) read_headers(e, table, route->queue);
    if (route->exchange.len) {
        add(e, "amqp-exchange", route->exchange);
        add(e, "amqp-routing-key", route->key);
    }
    e->has_id = id.len > 0;
    if (!e->has_id) { /* it has to have one: dead letters are found by it */
        mw_uuid(made);
        id = (rmq_str){made, strlen(made)};
    }
    e->parts.id = id.data;
    e->parts.id_len = id.len;
    e->parts.type = type.data;
    e->parts.type_len = type.len;
    e->parts.headers = scratch->data;
    e->parts.headers_len = scratch->len;
    return !e->invalid;
}

/* ---- writing ---- */

/* Headers that stand for a property, or that only the broker may write. */
static int place_of(const mw_header *h) {
    rmq_str name = {h->name, h->name_len};
    for (int i = 0; i < PROPERTIES; i++)
        if (is(name, properties[i].name) && h->value_len <= 255) return i;
    return -1;
}

static bool is_brokers_own(const mw_header *h) {
    rmq_str name = {h->name, h->name_len};
    return is(name, "amqp-user-id") || is(name, "x-delivery-count") || is(name, "x-stream-offset") ||
           is(name, TYPED);
}

static bool is_number(const mw_header *h) {
    for (size_t i = 0; i < h->value_len; i++)
        if (h->value[i] < '0' || h->value[i] > '9') return false;
    return h->value_len > 0 && h->value_len < 11;
}

/* The header as it came, unless a handler has changed its text since. */
static bool put_typed(mw_buf *b, const mw_header *h, rmq_reader typed) {
    static mw_buf text;
    const unsigned char *at = typed.at;
    rmq_str name;
    rmq_value v;
    for (; rmq_field(&typed, &name, &v); at = typed.at) {
        if (name.len != h->name_len || memcmp(name.data, h->name, name.len) != 0) continue;
        text.len = 0;
        rmq_value_text(&v, &text);
        if (text.len != h->value_len || (text.len && memcmp(text.data, h->value, text.len) != 0))
            return false;
        mw_buf_add(b, at, (size_t)(typed.at - at));
        return true;
    }
    return false;
}

static rmq_reader typed_of(const mw_parts *p) {
    mw_header h;
    rmq_reader none = {0};
    if (!p->headers_len || !mw_headers_find(p->headers, p->headers_len, TYPED, &h)) return none;
    const unsigned char *data = (const unsigned char *)h.value;
    rmq_reader r = {data, data + h.value_len, false};
    return rmq_table_valid(r) ? r : none;
}

static void put_header(mw_buf *b, const mw_header *h) {
    rmq_str name = {h->name, h->name_len};
    if (is(name, "x-death")) /* the broker's own, and not a text to it */
        rmq_put_string(b, "mw-x-death");
    else
        rmq_put_short(b, h->name, h->name_len);
    rmq_put_u8(b, 'S');
    rmq_put_long(b, h->value, h->value_len);
}

static bool outlives(const mw_parts *p, const rmq_stamp *stamp) {
    mw_header reason;
    return (stamp && stamp->waits) || mw_headers_find(p->headers, p->headers_len, "mw-dead-reason", &reason);
}

static void put_table(mw_buf *b, const mw_parts *p, const rmq_stamp *stamp, mw_header *found,
                      uint16_t *flags) {
    size_t mark = rmq_open(b), at = 0;
    rmq_reader typed = typed_of(p);
    if (p->has_key) {
        rmq_put_field(b, "mw-key", 'S');
        rmq_put_long(b, p->key, p->key_len);
    }
    if (p->time_ms) rmq_put_number(b, "mw-time", p->time_ms);
    if (stamp && stamp->failures) rmq_put_number(b, "mw-attempts", stamp->failures);
    if (stamp && stamp->first_error) {
        rmq_put_field(b, "mw-first-error", 'S');
        rmq_put_long(b, stamp->first_error->data, stamp->first_error->len);
    }
    for (mw_header h; mw_headers_next(p->headers, p->headers_len, &at, &h);) {
        int place = place_of(&h);
        if (place >= 0 && properties[place].flag == HAS_EXPIRATION && outlives(p, stamp)) {
            rmq_put_field(b, KEPT_EXPIRATION, 'S');
            rmq_put_long(b, h.value, h.value_len);
        } else if (place >= 0 && (properties[place].flag != HAS_EXPIRATION || is_number(&h))) {
            found[place] = h;
            *flags |= properties[place].flag;
        } else if (!is_brokers_own(&h) && !(typed.at != typed.end && put_typed(b, &h, typed))) {
            put_header(b, &h);
        }
    }
    rmq_close(b, mark);
}

static void put_found(mw_buf *b, uint16_t flags, const mw_header *found, int place) {
    if (flags & properties[place].flag) rmq_put_short(b, found[place].value, found[place].value_len);
}

void rmq_envelope_write(mw_buf *b, const mw_parts *p, const rmq_stamp *stamp) {
    mw_header found[PROPERTIES];
    rmq_put_u16(b, BASIC);
    rmq_put_u16(b, 0);
    rmq_put_u64(b, p->body_len);
    size_t flags_at = b->len;
    uint16_t flags = HAS_HEADERS | HAS_MODE | HAS_PRIORITY;
    rmq_put_u16(b, 0);
    if (p->type_len) {
        flags |= HAS_TYPE;
        rmq_put_short(b, p->type, p->type_len);
    }
    static mw_buf table; /* a place of its own: the encoding stands before the table in which it is found */
    table.len = 0;
    put_table(&table, p, stamp, found, &flags);
    put_found(b, flags, found, 0);
    mw_buf_add(b, table.data, table.len);
    rmq_put_u8(b, PERSISTENT);
    rmq_put_u8(b, p->priority);
    put_found(b, flags, found, 1);
    put_found(b, flags, found, 2);
    put_found(b, flags, found, 3);
    if (p->id_len) {
        flags |= HAS_ID;
        rmq_put_short(b, p->id, p->id_len);
    }
    if (p->time_ms > 0) {
        flags |= HAS_TIME;
        rmq_put_u64(b, (uint64_t)p->time_ms / 1000);
    }
    put_found(b, flags, found, 4);
    put_found(b, flags, found, 5);
    b->data[flags_at] = (char)(flags >> 8);
    b->data[flags_at + 1] = (char)flags;
}

uint64_t rmq_identity(const mw_parts *p, bool has_id) {
    if (has_id) return mw_hash64(p->id, p->id_len);
    uint64_t all[3] = {mw_hash64(p->body, p->body_len), mw_hash64(p->headers, p->headers_len),
                       (uint64_t)p->time_ms};
    return mw_hash64(all, sizeof all);
}
