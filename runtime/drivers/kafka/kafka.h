/* kafka.h - what the files of the Kafka driver share. librdkafka does the network on threads of its own and
 * wakes the loop through eventfds; everything here belongs to the loop's thread, except what errands.h says.
 *
 * A subscription has a consumer of its own, because a pipeline is a group. Each assigned partition has a
 * queue of its own: a partition that may not be read is simply not polled, while its neighbours and the group
 * go on. A delivery's unit is the partition; its tag is the offset with the epoch of the assignment above it,
 * so that what was delivered before a partition went away and came back cannot be settled. */
#pragma once
#include <librdkafka/rdkafka.h>

#include "base/buf.h"
#include "base/hash.h"
#include "core/driver.h"
#include "drivers/kafka/errands.h"
#include "drivers/kafka/consume/marks.h"

typedef struct kafka_conn kafka_conn;
typedef struct kafka_sub kafka_sub;
typedef struct kafka_part kafka_part;
typedef struct kafka_producer kafka_producer;
typedef struct kafka_browser kafka_browser;
typedef struct kafka_txn kafka_txn;
typedef struct kafka_tokens kafka_tokens;
typedef struct kafka_unread kafka_unread;

struct kafka_conn {
    mw_loop *loop;
    mw_link *link;
    const mw_host *host;
    rd_kafka_conf_t *conf; /* checked, with everything the user gave */
    mw_buf given;          /* of char *: the names of the properties the user gave */
    char *prefix;          /* of topics and groups: the path of the URL */
    int64_t revoke_ms;     /* how long a partition that is taken away may wait for its handlers */
    bool spring;           /* dead letters also get the headers that Spring's tools read */
    kafka_producer *producer;
    kafka_errands *errands; /* browsing and administration; made on first use */
    kafka_browser *browser; /* these belong to the errands' thread */
    rd_kafka_t *admin;
    char look_error[MW_ERROR_TEXT]; /* the last one of those two */
    bool look_refused;              /* a broker did not let them in */
    bool look_down;                 /* no broker could be reached */
    kafka_sub *subs;
    kafka_tokens *tokens; /* OAUTHBEARER with a function of the project; else NULL */
    bool background;      /* OAUTHBEARER with tokens that librdkafka gets by itself */
    bool down, was_up;
    char *hosts;
    char error[MW_ERROR_TEXT]; /* the last one */
    int64_t since_ms;          /* of the last change; wall time */
    uint64_t connects;
};

typedef enum {
    KAFKA_PART_WAITS,   /* for what its group committed */
    KAFKA_PART_FLOWS,   /* assigned */
    KAFKA_PART_REVOKED, /* running handlers may finish */
    KAFKA_PART_LOST,    /* somebody else may have it */
} kafka_part_state;

struct kafka_part {
    kafka_sub *sub;
    uint32_t topic; /* index: 0 is the channel, the others are its retry channels */
    int32_t partition;
    uint32_t unit; /* both of them */
    uint16_t epoch;
    kafka_part_state state;
    rd_kafka_queue_t *queue;
    rd_kafka_message_t *early; /* the next one: of a retry channel, until it is due; or it was looked at */
    int64_t early_due;
    kafka_marks *marks;
    uint32_t out; /* delivered, and no settlement that ends them has come */
    bool dirty;   /* its commit would say something new */
    bool anew;    /* its log begins anew, below what we have read */
    bool crowded; /* what it remembers hardly fits into a commit: no more until the mark moves */
    bool heavy;   /* its messages have large headers: they are read at once, so that they count */
};

typedef enum {
    KAFKA_OPEN,
    KAFKA_FALLEN, /* its consumer has failed for good; another one will be made: fallen.c */
    KAFKA_COMMITS_LAST,
    KAFKA_LEAVES,
} kafka_sub_state;

enum { KAFKA_EPOCH_SHIFT = 48 }; /* of a tag: the offset is below */
enum { KAFKA_RECENT = 64 };
enum { KAFKA_TOPICS = 64 }; /* more than MW_TIERS + 1: room for retry channels of the past */

typedef struct kafka_wait { /* a settlement that is answered when a commit has it */
    void *cookie;
    const mw_publication *publish; /* exactly once: they go with it */
    size_t publish_count;
    uint64_t offset;
    uint32_t unit;
    uint16_t epoch;
} kafka_wait;

