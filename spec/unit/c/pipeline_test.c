/* pipeline_test.c - the pipeline's state machine against a driver that does what the test says: deliveries go
 * in, settlements, publishes and claims come out, and each is answered when the test wants it, well or badly.
 * The last test lets a seeded generator choose, and checks what must always hold. All run twice: the second
 * time as a supervised worker would, where nothing may differ while there are no suspects. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "core/host.h"
#include "core/shared/ledger.h"
#include "pipeline/pipeline.h"
#include "check.h"

/* ---- the driver ---- */

enum { MOST = 4096, TRY_AGAIN_MS = 100 };

typedef struct fake_record {
    mw_dedupe_op op;
    char key[64];
    size_t key_len;
    int64_t ttl_ms;
    void *cookie;
    int settles_before; /* how many settlements the driver had seen by then */
} fake_record;

static struct {
    mw_source *source;
    mw_link *link;
    mw_subscription subscription;
    mw_settlement settles[MOST];
    bool settle_answered[MOST];
    int settle_count;
    mw_publication pubs[MOST];
    bool pub_answered[MOST];
    int pub_count, settles_at_pub;
    fake_record records[MOST];
    int record_count;
    int resumes, pauses, begins, unparks, unsubscribes;
    int settles_at_unpark;
    uint64_t unparked, begun;
    uint64_t put_back[MOST];
    int put_back_count, go_ons;
    uint64_t went_on;
    uint32_t go_on_count;
    mw_depth depth;
} fake;

static mw_conn *fake_open(mw_loop *l, const mw_url *u, mw_link *link, const mw_host *host, mw_error *e) {
    (void)l, (void)u, (void)e;
    CHECK(host == &mw_core_host, "another host");
    fake.link = link;
    return (mw_conn *)&fake;
}
static void fake_close(mw_conn *c) { (void)c; }
static mw_sub *fake_subscribe(mw_conn *c, const mw_subscription *s, mw_error *e) {
    (void)c;
    if (strcmp(s->channel, "refused") == 0) {
        mw_fail(e, MW_EUSAGE, false, "no such channel");
        return NULL;
    }
    fake.subscription = *s;
    fake.source = s->source;
    return (mw_sub *)&fake;
}
static void fake_resume(mw_sub *s) { (void)s, fake.resumes++; }
static void fake_begin(mw_sub *s, uint64_t tag, uint32_t unit) {
    (void)s, (void)unit;
    fake.begins++;
    fake.begun = tag;
}
static void fake_settle(mw_sub *s, const mw_settlement *list, size_t count) {
    (void)s;
    CHECK(count > 0, "an empty batch");
    for (size_t i = 0; i < count; i++) {
        if (fake.settle_count == MOST) abort();
        fake.settle_answered[fake.settle_count] = false;
        fake.settles[fake.settle_count++] = list[i];
    }
}
static void fake_unpark(mw_sub *s, uint64_t lane) {
    (void)s;
    fake.unparks++;
    fake.unparked = lane;
    fake.settles_at_unpark = fake.settle_count;
}
static void (*on_put_back)(uint64_t tag); /* what the soak makes of it */
static void (*on_go_on)(uint64_t lane, uint32_t count);
static void fake_put_back(mw_sub *s, uint64_t tag, uint32_t unit, uint64_t lane) {
    (void)s, (void)unit, (void)lane;
    if (fake.put_back_count == MOST) abort();
    fake.put_back[fake.put_back_count++] = tag;
    if (on_put_back) on_put_back(tag);
}
static void fake_go_on(mw_sub *s, uint64_t lane, uint32_t count) {
    (void)s;
    fake.go_ons++;
    fake.went_on = lane;
    fake.go_on_count = count;
    if (on_go_on) on_go_on(lane, count);
}
static bool fake_depth(mw_sub *s, mw_depth *out) {
    (void)s;
    *out = fake.depth;
    return true;
}
static void fake_pause(mw_sub *s) { (void)s, fake.pauses++; }
static void fake_unsubscribe(mw_sub *s) { (void)s, fake.unsubscribes++; }
static void fake_publish(mw_conn *c, const mw_publication *list, size_t count) {
    (void)c;
    fake.settles_at_pub = fake.settle_count;
    for (size_t i = 0; i < count; i++) {
        if (fake.pub_count == MOST) abort();
        fake.pub_answered[fake.pub_count] = false;
        fake.pubs[fake.pub_count++] = list[i];
    }
}
static void fake_dedupe(mw_conn *c, const mw_dedupe *list, size_t count) {
    (void)c;
    for (size_t i = 0; i < count; i++) {
        if (fake.record_count == MOST || list[i].key_len > 64) abort();
        fake_record *r = &fake.records[fake.record_count++];
        *r = (fake_record){.op = list[i].op,
                           .key_len = list[i].key_len,
                           .ttl_ms = list[i].ttl_ms,
                           .cookie = list[i].cookie,
                           .settles_before = fake.settle_count};
        memcpy(r->key, list[i].key, list[i].key_len);
    }
}

static size_t fake_locate(const mw_sub *s, uint64_t tag, uint32_t unit, char *out, size_t size) {
    (void)s;
    return (size_t)snprintf(out, size, "place-%u-%llu", unit, (unsigned long long)tag);
}

enum { QUEUE = MW_CAN_RETRY | MW_CAN_PARK | MW_CAN_DEDUPE | MW_CAN_PRIORITY };
static mw_driver fake_driver = {
    .name = "fake",
    .can = QUEUE,
    .open = fake_open,
    .close = fake_close,
    .subscribe = fake_subscribe,
    .resume = fake_resume,
    .begin = fake_begin,
    .settle = fake_settle,
    .unpark = fake_unpark,
    .put_back = fake_put_back,
    .go_on = fake_go_on,
    .depth = fake_depth,
    .pause = fake_pause,
    .unsubscribe = fake_unsubscribe,
    .publish = fake_publish,
    .dedupe = fake_dedupe,
};

/* The table of drivers is const and an mw_link opaque: these are the first fields of link.c's struct. A
 * change there makes new_link's check fail, not the tests lie. */
typedef struct link_head {
    mw_loop *loop;
    const mw_driver *driver;
    mw_conn *conn;
} link_head;

static mw_loop *loop;

static mw_link *new_link(const char *url) {
    mw_error e;
    mw_link *l = mw_link_new(loop, url, &e);
    if (!l) abort();
    ((link_head *)(void *)l)->driver = &fake_driver;
    if (mw_link_driver(l) != &fake_driver || mw_link_loop(l) != loop || mw_link_open(l, &e)) abort();
    return l;
}

/* ---- one pipeline on it ---- */

static mw_link *from, *other;
static mw_pipeline *p;
static mw_pipeline_spec spec;
static int ready_events, expired_events, closed_events;

static void on_ready(void *owner, mw_pipeline *which) { (void)owner, (void)which, ready_events++; }
static void on_expired(void *owner, mw_pipeline *which) { (void)owner, (void)which, expired_events++; }
static void on_closed(void *owner, mw_pipeline *which) { (void)owner, (void)which, closed_events++; }
static const mw_pipeline_events events = {.ready = on_ready, .expired = on_expired, .closed = on_closed};

static void retry_policy(mw_policy *policy, const char *name, mw_policy_kind kind, uint32_t attempts,
                         double base) {
    *policy = (mw_policy){.kind = kind, .attempts = attempts};
    snprintf(policy->name, sizeof policy->name, "%s", name);
    policy->backoff = (mw_backoff){.kind = MW_BACKOFF_FIXED, .base = base, .cap = 60};
}

/* A spec to change before start(). */
static mw_shared *shared; /* NULL: nobody supervises */
static int shared_fd;

static void prepare(void) {
    if (shared) memset(shared->slot[0].tallies, 0, sizeof shared->slot[0].tallies); /* or it would count on */
    memset(&fake, 0, sizeof fake);
    ready_events = expired_events = closed_events = 0;
    fake_driver.can = QUEUE;
    fake_driver.handled_buffers = 0;
    fake_driver.locate = NULL;
    from = new_link("memory:from");
    other = new_link("memory:other");
    spec = (mw_pipeline_spec){.name = "orders",
                              .channel = "in",
                              .group = "g",
                              .dead_channel = "in.dead",
                              .from = from,
                              .dead = from,
                              .dedupe_ttl_ms = 600000,
                              .order = MW_ORDER_KEY,
                              .concurrency = 100,
                              .buffer_count = 1000,
                              .buffer_bytes = 1 << 20,
                              .timeout_ms = 30000,
                              .lease_ms = 30000,
                              .batch_size = 1,
                              .policy_count = 3};
    retry_policy(&spec.policies[0], "", MW_POLICY_RETRY, 3, 0.01);
    retry_policy(&spec.policies[1], "invalid", MW_POLICY_DEAD, 1, 0);
    retry_policy(&spec.policies[2], "outage", MW_POLICY_OUTAGE, 3, 0.02);
}

