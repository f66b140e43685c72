/* redis.h - what the files of the Redis Streams driver share.
 *
 * A channel is a stream, under its name as it is; a pipeline's group is a consumer group. Each connection has
 * one client for commands, and one reader per subscription, which is all that blocks. Beside the stream stand
 * a few keys of ours (keys.c). Everything belongs to the loop's thread.
 *
 * Who may act. Every process is a member of the group, under a name and with a token of its own, and renews
 * that in every tick. With order = "none" all members read. With order = "key" and "source" one of them leads
 * and reads, the others stand by: Redis hands entries to whoever asks, so two readers would mix the keys.
 * Every settlement names the token, and is refused by the server when it is not the one on record: that is
 * the fence. */
#pragma once
#include <stdlib.h>

#include "base/buf.h"
#include "base/hash.h"
#include "loop/loop.h"
#include "core/driver.h"
#include "redis/client.h"
#include "drivers/redis/scripts.h"

typedef struct mwr_id { /* of an entry */
    uint64_t ms, seq;
} mwr_id;

enum { MWR_ID_TEXT = 44 };
size_t mwr_id_print(mwr_id id, char out[MWR_ID_TEXT]);
bool mwr_id_read(const char *text, size_t len, mwr_id *out);
static inline bool mwr_id_less(mwr_id a, mwr_id b) { return a.ms != b.ms ? a.ms < b.ms : a.seq < b.seq; }
void mwr_write_id(mw_buf *b, mwr_id id);

typedef struct mwr_channel { /* what was declared about a stream */
    struct mwr_channel *next;
    char *body_field;
    uint64_t trim_count; /* 0: no limit */
    bool trim_acked, delete_acked;
    char name[];
} mwr_channel;

struct mw_conn {
    mw_loop *loop;
    mw_link *link;
    const mw_host *host;
    mwr_target target;
    mwr_sentinel *sentinel;
    mwr_client *client;
    mwr_channel *channels;
    mw_sub *subs;
    char token[24];   /* of its dedupe claims */
    bool up, said;    /* what the host was told */
    uint64_t told[8]; /* the reasons, while it is not up; hashes */
    unsigned told_count;
    mw_buf later; /* of mwr_answer: answers that were known at once */
    mw_deferred answering;
    bool closing;
};

typedef struct mwr_answer {
    mw_source *source; /* settled; NULL: published */
    void *cookie;
    mw_error e;
    bool failed;
} mwr_answer;

typedef struct mwr_flight { /* delivered and not settled; the tag is its place and its round */
    mwr_id id;
    uint32_t round; /* 0: free */
    uint32_t tries; /* begun so far, as the server knows */
    uint32_t attempt;
    uint32_t next_free;
    uint64_t since;    /* real ms: delivered, or last claimed again */
    bool noted;        /* there is a row in tries */
    bool begun;        /* a handler has it */
    bool seen, marked; /* since the last tick; the server knows */
    bool settling;
    bool published; /* apart from its ack, and confirmed */
    bool again;     /* its settlement was sent, and the answer was lost with the connection */
} mwr_flight;

/* The way of a subscription: its reader connects, the group is made, a tick makes it a member; when it may
 * read, it first takes what is pending, then reads what is new. A lost connection begins again where that is
 * needed. */
typedef enum { MWR_JOINING, MWR_STANDBY, MWR_RECOVERING, MWR_READING, MWR_LEAVING } mwr_sub_state;

struct mw_sub {
    mw_sub *next;
    mw_conn *conn;
    mw_source *source;
    mwr_channel *channel;
    mwr_client *reader;
    char *group, *key_record, *key_tries, *key_retries, *key_delayed;
    char consumer[256], token[128], row[300]; /* row: of the record, must hold the token */
    unsigned name_tries;
    bool ordered, from_start, paused;
    int64_t lease_ms;
    mwr_sub_state state;
    int64_t reader_known; /* the reader's id that stands in the record */

    bool ticking, grouping;
    unsigned reading;   /* reads under way; two while there is much to read: the server works while we do */
    size_t asked, came; /* entries they may bring; that the one now being answered has brought */
    bool busy;          /* the last read brought all it might */
    unsigned refused;   /* of mwr_trouble: said in the log */
    mw_timer tick, due, reread;
    mw_buf dead; /* tokens of processes that are gone, NUL-terminated each */

    mwr_flight *flights;
    uint32_t flight_count, flight_capacity, free_flight, round;
    mwr_id last; /* the newest that was delivered */
    bool any;
    bool whole; /* all that is pending under our name is known here: in flight, or waiting for a retry */
    bool
        replayed; /* entries came again: the group was set back; they are taken as if they were left behind */
    int64_t made; /* how often the group was, as last told */
    uint64_t gap_said; /* real ms: when entries that are not pending any more were last logged */
    mw_buf todo;       /* of mwr_id: to take, oldest first */
    size_t todo_at;
    char list_after[MWR_ID_TEXT + 2]; /* "": the list is complete */
    bool recovering;                  /* something of it is under way */
    unsigned recovery;                /* counts them: answers of an earlier one are of no use */
    bool due_asked;
    mw_buf begun;   /* of mwr_id: what dead processes had begun */
    size_t average; /* bytes of a message, about */
    struct mwr_crumbs *crumbs;

    mw_depth depth;
    uint64_t depth_at;
    mw_buf batch; /* of mw_incoming, while a reply is read */
};

