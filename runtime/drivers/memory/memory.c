/* memory.c - the memory driver: the contract on the broker in broker.c. Nothing outlives the process; for
 * specs, trials and benchmarks. "memory:NAME" settles message by message, with transactions.
 * "memory-offset:NAME" does as little as an offset broker does: it commits a low-water mark, has no delays,
 * priorities or transactions, and so exercises what the core fills in. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "drivers/memory/memory.h"

enum { BATCH = 256 };

/* ---- answers: always from a deferred call, in the order of the requests ---- */

static void answer_all(mw_deferred *d) {
    mem_conn *c = mw_container_of(d, mem_conn, answering);
    mw_buf batch = c->answers;
    c->answers = (mw_buf){0};
    for (size_t i = 0; i < batch.len / sizeof(mem_answer); i++) {
        mem_answer *a = &((mem_answer *)(void *)batch.data)[i];
        mw_error e;
        const mw_error *given = NULL;
        if (a->code) {
            mw_fail(&e, a->code, a->code != MW_EFENCED, "%s", a->text);
            given = &e;
        }
        if (a->kind == MEM_SETTLED)
            c->host->settled(a->source, a->cookie, given);
        else if (a->kind == MEM_PUBLISHED)
            c->host->published(c->link, a->cookie, given);
        else
            c->host->claimed(c->link, a->cookie, a->claim, given);
    }
    if (c->answers.data) {
        mw_buf_free(&batch);
    } else {
        batch.len = 0;
        c->answers = batch;
    }
}

static void answer_late(mw_timer *t) {
    mem_conn *c = mw_container_of(t, mem_conn, late);
    mw_defer(c->broker->loop, &c->answering, answer_all);
}

static void answer(mem_conn *c, mem_answer a) {
    mw_buf_add(&c->answers, &a, sizeof a);
    if (c->broker->faults.delay_ms > 0) {
        if (!mw_timer_running(&c->late))
            mw_timer_start(c->broker->loop, &c->late, c->broker->faults.delay_ms, answer_late);
    } else {
        mw_defer(c->broker->loop, &c->answering, answer_all);
    }
}

static bool strikes(uint32_t *fault) { return *fault && (*fault)--; }

/* ---- connections ---- */

static int memory_check(const mw_url *url, mw_error *e) {
    static const char *const options[] = {NULL};
    return mw_url_only(url, options, e);
}

static mw_conn *memory_open(mw_loop *loop, const mw_url *url, mw_link *link, const mw_host *host,
                            mw_error *e) {
    if (memory_check(url, e)) return NULL;
    mem_conn *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->broker = mem_broker_get(loop, url->path);
    c->link = link;
    c->host = host;
    c->offsets = strcmp(url->scheme, "memory-offset") == 0;
    return (mw_conn *)c;
}

static void memory_close(mw_conn *conn) {
    mem_conn *c = (mem_conn *)conn;
    mw_deferred_cancel(c->broker->loop, &c->answering);
    mw_timer_stop(&c->late);
    mw_buf_free(&c->answers);
    mem_broker_release(c->broker);
    free(c);
}

/* ---- consuming ---- */

static void send(mem_sub *s, mem_item *i, mw_incoming *in) {
    i->state = MEM_OUT;
    mem_list_append(&s->out, i);
    s->group->out_count++;
    if (s->group->acks) mw_acks_add(s->group->acks, i->seq);
    *in = (mw_incoming){.msg = mw_message_ref(i->msg),
                        .tag = (uint64_t)(uintptr_t)i,
                        .attempt = i->failures + 1,
                        .first_error = mw_text_ref(i->first_error)};
}

static mem_item *first_free(mem_group *g, const mem_list *l) {
    mem_item *i = l->first;
    while (i && mem_group_holds_back(g, i)) i = i->next;
    return i;
}

static mem_item *next_ready(mem_group *g, uint64_t *held) {
    for (int p = MW_PRIORITY_MAX; p >= 0 && g->ready_count > *held; p--) {
        mem_item *i = first_free(g, &g->late[p]);
        if (!i) i = first_free(g, &g->ready[p]);
        if (i) return i;
    }
    *held = g->ready_count;
    return NULL;
}

/* What a long lane has for a consumer that asked for more of it; one that has nothing left is long no more.
 */
