/* embedded_lanes_test.c - the order of a key at the embedded broker while its messages are put back, parked
 * or unparked: above all between the moment something is asked for and the moment it stands in the file and
 * is known to. A child process keeps the file's write lock where a test needs that moment to last. */
#include <signal.h>
#include <sys/wait.h>

#include "embedded_host.h"

/* ---- the moment before a commit ---- */

typedef struct lock {
    pid_t pid;
} lock;

static int hold_lock(void) {
    char path[512];
    MDB_env *env;
    MDB_txn *txn;
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 20) == 0);
    CHECK(mdb_env_open(env, path, MDB_NOSUBDIR, 0666) == 0);
    CHECK(mdb_txn_begin(env, NULL, 0, &txn) == 0);
    CHECK(write(1, "!", 1) == 1);
    char until_closed;
    CHECK(read(0, &until_closed, 1) >= 0);
    mdb_txn_abort(txn);
    mdb_env_close(env);
    return 0;
}

static int to_child;

static lock lock_store(void) {
    int in[2], out[2];
    char ready;
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    lock l = {fork()};
    if (l.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl("/proc/self/exe", "embedded_lanes_test", "--lock", folder, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    CHECK(read(out[0], &ready, 1) == 1);
    close(out[0]);
    to_child = in[1];
    return l;
}

static void unlock_store(lock l) {
    int status;
    close(to_child);
    CHECK(waitpid(l.pid, &status, 0) == l.pid && status == 0);
}

/* ---- the moment after a commit: a deferred call that waits for it, right before a fetch ---- */

static mw_source *looked_at;

static void wait_until_unparked(mw_deferred *d) {
    (void)d;
    int64_t until = now_ms() + 5000;
    while (depth_of(looked_at).parked && now_ms() < until) usleep(500);
    CHECK(depth_of(looked_at).parked == 0);
}

/* ---- helpers ---- */

static uint64_t lane_of(const char *key) { return mw_hash64(key, strlen(key)); }

static void put_back(mw_source *s, size_t i) {
    D->put_back(s->sub, s->got[i].tag, s->got[i].unit, lane_of(s->got[i].key));
    s->flying--;
}

static void park(mw_source *s, size_t i) {
    mw_settlement x = of(&s->got[i], MW_SETTLE_PARK);
    x.lane = lane_of(s->got[i].key);
    settle(s, x);
}

/* From `first` on, those of the key are these numbers, one `step` after the other. */
static void expect_rising(mw_source *s, const char *key, size_t first, int from, int step, int count) {
    for (size_t i = first; i < s->count && count; i++) {
        if (strcmp(s->got[i].key, key) != 0) continue;
        CHECK(s->got[i].number == from, "%s: %d came when it was the turn of %d", key, s->got[i].number,
              from);
        from += step;
        count--;
    }
    CHECK(count == 0, "%s: %d did not come", key, count);
}

static size_t count_of(mw_source *s, const char *key, size_t first) {
    size_t n = 0;
    for (size_t i = first; i < s->count; i++) n += strcmp(s->got[i].key, key) == 0;
    return n;
}

static mw_source *with_room(mw_conn *c, size_t room) {
    mw_source *s = subscribe(c, "work");
    s->room = room;
    return s;
}

static void give_room(mw_source *s, size_t room) {
    s->room = room;
    D->resume(s->sub);
}

/* ---- parking ---- */

static void test_park_not_written(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 40, 1);
    mw_source *s = with_room(c, 20);
    RUN_UNTIL(s->count == 20, 2000);
    lock held = lock_store();
    ack(s, 0);
    for (size_t i = 1; i < 20; i++) park(s, i);
    give_room(s, 1000);
    run_for(100);
    CHECK(s->count == 20, "%d came while older ones were being parked", s->got[20].number);
    D->unpark(s->sub, lane_of("k0")); /* at once, as a pipeline may: neither is written by now */
    give_room(s, 1000);
    run_for(100);
    CHECK(s->count == 20, "%d came while older ones were being parked and unparked", s->got[20].number);
    unlock_store(held);
    RUN_UNTIL(s->count == 59, 2000);
    expect_rising(s, "k0", 20, 1, 1, 39);
    unsubscribe(s);
    D->close(c);
}

static void test_unpark_not_known(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 40, 1);
    mw_source *s = with_room(c, 20);
    RUN_UNTIL(s->count == 20, 2000);
    s->room = 0; /* the scan stays where it is */
    ack(s, 0);
    for (size_t i = 1; i < 20; i++) park(s, i);
    RUN_UNTIL(s->settled == 20, 2000);
    run_for(20);
    CHECK(s->count == 20);
    mw_deferred between = {0};
    looked_at = s;
    s->room = 1000;
    D->unpark(s->sub, lane_of("k0"));
    mw_defer(loop, &between, wait_until_unparked);
    D->resume(s->sub); /* looks when the rows are back, and the answer is not */
    RUN_UNTIL(s->count == 59, 2000);
    expect_rising(s, "k0", 20, 1, 1, 39);
    unsubscribe(s);
    D->close(c);
}

