/* embedded_store_test.c - what the embedded broker does with messages, groups and processes, driven through
 * its driver struct. Cases that need other processes start this program again in a role (fork alone would
 * copy a process with threads). Exits non-zero with the case and line that failed. embedded_store_test all
 * cases embedded_store_test NAME       the cases whose name contains NAME embedded_store_test bench publish +
 * consume + ack against raw LMDB */
#include <signal.h>
#include <sys/wait.h>

#include "embedded_host.h"

/* ---- other processes ---- */

typedef struct child {
    pid_t pid;
    int out;
} child;

static child start(const char *role, const char *argument) {
    int pipe_fd[2];
    CHECK(pipe2(pipe_fd, O_CLOEXEC) == 0);
    child c = {.pid = fork(), .out = pipe_fd[0]};
    if (c.pid == 0) {
        dup2(pipe_fd[1], 1);
        execl("/proc/self/exe", "embedded_store_test", "--role", role, folder, argument, (char *)NULL);
        _exit(127);
    }
    close(pipe_fd[1]);
    return c;
}

static void read_line(child *c, char *line, size_t size) {
    size_t n = 0;
    for (char ch; n + 1 < size && read(c->out, &ch, 1) == 1 && ch != '\n';) line[n++] = ch;
    line[n] = 0;
}

static void expect_line(child *c, const char *want) {
    char line[128];
    read_line(c, line, sizeof line);
    CHECK(strcmp(line, want) == 0, "got \"%s\"", line);
}

static void end_child(child *c, int signum) {
    if (signum) kill(c->pid, signum);
    CHECK(waitpid(c->pid, NULL, 0) == c->pid);
    close(c->out);
}

static void say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

/* Takes 10 messages, begins the first 3, waits to be killed. */
static void role_begin(mw_conn *c) {
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(s->count == 10, 5000);
    for (size_t i = 0; i < s->count; i++)
        if (s->got[i].number < 3) D->begin(s->sub, s->got[i].tag, s->got[i].unit);
    say("begun");
    for (;;) mw_loop_step(loop, 100);
}

/* Retries message 0 with hold and 1 without, then waits to be killed. */
static void role_retry(mw_conn *c) {
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(s->count == 3, 5000);
    for (size_t i = 0; i < 3; i++) {
        if (s->got[i].number == 2) continue;
        mw_settlement x = of(&s->got[i], MW_SETTLE_RETRY);
        D->begin(s->sub, x.tag, x.unit);
        x.hold = s->got[i].number == 0;
        x.delay_ms = 600;
        x.error = mw_text_new("boom", 4);
        settle_wait(s, x);
        mw_text_unref(x.error);
    }
    say("retried");
    for (;;) mw_loop_step(loop, 100);
}

/* Consumes and acks with a small window, saying each message; the argument is the lease. */
static void role_consume(mw_conn *c, const char *lease) {
    mw_source *s = subscribe_as(c, "work", "g", MW_ORDER_KEY, atoi(lease));
    s->room = 20;
    size_t acked = 0;
    say("up");
    for (size_t told = 0;;) {
        mw_loop_step(loop, 20);
        for (; told < s->count; told++) say("%d %s", s->got[told].number, s->got[told].key);
        ack_new(s, &acked);
    }
}

/* Takes what it is given and settles nothing until told by SIGUSR1 (blocked here, polled). */
static void role_hold(mw_conn *c, const char *lease) {
    mw_source *s = subscribe_as(c, "work", "g", MW_ORDER_KEY, atoi(lease));
    sigset_t set, pending;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    RUN_UNTIL(s->count == 5, 5000);
    for (size_t i = 0; i < 2; i++) D->begin(s->sub, s->got[i].tag, s->got[i].unit);
    say("holding");
    do {
        mw_loop_step(loop, 5);
        sigpending(&pending);
    } while (!sigismember(&pending, SIGUSR1));
    for (size_t i = 0; i < 5; i++) ack(s, i);
    RUN_UNTIL(s->settled >= 5, 5000);
    say("fenced %d", s->fenced_answers);
    for (;;) mw_loop_step(loop, 100);
}

/* Moves messages from work to done in atomic settlements until killed. */
static void role_move(mw_conn *c) {
    mw_source *s = subscribe(c, "work");
    s->room = 50;
    say("up");
    for (size_t i = 0;;) {
        for (; i < s->count; i++) {
            char body[16];
            snprintf(body, sizeof body, "%d", s->got[i].number);
            letter w = {"done", NULL, body};
            mw_publication *p = calloc(1, sizeof *p); /* lives until settled; this process is killed anyway */
            *p = (mw_publication){.channel = "done", .msg = message_of(&w)};
            mw_settlement x = of(&s->got[i], MW_SETTLE_ACK);
            x.publish = p;
            x.publish_count = 1;
            settle(s, x);
        }
        mw_loop_step(loop, 20);
    }
}

/* Settles at random until killed. */
static void role_chaos(mw_conn *c, const char *seed) {
    mw_source *s = subscribe_as(c, "work", "g", MW_ORDER_KEY, 1000);
    srand((unsigned)atoi(seed));
    s->room = 60;
    say("up");
    for (size_t i = 0;;) {
        for (; i < s->count; i++) {
            got *g = &s->got[i];
            mw_settlement x = of(g, MW_SETTLE_ACK);
            int dice = rand() % 8;
            x.lane = mw_hash64(g->key, strlen(g->key));
            x.delay_ms = rand() % 50;
            D->begin(s->sub, x.tag, x.unit);
            if (dice == 0) x.mark = rand() % 2 ? MW_MARK_HOLD : MW_MARK_NONE;
            if (dice == 1 || dice == 2) x.op = MW_SETTLE_RETRY;
            if (dice == 3) x.op = MW_SETTLE_PARK;
            if (dice == 4) x.op = MW_SETTLE_RELEASE;
            if (dice == 5) D->unpark(s->sub, x.lane);
            if (dice == 2) {
                x.hold = true;
                settle(s, x);
                x.hold = false;
                x.op = MW_SETTLE_ACK;
            }
            settle(s, x);
        }
        mw_loop_step(loop, 20);
    }
}