static void start(void) {
    mw_error e = {0};
    p = mw_pipeline_new(&spec, events, &e);
    if (!p || mw_pipeline_start(p, &e)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    mw_pipeline_budget(p, 1000000);
    mw_pipeline_set_generation(p, 7);
}

static void begin(void) {
    prepare();
    start();
}

static void turn(void) { mw_loop_step(loop, 0); }

/* Time is virtual: it passes here, timer by timer, and nowhere else. */
static void pass(int64_t ms) {
    turn();
    while (ms > 0) {
        ms -= mw_loop_advance(loop, ms);
        turn();
    }
}

static void end(void) { /* whatever is left must be freed without the broker's help */
    mw_pipeline_abandon(p);
    mw_link_close(from);
    mw_link_close(other);
    mw_pipeline_free(p);
    p = NULL;
}

typedef struct given {
    const char *key;
    uint32_t unit, attempt;
    int64_t not_before, time_ms;
    const char *header; /* a header of that name, value "1" */
    uint8_t priority;
    size_t body;
    const char *error; /* of an earlier attempt */
    bool held;
} given;

static void deliver_as(uint64_t tag, given g) {
    static char body[100000];
    char id[32];
    mw_headers h = {0};
    if (g.header) mw_headers_add(&h, g.header, strlen(g.header), "1", 1);
    int n = snprintf(id, sizeof id, "m%llu", (unsigned long long)tag);
    mw_parts parts = {.body = body,
                      .body_len = g.body,
                      .key = g.key,
                      .key_len = g.key ? strlen(g.key) : 0,
                      .has_key = g.key != NULL,
                      .id = id,
                      .id_len = (size_t)n,
                      .type = "",
                      .headers = h.data,
                      .headers_len = h.len,
                      .priority = g.priority ? g.priority : MW_PRIORITY_DEFAULT,
                      .time_ms = g.time_ms ? g.time_ms : mw_loop_wall_ms(loop)};
    mw_incoming in = {.msg = mw_message_new(&parts),
                      .tag = tag,
                      .unit = g.unit,
                      .attempt = g.attempt ? g.attempt : 1,
                      .not_before = g.not_before,
                      .first_error = g.error ? mw_text_new(g.error, strlen(g.error)) : NULL,
                      .held = g.held};
    mw_headers_free(&h);
    mw_core_host.deliver(fake.source, &in, 1);
}
static void deliver(uint64_t tag, const char *key) { deliver_as(tag, (given){.key = key}); }

static uint64_t tag_of(mw_delivery *d) {
    mw_parts parts;
    mw_message_parts(mw_delivery_message(d), &parts);
    uint64_t tag = 0;
    for (size_t i = 1; i < parts.id_len; i++) tag = tag * 10 + (uint64_t)(parts.id[i] - '0');
    return tag;
}

/* Takes the next one, which must be that; 0: there must be none. */
static mw_delivery *take(uint64_t tag) {
    mw_delivery *d = mw_pipeline_take(p);
    EQUAL(tag, d ? tag_of(d) : 0);
    if (d) EQUAL(tag, fake.begun);
    return d;
}

static void fail_with(mw_delivery *d, const char *class_name, const char *reason) {
    mw_delivery_retry(d, -1, class_name, reason, strlen(reason));
}

/* The settlement of a tag that waits for its answer, after the turn has handed it over. */
static int settlement(uint64_t tag) {
    turn();
    for (int i = 0; i < fake.settle_count; i++)
        if (fake.settles[i].tag == tag && !fake.settle_answered[i]) return i;
    return -1;
}

static const mw_settlement *expect(uint64_t tag, mw_settle_op op) {
    static const mw_settlement none;
    int i = settlement(tag);
    CHECK(i >= 0, "nothing was settled for %llu", (unsigned long long)tag);
    if (i < 0) return &none;
    EQUAL(op, fake.settles[i].op);
    return &fake.settles[i];
}
static void expect_none(uint64_t tag) {
    CHECK(settlement(tag) < 0, "%llu was settled", (unsigned long long)tag);
}

static void answer(uint64_t tag, const mw_error *e) {
    int i = settlement(tag);
    CHECK(i >= 0, "there is nothing to answer for %llu", (unsigned long long)tag);
    if (i < 0) return;
    fake.settle_answered[i] = true;
    mw_core_host.settled(fake.source, fake.settles[i].cookie, e);
}
static void settled(uint64_t tag, mw_settle_op op) {
    expect(tag, op);
    answer(tag, NULL);
}

static mw_error retryable = {.code = 5, .retryable = true, .text = "broker is busy"};
static mw_error permanent = {.code = 6, .retryable = false, .text = "too large"};
static mw_error fenced = {.code = MW_EFENCED, .retryable = false, .text = "not yours"};

static void answer_publish(int i, const mw_error *e) {
    CHECK(i < fake.pub_count && !fake.pub_answered[i], "no publish %d to answer", i);
    if (i >= fake.pub_count) return;
    fake.pub_answered[i] = true;
    mw_core_host.published(fake.link, fake.pubs[i].cookie, e);
}

static mw_message *make_message(const char *body) {
    mw_parts parts = {.body = body, .body_len = strlen(body), .id = "x", .id_len = 1, .priority = 4};
    return mw_message_new(&parts);
}

static void publish(mw_delivery *d, mw_link *link, const char *channel) {
    mw_message *m = make_message("out");
    mw_delivery_publish(d, link, channel, m, 0, NULL);
    mw_message_unref(m);
}

/* The condition is evaluated until it holds, not once more: it may take something. */
#define WAIT_FOR(condition)                                                                                  \
    do {                                                                                                     \
        bool held_ = false;                                                                                  \
        for (int tries_ = 0; tries_ < 400 && !(held_ = !!(condition)); tries_++) pass(10);                   \
        CHECK(held_, "%s did not come in time", #condition);                                                 \
    } while (0)

static mw_counters counters(void) {
    mw_counters c;
    mw_pipeline_counters(p, &c);
    return c;
}

static bool header_is(mw_message *m, const char *name, const char *expected) {
    mw_parts parts;
    mw_header h;
    mw_message_parts(m, &parts);
    if (!mw_headers_find(parts.headers, parts.headers_len, name, &h)) return expected == NULL;
    return expected && h.value_len == strlen(expected) && memcmp(h.value, expected, h.value_len) == 0;
}
#define HEADER(m, name, expected) CHECK(header_is(m, name, expected), "header %s is not %s", name, #expected)

static uint64_t lane(const char *key) { return mw_hash64(key, strlen(key)); }

/* ---- order ---- */

static void order_key(void) {
    begin();
    deliver(1, "a");
    deliver(2, "a");
    deliver(3, "b");
    deliver(4, NULL);
    deliver(5, NULL);
    deliver(6, ""); /* an empty key is a key */
    deliver(7, "");
    CHECK(ready_events > 0, "nobody was told");
    mw_delivery *first = take(1);
    mw_delivery *b = take(3);
    take(4);
    take(5);
    mw_delivery *empty = take(6);
    take(0);
    EQUAL(5, mw_pipeline_running(p));
    mw_delivery_ack(b);
    take(0);
    mw_delivery_ack(first); /* nothing can fail any more that would run it again: the next one may begin */
    mw_delivery *second = take(2);
    expect(1, MW_SETTLE_ACK);
    mw_delivery_ack(empty);
    take(7);
    mw_delivery_ack(second);
    settled(1, MW_SETTLE_ACK);
    settled(2, MW_SETTLE_ACK);
    settled(3, MW_SETTLE_ACK);
    settled(6, MW_SETTLE_ACK);
    EQUAL(3, mw_pipeline_in_flight(p));
    EQUAL(4, counters().handled);
    EQUAL(7, counters().received);
    end();
}

static void order_source(void) {
    prepare();
    spec.order = MW_ORDER_SOURCE;
    start();
    EQUAL(MW_ORDER_SOURCE, fake.subscription.order);
    deliver_as(1, (given){.unit = 0, .key = "x"});
    deliver_as(2, (given){.unit = 0, .key = "y"});
    deliver_as(3, (given){.unit = 1});
    mw_delivery *d = take(1);
    take(3);
    take(0);
    mw_delivery_ack(d);
    take(2);
    end();
}

static void order_none(void) {
    prepare();
    spec.order = MW_ORDER_NONE;
    start();
    deliver(1, "a");
    deliver(2, "a");
    take(1);
    take(2);
    end();
}

static void own_key(void) {
    prepare();
    spec.own_key = true;
    start();
    CHECK(fake.subscription.own_key, "the driver does not know");
    for (uint64_t tag = 1; tag <= 4; tag++) deliver(tag, "broker's");
    take(0);
    static const char *const keys[] = {"k", "k", NULL};
    for (int i = 0; i < 3; i++) {
        mw_delivery *d = mw_pipeline_unkeyed(p);
        EQUAL(i + 1, d ? tag_of(d) : 0);
        mw_delivery_set_lane(d, keys[i], keys[i] ? 1 : 0, keys[i] != NULL);
    }
    mw_delivery_no_lane(mw_pipeline_unkeyed(p), "key: no such field", 18);
    CHECK(!mw_pipeline_unkeyed(p), "still one without a lane");
    turn();
    EQUAL(1, fake.pub_count);
    HEADER(fake.pubs[0].msg, "mw-dead-class", "invalid");
    HEADER(fake.pubs[0].msg, "mw-dead-reason", "key: no such field");
    mw_delivery *d = take(1);
    take(3);
    take(0);
    mw_delivery_ack(d);
    take(2);
    end();
}

static void priorities(void) {
    begin();
    for (uint64_t tag = 1; tag <= 30; tag++) deliver_as(tag, (given){.priority = (uint8_t)(1 + tag % 9)});
    uint32_t last_level = 9;
    uint64_t last_tag = 0;
    for (int i = 0; i < 30; i++) {
        mw_delivery *d = mw_pipeline_take(p);
        mw_parts parts;
        mw_message_parts(mw_delivery_message(d), &parts);
        CHECK(parts.priority < last_level || (parts.priority == last_level && tag_of(d) > last_tag),
              "out of order");
        last_level = parts.priority;
        last_tag = tag_of(d);
    }
    take(0);
    end();
}

static void limits(void) {
    prepare();
    spec.concurrency = 2;
    start();
    for (uint64_t tag = 1; tag <= 4; tag++) deliver(tag, NULL);
    mw_pipeline_budget(p, 1);
    mw_delivery *d = take(1);
    take(0);
    CHECK(mw_pipeline_more(p), "the budget is spent, there is more");
    mw_pipeline_budget(p, 10);
    take(2);
    take(0); /* concurrency */
    CHECK(!mw_pipeline_more(p), "waiting for a slot needs no other turn");
    mw_delivery_ack(d);
    take(3);
    take(0);
    end();
}

static void slices(void) {
    begin();
    for (uint64_t tag = 1; tag <= 3; tag++) deliver(tag, NULL);
    mw_pipeline_budget(p, 10);
    mw_slice_ended = true; /* as the timer does */
    take(1);               /* one in any case: a slow neighbour must not starve it */
    take(0);
    CHECK(mw_pipeline_more(p), "the slice is over, there is more");
    mw_slice_begin(loop);
    CHECK(!mw_slice_over(), "a new one");
    mw_pipeline_budget(p, 10);
    take(2);
    take(3);
    take(0);
    CHECK(!mw_pipeline_more(p), "there is no more");
    end();
}

/* ---- retry ---- */

static void retry_holds_its_lane(void) {
    begin();
    deliver(1, "a");
    deliver(2, "a");
    deliver(3, "b");
    fail_with(take(1), "transient", "no luck");
    const mw_settlement *s = expect(1, MW_SETTLE_RETRY);
    CHECK(s->hold, "the lane would move");
    EQUAL(1, s->attempt);
    EQUAL(10, s->delay_ms);
    CHECK(s->error && strcmp(s->error->data, "no luck") == 0, "the error is lost");
    take(3); /* other keys flow */
    take(0);
    answer(1, NULL);
    take(0);
    EQUAL(2, mw_pipeline_in_flight(p) - 1);
    mw_delivery *d = NULL;
    WAIT_FOR((d = mw_pipeline_take(p)));
    EQUAL(1, tag_of(d));
    EQUAL(2, mw_delivery_attempt(d));
    fail_with(d, "transient", "again");
    EQUAL(2, expect(1, MW_SETTLE_RETRY)->attempt);
    answer(1, NULL);
    WAIT_FOR((d = mw_pipeline_take(p)));
    EQUAL(3, mw_delivery_attempt(d));
    mw_delivery_ack(d);
    settled(1, MW_SETTLE_ACK);
    take(2);
    EQUAL(2, counters().retried);
    end();
}

static void retry_release(void) {
    begin();
    deliver(1, NULL); /* no lane to keep: the broker may have it */
    mw_delivery_retry(take(1), 5000, "transient", "later", 5);
    const mw_settlement *s = expect(1, MW_SETTLE_RETRY);
    CHECK(!s->hold && s->delay_ms == 5000, "held, or not after what the handler said");
    answer(1, NULL);
    EQUAL(0, mw_pipeline_in_flight(p));
    end();

    begin();
    fake_driver.can &= ~(unsigned)MW_CAN_RETRY;
    deliver(1, NULL);
    fail_with(take(1), "transient", "x");
    CHECK(expect(1, MW_SETTLE_RETRY)->hold, "this broker cannot do it: we must");
    answer(1, NULL);
    WAIT_FOR(mw_pipeline_take(p));
    end();
}

static void retry_gives_up(void) {
    begin();
    deliver_as(1, (given){.key = "a", .attempt = 3}); /* the third of three, after a crash perhaps */
    deliver(2, "a");
    fail_with(take(1), "transient", "still no luck");
    turn();
    EQUAL(1, fake.pub_count); /* confirmed first: no ack yet, and the lane waits */
    expect_none(1);
    take(0);
    CHECK(strcmp(fake.pubs[0].channel, "in.dead") == 0, "to %s", fake.pubs[0].channel);
    mw_message *letter = fake.pubs[0].msg;
    HEADER(letter, "mw-dead-reason", "gave up after 3 attempts");
    HEADER(letter, "mw-dead-class", "transient");
    HEADER(letter, "mw-dead-attempts", "3");
    HEADER(letter, "mw-dead-channel", "in");
    HEADER(letter, "mw-dead-broker", "memory:from");
    HEADER(letter, "mw-dead-pipeline", "orders");
    HEADER(letter, "mw-dead-group", "g");
    HEADER(letter, "mw-dead-first-error", "still no luck");
    HEADER(letter, "mw-dead-last-error", "still no luck");
    HEADER(letter, "mw-dead-generation", "7");
    HEADER(letter, "mw-dead-lane", NULL);
    answer_publish(0, NULL);
    settled(1, MW_SETTLE_ACK);
    take(2);
    EQUAL(1, counters().dead);
    EQUAL(0, counters().published);
    EQUAL(0, counters().handled);
    end();
}

static void retry_too_old(void) {
    prepare();
    spec.policies[0].max_age_ms = 1000;
    start();
    deliver_as(1, (given){.time_ms = mw_loop_wall_ms(loop) - 995});
    deliver_as(2, (given){.time_ms = mw_loop_wall_ms(loop) - 100});
    mw_delivery *old = take(1), *young = take(2);
    fail_with(young, "transient", "x");
    expect(2, MW_SETTLE_RETRY);
    fail_with(old, "transient", "x"); /* it would be too old by the next attempt */
    turn();
    EQUAL(1, fake.pub_count);
    HEADER(fake.pubs[0].msg, "mw-dead-reason", "too old: over 1 s");
    end();
}

static void dead_by_class(void) {
    begin();
    deliver_as(1, (given){.header = "mw-dead-reason"}); /* it died before: that story is replaced */
    deliver(2, NULL);
    deliver(3, NULL);
    fail_with(take(1), "invalid", "not JSON");
    mw_delivery_reject(take(2), "rejected", "no stock", 8);
    mw_delivery_drop(take(3), "not ours", 8);
    turn();
    EQUAL(2, fake.pub_count);
    HEADER(fake.pubs[0].msg, "mw-dead-reason", "not JSON");
    HEADER(fake.pubs[0].msg, "mw-dead-attempts", "1");
    HEADER(fake.pubs[1].msg, "mw-dead-class", "rejected");
    HEADER(fake.pubs[1].msg, "mw-dead-reason", "no stock");
    HEADER(fake.pubs[1].msg, "mw-dead-last-error", "no stock");
    settled(3, MW_SETTLE_ACK);
    EQUAL(1, counters().dropped);
    EQUAL(2, counters().dead);
    end();
}

static void dead_channel_refuses(void) {
    begin();
    deliver(1, "a");
    deliver(2, "a");
    mw_delivery_reject(take(1), "rejected", "bad", 3);
    turn();
    for (int i = 0; i < 3; i++) { /* whatever it says: the message waits, it is never lost */
        answer_publish(i, i == 1 ? &permanent : &retryable);
        expect_none(1);
        take(0);
        WAIT_FOR(fake.pub_count == i + 2);
    }
    HEADER(fake.pubs[3].msg, "mw-dead-reason", "bad");
    answer_publish(3, NULL);
    settled(1, MW_SETTLE_ACK);
    take(2);
    EQUAL(1, counters().dead);
    end();
}

static void dead_in_one_transaction(void) {
    begin();
    fake_driver.can |= MW_CAN_ATOMIC;
    deliver(1, "a");
    mw_delivery_reject(take(1), "rejected", "bad", 3);
    const mw_settlement *s = expect(1, MW_SETTLE_ACK);
    EQUAL(0, fake.pub_count);
    EQUAL(1, s->publish_count);
    HEADER(s->publish[0].msg, "mw-dead-reason", "bad");
    answer(1, &permanent); /* refused for good: still no reason to lose it */
    WAIT_FOR(settlement(1) >= 0);
    HEADER(expect(1, MW_SETTLE_ACK)->publish[0].msg, "mw-dead-reason", "bad");
    answer(1, NULL);
    EQUAL(0, mw_pipeline_in_flight(p));
    end();
}

/* ---- publishing ---- */

static void publish_before_ack(void) {
    begin();
    deliver(1, "a");
    deliver(2, "a");
    mw_delivery *d = take(1);
    publish(d, from, "x");
    publish(d, other, "y");
    turn();
    EQUAL(0, fake.pub_count); /* nothing leaves before the verdict */
    mw_delivery_ack(d);
    turn();
    EQUAL(2, fake.pub_count);
    expect_none(1);
    take(0); /* a failing publish would run it again: the lane waits */
    answer_publish(1, NULL);
    expect_none(1);
    answer_publish(0, NULL);
    settled(1, MW_SETTLE_ACK);
    take(2);
    EQUAL(2, counters().published);
    end();
}

static void publish_in_one_transaction(void) {
    begin();
    fake_driver.can |= MW_CAN_ATOMIC;
    deliver(1, "a");
    deliver(2, "b");
    mw_delivery *d = take(1), *mixed = take(2);
    publish(d, from, "x");
    publish(d, from, "y");
    mw_delivery_ack(d);
    const mw_settlement *s = expect(1, MW_SETTLE_ACK);
    EQUAL(2, s->publish_count);
    CHECK(strcmp(s->publish[0].channel, "x") == 0 && strcmp(s->publish[1].channel, "y") == 0, "order");
    EQUAL(0, fake.pub_count);
    answer(1, NULL);
    publish(mixed, from, "x"); /* another connection has a part in it: confirms, then the ack */
    publish(mixed, other, "y");
    mw_delivery_ack(mixed);
    turn();
    EQUAL(2, fake.pub_count);
    expect_none(2);
    EQUAL(2, counters().published);
    end();
}

static void publish_discarded(void) {
    begin();
    deliver(1, NULL);
    deliver(2, NULL);
    deliver(3, NULL);
    mw_delivery *a = take(1), *b = take(2), *c = take(3);
    publish(a, from, "x");
    publish(b, from, "x");
    publish(c, from, "x");
    fail_with(a, "transient", "no");
    mw_delivery_reject(b, "rejected", "no", 2);
    mw_delivery_drop(c, "no", 2);
    settled(1, MW_SETTLE_RETRY);
    settled(3, MW_SETTLE_ACK);
    EQUAL(1, fake.pub_count); /* the dead letter only */
    CHECK(strcmp(fake.pubs[0].channel, "in.dead") == 0, "to %s", fake.pubs[0].channel);
    end();
}

static void publish_fails(void) {
    begin();
    deliver(1, "a");
    mw_delivery *d = take(1);
    publish(d, other, "x");
    mw_delivery_ack(d);
    turn();
    EQUAL(1, counters().handled);
    answer_publish(0, &retryable);
    const mw_settlement *s = expect(1, MW_SETTLE_RETRY);
    CHECK(s->error && strcmp(s->error->data, "publish: broker is busy") == 0, "%s",
          s->error ? s->error->data : "");
    EQUAL(0, counters().handled);
    answer(1, NULL);
    WAIT_FOR((d = mw_pipeline_take(p)));
    EQUAL(2, mw_delivery_attempt(d));
    publish(d, other, "x");
    mw_delivery_ack(d);
    turn();
    answer_publish(1, &permanent); /* no attempt will help: class "invalid" */
    turn();
    EQUAL(3, fake.pub_count);
    HEADER(fake.pubs[2].msg, "mw-dead-class", "invalid");
    HEADER(fake.pubs[2].msg, "mw-dead-reason", "publish: too large");
    end();

    prepare(); /* a project that made "invalid" an ordinary class gets an ordinary retry */
    spec.policy_count = 1;
    fake_driver.can |= MW_CAN_ATOMIC;
    start();
    deliver(1, "a");
    d = take(1);
    publish(d, from, "x");
    mw_delivery_ack(d);
    expect(1, MW_SETTLE_ACK);
    answer(1, &permanent);
    s = expect(1, MW_SETTLE_RETRY);
    EQUAL(0, s->publish_count);
    CHECK(s->error && strcmp(s->error->data, "publish: too large") == 0, "%s",
          s->error ? s->error->data : "");
    end();
}

static void publish_fails_whatever_comes_last(void) {
    for (int last = 0; last < 2;
         last++) { /* one of two is refused for good; the order of the answers is chance */
        begin();
        deliver(1, "a");
        mw_delivery *d = take(1);
        publish(d, other, "x");
        publish(d, other, "y");
        mw_delivery_ack(d);
        turn();
        answer_publish(last, last ? NULL : &permanent);
        answer_publish(!last, last ? &permanent : NULL);
        turn();
        EQUAL(3, fake.pub_count);
        if (fake.pub_count == 3) HEADER(fake.pubs[2].msg, "mw-dead-reason", "publish: too large");
        end();
    }
}

/* ---- settling ---- */

static void settle_errors(void) {
    begin();
    deliver(1, "a");
    deliver(2, NULL);
    deliver(3, "c");
    mw_delivery_ack(take(1));
    fail_with(take(2), "transient", "x");
    mw_delivery_ack(take(3));
    answer(1, &retryable);
    answer(2, &retryable);
    answer(3, &permanent); /* a plain ack cannot be a user's mistake: tried again all the same */
    expect_none(1);
    WAIT_FOR(settlement(1) >= 0 && settlement(2) >= 0 && settlement(3) >= 0);
    EQUAL(1, expect(2, MW_SETTLE_RETRY)->attempt); /* the same settlement, not another attempt */
    answer(2, NULL);
    answer(1, &retryable);
    WAIT_FOR(settlement(1) >= 0);
    settled(1, MW_SETTLE_ACK);
    answer(3, &fenced);
    EQUAL(0, mw_pipeline_in_flight(p));
    EQUAL(1, counters().fenced);
    end();
}

/* ---- long lanes ---- */

static void long_lanes_are_put_back(void) {
    prepare();
    spec.buffer_count = 100; /* a quarter: 25 behind the one that runs */
    start();
    for (uint64_t tag = 1; tag <= 30; tag++) deliver(tag, "hot");
    deliver(31, "cold");
    mw_delivery *d = take(1);
    take(31);
    EQUAL(4, fake.put_back_count);
    for (uint64_t tag = 27; tag <= 30; tag++) EQUAL(tag, fake.put_back[tag - 27]);
    EQUAL(0, fake.settle_count); /* nothing is written for it */
    EQUAL(27, mw_pipeline_in_flight(p));
    EQUAL(27, counters().received);
    for (uint64_t tag = 1; tag <= 13; tag++) {
        if (tag > 1) d = take(tag);
        if (tag == 10) deliver(32, "hot"); /* newer than those at the broker: it may not overtake them */
        EQUAL(0, fake.go_ons);
        mw_delivery_ack(d);
    }
    EQUAL(5, fake.put_back_count);
    EQUAL(1, fake.go_ons); /* it is half empty */
    EQUAL(25 - 12, fake.go_on_count);
    CHECK(fake.went_on == lane("hot"), "another lane");
    for (uint64_t tag = 27; tag <= 30; tag++) deliver(tag, "hot");
    for (uint64_t tag = 14; tag <= 30; tag++) mw_delivery_ack(take(tag));
    EQUAL(1, fake.go_ons); /* it has not been told that there is more */
    end();
}

/* The last that go_on allowed says so: then the next ones have to be asked for. */
static void more_is_asked_for(void) {
    prepare();
    spec.buffer_count = 100;
    start();
    deliver(1, "hot");
    deliver_as(2, (given){.key = "hot", .held = true});
    EQUAL(0, fake.go_ons);
    mw_delivery_ack(take(1));
    EQUAL(1, fake.go_ons);
    EQUAL(25, fake.go_on_count);
    deliver_as(3, (given){.key = "hot", .held = true});
    mw_delivery_ack(take(2));
    mw_delivery_ack(take(3));
    EQUAL(2, fake.go_ons); /* also from an empty lane */
    mw_core_host.mark(fake.source, lane("held"), MW_MARK_HOLD);
    deliver_as(4, (given){.key = "held", .held = true}); /* it never enters its lane */
    EQUAL(3, fake.go_ons);
    CHECK(fake.went_on == lane("held"), "another lane");
    deliver_as(5, (given){.key = "hot", .held = true});
    mw_core_host.fence(fake.source, MW_UNIT_ALL);
    EQUAL(4, fake.go_ons);
    end();
}

static void no_parking(void) {
    begin();
    fake_driver.can &= ~(unsigned)MW_CAN_PARK;
    for (uint64_t tag = 1; tag <= 400; tag++) deliver(tag, "hot");
    turn();
    EQUAL(0, fake.settle_count);
    for (uint64_t tag = 1; tag <= 400; tag++) mw_delivery_ack(take(tag));
    end();
}

/* ---- marks ---- */

static void on_dead_hold(void) {
    prepare();
    spec.on_dead = MW_DEAD_HOLD_KEY;
    start();
    deliver(1, "a");
    deliver(2, "a"); /* waits in the lane when the first dies */
    deliver(3, "b");
    mw_delivery_reject(take(1), "rejected", "bad", 3);
    deliver(4, "a"); /* comes after it */
    turn();
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)lane("a"));
    HEADER(fake.pubs[0].msg, "mw-dead-lane", hash);
    answer_publish(0, NULL);
    EQUAL(MW_MARK_HOLD, expect(1, MW_SETTLE_ACK)->mark);
    answer(1, NULL);
    settled(2, MW_SETTLE_PARK);
    settled(4, MW_SETTLE_PARK);
    take(3);
    take(0);
    EQUAL(2, counters().parked);

    deliver_as(5, (given){.key = "a", .header = "mw-replay"}); /* the dead letter, coming back */
    deliver(6, "a");
    fail_with(take(5), "transient", "not yet");
    answer(5, NULL);
    mw_delivery *d = NULL;
    WAIT_FOR((d = mw_pipeline_take(p)));
    int before = fake.unparks;
    mw_delivery_ack(d);
    const mw_settlement *s = expect(5, MW_SETTLE_ACK);
    EQUAL(MW_MARK_NONE, s->mark);
    CHECK(s->lane == lane("a"), "another lane");
    settled(6, MW_SETTLE_PARK); /* until the broker has it, the key is held */
    EQUAL(before, fake.unparks);
    answer(5, NULL);
    EQUAL(before + 1, fake.unparks);
    deliver(7, "a");
    take(7);
    end();
}

