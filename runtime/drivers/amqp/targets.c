/* targets.c - where publications go. A queue is looked for before the first publication to it, and declared
 * when it is missing: what the broker cannot route is lost, or comes back as an error. The first one then
 * goes ahead alone, and the others when it is confirmed: a queue that somebody is just making can be found
 * before it takes messages, and a stream mixes up those that came meanwhile. What is returned, or refused at
 * the very first, goes again, before what was published later. An exchange is only looked for. Delays:
 * tiers.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/amqp/amqp.h"

enum { UNREADY_MS = 20 };

typedef struct declaration { /* the job that finds or makes a target's queue */
    rmq_job job;
    rmq_target *target;
    bool home; /* of a tier: first the queue that its messages return to; they would be lost without it */
    bool make;
    uint32_t made; /* steps */
} declaration;

rmq_target *rmq_target_find(rmq_conn *c, const char *name) {
    rmq_target *t = mw_map_get(&c->targets, mw_hash64(name, strlen(name)));
    while (t && strcmp(t->name, name) != 0) t = t->next_same_hash;
    return t;
}

/* "\1exchange\2key": lua/moonwire/internal/config/exchange.lua writes it; "\3" instead of "\1": not
 * mandatory. One target for all keys: they are without number. */
bool rmq_is_exchange(const char *channel) { return channel[0] == '\1' || channel[0] == '\3'; }

rmq_target *rmq_target_insert(rmq_conn *c, const char *name) {
    uint64_t hash = mw_hash64(name, strlen(name));
    rmq_target *t = calloc(1, sizeof *t);
    if (!t || !(t->name = strdup(name))) abort();
    t->conn = c;
    t->exchange = "";
    t->key = t->name;
    t->mandatory = true;
    t->next_same_hash = mw_map_get(&c->targets, hash);
    mw_map_put(&c->targets, hash, t);
    return t;
}

/* The broker's own are for replies: each has a name of its own, and whoever asked may have gone. */
static bool is_brokers_own(const char *channel) { return strncmp(channel, "amq.", 4) == 0; }

const char *rmq_routing_key(const char *channel) {
    if (is_brokers_own(channel)) return channel;
    const char *key = rmq_is_exchange(channel) ? strchr(channel, '\2') : NULL;
    return key ? key + 1 : NULL;
}

rmq_target *rmq_target_get(rmq_conn *c, const char *channel) {
    char name[300];
    if (is_brokers_own(channel)) channel = "\3"; /* the default exchange, not mandatory */
    size_t len = rmq_is_exchange(channel) ? strcspn(channel, "\2") : strlen(channel);
    snprintf(name, sizeof name, "%.*s", (int)len, channel);
    rmq_target *t = rmq_target_find(c, name);
    if (t) return t;
    t = rmq_target_insert(c, name);
    if (rmq_is_exchange(channel)) {
        t->kind = RMQ_TO_EXCHANGE;
        t->mandatory = channel[0] == '\1';
        t->exchange = t->name + 1;
        t->key = "";
        if (!*t->exchange) t->state = RMQ_THERE; /* the default exchange: replies, which declare nothing */
    }
    return t;
}

static bool is_asked_for(const rmq_target *t) { return t->kind != RMQ_TO_EXCHANGE || *t->exchange; }

rmq_target *rmq_target_journal(rmq_conn *c, const char *name) {
    rmq_target *t = rmq_target_find(c, name);
    if (t) return t;
    t = rmq_target_insert(c, name);
    t->kind = RMQ_TO_JOURNAL;
    return t;
}

/* ---- declaring ---- */

/* It holds one message, the newest. */
static void put_journal(mw_buf *b, const rmq_conn *c, const rmq_target *t) {
    rmq_queue_options o = {.type = c->defaults.type, .max_length = 1, .delivery_limit = -1};
    rmq_unlimit(c, &o); /* to read it is a delivery */
    rmq_put_queue_declare(b, RMQ_CHAN_ADMIN, t->name, &o, c->declare == RMQ_DECLARE_PASSIVE);
}

/* A publish to one that is missing would cost the channel, and all others that are under way. */
static void put_exchange(mw_buf *b, const rmq_target *t) {
    size_t f = rmq_method(b, RMQ_CHAN_ADMIN, RMQ_EXCHANGE_DECLARE);
    rmq_put_u16(b, 0);
    rmq_put_string(b, t->exchange);
    rmq_put_string(b, "");
    rmq_put_u8(b, 1); /* passive */
    rmq_close(b, rmq_open(b));
    rmq_frame_end(b, f);
}

static const char *name_of(const declaration *d) { return d->home ? d->target->tier.home : d->target->name; }

static bool is_queue(const declaration *d) { return d->home || d->target->kind == RMQ_TO_QUEUE; }