static inline void *mwr_alloc(size_t size) {
    void *p = calloc(1, size);
    if (!p) abort();
    return p;
}

/* redis.c */
mwr_channel *mwr_channel_of(mw_conn *c, const char *name); /* made when there is none */
void mwr_answer_later(mw_conn *c, mw_source *s, void *cookie, const mw_error *e);

/* keys.c */
char *mwr_key_beside(const char *stream, const char *what, const char *group); /* group: "" for none */
unsigned mwr_slot(const char *key, size_t len);                                /* of a cluster */
void mwr_dedupe_key(const mw_conn *c, const char *key, size_t len, mw_buf *out);
void mwr_write_dedupe_key(const mw_conn *c, mw_buf *b, const char *key, size_t len);

/* entry.c: a message as fields. What a server does not take at all ends the connection: it is refused before.
 */
int mwr_publication_check(const mw_conn *c, const mw_publication *p, mw_error *e);
mw_message *mwr_entry_message(const mwr_channel *c, const mwr_unit *u, const mwr_node *fields, mwr_id id);
size_t mwr_entry_count(const mw_parts *p); /* arguments that the fields take */
void mwr_entry_write(mw_buf *b, const mwr_channel *c, const mw_parts *p);
/* For scripts: x or z, longest stream or delay, how many, fields. */
size_t mwr_publication_count(const mw_publication *p);
void mwr_publication_write(mw_conn *c, mw_buf *b, const mw_publication *p);
char *mwr_publication_key(const mw_publication *p); /* the stream, or where delayed ones stand */

/* group.c: being a member */
mw_sub *mwr_subscribe(mw_conn *c, const mw_subscription *s, mw_error *e);
void mwr_unsubscribe(mw_sub *s);
void mwr_sub_free(mw_sub *s);
void mwr_tick_soon(mw_sub *s);
void mwr_sub_connected(mw_sub *s); /* the commands' client came up */
void mwr_sub_lost(mw_sub *s);
void mwr_fenced(mw_sub *s); /* the server refused our token */
/* What was refused is logged once, until that very thing works again. */
typedef enum { MWR_NO_PLACE = 1, MWR_NO_GROUP = 2, MWR_NO_READ = 4, MWR_NO_TAKE = 8 } mwr_trouble;
void mwr_complain(mw_sub *s, mwr_trouble what, const mw_error *e);
void mwr_works(mw_sub *s, mwr_trouble what);
void mwr_gap(mw_sub *s); /* what we have is not pending, and was not settled by us */
bool mwr_depth(mw_sub *s, mw_depth *out);
mw_buf *mwr_group_script(mw_sub *s, mwr_script script, size_t more, mwr_on_reply *reply, void *cookie,
                         int depth);

/* recover.c: what is pending */
void mwr_recover(mw_sub *s);
void mwr_recover_resume(mw_sub *s); /* there is room again */
void mwr_recover_stop(mw_sub *s);
void mwr_due_at(mw_sub *s, int64_t in_ms); /* a retry falls due */

/* read.c: what is new */
void mwr_read(mw_sub *s); /* when it may, and there is room */
int mwr_reader_open(mw_sub *s, mw_error *e);
void mwr_group_make(mw_sub *s);
void mwr_collect(mw_sub *s, const mw_incoming *in); /* for the next mwr_hand_over */
void mwr_hand_over(mw_sub *s);
mwr_flight *mwr_flight_new(mw_sub *s, mwr_id id, uint64_t *tag);
mwr_flight *mwr_flight_of(mw_sub *s, uint64_t tag); /* NULL: fenced */
void mwr_flight_end(mw_sub *s, mwr_flight *f);

/* settle.c */
void mwr_begin(mw_sub *s, uint64_t tag, uint32_t unit);
void mwr_settle(mw_sub *s, const mw_settlement *list, size_t count);
void mwr_settle_one(mw_sub *s, const mw_settlement *x, const mwr_flight *f); /* an ack, in one script */
void mwr_claim_soon(mw_sub *s); /* all that is in flight, for it may not be pending any more */
void mwr_mark_begun(
    mw_sub *s); /* handlers that run for long: a death on another machine counts for them too */

/* apart.c: acks in a cluster whose publications lie in other slots */
bool mwr_settles_apart(const mw_sub *s, const mw_settlement *x);
void mwr_settle_apart(mw_sub *s, const mw_settlement *x, mwr_flight *f);

/* publish.c */
void mwr_publish(mw_conn *c, const mw_publication *list, size_t count);
void mwr_dedupe(mw_conn *c, const mw_dedupe *list, size_t count);
void mwr_publish_one(mw_conn *c, const mw_publication *p, mwr_on_reply *reply, void *cookie);

/* admin.c */
void mwr_browse(mw_conn *c, const mw_browse *b);
void mwr_remove(mw_conn *c, const mw_removal *r);

/* crumbs.c: which entries have been begun, in a file that outlives the process */
typedef struct mwr_crumbs mwr_crumbs;
mwr_crumbs *mwr_crumbs_open(mw_sub *s); /* NULL: there is no place for it */
void mwr_crumbs_close(mwr_crumbs *c);
void mwr_crumbs_begin(mwr_crumbs *c, uint32_t place, mwr_id id);
void mwr_crumbs_end(mwr_crumbs *c, uint32_t place);
void mwr_crumbs_found(mw_sub *s, mw_buf *ids); /* what other processes of this machine had begun, as mwr_id */
void mwr_crumbs_forget(mw_sub *s, mwr_id id);  /* it has been counted */