/* Publishes more than the small map of its parent holds. */
static void role_fill(mw_conn *c, mw_link *l) {
    static char body[1000];
    memset(body, '7', sizeof body);
    for (int i = 0; i < 3000; i++) {
        letter w = {"work", NULL, body, .size = sizeof body};
        mw_publication p = {.channel = "work", .msg = message_of(&w)};
        D->publish(c, &p, 1);
    }
    RUN_UNTIL(l->published == 3000, 10000);
    CHECK(l->refused == 0, "%s", l->error.text);
    say("filled");
    for (;;) mw_loop_step(loop, 100);
}

static void role_claim(mw_conn *c, mw_link *l) {
    mw_dedupe d = {.op = MW_DEDUPE_CLAIM, .key = "job", .key_len = 3, .ttl_ms = 60000};
    D->dedupe(c, &d, 1);
    RUN_UNTIL(l->claimed == 1, 5000);
    say("claimed %d", l->claim);
    for (;;) mw_loop_step(loop, 100);
}

static int run_role(const char *role, const char *argument) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    if (strcmp(role, "begin") == 0) role_begin(c);
    if (strcmp(role, "retry") == 0) role_retry(c);
    if (strcmp(role, "consume") == 0) role_consume(c, argument);
    if (strcmp(role, "hold") == 0) role_hold(c, argument);
    if (strcmp(role, "move") == 0) role_move(c);
    if (strcmp(role, "chaos") == 0) role_chaos(c, argument);
    if (strcmp(role, "fill") == 0) role_fill(c, &l);
    if (strcmp(role, "claim") == 0) role_claim(c, &l);
    return 1;
}

/* ---- cases: one process ---- */

static void test_many(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    send_many(c, &l, "work", 100000, 100);
    consume_all(s, 100000, 60000);
    int last[100];
    memset(last, -1, sizeof last);
    for (size_t i = 0; i < s->count; i++) {
        int key = atoi(s->got[i].key + 1);
        CHECK(s->got[i].number > last[key] && s->got[i].attempt == 1);
        last[key] = s->got[i].number;
    }
    mw_depth d = depth_of(s);
    CHECK(d.ready == 0 && d.delayed == 0 && d.unsettled == 0 && d.oldest_ms == 0);
    unsubscribe(s);
    D->close(c);
}

static void test_restart(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 100, 10);
    D->close(c);
    c = open_store(&l);
    int64_t began = now_ms();
    mw_source *s = subscribe(c, "work");
    s->room = 50;
    RUN_UNTIL(s->count >= 1, 1000);
    CHECK(now_ms() - began < 100, "first message after %d ms", (int)(now_ms() - began));
    RUN_UNTIL(s->count == 50, 1000);
    mw_depth d = depth_of(s);
    CHECK(d.ready == 50 && d.unsettled == 50 && d.oldest_ms > 0);
    for (size_t i = 0; i < 20; i++) ack(s, i);
    for (size_t i = 20; i < 50; i++) settle(s, of(&s->got[i], MW_SETTLE_RELEASE));
    D->pause(s->sub);
    RUN_UNTIL(s->settled == 50, 5000);
    run_for(50);
    CHECK(s->count == 50, "delivered while draining");
    unsubscribe(s);
    D->close(c);
    c = open_store(&l);
    s = subscribe(c, "work");
    RUN_UNTIL(s->count == 80, 5000);
    for (size_t i = 0; i < 80; i++) CHECK(s->got[i].attempt == 1);
    unsubscribe(s);
    D->close(c);
}

/* close finishes what was given to it, and answers all of it. */
static void test_close_answers(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_publication list[500];
    letter w = {"work", NULL, "1"};
    mw_message *m = message_of(&w);
    for (int i = 0; i < 500; i++) list[i] = (mw_publication){.channel = i == 7 ? "" : "work", .msg = m};
    for (int i = 0; i < 10; i++) D->publish(c, list, 500);
    D->browse(c, &(mw_browse){.channel = "work", .max = 10});
    D->close(c);
    mw_message_unref(m);
    CHECK(l.published == 5000 && l.refused == 10 && l.error.code == MW_EUSAGE && l.browsed_calls == 1);
    c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    s->room = 10000;
    RUN_UNTIL(s->count == 4990, 2000);
    D->unsubscribe(s->sub); /* and at once again: a name that was never joined */
    mw_source *brief = subscribe(c, "work");
    D->unsubscribe(brief->sub);
    RUN_UNTIL(s->closed && brief->closed, 2000);
    free_source(s);
    free_source(brief);
    D->close(c);
}

static void test_retry(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    send_many(c, &l, "work", 2, 2);
    RUN_UNTIL(s->count == 2, 1000);
    mw_settlement x = of(&s->got[0], MW_SETTLE_RETRY);
    x.delay_ms = 150;
    x.error = mw_text_new("first", 5);
    int64_t began = now_ms();
    settle_wait(s, x);
    mw_text_unref(x.error);
    CHECK(depth_of(s).delayed == 1);
    RUN_UNTIL(s->count == 3, 2000);
    CHECK(now_ms() - began >= 140 && now_ms() - began < 400);
    CHECK(s->got[2].attempt == 2 && s->got[2].tag == x.tag && strcmp(s->got[2].error, "first") == 0);
    x = of(&s->got[2], MW_SETTLE_RETRY);
    x.error = mw_text_new("second", 6);
    settle_wait(s, x);
    mw_text_unref(x.error);
    RUN_UNTIL(s->count == 4, 1000);
    CHECK(s->got[3].attempt == 3 && strcmp(s->got[3].error, "first") == 0);
    x = of(&s->got[1], MW_SETTLE_RETRY); /* held: stays with us */
    x.hold = true;
    x.delay_ms = 50;
    settle_wait(s, x);
    run_for(200);
    CHECK(s->count == 4 && s->errors == 0);
    ack(s, 1);
    ack(s, 3);
    RUN_UNTIL(s->settled == 5, 1000);
    CHECK(depth_of(s).ready == 0 && depth_of(s).delayed == 0);
    unsubscribe(s);
    D->close(c);
}

