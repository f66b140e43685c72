/* broker.h - the broker inside the memory driver: channels, groups and their items, in this process only.
 * A message published to a channel becomes one item per group; a channel without groups keeps its items in
 * `log` until the first group takes them over. Loop thread only. */
#pragma once
#include "base/buf.h"
#include "base/hash.h"
#include "core/acks.h"
#include "core/driver.h"

typedef struct mem_item mem_item;
typedef struct mem_group mem_group;
typedef struct mem_channel mem_channel;
typedef struct mem_broker mem_broker;
typedef struct mem_sub mem_sub;

typedef enum { MEM_READY, MEM_DELAYED, MEM_PARKED, MEM_HELD, MEM_OUT } mem_state;

struct mem_item {          /* a million retries may wait here: every byte counts */
    mem_item *next, *prev; /* in the ready list of its priority, its parked list, its lane, or its
                              subscription's */
    mem_group *group;
    mw_message *msg;
    uint64_t seq;
    union {
        mw_timer timer; /* while delayed */
        uint64_t lane;  /* while parked or held: the one it was parked under, its own */
    };
    mw_text *first_error;
    uint32_t failures; /* attempts that ended badly */
    uint8_t state;
    bool begun : 1, done : 1, late : 1;
};

typedef struct mem_list {
    mem_item *first, *last;
} mem_list;

typedef struct mem_lane { /* a long one: what is ready of it stands here, until the consumer has had it */
    mem_list items;       /* by priority and sequence */
    uint32_t room;        /* how many more the consumer takes */
} mem_lane;

struct mem_group {
    mem_group *next;
    mem_channel *channel;
    mem_list ready[MW_PRIORITY_MAX + 1]; /* by sequence */
    mem_list
        late[MW_PRIORITY_MAX + 1]; /* ready, too: what was delayed, in the order it fell due; goes first */
    mem_list delayed;
    mw_map parked; /* lane -> mem_list */
    mw_map marks;  /* lane -> mw_mark */
    mw_map lanes;  /* lane -> mem_lane */
    uint64_t ready_count, delayed_count, parked_count, held_count, out_count;
    mem_sub *subs;
    mw_acks *acks; /* offset mode only */
    mw_deferred pump;
    char name[];
};

struct mem_channel {
    mem_broker *broker;
    uint64_t next_seq;
    mem_group *groups;
    mem_group *log; /* while there is no group; never pumped */
    char name[];
};

typedef struct mem_faults { /* each counts down */
    uint32_t fail_publish, fail_settle, lose_ack, hold_ack, duplicate, reorder, fail_claim;
    uint32_t held;    /* acks that hold_ack kept */
    int64_t delay_ms; /* of every answer, while set */
} mem_faults;

typedef struct mem_record mem_record;
typedef struct mem_records { /* dedupe; records.c */
    mw_map by_hash;          /* -> mem_record, a list of those that share it */
    uint32_t hand;           /* where the next look for old ones begins */
} mem_records;

struct mem_broker {
    mem_broker *next;
    uint32_t refs; /* connections */
    mw_loop *loop;
    mw_map channels; /* hash of the name -> mem_channel */
    mem_records records;
    mw_buf slabs; /* of mem_item *: items come from these, and go back to free_items */
    mem_item *free_items;
    mem_faults faults;
    char name[];
};

mem_broker *mem_broker_get(mw_loop *loop, const char *name); /* takes a reference */
void mem_broker_release(mem_broker *b);

mem_channel *mem_channel_get(mem_broker *b, const char *name); /* made on first use */
mem_group *mem_group_get(mem_channel *c, const char *name, bool from_start);

void mem_publish(mem_channel *c, mw_message *m, int64_t delay_ms);

/* Items. A ready item stands in order of its sequence within its priority. */
void mem_list_append(mem_list *l, mem_item *i);
void mem_list_remove(mem_list *l, mem_item *i);
void mem_item_ready(mem_item *i);                   /* not in any list by then */
void mem_item_delay(mem_item *i, int64_t delay_ms); /* likewise */
void mem_item_park(mem_item *i, uint64_t lane);     /* likewise */
void mem_item_hold(mem_item *i, uint64_t lane);     /* likewise; its lane is long from now on */
void mem_item_detach(mem_item *i); /* out of whatever list it stands in; MEM_OUT ones belong to their sub */
void mem_item_free(mem_item *i);   /* detached */
int64_t mem_item_due_ms(const mem_item *i); /* wall ms it is delayed until, or 0 */
void mem_group_unpark(mem_group *g, uint64_t lane);
mem_lane *mem_group_lane(const mem_group *g, const mem_item *i); /* when its lane is long, or NULL */
void mem_lane_free(mem_group *g, uint64_t lane);                 /* what is held of it is ready again */
void mem_lanes_free(mem_group *g);
void mem_group_mark(mem_group *g, uint64_t lane, mw_mark mark);
bool mem_group_holds_back(mem_group *g, const mem_item *i); /* older ones of its lane are parked */
void mem_group_wake(mem_group *g);                          /* memory.c: pump it after the poll */

/* records.c. Times are wall time in milliseconds. */
mw_claim mem_records_claim(mem_records *t, const char *key, size_t len, int64_t now, int64_t lease_ms);
void mem_records_done(mem_records *t, const char *key, size_t len, int64_t expires); /* of a claim */
void mem_records_release(mem_records *t, const char *key, size_t len); /* a claim; what is done stays */
void mem_records_free(mem_records *t);