struct kafka_sub {
    kafka_sub *next;
    kafka_conn *conn;
    mw_source *source;
    char *topics[KAFKA_TOPICS]; /* the channel, its retry channels, then those of the past (stranded.c) */
    uint32_t topic_count;
    char *topic, *group; /* topic: the first of them */
    char instance[256];  /* the name of a static member, or "" */
    bool from_start;
    mw_start_kind start_kind;
    int64_t start_at;
    kafka_sub_state state;
    int64_t session_ms;
    size_t buffer_bytes;                                     /* the pipeline's */
    size_t taken_bytes, taken_count, wake_bytes, wake_count; /* when fetchers are woken (ahead.c) */
    uint32_t partitions; /* of its topics, as far as known; 0: not asked yet (ahead.c) */
    bool provisional; /* this consumer only asks for that; it never joins with another strategy than range */
    rd_kafka_t *rk;   /* NULL: while none could be made (KAFKA_FALLEN) */
    uint32_t life;    /* which one it is, of those that followed each other */
    bool fatal;       /* librdkafka says that it will not work again; looked at when it is safe */
    rd_kafka_queue_t *events, *commits;
    kafka_errands *errands; /* asking for commits, and the end of the consumer */
    mw_wake wake;
    mw_deferred pump, answering;
    mw_timer tick;
    uint64_t ticked;
    kafka_part **parts;
    kafka_part *recent[KAFKA_RECENT]; /* of them, by unit: found without searching */
    uint32_t part_count, part_capacity, turn;
    uint16_t epochs;
    bool paused, assigned_once;
    bool gone;                /* a partition is not there, or not what it was; looked at when it is safe */
    bool was_gone;            /* until it is known where the group stands */
    rd_kafka_resp_err_t told; /* the last trouble of a partition that was logged, and when */
    uint64_t told_at;

    /* commit.c */
    mw_buf gathering, committing; /* of kafka_wait */
    mw_buf aside;                 /* of kafka_wait: acks that wait for a later transaction; see txn.c */
    mw_buf refused;               /* of void *: settlements to be answered as fenced */
    mw_buf released;              /* of void *: settlements that need no commit */
    mw_timer pace;
    mw_deferred commit;
    bool commit_under_way;
    uint32_t commit_failures;
    uint64_t committed_at;
    size_t metadata_max; /* what the broker takes, as far as we know */

    /* rebalance.c */
    rd_kafka_topic_partition_list_t *revoked; /* waits for its handlers */
    mw_timer revoke_timer;
    bool revoke_late;    /* no more waiting for handlers */
    bool coming;         /* an assignment waits for what is committed, and librdkafka for it */
    mw_timer look_timer; /* until lost partitions that nobody revoked are taken up again */

    mw_timer stranded_timer; /* stranded.c */

    /* fallen.c */
    mw_timer rise_timer;
    uint32_t falls; /* in quick succession */
    uint64_t raised_at;
    char why[MW_ERROR_TEXT];

    kafka_txn *txn; /* exactly once: commits are transactions; else NULL */

    /* record.c */
    mw_buf headers;       /* space for one message's */
    kafka_unread *unread; /* the messages that still have their record */
};

/* conf.c */
int kafka_conf_read(kafka_conn *c, const mw_url *url, mw_error *e);
void kafka_conf_free(kafka_conn *c); /* what kafka_conf_read made */
bool kafka_conf_given(const kafka_conn *c, const char *name);
int kafka_conf_check(const mw_url *url, mw_error *e); /* touches nothing */
int kafka_check_source(const mw_url *url, const mw_subscription *s, mw_error *e);
int64_t kafka_conf_session(const kafka_conn *c, int64_t lease_ms);
typedef enum { KAFKA_PRODUCES, KAFKA_TRANSACTS, KAFKA_CONSUMES, KAFKA_LOOKS } kafka_role;
rd_kafka_t *kafka_conf_handle(kafka_conn *c, kafka_role role, const char *const *pairs, mw_error *e);
char *kafka_topic(const kafka_conn *c, const char *channel); /* the caller frees it */