static void test_priority(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    s->room = 1;
    send_one(c, &l, (letter){"work", NULL, "1", .priority = 4});
    send_one(c, &l, (letter){"work", NULL, "2", .priority = 4});
    RUN_UNTIL(s->count == 1, 1000);
    send_one(c, &l, (letter){"work", NULL, "3", .priority = 9});
    send_one(c, &l, (letter){"work", NULL, "4", .priority = 1});
    send_one(c, &l, (letter){"work", NULL, "5", .priority = 9});
    static const int order[] = {1, 3, 5, 2, 4};
    for (size_t i = 0; i < 5; i++) {
        RUN_UNTIL(s->count == i + 1, 1000);
        CHECK(s->got[i].number == order[i], "%d at %zu", s->got[i].number, i);
        ack(s, i);
    }
    RUN_UNTIL(s->settled == 5, 1000);
    unsubscribe(s);
    D->close(c);
}

static void test_delay(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    int64_t began = now_ms();
    send_one(c, &l, (letter){"work", "k", "1", .delay = 400});
    send_one(c, &l, (letter){"work", "k", "2", .delay = 200});
    send_one(c, &l, (letter){"work", "k", "3"});
    RUN_UNTIL(s->count == 3, 2000);
    CHECK(now_ms() - began >= 390 && now_ms() - began < 700, "%d ms", (int)(now_ms() - began));
    CHECK(s->got[0].number == 3 && s->got[1].number == 2 && s->got[2].number == 1);
    CHECK(s->got[2].attempt == 1);
    send_one(c, &l, (letter){"later", NULL, "7", .delay = 300}); /* no group yet */
    mw_source *late = subscribe(c, "later");
    run_for(100);
    CHECK(late->count == 0);
    RUN_UNTIL(late->count == 1, 1000);
    unsubscribe(late);
    unsubscribe(s);
    D->close(c);
}

static void test_groups(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *a = subscribe_as(c, "work", "a", MW_ORDER_KEY, 10000);
    mw_source *b = subscribe_as(c, "work", "b", MW_ORDER_SOURCE, 10000);
    run_for(50);
    send_many(c, &l, "work", 100, 5);
    consume_all(a, 100, 5000);
    l.entries = 0;
    D->browse(c, &(mw_browse){.channel = "work", .max = 1000});
    RUN_UNTIL(l.browsed_calls == 1, 1000);
    CHECK(l.entries == 100, "b has not acked, but %zu are left", l.entries);
    consume_all(b, 100, 5000);
    for (int i = 0; i < 100; i++) CHECK(b->got[i].number == i && b->got[i].unit == 0);
    D->browse(c, &(mw_browse){.channel = "work", .max = 1000});
    RUN_UNTIL(l.browsed_calls == 2, 1000);
    CHECK(l.entries == 0, "%zu left", l.entries);
    mw_source *late = subscribe_as(c, "work", "late", MW_ORDER_KEY, 10000); /* nothing is left for it */
    send_many(c, &l, "work", 10, 5);
    RUN_UNTIL(a->count == 110 && b->count == 110 && late->count == 10, 2000);
    mw_error e;
    mw_subscription other = {.channel = "work", .group = "a", .order = MW_ORDER_SOURCE, .lease_ms = 1000};
    other.source = a;
    CHECK(D->subscribe(c, &other, &e) == NULL && e.code == MW_EUSAGE);
    unsubscribe(a);
    unsubscribe(late);
    a = subscribe_as(c, "work", "a", MW_ORDER_SOURCE, 10000); /* the order changed; nobody else is there */
    RUN_UNTIL(a->count == 10, 2000);
    for (int i = 0; i < 10; i++) CHECK(a->got[i].number == i && a->got[i].unit == 0);
    unsubscribe(a);
    unsubscribe(b);
    D->close(c);
}

static void test_late_group(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *a = subscribe_as(c, "work", "a", MW_ORDER_KEY, 10000);
    a->room = 40;
    send_many(c, &l, "work", 100, 5);
    RUN_UNTIL(a->count == 40, 1000);
    for (size_t i = 0; i < 40; i++) ack(a, i);
    RUN_UNTIL(a->settled == 40, 1000);
    mw_source *b = subscribe_as(c, "work", "b", MW_ORDER_KEY, 10000); /* gets the 60 that are left */
    consume_all(b, 60, 2000);
    a->room = 1000;
    D->resume(a->sub);
    RUN_UNTIL(a->count == 100, 1000);
    for (size_t i = 40; i < 100; i++) ack(a, i);
    RUN_UNTIL(a->settled == 100, 1000);
    D->browse(c, &(mw_browse){.channel = "work", .max = 1000});
    RUN_UNTIL(l.browsed_calls == 1, 1000);
    CHECK(l.entries == 0, "%zu rows were left behind", l.entries);
    unsubscribe(a);
    unsubscribe(b);
    D->close(c);
}

static void test_retention(void) {
    mw_link l = {0};
    mw_error e;
    mw_conn *c = open_store(&l);
    CHECK(D->declare(c, "work", &(mw_channel_options){.retain_count = 30}, &e) == 0);
    send_many(c, &l, "work", 50, 5);
    run_for(1200);
    browse(c, &l, 0);
    CHECK(l.entries == 30 && l.entry[0].number == 20, "no group: %zu", l.entries);
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(s->count == 30, 1000);
    send_many(c, &l, "work", 20, 5);
    run_for(1200);
    browse(c, &l, 0);
    CHECK(l.entries == 50, "unacked messages stay: %zu", l.entries);
    consume_all(s, 50, 1000);
    run_for(1200);
    browse(c, &l, 0);
    CHECK(l.entries == 30, "acked messages are kept by count: %zu", l.entries);
    CHECK(D->declare(c, "work", &(mw_channel_options){.retain_age_ms = 300, .retain_count = 25}, &e) == 0);
    run_for(1500);
    browse(c, &l, 0);
    CHECK(l.entries == 0, "older than the age: %zu", l.entries);
    send_many(c, &l, "work", 5, 5);
    RUN_UNTIL(s->count == 55, 1000);
    unsubscribe(s);
    D->close(c);
}

