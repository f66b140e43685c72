/* amqp.h - what the files of the RabbitMQ driver share.
 *
 * A connection of ours is several AMQP connections (lines): one that publishes, and one per subscription that
 * consumes. A broker in trouble stops reading from publishers, and with them would stop the acks; a pipeline
 * that has no room stops reading, and that must not stop another one.
 *
 *   amqp.c       the driver: URL, open, close, what it can do
 *   out.c        publishing: confirms, returns, back-pressure
 *   jobs.c       what is asked on the admin channel, one thing at a time
 *   targets.c    where publications go: queues that are declared first, exchanges
 *   tiers.c      where they wait for a delay
 *   replies.c    replies to addresses that others gave us
 *   consume.c    a subscription
 *   tune.c       the way to its consumer: declare, compare, lock, prefetch
 *   flow.c       how much the broker may send ahead
 *   deliver.c    from the broker to the core
 *   large.c      messages over max_message
 *   window.c     deliveries until they are settled, by tag
 *   settle.c     acks, retries, releases
 *   place.c      where a group has got to in a stream
 *   journal.c    what a crash must not forget of ordered messages: attempts, held retries
 *   journal_read.c  how the next consumer learns of it
 *   admin/       browse.c, count.c: looking into a queue; remove.c: taking single messages out;
 *                request.c: requests and their replies; topology.c: what a project declares
 *   protocol/    line.c, handshake.c, content.c, envelope.c, wire.c */
#pragma once
#include "base/hash.h"
#include "base/text.h"
#include "core/driver.h"
#include "drivers/amqp/protocol/envelope.h"
#include "drivers/amqp/protocol/line.h"

typedef struct rmq_conn rmq_conn;
typedef struct rmq_sub rmq_sub;
typedef struct rmq_pub rmq_pub;
typedef struct rmq_target rmq_target;
typedef struct rmq_job rmq_job;

/* ---- queues: how one is declared that is not there yet ---- */

typedef struct rmq_queue_options {
    char *type, *overflow, *dead_exchange, *dead_key, *dead_strategy;                /* NULL: not given */
    int64_t max_priority, ttl_ms, expires_ms, max_length, max_bytes, delivery_limit; /* 0 (-1): not given */
    bool single_active, lazy;
    bool transient, exclusive, auto_delete; /* transient: not durable */
    struct rmq_recipe *recipe;              /* NULL: the project's topology does not have it */
} rmq_queue_options;

/* ---- publishing ---- */

struct rmq_pub { /* one message on its way; embed it, it is yours again in `done` */
    rmq_pub *next;
    rmq_target *to;
    mw_message *msg; /* referenced until `done` */
    char *key;       /* the routing key, where the target has more than one: an exchange, a tier */
    rmq_stamp stamp;
    uint64_t place;         /* publications of a connection, counted: to one target they go in this order */
    uint8_t tries;          /* how often it came back, and was sent again */
    bool under_way;         /* among `ready` or sent; else it waits in its target */
    bool returned, dropped; /* dropped: no longer wanted; not sent when it was not yet */
    void (*done)(rmq_pub *p, const mw_error *e);
};

typedef struct rmq_fifo {
    rmq_pub *first, *last; /* last: when there is a first */
} rmq_fifo;

typedef enum { RMQ_TO_QUEUE, RMQ_TO_EXCHANGE, RMQ_TO_TIER, RMQ_TO_JOURNAL } rmq_target_kind;

struct rmq_target {
    char *name; /* as the core says it */
    rmq_target_kind kind;
    const char *exchange, *key; /* inside of `name`, or equal to it */
    bool mandatory;
    enum {
        RMQ_UNKNOWN,
        RMQ_ASKING,
        RMQ_TRYING,    /* it was found or made; one publication goes ahead alone */
        RMQ_RETURNING, /* some came back: no more, until what is under way is over; then it is asked for again
                        */
        RMQ_UNREADY,   /* the one that went ahead was refused: it is asked for again in a moment */
        RMQ_THERE
    } state;
    rmq_conn *conn;
    mw_timer again;       /* UNREADY */
    struct {              /* TIER */
        const char *home; /* the queue that its messages return to; inside of `name` */
        char *queue;      /* the one they wait in now */
        uint64_t since;   /* when that was declared last */
        int64_t ttl_ms;
        bool quorum;
    } tier;
    uint32_t under_way; /* publications among `ready` or sent */
    rmq_fifo waiting;   /* until it is there, by place */
    rmq_target *next_same_hash;
};