/* kafka.c */
void kafka_log(kafka_conn *c, rd_kafka_event_t *ev);
void kafka_down(kafka_conn *c, const char *why);
void kafka_note(kafka_conn *c, const char *error); /* for `status` */
void kafka_up(kafka_conn *c);

/* token.c */
int kafka_token_check(const mw_url *url, mw_error *e);
void kafka_token_read(kafka_conn *c, const mw_url *url);
void kafka_token_prepare(const kafka_conn *c, rd_kafka_conf_t *conf);
void kafka_token_made(kafka_conn *c, rd_kafka_t *rk);
void kafka_token_ends(kafka_conn *c, rd_kafka_t *rk); /* before it is destroyed */
int kafka_token_take(mw_conn *conn, const mw_token *given, mw_error *e);
bool kafka_token_refused(mw_conn *conn);
void kafka_refused(kafka_conn *c, const char *why); /* a broker does not let us in */
void kafka_token_free(kafka_tokens *t);             /* NULL is fine */

/* consumer.c */
mw_sub *kafka_subscribe(mw_conn *conn, const mw_subscription *spec, mw_error *e);
void kafka_resume(mw_sub *sub);
void kafka_begin(mw_sub *sub, uint64_t tag, uint32_t unit);
void kafka_pause(mw_sub *sub);
void kafka_unsubscribe(mw_sub *sub);
void kafka_sub_pump(kafka_sub *s);
void kafka_sub_join(kafka_sub *s);  /* with all its topics; again, when there are more */
void kafka_sub_renew(kafka_sub *s); /* another consumer, with other properties; before it has anything */
void kafka_sub_committed_last(kafka_sub *s);
int kafka_sub_raise(kafka_sub *s, mw_error *e); /* makes a consumer, and joins */
void kafka_sub_lower(kafka_sub *s);             /* ends it, and everything that came from it */
bool kafka_sub_stood_still(kafka_sub *s);       /* just now; what it had is fenced */
void kafka_sub_abandon(kafka_sub *s);           /* the connection closes: no answers any more */

/* partitions.c */
kafka_part *kafka_part_new(kafka_sub *s, const char *topic, int32_t partition);
void kafka_part_free(kafka_part *p); /* takes it out of its subscription */
kafka_part *kafka_part_find(kafka_sub *s, const char *topic, int32_t partition);
const char *kafka_part_topic(const kafka_part *p);
kafka_part *kafka_part_of(kafka_sub *s, uint64_t tag, uint32_t unit); /* NULL: it is not ours any more */
void kafka_part_open(kafka_part *p);
int64_t kafka_part_next_ms(kafka_part *p); /* publish time of the next one to be delivered; 0: not known */
size_t kafka_parts_deliver(kafka_sub *s);  /* how many; there may be more */
void kafka_part_error(rd_kafka_t *rk, int err, const char *reason, void *conn); /* librdkafka calls it */
uint64_t kafka_tag_offset(uint64_t tag);
size_t kafka_locate(const mw_sub *sub, uint64_t tag, uint32_t unit, char *out, size_t size);
void kafka_origin(mw_sub *sub, const mw_origin *o, mw_headers *out);

/* commit.c */
void kafka_settle(mw_sub *sub, const mw_settlement *list, size_t count);
void kafka_commit_soon(kafka_sub *s);
void kafka_commit_begun(kafka_sub *s); /* a handler began: in a moment, if it is still at it */
void kafka_commit_now(kafka_sub *s);   /* nothing to say: nothing happens */
void kafka_committed(kafka_sub *s, rd_kafka_event_t *ev);
void kafka_commit_ended(kafka_sub *s, rd_kafka_resp_err_t err);
void kafka_commit_forget(kafka_sub *s, const kafka_part *p); /* its settlements are fenced */
bool kafka_commit_idle(const kafka_sub *s);
kafka_part *kafka_commit_part(kafka_sub *s, const kafka_wait *w); /* NULL: it is not ours any more */
void kafka_commit_undo(kafka_sub *s, const kafka_wait *w);        /* an ack: it is not done after all */
void kafka_commit_redo(kafka_sub *s, const kafka_wait *w);
bool kafka_commit_late(const kafka_sub *s); /* what is handled now may have to be repeated */

