/* pipeline.h - a channel, a handler and a policy: deliveries come in from the driver, wait in their lane, are
 * taken by the Lua worker, and are settled by its verdict. One pipeline has one source. The functions marked
 * [lua] are leaf calls made through FFI: they never call back into Lua; the rest is called by the
 * application. Loop thread only. */
#pragma once
#include "core/driver.h"
#include "core/link.h"
#include "core/spec.h"

typedef struct mw_pipeline mw_pipeline;
typedef struct mw_delivery mw_delivery;

typedef struct mw_pipeline_events { /* how a pipeline tells its owner; called at any time, must only note and
                                       defer */
    void (*ready)(void *owner, mw_pipeline *p);   /* there may be something to take */
    void (*expired)(void *owner, mw_pipeline *p); /* mw_pipeline_expired has something */
    void (*closed)(void *keeper, mw_pipeline *p); /* after mw_pipeline_drain: nothing is left */
    void *owner;  /* who takes deliveries: a generation. Another one may take over, see mw_pipeline_adopt */
    void *keeper; /* who keeps the pipeline */
    uint32_t *running; /* counts what the owner has taken and not answered */
} mw_pipeline_events;

mw_pipeline *mw_pipeline_new(const mw_pipeline_spec *spec, mw_pipeline_events events, mw_error *e);
int mw_pipeline_check(const mw_pipeline_spec *spec, mw_error *e); /* can the broker keep what is declared? */
int mw_pipeline_start(mw_pipeline *p, mw_error *e);
void mw_pipeline_free(mw_pipeline *p);  /* closed, or never started; NULL is fine */
void mw_pipeline_flush(mw_pipeline *p); /* hands the gathered settlements to the driver; the owner calls it
                                           after each Lua tick */
void mw_pipeline_drain(mw_pipeline *p); /* stop fetching, give back what has not begun, finish the rest */
void mw_pipeline_abandon(
    mw_pipeline *p); /* lets go of everything at once, as a crash would; then only mw_pipeline_free */
/* Another generation takes over: new settings (on the same source), new owner. What runs ends with the owner
 * that took it. */
void mw_pipeline_adopt(mw_pipeline *p, const mw_pipeline_spec *spec, mw_pipeline_events events);
void mw_pipeline_disown(mw_pipeline *p, const void *owner); /* the owner goes: it is told nothing more */
void mw_pipeline_pause(mw_pipeline *p, bool pause); /* take and fetch nothing, until it is undone; what runs
                                                       may end. Survives mw_pipeline_adopt */
bool mw_pipeline_paused(const mw_pipeline *p);
void mw_pipeline_forget_pause(mw_pipeline *p); /* it drains: the next one of its name is told for itself */
bool mw_pipeline_draining(const mw_pipeline *p);

/* A canary: another owner gets a share of the messages beside this one, until it is ended, or adopts the
 * pipeline. By key, or by id where there is none, so that a message keeps its owner through retries. */
void mw_pipeline_try(mw_pipeline *p, mw_pipeline_events events, uint32_t generation, double share,
                     uint64_t salt);
void mw_pipeline_end_trial(mw_pipeline *p); /* what it had not begun is the current owner's; none is fine */
const char *mw_pipeline_differs(const mw_pipeline *p,
                                const mw_pipeline_spec *spec); /* the first setting that does, or NULL */
void mw_pipeline_turn(mw_pipeline *p, const void *owner);      /* who takes from now on, before it does */

typedef struct mw_trial_view { /* counted since it began: first attempts that ended, and how many failed */
    uint32_t generation;       /* 0: there is none */
    double share;
    uint64_t messages, failures, old_messages, old_failures;
} mw_trial_view;
void mw_pipeline_trial(const mw_pipeline *p, mw_trial_view *out);
bool mw_pipeline_would_try(const mw_pipeline *p, uint64_t hash); /* does the trial get that key? */

bool mw_pipeline_idle(
    mw_pipeline *p); /* nothing in flight, nothing waiting at the broker, no retry pending */

void mw_pipeline_set_generation(mw_pipeline *p, uint32_t generation); /* stands in dead letters */
const char *mw_pipeline_name(const mw_pipeline *p);
const mw_pipeline_spec *mw_pipeline_settings(const mw_pipeline *p);
void mw_pipeline_counters(const mw_pipeline *p, mw_counters *out);
uint32_t mw_pipeline_in_flight(const mw_pipeline *p);
uint32_t mw_pipeline_running(const mw_pipeline *p);