static void on_dead_dead(void) {
    prepare();
    spec.on_dead = MW_DEAD_DEAD_KEY;
    start();
    deliver(1, "a");
    deliver(2, "a");
    mw_delivery_reject(take(1), "rejected", "bad", 3);
    turn();
    answer_publish(0, NULL);
    EQUAL(MW_MARK_DEAD, expect(1, MW_SETTLE_ACK)->mark);
    answer(1, NULL);
    turn();
    EQUAL(2, fake.pub_count);
    HEADER(fake.pubs[1].msg, "mw-dead-class", "key_dead");
    HEADER(fake.pubs[1].msg, "mw-dead-reason", "an earlier message of this key is dead");
    answer_publish(1, NULL);
    settled(2, MW_SETTLE_ACK);
    deliver_as(3, (given){.key = "a", .header = "mw-replay"});
    mw_delivery_ack(take(3));
    settled(3, MW_SETTLE_ACK);
    deliver(4, "a");
    take(4);
    EQUAL(2, counters().dead);
    end();
}

static void marks_from_the_broker(void) {
    prepare();
    spec.on_dead = MW_DEAD_HOLD_KEY;
    start();
    mw_core_host.mark(fake.source, lane("a"), MW_MARK_HOLD); /* known before the first delivery */
    deliver(1, "a");
    deliver(2, "b");
    take(2);
    expect(1, MW_SETTLE_PARK);
    deliver(3, "a");
    mw_core_host.mark(fake.source, lane("a"), MW_MARK_NONE); /* purged */
    EQUAL(1, fake.unparks);
    CHECK(fake.settles_at_unpark == 2, "what was being parked would stay behind");
    deliver(4, "a");
    take(4);
    mw_core_host.mark(fake.source, lane("c"), MW_MARK_DEAD);
    deliver(5, "c");
    deliver(6, NULL); /* without a key there is nothing to mark */
    turn();
    EQUAL(1, fake.pub_count);
    take(6);
    end();
}

static void mark_of_a_fenced_letter(void) {
    prepare();
    spec.on_dead = MW_DEAD_HOLD_KEY;
    start();
    deliver(1, "a");
    mw_delivery_reject(take(1), "rejected", "bad", 3);
    turn();
    answer_publish(0, NULL);
    expect(1, MW_SETTLE_ACK);
    mw_core_host.fence(fake.source, 0);
    answer(1, &fenced); /* the mark never stood at the broker */
    deliver(2, "a");
    take(2);
    end();
}

/* ---- fencing ---- */

static void fence_in_every_state(void) {
    prepare();
    spec.dedupe = from;
    start();
    deliver(1, "a"); /* running */
    deliver(2, "a"); /* waiting */
    deliver(3, "c"); /* held */
    deliver(4, "d"); /* ack under way */
    deliver(5, "e"); /* publishes under way */
    deliver(6, "f"); /* retry under way */
    deliver(7, "g"); /* its settlement failed: between two tries */
    mw_delivery *running = take(1);
    fail_with(take(3), "transient", "x");
    mw_delivery_ack(take(4));
    mw_delivery *d = take(5);
    publish(d, other, "x");
    mw_delivery_ack(d);
    fail_with(take(6), "transient", "x");
    mw_delivery_ack(take(7));
    answer(3, NULL);
    answer(7, &retryable);
    deliver(8, "h");                               /* ready */
    deliver_as(9, (given){.key = "i", .unit = 5}); /* another unit */
    int settles = fake.settle_count;
    EQUAL(9, mw_pipeline_in_flight(p));
    mw_core_host.fence(fake.source, 0);
    mw_core_host.fence(fake.source, 0); /* twice counts once */
    EQUAL(8, counters().fenced);
    EQUAL(5, mw_pipeline_in_flight(p)); /* 7 had nobody to wait for */
    CHECK(mw_delivery_fenced(running), "the handler cannot know");
    deliver(10, "a"); /* its twin comes back: not beside the one that still runs */
    take(9);
    take(0);
    mw_delivery_ack(running);
    take(10);
    answer(4, &fenced);
    answer_publish(0, NULL);
    answer(6, NULL); /* the broker took it, but not from us any more */
    pass(TRY_AGAIN_MS * 2);
    turn();
    EQUAL(2, mw_pipeline_in_flight(p));
    EQUAL(settles, fake.settle_count); /* no verdict on what was fenced goes out */
    EQUAL(8, counters().fenced);
    EQUAL(3, counters().handled); /* 4, 5 and 7; the verdict on 1 was discarded */
    pass(15);
    turn();
    turn();
    take(0);
    end();
}