static mem_item *next_held(mem_group *g, mem_lane **of) {
    mem_item *best = NULL;
    uint64_t lane, done = 0;
    uint32_t at = 0;
    for (mem_lane *l; (l = mw_map_next(&g->lanes, &at, &lane));) {
        if (!l->room) continue;
        if (!l->items.first) done = lane;
        mem_item *i = first_free(g, &l->items);
        if (!i || (best && mw_message_priority(i->msg) <= mw_message_priority(best->msg))) continue;
        best = i;
        *of = l;
    }
    if (done) mem_lane_free(g, done);
    return best;
}

static mem_item *next_item(mem_group *g, uint64_t *held, mem_lane **lane) {
    mem_item *i = NULL;
    while ((i = next_ready(g, held)) && mem_group_lane(g, i)) {
        mem_item_detach(i);
        mem_item_hold(i, mw_message_lane(i->msg));
    }
    mem_item *other = g->held_count || g->lanes.count ? next_held(g, lane) : NULL;
    if (!other || (i && mw_message_priority(i->msg) > mw_message_priority(other->msg))) {
        *lane = NULL;
        return i;
    }
    return other;
}

static void duplicate(mem_item *i) {
    mem_channel *c = i->group->channel;
    if (strikes(&c->broker->faults.duplicate)) mem_publish(c, i->msg, 0);
}

static void reverse(mw_incoming *in, size_t n) {
    for (size_t a = 0; n && a < --n; a++) {
        mw_incoming swap = in[a];
        in[a] = in[n];
        in[n] = swap;
    }
}

static void pump_sub(mem_sub *s) {
    mw_incoming in[BATCH];
    size_t bytes, n = 0, room = s->conn->host->room(s->source, &bytes);
    uint64_t held = 0;
    while (n < room && n < BATCH) {
        mem_lane *lane = NULL;
        mem_item *i = next_item(s->group, &held, &lane);
        if (!i || (n && mw_message_size(i->msg) > bytes)) break;
        bytes -= mw_message_size(i->msg) < bytes ? mw_message_size(i->msg) : bytes;
        mem_item_detach(i);
        duplicate(i);
        send(s, i, &in[n]);
        if (lane && --lane->room == 0) in[n].held = true;
        n++;
    }
    if (n && strikes(&s->conn->broker->faults.reorder)) reverse(in, n);
    if (n) s->conn->host->deliver(s->source, in, n);
}

/* An ordered group has one active consumer, the oldest; others stand by. */
static void pump(mw_deferred *d) {
    mem_group *g = mw_container_of(d, mem_group, pump);
    uint64_t before = g->ready_count + g->held_count;
    for (mem_sub *s = g->subs; s && g->ready_count + g->held_count; s = s->next) {
        if (!s->paused) pump_sub(s);
        if (s->order != MW_ORDER_NONE) break;
    }
    uint64_t after = g->ready_count + g->held_count;
    if (after && after != before) mem_group_wake(g);
}

void mem_group_wake(mem_group *g) {
    if (g->subs) mw_defer(g->channel->broker->loop, &g->pump, pump);
}

static mw_sub *memory_subscribe(mw_conn *conn, const mw_subscription *spec, mw_error *e) {
    (void)e;
    mem_conn *c = (mem_conn *)conn;
    mem_sub *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->conn = c;
    s->source = spec->source;
    s->order = spec->order;
    s->group = mem_group_get(mem_channel_get(c->broker, spec->channel), spec->group, spec->from_start);
    if (c->offsets && !s->group->acks) s->group->acks = mw_acks_new(0);
    mem_sub **at = &s->group->subs;
    while (*at) at = &(*at)->next;
    *at = s;
    uint32_t i = 0;
    uint64_t lane;
    for (void *mark; (mark = mw_map_next(&s->group->marks, &i, &lane));)
        c->host->mark(s->source, lane, (mw_mark)(uintptr_t)mark);
    mem_group_wake(s->group);
    return (mw_sub *)s;
}

static void memory_resume(mw_sub *sub) { mem_group_wake(((mem_sub *)sub)->group); }

static void memory_begin(mw_sub *sub, uint64_t tag, uint32_t unit) {
    (void)sub, (void)unit;
    ((mem_item *)(uintptr_t)tag)->begun = true;
}

static void take_back(mem_sub *s, mem_item *i) {
    mem_list_remove(&s->out, i);
    s->group->out_count--;
}

/* Everything below the mark is gone for good; what was done above it stays, as it would at an offset broker.
 */
