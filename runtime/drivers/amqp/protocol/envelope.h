/* envelope.h - between a message of ours and the content header of AMQP: properties and the header table.
 * What has no place in AMQP (the key, milliseconds, attempts) travels in headers that begin with "mw-"; what
 * has no place in a message of ours (reply-to, correlation id, ...) becomes a header.
 * docs/brokers/rabbitmq.md lists both. */
#pragma once
#include "base/text.h"
#include "drivers/amqp/protocol/wire.h"

typedef struct rmq_envelope { /* what a content header said; points into it and into `headers` */
    mw_parts parts;           /* without the body */
    mw_headers *headers;      /* scratch of the caller */
    uint32_t failures;        /* attempts that were made before this delivery */
    rmq_str first_error;
    bool has_offset; /* the broker's, of a stream */
    uint64_t offset;
    bool has_id; /* else the id was made up here */
    rmq_str reply_to, correlation;
    const char *invalid; /* why it is no message of ours, or NULL; static */
} rmq_envelope;

typedef struct rmq_route {
    rmq_str exchange, key;
    const char *queue; /* where it was read */
} rmq_route;

/* The payload of a header frame. false: it cannot be a message of ours as it is; `out` says why, and has what
 * can be kept of it. */
bool rmq_envelope_read(rmq_reader payload, const rmq_route *route, mw_headers *scratch, rmq_envelope *out,
                       uint64_t *body_size);

typedef struct rmq_stamp { /* what is said about a message beside its parts */
    uint32_t failures;
    mw_text *first_error;
    bool waits; /* in a delay queue, where its own expiration must not count */
} rmq_stamp;

/* Appends the payload of a header frame. */
void rmq_envelope_write(mw_buf *b, const mw_parts *p, const rmq_stamp *stamp);

/* The same for every delivery of one message, whoever published it. */
uint64_t rmq_identity(const mw_parts *p, bool has_id);