static void declaration_start(rmq_job *j, rmq_conn *c, mw_buf *out) {
    declaration *d = mw_container_of(j, declaration, job);
    if (is_queue(d) && d->make)
        rmq_put_make(out, c, RMQ_CHAN_ADMIN, name_of(d), d->made);
    else if (is_queue(d))
        rmq_put_declare(out, c, RMQ_CHAN_ADMIN, name_of(d), true);
    else if (d->target->kind == RMQ_TO_TIER)
        rmq_put_tier(out, c, d->target);
    else if (d->target->kind == RMQ_TO_EXCHANGE)
        put_exchange(out, d->target);
    else
        put_journal(out, c, d->target);
}

/* ---- who may go ---- */

static void ask(rmq_conn *c, rmq_target *t);

static void wait_in_place(rmq_pub *p) {
    rmq_fifo *f = &p->to->waiting;
    rmq_pub **at = &f->first;
    if (!f->first || f->last->place < p->place) {
        rmq_fifo_push(f, p);
        return;
    }
    while ((*at)->place < p->place) at = &(*at)->next;
    p->next = *at;
    *at = p;
}

static void send_on(rmq_conn *c, rmq_pub *p) {
    p->under_way = true;
    p->to->under_way++;
    if (p->to->kind == RMQ_TO_TIER) { /* it has another queue tomorrow, and this one may be returned then */
        free(p->key);
        if (!(p->key = strdup(p->to->key))) abort();
    }
    rmq_fifo_push(&c->ready, p);
}

static void go_on(rmq_conn *c, rmq_target *t) {
    if (t->state == RMQ_RETURNING && !t->under_way) t->state = RMQ_UNKNOWN;
    if (t->state == RMQ_UNKNOWN && t->waiting.first) ask(c, t);
    while (t->waiting.first && (t->state == RMQ_THERE || (t->state == RMQ_TRYING && !t->under_way)))
        send_on(c, rmq_fifo_pop(&t->waiting));
}

void rmq_target_add(rmq_conn *c, rmq_pub *p) {
    rmq_target *t = p->to;
    if (t->state == RMQ_THERE && rmq_tier_is_stale(c, t)) t->state = RMQ_UNKNOWN;
    if (t->state == RMQ_THERE) {
        send_on(c, p);
        return;
    }
    wait_in_place(p);
    go_on(c, t);
}

static void not_under_way(rmq_pub *p) {
    if (!p->under_way) return;
    p->under_way = false;
    p->to->under_way--;
}

void rmq_target_over(rmq_conn *c, rmq_pub *p, bool routed) {
    if (!p->under_way) return;
    not_under_way(p);
    if (routed && p->to->state == RMQ_TRYING) p->to->state = RMQ_THERE;
    if (p->to->waiting.first || p->to->state == RMQ_RETURNING) go_on(c, p->to);
}

/* What was not written yet waits again: of one target, or (NULL) of all that are asked for. */
static void call_back(rmq_conn *c, const rmq_target *t) {
    rmq_fifo list = c->ready;
    c->ready = (rmq_fifo){0};
    for (rmq_pub *p; (p = rmq_fifo_pop(&list));) {
        if (t ? p->to != t : !is_asked_for(p->to)) {
            rmq_fifo_push(&c->ready, p);
            continue;
        }
        not_under_way(p);
        wait_in_place(p);
    }
}

void rmq_target_back(rmq_conn *c, rmq_pub *p) {
    rmq_target *t = p->to;
    p->tries++;
    p->returned = false;
    not_under_way(p);
    if (t->state == RMQ_THERE || t->state == RMQ_TRYING) {
        t->state = RMQ_RETURNING;
        call_back(c, t);
    }
    wait_in_place(p);
    go_on(c, t);
}

bool rmq_target_recall(rmq_conn *c, rmq_pub *p) {
    rmq_target *t = p->to;
    if (!rmq_tier_is_stale(c, t)) return false;
    not_under_way(p);
    wait_in_place(p);
    call_back(c, t);
    if (t->state == RMQ_THERE || t->state == RMQ_TRYING) t->state = RMQ_RETURNING;
    go_on(c, t);
    return true;
}

static void ask_again(mw_timer *timer) {
    rmq_target *t = mw_container_of(timer, rmq_target, again);
    if (t->state != RMQ_UNREADY) return;
    t->state = RMQ_UNKNOWN;
    go_on(t->conn, t);
}

/* A quorum queue without a leader refuses, and one that somebody is just making has none. What was published
 * later must not overtake this one. */
void rmq_target_unready(rmq_pub *p) {
    rmq_target *t = p->to;
    t->state = RMQ_UNREADY;
    not_under_way(p);
    wait_in_place(p);
    mw_timer_start_real(t->conn->loop, &t->again, UNREADY_MS << p->tries++, ask_again);
}

static void there(rmq_conn *c, rmq_target *t) {
    t->state = t->kind == RMQ_TO_QUEUE || t->tier.quorum ? RMQ_TRYING : RMQ_THERE;
    t->tier.since = mw_loop_real_ms(c->loop);
    go_on(c, t);
    rmq_pump(c);
}