/* rebalance.c */
void kafka_rebalance(kafka_sub *s, rd_kafka_event_t *ev);
void kafka_rebalance_check(kafka_sub *s);       /* a settlement came: is the revoked partition empty? */
void kafka_lost(kafka_sub *s, const char *why); /* what we have is not ours any more */
void kafka_gone(kafka_sub *s);                  /* a topic is, or is another one now */
void kafka_rebalance_forget(kafka_sub *s);      /* everything it has is nobody's any more */

/* fallen.c */
void kafka_fall(kafka_sub *s);

/* ahead.c */
size_t kafka_ahead_share(const kafka_sub *s); /* bytes a partition */
void kafka_ahead_ask(kafka_sub *s);           /* then it joins */
void kafka_ahead_made(kafka_sub *s);          /* there is a new consumer */
void kafka_ahead_taken(kafka_sub *s);         /* something, counted in taken_bytes and taken_count */

/* stranded.c */
void kafka_stranded_look(kafka_sub *s);

/* txn.c */
kafka_txn *kafka_txn_new(kafka_sub *s);
void kafka_txn_free(kafka_txn *t); /* NULL is fine */
void kafka_txn_commit(kafka_txn *t, rd_kafka_topic_partition_list_t *offsets);
void kafka_txn_report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque);
void kafka_txn_choose(kafka_txn *t); /* before a commit: what goes into it */

/* record.c */
typedef struct kafka_retry { /* what a retry channel's message says about itself */
    uint32_t attempts;
    int64_t due_ms;
    mw_text *error;
} kafka_retry;
bool kafka_record_is_for(const rd_kafka_message_t *m, const char *group); /* of a retry channel */
int64_t kafka_record_due(const rd_kafka_message_t *m);                    /* of a retry channel; 0: now */
/* retry: not NULL for a retry channel's message; filled, and its headers are taken off. Loop thread then. */
mw_message *kafka_record_read(const rd_kafka_message_t *m, mw_buf *space, kafka_retry *retry);
/* An unread message; the record is its own now. */
mw_message *kafka_record_keep(rd_kafka_message_t *m, kafka_unread *list, uint64_t now);
kafka_unread *kafka_unread_new(void);
void kafka_unread_read(kafka_unread *list, uint64_t now); /* those that have been unread for too long */
void kafka_unread_free(kafka_unread *list);               /* reads all; NULL is fine */
/* "topic-partition-offset" */
/* The way back from kafka_record_name; false: it is none. */
bool kafka_record_place(const char *name, size_t len, size_t *topic_len, uint32_t *partition,
                        uint64_t *offset);
size_t kafka_record_name(const char *topic, int32_t partition, uint64_t offset, char *out, size_t size);
rd_kafka_headers_t *kafka_record_headers(const mw_parts *p);
bool kafka_record_is_tombstone(const mw_parts *p);

/* producer.c */
void kafka_publish(mw_conn *conn, const mw_publication *list, size_t count);
void kafka_producer_prepare(kafka_conn *c);  /* it will be needed */
void kafka_producer_free(kafka_producer *p); /* NULL is fine */
/* Is it the message's own fault, not that of the network or the broker? Then e says what it is. */
bool kafka_refusal(rd_kafka_resp_err_t err, const char *topic, mw_error *e);
typedef struct kafka_confirm kafka_confirm;
struct kafka_confirm { /* for publications of the driver itself */
    void (*done)(kafka_confirm *c, const mw_error *e);
};
void kafka_publish_own(kafka_conn *c, const mw_publication *m, kafka_confirm *confirm);

/* lag.c */
bool kafka_depth(mw_sub *sub, mw_depth *out);
size_t kafka_places(mw_sub *sub, mw_place *out, size_t max);

/* browse.c, remove.c */
void kafka_conn_errand(kafka_conn *c, kafka_errand *e);
void kafka_browse(mw_conn *conn, const mw_browse *b);
void kafka_browser_free(kafka_browser *b);                                      /* NULL is fine */
void kafka_look_error(rd_kafka_t *rk, int err, const char *reason, void *conn); /* librdkafka calls it */
void kafka_remove(mw_conn *conn, const mw_removal *r);

/* topology.c */
void kafka_topology(mw_conn *conn, const char *request, size_t len, void *cookie);