struct rmq_job { /* something to be done on the admin channel, one at a time */
    rmq_job *next;
    void (*start)(rmq_job *j, rmq_conn *c, mw_buf *out); /* writes one synchronous method */
    bool (*reply)(rmq_job *j, rmq_conn *c, uint32_t method,
                  rmq_reader *r); /* true: over, j may be gone; false: start is called again */
    bool (*content)(rmq_job *j, rmq_conn *c, rmq_content *k); /* likewise; NULL: none is expected */
    /* likewise; code 0: the line was lost; below 0: the connection is being closed, j ends here */
    bool (*failed)(rmq_job *j, rmq_conn *c, int code, const mw_error *why);
};

/* ---- the connection ---- */

enum {
    RMQ_CHAN_PUBLISH = 1,
    RMQ_CHAN_ADMIN = 2,
    RMQ_CHAN_BROWSE = 3,
    RMQ_CHAN_CONSUME = 1,
    RMQ_CHAN_JOURNAL = 2
};

typedef enum { RMQ_DECLARE_AUTO, RMQ_DECLARE_PASSIVE } rmq_declare_mode;

struct rmq_conn {
    mw_loop *loop;
    mw_link *link;
    const mw_host *host;
    rmq_settings settings;
    rmq_queue_options defaults;
    rmq_declare_mode declare;
    char name[100];
    mw_map declared; /* hash of the channel -> rmq_queue_options */
    char *streams;   /* of the URL: names, separated by commas */
    rmq_queue_options stream;
    mw_headers scratch;
    bool told_up, told_down;
    int server, server_minor; /* the broker's version, once it is known */
    bool told_old;            /* that it has no quorum queues for delays */

    rmq_line *out; /* made by the first publication */
    rmq_chan publish, admin, look;
    bool confirming;
    uint64_t first_seq, next_seq; /* unconfirmed: [first, next) */
    rmq_pub **sent;               /* ring, by sequence number */
    size_t sent_room;             /* a power of two */
    rmq_fifo ready;               /* target is there, not written yet */
    mw_map targets;
    uint64_t places;    /* publications so far */
    mw_timer patience;  /* how long publications wait for a broker that is away */
    int64_t blocked_ms; /* and for one that blocks us; 0: as long as it does */
    mw_timer blocked;
    rmq_job *job, *jobs, **jobs_end;
    bool job_sent;
    struct rmq_request *requests; /* request.c: they wait for a reply */
    bool wants_replies;

    rmq_conn *replier; /* NULL: not needed yet */
    bool replies;      /* this is one */
    uint32_t alone;    /* of what waits, so many go one at a time */

    rmq_sub *subs;
    struct rmq_look *looking, *looks, **looks_end; /* browse.c */
    struct rmq_session *session;
    mw_timer look_idle;
    mw_deferred look_soon;
};

/* amqp.c */
bool rmq_is_stream(rmq_conn *c, const char *queue);
void rmq_note_stream(rmq_conn *c, const char *queue); /* the broker said so */
const rmq_queue_options *rmq_options_of(rmq_conn *c, const char *queue);
void rmq_put_declare(mw_buf *b, rmq_conn *c, uint16_t channel, const char *queue, bool passive);
bool rmq_is_quorum(const rmq_queue_options *o);
void rmq_unlimit(const rmq_conn *c, rmq_queue_options *o); /* deliveries of one that is made */
/* It is not there: what makes it, one synchronous method at a time, is more than one step where the project's
 * topology has exchanges and bindings for it. */
uint32_t rmq_make_steps(rmq_conn *c, const char *queue);
void rmq_put_make(mw_buf *b, rmq_conn *c, uint16_t channel, const char *queue, uint32_t step);
/* The broker refused a step. true: it was told, and the queue can be made without it. */
bool rmq_make_without(rmq_conn *c, const char *queue, uint32_t step, const mw_error *why);
void rmq_put_queue_declare(mw_buf *b, uint16_t channel, const char *queue, const rmq_queue_options *o,
                           bool passive);

/* out.c */
rmq_line *rmq_out(rmq_conn *c); /* the publishing line, made on first use */
void rmq_send(rmq_conn *c, rmq_pub *p, const char *channel, int64_t delay_ms, bool retry);
void rmq_send_to(rmq_conn *c, rmq_pub *p, rmq_target *to);
void rmq_pump(rmq_conn *c);
void rmq_finish(rmq_pub *p, const mw_error *e);
void rmq_out_close(rmq_conn *c);
void rmq_publish(mw_conn *conn, const mw_publication *list, size_t count);
void rmq_fifo_push(rmq_fifo *f, rmq_pub *p);
rmq_pub *rmq_fifo_pop(rmq_fifo *f);