/* The tag is delivered again at once: a verdict on the first delivery must not settle the second. */
static void fence_before_the_batch_goes(void) {
    prepare();
    start();
    deliver(1, "a");
    mw_delivery_ack(take(1)); /* gathered, not with the driver yet */
    mw_core_host.fence(fake.source, 0);
    deliver(1, "a");
    turn();
    EQUAL(0, fake.settle_count);
    mw_delivery_ack(take(1));
    expect(1, MW_SETTLE_ACK);
    answer(1, NULL);
    EQUAL(0, mw_pipeline_in_flight(p));
    end();
}

static void fence_a_letter_that_waits(void) {
    prepare();
    start();
    deliver(1, "a");
    mw_delivery_reject(take(1), "rejected", "bad", 3);
    turn();
    int publishes = fake.pub_count;
    answer_publish(0, &retryable); /* its channel refuses: it waits for the next try */
    mw_core_host.fence(fake.source, 0);
    EQUAL(0, mw_pipeline_in_flight(p));
    pass(TRY_AGAIN_MS * 2);
    turn();
    EQUAL(publishes, fake.pub_count);
    end();
}

static void fence_unkeyed(void) {
    prepare();
    spec.own_key = true;
    start();
    deliver(1, NULL);
    deliver_as(2, (given){.unit = 3});
    mw_core_host.fence(fake.source, 3);
    EQUAL(1, mw_pipeline_in_flight(p));
    mw_core_host.fence(fake.source, MW_UNIT_ALL);
    EQUAL(0, mw_pipeline_in_flight(p));
    CHECK(!mw_pipeline_unkeyed(p), "a freed delivery is handed out");
    end();
}

static void fence_then_resume(void) {
    for (int by_publish = 0; by_publish < 2; by_publish++) {
        prepare();
        spec.buffer_count = 2;
        start();
        size_t bytes;
        deliver(1, NULL);
        deliver(2, NULL);
        EQUAL(0, mw_core_host.room(fake.source, &bytes)); /* the driver waits for resume */
        mw_delivery *a = take(1), *b = take(2);
        if (by_publish) {
            publish(a, other, "x");
            publish(b, other, "x");
            mw_delivery_ack(a);
            mw_delivery_ack(b);
            turn();
        }
        mw_core_host.fence(fake.source, MW_UNIT_ALL);
        EQUAL(0, fake.resumes);
        if (by_publish) {
            answer_publish(0, NULL);
            answer_publish(1, NULL);
        } else {
            mw_delivery_ack(a);
            mw_delivery_ack(b);
        }
        EQUAL(0, mw_pipeline_in_flight(p));
        EQUAL(1, fake.resumes); /* nobody else would ever wake it */
        end();
    }
}

/* ---- draining ---- */

static void drain_in_every_state(void) {
    begin();
    deliver(1, "a");  /* running, will ack */
    deliver(2, "a");  /* waiting */
    deliver(3, "c");  /* held */
    deliver(4, "d");  /* ack under way */
    deliver(5, "e");  /* running, will fail */
    deliver(6, NULL); /* running, will be rejected */
    mw_delivery *a = take(1);
    fail_with(take(3), "transient", "x");
    mw_delivery_ack(take(4));
    mw_delivery *e = take(5), *f = take(6);
    answer(3, NULL);
    deliver(7, "h"); /* ready */
    mw_pipeline_drain(p);
    mw_pipeline_drain(p);
    EQUAL(1, fake.pauses);
    take(0);
    settled(2, MW_SETTLE_RELEASE);
    settled(3, MW_SETTLE_RELEASE);
    settled(7, MW_SETTLE_RELEASE);
    EQUAL(3, counters().released);
    settled(4, MW_SETTLE_ACK);
    deliver(8, "z"); /* was on its way when we paused */
    settled(8, MW_SETTLE_RELEASE);
    size_t bytes = 1;
    EQUAL(0, mw_core_host.room(fake.source, &bytes));
    EQUAL(0, bytes);
    mw_delivery_ack(a);
    settled(1, MW_SETTLE_ACK);
    fail_with(e, "transient", "x"); /* its attempt counts, then it goes back */
    settled(5, MW_SETTLE_RETRY);
    settled(5, MW_SETTLE_RELEASE);
    mw_delivery_reject(f, "rejected", "x", 1);
    turn();
    answer_publish(0, &retryable); /* the dead letter is still waited for */
    EQUAL(0, fake.unsubscribes);
    WAIT_FOR(fake.pub_count == 2);
    answer_publish(1, NULL);
    settled(6, MW_SETTLE_ACK);
    turn();
    EQUAL(0, mw_pipeline_in_flight(p));
    EQUAL(1, fake.unsubscribes);
    EQUAL(0, closed_events);
    mw_core_host.closed(fake.source);
    EQUAL(1, closed_events);
    turn();
    EQUAL(1, fake.unsubscribes);
    EQUAL(0, fake.resumes);
    end();
}

static void drain_unkeyed_and_empty(void) {
    prepare();
    spec.own_key = true;
    start();
    deliver(1, NULL);
    mw_pipeline_drain(p);
    CHECK(!mw_pipeline_unkeyed(p), "Lua would give it a lane");
    settled(1, MW_SETTLE_RELEASE);
    turn();
    EQUAL(1, fake.unsubscribes);
    end();

    begin(); /* nothing to finish */
    mw_pipeline_drain(p);
    turn();
    EQUAL(1, fake.unsubscribes);
    end();

    prepare(); /* never started */
    mw_error err;
    p = mw_pipeline_new(&spec, events, &err);
    mw_pipeline_drain(p);
    EQUAL(1, closed_events);
    end();
}

static void drain_while_held(void) { /* the broker takes its time: the held retry's own time comes first */
    begin();
    deliver(1, "a");
    fail_with(take(1), "transient", "x");
    answer(1, NULL);
    mw_pipeline_drain(p);
    expect(1, MW_SETTLE_RELEASE);
    pass(30);
    for (int i = 0; i < 3; i++) pass(10);
    mw_core_host.fence(fake.source, MW_UNIT_ALL);
    EQUAL(1, mw_pipeline_in_flight(p)); /* its settlement is under way: it is not ours to free */
    answer(1, &fenced);
    EQUAL(0, mw_pipeline_in_flight(p));
    turn();
    EQUAL(1, fake.unsubscribes);
    end();
}

static void drain_long_lane(void) {
    prepare();
    spec.buffer_count = 64;
    start();
    for (uint64_t tag = 1; tag <= 20; tag++) deliver(tag, "hot");
    mw_delivery *d = take(1);
    EQUAL(3, fake.put_back_count);
    mw_pipeline_drain(p);
    for (uint64_t tag = 2; tag <= 17; tag++) settled(tag, MW_SETTLE_RELEASE);
    mw_delivery_ack(d);
    settled(1, MW_SETTLE_ACK);
    turn();
    EQUAL(1, fake.unsubscribes);
    end();
}

static void abandon(void) { /* as a crash: everything in flight, nothing leaks (ASan watches) */
    prepare();
    spec.dedupe = from;
    start();
    for (uint64_t tag = 1; tag <= 300; tag++) deliver(tag, tag % 3 ? "a" : NULL);
    mw_delivery *d = take(1);
    publish(d, from, "x");
    publish(d, other, "x");
    mw_claimant c = {0};
    mw_delivery_claim(d, "k", 1, &c);
    mw_delivery_ack(d);
    fail_with(take(3), "transient", "x");
    turn();
    answer(3, &retryable);
    deliver(301, "z");
    fail_with(take(6), "invalid", "x");
    take(9);
    mw_pipeline_abandon(p);
    EQUAL(1, fake.unsubscribes);
    mw_core_host.closed(fake.source);
    EQUAL(0, closed_events); /* nobody is told: there is nobody */
    end();
}

/* ---- dedupe ---- */

static int claims;
static mw_claim last_claim;
static void on_claim(mw_claimant *c, mw_claim claim, const mw_error *e) {
    (void)c, (void)e;
    claims++;
    last_claim = claim;
}

static mw_delivery *claimed(uint64_t tag) {
    static mw_claimant c = {on_claim};
    mw_delivery *d = take(tag);
    int before = fake.record_count;
    mw_delivery_claim(d, "id", 2, &c);
    turn();
    EQUAL(before + 1, fake.record_count);
    fake_record *r = &fake.records[before];
    EQUAL(MW_DEDUPE_CLAIM, r->op);
    EQUAL(60000, r->ttl_ms); /* the handler's time and the lease */
    EQUAL(9, r->key_len);
    CHECK(memcmp(r->key, "orders\0id", 9) == 0, "another key");
    claims = 0;
    mw_core_host.claimed(fake.link, r->cookie, MW_CLAIM_YOURS, NULL);
    EQUAL(1, claims);
    EQUAL(MW_CLAIM_YOURS, last_claim);
    return d;
}

static void expect_record(mw_dedupe_op op, int64_t ttl_ms) {
    turn();
    CHECK(fake.record_count > 0, "no record");
    fake_record *r = &fake.records[fake.record_count - 1];
    EQUAL(op, r->op);
    EQUAL(ttl_ms, r->ttl_ms);
    CHECK(r->key_len == 9 && memcmp(r->key, "orders\0id", 9) == 0, "another key");
}

static void dedupe(void) {
    prepare();
    spec.dedupe = from;
    start();
    for (uint64_t tag = 1; tag <= 6; tag++) deliver(tag, NULL);
    mw_delivery_ack(claimed(1));
    mw_pipeline_flush(p); /* as the owner does after each tick, before the turn ends */
    expect_record(MW_DEDUPE_DONE, 600000);
    EQUAL(0, fake.records[fake.record_count - 1].settles_before); /* "done" never comes after the ack */
    settled(1, MW_SETTLE_ACK);

    fail_with(claimed(2), "transient", "x");
    expect_record(MW_DEDUPE_RELEASE, 0);
    settled(2, MW_SETTLE_RETRY);

    mw_delivery_reject(claimed(3), "rejected", "x", 1);
    turn();
    answer_publish(0, NULL);
    expect_record(MW_DEDUPE_RELEASE, 0); /* a replay of the dead letter must pass */
    settled(3, MW_SETTLE_ACK);

    mw_delivery *d = claimed(4);
    int records = fake.record_count;
    mw_delivery_duplicate(d);
    settled(4, MW_SETTLE_ACK);
    EQUAL(records, fake.record_count); /* the record is the other one's */
    EQUAL(1, counters().deduped);

    d = claimed(5);
    records = fake.record_count;
    mw_delivery_busy(d);
    const mw_settlement *s = expect(5, MW_SETTLE_RETRY);
    EQUAL(0, s->attempt); /* not counted */
    EQUAL(100, s->delay_ms);
    EQUAL(records, fake.record_count);
    answer(5, NULL);
    EQUAL(1, counters().retried); /* that of 2 */

    d = claimed(6);
    mw_core_host.fence(fake.source, MW_UNIT_ALL);
    mw_delivery_ack(d);
    expect_record(MW_DEDUPE_RELEASE, 0); /* whoever has it now must be able to handle it */
    end();
}

static void busy_in_a_lane(void) {
    prepare();
    spec.dedupe = from;
    start();
    deliver(1, "a");
    mw_delivery_busy(claimed(1));
    CHECK(expect(1, MW_SETTLE_RETRY)->hold, "its lane would move");
    answer(1, NULL);
    mw_delivery *d = NULL;
    WAIT_FOR((d = mw_pipeline_take(p)));
    EQUAL(1, mw_delivery_attempt(d));
    end();
}

/* ---- the breaker ---- */

static void breaker_half_open(void) {
    begin();
    for (uint64_t tag = 1; tag <= 6; tag++) deliver(tag, NULL);
    size_t bytes;
    fail_with(take(1), "outage", "down");
    const mw_settlement *s = expect(1, MW_SETTLE_RETRY);
    EQUAL(0, s->attempt); /* an outage is nobody's fault: not counted */
    answer(1, NULL);
    take(0);
    EQUAL(0, mw_core_host.room(fake.source, &bytes));
    EQUAL(0, fake.resumes);
    mw_delivery *probe = NULL;
    WAIT_FOR((probe = mw_pipeline_take(p)));
    EQUAL(1, fake.resumes);
    take(0); /* one at a time */
    CHECK(!mw_pipeline_more(p), "another turn would not help");
    fail_with(probe, "outage", "still down");
    answer(2, NULL);
    take(0);
    EQUAL(0, mw_core_host.room(fake.source, &bytes));
    WAIT_FOR((probe = mw_pipeline_take(p)));
    mw_delivery_ack(probe); /* success closes it */
    take(4);
    take(5);
    take(6);
    CHECK(mw_core_host.room(fake.source, &bytes) > 0, "still paused");
    EQUAL(0, counters().retried);
    end();

    begin(); /* another kind of failure says that the service is there, too */
    deliver(1, NULL);
    deliver(2, NULL);
    deliver(3, NULL);
    deliver(4, NULL);
    fail_with(take(1), "outage", "down");
    WAIT_FOR((probe = mw_pipeline_take(p)));
    fail_with(probe, "transient", "x");
    take(3);
    take(4);
    end();

    begin(); /* and so does a handler that drops the message */
    deliver(1, NULL);
    deliver(2, NULL);
    deliver(3, NULL);
    deliver(4, NULL);
    fail_with(take(1), "outage", "down");
    WAIT_FOR((probe = mw_pipeline_take(p)));
    mw_delivery_drop(probe, "old", 3);
    take(3);
    take(4);
    end();
}

