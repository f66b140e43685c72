/* defs.h - the structs behind pipeline.h, shared by the files that make up a pipeline and by nobody
 * else: pipeline.c (life), source.c (what the driver says), lanes.c (order), take.c (hand-out), verdict.c
 * (what an answer costs), settle.c (telling the broker), dead.c (dead letters), trial.c (canaries). */
#pragma once
#include "base/buf.h"
#include "base/hash.h"
#include "pipeline/pipeline.h"
#include "core/shared/tally.h"

enum { MW_REASON_MAX = 4096 }; /* an error may be megabytes long; a header may not */

typedef enum {
    MW_D_UNKEYED,  /* its lane is not known yet */
    MW_D_WAITING,  /* in its lane, behind another */
    MW_D_READY,    /* may be taken */
    MW_D_RUNNING,  /* a handler has it */
    MW_D_HELD,     /* failed; keeps its lane until the timer fires */
    MW_D_SETTLING, /* its fate is decided; publishes or settlement are under way */
} mw_delivery_state;

typedef struct mw_lane {
    uint64_t key;
    mw_delivery *current;      /* the one that holds the lane */
    mw_delivery *first, *last; /* behind it */
    uint32_t count;            /* behind it */
    bool held;                 /* the broker keeps later ones until the lane is shorter */
    struct mw_lane *next_free;
} mw_lane;

typedef struct mw_outgoing mw_outgoing;
struct mw_outgoing { /* one publish of a handler, or a dead letter */
    mw_confirm confirm;
    mw_outgoing *next;
    mw_delivery *delivery;
    mw_link *link;
    mw_message *msg;
    int64_t delay_ms;
    char channel[];
};

struct mw_delivery {
    mw_pipeline *pipeline;
    mw_message *msg; /* NULL: handled, and its name can be told without it */
    uint64_t tag, lane_key;
    uint32_t unit, attempt;
    mw_delivery *next, *prev;          /* in the ready list, the unkeyed list, or its lane (next only) */
    mw_delivery *all_next, **all_back; /* every delivery of the pipeline */
    mw_lane *lane;
    mw_timer timer; /* held retry, deadline, or the next try to settle */
    mw_text *first_error, *error;
    const char *invalid; /* see mw_incoming */
    int64_t not_before;
    uint64_t taken, deadline; /* of the running handler, monotonic ms */
    uint64_t began_ns;        /* of one whose time is measured; 0: it is not */
    void *taker;              /* the owner that runs it */
    uint32_t *running;        /* its count */
    mw_outgoing *outgoing, **outgoing_tail;
    uint32_t outgoing_count, confirms_left;
    size_t outgoing_bytes;
    mw_publication *publications; /* for an atomic settlement; lives until it is settled */
    mw_link *dedupe;              /* where its claim stands */
    char *dedupe_key;
    uint32_t dedupe_len;
    uint32_t settle_tries;
    uint32_t ledger_entry; /* supervised: where it stands while a handler has it */
    uint64_t ledger_hash;
    int64_t delay_ms;
    uint8_t state;  /* mw_delivery_state */
    uint8_t op;     /* mw_settle_op, once settling */
    uint8_t mark;   /* mw_mark to set with the ack */
    uint8_t weight; /* how many its time stands for */
    bool fenced : 1, counted : 1, hold : 1, failed_publish : 1, refused_publish : 1, dead_letter : 1,
        replay : 1, expired : 1, marked : 1, on_ledger : 1, suspect : 1, handled : 1,
        buried : 1,   /* it killed too often: its dead letter is under way */
        settled : 1,  /* the broker has confirmed it */
        on_trial : 1; /* ready, and for the generation on trial */
    bool late;        /* not a bit: a signal handler sets it */
};

typedef struct mw_list {
    mw_delivery *first, *last;
} mw_list;

typedef enum { MW_CLOSED_BREAKER, MW_OPEN, MW_HALF_OPEN } mw_breaker_state;

struct mw_source {
    mw_pipeline *pipeline;
};

enum { MW_LEVELS = MW_PRIORITY_MAX + 1 };

/* Who takes deliveries, and what is ready for them: the current generation, and beside it, during a canary,
 * the one on trial. */
typedef struct mw_outlet {
    mw_pipeline *pipeline;
    mw_pipeline_events events;
    uint32_t generation;
    mw_list ready[MW_LEVELS];
    uint32_t ready_levels, ready_count; /* levels: bit set = not empty */
    mw_timer batch_timer;
    bool batch_due;
    uint32_t running;            /* handlers of the one on trial; of the other nobody asks */
    uint64_t messages, failures; /* first attempts that ended since the trial began */
} mw_outlet;

struct mw_pipeline {
    mw_pipeline_spec spec;
    mw_outlet main, trial;
    mw_outlet *turn;      /* who takes now; NULL: a generation that is gone lets its last handlers end */
    uint64_t trial_below; /* what hashes below is the trial's; 0: there is none */
    uint64_t trial_salt;
    double trial_share;
    mw_loop *loop;
    mw_source source;
    const mw_driver *driver;
    mw_sub *sub;
    char *strings; /* what spec's texts point into */