static void test_park(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    uint64_t lane = mw_hash64("k0", 2);
    send_many(c, &l, "work", 20, 2);
    RUN_UNTIL(s->count == 20, 1000);
    mw_settlement x = of(&s->got[0], MW_SETTLE_ACK); /* the first of k0 is dead: hold its key */
    x.lane = lane;
    x.mark = MW_MARK_HOLD;
    settle_wait(s, x);
    for (size_t i = 1; i < 20; i++) {
        x = of(&s->got[i], strcmp(s->got[i].key, "k0") == 0 ? MW_SETTLE_PARK : MW_SETTLE_ACK);
        x.lane = lane;
        settle(s, x);
    }
    RUN_UNTIL(s->settled == 20, 1000);
    CHECK(depth_of(s).parked == 9 && depth_of(s).ready == 0 && s->marks == 0);
    D->unpark(s->sub, lane);
    RUN_UNTIL(s->count == 29, 1000);
    for (size_t i = 20; i < 29; i++) {
        CHECK(s->got[i].number == (int)(i - 19) * 2 && s->got[i].attempt == 1);
        x = of(&s->got[i], MW_SETTLE_PARK);
        x.lane = lane;
        settle(s, x);
    }
    RUN_UNTIL(s->settled == 29, 1000);
    unsubscribe(s);
    D->close(c);
    c = open_store(&l); /* marks outlive a restart and come before the first delivery */
    s = subscribe(c, "work");
    RUN_UNTIL(s->marks == 1, 1000);
    CHECK(s->last_lane == lane && s->last_mark == MW_MARK_HOLD && s->count == 0);
    mw_link l2 = {0};
    mw_conn *other = open_store(&l2);
    D->release_key(other, "work", "g", lane);
    RUN_UNTIL(s->marks == 2 && s->count == 9, 1000);
    CHECK(s->last_mark == MW_MARK_NONE && s->got[0].number == 2 && s->got[8].number == 18);
    D->close(other);
    for (size_t i = 0; i < 9; i++) ack(s, i);
    RUN_UNTIL(s->settled == 9, 1000);
    unsubscribe(s);
    D->close(c);
}

static void test_mark_none_unparks(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    uint64_t lane = mw_hash64("k0", 2);
    send_many(c, &l, "work", 3000, 1);
    s->room = 5000;
    D->resume(s->sub);
    RUN_UNTIL(s->count == 3000, 2000);
    for (size_t i = 1; i < 3000; i++) {
        mw_settlement x = of(&s->got[i], MW_SETTLE_PARK);
        x.lane = lane;
        settle(s, x);
    }
    RUN_UNTIL(s->settled == 2999, 2000);
    mw_settlement x = of(&s->got[0], MW_SETTLE_ACK);
    x.lane = lane;
    x.mark = MW_MARK_NONE;
    settle_wait(s, x);
    RUN_UNTIL(s->count == 5999, 2000); /* more than the list of what came back holds: the scan goes back */
    for (size_t i = 3000; i < 5999; i++) CHECK(s->got[i].number == (int)i - 2999);
    unsubscribe(s);
    D->close(c);
}

static mw_claim claim(mw_conn *c, mw_link *l, const char *key, int64_t ttl) {
    int before = l->claimed;
    mw_dedupe d = {.op = MW_DEDUPE_CLAIM, .key = key, .key_len = strlen(key), .ttl_ms = ttl};
    D->dedupe(c, &d, 1);
    RUN_UNTIL(l->claimed == before + 1, 1000);
    return l->claim;
}

static void conclude(mw_conn *c, const char *key, mw_dedupe_op op, int64_t ttl) {
    mw_dedupe d = {.op = op, .key = key, .key_len = strlen(key), .ttl_ms = ttl};
    D->dedupe(c, &d, 1);
}