/* Attempts beyond the policy: by a worker's deaths, or because the policy granted more when they failed. */
static void more_attempts_than_granted(void) {
    begin();
    deliver_as(1, (given){.key = "a", .attempt = 108});
    deliver_as(2, (given){.key = "b", .attempt = 108, .error = "stock is down"});
    turn();
    take(0);
    EQUAL(2, fake.pub_count);
    HEADER(fake.pubs[0].msg, "mw-dead-class", "crash");
    HEADER(fake.pubs[0].msg, "mw-dead-attempts", "107");
    HEADER(fake.pubs[1].msg, "mw-dead-class", "transient");
    HEADER(fake.pubs[1].msg, "mw-dead-reason", "gave up after 107 attempts: no more than 3 are granted now");
    HEADER(fake.pubs[1].msg, "mw-dead-last-error", "stock is down");
    end();
}

static void long_texts_are_clipped(void) {
    static char text[100000];
    memset(text, 'x', sizeof text - 1);
    begin();
    deliver(1, "a");
    mw_delivery_reject(take(1), text, text, sizeof text - 1);
    deliver_as(2, (given){.key = "b", .attempt = 108, .error = text}); /* from a broker */
    turn();
    EQUAL(2, fake.pub_count);
    for (int i = 0; i < 2; i++) {
        mw_parts parts;
        mw_message_parts(fake.pubs[i].msg, &parts);
        CHECK(parts.headers_len < 20000, "%zu bytes of headers", parts.headers_len);
    }
    end();
}

static void breaker_with_running_ones(void) {
    begin();
    for (uint64_t tag = 1; tag <= 4; tag++) deliver(tag, NULL);
    mw_delivery *a = take(1), *slow = take(2);
    fail_with(a, "outage", "down");
    pass(40);
    turn();
    turn();
    take(0); /* half open, but one from before still runs: it is the probe */
    mw_delivery_ack(slow);
    take(3);
    take(4);
    end();
}

static void breaker_pause_grows(void) {
    prepare();
    spec.policies[2].backoff =
        (mw_backoff){.kind = MW_BACKOFF_EXPONENTIAL, .base = 0.02, .cap = 0.05, .jitter = 0};
    start();
    static const uint64_t pauses[] = {20, 40, 50, 50};
    mw_delivery *d = NULL;
    for (uint64_t i = 0; i < 4; i++) {
        deliver(i + 1, NULL);
        d = d ? d : take(1);
        mw_loop_now_update(loop);
        uint64_t began = mw_loop_mono_ms(loop);
        fail_with(d, "outage", "down");
        deliver(i + 100, NULL);
        WAIT_FOR((d = mw_pipeline_take(p)));
        uint64_t took = mw_loop_mono_ms(loop) - began;
        CHECK(took >= pauses[i], "pause %llu took %llu ms", (unsigned long long)i, (unsigned long long)took);
    }
    end();
}

/* ---- batches ---- */

static void batches(void) {
    prepare();
    spec.batch_size = 3;
    spec.batch_wait_ms = 40;
    spec.concurrency = 1;
    start();
    mw_delivery *out[8];
    deliver(1, NULL);
    deliver(2, NULL);
    EQUAL(0, mw_pipeline_take_batch(p, out, 3)); /* still filling */
    deliver(3, NULL);
    deliver(4, NULL);
    EQUAL(3, mw_pipeline_take_batch(p, out, 3));
    for (uint64_t i = 0; i < 3; i++) EQUAL(i + 1, tag_of(out[i]));
    EQUAL(1, mw_pipeline_running(p)); /* one handler */
    EQUAL(3, fake.begins);
    deliver(5, NULL);
    deliver(6, NULL);
    EQUAL(0, mw_pipeline_take_batch(p, out + 3, 3)); /* full, but concurrency is 1 */
    mw_delivery_ack(out[0]);
    mw_delivery_reject(out[1], "rejected", "x", 1);
    fail_with(out[2], "transient", "x");
    EQUAL(0, mw_pipeline_running(p));
    EQUAL(3, mw_pipeline_take_batch(p, out, 3));
    for (int i = 0; i < 3; i++) mw_delivery_ack(out[i]);
    settled(1, MW_SETTLE_ACK);
    settled(3, MW_SETTLE_RETRY);
    deliver(7, NULL);
    mw_loop_now_update(loop);
    uint64_t began = mw_loop_mono_ms(loop);
    uint32_t n = 0;
    WAIT_FOR((n = mw_pipeline_take_batch(p, out, 3)));
    EQUAL(1, n);
    CHECK(mw_loop_mono_ms(loop) - began >= 35, "it did not wait for others");
    end();
}

static void batch_of_keys(void) {
    prepare();
    spec.batch_size = 10;
    spec.batch_wait_ms = 5;
    start();
    mw_delivery *out[10];
    for (uint64_t tag = 1; tag <= 6; tag++) deliver(tag, tag % 2 ? "a" : "b");
    uint32_t n = 0;
    WAIT_FOR((n = mw_pipeline_take_batch(p, out, 10)));
    EQUAL(2, n); /* one of each lane */
    mw_delivery_ack(out[0]);
    mw_delivery_ack(out[1]);
    WAIT_FOR((n = mw_pipeline_take_batch(p, out, 10)));
    EQUAL(2, n);
    EQUAL(3, tag_of(out[0]));
    end();
}

static void batch_after_fence(void) { /* the wait of a batch that went away is not that of the next one */
    prepare();
    spec.batch_size = 10;
    spec.batch_wait_ms = 20;
    start();
    mw_delivery *out[10];
    deliver(1, NULL);
    mw_core_host.fence(fake.source, MW_UNIT_ALL);
    pass(30);
    turn();
    turn();
    deliver(2, NULL);
    EQUAL(0, mw_pipeline_take_batch(p, out, 10));
    end();
}

/* ---- deadlines ---- */

static void deadlines(void) {
    prepare();
    spec.timeout_ms = 20;
    start();
    deliver(1, NULL);
    deliver(2, NULL);
    deliver(3, NULL);
    mw_delivery *a = take(1), *b = take(2), *busy = take(3);
    CHECK(mw_delivery_wait(a) && mw_delivery_wait(b) && mw_delivery_wait(a), "passed already");
    mw_delivery_ack(b); /* in time */
    CHECK(!mw_pipeline_expired(p, NULL), "nothing has passed yet");
    WAIT_FOR(expired_events == 1);
    CHECK(mw_pipeline_expired(p, NULL) == a, "another one");
    CHECK(!mw_pipeline_expired(p, NULL), "one too many");
    fail_with(a, "timeout", "timed out");
    EQUAL(1, expect(1, MW_SETTLE_RETRY)->attempt);
    pass(30);
    turn();
    EQUAL(1, expired_events); /* 3 never waited: nothing interrupts it */
    mw_delivery_wait(busy);
    WAIT_FOR(expired_events == 2);
    CHECK(!mw_delivery_wait(busy), "its deadline has passed");
    mw_delivery_ack(busy); /* the verdict came before anybody looked */
    CHECK(!mw_pipeline_expired(p, NULL), "a settled delivery is handed out");
    end();
}

static void not_before(void) {
    begin();
    deliver_as(1, (given){.key = "a", .attempt = 2, .not_before = mw_loop_wall_ms(loop) + 40});
    deliver(2, "a");
    deliver_as(3, (given){.key = "b", .attempt = 2, .not_before = mw_loop_wall_ms(loop) - 40});
    EQUAL(2, mw_delivery_attempt(take(3)));
    take(0);
    mw_delivery *d = NULL;
    WAIT_FOR((d = mw_pipeline_take(p)));
    EQUAL(1, tag_of(d));
    EQUAL(2, mw_delivery_attempt(d));
    mw_delivery_ack(d);
    take(2);
    end();
}

/* ---- the window ---- */

static void buffer_counts(void) {
    prepare();
    spec.buffer_count = 10;
    start();
    size_t bytes;
    EQUAL(10, mw_core_host.room(fake.source, &bytes));
    EQUAL(1 << 20, bytes);
    for (uint64_t tag = 1; tag <= 10; tag++) deliver(tag, NULL);
    EQUAL(0, mw_core_host.room(fake.source, &bytes));
    EQUAL(0, bytes);
    for (uint64_t tag = 1; tag <= 10; tag++) {
        EQUAL(tag > 5 ? 1 : 0, fake.resumes); /* at the low mark, and once */
        mw_delivery_ack(take(tag));
        settled(tag, MW_SETTLE_ACK);
    }
    EQUAL(1, fake.resumes);
    EQUAL(10, mw_core_host.room(fake.source, &bytes));
    end();
}

/* A driver that answers by commits: what is handled waits for them beside the buffer, up to a bound. */
static void buffer_handled(void) {
    prepare();
    spec.buffer_count = 10;
    fake_driver.handled_buffers = 2;
    fake_driver.locate = fake_locate; /* so the message goes with the ack */
    start();
    size_t bytes;
    for (uint64_t first = 1; first <= 21; first += 10) {
        EQUAL(10, mw_core_host.room(fake.source, &bytes));
        EQUAL(1 << 20, bytes);
        for (uint64_t tag = first; tag < first + 10; tag++) deliver(tag, NULL);
        EQUAL(0, mw_core_host.room(fake.source, &bytes));
        for (uint64_t tag = first; tag < first + 10; tag++) mw_delivery_ack(take(tag));
    }
    EQUAL(2, fake.resumes);                           /* twice the acks made room */
    EQUAL(0, mw_core_host.room(fake.source, &bytes)); /* two buffers wait, the third counts */
    for (uint64_t tag = 1; tag <= 10; tag++) settled(tag, MW_SETTLE_ACK);
    EQUAL(3, fake.resumes);
    EQUAL(10, mw_core_host.room(fake.source, &bytes));
    turn();
    answer(11, &fenced); /* logged by its place: its message is gone */
    mw_counters n;
    mw_pipeline_counters(p, &n);
    EQUAL(1, n.fenced);
    EQUAL(19, mw_pipeline_in_flight(p));
    end();
}

/* With publishes its lane and its bytes are held until it is settled: it counts. */
static void buffer_handled_publishes(void) {
    prepare();
    spec.buffer_count = 1;
    fake_driver.handled_buffers = 2;
    fake_driver.locate = fake_locate;
    start();
    size_t bytes;
    deliver(1, NULL);
    mw_delivery *d = take(1);
    mw_parts parts = {.body = "x", .body_len = 1, .priority = MW_PRIORITY_DEFAULT};
    mw_message *m = mw_message_new(&parts);
    mw_delivery_publish(d, from, "out", m, 0, NULL);
    mw_message_unref(m);
    mw_delivery_ack(d);
    EQUAL(0, mw_core_host.room(fake.source, &bytes));
    CHECK(mw_delivery_message(d) != NULL, "its message is gone");
    end();
}

static void buffer_bytes(void) {
    prepare();
    spec.buffer_bytes = 100000;
    start();
    size_t bytes, left;
    deliver_as(1, (given){.body = 60000});
    CHECK(mw_core_host.room(fake.source, &left) > 0 && left < 40000 && left > 39000, "%zu left", left);
    deliver_as(2, (given){.body = 60000}); /* one may go over: a message larger than the window must pass */
    EQUAL(0, mw_core_host.room(fake.source, &bytes));
    EQUAL(0, bytes);
    mw_delivery_ack(take(1));
    settled(1, MW_SETTLE_ACK);
    EQUAL(0, fake.resumes); /* over half still */
    mw_delivery_ack(take(2));
    settled(2, MW_SETTLE_ACK);
    EQUAL(1, fake.resumes);
    mw_core_host.room(fake.source, &bytes);
    EQUAL(100000, bytes); /* every byte was given back */
    end();
}

/* ---- what is refused ---- */

static void checks_of_the_spec(void) {
    prepare();
    mw_error e;
#define REFUSED(part)                                                                                        \
    do {                                                                                                     \
        e.text[0] = 0;                                                                                       \
        EQUAL(-1, mw_pipeline_check(&spec, &e));                                                             \
        CHECK(strstr(e.text, part), "%s", e.text);                                                           \
        CHECK(!mw_pipeline_new(&spec, events, &e), "made in spite of it");                                   \
    } while (0)
    EQUAL(0, mw_pipeline_check(&spec, &e));
    spec.on_dead = MW_DEAD_HOLD_KEY;
    spec.order = MW_ORDER_NONE;
    REFUSED("set order = \"key\"");
    spec.order = MW_ORDER_KEY;
    fake_driver.can &= ~(unsigned)MW_CAN_PARK;
    REFUSED("fake cannot");
    spec.on_dead = MW_DEAD_CONTINUE;
    spec.batch_size = 5;
    spec.order = MW_ORDER_SOURCE;
    REFUSED("one message at a time");
    spec.order = MW_ORDER_KEY;
    spec.dedupe = other;
    fake_driver.can &= ~(unsigned)MW_CAN_DEDUPE;
    REFUSED("cannot keep dedupe records");
    spec.dedupe = NULL;
    EQUAL(0, mw_pipeline_check(&spec, &e));
    spec.channel = "refused";
    p = mw_pipeline_new(&spec, events, &e);
    EQUAL(-1, mw_pipeline_start(p, &e));
    CHECK(strcmp(e.text, "no such channel") == 0, "%s", e.text);
    end();
}

