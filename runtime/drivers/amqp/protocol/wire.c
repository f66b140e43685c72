#include "drivers/amqp/protocol/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- reading ---- */

rmq_reader rmq_table(rmq_reader *r) {
    rmq_str s = rmq_long(r);
    const unsigned char *p = (const unsigned char *)s.data;
    return (rmq_reader){p, p + s.len, r->bad};
}

static double real_of(uint64_t bits, bool wide) {
    double d;
    float f;
    uint32_t half = (uint32_t)bits;
    if (wide) {
        memcpy(&d, &bits, sizeof d);
        return d;
    }
    memcpy(&f, &half, sizeof f);
    return (double)f;
}

/* The letters are RabbitMQ's, which differ from the specification's. */
bool rmq_value_read(rmq_reader *r, rmq_value *out) {
    *out = (rmq_value){.type = (char)rmq_u8(r)};
    switch (out->type) {
    case 't': out->number = rmq_u8(r) != 0; break;
    case 'b': out->number = (int8_t)rmq_u8(r); break;
    case 'B': out->number = rmq_u8(r); break;
    case 's': out->number = (int16_t)rmq_u16(r); break;
    case 'u': out->number = rmq_u16(r); break;
    case 'I': out->number = (int32_t)rmq_u32(r); break;
    case 'i': out->number = rmq_u32(r); break;
    case 'l':
    case 'L':
    case 'T': out->number = (int64_t)rmq_u64(r); break;
    case 'f': out->real = real_of(rmq_u32(r), false); break;
    case 'd': out->real = real_of(rmq_u64(r), true); break;
    case 'D':
        out->scale = rmq_u8(r);
        out->number = (int32_t)rmq_u32(r);
        break;
    case 'S':
    case 'x': out->text = rmq_long(r); break;
    case 'F':
    case 'A': out->inside = rmq_table(r); break;
    case 'V': break;
    default: r->bad = true;
    }
    return !r->bad;
}

bool rmq_field(rmq_reader *table, rmq_str *name, rmq_value *out) {
    if (table->bad || table->at == table->end) return false;
    *name = rmq_short(table);
    return rmq_value_read(table, out);
}

static bool valid(rmq_reader r, bool array, int depth) {
    if (depth > RMQ_TABLE_DEPTH) return false;
    while (!r.bad && r.at != r.end) {
        rmq_value v;
        if (!array) rmq_short(&r);
        if (!rmq_value_read(&r, &v)) return false;
        if ((v.type == 'F' || v.type == 'A') && !valid(v.inside, v.type == 'A', depth + 1)) return false;
    }
    return !r.bad;
}

bool rmq_table_valid(rmq_reader table) { return valid(table, false, 0); }

bool rmq_value_valid(const rmq_value *v) {
    return (v->type != 'F' && v->type != 'A') || valid(v->inside, v->type == 'A', 1);
}

bool rmq_table_find(rmq_reader table, const char *name, rmq_value *out) {
    rmq_str found;
    size_t len = strlen(name);
    while (rmq_field(&table, &found, out))
        if (found.len == len && memcmp(found.data, name, len) == 0) return true;
    return false;
}

/* ---- values as text: scalars plainly, tables and arrays as JSON ---- */

static void timestamp(int64_t seconds, mw_buf *out) {
    time_t t = (time_t)seconds;
    struct tm tm;
    char text[40];
    if (seconds < 0 || seconds > 253402300799 || !gmtime_r(&t, &tm)) { /* outside of years with four digits */
        mw_buf_printf(out, "%" PRId64, seconds);
        return;
    }
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    mw_buf_puts(out, text);
}

static void decimal(const rmq_value *v, mw_buf *out) {
    char digits[24];
    int64_t n = v->number;
    int len =
        snprintf(digits, sizeof digits, "%0*" PRId64, v->scale < 20 ? v->scale + 1 : 20, n < 0 ? -n : n);
    int whole = len - (v->scale < len ? v->scale : len - 1);
    mw_buf_printf(out, "%s%.*s", n < 0 ? "-" : "", whole, digits);
    if (whole < len) mw_buf_printf(out, ".%s", digits + whole);
}

static void scalar(const rmq_value *v, mw_buf *out) {
    switch (v->type) {
    case 't': mw_buf_puts(out, v->number ? "true" : "false"); break;
    case 'f':
    case 'd': mw_buf_printf(out, "%.17g", v->real); break;
    case 'D': decimal(v, out); break;
    case 'T': timestamp(v->number, out); break;
    case 'S':
    case 'x': mw_buf_add(out, v->text.data, v->text.len); break;
    case 'V': break;
    default: mw_buf_printf(out, "%" PRId64, v->number);
    }
}