static void test_dedupe(void) {
    mw_link l = {0}, l2 = {0};
    mw_conn *c = open_store(&l), *other = open_store(&l2);
    char longest[2000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    CHECK(claim(c, &l, "a", 1000) == MW_CLAIM_YOURS);
    CHECK(claim(c, &l, "a", 1000) == MW_CLAIM_BUSY);
    CHECK(claim(other, &l2, "a", 1000) == MW_CLAIM_BUSY);
    conclude(other, "a", MW_DEDUPE_RELEASE, 0); /* not its claim */
    CHECK(claim(c, &l, "a", 1000) == MW_CLAIM_BUSY);
    conclude(c, "a", MW_DEDUPE_RELEASE, 0);
    CHECK(claim(other, &l2, "a", 1000) == MW_CLAIM_YOURS);
    conclude(other, "a", MW_DEDUPE_DONE, 700);
    CHECK(claim(c, &l, "a", 1000) == MW_CLAIM_SEEN);
    CHECK(claim(c, &l, "b", 100) == MW_CLAIM_YOURS);
    CHECK(claim(c, &l, longest, 1000) == MW_CLAIM_YOURS);
    CHECK(claim(c, &l, longest, 1000) == MW_CLAIM_BUSY);
    longest[1000] = 'y';
    CHECK(claim(c, &l, longest, 1000) == MW_CLAIM_YOURS);
    run_for(150);
    CHECK(claim(c, &l, "b", 100) == MW_CLAIM_YOURS); /* the lease ran out */
    run_for(1300);                                   /* swept */
    CHECK(claim(c, &l, "a", 1000) == MW_CLAIM_YOURS);
    D->close(other);
    D->close(c);
    c = open_store(&l);
    CHECK(claim(c, &l, "a", 1000) == MW_CLAIM_YOURS); /* its process has closed the store */
    D->close(c);
}

static void test_dead_claim(void) {
    mw_link l = {0};
    child other = start("claim", "");
    expect_line(&other, "claimed 0");
    mw_conn *c = open_store(&l);
    CHECK(claim(c, &l, "job", 60000) == MW_CLAIM_BUSY);
    end_child(&other, SIGKILL);
    CHECK(claim(c, &l, "job", 60000) == MW_CLAIM_YOURS);
    D->close(c);
}

static size_t remove_positions(mw_conn *c, mw_link *l, const uint64_t *positions, size_t count) {
    letter w = {"saved", NULL, "5"};
    mw_publication p = {.channel = "saved", .msg = message_of(&w)};
    int before = l->removed_calls;
    mw_position *list = as_positions(positions, count);
    D->remove(c,
              &(mw_removal){
                  .channel = "work", .positions = list, .count = count, .publish = &p, .publish_count = 1});
    RUN_UNTIL(l->removed_calls == before + 1, 1000);
    free(list);
    mw_message_unref(p.msg);
    return l->removed;
}

static void test_browse_remove(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    browse(c, &l, 0);
    CHECK(l.entries == 0);
    send_many(c, &l, "work", 20, 5);
    send_one(c, &l, (letter){"work", NULL, "20", .delay = 100000});
    browse(c, &l, 0);
    CHECK(l.entries == 21 && l.entry[0].number == 0 && l.entry[0].due == 0 && l.entry[20].due > 0);
    uint64_t newest = l.entry[20].position;
    browse(c, &l, l.entry[9].position);
    CHECK(l.entries == 11 && l.entry[0].number == 10 && l.last == newest);
    D->browse(c, &(mw_browse){.channel = "work", .newest = true});
    RUN_UNTIL(l.browsed_calls == 4, 1000);
    CHECK(l.entries == 0 && l.last == newest);
    uint64_t positions[] = {1, 2, 3, 999};
    CHECK(remove_positions(c, &l, positions, 4) == 3);
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(s->count == 17, 1000);
    CHECK(s->got[0].number == 3 && depth_of(s).delayed == 1);
    mw_settlement x = of(&s->got[0], MW_SETTLE_RETRY);
    x.delay_ms = 100000;
    settle_wait(s, x);
    x = of(&s->got[1], MW_SETTLE_PARK);
    x.lane = 7;
    settle_wait(s, x);
    browse(c, &l, 0);
    CHECK(l.entries == 18 && l.entry[0].due > 0);
    uint64_t more[] = {s->got[0].tag, s->got[1].tag, s->got[2].tag, newest};
    CHECK(remove_positions(c, &l, more, 4) == 4);
    mw_depth d = depth_of(s);
    CHECK(d.delayed == 0 && d.ready == 0 && d.unsettled == 15, "%d %d %d", (int)d.delayed, (int)d.ready,
          (int)d.unsettled);
    settle_wait(s, of(&s->got[2], MW_SETTLE_ACK)); /* removed while in flight: fine */
    CHECK(s->errors == 0);
    mw_source *saved = subscribe(c, "saved");
    RUN_UNTIL(saved->count == 2, 1000);
    unsubscribe(saved);
    unsubscribe(s);
    D->close(c);
}

static void test_large(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    size_t size = 10 << 20;
    char *body = malloc(size);
    memset(body, '7', size);
    s->bytes = 1000; /* one message always passes */
    for (int i = 0; i < 3; i++) CHECK(send_one(c, &l, (letter){"work", NULL, body, .size = size}).code == 0);
    RUN_UNTIL(s->count == 3, 5000);
    CHECK(s->got[0].size == size && s->got[2].size == size);
    free(body);
    unsubscribe(s);
    D->close(c);
}

/* ---- cases: groups ---- */

static void list_groups(mw_conn *c, mw_link *l, const char *channel) {
    int before = l->grouped_calls;
    D->groups(c, channel, NULL);
    RUN_UNTIL(l->grouped_calls == before + 1, 5000);
}

static mw_error remove_group(mw_conn *c, mw_link *l, const char *channel, const char *group, bool force) {
    int before = l->removed_calls;
    l->error = (mw_error){0};
    D->remove_group(c, channel, group, force, NULL);
    RUN_UNTIL(l->removed_calls == before + 1, 20000);
    return l->error;
}

/* A group that nobody uses any more holds messages in every way there is; another one wants some of them. */
static void test_remove_group(void) {
    enum { COUNT = 10000 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *kept = subscribe_as(c, "work", "kept", MW_ORDER_KEY, 10000);
    mw_source *old = subscribe_as(c, "work", "old", MW_ORDER_KEY, 10000);
    send_many(c, &l, "work", COUNT, 50);
    send_one(c, &l, (letter){"work", NULL, "7", .delay = 1000000});
    RUN_UNTIL(old->count == 1000 && kept->count == 1000, 10000);
    mw_settlement x = of(&old->got[0], MW_SETTLE_ACK);
    x.lane = 77;
    x.mark = MW_MARK_HOLD;
    settle_wait(old, x);
    x = of(&old->got[1], MW_SETTLE_PARK);
    x.lane = 77;
    settle_wait(old, x);
    x = of(&old->got[2], MW_SETTLE_RETRY);
    x.delay_ms = 1000000;
    x.error = mw_text_new("boom", 4);
    settle_wait(old, x);
    mw_text_unref(x.error);
    mw_error e = remove_group(c, &l, "work", "old", false);
    CHECK(e.code == MW_EUSAGE && strstr(e.text, "has 1 consumer"), "%s", e.text);
    unsubscribe(old);
    list_groups(c, &l, "work");
    CHECK(l.groups == 2 && strcmp(l.group[0].group, "kept") == 0 && strcmp(l.group[1].group, "old") == 0);
    CHECK(l.group[0].consumers == 1 && l.group[1].consumers == 0 && l.group[1].parked == 1);
    CHECK(l.group[1].delayed == 2 && l.group[1].ready == COUNT - 3, "%d", (int)l.group[1].ready);
    CHECK(remove_group(c, &l, "work", "old", false).code == 0);
    CHECK(l.removed == COUNT, "%zu", l.removed);
    e = remove_group(c, &l, "work", "old", false);
    CHECK(e.code == MW_EUSAGE && strstr(e.text, "has no group old"), "%s", e.text);
    CHECK(remove_group(c, &l, "nowhere", "old", false).code == MW_EUSAGE);
    list_groups(c, &l, NULL);
    CHECK(l.groups == 1 && strcmp(l.group[0].channel, "work") == 0);
    audit_store();
    consume_all(kept, COUNT, 20000);
    browse(c, &l, 0);
    CHECK(l.entries == 1, "%zu: the delayed one is left", l.entries);
    unsubscribe(kept);
    CHECK(remove_group(c, &l, "work", "kept", false).code == 0 && l.removed == 1);
    browse(c, &l, 0);
    CHECK(l.entries == 0);
    D->close(c);
}

/* A consumer that lives loses what it has, and begins as a new group. */
static void test_remove_live_group(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *other = subscribe_as(c, "work", "other", MW_ORDER_KEY, 10000), *s = subscribe(c, "work");
    send_many(c, &l, "work", 20, 5);
    RUN_UNTIL(s->count == 20 && other->count == 20, 5000);
    mw_settlement x = of(&s->got[0], MW_SETTLE_ACK);
    x.lane = 77;
    x.mark = MW_MARK_HOLD;
    settle_wait(s, x);
    CHECK(remove_group(c, &l, "work", "g", true).code == 0 && l.removed == 19);
    ack(s, 1);
    RUN_UNTIL(s->fenced_answers == 1, 5000);
    s->flying = 0;
    RUN_UNTIL(s->fences > 0 && s->count == 40, 5000);
    CHECK(s->last_lane == 77 && s->last_mark == MW_MARK_NONE);
    for (size_t i = 20; i < 40; i++) ack(s, i);
    for (size_t i = 0; i < 20; i++) ack(other, i);
    RUN_UNTIL(s->settled == 22 && other->settled == 20, 5000);
    CHECK(s->errors == 1 && other->errors == 0);
    browse(c, &l, 0);
    CHECK(l.entries == 0, "%zu", l.entries);
    unsubscribe(s);
    unsubscribe(other);
    D->close(c);
}

/* ---- cases: several processes ---- */

static void test_crash_attempts(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 10, 10);
    child other = start("begin", "");
    expect_line(&other, "begun");
    end_child(&other, SIGKILL);
    int64_t began = now_ms();
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(s->count == 10, 1000);
    CHECK(now_ms() - began < 200);
    for (int i = 0; i < 10; i++) {
        got *g = &s->got[i];
        bool was_begun = g->number < 3;
        CHECK(g->attempt == (was_begun ? 2 : 1), "message %d has attempt %u", g->number, g->attempt);
        CHECK(strcmp(g->error, was_begun ? "worker died while handling it" : "") == 0);
    }
    unsubscribe(s);
    D->close(c);
}

static void test_retry_across_crash(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 3, 3);
    child other = start("retry", "");
    expect_line(&other, "retried");
    end_child(&other, SIGKILL);
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(s->count == 2, 1000);
    RUN_UNTIL(s->count == 3, 2000);
    for (int i = 0; i < 3; i++) {
        got *g = &s->got[i];
        CHECK(g->attempt == (g->number == 2 ? 1 : 2));
        CHECK((g->not_before != 0) == (g->number == 0), "held ones come with their time");
        CHECK(strcmp(g->error, g->number == 2 ? "" : "boom") == 0);
    }
    CHECK(s->got[2].number == 1);
    unsubscribe(s);
    D->close(c);
}