/* replies.c */
bool rmq_is_direct_reply(const rmq_target *to, const char *key);
rmq_conn *rmq_replier(rmq_conn *c);
void rmq_replier_close(rmq_conn *c);
/* The line is gone, with these under way: those that go again are taken out. */
void rmq_replies_lost(rmq_conn *c, rmq_fifo *sent);

/* jobs.c */
extern const rmq_chan_events rmq_admin_events;
void rmq_job_add(rmq_conn *c, rmq_job *j);
void rmq_jobs_lost(rmq_conn *c, const mw_error *why); /* no line: each decides whether to wait for it */

/* targets.c */
rmq_target *rmq_target_get(rmq_conn *c, const char *channel);
const char *rmq_routing_key(const char *channel); /* NULL: it is no exchange's */
rmq_target *rmq_target_journal(rmq_conn *c, const char *name);
rmq_target *rmq_target_find(rmq_conn *c, const char *name);
rmq_target *rmq_target_insert(rmq_conn *c, const char *name);
bool rmq_is_exchange(const char *channel);
void rmq_target_add(rmq_conn *c, rmq_pub *p); /* to c->ready when its target may have it, else it waits */
/* It was confirmed, refused or given up, and p->done is next; routed: the broker has the queue. */
void rmq_target_over(rmq_conn *c, rmq_pub *p, bool routed);
void rmq_target_back(rmq_conn *c, rmq_pub *p); /* it was returned: once more, before those behind it */
void rmq_target_unready(rmq_pub *p);           /* likewise, after a moment: the first one to it was refused */
bool rmq_target_recall(rmq_conn *c,
                       rmq_pub *p);   /* true: it was kept too long, and waits for its target again */
void rmq_targets_forget(rmq_conn *c); /* the line was lost: ask again */
void rmq_targets_gather(rmq_conn *c, rmq_fifo *to); /* all that waits, also c->ready */
bool rmq_targets_waiting(rmq_conn *c);
void rmq_targets_free(rmq_conn *c);

/* tiers.c */
rmq_target *rmq_target_tier(rmq_conn *c, const char *channel, int64_t delay_ms, bool retry, mw_error *e);
void rmq_put_tier(mw_buf *b, rmq_conn *c, rmq_target *t); /* declares the queue of this moment */
bool rmq_tier_is_stale(const rmq_conn *c, const rmq_target *t);
int64_t rmq_tier(int64_t delay_ms, bool retry); /* the TTL of the queue for this delay */
/* The queue for it; wall_ms: of a quorum queue's, else -1. */
void rmq_tier_name(char *out, size_t size, int64_t ttl_ms, int64_t wall_ms, const char *home);

/* ---- subscriptions ---- */

typedef struct rmq_entry { /* a delivery, by its tag */
    mw_message *msg;       /* NULL: settled */
    mw_text *first_error;
    uint64_t offset; /* in a stream */
    uint32_t failures;
    uint8_t state; /* rmq_entry_state */
    bool has_id, redelivered, begun, suspect;
} rmq_entry;

typedef enum {
    RMQ_SETTLED,
    RMQ_OURS,
    RMQ_DONE
} rmq_entry_state; /* DONE: acked by the core, not written yet */

typedef struct rmq_journal rmq_journal;
typedef struct rmq_place rmq_place;

struct rmq_sub {
    rmq_sub *next;
    rmq_conn *conn;
    mw_source *source;
    const mw_host *host;
    char *queue, *group;
    mw_order order;
    rmq_place *place;  /* NULL: not a stream */
    uint32_t met_left; /* so many of the next deliveries of a stream may have been delivered before */
    bool newest;       /* a new group on a stream begins with the next message */
    rmq_line *line;
    rmq_chan chan;
    enum {
        RMQ_ASLEEP,
        RMQ_FINDING,
        RMQ_COMPARING, /* it is there: as its options say? */
        RMQ_MAKING,
        RMQ_LOCKING, /* streams: one consumer for each group; order = "none": one has the journal */
        RMQ_READING, /* streams: where the group has got to */
        RMQ_TUNING_IN,
        RMQ_RUNNING,
        RMQ_STOPPING
    } step;
    bool missing, paused, closing, standby;
    bool compared, told_differs;
    bool without;  /* another process has the journal */
    bool keeps;    /* retries wait here: no queue may be made for them, or they might not come back from it */
    uint32_t made; /* steps of making the queue that are over */
    uint32_t tries;                    /* how often the broker closed the channel since it ran */
    int told_code;                     /* the broker's last reason that was logged; 0: it runs */
    char trouble[MW_ERROR_TEXT + 300]; /* for `moonwire status`; "": none */
    uint32_t left_behind, lost_places; /* messages that are neither handed on nor acked; of this consumer */
    uint32_t unit;                     /* one per channel that was opened: tags die with it */
    uint32_t prefetch;                 /* at most */
    uint32_t ahead;                    /* now: see flow.c */
    int64_t usual_size;
    size_t budget; /* bytes that the pipeline takes */
    bool full;     /* the consumer was ended until there is room */
    uint32_t consumers;
    uint64_t reached; /* streams: the offset behind the last that came; 0: none */
    char tag[160];
    mw_timer again;

