/* line.h - one AMQP connection over a stream: handshake, heartbeats, channels, and what arrives on them. It
 * knows nothing of queues and pipelines. A line that is lost connects again by itself; its channels are told
 * and open again when it is ready. Callbacks come from the stream's events; any function here may be called
 * from inside them, rmq_line_free included. */
#pragma once
#include "base/error.h"
#include "loop/loop.h"
#include "base/url.h"
#include "drivers/amqp/protocol/wire.h"
#include "net/stream.h"

enum { RMQ_CHANNELS = 4 };

typedef struct rmq_settings { /* of the URL; shared by the lines of a connection */
    mw_stream_options stream;
    const char *user, *password, *vhost;
    bool external; /* SASL EXTERNAL: the certificate says who we are */
    int64_t heartbeat_s, frame_max;
    int64_t max_message; /* the body of a larger one is passed over */
    const char *name;    /* shown by the broker's tools */
} rmq_settings;

typedef struct rmq_line rmq_line;
typedef struct rmq_chan rmq_chan;

typedef struct rmq_content { /* a whole message with the method that carried it; valid during the call */
    uint32_t method;         /* RMQ_DELIVER, RMQ_GET_OK, RMQ_RETURN */
    uint64_t tag;
    bool redelivered;
    uint16_t code; /* RETURN */
    rmq_str text;
    rmq_str exchange, key;
    uint32_t left;     /* GET_OK: messages behind it */
    rmq_reader header; /* payload of the header frame */
    const char *body;
    size_t body_len;
    uint64_t too_large; /* so many bytes, over max_message: they came and were dropped, body is empty */
    char *owned; /* the body stands in memory of its own, which the callee may take by setting this to NULL */
} rmq_content;

typedef struct rmq_chan_events {
    void (*opened)(rmq_chan *c);
    /* Closed by the broker (code: its reason), or with its line (code 0). It opens again by itself. */
    void (*closed)(rmq_chan *c, int code, const mw_error *why);
    void (*method)(rmq_chan *c, uint32_t method, rmq_reader *r); /* all but those of opening and closing */
    void (*content)(rmq_chan *c, rmq_content *content);
} rmq_chan_events;

struct rmq_chan {
    rmq_line *line;
    const rmq_chan_events *events;
    void *owner;
    uint16_t id;
    bool open, closing;
    bool opening;  /* asked for */
    mw_timer slow; /* to open */
    /* a content that is arriving in pieces */
    enum { RMQ_IDLE, RMQ_WANT_HEADER, RMQ_WANT_BODY, RMQ_PASSING_OVER } stage;
    rmq_content content;
    char exchange[256], key[256];
    mw_buf header;
    char *body;
    size_t body_have, body_room;
    uint64_t body_size; /* PASSING_OVER: what is still to come of it */
};

typedef struct rmq_line_events {
    void (*up)(void *owner);                        /* logged in; channels open next */
    void (*down)(void *owner, const mw_error *why); /* lost, or refused */
    void (*blocked)(void *owner, bool blocked, rmq_str why);
    void (*drained)(void *owner);
    void (*parsed)(void *owner); /* all that had arrived was handed on */
} rmq_line_events;

struct rmq_line {
    mw_loop *loop;
    mw_stream *stream;
    const rmq_settings *settings;
    const rmq_line_events *events;
    void *owner;
    enum { RMQ_AWAY, RMQ_GREETED, RMQ_TUNING, RMQ_OPENING, RMQ_READY, RMQ_LEAVING } state;
    int server, server_minor; /* RabbitMQ's version, as in 3.10; 0: it did not say */
    uint32_t frame_max;
    int64_t heartbeat_ms;
    bool blocked, refused; /* refused: the broker said that trying again cannot help (yet) */
    unsigned closed_with;  /* the broker's reason; 0: it gave none */
    bool broken;           /* dropped; what still stands in the input is not read */
    bool dead;             /* freed from inside one of its callbacks */
    int busy;              /* inside a callback of the stream */
    mw_timer beat, proven;
    uint64_t last_out;
    rmq_chan *chans[RMQ_CHANNELS + 1]; /* by number; 0 is the connection's own */
    mw_error why;                      /* of the last loss */
    mw_buf out;                        /* scratch for one write */
    void (*left)(void *owner);         /* set while leaving */
    mw_timer leave;
};

rmq_line *rmq_line_new(mw_loop *loop, const rmq_settings *s, const rmq_line_events *events, void *owner,
                       mw_error *e);
void rmq_line_free(rmq_line *l); /* at once; NULL is fine */
/* Says goodbye, so that what was written arrives, and calls `left`; at most a few seconds later. */
void rmq_line_leave(rmq_line *l, void (*left)(void *owner));

void rmq_chan_add(rmq_line *l, rmq_chan *c, uint16_t id, const rmq_chan_events *events, void *owner);
void rmq_chan_remove(rmq_chan *c); /* forgets it here: for lines that go */
void rmq_chan_restart(
    rmq_chan *c); /* closes and opens it: what was not acked goes back; `closed` is not called */
void rmq_chan_reset(rmq_chan *c); /* frees what is gathered of a content */

/* Writing: fill rmq_line_out (it is empty), then send. Ignored while the line is away. */
mw_buf *rmq_line_out(rmq_line *l);
void rmq_line_send(rmq_line *l);

/* ---- between the files of a line ---- */

/* line.c: drops the connection, because of what the broker sent. */
void rmq_line_nonsense(rmq_line *l, const char *what);

/* handshake.c: connection.start and connection.tune came. */
void rmq_line_started(rmq_line *l, rmq_reader *r);
void rmq_line_tune(rmq_line *l, rmq_reader *r);

/* content.c: the frames of a message. What was received ends at `end`; `next` is behind the header's frame.
 */
void rmq_content_begins(rmq_chan *c, uint32_t method, rmq_reader *r);
void rmq_content_header(rmq_chan *c, rmq_reader payload, const unsigned char *next, const unsigned char *end);
void rmq_content_body(rmq_chan *c, const char *data, size_t len);