static void not_there(rmq_target *t, const mw_error *why) {
    rmq_fifo list = t->waiting;
    t->waiting = (rmq_fifo){0};
    t->state = RMQ_UNKNOWN;
    for (rmq_pub *p; (p = rmq_fifo_pop(&list));) rmq_finish(p, why);
}

/* true: it was all, and d is gone. */
static bool found(rmq_conn *c, declaration *d) {
    if (d->home) {
        d->home = d->make = false;
        return false;
    }
    there(c, d->target);
    free(d);
    return true;
}

static bool declaration_reply(rmq_job *j, rmq_conn *c, uint32_t method, rmq_reader *r) {
    declaration *d = mw_container_of(j, declaration, job);
    (void)method, (void)r;
    if (d->make && ++d->made < rmq_make_steps(c, name_of(d))) return false;
    return found(c, d);
}

/* It is there, with other arguments or for somebody else: good enough. */
static bool is_there(int code, const mw_error *why) {
    return code == 405 || (code == 406 && strstr(why->text, "inequivalent arg"));
}

static bool declaration_failed(rmq_job *j, rmq_conn *c, int code, const mw_error *why) {
    declaration *d = mw_container_of(j, declaration, job);
    if (code < 0) { /* the connection is being closed */
        free(d);
        return true;
    }
    if (code == 0) { /* with the line; after it is back the target is asked for again */
        d->make = false;
        return false;
    }
    const char *name = name_of(d);
    if (code == 404 && !d->make && is_queue(d) && c->declare == RMQ_DECLARE_AUTO &&
        !rmq_options_of(c, name)->exclusive) {
        d->make = true;
        d->made = 0;
        return false;
    }
    bool without = d->make && rmq_make_without(c, name, d->made, why);
    if (without && ++d->made < rmq_make_steps(c, name)) return false;
    if (without || is_there(code, why)) return found(c, d);
    mw_error e;
    bool exchange = d->target->kind == RMQ_TO_EXCHANGE;
    mw_fail(&e, MW_EUSAGE, true, "%s \"%s\": %s", exchange ? "exchange" : "queue",
            exchange ? d->target->exchange : name, why->text);
    not_there(d->target, &e);
    free(d);
    return true;
}

static void ask(rmq_conn *c, rmq_target *t) {
    t->state = RMQ_ASKING;
    declaration *d = calloc(1, sizeof *d);
    if (!d) abort();
    d->job.start = declaration_start;
    d->job.reply = declaration_reply;
    d->job.failed = declaration_failed;
    d->target = t;
    d->home = t->kind == RMQ_TO_TIER;
    rmq_job_add(c, &d->job);
}

/* ---- endings ---- */

static void each(rmq_conn *c, void (*fn)(rmq_conn *c, rmq_target *t, void *to), void *to) {
    uint32_t at = 0;
    for (rmq_target *t; (t = mw_map_next(&c->targets, &at, NULL));)
        for (rmq_target *next; t; t = next) {
            next = t->next_same_hash;
            fn(c, t, to);
        }
}

static void forget(rmq_conn *c, rmq_target *t, void *to) {
    (void)to; /* a declaration under way goes on */
    if (!is_asked_for(t) || t->state == RMQ_ASKING) return;
    t->state = RMQ_UNKNOWN;
    go_on(c, t);
}

void rmq_targets_forget(rmq_conn *c) {
    call_back(c, NULL);
    each(c, forget, NULL);
}

static void gather(rmq_conn *c, rmq_target *t, void *to) {
    (void)c; /* a declaration under way goes on, for the next ones */
    for (rmq_pub *p; (p = rmq_fifo_pop(&t->waiting));) rmq_fifo_push(to, p);
}

/* Out of their lists first: `done` may come back to us with new publications and targets. */
void rmq_targets_gather(rmq_conn *c, rmq_fifo *to) {
    for (rmq_pub *p; (p = rmq_fifo_pop(&c->ready));) rmq_fifo_push(to, p);
    each(c, gather, to);
}

static void look_for_one(rmq_conn *c, rmq_target *t, void *any) {
    (void)c;
    *(bool *)any |= t->waiting.first != NULL;
}

bool rmq_targets_waiting(rmq_conn *c) {
    bool any = c->ready.first;
    each(c, look_for_one, &any);
    return any;
}

static void free_one(rmq_conn *c, rmq_target *t, void *to) {
    (void)c, (void)to;
    mw_timer_stop(&t->again);
    free(t->tier.queue);
    free(t->name);
    free(t);
}

void rmq_targets_free(rmq_conn *c) {
    each(c, free_one, NULL);
    mw_map_free(&c->targets);
    for (rmq_job *j = c->job ? c->job : c->jobs, *next; j; j = next) {
        next = j == c->job ? c->jobs : j->next;
        j->failed(j, c, -1, NULL);
    }
}