static void json(const rmq_value *v, mw_buf *out) {
    if (v->type == 'F' || v->type == 'A') {
        rmq_value_text(v, out);
    } else if (v->type == 'S' || v->type == 'x') {
        mw_buf_json(out, v->text.data, v->text.len);
    } else if (v->type == 'T') {
        mw_buf_add(out, "\"", 1);
        timestamp(v->number, out);
        mw_buf_add(out, "\"", 1);
    } else if (v->type == 'V') {
        mw_buf_puts(out, "null");
    } else if ((v->type == 'f' || v->type == 'd') && !(v->real - v->real == 0)) {
        mw_buf_puts(out, "null"); /* JSON has no infinity */
    } else {
        scalar(v, out);
    }
}

void rmq_value_text(const rmq_value *v, mw_buf *out) { /* of a valid table: the depth is bounded */
    if (v->type != 'F' && v->type != 'A') {
        scalar(v, out);
        return;
    }
    bool array = v->type == 'A', first = true;
    rmq_reader r = v->inside;
    mw_buf_puts(out, array ? "[" : "{");
    while (!r.bad && r.at != r.end) {
        rmq_str name = array ? (rmq_str){"", 0} : rmq_short(&r);
        rmq_value inner;
        if (!rmq_value_read(&r, &inner)) break;
        if (!first) mw_buf_add(out, ",", 1);
        first = false;
        if (!array) {
            mw_buf_json(out, name.data, name.len);
            mw_buf_add(out, ":", 1);
        }
        json(&inner, out);
    }
    mw_buf_puts(out, array ? "]" : "}");
}

/* ---- writing ---- */

static void put(mw_buf *b, uint64_t v, size_t n) {
    unsigned char *p = (unsigned char *)mw_buf_reserve(b, n);
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)(v >> (8 * (n - 1 - i)));
    b->len += n;
}

void rmq_put_u8(mw_buf *b, uint8_t v) { put(b, v, 1); }
void rmq_put_u16(mw_buf *b, uint16_t v) { put(b, v, 2); }
void rmq_put_u32(mw_buf *b, uint32_t v) { put(b, v, 4); }
void rmq_put_u64(mw_buf *b, uint64_t v) { put(b, v, 8); }

void rmq_put_short(mw_buf *b, const char *text, size_t len) {
    if (len > 255) len = 255;
    rmq_put_u8(b, (uint8_t)len);
    mw_buf_add(b, text, len);
}

void rmq_put_string(mw_buf *b, const char *text) { rmq_put_short(b, text, strlen(text)); }

void rmq_put_long(mw_buf *b, const void *data, size_t len) {
    rmq_put_u32(b, (uint32_t)len);
    mw_buf_add(b, data, len);
}

static void put_at(mw_buf *b, size_t at, uint32_t v) {
    for (int i = 0; i < 4; i++) b->data[at + (size_t)i] = (char)(v >> (8 * (3 - i)));
}

size_t rmq_open(mw_buf *b) {
    rmq_put_u32(b, 0);
    return b->len;
}

void rmq_close(mw_buf *b, size_t mark) { put_at(b, mark - 4, (uint32_t)(b->len - mark)); }

void rmq_put_field(mw_buf *b, const char *name, char type) {
    rmq_put_string(b, name);
    rmq_put_u8(b, (uint8_t)type);
}

void rmq_put_text(mw_buf *b, const char *name, const char *text) {
    rmq_put_field(b, name, 'S');
    rmq_put_long(b, text, strlen(text));
}

void rmq_put_number(mw_buf *b, const char *name, int64_t v) {
    rmq_put_field(b, name, 'l');
    rmq_put_u64(b, (uint64_t)v);
}

void rmq_put_bool(mw_buf *b, const char *name, bool v) {
    rmq_put_field(b, name, 't');
    rmq_put_u8(b, v);
}

size_t rmq_frame(mw_buf *b, uint8_t type, uint16_t channel) {
    rmq_put_u8(b, type);
    rmq_put_u16(b, channel);
    return rmq_open(b);
}

size_t rmq_method(mw_buf *b, uint16_t channel, uint32_t method) {
    size_t mark = rmq_frame(b, RMQ_METHOD, channel);
    rmq_put_u32(b, method);
    return mark;
}

void rmq_frame_end(mw_buf *b, size_t mark) {
    rmq_close(b, mark);
    rmq_put_u8(b, RMQ_END);
}