/* A replay ends well: its ack clears the mark and unparks. Newer ones than it were passed by long ago, more
 * come. */
static void test_replay_not_known(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 30, 1);
    mw_source *s = with_room(c, 10);
    RUN_UNTIL(s->count == 10, 2000);
    for (size_t i = 1; i < 10; i++) park(s, i);
    RUN_UNTIL(s->settled == 9, 2000);
    give_room(s, 1000);
    run_for(50);
    CHECK(s->count == 10 && depth_of(s).parked == 9);
    mw_settlement x = of(&s->got[0], MW_SETTLE_ACK);
    x.lane = lane_of("k0");
    x.mark = MW_MARK_NONE;
    mw_deferred between = {0};
    looked_at = s;
    settle(s, x);
    mw_defer(loop, &between, wait_until_unparked);
    D->resume(s->sub);
    send_many(c, &l, "work", 5, 1);
    RUN_UNTIL(s->count == 44, 2000);
    expect_rising(s, "k0", 10, 1, 1, 29);
    expect_rising(s, "k0", 39, 0, 1, 5);
    unsubscribe(s);
    D->close(c);
}

/* Somebody releases the key while one of it is on its way to be parked. */
static void test_release_while_parking(void) {
    mw_link l = {0}, l2 = {0};
    mw_conn *c = open_store(&l), *other = open_store(&l2);
    uint64_t lane = lane_of("k0");
    send_many(c, &l, "work", 30, 1);
    mw_source *s = with_room(c, 10);
    s->unparks = true;
    RUN_UNTIL(s->count == 10, 2000);
    mw_settlement x = of(&s->got[0], MW_SETTLE_ACK);
    x.lane = lane;
    x.mark = MW_MARK_HOLD;
    settle(s, x);
    for (size_t i = 1; i < 5; i++) park(s, i);
    RUN_UNTIL(s->settled == 5, 2000);
    lock held = lock_store();
    D->release_key(other, "work", "g", lane);
    run_for(20);
    for (size_t i = 5; i < 10; i++) park(s, i);
    unlock_store(held);
    give_room(s, 1000);
    RUN_UNTIL(s->count == 39, 2000);
    CHECK(s->marks == 1 && s->last_mark == MW_MARK_NONE);
    expect_rising(s, "k0", 10, 1, 1, 29);
    unsubscribe(s);
    D->close(other);
    D->close(c);
}

/* What waits behind parked ones does not come by way of another key, and does when its own goes on. */
static void test_two_keys_parked(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 40, 2);
    mw_source *s = with_room(c, 10);
    RUN_UNTIL(s->count == 10, 2000);
    for (size_t i = 0; i < 10; i++) park(s, i);
    RUN_UNTIL(s->settled == 10, 2000);
    give_room(s, 1000);
    run_for(50);
    CHECK(s->count == 10);
    D->unpark(s->sub, lane_of("k1"));
    RUN_UNTIL(s->count == 30, 2000);
    run_for(50);
    CHECK(s->count == 30);
    expect_rising(s, "k1", 10, 1, 2, 20);
    D->unpark(s->sub, lane_of("k0"));
    RUN_UNTIL(s->count == 50, 2000);
    expect_rising(s, "k0", 10, 0, 2, 20);
    unsubscribe(s);
    D->close(c);
}