/* Reads what a child said so far; counts messages, checks the order of each key. */
static int hear(child *c, int *times, int *last) {
    int heard = 0;
    char line[64];
    fcntl(c->out, F_SETFL, O_NONBLOCK);
    for (;;) {
        size_t n = 0;
        ssize_t r = 0;
        while (n < sizeof line - 1 && (r = read(c->out, line + n, 1)) == 1 && line[n] != '\n') n++;
        if (r != 1) return heard;
        line[n] = 0;
        int number, key;
        if (sscanf(line, "%d k%d", &number, &key) != 2) continue;
        times[number]++;
        if (last) {
            CHECK(number > last[key], "key %d: %d after %d", key, number, last[key]);
            last[key] = number;
        }
        heard++;
    }
}

static void test_sharing(void) {
    enum { TOTAL = 4000, KEYS = 40 };
    mw_link l = {0};
    static int last_a[KEYS], last_b[KEYS], times[TOTAL];
    memset(last_a, -1, sizeof last_a);
    memset(last_b, -1, sizeof last_b);
    child a = start("consume", "5000"), b = start("consume", "5000");
    expect_line(&a, "up");
    expect_line(&b, "up");
    mw_conn *c = open_store(&l);
    run_for(2500); /* until the slots are shared out */
    send_many(c, &l, "work", TOTAL / 2, KEYS);
    int from_a = 0, from_b = 0;
    RUN_UNTIL(
        (from_a += hear(&a, times, last_a), from_b += hear(&b, times, last_b), from_a + from_b >= TOTAL / 2),
        10000);
    CHECK(from_a > 200 && from_b > 200, "not shared: %d and %d", from_a, from_b);
    for (int i = 0; i < TOTAL / 2; i++) CHECK(times[i] == 1, "message %d came %d times", i, times[i]);
    run_for(300); /* what a has said is acked by then */
    end_child(&a, SIGKILL);
    memset(last_b, -1, sizeof last_b); /* b takes over keys of a */
    memset(times, 0, sizeof times);
    send_many(c, &l, "work", TOTAL / 2, KEYS);
    from_b = 0;
    RUN_UNTIL((from_b += hear(&b, times, last_b), from_b >= TOTAL / 2), 10000);
    end_child(&b, SIGKILL);
    D->close(c);
}

