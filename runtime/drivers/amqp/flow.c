/* flow.c - how many messages the broker may send ahead. The socket of a consumer is read whatever happens: a
 * broker that cannot write for half a minute cuts the connection, and the acks are lost with it. So memory is
 * bounded by the prefetch alone, which counts messages, not bytes: when those that wait here are large, it is
 * made as small as their size asks for. What was sent before that is taken in: the prefetch times their size.
 *
 * Where others may read beside us (no order), and on streams (whose lock stays ours), a consumer begins with
 * few, is ended, and begins again with another prefetch when all that came was handed on. With an order that
 * would let others in before what we have is settled: there a limit of the whole channel is set, which
 * classic queues obey at once. It is not there from the start: a queue asks for it at each message from then
 * on. Quorum queues know no such limit: with an order they keep the prefetch until they are consumed from
 * again. */
#include <stdio.h>
#include <string.h>

#include "drivers/amqp/amqp.h"

enum { AHEAD_BYTES = 4 << 20, LEAST = 2, SAMPLES = 16, FIRST = 16 };

enum way { STAYS, BEGINS_AGAIN, BY_CHANNEL };

static enum way way_of(const rmq_sub *s) {
    const rmq_queue_options *o = rmq_options_of(s->conn, s->queue);
    if (s->place || s->order == MW_ORDER_NONE) return BEGINS_AGAIN;
    return o->type && strcmp(o->type, "quorum") == 0 ? STAYS : BY_CHANNEL;
}

/* How many of the usual size the pipeline may have, and wait here. */
static uint32_t wanted(const rmq_sub *s) {
    uint64_t n = s->usual_size ? (s->budget + AHEAD_BYTES) / (uint64_t)s->usual_size : FIRST;
    if (n < LEAST) n = LEAST;
    return n < s->prefetch ? (uint32_t)n : s->prefetch;
}

uint32_t rmq_flow_first(rmq_sub *s) {
    s->full = false;
    s->lost_places = 0;
    bool late = way_of(s) == BY_CHANNEL || (way_of(s) == STAYS && !s->usual_size);
    s->ahead = late ? s->prefetch : wanted(s);
    return s->ahead;
}

void rmq_flow_came(rmq_sub *s, size_t size) {
    int64_t n = (int64_t)size;
    s->usual_size = s->usual_size ? s->usual_size + (n - s->usual_size) / SAMPLES : n;
}

static void limit_channel(rmq_sub *s, uint32_t count) {
    mw_buf *b = rmq_line_out(s->line);
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_QOS);
    rmq_put_u32(b, 0);
    uint32_t all = count + s->left_behind;
    rmq_put_u16(b, (uint16_t)(all < s->prefetch ? all : 0)); /* 0: the consumer's own is enough */
    rmq_put_u8(b, 1);                                        /* global */
    rmq_frame_end(b, f);
    rmq_line_send(s->line);
    s->ahead = count;
    s->lost_places = 0;
}

/* What is on its way still comes, and is ours. */
static void end_consumer(rmq_sub *s) {
    s->full = true;
    mw_buf *b = rmq_line_out(s->line);
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_CANCEL);
    rmq_put_string(b, s->tag);
    rmq_put_u8(b, 1);
    rmq_frame_end(b, f);
    rmq_line_send(s->line);
}

void rmq_flow_look(rmq_sub *s, size_t waiting) {
    if (s->step != RMQ_RUNNING || s->paused || s->closing) return;
    if (s->full) {
        if (!waiting) rmq_consume_again(s);
        return;
    }
    uint32_t want = wanted(s);
    bool narrower = s->waiting_bytes > AHEAD_BYTES && want < s->ahead - s->ahead / 4;
    bool wider = s->ahead < s->prefetch && (want / 2 >= s->ahead || want == s->prefetch);
    bool worn =
        s->lost_places && s->lost_places >= s->ahead / 2; /* by messages that stay here: see large.c */
    if (!narrower && !wider && !worn) return;
    switch (way_of(s)) {
    case STAYS: break;
    case BEGINS_AGAIN: end_consumer(s); break;
    case BY_CHANNEL: limit_channel(s, want); break;
    }
    if (s->full && !waiting) rmq_consume_again(s);
}
