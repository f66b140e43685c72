/* amqp_fuzz.c - libFuzzer target for what a broker can send to the RabbitMQ driver: frames in any order and
 * of any content, cut anywhere, through handshake, channels and contents; and content headers by themselves,
 * whose messages are written and read again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/amqp/protocol/envelope.h"
#include "drivers/amqp/protocol/line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- a stream and a loop that do nothing ---- */

struct mw_stream {
    const mw_stream_events *events;
    void *owner;
    bool failed;
};
static mw_stream stream;
static char *reserved;

mw_stream *mw_stream_open(mw_loop *l, const mw_stream_options *o, const mw_stream_events *events, void *owner,
                          mw_error *e) {
    (void)l, (void)o, (void)e;
    stream = (mw_stream){.events = events, .owner = owner};
    return &stream;
}
void mw_stream_close(mw_stream *s) { (void)s; }
void mw_stream_write(mw_stream *s, const void *data, size_t len) { (void)s, (void)data, (void)len; }
void mw_stream_established(mw_stream *s) { (void)s; }
void mw_stream_farewell(mw_stream *s) { (void)s; }
void mw_stream_fail(mw_stream *s, const mw_error *why) {
    if (!*why->text) abort();
    s->failed = true;
}
void mw_timer_start_real(mw_loop *l, mw_timer *t, int64_t ms, void (*fire)(mw_timer *)) {
    (void)l, (void)t, (void)ms, (void)fire;
}
void mw_timer_stop(mw_timer *t) { (void)t; }
uint64_t mw_loop_real_ms(mw_loop *l) {
    (void)l;
    return 0;
}

/* ---- an owner that touches everything it is given ---- */

static void check_message(rmq_reader header, const char *body, size_t body_len) {
    static mw_headers scratch, again;
    rmq_envelope e, f;
    uint64_t size;
    rmq_route route = {.exchange = {"x", 1}, .key = {"k", 1}, .queue = "in"};
    bool good = rmq_envelope_read(header, &route, &scratch, &e, &size);
    mw_parts p = e.parts;
    p.body = body;
    p.body_len = body_len;
    mw_error why;
    if (mw_message_check(&p, &why)) abort(); /* also what is kept of a bad one */
    if (!good) return;
    mw_buf out = {0};
    rmq_stamp stamp = {.failures = e.failures};
    rmq_envelope_write(&out, &p, &stamp);
    rmq_reader r = {(unsigned char *)out.data, (unsigned char *)out.data + out.len, false};
    rmq_route none = {0};
    if (!rmq_envelope_read(r, &none, &again, &f, &size) || size != body_len) abort();
    if (f.parts.id_len != p.id_len || memcmp(f.parts.id, p.id, p.id_len) != 0) abort();
    if (f.parts.has_key != p.has_key || f.parts.key_len != p.key_len) abort();
    mw_buf_free(&out);
}

static void opened(rmq_chan *c) { (void)c; }
static void closed(rmq_chan *c, int code, const mw_error *why) { (void)c, (void)code, (void)why; }
static void method(rmq_chan *c, uint32_t m, rmq_reader *r) {
    (void)c, (void)m;
    rmq_u64(r);
    rmq_short(r);
    rmq_table(r);
}
static void content(rmq_chan *c, rmq_content *k) {
    (void)c;
    volatile char sink = 0;
    for (size_t i = 0; i < k->body_len; i++) sink ^= k->body[i];
    for (size_t i = 0; i < k->exchange.len; i++) sink ^= k->exchange.data[i];
    (void)sink;
    check_message(k->header, k->body, k->body_len);
}
static void up(void *owner) { (void)owner; }
static void down(void *owner, const mw_error *why) { (void)owner, (void)why; }

static const rmq_chan_events chan_events = {opened, closed, method, content};
static const rmq_line_events line_events = {.up = up, .down = down};
static const rmq_settings settings = {.user = "u",
                                      .password = "p",
                                      .vhost = "/",
                                      .name = "fuzz",
                                      .frame_max = RMQ_FRAME_MAX,
                                      .max_message = 1 << 20,
                                      .heartbeat_s = 1};

/* The first byte says how far the handshake is, the second how the rest is cut. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    rmq_chan chans[2];
    rmq_line *l = rmq_line_new(NULL, &settings, &line_events, NULL, NULL);
    for (uint16_t i = 0; i < 2; i++) rmq_chan_add(l, &chans[i], (uint16_t)(i + 1), &chan_events, NULL);
    stream.events->up(l);
    if (data[0] & 1) {
        l->state = RMQ_READY;
        chans[0].open = chans[1].open = true;
    }
    size_t step = data[1] ? data[1] : size, have = 0, used = 0;
    data += 2;
    size -= 2;
    while (have < size && !stream.failed) {
        have = have + step < size ? have + step : size;
        size_t need = 0, len = have - used;
        reserved = malloc(len ? len : 1); /* alone on the heap: a byte too far is seen */
        memcpy(reserved, data + used, len);
        size_t n = stream.events->input(l, reserved, len, &need);
        free(reserved);
        if (stream.failed) break;
        if (n > len) abort();
        used += n;
    }
    mw_error e;
    mw_fail(&e, 1, true, "over");
    stream.events->down(l, &e);
    rmq_line_free(l);
    check_message((rmq_reader){data, data + size, false}, "", 0);
    return 0;
}
