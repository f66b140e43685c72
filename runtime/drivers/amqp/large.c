/* large.c - messages over max_message. Their bodies came and were dropped, so they can neither be handled nor
 * be made dead letters. Where the queue is known to have a dead-letter exchange they are rejected to it.
 * Otherwise they are left: not acked, they take a place of the prefetch until the connection ends, and come
 * again to the next reader. On a stream they are passed over: it keeps them. */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "drivers/amqp/amqp.h"

static void tell(rmq_sub *s, const rmq_content *k, const rmq_envelope *e, const char *what) {
    char text[200];
    snprintf(text, sizeof text, "a message is over max_message of the URL: %s", what);
    mw_log_begin(MW_ERROR, text);
    mw_log_text("queue", s->queue);
    if (e->has_id) mw_log_str("id", e->parts.id, e->parts.id_len);
    mw_log_int("bytes", (int64_t)k->too_large);
    mw_log_int("max_message", s->conn->settings.max_message);
    mw_log_end();
}

static void reject(rmq_sub *s, uint64_t tag) {
    mw_buf *b = rmq_line_out(s->line);
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_NACK);
    rmq_put_u64(b, tag);
    rmq_put_u8(b, 0);
    rmq_frame_end(b, f);
    rmq_line_send(s->line);
}

void rmq_leave_behind(rmq_sub *s, const rmq_content *k, const rmq_envelope *e) {
    if (s->place) {
        tell(s, k, e, "passed over, the stream keeps it");
        rmq_skip(s, k->tag);
        return;
    }
    s->unsettled--;
    if (rmq_options_of(s->conn, s->queue)->dead_exchange) {
        tell(s, k, e, "rejected to the queue's dead-letter exchange");
        reject(s, k->tag);
        return;
    }
    s->left_behind++;
    s->lost_places++;
    tell(s, k, e, "left in its queue; raise max_message, or take it out");
    snprintf(s->trouble, sizeof s->trouble, "%" PRIu32 " left in %s: over max_message (%" PRId64 " bytes)",
             s->left_behind, s->queue, s->conn->settings.max_message);
}