/* A second consumer comes while messages flow: nothing is lost, nothing comes twice. */
static void test_handover(void) {
    enum { ROUNDS = 40, EACH = 100, KEYS = 40 };
    mw_link l = {0};
    static int times[EACH];
    memset(times, 0, sizeof times);
    child a = start("consume", "5000"), b = {0};
    expect_line(&a, "up");
    mw_conn *c = open_store(&l);
    int from_a = 0, from_b = 0;
    for (int round = 0; round < ROUNDS; round++) {
        send_many(c, &l, "work", EACH, KEYS);
        if (round == 5) {
            b = start("consume", "5000");
            expect_line(&b, "up");
        }
        run_for(50);
        from_a += hear(&a, times, NULL);
        if (b.pid) from_b += hear(&b, times, NULL);
    }
    RUN_UNTIL(
        (from_a += hear(&a, times, NULL), from_b += hear(&b, times, NULL), from_a + from_b >= ROUNDS * EACH),
        10000);
    run_for(200);
    from_a += hear(&a, times, NULL);
    from_b += hear(&b, times, NULL);
    CHECK(from_b > 100, "nothing was handed over: %d", from_b);
    for (int i = 0; i < EACH; i++) CHECK(times[i] == ROUNDS, "message %d came %d times", i, times[i]);
    end_child(&a, SIGKILL);
    end_child(&b, SIGKILL);
    D->close(c);
}

static void test_fencing(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 5, 5);
    child other = start("hold", "600");
    expect_line(&other, "holding");
    kill(other.pid, SIGSTOP);
    mw_source *s = subscribe_as(c, "work", "g", MW_ORDER_KEY, 600);
    run_for(300);
    CHECK(s->count == 0, "taken before the lease ended");
    RUN_UNTIL(s->count == 5, 3000);
    int again = 0;
    for (int i = 0; i < 5; i++) again += s->got[i].attempt == 2;
    CHECK(again == 2, "what was begun counts: %d", again);
    kill(other.pid, SIGUSR1);
    kill(other.pid, SIGCONT);
    expect_line(&other, "fenced 5");
    for (size_t i = 0; i < 5; i++) ack(s, i);
    RUN_UNTIL(s->settled == 5, 1000);
    CHECK(s->errors == 0, "%s", s->error.text);
    end_child(&other, SIGKILL);
    unsubscribe(s);
    D->close(c);
}

/* Another process has a larger map than ours and fills it. */
static void test_resized(void) {
    mw_link l = {0};
    mw_conn *c = open_with("?size=4MB", &l);
    mw_source *s = subscribe(c, "work");
    run_for(50);
    child other = start("fill", "");
    expect_line(&other, "filled");
    consume_all(s, 3000, 10000);
    send_many(c, &l, "work", 10, 0);
    end_child(&other, SIGKILL);
    unsubscribe(s);
    D->close(c);
}

/* From publish in one process to delivery in another: told by a file, not by a poll. */
static void test_wake(void) {
    mw_link l = {0};
    child other = start("consume", "10000");
    expect_line(&other, "up");
    mw_conn *c = open_store(&l);
    run_for(300);
    int64_t began = now_ms();
    for (int i = 0; i < 20; i++) {
        send_one(c, &l, (letter){"work", "k1", "1"});
        expect_line(&other, "1 k1");
    }
    CHECK(now_ms() - began < 2000, "20 messages took %d ms", (int)(now_ms() - began));
    end_child(&other, SIGKILL);
    D->close(c);
}

static void test_atomic(void) {
    enum { TOTAL = 3000 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", TOTAL, 0);
    for (int round = 0; round < 12; round++) {
        child other = start("move", "");
        expect_line(&other, "up");
        usleep((useconds_t)(5000 + round * 7000));
        end_child(&other, SIGKILL);
    }
    mw_source *done = subscribe(c, "done"), *work = subscribe(c, "work");
    work->room = done->room = TOTAL;
    RUN_UNTIL(done->count + work->count >= TOTAL, 5000);
    run_for(200);
    static int seen[TOTAL];
    for (size_t i = 0; i < done->count; i++) seen[done->got[i].number]++;
    size_t moved = done->count;
    for (size_t i = 0; i < work->count; i++) seen[work->got[i].number]++;
    CHECK(moved > 0 && moved + work->count == TOTAL, "%zu + %zu", moved, work->count);
    for (int i = 0; i < TOTAL; i++) CHECK(seen[i] == 1, "message %d stands %d times", i, seen[i]);
    unsubscribe(done);
    unsubscribe(work);
    D->close(c);
}

/* Two consumers settle at random and are killed at random; what is left can be consumed to the end. */
static void test_chaos(void) {
    enum { KEYS = 20 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    for (int round = 0; round < 10; round++) {
        char seed[16];
        snprintf(seed, sizeof seed, "%d", round);
        child a = start("chaos", seed), b = start("chaos", seed);
        expect_line(&a, "up");
        send_many(c, &l, "work", 300, KEYS);
        run_for(round * 13);
        end_child(&a, SIGKILL);
        run_for(round * 17);
        end_child(&b, SIGKILL);
        audit_store();
    }
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(D->depth(s->sub, &(mw_depth){0}), 2000);
    size_t acked = 0;
    for (int64_t until = now_ms() + 10000; now_ms() < until;) {
        mw_depth d = depth_of(s);
        if (d.ready + d.delayed + d.unsettled == 0) break;
        for (int i = 0; i < KEYS; i++) {
            char key[16];
            D->unpark(s->sub, mw_hash64(key, (size_t)snprintf(key, sizeof key, "k%d", i)));
        }
        ack_new(s, &acked);
        run_for(20);
    }
    mw_depth d = depth_of(s);
    CHECK(d.ready + d.delayed + d.unsettled == 0, "%d ready, %d delayed", (int)d.ready, (int)d.delayed);
    browse(c, &l, 0);
    CHECK(l.entries == 0 && s->errors == 0);
    unsubscribe(s);
    D->close(c);
}

/* ---- bench ---- */

enum { BENCH_TOTAL = 200000, BENCH_BODY = 200, BENCH_BATCH = 1000 };

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void raw_pass(MDB_env *env, MDB_dbi rows, MDB_dbi index, bool put) {
    char body[BENCH_BODY];
    memset(body, 'x', sizeof body);
    for (uint64_t n = 0; n < BENCH_TOTAL;) {
        MDB_txn *txn;
        CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0);
        for (int i = 0; i < BENCH_BATCH; i++, n++) {
            uint64_t id = __builtin_bswap64(n);
            uint8_t due[18] = {0};
            memcpy(due + 10, &id, 8);
            MDB_val key = {8, &id}, value = {sizeof body, body}, due_key = {18, due}, nothing = {0, NULL};
            if (put) {
                CHECK(mdb_put(txn, rows, &key, &value, MDB_APPEND) == 0);
                CHECK(mdb_put(txn, index, &due_key, &nothing, MDB_APPEND) == 0);
            } else {
                CHECK(mdb_del(txn, index, &due_key, NULL) == 0 && mdb_del(txn, rows, &key, NULL) == 0);
            }
        }
        CHECK(mdb_txn_commit(txn) == 0);
    }
}

static double bench_raw(void) {
    char path[512];
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi rows, index;
    fresh_folder();
    CHECK(mkdir(folder, 0777) == 0);
    snprintf(path, sizeof path, "%s/raw.mdb", folder);
    CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 2) == 0);
    CHECK(mdb_env_set_mapsize(env, 4ul << 30) == 0 && mdb_env_open(env, path, MDB_NOSUBDIR, 0666) == 0);
    CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0 && mdb_dbi_open(txn, "rows", MDB_CREATE, &rows) == 0);
    CHECK(mdb_dbi_open(txn, "index", MDB_CREATE, &index) == 0 && mdb_txn_commit(txn) == 0);
    double began = seconds();
    raw_pass(env, rows, index, true);
    raw_pass(env, rows, index, false);
    double took = seconds() - began;
    mdb_env_close(env);
    return BENCH_TOTAL / took;
}