static void commit_offset(mem_sub *s, mem_item *done) {
    mw_acks_done(s->group->acks, done->seq);
    done->done = true;
    uint64_t mark = mw_acks_mark(s->group->acks);
    for (mem_item *i = s->out.first, *next; i; i = next) {
        next = i->next;
        if (i->seq >= mark) break; /* handed out in rising order */
        take_back(s, i);
        mem_item_free(i);
    }
}

static void publish_all(mem_conn *c, const mw_publication *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        mem_publish(mem_channel_get(c->broker, list[i].channel), list[i].msg, list[i].delay_ms);
}

static void done(mem_broker *b, const char *key, size_t len, int64_t ttl_ms) {
    mem_records_done(&b->records, key, len, mw_loop_wall_ms(b->loop) + ttl_ms);
}

static void acked(mem_sub *s, mem_item *i, const mw_settlement *x) {
    publish_all(s->conn, x->publish, x->publish_count);
    if (x->done_key) done(s->conn->broker, x->done_key, x->done_len, x->done_ttl_ms);
    mem_group_mark(s->group, x->lane, x->mark);
    if (s->group->acks) {
        commit_offset(s, i);
    } else {
        take_back(s, i);
        mem_item_free(i);
    }
}

static void failed(mem_sub *s, mem_item *i, const mw_settlement *x) {
    i->failures = x->attempt;
    i->begun = false;
    if (!i->first_error) i->first_error = mw_text_ref(x->error);
    if (x->hold) return;
    take_back(s, i);
    if (x->delay_ms > 0)
        mem_item_delay(i, x->delay_ms);
    else
        mem_item_ready(i);
}

static void settle_one(mem_sub *s, const mw_settlement *x) {
    mem_item *i = (mem_item *)(uintptr_t)x->tag;
    switch (x->op) {
    case MW_SETTLE_ACK: acked(s, i, x); break;
    case MW_SETTLE_RETRY: failed(s, i, x); break;
    case MW_SETTLE_PARK:
        take_back(s, i);
        mem_item_park(i, x->lane);
        break;
    case MW_SETTLE_RELEASE:
        i->begun = false;
        take_back(s, i);
        mem_item_ready(i);
        break;
    }
}

static void memory_settle(mw_sub *sub, const mw_settlement *list, size_t count) {
    mem_sub *s = (mem_sub *)sub;
    mem_faults *f = &s->conn->broker->faults;
    for (size_t k = 0; k < count; k++) {
        mem_answer a = {.kind = MEM_SETTLED, .source = s->source, .cookie = list[k].cookie};
        if (list[k].op == MW_SETTLE_ACK && strikes(&f->hold_ack)) {
            f->held++; /* on its way for ever: the worker is about to die */
            continue;
        }
        if (strikes(&f->fail_settle)) {
            a.code = MW_ECLOSED;
            a.text = "injected: the broker did not take the settlement";
        } else if (!(list[k].op == MW_SETTLE_ACK && strikes(&f->lose_ack))) {
            settle_one(s, &list[k]);
        } else {
            s->lost++; /* the broker never heard of it; the next cut brings the message back */
        }
        answer(s->conn, a);
    }
}

static void memory_unpark(mw_sub *sub, uint64_t lane) { mem_group_unpark(((mem_sub *)sub)->group, lane); }

static void memory_put_back(mw_sub *sub, uint64_t tag, uint32_t unit, uint64_t lane) {
    (void)unit;
    mem_sub *s = (mem_sub *)sub;
    mem_item *i = (mem_item *)(uintptr_t)tag;
    take_back(s, i);
    mem_item_hold(i, lane);
    mem_group_lane(s->group, i)->room = 0;
    mem_group_wake(s->group); /* it took room that others may use */
}

static void memory_go_on(mw_sub *sub, uint64_t lane, uint32_t count) {
    mem_group *g = ((mem_sub *)sub)->group;
    mem_lane *l = mw_map_get(&g->lanes, lane);
    if (!l) return;
    l->room = count;
    mem_group_wake(g);
}

static bool memory_depth(mw_sub *sub, mw_depth *out) {
    mem_group *g = ((mem_sub *)sub)->group;
    *out = (mw_depth){.ready = g->ready_count + g->held_count,
                      .delayed = g->delayed_count,
                      .parked = g->parked_count,
                      .unsettled = g->out_count - ((mem_sub *)sub)->lost,
                      .known = true};
    return true;
}

