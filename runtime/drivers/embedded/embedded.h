/* embedded.h - connections and subscriptions of the embedded broker, and what its files share about them.
 * Everything here belongs to the loop's thread, except the apply functions, which run on the store's writer
 * thread and touch only their operation and the transaction. */
#pragma once
#include <stdlib.h>

#include "loop/loop.h"
#include "core/driver.h"
#include "drivers/embedded/store/store.h"

struct mw_conn {
    mwe_store *store;
    mw_loop *loop;
    mw_link *link;
    const mw_host *host;
    uint64_t id; /* owner of its dedupe claims */

    mw_conn *next; /* of the store; guarded by its lock, as the next five */
    mwe_op *answers, **answers_tail;
    unsigned queued; /* operations given to the writer and not in answers yet */
    bool parting;
    mw_wake wake;

    MDB_txn *reader;
    mw_sub *subs;
    mw_io inotify;
    int inotify_fd;
    mw_timer poll;
    uint64_t foreign; /* commits of other processes seen so far */
    bool sweeping;
    mwe_channel *last_channel;
    struct mwe_browsing *browsing, **browsing_tail;
    mw_deferred browse;
};

typedef struct mwe_flight { /* delivered and not settled */
    uint64_t seq;
    uint32_t attempt, epoch;
    uint32_t begun; /* its place in the worker file, or 0 */
    uint32_t hash;  /* of its lane */
    uint16_t slot;
    uint8_t priority;
    bool moving; /* its settlement parks or unparks its lane */
} mwe_flight;

typedef struct mwe_place { /* a message that came back to ready behind the scan */
    uint64_t seq;
    uint8_t priority;
} mwe_place;

/* Per priority: the first message to look at, or MWE_NOWHERE. */
#define MWE_NOWHERE UINT64_MAX
typedef struct mwe_from {
    uint64_t at[MWE_LEVELS];
} mwe_from;

typedef struct mwe_lane { /* a lane that the scan passes by, see lanes.c */
    struct mwe_lane *next;
    uint32_t hash;
    uint32_t room;   /* how many more of it the core takes */
    uint32_t moving; /* parks and unparks of it whose end is not known yet */
    mwe_from from;   /* what the scan passed by */
} mwe_lane;

typedef struct mwe_slot {
    bool mine, leaving;
    uint32_t epoch, in_flight;
} mwe_slot;

typedef enum { MWE_JOINING, MWE_RUNNING, MWE_LEAVING } mwe_sub_state;

struct mw_sub {
    mw_sub *next;
    mw_conn *conn;
    mw_source *source;
    mwe_channel *channel;
    mwe_sub_state state;
    bool paused, from_start, beating, promoting;
    bool one_lane; /* order = "source" */
    bool down;     /* the core was told that the store cannot be written */
    uint64_t id;   /* as a consumer of its group */
    int64_t lease_ms;
    uint32_t channel_id, group_id, slots;
    mwe_slot slot[MWE_SLOTS];
    mwe_owners owners; /* as last seen */
    uint64_t seen;     /* channel->changes */

    mw_map flights; /* seq -> mwe_flight */
    mwe_flight *spare;
    mw_map unreadable;         /* seqs that were told to be damaged */
    mw_map marks;              /* lane -> mark */
    uint64_t scan[MWE_LEVELS]; /* per priority: the next seq to look at */
    mwe_place *back;           /* a heap of what lies before the scan */
    size_t back_count, back_capacity;
    mw_map lanes; /* hash + 1 -> mwe_lane: those that the scan passes by */
    mwe_lane *first_lane, **last_lane;
    mw_map waiting; /* lane -> mwe_from: newer ones that the scan passed by because older ones are parked */

    mw_deferred fetch;
    mw_timer beat, due;
    size_t group_len;
    char group[];
};

static inline void *mwe_alloc(size_t size) {
    void *p = calloc(1, size);
    if (!p) abort();
    return p;
}

/* fetch.c */
void mwe_fetch_soon(mw_sub *s);
void mwe_fetch_back(mw_sub *s, const mwe_place *p); /* it is ready again */
void mwe_fetch_rewind(mw_sub *s);
void mwe_mark_known(mw_sub *s, uint64_t lane, mw_mark mark);
mwe_flight *mwe_flight_new(mw_sub *s, uint64_t seq);
void mwe_flight_end(mw_sub *s, mwe_flight *f);

/* depth.c */
bool mwe_depth(mw_sub *s, mw_depth *out);

/* slots.c */
mw_sub *mwe_subscribe(mw_conn *c, const mw_subscription *want, mw_error *e);
void mwe_unsubscribe(mw_sub *s);
void mwe_beat_soon(mw_sub *s);                              /* looks at who owns what, on the writer */
uint64_t mwe_owners_read(mw_sub *s, const mwe_owners *now); /* the slots that must be fenced, as bits */
uint32_t mwe_living(mw_conn *c, uint32_t channel, uint32_t group); /* consumers, within a read transaction */
void mwe_leave_slots(mw_sub *s); /* gives up those that are asked for and idle */