static void idle(void) {
    begin();
    CHECK(!mw_pipeline_idle(p), "the broker has not said how much there is");
    fake.depth.known = true;
    CHECK(mw_pipeline_idle(p), "nothing anywhere");
    fake.depth.delayed = 1;
    CHECK(!mw_pipeline_idle(p), "a retry is pending at the broker");
    fake.depth.delayed = 0;
    deliver(1, NULL);
    CHECK(!mw_pipeline_idle(p), "one is here");
    mw_delivery_ack(take(1));
    CHECK(!mw_pipeline_idle(p), "its ack is not confirmed");
    settled(1, MW_SETTLE_ACK);
    CHECK(mw_pipeline_idle(p), "all is settled");
    end();
}

/* ---- whatever happens ---- */

enum { KEYS = 6, SOAK = 600, PATIENCE_MS = 20000 };
static struct {
    int key;       /* -1: none */
    int epoch;     /* of its delivery */
    bool finished; /* a settlement that ends it was confirmed, or it was fenced */
    bool out;      /* at the core now */
    uint32_t attempt;
} soak[SOAK + 1];
/* A broker that holds lanes: those of a key that wait, in order, and how many of them may go. */
static struct {
    uint64_t tags[SOAK];
    int count;
    uint32_t room;
    bool is_long;
} held_lane[KEYS];
static const char *const key_names[KEYS] = {"a", "b", "c", "d", "e", "f"};
static int epoch, runs_of_key[KEYS];
static uint64_t last_begun[KEYS];
static mw_delivery *running[SOAK];
static int running_count;

static void soak_deliver(uint64_t tag, bool held) {
    soak[tag].out = true;
    soak[tag].epoch = epoch;
    soak[tag].attempt++;
    deliver_as(tag, (given){.key = soak[tag].key < 0 ? NULL : key_names[soak[tag].key],
                            .attempt = soak[tag].attempt,
                            .priority = (uint8_t)(1 + rnd(9)),
                            .held = held});
}

static void soak_hold(uint64_t tag, bool first) {
    int key = soak[tag].key, n = held_lane[key].count++;
    uint64_t *tags = held_lane[key].tags;
    if (first) {
        memmove(tags + 1, tags, (size_t)n * sizeof *tags);
        n = 0;
    }
    tags[n] = tag;
}

static void soak_put_back(uint64_t tag) {
    soak[tag].out = false;
    soak[tag].attempt--;
    soak_hold(tag, true); /* what waits already is newer */
    held_lane[soak[tag].key].room = 0;
    held_lane[soak[tag].key].is_long = true;
}

static void soak_go_on(uint64_t of, uint32_t count) {
    for (int key = 0; key < KEYS; key++)
        if (lane(key_names[key]) == of) held_lane[key].room = count;
}

static bool soak_waiting(void) {
    for (int key = 0; key < KEYS; key++)
        if (held_lane[key].count) return true;
    return false;
}

static void soak_deliver_held(void) {
    int key = (int)rnd(KEYS);
    if (!held_lane[key].room) return;
    if (!held_lane[key].count) {
        held_lane[key].is_long = false;
        return;
    }
    uint64_t tag = held_lane[key].tags[0];
    memmove(held_lane[key].tags, held_lane[key].tags + 1, (size_t)--held_lane[key].count * sizeof tag);
    soak_deliver(tag, --held_lane[key].room == 0);
}

static void soak_answer(void) {
    int open[MOST], n = 0;
    for (int i = 0; i < fake.settle_count; i++)
        if (!fake.settle_answered[i]) open[n++] = i;
    if (!n) return;
    int i = open[rnd((uint64_t)n)];
    mw_settlement *s = &fake.settles[i];
    CHECK(soak[s->tag].out, "%llu was settled, but it is not out", (unsigned long long)s->tag);
    bool ends = s->op != MW_SETTLE_RETRY || !s->hold, stale = soak[s->tag].epoch != epoch;
    fake.settle_answered[i] = true;
    if (stale || rnd(50) == 0) { /* rarely: each costs 100 ms of real time */
        if (stale) soak[s->tag].out = false;
        mw_core_host.settled(fake.source, s->cookie, stale ? &fenced : rnd(2) ? &retryable : &permanent);
        return;
    }
    if (ends) {
        soak[s->tag].out = false;
        soak[s->tag].finished = s->op == MW_SETTLE_ACK;
    }
    mw_core_host.settled(fake.source, s->cookie, NULL);
}

static void soak_take(void) {
    mw_delivery *d = mw_pipeline_take(p);
    if (!d) return;
    uint64_t tag = tag_of(d);
    int key = soak[tag].key;
    if (key >= 0) {
        EQUAL(0, runs_of_key[key]); /* never two of a key at once */
        runs_of_key[key]++;
        CHECK(tag >= last_begun[key], "%llu of key %d ran after %llu", (unsigned long long)tag, key,
              (unsigned long long)last_begun[key]);
        last_begun[key] = tag;
    }
    running[running_count++] = d;
}

static void soak_verdict(void) {
    if (!running_count) return;
    int i = (int)rnd((uint64_t)running_count);
    mw_delivery *d = running[i];
    running[i] = running[--running_count];
    int key = soak[tag_of(d)].key;
    if (key >= 0) runs_of_key[key]--;
    if (mw_delivery_fenced(d)) soak[tag_of(d)].out = soak[tag_of(d)].epoch == epoch && soak[tag_of(d)].out;
    if (rnd(4) == 0) publish(d, rnd(2) ? from : other, "x");
    switch (rnd(8)) {
    case 0:
    case 1: fail_with(d, "transient", "x"); break;
    case 2: mw_delivery_reject(d, "rejected", "x", 1); break;
    case 3: mw_delivery_drop(d, "x", 1); break;
    case 4: fail_with(d, "timeout", "x"); break;
    default: mw_delivery_ack(d);
    }
}

static void soak_publish_answer(void) {
    for (int i = 0; i < fake.pub_count; i++)
        if (!fake.pub_answered[i] && rnd(2)) {
            answer_publish(i, rnd(40) ? NULL : rnd(2) ? &retryable : &permanent);
            return;
        }
}

/* Settlements of the epoch before are answered as the contract says; their deliveries come again, in order.
 */
static void soak_fence(void) {
    epoch++;
    mw_core_host.fence(fake.source, MW_UNIT_ALL);
    memset(last_begun, 0, sizeof last_begun);
}

static void compact(void) { /* forget what was answered, so that the tables do not fill */
    int n = 0;
    for (int i = 0; i < fake.settle_count; i++)
        if (!fake.settle_answered[i]) {
            fake.settles[n] = fake.settles[i];
            fake.settle_answered[n++] = false;
        }
    fake.settle_count = n;
    n = 0;
    for (int i = 0; i < fake.pub_count; i++)
        if (!fake.pub_answered[i]) {
            fake.pubs[n] = fake.pubs[i];
            fake.pub_answered[n++] = false;
        }
    fake.pub_count = n;
}

static void soak_run(unsigned can, bool fences) {
    prepare();
    fake_driver.can = can;
    spec.concurrency = 20;
    spec.buffer_count = 100;
    on_put_back = soak_put_back;
    on_go_on = soak_go_on;
    retry_policy(&spec.policies[0], "", MW_POLICY_RETRY, 4, 0.001);
    start();
    memset(soak, 0, sizeof soak);
    memset(runs_of_key, 0, sizeof runs_of_key);
    memset(last_begun, 0, sizeof last_begun);
    memset(held_lane, 0, sizeof held_lane);
    epoch = running_count = 0;
    uint64_t next = 1;
    int in_epoch = 0;
    uint64_t began = mw_loop_mono_ms(loop);
    for (int step = 0; next <= SOAK || mw_pipeline_in_flight(p) || soak_waiting(); step++) {
        if (mw_loop_mono_ms(loop) - began > PATIENCE_MS) {
            CHECK(false, "%u are stuck", mw_pipeline_in_flight(p));
            break;
        }
        size_t bytes;
        switch (rnd(8)) {
        case 0:
            if (!mw_core_host.room(fake.source, &bytes)) break;
            if (rnd(2) || next > SOAK) {
                soak_deliver_held();
                break;
            }
            soak[next].key = rnd(5) ? (int)rnd(rnd(2) ? 1 : KEYS) : -1; /* the first one is hot */
            if (soak[next].key >= 0 && held_lane[soak[next].key].is_long)
                soak_hold(next, false);
            else
                soak_deliver(next, false);
            next++;
            break;
        case 1:
        case 2: soak_take(); break;
        case 3:
        case 4: soak_verdict(); break;
        case 5: soak_answer(); break;
        case 6: soak_publish_answer(); break;
        default: compact(); pass(running_count || fake.settle_count || fake.pub_count ? 0 : 2);
        }
        if (fences && ++in_epoch > 500 && rnd(500) == 0) {
            soak_fence();
            in_epoch = 0;
        }
    }
    EQUAL(0, mw_pipeline_running(p));
    EQUAL(0, mw_pipeline_in_flight(p));
    mw_counters c = counters();
    EQUAL(SOAK, c.received);
    size_t bytes;
    mw_core_host.room(fake.source, &bytes);
    EQUAL(1 << 20, bytes);
    for (uint64_t tag = 1; !fences && tag <= SOAK; tag++) {
        CHECK(!soak[tag].out, "%llu is still out", (unsigned long long)tag);
        bool released = soak[tag].key < 0 && can & MW_CAN_RETRY; /* may be at the broker for a retry */
        CHECK(soak[tag].finished || released, "%llu was lost", (unsigned long long)tag);
    }
    if (!fences && can & MW_CAN_PARK) CHECK(fake.put_back_count, "no lane was long");
    on_put_back = NULL;
    on_go_on = NULL;
    if (!fences) EQUAL(0, c.fenced);
    mw_pipeline_drain(p);
    turn();
    EQUAL(1, fake.unsubscribes);
    end();
}

static void soak_queue(void) { soak_run(QUEUE, false); }
static void soak_atomic(void) { soak_run(QUEUE | MW_CAN_ATOMIC, false); }
static void soak_log(void) { soak_run(0, false); }
static void soak_fences(void) {
    soak_run(QUEUE, true);
    soak_run(QUEUE | MW_CAN_ATOMIC, true);
    soak_run(0, true);
}

/* ---- canaries ---- */

static int old_owner, new_owner; /* two generations */
static uint32_t old_running, new_running;
static int new_events;

static void on_new_ready(void *owner, mw_pipeline *which) {
    (void)which;
    CHECK(owner == &new_owner, "the wrong one is told");
    new_events++;
}

static void start_owned(void) {
    start();
    mw_pipeline_events of_old = events;
    of_old.owner = &old_owner;
    of_old.running = &old_running;
    mw_pipeline_adopt(p, &spec, of_old);
    mw_pipeline_set_generation(p, 7);
    old_running = new_running = 0;
    new_events = 0;
}

static mw_pipeline_events of_new(void) {
    return (mw_pipeline_events){.ready = on_new_ready,
                                .expired = on_expired,
                                .closed = on_closed,
                                .owner = &new_owner,
                                .running = &new_running};
}

static void turn_of(const void *owner) { mw_pipeline_turn(p, owner); }

/* A key, written into the buffer, that the trial gets or does not get. */
static const char *key_for(bool trial, int n, char out[16]) {
    for (int i = 0;; i++) {
        snprintf(out, 16, "key-%d", i);
        if (mw_pipeline_would_try(p, lane(out)) == trial && n-- == 0) return out;
    }
}

static void trial_shares_by_key(void) {
    prepare();
    spec.concurrency = 1000;
    start_owned();
    mw_pipeline_try(p, of_new(), 8, 0.25, 99);
    int theirs = 0;
    for (uint64_t i = 1; i <= 400; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%llu", (unsigned long long)i % 200);
        deliver(i, key);
    }
    turn_of(&new_owner);
    for (mw_delivery *d; (d = mw_pipeline_take(p));) {
        theirs++;
        mw_delivery_ack(d); /* the second of its key follows, and is theirs too */
    }
    CHECK(theirs > 50 && theirs < 150 && theirs % 2 == 0, "%d of 400 are a quarter?", theirs);
    CHECK(new_events > 0, "nobody was told");
    turn_of(&old_owner);
    int ours = 0;
    for (mw_delivery *d; (d = mw_pipeline_take(p));) {
        ours++;
        mw_delivery_ack(d);
    }
    EQUAL(400, theirs + ours);
    mw_trial_view v;
    mw_pipeline_trial(p, &v);
    EQUAL(8, v.generation);
    EQUAL((uint64_t)theirs, v.messages);
    EQUAL((uint64_t)ours, v.old_messages);
    EQUAL(0, v.failures + v.old_failures);
    end();
}

