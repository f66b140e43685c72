/* embedded_store_test.c - drives the embedded broker through its driver struct, with a small fake host on a
 * real loop. Cases that need other processes start this program again in a role (fork alone would copy a
 * process with threads). Exits non-zero with the case and line that failed.
 *   embedded_store_test            all cases
 *   embedded_store_test NAME       the cases whose name contains NAME
 *   embedded_store_test bench      publish + consume + ack against raw LMDB */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "core/driver.h"
#include "drivers/embedded/record.h"

extern const mw_driver mw_driver_embedded;
static const mw_driver *const D = &mw_driver_embedded;

static const char *current_case = "";

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) fail(__LINE__, #condition, " " __VA_ARGS__);                                       \
    } while (0)

__attribute__((format(printf, 3, 4), noreturn)) static void fail(int line, const char *condition,
                                                                 const char *format, ...) {
    fprintf(stderr, "FAILED %s, line %d: %s", current_case, line, condition);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

/* ---- the fake host ---- */

enum { KEPT = 1 << 18 };

typedef struct got { /* a delivery as it came */
    uint64_t tag;
    uint32_t unit, attempt;
    int64_t not_before;
    int number; /* the body is a decimal number */
    char key[16], error[64];
    size_t size;
    uint64_t hash; /* of the body */
    bool done;
} got;

struct mw_link {
    int published, refused, claimed, removed_calls, browsed_calls;
    mw_claim claim;
    mw_error error;
    size_t removed;
    struct {
        uint64_t position;
        int64_t due;
        int number;
    } entry[64];
    size_t entries;
    uint64_t last;
    int state_calls, grouped_calls;
    struct {
        char channel[32], group[32];
        uint64_t ready, delayed, parked;
        uint32_t consumers;
    } group[8];
    size_t groups;
};

struct mw_source {
    mw_sub *sub;
    got *got;
    size_t count;
    size_t room, bytes, flying;
    int settled, fenced_answers, errors, fences, marks, closed;
    uint64_t last_lane;
    mw_mark last_mark;
    mw_error error;
};

static char HELD; /* the cookie of settlements that do not end their delivery */

static size_t on_room(mw_source *s, size_t *bytes) {
    *bytes = s->bytes;
    return s->flying < s->room ? s->room - s->flying : 0;
}

static void on_deliver(mw_source *s, const mw_incoming *in, size_t count) {
    for (size_t i = 0; i < count; i++) {
        CHECK(s->count < KEPT);
        mw_parts p;
        mw_message_parts(in[i].msg, &p);
        got *g = &s->got[s->count++];
        *g = (got){.tag = in[i].tag,
                   .unit = in[i].unit,
                   .attempt = in[i].attempt,
                   .not_before = in[i].not_before,
                   .size = p.body_len,
                   .hash = mw_hash64(p.body, p.body_len)};
        char number[16] = "";
        memcpy(number, p.body, p.body_len < 15 ? p.body_len : 15);
        g->number = atoi(number);
        memcpy(g->key, p.key, p.key_len < 15 ? p.key_len : 15);
        if (in[i].first_error) snprintf(g->error, sizeof g->error, "%.60s", in[i].first_error->data);
        mw_text_unref(in[i].first_error);
        mw_message_unref(in[i].msg);
        s->flying++;
    }
}

static void on_fence(mw_source *s, uint32_t unit) {
    (void)unit;
    s->fences++;
}

static void on_settled(mw_source *s, void *cookie, const mw_error *e) {
    s->settled++;
    if (cookie != &HELD) s->flying--;
    D->resume(s->sub);
    if (!e) return;
    s->errors++;
    s->error = *e;
    if (e->code == MW_EFENCED) s->fenced_answers++;
}

static void on_mark(mw_source *s, uint64_t lane, mw_mark mark) {
    s->marks++;
    s->last_lane = lane;
    s->last_mark = mark;
}

static void on_closed(mw_source *s) { s->closed++; }

static void on_published(mw_link *l, void *cookie, const mw_error *e) {
    (void)cookie;
    l->published++;
    if (!e) return;
    l->refused++;
    l->error = *e;
}

static void on_claimed(mw_link *l, void *cookie, mw_claim claim, const mw_error *e) {
    (void)cookie;
    l->claimed++;
    l->claim = claim;
    CHECK(!e, "%s", e ? e->text : "");
}

static void on_browsed(mw_link *l, void *cookie, const mw_entry *entries, size_t count, mw_position last,
                       const mw_error *e) {
    (void)cookie;
    CHECK(!e);
    l->browsed_calls++;
    l->entries = count;
    l->last = last.low;
    for (size_t i = 0; i < count && i < 64; i++) {
        mw_parts p;
        char number[16] = "";
        mw_message_parts(entries[i].msg, &p);
        memcpy(number, p.body, p.body_len < 15 ? p.body_len : 15);
        l->entry[i].position = entries[i].position.low;
        l->entry[i].due = entries[i].due_ms;
        l->entry[i].number = atoi(number);
    }
}

static void on_removed(mw_link *l, void *cookie, size_t count, const mw_error *e) {
    (void)cookie;
    l->removed_calls++;
    l->removed = count;
    if (e) l->error = *e;
}

static void on_grouped(mw_link *l, void *cookie, const mw_group_info *groups, size_t count,
                       const mw_error *e) {
    (void)cookie;
    CHECK(!e && count <= 8);
    l->grouped_calls++;
    l->groups = count;
    for (size_t i = 0; i < count; i++) {
        snprintf(l->group[i].channel, 32, "%s", groups[i].channel);
        snprintf(l->group[i].group, 32, "%s", groups[i].group);
        l->group[i].ready = groups[i].ready;
        l->group[i].delayed = groups[i].delayed;
        l->group[i].parked = groups[i].parked;
        l->group[i].consumers = groups[i].consumers;
    }
}

static void on_state(mw_link *l, bool up, const mw_error *why) {
    (void)up;
    l->state_calls++;
    if (why) l->error = *why;
}

static const mw_host HOST = {.room = on_room,
                             .deliver = on_deliver,
                             .fence = on_fence,
                             .settled = on_settled,
                             .mark = on_mark,
                             .closed = on_closed,
                             .published = on_published,
                             .claimed = on_claimed,
                             .browsed = on_browsed,
                             .removed = on_removed,
                             .grouped = on_grouped,
                             .state = on_state};

/* ---- helpers ---- */

static mw_loop *loop;
static char folder[256];

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#define RUN_UNTIL(condition, ms)                                                                             \
    do {                                                                                                     \
        int64_t until_ = now_ms() + (ms);                                                                    \
        while (!(condition) && now_ms() < until_) mw_loop_step(loop, 10);                                    \
        CHECK(condition, "after %d ms", (int)(ms));                                                          \
    } while (0)

static void run_for(int ms) {
    for (int64_t until = now_ms() + ms; now_ms() < until;) mw_loop_step(loop, 5);
}

static void remove_tree(const char *path) {
    char child[512];
    DIR *d = opendir(path);
    if (!d) {
        unlink(path);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        snprintf(child, sizeof child, "%s/%.200s", path, e->d_name);
        remove_tree(child);
    }
    closedir(d);
    rmdir(path);
}

static void fresh_folder(void) {
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/mw-embedded-test.%d", base ? base : "/tmp", (int)getpid());
    remove_tree(folder);
}

static mw_conn *try_open(const char *path, const char *options, mw_link *l, mw_error *e) {
    char text[1024];
    mw_url u;
    snprintf(text, sizeof text, "embedded:%s%s", path, options);
    CHECK(mw_url_parse(&u, text, e) == 0);
    mw_conn *c = D->open(loop, &u, l, &HOST, e);
    mw_url_free(&u);
    return c;
}

static mw_conn *open_with(const char *options, mw_link *l) {
    mw_error e = {0};
    mw_conn *c = try_open(folder, options, l, &e);
    CHECK(c, "%s", e.text);
    return c;
}

static mw_conn *open_store(mw_link *l) { return open_with("", l); }

static mw_source *new_source(void) {
    mw_source *s = calloc(1, sizeof *s);
    s->got = calloc(KEPT, sizeof *s->got);
    s->room = 1000;
    s->bytes = 64 << 20;
    return s;
}

static void free_source(mw_source *s) {
    free(s->got);
    free(s);
}

static mw_source *subscribe_as(mw_conn *c, const char *channel, const char *group, mw_order order,
                               int64_t lease) {
    mw_error e = {0};
    mw_source *s = new_source();
    mw_subscription want = {.channel = channel,
                            .group = group,
                            .order = order,
                            .from_start = true,
                            .lease_ms = lease,
                            .source = s};
    s->sub = D->subscribe(c, &want, &e);
    CHECK(s->sub, "%s", e.text);
    return s;
}

static mw_source *subscribe(mw_conn *c, const char *channel) {
    return subscribe_as(c, channel, "g", MW_ORDER_KEY, 10000);
}

static void unsubscribe(mw_source *s) {
    D->unsubscribe(s->sub);
    RUN_UNTIL(s->closed == 1, 5000);
    free_source(s);
}

typedef struct letter {
    const char *channel, *key, *body;
    size_t size; /* 0: the body's */
    int priority;
    int64_t delay;
} letter;

static mw_message *message_of(const letter *w) {
    mw_parts p = {.body = w->body,
                  .body_len = w->size ? w->size : strlen(w->body),
                  .key = w->key,
                  .key_len = w->key ? strlen(w->key) : 0,
                  .has_key = w->key != NULL,
                  .priority = (uint8_t)(w->priority ? w->priority : MW_PRIORITY_DEFAULT),
                  .time_ms = mw_loop_wall_ms(loop)};
    return mw_message_new(&p);
}

static mw_error send_one(mw_conn *c, mw_link *l, letter w) {
    mw_loop_now_update(loop); /* the loop's clock stands still between steps */
    mw_message *m = message_of(&w);
    mw_publication p = {.channel = w.channel, .msg = m, .delay_ms = w.delay};
    int before = l->published;
    l->error = (mw_error){0};
    D->publish(c, &p, 1);
    RUN_UNTIL(l->published == before + 1, 5000);
    mw_message_unref(m);
    return l->error;
}

/* Bodies "0".."count-1", keys "k0".."k<keys-1>" in turn; keys 0: none. */
static void send_many(mw_conn *c, mw_link *l, const char *channel, int count, int keys) {
    int sent = 0, before = l->published;
    while (sent < count) {
        mw_publication list[1000];
        int n = count - sent < 1000 ? count - sent : 1000;
        for (int i = 0; i < n; i++, sent++) {
            char body[16], key[16];
            snprintf(body, sizeof body, "%d", sent);
            snprintf(key, sizeof key, "k%d", keys ? sent % keys : 0);
            letter w = {channel, keys ? key : NULL, body};
            list[i] = (mw_publication){.channel = channel, .msg = message_of(&w)};
        }
        D->publish(c, list, (size_t)n);
        RUN_UNTIL(l->published == before + sent, 20000);
        for (int i = 0; i < n; i++) mw_message_unref(list[i].msg);
    }
    CHECK(l->refused == 0, "%s", l->error.text);
}

static void settle(mw_source *s, mw_settlement x) {
    if (x.op == MW_SETTLE_RETRY && x.hold) x.cookie = &HELD;
    D->settle(s->sub, &x, 1);
}

static void settle_wait(mw_source *s, mw_settlement x) {
    int before = s->settled;
    settle(s, x);
    RUN_UNTIL(s->settled == before + 1, 5000);
}

static mw_settlement of(const got *g, mw_settle_op op) {
    return (mw_settlement){.op = op, .tag = g->tag, .unit = g->unit, .attempt = g->attempt};
}

static void ack(mw_source *s, size_t i) { settle(s, of(&s->got[i], MW_SETTLE_ACK)); }

/* Acks everything delivered from *from on, in one call. */
static void ack_new(mw_source *s, size_t *from) {
    mw_settlement list[2048];
    while (*from < s->count) {
        size_t n = 0;
        for (; *from < s->count && n < 2048; ++*from) list[n++] = of(&s->got[*from], MW_SETTLE_ACK);
        D->settle(s->sub, list, n);
    }
}

static void consume_all(mw_source *s, size_t want, int ms) {
    size_t acked = 0;
    int before = s->settled;
    int64_t until = now_ms() + ms;
    while (s->count < want && now_ms() < until) {
        ack_new(s, &acked);
        mw_loop_step(loop, 10);
    }
    ack_new(s, &acked);
    CHECK(s->count == want, "%zu of %zu", s->count, want);
    RUN_UNTIL(s->settled - before >= (int)want, 5000);
    CHECK(s->errors == 0, "%s", s->error.text);
}

static mw_depth depth_of(mw_source *s) {
    mw_depth d;
    CHECK(D->depth(s->sub, &d) && d.known);
    return d;
}

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

/* ---- is the store sound? Run after each case: rows, references and counters must agree ---- */

typedef struct audit {
    MDB_txn *txn;
    MDB_dbi channels, groups, messages, pieces, refs, waiting[3];
    size_t pieces_used;
} audit;

/* Calls visit for each row whose key begins with the prefix; returns how many there are. */
static size_t each(audit *a, MDB_dbi table, const void *prefix, size_t len,
                   void (*visit)(audit *a, const MDB_val *key, void *to), void *to) {
    MDB_cursor *c;
    MDB_val want = {len, (void *)prefix}, key = want, value;
    size_t count = 0;
    CHECK(mdb_cursor_open(a->txn, table, &c) == 0);
    int rc = mdb_cursor_get(c, &key, &value, len ? MDB_SET_RANGE : MDB_FIRST);
    CHECK(rc == 0 || rc == MDB_NOTFOUND);
    for (; rc == 0 && mwe_has_prefix(&key, &want); rc = mdb_cursor_get(c, &key, &value, MDB_NEXT), count++)
        if (visit) visit(a, &key, to);
    mdb_cursor_close(c);
    return count;
}

static void count_wanted(audit *a, const MDB_val *key, void *to) {
    mwe_key k;
    MDB_val value;
    uint64_t seq = mwe_get64((const char *)key->mv_data + key->mv_size - 8);
    int rc = mdb_get(a->txn, a->messages, mwe_key_message(&k, mwe_get32(key->mv_data), seq), &value);
    CHECK(rc == 0, "message %d waits, but is not there", (int)seq);
    mw_map_put(to, seq, (char *)mw_map_get(to, seq) + 1);
}

static void audit_groups(audit *a, const mwe_channel_row *row, mw_map *wanted) {
    mwe_key prefix, k;
    MDB_cursor *c;
    MDB_val *channel = mwe_key_channel(&prefix, row->id), key = *channel, value;
    CHECK(mdb_cursor_open(a->txn, a->groups, &c) == 0);
    int rc = mdb_cursor_get(c, &key, &value, MDB_SET_RANGE);
    for (; rc == 0 && mwe_has_prefix(&key, channel); rc = mdb_cursor_get(c, &key, &value, MDB_NEXT)) {
        mwe_group_row g;
        CHECK(mwe_read_row(&value, &g, sizeof g));
        uint64_t want[3] = {g.ready, g.due, g.parked};
        mwe_key_group(&k, row->id, g.id);
        for (int i = 0; i < 3; i++) {
            size_t n = each(a, a->waiting[i], k.bytes, MWE_GROUP_KEY, count_wanted, wanted);
            CHECK(n == want[i], "table %d of group %u: %zu rows, counter %d", i, g.id, n, (int)want[i]);
        }
    }
    mdb_cursor_close(c);
}

typedef struct expectation {
    const mwe_channel_row *row;
    const mw_map *wanted;
} expectation;

static void add_size(audit *a, const MDB_val *key, void *to) {
    MDB_val value, copy = *key;
    CHECK(mdb_get(a->txn, a->pieces, &copy, &value) == 0 && value.mv_size <= 4096 - 32);
    *(size_t *)to += value.mv_size;
}

/* The row and its pieces make up the record, no more and no less. */
static void audit_pieces(audit *a, const MDB_val *key) {
    MDB_val value, copy = *key;
    mwe_record r;
    size_t size = 0;
    CHECK(mdb_get(a->txn, a->messages, &copy, &value) == 0 && mwe_record_head(&value, &r));
    a->pieces_used += each(a, a->pieces, key->mv_data, key->mv_size, add_size, &size);
    CHECK(value.mv_size + size == mwe_record_size(&r));
}

static void audit_message(audit *a, const MDB_val *key, void *to) {
    const expectation *e = to;
    MDB_val value, copy = *key;
    uint64_t seq = mwe_get64((const char *)key->mv_data + 4);
    uint32_t refs = e->row->groups && seq >= e->row->owned_from;
    if (mdb_get(a->txn, a->refs, &copy, &value) == 0) CHECK(mwe_read_row(&value, &refs, sizeof refs));
    size_t wanted = (size_t)mw_map_get(e->wanted, seq);
    CHECK(refs == wanted, "message %d of channel %u: %u references, wanted by %zu", (int)seq, e->row->id,
          refs, wanted);
    audit_pieces(a, key);
}

static void audit_channel(audit *a, const MDB_val *key, void *to) {
    (void)to;
    MDB_val value, copy = *key;
    mwe_channel_row row;
    mw_map wanted = {0};
    mwe_key k;
    CHECK(mdb_get(a->txn, a->channels, &copy, &value) == 0 && mwe_read_row(&value, &row, sizeof row));
    audit_groups(a, &row, &wanted);
    expectation e = {&row, &wanted};
    mwe_key_channel(&k, row.id);
    CHECK(each(a, a->messages, k.bytes, 4, audit_message, &e) == row.messages);
    CHECK(each(a, a->refs, k.bytes, 4, NULL, NULL) == row.refs);
    mw_map_free(&wanted);
}

static void audit_store(void) {
    char path[512];
    MDB_env *env;
    audit a;
    struct {
        const char *name;
        MDB_dbi *table;
    } tables[] = {{"channels", &a.channels}, {"groups", &a.groups},    {"messages", &a.messages},
                  {"refs", &a.refs},         {"ready", &a.waiting[0]}, {"due", &a.waiting[1]},
                  {"parked", &a.waiting[2]}, {"pieces", &a.pieces}};
    a.pieces_used = 0;
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 20) == 0);
    CHECK(mdb_env_set_mapsize(env, 1 << 20) == 0); /* LMDB takes what the file needs at least */
    /* no lock: a case may have the store open in this process, and closing LMDB's lock file twice loses it */
    CHECK(mdb_env_open(env, path, MDB_NOSUBDIR | MDB_RDONLY | MDB_NOLOCK, 0666) == 0);
    CHECK(mdb_txn_begin(env, NULL, MDB_RDONLY, &a.txn) == 0);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        CHECK(mdb_dbi_open(a.txn, tables[i].name, 0, tables[i].table) == 0);
    each(&a, a.channels, "", 0, audit_channel, NULL);
    MDB_stat stat;
    CHECK(mdb_stat(a.txn, a.pieces, &stat) == 0 && stat.ms_entries == a.pieces_used, "%zu pieces, %zu in use",
          stat.ms_entries, a.pieces_used);
    mdb_txn_abort(a.txn);
    mdb_env_close(env);
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