    rmq_entry *window; /* ring, by delivery tag */
    size_t window_room;
    uint64_t base, top; /* tags in [base, top) are in the ring */
    mw_map aside;       /* tag -> rmq_entry: those below, that others have passed */
    mw_buf done;        /* of uint64_t: acked by the core, not written yet */
    mw_timer ack_soon;
    uint32_t unsettled;

    uint64_t pace_ms;
    uint32_t looks, came; /* how often something came in this millisecond; messages of this time */
    bool resting;         /* it is read once a millisecond: see pace */

    mw_buf waiting; /* of mw_incoming: no room in the core yet */
    size_t waiting_at, waiting_bytes;
    uint32_t unmet;   /* of them came before, and their history is not known yet */
    bool careful;     /* there are suspects: one of them at a time, with nothing beside it */
    uint64_t alone;   /* the tag of the one that runs, or is next; 0: none */
    bool alone_ready; /* it is noted as begun, and goes when that stands */

    mw_buf answers; /* of rmq_answer */
    mw_deferred answering;

    int64_t wait_ms; /* before the queue is asked for again, once the channel is open */

    uint64_t ready_seen; /* messages in the queue when the broker last said so */
    uint64_t delayed;    /* retries of ours that wait in a tier */
    uint64_t delayed_until;
    uint64_t asked_ms, asked_at, activity;
    bool depth_known, asking, fresh; /* fresh: nothing has happened since the broker said so */
    rmq_journal *journal;            /* NULL: the queue's name is too long for it */
};

mw_sub *rmq_subscribe(mw_conn *conn, const mw_subscription *spec, mw_error *e);
void rmq_resume(mw_sub *sub);
void rmq_begin(mw_sub *sub, uint64_t tag, uint32_t unit);
void rmq_pause(mw_sub *sub);
void rmq_unsubscribe(mw_sub *sub);
bool rmq_depth(mw_sub *sub, mw_depth *out);
void rmq_sub_free(rmq_sub *s);

void rmq_ask_depth(rmq_sub *s);
void rmq_asked_depth(rmq_sub *s, rmq_reader *r);

/* tune.c */
extern const rmq_chan_events rmq_consuming;
void rmq_consume_stream(rmq_sub *s); /* the group's place is known now */
void rmq_consume_again(rmq_sub *s);  /* on the same channel, after its consumer was ended */

/* flow.c */
uint32_t rmq_flow_first(rmq_sub *s); /* the prefetch of a consumer that begins */
void rmq_flow_came(rmq_sub *s, size_t size);
void rmq_flow_look(rmq_sub *s, size_t waiting); /* so many were not handed on */

/* deliver.c */
void rmq_came(rmq_chan *chan, rmq_content *k);
void rmq_sub_pump(rmq_sub *s);
void rmq_deliveries_clear(rmq_sub *s); /* those in the window, and those that wait */

/* window.c */
rmq_entry *rmq_entry_of(const rmq_sub *s, uint64_t tag); /* NULL: none; valid until the next one is added */
rmq_entry *rmq_window_add(rmq_sub *s, uint64_t tag);     /* the newest, to be filled */
void rmq_window_settled(rmq_sub *s, uint64_t tag);       /* nothing is left to do for it */
/* Settled ones at the low end leave the ring; the last one that is to be acked among them, or 0. */
uint64_t rmq_window_advance(rmq_sub *s, size_t *count);
void rmq_window_clear(rmq_sub *s);

/* large.c */
void rmq_leave_behind(rmq_sub *s, const rmq_content *k, const rmq_envelope *e);