static void bench_publish(mw_conn *c, mw_link *l, mw_message *m) {
    mw_publication list[BENCH_BATCH];
    for (int i = 0; i < BENCH_BATCH; i++) list[i] = (mw_publication){.channel = "work", .msg = m};
    for (int sent = 0; sent < BENCH_TOTAL; sent += BENCH_BATCH) {
        while (sent - l->published >= 2 * BENCH_BATCH) mw_loop_step(loop, 10);
        D->publish(c, list, BENCH_BATCH);
    }
    RUN_UNTIL(l->published == BENCH_TOTAL, 60000);
}

static double bench_ours(double *publish, double *consume) {
    mw_link l = {0};
    char body[BENCH_BODY];
    memset(body, 'x', sizeof body);
    fresh_folder();
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    s->room = 0;
    run_for(20);
    letter w = {"work", "key", body, .size = sizeof body};
    mw_message *m = message_of(&w);
    double began = seconds();
    bench_publish(c, &l, m);
    double middle = seconds();
    s->room = 2 * BENCH_BATCH;
    D->resume(s->sub);
    for (size_t acked = 0; s->settled < BENCH_TOTAL;) {
        if (s->count - acked >= BENCH_BATCH || s->count == BENCH_TOTAL) ack_new(s, &acked);
        mw_loop_step(loop, 10);
    }
    double end = seconds();
    CHECK(s->errors == 0 && l.refused == 0);
    *publish = BENCH_TOTAL / (middle - began);
    *consume = BENCH_TOTAL / (end - middle);
    mw_message_unref(m);
    unsubscribe(s);
    D->close(c);
    return BENCH_TOTAL / (end - began);
}

/* Commits so far, to tell how large ours were: the writer takes what is there. */
static size_t commits_in(const char *name) {
    char path[512];
    MDB_env *env;
    MDB_envinfo info;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CHECK(mdb_env_create(&env) == 0 && mdb_env_open(env, path, MDB_NOSUBDIR | MDB_RDONLY, 0666) == 0);
    mdb_env_info(env, &info);
    mdb_env_close(env);
    return info.me_last_txnid;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void bench(void) {
    enum { ROUNDS = 7 };
    double ratio[ROUNDS];
    current_case = "bench";
    for (int i = 0; i < ROUNDS; i++) {
        double publish, consume, raw = bench_raw(), ours = bench_ours(&publish, &consume);
        ratio[i] = ours / raw;
        printf("raw LMDB %.0f/s, embedded %.0f/s (publish %.0f/s, consume + ack %.0f/s, %zu a commit), ratio "
               "%.2f\n",
               raw, ours, publish, consume, 2 * BENCH_TOTAL / commits_in("moonwire.mdb"), ratio[i]);
    }
    qsort(ratio, ROUNDS, sizeof *ratio, by_value);
    printf("median ratio %.2f\n", ratio[ROUNDS / 2]);
    remove_tree(folder);
}

/* ---- all of them ---- */

static const test_case CASES[] = {
    {"restart", test_restart},
    {"close answers", test_close_answers},
    {"retry", test_retry},
    {"priority", test_priority},
    {"delay", test_delay},
    {"groups", test_groups},
    {"late group", test_late_group},
    {"retention", test_retention},
    {"park", test_park},
    {"mark none unparks", test_mark_none_unparks},
    {"dedupe", test_dedupe},
    {"dead claim", test_dead_claim},
    {"browse remove", test_browse_remove},
    {"large", test_large},
    {"remove group", test_remove_group},
    {"remove live group", test_remove_live_group},
    {"crash attempts", test_crash_attempts},
    {"retry across crash", test_retry_across_crash},
    {"sharing", test_sharing},
    {"handover", test_handover},
    {"fencing", test_fencing},
    {"resized", test_resized},
    {"wake", test_wake},
    {"atomic", test_atomic},
    {"chaos", test_chaos},
    {"many", test_many},
};

int main(int argc, char **argv) {
    loop = mw_loop_new();
    if (argc == 5 && strcmp(argv[1], "--role") == 0) {
        current_case = argv[2];
        snprintf(folder, sizeof folder, "%s", argv[3]);
        return run_role(argv[2], argv[4]);
    }
    if (argc > 1 && strcmp(argv[1], "bench") == 0)
        bench();
    else
        run_cases(CASES, sizeof CASES / sizeof *CASES, argc > 1 ? argv[1] : NULL);
    mw_text_cache_clear();
    mw_loop_free(loop);
    return 0;
}