static void trial_ends(void) {
    prepare();
    start_owned();
    deliver(1, "before"); /* whoever's key it is: it was ready before */
    mw_pipeline_try(p, of_new(), 8, 0.5, 1);
    char mine[16], yours[16];
    deliver(2, key_for(true, 0, mine));
    deliver(3, key_for(false, 0, yours));
    deliver(4, mine);
    turn_of(&new_owner);
    mw_delivery *theirs = take(2);
    take(0);
    EQUAL(1, new_running);
    turn_of(&old_owner);
    take(1);
    take(3);
    take(0);
    deliver(5, key_for(true, 1, yours)); /* ready for the trial when it ends */
    take(0);
    mw_pipeline_end_trial(p);
    take(5);
    turn_of(&new_owner);
    take(0); /* what is gone takes nothing, whatever is ready */
    mw_delivery_ack(theirs);
    EQUAL(0, new_running);
    take(0);
    turn_of(&old_owner);
    take(4);
    mw_trial_view v;
    mw_pipeline_trial(p, &v);
    EQUAL(0, v.generation);
    end();
}

static void trial_counts_first_attempts(void) {
    prepare();
    start_owned();
    mw_pipeline_try(p, of_new(), 8, 0.5, 1);
    char mine[16], yours[16];
    key_for(true, 0, mine);
    key_for(false, 0, yours);
    deliver(1, mine);
    deliver_as(2, (given){.key = yours, .attempt = 2});
    char third[16];
    deliver(3, key_for(false, 1, third));
    turn_of(&new_owner);
    fail_with(take(1), "", "no");
    turn_of(&old_owner);
    fail_with(take(2), "", "no");
    fail_with(take(3), "invalid", "no");
    turn();
    HEADER(fake.pubs[0].msg, "mw-dead-generation", "7");
    settled(1, MW_SETTLE_RETRY);
    settled(2, MW_SETTLE_RETRY);
    pass(1000); /* the retries of both, each again at its own */
    fail_with(take(2), "", "no");
    take(0);
    turn_of(&new_owner);
    fail_with(take(1), "invalid", "no");
    turn();
    HEADER(fake.pubs[1].msg, "mw-dead-generation", "7"); /* of 2, given up */
    HEADER(fake.pubs[2].msg, "mw-dead-generation", "8");
    mw_trial_view v;
    mw_pipeline_trial(p, &v);
    EQUAL(1, v.messages);
    EQUAL(1, v.failures);
    EQUAL(1, v.old_messages);
    EQUAL(1, v.old_failures);
    end();
}

static void trial_has_its_places(void) {
    prepare();
    spec.concurrency = 4;
    spec.order = MW_ORDER_NONE;
    start_owned();
    mw_pipeline_try(p, of_new(), 8, 0.3, 1); /* two places of four */
    char mine[16], yours[16];
    key_for(true, 0, mine);
    key_for(false, 0, yours);
    for (uint64_t i = 1; i <= 8; i++) deliver(i, yours);
    for (uint64_t i = 11; i <= 15; i++) deliver(i, mine);
    turn_of(&old_owner);
    mw_delivery *first = take(1);
    take(2);
    take(0); /* the others are kept free */
    turn_of(&new_owner);
    mw_delivery *d = take(11);
    take(12);
    take(0); /* and more than its share it does not get */
    mw_delivery_ack(first);
    take(0);
    turn_of(&old_owner);
    take(3);
    mw_delivery_ack(d);
    take(0);
    turn_of(&new_owner);
    take(13);
    mw_pipeline_end_trial(p);
    turn_of(&old_owner);
    take(0);
    EQUAL(4, mw_pipeline_running(p));
    end();
}

static void trial_in_batches(void) {
    prepare();
    spec.batch_size = 2;
    spec.batch_wait_ms = 50;
    spec.order = MW_ORDER_NONE;
    start_owned();
    mw_pipeline_try(p, of_new(), 8, 0.5, 1);
    char mine[16], yours[16];
    mw_delivery *batch[2];
    key_for(true, 0, mine);
    key_for(false, 0, yours);
    deliver(1, mine);
    deliver(2, yours);
    turn_of(&new_owner);
    EQUAL(0, mw_pipeline_take_batch(p, batch, 2)); /* each fills its own */
    turn_of(&old_owner);
    EQUAL(0, mw_pipeline_take_batch(p, batch, 2));
    deliver(3, yours);
    EQUAL(2, mw_pipeline_take_batch(p, batch, 2));
    pass(60);
    turn_of(&new_owner);
    EQUAL(1, mw_pipeline_take_batch(p, batch, 2));
    deliver(4, mine);
    mw_pipeline_end_trial(p);
    deliver(5, yours);
    turn_of(&old_owner);
    EQUAL(2, mw_pipeline_take_batch(p, batch, 2));
    end();
}

static void trial_promoted_and_drained(void) {
    prepare();
    start_owned();
    mw_pipeline_try(p, of_new(), 8, 0.5, 1);
    char mine[16], yours[16];
    deliver(1, key_for(true, 0, mine));
    deliver(2, key_for(false, 0, yours));
    deliver(3, key_for(false, 1, yours));
    turn_of(&old_owner);
    mw_delivery *old = take(2);
    EQUAL(1, old_running);
    mw_pipeline_adopt(p, &spec, of_new());
    turn_of(&old_owner);
    take(0);
    turn_of(&new_owner);
    take(3);
    take(1);
    mw_delivery_ack(old);
    EQUAL(0, old_running);
    mw_pipeline_try(p, events, 9, 0.5, 1);
    deliver(4, key_for(true, 2, mine));
    mw_pipeline_drain(p); /* ready for a trial: it goes back like any other */
    settled(4, MW_SETTLE_RELEASE);
    end();
}

static void differing_settings(void) {
    prepare();
    start_owned();
    CHECK(!mw_pipeline_differs(p, &spec), "it differs from itself");
    mw_pipeline_spec changed = spec;
    changed.policies[0].attempts++;
    CHECK(strcmp(mw_pipeline_differs(p, &changed), "retry") == 0, "attempts");
    changed = spec;
    changed.policies[1].backoff.jitter = 0.5;
    CHECK(strcmp(mw_pipeline_differs(p, &changed), "retry") == 0, "jitter");
    changed = spec;
    changed.timeout_ms++;
    CHECK(strcmp(mw_pipeline_differs(p, &changed), "timeout") == 0, "timeout");
    changed = spec;
    changed.dead_channel = "elsewhere";
    CHECK(strcmp(mw_pipeline_differs(p, &changed), "dead") == 0, "dead");
    changed = spec;
    changed.concurrency++;
    CHECK(strcmp(mw_pipeline_differs(p, &changed), "concurrency") == 0, "concurrency");
    end();
}

static const test tests[] = {
    {"trial_shares_by_key", trial_shares_by_key},
    {"trial_ends", trial_ends},
    {"trial_counts_first_attempts", trial_counts_first_attempts},
    {"trial_has_its_places", trial_has_its_places},
    {"trial_in_batches", trial_in_batches},
    {"trial_promoted_and_drained", trial_promoted_and_drained},
    {"differing_settings", differing_settings},
    {"order_key", order_key},
    {"order_source", order_source},
    {"order_none", order_none},
    {"own_key", own_key},
    {"priorities", priorities},
    {"limits", limits},
    {"slices", slices},
    {"retry_holds_its_lane", retry_holds_its_lane},
    {"retry_release", retry_release},
    {"retry_gives_up", retry_gives_up},
    {"retry_too_old", retry_too_old},
    {"dead_by_class", dead_by_class},
    {"dead_channel_refuses", dead_channel_refuses},
    {"dead_in_one_transaction", dead_in_one_transaction},
    {"publish_before_ack", publish_before_ack},
    {"publish_in_one_transaction", publish_in_one_transaction},
    {"publish_discarded", publish_discarded},
    {"publish_fails", publish_fails},
    {"publish_fails_whatever_comes_last", publish_fails_whatever_comes_last},
    {"settle_errors", settle_errors},
    {"long_lanes_are_put_back", long_lanes_are_put_back},
    {"more_is_asked_for", more_is_asked_for},
    {"no_parking", no_parking},
    {"on_dead_hold", on_dead_hold},
    {"on_dead_dead", on_dead_dead},
    {"marks_from_the_broker", marks_from_the_broker},
    {"mark_of_a_fenced_letter", mark_of_a_fenced_letter},
    {"fence_in_every_state", fence_in_every_state},
    {"fence_before_the_batch_goes", fence_before_the_batch_goes},
    {"fence_a_letter_that_waits", fence_a_letter_that_waits},
    {"fence_unkeyed", fence_unkeyed},
    {"fence_then_resume", fence_then_resume},
    {"drain_in_every_state", drain_in_every_state},
    {"drain_unkeyed_and_empty", drain_unkeyed_and_empty},
    {"drain_while_held", drain_while_held},
    {"drain_long_lane", drain_long_lane},
    {"abandon", abandon},
    {"dedupe", dedupe},
    {"busy_in_a_lane", busy_in_a_lane},
    {"breaker_half_open", breaker_half_open},
    {"more_attempts_than_granted", more_attempts_than_granted},
    {"long_texts_are_clipped", long_texts_are_clipped},
    {"breaker_with_running_ones", breaker_with_running_ones},
    {"breaker_pause_grows", breaker_pause_grows},
    {"batches", batches},
    {"batch_of_keys", batch_of_keys},
    {"batch_after_fence", batch_after_fence},
    {"deadlines", deadlines},
    {"not_before", not_before},
    {"buffer_counts", buffer_counts},
    {"buffer_handled", buffer_handled},
    {"buffer_handled_publishes", buffer_handled_publishes},
    {"buffer_bytes", buffer_bytes},
    {"checks_of_the_spec", checks_of_the_spec},
    {"idle", idle},
    {"soak_queue", soak_queue},
    {"soak_atomic", soak_atomic},
    {"soak_log", soak_log},
    {"soak_fences", soak_fences},
    {NULL, NULL},
};

/* ---- supervised: this process is worker 0; worker 1 is one that the tests let die ---- */

enum { OF_THE_OTHER = 1000000 };

static void die_by(uint32_t slot, mw_death how, uint32_t suspects) {
    EQUAL(suspects, mw_ledger_bury(shared, slot, how, 1));
}

static void die(uint32_t slot, uint32_t suspects) { die_by(slot, MW_DEATH_CRASH, suspects); }

static int crashes_of(uint64_t hash, bool elsewhere) { /* -1: no suspect */
    mw_suspicion why;
    return mw_ledger_suspects(hash, elsewhere, &why) ? (int)why.crashes : -1;
}

static void suspects_that_end(void) {
    begin();
    for (uint64_t tag = 1; tag <= 4; tag++) deliver(tag, NULL);
    mw_delivery *one = take(1), *two = take(2);
    die(0, 2); /* as far as the ledger knows; 1 and 2 come again below */
    mw_delivery_ack(one);
    mw_delivery_ack(two);
    deliver(5, NULL);
    mw_delivery *three = take(3);
    deliver_as(6, (given){.priority = 9, .attempt = 2});
    mw_delivery *six = take(6);
    die(0, 2); /* 3 and 6 are suspects while they run: that they end clears them */
    mw_delivery_ack(six);
    mw_delivery_ack(three);
    mw_delivery *four = take(4);
    mw_delivery_ack(four);
    take(5);
    end();
}

static uint64_t write_down(uint64_t tag) { /* m<tag> of the pipeline "orders", as begun */
    char id[32];
    int n = snprintf(id, sizeof id, "m%llu", (unsigned long long)tag);
    uint64_t both[2] = {mw_hash64("orders", 6), mw_hash64(id, (size_t)n)};
    uint64_t hash = mw_hash64(both, sizeof both);
    mw_ledger_begin(hash, 0, MW_TALLIES, id, (size_t)n);
    return hash;
}

static uint64_t suspect(uint64_t tag, int deaths) {
    uint64_t hash = 0;
    for (int i = 1; i <= deaths; i++) {
        hash = write_down(tag);
        die(0, 1);
        EQUAL(i, crashes_of(hash, false));
    }
    return hash;
}

static void suspects_one_by_one(void) {
    begin();
    suspect(2, 1);
    suspect(3, 2);
    for (uint64_t tag = 1; tag <= 5; tag++) deliver(tag, NULL);
    mw_delivery *one = take(1);
    take(0); /* 2 waits until 1 has ended, and 4 behind it */
    mw_delivery_ack(one);
    take(0); /* its ack does not stand yet: if 2 kills, 1 would be handled again */
    int before = ready_events;
    turn();
    settled(1, MW_SETTLE_ACK);
    CHECK(ready_events > before, "nobody was woken");
    mw_delivery *two = take(2);
    take(0);
    before = ready_events;
    WAIT_FOR(ready_events > before); /* it is looked at again while it runs, in any case */
    take(0);
    mw_delivery_ack(two);
    turn();
    settled(2, MW_SETTLE_ACK);
    mw_delivery *three = take(3);
    take(0);
    fail_with(three, "transient", "x"); /* any end clears it */
    mw_delivery *four = take(4), *five = take(5);
    mw_delivery_ack(four);
    mw_delivery_ack(five);
    end();
}

static void suspects_are_buried(void) {
    begin();
    uint64_t hash = suspect(1, 3);
    deliver_as(1, (given){.key = "k", .attempt = 4});
    deliver(2, "k");
    take(0); /* its lane is the letter's until that is settled */
    turn();
    EQUAL(1, fake.pub_count);
    mw_parts parts;
    mw_header h;
    mw_message_parts(fake.pubs[0].msg, &parts);
    CHECK(mw_headers_find(parts.headers, parts.headers_len, "mw-dead-class", &h), "no class");
    CHECK(h.value_len == 5 && memcmp(h.value, "crash", 5) == 0, "%.*s", (int)h.value_len, h.value);
    CHECK(mw_headers_find(parts.headers, parts.headers_len, "mw-dead-reason", &h), "no reason");
    static const char reason[] = "killed its worker 3 times";
    CHECK(h.value_len == sizeof reason - 1 && memcmp(h.value, reason, h.value_len) == 0, "%.*s",
          (int)h.value_len, h.value);
    mw_suspicion why;
    answer_publish(0, NULL);
    CHECK(mw_ledger_suspects(hash, false, &why), "forgotten before its letter stands: we may die yet");
    settled(1, MW_SETTLE_ACK);
    CHECK(!mw_ledger_suspects(hash, false, &why), "suspected for ever");
    mw_delivery_ack(take(2));
    end();
}

