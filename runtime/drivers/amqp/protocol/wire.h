/* wire.h - AMQP 0-9-1 on the wire: frames, methods, field tables. Pure functions over bytes: nothing here
 * knows a socket. Whatever is read came from outside and is checked: a reader that runs out of bytes turns
 * bad and yields zeros from then on, so that callers check once, at the end. */
#pragma once
#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"
#include "core/message.h"

enum { RMQ_METHOD = 1, RMQ_HEADER = 2, RMQ_BODY = 3, RMQ_HEARTBEAT = 8, RMQ_END = 0xCE };
enum { RMQ_FRAME_EXTRA = 8, RMQ_FRAME_MIN = 4096, RMQ_FRAME_MAX = 131072, RMQ_TABLE_DEPTH = 512 };
enum {
    RMQ_RESOURCE_ERROR = 506,
    RMQ_NOT_IMPLEMENTED = 540,
    RMQ_INTERNAL_ERROR = 541
}; /* what a connection is closed with */

#define RMQ_ID(class_id, method) ((uint32_t)(class_id) << 16 | (method))
enum {
    RMQ_START = RMQ_ID(10, 10),
    RMQ_START_OK = RMQ_ID(10, 11),
    RMQ_SECURE = RMQ_ID(10, 20),
    RMQ_TUNE = RMQ_ID(10, 30),
    RMQ_TUNE_OK = RMQ_ID(10, 31),
    RMQ_OPEN = RMQ_ID(10, 40),
    RMQ_OPEN_OK = RMQ_ID(10, 41),
    RMQ_CLOSE = RMQ_ID(10, 50),
    RMQ_CLOSE_OK = RMQ_ID(10, 51),
    RMQ_BLOCKED = RMQ_ID(10, 60),
    RMQ_UNBLOCKED = RMQ_ID(10, 61),
    RMQ_CHANNEL_OPEN = RMQ_ID(20, 10),
    RMQ_CHANNEL_OPEN_OK = RMQ_ID(20, 11),
    RMQ_CHANNEL_FLOW = RMQ_ID(20, 20),
    RMQ_CHANNEL_FLOW_OK = RMQ_ID(20, 21),
    RMQ_CHANNEL_CLOSE = RMQ_ID(20, 40),
    RMQ_CHANNEL_CLOSE_OK = RMQ_ID(20, 41),
    RMQ_EXCHANGE_DECLARE = RMQ_ID(40, 10),
    RMQ_EXCHANGE_DECLARE_OK = RMQ_ID(40, 11),
    RMQ_QUEUE_DECLARE = RMQ_ID(50, 10),
    RMQ_QUEUE_DECLARE_OK = RMQ_ID(50, 11),
    RMQ_QUEUE_BIND = RMQ_ID(50, 20),
    RMQ_QUEUE_BIND_OK = RMQ_ID(50, 21),
    RMQ_QOS = RMQ_ID(60, 10),
    RMQ_QOS_OK = RMQ_ID(60, 11),
    RMQ_CONSUME = RMQ_ID(60, 20),
    RMQ_CONSUME_OK = RMQ_ID(60, 21),
    RMQ_CANCEL = RMQ_ID(60, 30),
    RMQ_CANCEL_OK = RMQ_ID(60, 31),
    RMQ_PUBLISH = RMQ_ID(60, 40),
    RMQ_RETURN = RMQ_ID(60, 50),
    RMQ_DELIVER = RMQ_ID(60, 60),
    RMQ_GET = RMQ_ID(60, 70),
    RMQ_GET_OK = RMQ_ID(60, 71),
    RMQ_GET_EMPTY = RMQ_ID(60, 72),
    RMQ_ACK = RMQ_ID(60, 80),
    RMQ_NACK = RMQ_ID(60, 120),
    RMQ_CONFIRM_SELECT = RMQ_ID(85, 10),
    RMQ_CONFIRM_SELECT_OK = RMQ_ID(85, 11),
};

/* ---- reading ---- */

typedef struct rmq_reader {
    const unsigned char *at, *end;
    bool bad;
} rmq_reader;