    mw_list unkeyed, expired;
    mw_delivery *all;
    uint32_t in_flight, running, budget;
    uint32_t handled;       /* of those in flight: nothing but the broker's answer is missing */
    size_t in_flight_bytes; /* messages, and what handlers published with them */
    size_t outgoing_bytes;  /* the latter alone */
    bool choked;            /* it was above the buffer, and is not below half of it: no handler begins */
    bool output_full;       /* the driver says that the broker does not read: likewise */
    bool paused;            /* told the driver "no room"; it waits for resume */
    bool stopped;           /* by mw_pipeline_pause: nothing is taken */
    bool first_of_turn;     /* none was taken yet: one may be, even when the slice is over */
    bool draining, unsubscribed, closed, abandoned;
    bool refused; /* waits until a suspect has ended, see isolate.c */
    mw_pipeline *refused_next;

    mw_map lanes; /* key -> mw_lane */
    mw_map marks; /* key -> mw_mark */
    mw_lane *free_lanes;
    mw_delivery *free_deliveries;
    mw_buf slabs; /* of mw_delivery * */

    mw_buf settlements;
    mw_deferred flush;

    mw_breaker_state breaker;
    uint32_t outages;
    mw_timer breaker_timer;

    uint64_t random;
    uint32_t unmeasured, measure_after; /* taken since the last one whose time is measured; how many may be */
    mw_tally *tally;
};

/* pipeline.c */
mw_delivery *mw_delivery_new(mw_pipeline *p);
void mw_delivery_drop_message(mw_delivery *d);
void mw_delivery_free(mw_delivery *d); /* gives back memory, window and outgoing; not in any list by then */
void mw_pipeline_wake(mw_pipeline *p);
void mw_outlet_wake(mw_outlet *o);
void mw_pipeline_check_drained(mw_pipeline *p);
double mw_pipeline_random(mw_pipeline *p); /* [0, 1) */

/* lists */
void mw_list_push(mw_list *l, mw_delivery *d);
void mw_list_remove(mw_list *l, mw_delivery *d);

/* source.c */
uint32_t mw_source_held(const mw_pipeline *p); /* how many count against the buffer */
void mw_source_maybe_resume(mw_pipeline *p);
void mw_delivery_start_or_hold(mw_delivery *d);

/* lanes.c */
void mw_lane_enter(mw_delivery *d);  /* READY, WAITING, put back, parked or dead, as its lane says */
void mw_lane_leave(mw_delivery *d);  /* the next one moves up; no lane is fine */
void mw_lane_forget(mw_delivery *d); /* takes a waiting one out of the queue */
void mw_lane_held(mw_pipeline *p, uint64_t key); /* the driver waits for go_on */
void mw_lane_mark(mw_pipeline *p, uint64_t lane, mw_mark mark);

/* take.c */
void mw_delivery_make_ready(mw_delivery *d);
void mw_delivery_unready(mw_delivery *d);
void mw_delivery_end_run(mw_delivery *d);                        /* the handler is done with it */
void mw_breaker_outage(mw_delivery *d, const mw_policy *policy); /* d->error says why */
void mw_breaker_success(mw_pipeline *p);

/* trial.c */
mw_outlet *mw_trial_outlet(mw_pipeline *p, const mw_delivery *d); /* whose it is, once it is ready */
uint32_t mw_trial_quota(const mw_pipeline *p);    /* handlers that the trial may have of the concurrency */
void mw_trial_count(mw_delivery *d, bool failed); /* its handler has answered */
void mw_trial_recount(mw_delivery *d);            /* what was counted as well has failed after all */

/* isolate.c: only when the process is supervised (mw_ledger_on) */
typedef enum { MW_GO, MW_WAIT, MW_BURY } mw_isolation;
mw_isolation mw_isolate_ask(mw_delivery *d); /* may it begin now? */
void mw_isolate_begin(mw_delivery *d);
void mw_isolate_end(mw_delivery *d);
void mw_isolate_bury(mw_delivery *d);          /* a ready one, out of its list; it is gone afterwards */
void mw_isolate_settled(const mw_delivery *d); /* it is gone: a suspect may have waited for it */
void mw_isolate_forget(mw_pipeline *p);

/* settle.c */
void mw_settle_ack(
    mw_delivery *d); /* after its publishes; keeps its lane until confirmed when there are any */
void mw_settle_retry(mw_delivery *d, int64_t delay_ms, bool counted, mw_text *error);
void mw_settle_simple(mw_delivery *d, mw_settle_op op); /* PARK, RELEASE */
void mw_settle_withdraw(mw_pipeline *p); /* verdicts on what was fenced that no driver has been given yet */
void mw_outgoing_add(mw_delivery *d, mw_link *link, const char *channel, mw_message *m, int64_t delay_ms);
void mw_outgoing_discard(mw_delivery *d);
void mw_outgoing_check(mw_pipeline *p); /* may handlers begin again? */

/* verdict.c */
const mw_policy *mw_policy_for(const mw_pipeline *p, const char *class_name);
void mw_verdict_dead(mw_delivery *d, const char *class_name, const char *reason, size_t reason_len);
void mw_verdict_publish_failed(mw_delivery *d, const mw_error *e);

/* dead.c */
mw_message *mw_dead_letter(const mw_delivery *d, const char *class_name, const char *reason,
                           size_t reason_len);
mw_message *mw_tier_copy(const mw_delivery *d, int64_t delay_ms);
void mw_delivery_log(int level, const char *text,
                     const mw_delivery *d); /* begins a line: id, pipeline, attempt */