/* Whoever does not own the lane cannot unpark it behind its owner's back. */
static void test_unpark_of_another(void) {
    mw_link l = {0}, l2 = {0};
    mw_conn *c = open_store(&l), *other = open_store(&l2);
    send_many(c, &l, "work", 20, 1);
    mw_source *s = with_room(c, 10);
    RUN_UNTIL(s->count == 10, 2000);
    for (size_t i = 1; i < 10; i++) park(s, i); /* the first stays: it keeps the slot here */
    RUN_UNTIL(s->settled == 9, 2000);
    mw_source *stranger = with_room(other, 100);
    run_for(100);
    D->unpark(stranger->sub, lane_of("k0"));
    give_room(s, 1000);
    run_for(100);
    CHECK(depth_of(s).parked == 9 && stranger->count == 0 && s->count == 10);
    unsubscribe(stranger);
    unsubscribe(s);
    D->close(other);
    D->close(c);
}

/* ---- long lanes ---- */

static void test_put_back(void) {
    enum { TOTAL = 3000, SENT = 600, KEPT_HERE = 50 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", TOTAL, 2);
    mw_source *s = with_room(c, SENT);
    RUN_UNTIL(s->count == SENT, 2000);
    for (size_t i = 0; i < SENT; i++) {
        if (i % 2) continue; /* k1 flows */
        if (i >= KEPT_HERE * 2) put_back(s, i);
    }
    s->room = 100000;
    RUN_UNTIL(count_of(s, "k1", 0) == TOTAL / 2, 5000); /* all of it, while k0 is held */
    run_for(50);
    CHECK(count_of(s, "k0", 0) == SENT / 2, "the core had enough of it");
    size_t first = s->count;
    for (int round = 0; round < 10; round++) {
        size_t before = s->count;
        D->go_on(s->sub, lane_of("k0"), 7);
        RUN_UNTIL(s->count == before + 7, 2000);
        run_for(10);
        CHECK(s->count == before + 7);
        for (size_t i = before; i < s->count; i++) CHECK(s->got[i].held == (i + 1 == s->count));
    }
    send_many(c, &l, "work", TOTAL, 2); /* more of it: numbers begin again */
    D->go_on(s->sub, lane_of("k0"), 100000);
    RUN_UNTIL(count_of(s, "k0", first) == TOTAL / 2 - KEPT_HERE + TOTAL / 2, 5000);
    expect_rising(s, "k0", first, KEPT_HERE * 2, 2, TOTAL / 2 - KEPT_HERE);
    CHECK(!s->got[s->count - 1].held);
    first = s->count; /* it has caught up, and goes with the others */
    send_many(c, &l, "work", 20, 2);
    RUN_UNTIL(s->count == first + 20, 2000);
    for (size_t i = first; i < s->count; i++) CHECK(s->got[i].number == (int)(i - first));
    unsubscribe(s);
    D->close(c);
}

/* Within a lane the higher priority comes first, held or not, and its own order is kept. */
static void test_put_back_priorities(void) {
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    char body[16];
    for (int i = 0; i < 60; i++) {
        snprintf(body, sizeof body, "%d", i);
        send_one(c, &l, (letter){"work", "k0", body, .priority = 1 + i % 3});
    }
    mw_source *s = with_room(c, 10);
    RUN_UNTIL(s->count == 10, 2000);
    for (size_t i = 5; i < 10; i++) put_back(s, i);
    for (int i = 60; i < 90; i++) {
        snprintf(body, sizeof body, "%d", i);
        send_one(c, &l, (letter){"work", "k0", body, .priority = 1 + i % 3});
    }
    give_room(s, 1000);
    run_for(50);
    CHECK(s->count == 10);
    while (s->count < 95) {
        size_t before = s->count;
        D->go_on(s->sub, lane_of("k0"), 11);
        RUN_UNTIL(s->count == before + 11 || s->count == 95, 2000);
    }
    for (size_t i = 11; i < 95; i++) {
        int a = s->got[i - 1].number, b = s->got[i].number;
        CHECK(a % 3 == b % 3 ? a < b : a % 3 > b % 3, "%d came before %d", a, b);
    }
    unsubscribe(s);
    D->close(c);
}

/* Held lanes and their slots go to another consumer, which begins where the first one ended. */
static void test_put_back_and_move(void) {
    enum { KEYS = 16, EACH = 40, KEPT_HERE = 5 };
    mw_link l = {0}, l2 = {0};
    mw_conn *c = open_store(&l), *other = open_store(&l2);
    send_many(c, &l, "work", KEYS * EACH, KEYS);
    mw_source *a = with_room(c, KEYS * EACH / 2);
    RUN_UNTIL(a->count == KEYS * EACH / 2, 2000);
    for (size_t i = KEYS * KEPT_HERE; i < a->count; i++) put_back(a, i);
    a->room = KEYS * EACH;
    mw_source *b = with_room(other, KEYS * EACH);
    run_for(1300); /* until the first one has seen the second */
    CHECK(b->count == 0 && a->count == KEYS * EACH / 2);
    for (size_t i = 0; i < KEYS * KEPT_HERE; i++) ack(a, i);
    size_t rest = KEYS * (EACH - KEPT_HERE), first = KEYS * EACH / 2;
    for (int64_t until = now_ms() + 10000; now_ms() < until && a->count - first + b->count < rest;) {
        for (int k = 0; k < KEYS; k++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", k);
            D->go_on(a->sub, lane_of(key), 3);
        }
        run_for(10);
    }
    CHECK(b->count > 0 && a->count - first + b->count == rest, "%zu and %zu", a->count - first, b->count);
    for (int k = 0; k < KEYS; k++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", k);
        bool moved = count_of(b, key, 0) > 0;
        CHECK(!moved || count_of(a, key, first) == 0, "%s is with both", key);
        expect_rising(moved ? b : a, key, moved ? 0 : first, KEPT_HERE * KEYS + k, KEYS, EACH - KEPT_HERE);
    }
    unsubscribe(b);
    unsubscribe(a);
    D->close(other);
    D->close(c);
}

/* More lanes than have a scan of their own. */
static void test_many_lanes(void) {
    enum { KEYS = 200, EACH = 10 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", KEYS * EACH, KEYS);
    mw_source *s = with_room(c, KEYS * EACH);
    RUN_UNTIL(s->count == KEYS * EACH, 5000);
    for (size_t i = KEYS * 2; i < s->count; i++) put_back(s, i);
    size_t first = s->count;
    run_for(50);
    CHECK(s->count == first);
    for (int k = 0; k < KEYS; k++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", k);
        D->go_on(s->sub, lane_of(key), 100);
    }
    RUN_UNTIL(s->count == first + KEYS * (EACH - 2), 5000);
    for (int k = 0; k < KEYS; k++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", k);
        expect_rising(s, key, first, 2 * KEYS + k, KEYS, EACH - 2);
    }
    unsubscribe(s);
    D->close(c);
}

/* ---- all of them ---- */

static const test_case CASES[] = {
    {"park not written", test_park_not_written},
    {"unpark not known", test_unpark_not_known},
    {"replay not known", test_replay_not_known},
    {"release while parking", test_release_while_parking},
    {"two keys parked", test_two_keys_parked},
    {"unpark of another", test_unpark_of_another},
    {"put back", test_put_back},
    {"put back priorities", test_put_back_priorities},
    {"put back and move", test_put_back_and_move},
    {"many lanes", test_many_lanes},
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--lock") == 0) {
        current_case = argv[1];
        snprintf(folder, sizeof folder, "%s", argv[2]);
        return hold_lock();
    }
    loop = mw_loop_new();
    run_cases(CASES, sizeof CASES / sizeof *CASES, argc > 1 ? argv[1] : NULL);
    mw_text_cache_clear();
    mw_loop_free(loop);
    return 0;
}