typedef struct rmq_str {
    const char *data;
    size_t len;
} rmq_str;

/* Here, to be compiled into their callers: a delivery reads twenty of them. */
static inline const unsigned char *rmq_take(rmq_reader *r, size_t n) {
    if (r->bad || (size_t)(r->end - r->at) < n) {
        r->bad = true;
        return NULL;
    }
    const unsigned char *p = r->at;
    r->at += n;
    return p;
}

static inline uint8_t rmq_u8(rmq_reader *r) {
    const unsigned char *p = rmq_take(r, 1);
    return p ? *p : 0;
}

static inline uint16_t rmq_u16(rmq_reader *r) {
    const unsigned char *p = rmq_take(r, 2);
    return p ? (uint16_t)(p[0] << 8 | p[1]) : 0;
}

static inline uint32_t rmq_u32(rmq_reader *r) {
    const unsigned char *p = rmq_take(r, 4);
    uint32_t v;
    if (!p) return 0;
    memcpy(&v, p, sizeof v);
    return be32toh(v);
}

static inline uint64_t rmq_u64(rmq_reader *r) {
    const unsigned char *p = rmq_take(r, 8);
    uint64_t v;
    if (!p) return 0;
    memcpy(&v, p, sizeof v);
    return be64toh(v);
}

static inline rmq_str rmq_text_of(rmq_reader *r, size_t len) {
    const unsigned char *p = rmq_take(r, len);
    return p ? (rmq_str){(const char *)p, len} : (rmq_str){"", 0};
}

static inline rmq_str rmq_short(rmq_reader *r) { return rmq_text_of(r, rmq_u8(r)); }
static inline rmq_str rmq_long(rmq_reader *r) { return rmq_text_of(r, rmq_u32(r)); }

rmq_reader rmq_table(rmq_reader *r); /* the bytes of a field table */

typedef struct rmq_value { /* one field of a table */
    char type;             /* the letter on the wire */
    int64_t number;        /* t b B s u I i l L T, and D without its scale */
    double real;           /* f d */
    uint8_t scale;         /* D */
    rmq_str text;          /* S x */
    rmq_reader inside;     /* F A */
} rmq_value;

bool rmq_value_read(rmq_reader *r, rmq_value *out);               /* without its name; false: bad */
bool rmq_field(rmq_reader *table, rmq_str *name, rmq_value *out); /* false at the end, or when bad */
bool rmq_table_valid(rmq_reader table);   /* well-formed, and not deeper than RMQ_TABLE_DEPTH */
bool rmq_value_valid(const rmq_value *v); /* likewise */
bool rmq_table_find(rmq_reader table, const char *name, rmq_value *out);
void rmq_value_text(const rmq_value *v, mw_buf *out); /* as text: see docs/brokers/rabbitmq.md */

/* ---- writing ---- */

void rmq_put_u8(mw_buf *b, uint8_t v);
void rmq_put_u16(mw_buf *b, uint16_t v);
void rmq_put_u32(mw_buf *b, uint32_t v);
void rmq_put_u64(mw_buf *b, uint64_t v);
void rmq_put_short(mw_buf *b, const char *text, size_t len); /* at most 255 bytes of it */
void rmq_put_string(mw_buf *b, const char *text);            /* a short string */
void rmq_put_long(mw_buf *b, const void *data, size_t len);

size_t rmq_open(mw_buf *b); /* begins something with a u32 length in front; ... */
void rmq_close(mw_buf *b, size_t mark);
void rmq_put_field(mw_buf *b, const char *name, char type); /* its value follows */
void rmq_put_text(mw_buf *b, const char *name, const char *text);
void rmq_put_number(mw_buf *b, const char *name, int64_t v);
void rmq_put_bool(mw_buf *b, const char *name, bool v);

size_t rmq_frame(mw_buf *b, uint8_t type, uint16_t channel);
size_t rmq_method(mw_buf *b, uint16_t channel, uint32_t method);
void rmq_frame_end(mw_buf *b, size_t mark);
