/* embedded_host.h - what the tests of the embedded broker share: a small fake host on a real loop, messages,
 * settlements, an audit of the store's tables, and a runner of cases. For test programs of one file each, so
 * everything is static. */
#pragma once
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "core/driver.h"
#include "drivers/embedded/store/record.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* no program needs all of it */

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
    bool done, held;
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
    bool unparks; /* as a pipeline does, when a mark is gone */
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
                   .held = in[i].held,
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
    if (s->unparks && mark == MW_MARK_NONE) D->unpark(s->sub, lane);
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

static void browse(mw_conn *c, mw_link *l, uint64_t after) {
    int before = l->browsed_calls;
    D->browse(c, &(mw_browse){.channel = "work", .max = 1000, .after = {.low = after}});
    RUN_UNTIL(l->browsed_calls == before + 1, 1000);
}

/* Everything that stands in the channel, oldest first; returns how many there are. */
static size_t positions_in(mw_conn *c, mw_link *l, const char *channel, uint64_t *out, size_t most) {
    size_t count = 0;
    uint64_t after = 0;
    for (;;) {
        int before = l->browsed_calls;
        D->browse(c, &(mw_browse){.channel = channel, .after = {.low = after}, .max = 60});
        RUN_UNTIL(l->browsed_calls == before + 1, 5000);
        if (l->entries == 0) return count;
        for (size_t i = 0; i < l->entries && count < most; i++) out[count++] = l->entry[i].position;
        after = l->last;
    }
}

/* As the driver wants them; freed by the caller once it has answered. */
static mw_position *as_positions(const uint64_t *from, size_t count) {
    mw_position *to = calloc(count + 1, sizeof *to);
    CHECK(to);
    for (size_t i = 0; i < count; i++) to[i].low = from[i];
    return to;
}

static void remove_from(mw_conn *c, mw_link *l, const char *channel, const uint64_t *positions,
                        size_t count) {
    int before = l->removed_calls;
    mw_position *list = as_positions(positions, count);
    D->remove(c, &(mw_removal){.channel = channel, .positions = list, .count = count});
    RUN_UNTIL(l->removed_calls == before + 1, 5000);
    free(list);
    CHECK(l->removed == count, "%zu of %zu: %s", l->removed, count, l->error.text);
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

/* ---- running cases ---- */

typedef struct test_case {
    const char *name;
    void (*run)(void);
    bool damaged; /* leaves no store, or one that is not sound */
} test_case;

/* All of them, or those whose name contains `only`. */
static void run_cases(const test_case *cases, size_t count, const char *only) {
    for (size_t at = 0; at < count; at++) {
        if (only && !strstr(cases[at].name, only)) continue;
        current_case = cases[at].name;
        fresh_folder();
        int64_t began = now_ms();
        cases[at].run();
        if (!cases[at].damaged) audit_store();
        printf("ok %s (%d ms)\n", current_case, (int)(now_ms() - began));
        remove_tree(folder);
    }
}