static void dead_as(const char *class_name, const char *reason) { /* the letter that was published last */
    mw_parts parts;
    mw_header h;
    mw_message_parts(fake.pubs[fake.pub_count - 1].msg, &parts);
    CHECK(mw_headers_find(parts.headers, parts.headers_len, "mw-dead-class", &h), "no class");
    CHECK(h.value_len == strlen(class_name) && memcmp(h.value, class_name, h.value_len) == 0, "%.*s",
          (int)h.value_len, h.value);
    CHECK(mw_headers_find(parts.headers, parts.headers_len, "mw-dead-reason", &h), "no reason");
    CHECK(h.value_len == strlen(reason) && memcmp(h.value, reason, h.value_len) == 0, "%.*s",
          (int)h.value_len, h.value);
}

/* Whoever kills from outside has to do it thirty times to the same one before that is blamed. */
static void kills_from_outside(void) {
    begin();
    write_down(7);
    die_by(0, MW_DEATH_KILLED, 1); /* it may have run beside others: it does not count at all */
    for (int i = 0; i < 3 * MW_KILLS_PER_CRASH - 1; i++) {
        write_down(7);
        die_by(0, MW_DEATH_KILLED, 1);
    }
    deliver(7, NULL);
    mw_delivery *seven = take(7);
    die_by(0, MW_DEATH_KILLED, 1);
    mw_delivery_ack(seven);
    deliver(8, NULL);
    write_down(8);
    for (int i = 0; i <= 3 * MW_KILLS_PER_CRASH; i++) {
        write_down(8);
        die_by(0, MW_DEATH_KILLED, i ? 1 : 2);
    }
    take(0);
    turn();
    dead_as("crash", "killed its worker 31 times");
    answer_publish(0, NULL);
    settled(8, MW_SETTLE_ACK);
    end();
}

/* Only the one whose handler computed is to blame, and no more often than its policy allows. */
static void stuck_one_is_blamed(void) {
    prepare();
    spec.policies[0].attempts = 2;
    start();
    for (int i = 0; i < 2; i++) {
        write_down(1);
        uint64_t hash = write_down(2);
        for (uint32_t k = 0; k < MW_LEDGER_ENTRIES; k++)
            if (shared->slot[0].begun.hash[k] == hash) mw_pulse_mine->entry = k + 1;
        die_by(0, MW_DEATH_STUCK, 1);
        mw_ledger_reset();
    }
    deliver(1, NULL);
    deliver(2, NULL);
    mw_delivery_ack(take(1));
    take(0);
    turn();
    dead_as("timeout", "stuck past its timeout 2 times, and its worker was ended");
    answer_publish(0, NULL);
    settled(2, MW_SETTLE_ACK);
    write_down(3);
    die_by(0, MW_DEATH_STUCK, 1); /* nothing computed: it was stopped from outside */
    EQUAL(0, crashes_of(write_down(3), false));
    mw_ledger_reset();
    die_by(0, MW_DEATH_OURS, 0);
    end();
}

static void suspects_in_batches(void) {
    prepare();
    spec.batch_size = 4;
    start();
    suspect(3, 1);
    mw_delivery *out[8];
    for (uint64_t tag = 1; tag <= 6; tag++) deliver(tag, NULL);
    EQUAL(2, mw_pipeline_take_batch(p, out, 4)); /* up to the suspect */
    WAIT_FOR(mw_pipeline_take_batch(p, out + 2, 4) == 0);
    mw_delivery_ack(out[0]);
    mw_delivery_ack(out[1]);
    turn();
    settled(1, MW_SETTLE_ACK);
    settled(2, MW_SETTLE_ACK);
    EQUAL(1, mw_pipeline_take_batch(p, out, 4));
    EQUAL(3, tag_of(out[0]));
    EQUAL(0, mw_pipeline_take_batch(p, out + 1, 4));
    mw_delivery_ack(out[0]);
    for (uint64_t tag = 7; tag <= 8; tag++) deliver(tag, NULL);
    EQUAL(4, mw_pipeline_take_batch(p, out, 4));
    for (int i = 0; i < 4; i++) mw_delivery_ack(out[i]);
    end();
}

/* What another worker has begun, and a broker gives us, is suspected before anybody has noticed the death. */
static void suspects_not_noticed_yet(void) {
    begin();
    deliver(1, NULL);
    deliver_as(OF_THE_OTHER, (given){.attempt = 2});
    deliver(2, NULL);
    mw_delivery *one = take(1);
    take(0);
    mw_delivery_ack(one);
    turn();
    settled(1, MW_SETTLE_ACK);
    mw_delivery *twin = take(OF_THE_OTHER);
    take(0);
    die(1, 1); /* now it is noticed */
    take(0);
    mw_delivery_ack(twin);
    deliver_as(OF_THE_OTHER, (given){.attempt = 2}); /* cleared */
    mw_delivery_ack(take(2));
    mw_delivery_ack(take(OF_THE_OTHER));
    end();
}

static void ledger_full(void) {
    static uint32_t entries[MW_LEDGER_ENTRIES + 8];
    mw_error e;
    EQUAL(0, mw_shared_attach(shared_fd, 0, &e));
    mw_ledger_reset(); /* all entries are free again */
    for (uint64_t i = 0; i < MW_LEDGER_ENTRIES + 8; i++) {
        entries[i] =
            mw_ledger_begin(i + 1, 0, MW_TALLIES,
                            "some id that is longer than what is kept of it, so that it is cut off", 71);
        EQUAL(i < MW_LEDGER_ENTRIES, entries[i] != 0);
    }
    die(0, MW_LEDGER_ENTRIES);
    die(0, 0);
    for (uint64_t i = 0; i < MW_LEDGER_ENTRIES; i++) EQUAL(1, crashes_of(i + 1, false));
    EQUAL(-1, crashes_of(MW_LEDGER_ENTRIES + 1, true));
    for (uint64_t i = 0; i < MW_LEDGER_ENTRIES + 8; i++) mw_ledger_end(entries[i], i + 1);
    for (uint64_t i = 0; i < MW_LEDGER_ENTRIES; i++) EQUAL(-1, crashes_of(i + 1, true));
    mw_ledger_begin(5, 0, MW_TALLIES, "x", 1);
    die_by(0, MW_DEATH_OURS, 0); /* our own doing: nobody is suspected */
    EQUAL(-1, crashes_of(5, true));
}

/* Whatever a worker that has gone mad leaves in the shared memory, reading it stays within it. */
static void mad_worker(void) {
    static mw_shared_slot kept;
    kept = shared->slot[1];
    memset(&shared->slot[1], 0xff, sizeof shared->slot[1]);
    CHECK(!mw_ledger_current(shared, 1), "an entry beyond the table");
    shared->slot[1].pulse.entry = MW_LEDGER_ENTRIES;
    const mw_begun *who = mw_ledger_current(shared, 1);
    CHECK(who != NULL, "the last entry");
    EQUAL(MW_LEDGER_ID, mw_begun_len(who));
    size_t len;
    CHECK(!mw_begun_pipeline(shared, 1, who, &len), "a pipeline that does not exist");
    shared->slot[1].begun.who[MW_LEDGER_ENTRIES - 1].tally = MW_TALLIES - 1;
    CHECK(mw_begun_pipeline(shared, 1, who, &len) && len == MW_TALLY_TEXT, "its name has no end");
    for (uint32_t i = 0; i < MW_TALLIES; i++) mw_tally_refresh(&shared->slot[1].tallies[i], 1);
    shared->slot[1] = kept;
}

/* What was never seen again went elsewhere: it must not be searched for with every message, for ever. */
static void suspects_expire(void) {
    begin();
    mw_suspicion why;
    uint64_t first = write_down(1);
    mw_ledger_bury(shared, 0, MW_DEATH_CRASH, 1000);
    mw_ledger_reset();
    uint64_t second = write_down(2);
    mw_ledger_bury(shared, 0, MW_DEATH_CRASH, 5000);
    mw_ledger_reset();
    mw_ledger_expire(shared, 1000);
    CHECK(mw_ledger_suspects(first, false, &why), "not yet");
    mw_ledger_expire(shared, 1001);
    CHECK(!mw_ledger_suspects(first, false, &why), "it stays");
    CHECK(mw_ledger_suspects(second, false, &why), "too early");
    mw_ledger_expire(shared, 5001);
    EQUAL(0, shared->live);
    EQUAL(0, shared->suspects.high);
    end();
}

/* What a worker has logged and not written is there for the supervisor; what it has written is not. */
static void last_words(void) {
    static mw_log_rest rest;
    int ends[2], real = dup(2);
    char text[512];
    if (pipe(ends)) abort();
    dup2(ends[1], 2);
    mw_log_setup(MW_LOG_LOGFMT, MW_INFO);
    mw_log_keep_in(&rest);
    mw_log_begin(MW_INFO, "written");
    mw_log_end();
    mw_log_flush_signal();
    EQUAL(0, rest.len);
    ssize_t n = read(ends[0], text, sizeof text);
    CHECK(n > 0 && memmem(text, (size_t)n, "msg=written", 11), "not written");
    mw_log_begin(MW_INFO, "one");
    mw_log_end();
    mw_log_begin(MW_INFO, "two");
    mw_log_end();
    mw_log_begin(MW_INFO, "half");
    mw_log_flush_signal(); /* amid a line it leaves all as it is */
    CHECK(memmem(rest.text, rest.len, "msg=one", 7) && memmem(rest.text, rest.len, "msg=two", 7), "%.*s",
          (int)rest.len, rest.text);
    CHECK(!memmem(rest.text, rest.len, "half", 4), "a line that has no end");
    mw_log_rest dead = rest; /* here it dies */
    mw_log_keep_in(NULL);
    mw_log_end();
    mw_log_flush();
    n = read(ends[0], text, sizeof text);
    mw_log_left(&dead);
    mw_log_flush();
    n = read(ends[0], text, sizeof text);
    CHECK(n > 0 && memmem(text, (size_t)n, "msg=two", 7), "not told");
    dead.len = UINT32_MAX; /* it had gone mad */
    memset(dead.text, 'x', sizeof dead.text);
    mw_log_left(&dead);
    mw_log_setup(MW_LOG_LOGFMT, MW_SILENT);
    dup2(real, 2);
    close(real);
    close(ends[0]);
    close(ends[1]);
}

/* Statuses as waitpid tells them: an exit code stands in the second byte, a signal in the first. */
static void whose_death(void) {
    enum { EXIT_1 = 1 << 8 };
    EQUAL(MW_DEATH_OURS, mw_death_of(SIGKILL, true, false, true));
    EQUAL(MW_DEATH_OURS, mw_death_of(0, false, false, false));
    EQUAL(MW_DEATH_STUCK, mw_death_of(SIGKILL, false, true, true));
    EQUAL(MW_DEATH_CRASH, mw_death_of(EXIT_1, false, false, false));
    EQUAL(MW_DEATH_KILLED, mw_death_of(MW_EXIT_AGAIN << 8, false, false, false)); /* nobody is to blame */
    EQUAL(MW_DEATH_CRASH, mw_death_of(SIGSEGV, false, false, false));
    EQUAL(MW_DEATH_CRASH, mw_death_of(SIGKILL, false, false, true)); /* for its hunger for memory */
    EQUAL(MW_DEATH_KILLED, mw_death_of(SIGKILL, false, false, false));
    EQUAL(MW_DEATH_KILLED, mw_death_of(SIGTERM, false, false, true));
}

static const test supervised_tests[] = {
    {"suspects_expire", suspects_expire},
    {"whose_death", whose_death},
    {"last_words", last_words},
    {"suspects_that_end", suspects_that_end},
    {"suspects_one_by_one", suspects_one_by_one},
    {"suspects_are_buried", suspects_are_buried},
    {"suspects_in_batches", suspects_in_batches},
    {"suspects_not_noticed_yet", suspects_not_noticed_yet},
    {"kills_from_outside", kills_from_outside},
    {"stuck_one_is_blamed", stuck_one_is_blamed},
    {"mad_worker", mad_worker},
    {"ledger_full", ledger_full},
    {NULL, NULL},
};

static int run_supervised(int argc, char **argv) {
    mw_error e;
    shared = mw_shared_new(2, &shared_fd, &e);
    if (!shared || mw_shared_attach(shared_fd, 1, &e)) abort();
    shared->used = 2;
    shared->allowed = 3;
    write_down(OF_THE_OTHER);
    mw_ledger_reset();
    if (mw_shared_attach(shared_fd, 0, &e)) abort();
    int code = run_tests(tests, argc, argv);
    code |= run_tests(supervised_tests, argc, argv);
    mw_shared_free(shared);
    close(shared_fd);
    return code;
}

int main(int argc, char **argv) {
    mw_log_setup(MW_LOG_LOGFMT, MW_SILENT);
    loop = mw_loop_new();
    mw_loop_virtual(loop, true);
    int code = run_tests(tests, argc, argv);
    code |= run_supervised(argc, argv);
    mw_text_cache_clear();
    mw_loop_free(loop);
    return code;
}