/* settle.c */
void rmq_settle(mw_sub *sub, const mw_settlement *list, size_t count);
void rmq_answer_later(rmq_sub *s, void *cookie, int code, const char *text);
void rmq_acked(rmq_sub *s, uint64_t tag); /* may be written from now on */
void rmq_skip(rmq_sub *s, uint64_t tag);  /* likewise, and the core never saw it */
void rmq_write_acks(rmq_sub *s);
void rmq_answers_free(rmq_sub *s);

/* journal.c: see there */
rmq_journal *rmq_journal_new(rmq_sub *s);
void rmq_journal_free(rmq_journal *j);       /* NULL is fine */
bool rmq_journal_mute(const rmq_journal *j); /* it stands in memory only, or is another's */
void rmq_journal_silence(rmq_journal *j, bool mute);
void rmq_journal_reset(rmq_journal *j); /* the deliveries it knew are gone */
void rmq_journal_meet(rmq_journal *j,
                      mw_incoming *in); /* it came before: fills attempt, due time and error */
void rmq_journal_suspect(rmq_journal *j, uint64_t tag); /* it is begun next */
bool rmq_journal_stands(
    rmq_journal *j); /* what was met is written, or cannot be now; false: rmq_sub_pump is called then */
void rmq_journal_begin(rmq_journal *j, uint64_t tag);
void rmq_journal_failed(rmq_journal *j, const mw_settlement *x);
void rmq_journal_gone(rmq_journal *j, const rmq_entry *e);
void rmq_journal_release(rmq_journal *j, const rmq_entry *e);
bool rmq_journal_quiet(rmq_journal *j,
                       void (*quiet)(rmq_sub *s));       /* all is written; false: quiet is called then */
void rmq_journal_settled(rmq_journal *j, void *cookie);  /* streams: answers when the place is written */
bool rmq_journal_knows(rmq_journal *j, uint64_t offset); /* streams: there is a note about it */
void rmq_journal_touch(rmq_journal *j, bool clean);      /* streams: writes it; clean: the last time */

/* journal_read.c. false: it is being read; rmq_sub_pump is called when it is there. */
bool rmq_journal_loaded(rmq_journal *j);

/* place.c: see there */
rmq_place *rmq_place_new(void);
void rmq_place_free(rmq_place *p); /* NULL is fine */
void rmq_place_reset(rmq_place *p);
void rmq_place_begin(rmq_place *p, uint64_t mark);
bool rmq_place_known(const rmq_place *p, uint64_t *mark); /* false: the group is new */
bool rmq_place_add(rmq_place *p, uint64_t offset);        /* false: it is done already */
void rmq_place_done(rmq_place *p, uint64_t offset);
bool rmq_place_behind(const rmq_place *p, uint64_t messages, uint64_t *out); /* of so many in the stream */
uint64_t rmq_place_span(const rmq_place *p);
uint64_t rmq_place_since(rmq_place *p, uint64_t now_s); /* of a group that is new: when it became one */
bool rmq_place_clean(const rmq_place *p);
void rmq_place_put(const rmq_place *p, bool clean, mw_buf *b);
bool rmq_place_read(rmq_place *p, rmq_reader *r);

/* browse.c */
void rmq_browse(mw_conn *conn, const mw_browse *b);
void rmq_remove(mw_conn *conn, const mw_removal *r);
void rmq_looks_lost(rmq_conn *c, const mw_error *why);
void rmq_looks_go(rmq_conn *c);
void rmq_looks_free(rmq_conn *c);

/* topology.c */
typedef struct rmq_recipe
    rmq_recipe; /* exchanges, a queue and its bindings, in the order in which they are made */
rmq_recipe *rmq_recipe_read(const char *json);
void rmq_recipe_free(rmq_recipe *r); /* NULL is fine */
uint32_t rmq_recipe_count(const rmq_recipe *r);
void rmq_recipe_put(const rmq_recipe *r, uint32_t at, uint16_t channel, mw_buf *b);
bool rmq_recipe_name(const rmq_recipe *r, uint32_t at, char *out, size_t size); /* false: it is the queue */

/* request.c */
void rmq_request_send(mw_conn *conn, const mw_publication *p, int64_t timeout_ms);
void rmq_replies_consume(rmq_conn *c);
void rmq_replied(rmq_conn *c, rmq_content *k);
void rmq_requests_lost(rmq_conn *c);
void rmq_requests_free(rmq_conn *c);

/* topology.c */
void rmq_topology(mw_conn *conn, const char *request, size_t len, void *cookie);