static void browse(mw_conn *c, mw_link *l, uint64_t after) {
    int before = l->browsed_calls;
    D->browse(c, &(mw_browse){.channel = "work", .max = 1000, .after = {.low = after}});
    RUN_UNTIL(l->browsed_calls == before + 1, 1000);
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

static size_t remove_positions(mw_conn *c, mw_link *l, const uint64_t *numbers, size_t count) {
    mw_position positions[8] = {0};
    for (size_t i = 0; i < count; i++) positions[i].low = numbers[i];
    letter w = {"saved", NULL, "5"};
    mw_publication p = {.channel = "saved", .msg = message_of(&w)};
    int before = l->removed_calls;
    D->remove(
        c, &(mw_removal){
               .channel = "work", .positions = positions, .count = count, .publish = &p, .publish_count = 1});
    RUN_UNTIL(l->removed_calls == before + 1, 1000);
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

/* Messages of every size around those at which a record is cut, and with keys and headers that are cut
 * themselves: delivered as they were, to a group that came first and to one that came late. */
static void test_pieces(void) {
    enum { MORE = 1 << 20, LONGEST = 3 << 20 };
    static const size_t sizes[] = {0,    1900, 4000, 4020, 4030,  4031,   4032,
                                   4033, 4064, 8090, 8100, 65536, LONGEST};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *a = subscribe_as(c, "work", "a", MW_ORDER_KEY, 10000);
    char *bytes = malloc(LONGEST);
    for (size_t i = 0; i < LONGEST; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    mw_headers headers = {0};
    mw_headers_add(&headers, "h", 1, bytes, MORE - 100);
    mw_publication list[COUNT * 2];
    for (size_t i = 0; i < COUNT * 2; i++) {
        bool large = i >= COUNT;
        mw_parts p = {.body = bytes, .body_len = sizes[i % COUNT], .priority = 4, .time_ms = 1};
        p.key = bytes, p.key_len = large ? MORE : 10, p.has_key = true;
        if (large) p.headers = headers.data, p.headers_len = headers.len;
        list[i] = (mw_publication){.channel = "work", .msg = mw_message_new(&p)};
    }
    D->publish(c, list, COUNT * 2);
    RUN_UNTIL(l.published == COUNT * 2, 10000);
    CHECK(l.refused == 0, "%s", l.error.text);
    for (size_t i = 0; i < COUNT * 2; i++) mw_message_unref(list[i].msg);
    mw_source *b = subscribe_as(c, "work", "b", MW_ORDER_KEY, 10000);
    RUN_UNTIL(a->count == COUNT * 2 && b->count == COUNT * 2, 10000);
    for (size_t i = 0; i < COUNT * 2; i++)
        for (int side = 0; side < 2; side++) {
            got *g = &(side ? b : a)->got[i];
            CHECK(g->size == sizes[i % COUNT] && g->hash == mw_hash64(bytes, g->size),
                  "message %zu: %zu bytes", i, g->size);
        }
    audit_store();
    size_t acked = 0;
    ack_new(a, &acked);
    acked = 0;
    ack_new(b, &acked);
    RUN_UNTIL(a->settled == COUNT * 2 && b->settled == COUNT * 2, 10000);
    browse(c, &l, 0);
    CHECK(l.entries == 0 && a->errors + b->errors == 0);
    mw_headers_free(&headers);
    free(bytes);
    unsubscribe(a);
    unsubscribe(b);
    D->close(c);
}

/* Publishes, 20 at a time, until the store refuses; *sent counts what it took. */
static void fill(mw_conn *c, mw_link *l, size_t size, int *sent) {
    enum { AT_ONCE = 20 };
    char *body = malloc(size);
    memset(body, '7', size);
    letter w = {"work", NULL, body, .size = size};
    mw_message *m = message_of(&w);
    for (int refused = l->refused; l->refused == refused;) {
        mw_publication list[AT_ONCE];
        int before = l->published;
        for (int i = 0; i < AT_ONCE; i++) list[i] = (mw_publication){.channel = "work", .msg = m};
        D->publish(c, list, AT_ONCE);
        RUN_UNTIL(l->published == before + AT_ONCE, 5000);
        *sent += AT_ONCE - (l->refused - refused);
    }
    mw_message_unref(m);
    free(body);
}

static void test_full(void) {
    static const char *const sizes[] = {"?size=4MB", "?size=8MB"};
    for (int round = 0; round < 4; round++) {
        mw_link l = {0};
        fresh_folder();
        mw_conn *c = open_with(sizes[round / 2], &l);
        mw_source *s = subscribe(c, "work");
        int sent = 0;
        size_t acked = 0;
        s->room = 100000;
        for (int again = 0; again < 3; again++) {
            int before = sent;
            fill(c, &l, round % 2 ? 5000 : 300, &sent);
            CHECK(l.error.code == MW_EFULL && l.error.retryable && strstr(l.error.text, "size="));
            CHECK(sent - before > 20, "round %d.%d: only %d fitted", round, again, sent - before);
            RUN_UNTIL(s->count == (size_t)sent, 5000);
            ack_new(s, &acked);
            RUN_UNTIL(s->settled == sent, 10000);
            CHECK(s->errors == 0, "%s", s->error.text);
        }
        unsubscribe(s);
        D->close(c);
    }
}

/* Everything that stands in the channel, oldest first; returns how many there are. */
static size_t positions_in(mw_conn *c, mw_link *l, const char *channel, mw_position *out, size_t most) {
    size_t count = 0;
    mw_position after = {0};
    for (;;) {
        int before = l->browsed_calls;
        D->browse(c, &(mw_browse){.channel = channel, .after = after, .max = 60});
        RUN_UNTIL(l->browsed_calls == before + 1, 5000);
        if (l->entries == 0) return count;
        for (size_t i = 0; i < l->entries && count < most; i++) out[count++].low = l->entry[i].position;
        after.low = l->last;
    }
}

static void remove_from(mw_conn *c, mw_link *l, const char *channel, const mw_position *positions,
                        size_t count) {
    int before = l->removed_calls;
    D->remove(c, &(mw_removal){.channel = channel, .positions = positions, .count = count});
    RUN_UNTIL(l->removed_calls == before + 1, 5000);
    CHECK(l->removed == count, "%zu of %zu: %s", l->removed, count, l->error.text);
}

/* What the last commit freed can be used two commits later; nobody else is there to make them. */
static void test_freed_at_last(void) {
    enum { SIZE = 400000 };
    static mw_position all[64];
    mw_link l = {0};
    mw_conn *c = open_with("?size=4MB", &l);
    char *body = malloc(SIZE);
    memset(body, '7', SIZE);
    for (int round = 0; round < 5; round++) {
        int sent = 0;
        fill(c, &l, SIZE, &sent);
        CHECK(sent >= 5, "round %d: only %d fitted", round, sent);
        size_t there = positions_in(c, &l, "work", all, 64);
        CHECK(there == (size_t)sent);
        remove_from(c, &l, "work", all, there);
        mw_error e = send_one(c, &l, (letter){"work", NULL, body, .size = SIZE});
        CHECK(e.code == 0, "round %d: empty, and yet %s", round, e.text);
        CHECK(positions_in(c, &l, "work", all, 64) == 1);
        remove_from(c, &l, "work", all, 1);
    }
    free(body);
    D->close(c);
}

/* Free pages lie scattered between live ones: a large message must not need them side by side. */
static void test_scattered(void) {
    enum { SMALL = 3000, LARGE = 400000, EVERY = 20 };
    static mw_position all[2000], gone[2000];
    mw_link l = {0};
    mw_conn *c = open_with("?size=4MB", &l);
    int sent = 0;
    fill(c, &l, SMALL, &sent);
    size_t there = positions_in(c, &l, "work", all, 2000), count = 0;
    CHECK(there == (size_t)sent && there > 500, "%zu", there);
    for (size_t i = 0; i < there; i++)
        if (i % EVERY) gone[count++] = all[i];
    remove_from(c, &l, "work", gone, count);
    for (int i = 0; i < 3; i++) CHECK(send_one(c, &l, (letter){"other", NULL, "1"}).code == 0);
    char *body = malloc(LARGE);
    memset(body, '7', LARGE);
    for (int i = 0; i < 4; i++) {
        mw_error e = send_one(c, &l, (letter){"large", NULL, body, .size = LARGE});
        CHECK(e.code == 0, "large message %d, with %zu pages free: %s", i, count, e.text);
    }
    mw_source *s = subscribe(c, "large");
    RUN_UNTIL(s->count == 4, 5000);
    for (size_t i = 0; i < 4; i++) CHECK(s->got[i].size == LARGE);
    consume_all(s, 4, 5000);
    unsubscribe(s);
    free(body);
    D->close(c);
}

/* Acks everything delivered so far, each with a publication of its size to `to`; shuffled as far as a window
 * of handlers would do it. */
static void move_on(mw_source *s, const char *to, char *body, size_t size) {
    letter w = {to, "k", body, .size = size};
    mw_message *m = message_of(&w);
    mw_publication p = {.channel = to, .msg = m};
    size_t count = s->count;
    for (size_t i = 0; i < count; i++) {
        size_t window = count - i < 200 ? count - i : 200, j = i + (size_t)rand() % window;
        got g = s->got[j];
        s->got[j] = s->got[i];
        s->got[i] = g;
    }
    for (size_t i = 0; i < count; i++) {
        int settled = s->settled;
        mw_settlement x = of(&s->got[i], MW_SETTLE_ACK);
        x.publish = &p;
        x.publish_count = 1;
        settle(s, x);
        if (i % 50 == 0) RUN_UNTIL(s->settled > settled, 10000);
    }
    RUN_UNTIL(s->settled == (int)count, 20000);
    mw_message_unref(m);
}

/* A full store whose messages are moved from one channel to another and back, all of them, again and again: a
 * settlement that frees as much as it takes goes through. Small messages share pages, which go when the last
 * of a page does: those are moved once. */
static void test_swap(void) {
    static const size_t sizes[] = {300, 1800, 3000, 5000, 100000, 400000};
    static mw_position all[10000];
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        mw_link l = {0};
        fresh_folder();
        mw_conn *c = open_with("?size=4MB", &l);
        mw_source *s = subscribe(c, "work");
        int sent = 0;
        s->room = 100000;
        fill(c, &l, sizes[n], &sent);
        char *body = malloc(sizes[n]);
        memset(body, '7', sizes[n]);
        RUN_UNTIL(s->count == (size_t)sent, 10000);
        for (int round = 0; round < (sizes[n] < 1900 ? 1 : 6); round++) {
            const char *to = round % 2 ? "work" : "done";
            mw_source *next = subscribe(c, to);
            next->room = 100000;
            move_on(s, to, body, sizes[n]);
            CHECK(s->errors == 0, "%zu bytes, round %d, %d of %d refused: %s", sizes[n], round, s->errors,
                  sent, s->error.text);
            unsubscribe(s);
            s = next;
            RUN_UNTIL(s->count == (size_t)sent, 10000);
        }
        CHECK(positions_in(c, &l, sizes[n] < 1900 ? "done" : "work", all, 10000) == (size_t)sent);
        consume_all(s, (size_t)sent, 10000);
        unsubscribe(s);
        free(body);
        D->close(c);
    }
}

/* Messages of all sizes come and go in any order in a store that is full most of the time, so that its free
 * pages lie everywhere: an ack is never refused, and in the end everything can be taken out. */
static void test_churn(void) {
    static const size_t sizes[] = {100, 100, 500, 2500, 3900, 9000, 70000, 400000, 1500000, 3000000};
    enum { ROUNDS = 1000, LARGEST = 3000000 };
    mw_link l = {0};
    mw_conn *c = open_with("?size=16MB", &l);
    mw_source *s = subscribe(c, "work");
    char *body = malloc(LARGEST);
    memset(body, '7', LARGEST);
    s->room = 100000;
    s->bytes = 1 << 30;
    size_t acked = 0;
    int refused = 0, sent = 0;
    srand(5);
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = sizes[(size_t)rand() % (sizeof sizes / sizeof *sizes)];
        mw_error e = send_one(c, &l, (letter){"work", NULL, body, .size = size});
        CHECK(e.code == 0 || e.code == MW_EFULL, "%s", e.text);
        sent += e.code == 0;
        refused += e.code != 0;
        RUN_UNTIL(s->count == (size_t)sent, 10000);
        if (e.code == 0) continue;                                           /* until it is full */
        for (int n = rand() % 20; n > 0 && acked < s->count; n--, acked++) { /* one of those that are left */
            size_t j = acked + (size_t)rand() % (s->count - acked);
            got g = s->got[j];
            s->got[j] = s->got[acked];
            s->got[acked] = g;
            ack(s, acked);
        }
        RUN_UNTIL(s->settled == (int)acked, 10000);
        CHECK(s->errors == 0, "round %d: %s", round, s->error.text);
    }
    CHECK(refused > 30 && sent > 300, "%d refused, %d taken", refused, sent);
    for (; acked < s->count; acked++) ack(s, acked);
    RUN_UNTIL(s->settled == sent, 20000);
    CHECK(s->errors == 0, "%s", s->error.text);
    browse(c, &l, 0);
    CHECK(l.entries == 0 && send_one(c, &l, (letter){"work", NULL, body, .size = LARGEST}).code == 0);
    free(body);
    unsubscribe(s);
    D->close(c);
}

static void take_disk(const char *disk, bool take) {
    char path[512], junk[4096] = "";
    snprintf(path, sizeof path, "%s/junk", disk);
    if (!take) {
        CHECK(unlink(path) == 0);
        return;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    while (write(fd, junk, sizeof junk) > 0) {
    }
    close(fd);
}

/* A disk of 6 MB: named by MW_TEST_SMALL_DISK, or a tmpfs in a mount namespace of our own, which goes with
 * this process. */
static const char *small_disk(void) {
    const char *given = getenv("MW_TEST_SMALL_DISK");
    static char place[] = "/tmp/mw-small-disk.XXXXXX";
    if (given) return given;
    if (geteuid() != 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return NULL;
    if (!mkdtemp(place) || mount("none", place, "tmpfs", 0, "size=6m")) return NULL;
    return place;
}

static void test_full_disk(void) {
    const char *disk = small_disk();
    if (!disk) {
        printf("SKIPPED full disk: only root can make one; or name one in MW_TEST_SMALL_DISK\n");
        return;
    }
    mw_link l = {0};
    snprintf(folder, sizeof folder, "%s/store", disk);
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    int sent = 0;
    size_t acked = 0;
    s->room = 100000;
    for (int again = 0; again < 3; again++) {
        int before = sent;
        fill(c, &l, 1000, &sent);
        CHECK(l.error.code == MW_EFULL && l.error.retryable && strstr(l.error.text, "disk"), "%s",
              l.error.text);
        CHECK(sent - before > 100, "only %d fitted", sent - before);
        RUN_UNTIL(s->count == (size_t)sent, 5000);
        ack_new(s, &acked);
        RUN_UNTIL(s->settled == sent, 10000);
        CHECK(s->errors == 0, "%s", s->error.text);
    }
    fill(c, &l, 1000, &sent);
    RUN_UNTIL(s->count == (size_t)sent, 5000);
    take_disk(disk, true); /* now somebody else takes what is left: acks fail, and work again later */
    ack_new(s, &acked);
    RUN_UNTIL(s->settled == sent, 10000);
    take_disk(disk, false);
    CHECK(s->errors == 0 || s->error.retryable, "%s", s->error.text);
    while (s->errors) {
        int failed = s->errors, before = s->settled;
        s->errors = 0;
        for (size_t i = s->count - (size_t)failed; i < s->count; i++) ack(s, i);
        RUN_UNTIL(s->settled == before + failed, 10000);
    }
    mw_depth d = depth_of(s);
    CHECK(d.ready == 0 && d.unsettled == 0, "%d %d", (int)d.ready, (int)d.unsettled);
    unsubscribe(s);
    D->close(c);
    if (!getenv("MW_TEST_SMALL_DISK")) {
        umount2(disk, MNT_DETACH);
        rmdir(disk);
    }
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

/* ---- cases: folders ---- */

static void refuse(const char *path, const char *word) {
    mw_link l = {0};
    mw_error e = {0};
    mw_conn *c = try_open(path, "", &l, &e);
    CHECK(!c && strstr(e.text, word), "\"%s\" should say \"%s\"", e.text, word);
}

static void write_file(const char *name, const void *data, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

static void test_folders(void) {
    char path[512], junk[20000];
    mw_link l = {0};
    for (size_t i = 0; i < sizeof junk; i++) junk[i] = (char)(i * 7 + 3);
    CHECK(mkdir(folder, 0777) == 0);
    write_file("notes.txt", "hello", 5);
    refuse(folder, "not a Moonwire store and not empty");
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    refuse(path, "notes.txt");
    snprintf(path, sizeof path, "%s/notes.txt/deeper", folder);
    refuse(path, "Not a directory");
    fresh_folder();
    CHECK(mkdir(folder, 0777) == 0);
    write_file("moonwire.mdb", junk, sizeof junk);
    refuse(folder, "not a Moonwire store");
    write_file("moonwire.mdb", junk, 10);
    refuse(folder, "not a Moonwire store");
    snprintf(path, sizeof path, "%s/a/b/c", folder);
    mw_error e = {0};
    mw_conn *c = try_open(path, "", &l, &e);
    CHECK(c, "%s", e.text);
    D->close(c);
    refuse("", "needs a folder");
}

static void test_truncated(void) {
    char path[512];
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 5000, 5);
    D->close(c);
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    struct stat whole, after;
    CHECK(stat(path, &whole) == 0);
    for (int keep = 90; keep >= 10; keep -= 40) {
        CHECK(truncate(path, whole.st_size * keep / 100) == 0 && stat(path, &whole) == 0);
        refuse(folder, "damaged");
        refuse(folder, "damaged");
        CHECK(stat(path, &after) == 0 && after.st_size == whole.st_size, "the file was changed");
    }
    CHECK(truncate(path, 4096 + 300) == 0);
    refuse(folder, "moonwire.mdb");
}

/* Each page in turn is zeroed, filled with noise, or swapped with another: the store is refused and left as
 * it is, or the page was not in use. */
static void test_damaged_pages(void) {
    enum { PAGE = 4096 };
    char path[512];
    static char body[3000], body2[20000];
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    memset(body, '7', sizeof body);
    memset(body2, '7', sizeof body2);
    send_many(c, &l, "work", 300, 5);
    for (int i = 0; i < 4; i++) {
        send_one(c, &l, (letter){"work", NULL, body, .size = sizeof body});
        send_one(c, &l, (letter){"work", NULL, body2, .size = sizeof body2});
    }
    RUN_UNTIL(s->count == 308, 5000);
    for (size_t i = 0; i < 100; i++) ack(s, i);
    RUN_UNTIL(s->settled == 100, 5000);
    unsubscribe(s);
    D->close(c);
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    int fd = open(path, O_RDWR | O_CLOEXEC), refused = 0, taken = 0;
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    size_t size = (size_t)st.st_size, pages = size / PAGE;
    char *sound = malloc(size), *found = malloc(size);
    CHECK(pread(fd, sound, size, 0) == (ssize_t)size);
    for (size_t page = 2; page < pages; page++)
        for (int how = 0; how < 3; how++) {
            char now[PAGE] = {0};
            if (how == 1) memcpy(now, sound + (page + 1 < pages ? page + 1 : 2) * PAGE, PAGE);
            for (int i = 0; how == 2 && i < PAGE; i++) now[i] = (char)rand();
            CHECK(pwrite(fd, sound, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) == 0);
            CHECK(pwrite(fd, now, PAGE, (off_t)(page * PAGE)) == PAGE);
            mw_error e = {0};
            c = try_open(folder, "", &l, &e);
            if (!c) {
                refused++;
                CHECK(e.code == MW_EFORMAT && strstr(e.text, "is damaged: page"), "%s", e.text);
                CHECK(pread(fd, found, size, 0) == (ssize_t)size);
                memcpy(found + page * PAGE, sound + page * PAGE, PAGE);
                CHECK(memcmp(found, sound, size) == 0, "page %zu: the file was changed", page);
                continue;
            }
            taken++;
            s = subscribe(c, "work");
            RUN_UNTIL(s->count >= 200, 5000);
            unsubscribe(s);
            D->close(c);
        }
    CHECK(refused > 60 && taken > 0, "%d refused, %d taken", refused, taken);
    CHECK(pwrite(fd, sound, size, 0) == (ssize_t)size);
    close(fd);
    free(sound);
    free(found);
}

static void put_row(const char *table, const void *name, size_t len, const void *data, size_t size) {
    char path[512];
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 20) == 0);
    CHECK(mdb_env_open(env, path, MDB_NOSUBDIR, 0666) == 0 && mdb_txn_begin(env, NULL, 0, &txn) == 0);
    MDB_val key = {len, (void *)name}, value = {size, (void *)data};
    CHECK(mdb_dbi_open(txn, table, MDB_CREATE, &dbi) == 0 && mdb_put(txn, dbi, &key, &value, 0) == 0);
    CHECK(mdb_txn_commit(txn) == 0);
    mdb_env_close(env);
}

static void test_formats(void) {
    mw_link l = {0};
    CHECK(mkdir(folder, 0777) == 0);
    put_row("somebody", "x", 1, "y", 1);
    refuse(folder, "another program's data");
    fresh_folder();
    mw_conn *c = open_store(&l);
    D->close(c);
    uint32_t newer = 99;
    put_row("meta", "format", 6, &newer, sizeof newer);
    refuse(folder, "newer Moonwire");
    put_row("meta", "format", 6, "?", 1);
    refuse(folder, "format number");
    put_row("meta", "magic", 5, "wrong", 5);
    refuse(folder, "not a Moonwire store");
}

/* A store as format 1 left it, with a large message in one row: it is read, and from then on has format 2. */
static void test_format_1(void) {
    enum { LARGE = 100000 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    run_for(50);
    send_many(c, &l, "work", 3, 3);
    unsubscribe(s);
    D->close(c);
    char *body = malloc(LARGE), *row = malloc(LARGE + 200);
    memset(body, '5', LARGE);
    mw_parts p = {.body = body, .body_len = LARGE, .priority = 4};
    mwe_record r = mwe_record_of(&p, 1, 0);
    mwe_record_write(row, &p, &r);
    mwe_key k;
    mwe_key_message(&k, 1, 2);
    put_row("messages", k.bytes, 12, row, mwe_record_size(&r));
    put_row("meta", "format", 6, &(uint32_t){1}, 4);
    c = open_store(&l);
    s = subscribe(c, "work");
    CHECK(send_one(c, &l, (letter){"work", NULL, body, .size = LARGE}).code == 0);
    RUN_UNTIL(s->count == 4, 5000);
    CHECK(s->got[1].size == LARGE && s->got[1].hash == mw_hash64(body, LARGE) && s->got[3].size == LARGE);
    consume_all(s, 4, 5000);
    unsubscribe(s);
    D->close(c);
    char path[512];
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi meta;
    MDB_val key = {6, "format"}, value;
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 20) == 0);
    CHECK(mdb_env_open(env, path, MDB_NOSUBDIR, 0666) == 0 &&
          mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0);
    CHECK(mdb_dbi_open(txn, "meta", 0, &meta) == 0 && mdb_get(txn, meta, &key, &value) == 0);
    uint32_t format = 0;
    CHECK(mwe_read_row(&value, &format, sizeof format) && format == 2);
    mdb_txn_abort(txn);
    mdb_env_close(env);
    free(body);
    free(row);
}

/* A piece is gone, one is too long, one belongs to nothing: such a message is passed by, the others flow. */
static void test_bad_pieces(void) {
    enum { LARGE = 50000 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    char *body = malloc(LARGE);
    memset(body, '5', LARGE);
    for (int i = 0; i < 4; i++) send_one(c, &l, (letter){"work", NULL, body, .size = LARGE});
    D->close(c);
    mwe_key k;
    mwe_key_piece(&k, 1, 1, 3);
    put_row("pieces", k.bytes, MWE_PIECE_KEY, "", 0);
    mwe_key_piece(&k, 1, 2, 12);
    put_row("pieces", k.bytes, MWE_PIECE_KEY, body, 4064);
    mwe_key_piece(&k, 1, 3, 2);
    k.bytes[MWE_PIECE_KEY] = 0;
    put_row("pieces", k.bytes, MWE_PIECE_KEY + 1, body, 10);
    mwe_key_piece(&k, 9, 1, 1);
    put_row("pieces", k.bytes, MWE_PIECE_KEY, body, 10);
    c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(s->count == 1, 5000);
    run_for(100);
    CHECK(s->count == 1 && s->got[0].tag == 4 && s->got[0].hash == mw_hash64(body, LARGE), "%zu", s->count);
    browse(c, &l, 0);
    CHECK(l.entries == 1 && l.last == 4);
    consume_all(s, 1, 5000);
    remove_from(c, &l, "work", (mw_position[]){{.low = 1}, {.low = 2}, {.low = 3}}, 3);
    free(body);
    unsubscribe(s);
    D->close(c);
}

/* Rows of wrong sizes everywhere: nothing may crash, sound messages still flow. */
static void test_garbage_rows(void) {
    static const char *const tables[] = {"messages", "pieces", "ready",     "due",
                                         "parked",   "owners", "consumers", "marks"};
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    send_many(c, &l, "work", 10, 2);
    RUN_UNTIL(s->count == 10, 1000);
    unsubscribe(s);
    D->close(c);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (size_t len = 9; len <= 26; len++)
            put_row(tables[i], "\0\0\0\1\0\0\0\1\5abcdefghijklmnopq", len, "x", len % 3);
    put_row("channels", "bad", 3, "x", 1);
    c = open_store(&l);
    s = subscribe(c, "work");
    RUN_UNTIL(s->count == 10, 1000);
    browse(c, &l, 0);
    CHECK(send_one(c, &l, (letter){"bad", NULL, "1"}).code == MW_EFORMAT);
    CHECK(send_one(c, &l, (letter){"work", NULL, "1"}).code == 0);
    mw_error e = {0};
    CHECK(D->declare(c, "bad", &(mw_channel_options){.retain_count = 3}, &e) == 0);
    mw_source *bad = subscribe(c, "bad");
    RUN_UNTIL(l.state_calls > 0, 1000);
    unsubscribe(bad);
    unsubscribe(s);
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

static const struct {
    const char *name;
    void (*run)(void);
    bool damaged; /* leaves no store, or one that is not sound */
} CASES[] = {
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
    {"pieces", test_pieces},
    {"remove group", test_remove_group},
    {"remove live group", test_remove_live_group},
    {"full", test_full},
    {"freed at last", test_freed_at_last},
    {"scattered", test_scattered},
    {"swap", test_swap},
    {"churn", test_churn},
    {"full disk", test_full_disk, true},
    {"folders", test_folders, true},
    {"truncated", test_truncated, true},
    {"damaged pages", test_damaged_pages, true},
    {"formats", test_formats, true},
    {"format 1", test_format_1},
    {"bad pieces", test_bad_pieces, true},
    {"garbage rows", test_garbage_rows, true},
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
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        bench();
    } else {
        for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
            if (argc > 1 && !strstr(CASES[i].name, argv[1])) continue;
            current_case = CASES[i].name;
            fresh_folder();
            int64_t began = now_ms();
            CASES[i].run();
            if (!CASES[i].damaged) audit_store();
            printf("ok %s (%d ms)\n", current_case, (int)(now_ms() - began));
            remove_tree(folder);
        }
    }
    mw_text_cache_clear();
    mw_loop_free(loop);
    return 0;
}