/* publish.c */
typedef struct mwe_publish {
    mwe_channel *channel; /* NULL: a bad name */
    mw_message *msg;
    int64_t due_ms; /* 0: at once */
    void *cookie;
    int code;
} mwe_publish;
void mwe_publish_list(mw_conn *c, const mw_publication *list, size_t count);
void mwe_publish_take(mw_conn *c, mwe_publish *out, const mw_publication *from);
/* All or none: *code tells why none. freed: the room that what follows in the same step gives back, which may
 * be counted on. MWE_LATER: nothing was done, come again in the next transaction. */
int mwe_publish_apply(mwe_txn *t, mwe_publish *list, size_t count, int64_t freed, int *code);
/* The row of one waiting message, in ready or in due by its time. */
int mwe_wait_put(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint8_t priority, uint64_t seq, mwe_waiting *w,
                 int64_t due_ms);

/* settle.c */
int mwe_message_unwanted(mwe_txn *t, mwe_tchannel *c,
                         uint64_t seq); /* by one group: the last takes it away */
void mwe_begin(mw_sub *s, uint64_t tag, uint32_t unit);
void mwe_settle(mw_sub *s, const mw_settlement *list, size_t count);
void mwe_unpark(mw_sub *s, uint64_t lane);
void mwe_promote(mw_sub *s); /* due messages become ready */
void mwe_release_key(mw_conn *c, const char *channel, const char *group, uint64_t lane);

/* lanes.c, on the loop's thread */
static inline uint32_t mwe_lane_hash(const mw_sub *s, uint64_t of) { return s->one_lane ? 1 : (uint32_t)of; }
static inline mwe_lane *mwe_lane_find(const mw_sub *s, uint32_t hash) {
    return s->lanes.count ? mw_map_get(&s->lanes, hash + 1ull) : NULL;
}
static inline void mwe_from_add(mwe_from *f, uint8_t priority, uint64_t seq) {
    if (seq < f->at[priority]) f->at[priority] = seq;
}
void mwe_put_back(mw_sub *s, uint64_t tag, uint32_t unit, uint64_t lane);
void mwe_go_on(mw_sub *s, uint64_t lane, uint32_t count);
void mwe_lane_moves(mw_sub *s, uint32_t hash);
void mwe_lane_moved(mw_sub *s, uint32_t hash);
void mwe_lane_waits(mw_sub *s, uint64_t lane, uint8_t priority, uint64_t seq); /* behind parked ones */
void mwe_lane_back(mw_sub *s, uint64_t lane, mwe_from **unparked);             /* NULL: nothing; frees it */
bool mwe_lane_runs(const mwe_lane *l); /* it has messages to deliver, and may */
void mwe_lanes_tidy(mw_sub *s);        /* those that have caught up go with the scan again */
void mwe_lanes_rewind(mw_sub *s);      /* the scan begins anew */
void mwe_lanes_free(mw_sub *s);

/* lanes.c, on the writer */
int mwe_lane_park(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t lane, uint8_t priority, uint64_t seq,
                  mwe_waiting *w);
/* *unparked: NULL, or what came back to ready, to be freed */
int mwe_lane_unpark(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t lane, mwe_from **unparked);
/* Lanes of these slots that were parked for being long: their old owner kept count of them, the new one
 * begins anew. */
int mwe_lanes_adopt(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t taken);
int mwe_lane_mark(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g, uint64_t lane, mw_mark mark);

/* groups.c */
void mwe_groups(mw_conn *c, const char *channel, void *cookie);
void mwe_groups_answer(mw_conn *c, mwe_channel *channel, bool all, void *cookie);
void mwe_remove_group(mw_conn *c, const char *channel, const char *group, bool force, void *cookie);

/* dedupe.c, admin.c, retention.c */
void mwe_dedupe(mw_conn *c, const mw_dedupe *list, size_t count);
int mwe_dedupe_sweep(mwe_txn *t);
int mwe_dedupe_done(mwe_txn *t, uint64_t conn, const char *key, size_t len, int64_t ttl_ms); /* with an ack */
/* What is answered by a read in a deferred call. */
typedef struct mwe_browsing {
    struct mwe_browsing *next;
    mwe_channel *channel; /* NULL: a bad name, or `all` */
    mw_browse b;
    bool groups, all; /* not its messages but its groups; of all channels */
} mwe_browsing;
void mwe_browse_later(mw_conn *c, mwe_browsing *b);
void mwe_browse(mw_conn *c, const mw_browse *b);
void mwe_browse_cancel(mw_conn *c);
void mwe_remove(mw_conn *c, const mw_removal *r);
int mwe_declare(mw_conn *c, const char *channel, const mw_channel_options *o, mw_error *e);
void mwe_sweep(mw_conn *c); /* retention, expired dedupe rows, dead workers and readers */
