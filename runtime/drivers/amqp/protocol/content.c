/* content.c - a message put together from its frames: the method that carries it, its header, its body. A
 * body that stands whole in the input is handed on from there; one that comes in pieces is gathered in memory
 * of its channel, which owns it until it is handed on (line.h: rmq_content.owned). */
#include <stdlib.h>
#include <string.h>

#include "drivers/amqp/protocol/line.h"

enum { BODY_FIRST = 1 << 20 };

void rmq_chan_reset(rmq_chan *c) {
    free(c->body);
    c->body = NULL;
    c->stage = RMQ_IDLE;
    c->body_have = c->body_room = 0;
}

void rmq_content_begins(rmq_chan *c, uint32_t method, rmq_reader *r) {
    rmq_content *k = &c->content;
    if (c->stage != RMQ_IDLE) {
        rmq_line_nonsense(c->line, "a message inside of another");
        return;
    }
    *k = (rmq_content){.method = method};
    if (method == RMQ_RETURN) {
        k->code = rmq_u16(r);
        k->text = rmq_short(r);
    } else {
        if (method == RMQ_DELIVER) rmq_short(r); /* the consumer: there is one */
        k->tag = rmq_u64(r);
        k->redelivered = rmq_u8(r) & 1;
    }
    rmq_str exchange = rmq_short(r), key = rmq_short(r);
    if (method == RMQ_GET_OK) k->left = rmq_u32(r);
    if (r->bad) {
        rmq_line_nonsense(c->line, "a delivery that is cut short");
        return;
    }
    memcpy(c->exchange, exchange.data, exchange.len); /* they outlive the frame */
    memcpy(c->key, key.data, key.len);
    k->exchange = (rmq_str){c->exchange, exchange.len};
    k->key = (rmq_str){c->key, key.len};
    k->text = (rmq_str){"", 0};
    c->stage = RMQ_WANT_HEADER;
}

static void complete(rmq_chan *c, rmq_reader header, const char *body) {
    c->content.header = header;
    c->content.body = body;
    c->content.body_len = (size_t)c->body_size;
    c->content.owned = c->body;
    c->stage = RMQ_IDLE;
    c->body = NULL;
    c->body_have = c->body_room = 0;
    rmq_content k = c->content;
    c->events->content(c, &k);
    free(k.owned);
}

static void keep_header(rmq_chan *c, rmq_reader payload) {
    c->header.len = 0;
    mw_buf_add(&c->header, payload.at, (size_t)(payload.end - payload.at));
}

static rmq_reader kept_header(const rmq_chan *c) {
    const unsigned char *h = (const unsigned char *)c->header.data;
    return (rmq_reader){h, h + c->header.len, false};
}

void rmq_content_header(rmq_chan *c, rmq_reader payload, const unsigned char *next,
                        const unsigned char *end) {
    rmq_reader r = payload;
    if (c->stage != RMQ_WANT_HEADER) {
        rmq_line_nonsense(c->line, "a header without a message");
        return;
    }
    rmq_u32(&r);
    c->body_size = rmq_u64(&r);
    if (r.bad) {
        rmq_line_nonsense(c->line, "a header that is cut short");
        return;
    }
    if (c->body_size > (uint64_t)c->line->settings->max_message) {
        c->content.too_large = c->body_size;
        c->stage = RMQ_PASSING_OVER;
        keep_header(c, payload);
        return;
    }
    /* The usual case: the whole body stands right behind, and is taken from where it is. */
    size_t size = (size_t)c->body_size;
    if (!size) {
        complete(c, payload, "");
        return;
    }
    c->stage = RMQ_WANT_BODY;
    if ((size_t)(end - next) >= size + RMQ_FRAME_EXTRA && next[0] == RMQ_BODY) {
        rmq_reader f = {next + 1, end, false};
        if (rmq_u16(&f) == c->id && rmq_u32(&f) == size) {
            c->header.len = 0;
            c->content.header = payload;
            return; /* rmq_content_body finds header.len 0 */
        }
    }
    keep_header(c, payload);
    c->body_room = size < BODY_FIRST ? size : BODY_FIRST; /* it grows with what really comes */
    c->body = malloc(c->body_room);
    if (!c->body) abort();
}

static void pass_over(rmq_chan *c, size_t len) {
    if (len > c->body_size) {
        rmq_line_nonsense(c->line, "a body without a message");
        return;
    }
    c->body_size -= len;
    if (!c->body_size) complete(c, kept_header(c), "");
}

void rmq_content_body(rmq_chan *c, const char *data, size_t len) {
    if (c->stage == RMQ_PASSING_OVER) {
        pass_over(c, len);
        return;
    }
    if (c->stage != RMQ_WANT_BODY || len > c->body_size - c->body_have) {
        rmq_line_nonsense(c->line, "a body without a message");
        return;
    }
    if (!c->body) { /* all of it, in one frame */
        complete(c, c->content.header, data);
        return;
    }
    if (c->body_room - c->body_have < len) {
        c->body_room = (c->body_have + len) * 2;
        if (c->body_room > c->body_size) c->body_room = (size_t)c->body_size;
        c->body = realloc(c->body, c->body_room);
        if (!c->body) abort();
    }
    memcpy(c->body + c->body_have, data, len);
    c->body_have += len;
    if (c->body_have < c->body_size) return;
    complete(c, kept_header(c), c->body);
}