/* [lua] Deliveries whose lane the pipeline's own key decides: the oldest that has none yet, or NULL. */
mw_delivery *mw_pipeline_unkeyed(mw_pipeline *p);
bool mw_pipeline_more(const mw_pipeline *p); /* [lua] the turn is over, and there is more to take */
void mw_delivery_no_lane(mw_delivery *d, const char *reason,
                         size_t reason_len); /* [lua] its key cannot be told: dead letter */
void mw_delivery_set_lane(mw_delivery *d, const char *key, size_t len, bool has_key);

/* [lua] The next delivery to handle, or NULL: nothing ready, concurrency used up, paused, or this turn's
 * budget spent. */
mw_delivery *mw_pipeline_take(mw_pipeline *p);
/* [lua] A batch: up to batch_size deliveries, 0 while the batch is still filling. Counts as one handler. */
uint32_t mw_pipeline_take_batch(mw_pipeline *p, mw_delivery **out, uint32_t max);
/* At the start of a turn: it may take so many, but none any more once the slice is over; one in any case. */
void mw_pipeline_budget(mw_pipeline *p, uint32_t messages);

/* [lua] The time that handlers have before the loop goes on: acks, timers, signals and other pipelines wait
 * for it. Whoever has a timer says that it is over, from a signal handler too: a clock would cost more than a
 * small handler. What comes next begins a new slice, with fresh time. */
extern volatile bool mw_slice_ended;
void mw_slice_begin(mw_loop *loop);
bool mw_slice_over(void);

/* [lua] The handler waits: from now on its deadline runs. false: it has passed already. */
bool mw_delivery_wait(mw_delivery *d);
/* The deadline of a handler that computes is somebody else's to watch. */
int64_t mw_delivery_left(const mw_delivery *d); /* ms; the whole timeout while no handler has it */
void mw_delivery_set_late(mw_delivery *d);      /* from a signal handler too */
bool mw_delivery_late(const mw_delivery *d);
/* [lua] A delivery that this owner took and whose deadline passed while it waited, or NULL. */
mw_delivery *mw_pipeline_expired(mw_pipeline *p, const void *owner);

/* [lua] Verdicts; d is gone afterwards. Texts are copied. */
void mw_delivery_ack(mw_delivery *d);
void mw_delivery_retry(mw_delivery *d, int64_t after_ms, const char *class_name, const char *reason,
                       size_t reason_len);
void mw_delivery_reject(mw_delivery *d, const char *class_name, const char *reason, size_t reason_len);
void mw_delivery_drop(mw_delivery *d, const char *reason, size_t reason_len);
void mw_delivery_duplicate(mw_delivery *d); /* seen before: settled without handling */
void mw_delivery_busy(mw_delivery *d); /* a twin is being handled: looked at again soon, no attempt counted */

/* What the handler publishes: kept with the delivery until its ack, discarded on any other verdict. */
int mw_delivery_publish(mw_delivery *d, mw_link *link, const char *channel, mw_message *m, int64_t delay_ms,
                        mw_error *e);

/* [lua] Dedupe: answers through `answer` later. The key is remembered and marked done with the ack. */
void mw_delivery_claim(mw_delivery *d, const char *key, size_t len, mw_claimant *c);

mw_message *mw_delivery_message(const mw_delivery *d); /* NULL: handled already, and forgotten */
/* [lua] mw_message_parts and mw_message_known of its message. */
void mw_delivery_parts(const mw_delivery *d, mw_parts *out);
void mw_delivery_known(const mw_delivery *d, mw_parts *out);
/* What it is called, without reading anything: its place, where the driver tells it, or its id. The same at
 * every delivery. `space` is for the former. */
enum { MW_NAME_SPACE = 320 };
const char *mw_delivery_name(const mw_delivery *d, char space[MW_NAME_SPACE], size_t *len);
uint32_t mw_delivery_attempt(const mw_delivery *d);
mw_pipeline *mw_delivery_pipeline(const mw_delivery *d);
bool mw_delivery_fenced(const mw_delivery *d);
uint32_t mw_delivery_ledger(const mw_delivery *d); /* supervised: its entry in the ledger; 0: none */