static void memory_pause(mw_sub *sub) { ((mem_sub *)sub)->paused = true; }

/* What was handed out and not settled becomes available again; begun ones count as an attempt. */
void mem_sub_give_back(mem_sub *s) {
    for (mem_item *i; (i = s->out.first);) {
        take_back(s, i);
        if (i->begun) i->failures++;
        i->begun = i->done = false;
        mem_item_ready(i);
    }
    mem_lanes_free(s->group);
    mem_group_wake(s->group);
    s->lost = 0;
    if (s->group->acks) { /* begins again at the mark */
        uint64_t mark = mw_acks_mark(s->group->acks);
        mw_acks_free(s->group->acks);
        s->group->acks = mw_acks_new(mark);
    }
}

static void memory_unsubscribe(mw_sub *sub) {
    mem_sub *s = (mem_sub *)sub;
    mem_sub_give_back(s);
    mem_sub **at = &s->group->subs;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    mem_group_wake(s->group);
    s->conn->host->closed(s->source);
    free(s);
}

/* ---- publishing and dedupe ---- */

static void memory_publish(mw_conn *conn, const mw_publication *list, size_t count) {
    mem_conn *c = (mem_conn *)conn;
    for (size_t i = 0; i < count; i++) {
        mem_answer a = {.kind = MEM_PUBLISHED, .cookie = list[i].cookie};
        if (strikes(&c->broker->faults.fail_publish)) {
            a.code = MW_ECLOSED;
            a.text = "injected: the broker did not take the message";
        } else {
            publish_all(c, &list[i], 1);
        }
        answer(c, a);
    }
}

static void memory_dedupe(mw_conn *conn, const mw_dedupe *list, size_t count) {
    mem_conn *c = (mem_conn *)conn;
    mem_records *records = &c->broker->records;
    for (size_t i = 0; i < count; i++) {
        if (list[i].op == MW_DEDUPE_CLAIM) {
            mw_claim got = mem_records_claim(records, list[i].key, list[i].key_len,
                                             mw_loop_wall_ms(c->broker->loop), list[i].ttl_ms);
            answer(c, (mem_answer){.kind = MEM_CLAIMED, .cookie = list[i].cookie, .claim = got});
        } else if (list[i].op == MW_DEDUPE_DONE) {
            if (c->broker->faults.hold_ack) continue; /* it goes with an ack that will not arrive */
            done(c->broker, list[i].key, list[i].key_len, list[i].ttl_ms);
        } else {
            mem_records_release(records, list[i].key, list[i].key_len);
        }
    }
}

/* ---- drivers ---- */

static const char *const memory_schemes[] = {"memory", NULL};
static const char *const offset_schemes[] = {"memory-offset", NULL};

const mw_driver mw_driver_memory = {
    .name = "memory",
    .schemes = memory_schemes,
    .can = MW_CAN_DELAY | MW_CAN_PRIORITY | MW_CAN_ATOMIC | MW_CAN_PARK | MW_CAN_DEDUPE | MW_CAN_BROWSE |
           MW_CAN_REMOVE | MW_CAN_RETRY,
    .check = memory_check,
    .open = memory_open,
    .close = memory_close,
    .subscribe = memory_subscribe,
    .resume = memory_resume,
    .begin = memory_begin,
    .settle = memory_settle,
    .unpark = memory_unpark,
    .put_back = memory_put_back,
    .go_on = memory_go_on,
    .depth = memory_depth,
    .pause = memory_pause,
    .unsubscribe = memory_unsubscribe,
    .publish = memory_publish,
    .dedupe = memory_dedupe,
    .browse = mem_browse,
    .remove = mem_remove,
    .release_key = mem_release_key,
};

const mw_driver mw_driver_memory_offset = {
    .name = "memory-offset",
    .schemes = offset_schemes,
    .can = MW_CAN_DEDUPE | MW_CAN_BROWSE | MW_CAN_REMOVE,
    .check = memory_check,
    .open = memory_open,
    .close = memory_close,
    .subscribe = memory_subscribe,
    .resume = memory_resume,
    .begin = memory_begin,
    .settle = memory_settle,
    .depth = memory_depth,
    .pause = memory_pause,
    .unsubscribe = memory_unsubscribe,
    .publish = memory_publish,
    .dedupe = memory_dedupe,
    .browse = mem_browse,
    .remove = mem_remove,
};
