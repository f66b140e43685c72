/* kafka_marks_test.c - what a partition's consumer remembers, against a plain model: random work, commits,
 * crashes and takeovers. Nothing that a commit said is forgotten, nothing else is remembered. And metadata of
 * any bytes does no harm. */
#include <stdlib.h>

#include "drivers/kafka/consume/marks.h"
#include "check.h"

enum { OFFSETS = 400, LIMIT = 4096 };

typedef struct model {
    bool exists, added, done, begun;
    bool done_now; /* in this life: no commit has it yet */
    uint32_t attempts;
    int64_t due;
    const char *error;
} model;

static const char *const errors[] = {"boom", "stock service: connection reset", "", "\xff\x00 not text"};

static void fail_one(kafka_marks *m, model *o, uint64_t offset, int64_t now) {
    const char *error = errors[rnd(4)];
    mw_text *text = mw_text_new(error, strlen(error));
    o->attempts++;
    o->due = now + 1 + (int64_t)rnd(100000);
    if (!o->error) o->error = error;
    o->begun = false;
    kafka_marks_failed(m, offset, o->attempts, o->due, text);
    mw_text_unref(text);
}

static void work(kafka_marks *m, model *all, uint64_t *next, int64_t now, int steps) {
    for (int i = 0; i < steps; i++) {
        if (rnd(3) == 0 && *next < OFFSETS) {
            uint64_t offset = (*next)++;
            model *o = &all[offset];
            kafka_past past;
            if (!o->exists) continue;
            kafka_added added = kafka_marks_add(m, offset, &past);
            EQUAL(o->done ? KAFKA_DONE_BEFORE : KAFKA_NEW, added);
            if (added == KAFKA_NEW) {
                EQUAL(o->attempts, past.attempts);
                CHECK(!past.attempts || past.due_ms == o->due || past.due_ms == 0, "due");
                CHECK((past.error != NULL) == (o->error != NULL), "first error of %llu",
                      (unsigned long long)offset);
                if (past.error) CHECK(!strcmp(past.error->data, o->error), "%s", past.error->data);
            }
            o->added = true;
            continue;
        }
        uint64_t offset = rnd(*next + 1);
        model *o = offset < OFFSETS ? &all[offset] : NULL;
        if (!o || !o->added) continue;
        if (o->done_now && rnd(3) == 0) {
            kafka_marks_undone(m, offset);
            *o = (model){.exists = true, .added = true};
        }
        if (o->done) continue;
        switch (rnd(4)) {
        case 0:
            kafka_marks_begin(m, offset);
            o->begun = true;
            break;
        case 1: fail_one(m, o, offset, now); break;
        case 2:
            kafka_marks_release(m, offset);
            o->begun = false;
            break;
        default:
            kafka_marks_done(m, offset);
            o->done = o->done_now = true;
            o->begun = false;
        }
    }
}

static uint64_t expected_mark(const model *all, uint64_t from, uint64_t next) {
    while (from < next && (!all[from].exists || all[from].done)) from++;
    return from;
}

/* A commit, a crash, somebody else goes on: begun ones count as attempts. */
static void takeovers(void) {
    for (int round = 0; round < 300; round++) {
        static model all[OFFSETS];
        memset(all, 0, sizeof all);
        for (int i = 0; i < OFFSETS; i++) all[i].exists = rnd(10) > 0;
        uint64_t start = 0;
        mw_buf text = {0};
        for (int life = 0; life < 6; life++) {
            int64_t now = 1700000000000 + life * 1000;
            kafka_marks *m = kafka_marks_new(start);
            if (life)
                CHECK(kafka_marks_read(m, text.data, text.len) || !text.len, "the metadata is readable");
            uint64_t next = start;
            for (int i = 0; i < OFFSETS; i++) all[i].added = all[i].done_now = false;
            work(m, all, &next, now, 300 + (int)rnd(400));
            bool crowded;
            text.len = 0;
            kafka_left_out missing = kafka_marks_write(m, now, LIMIT, &text, &crowded);
            CHECK(text.len <= LIMIT, "%zu characters", text.len);
            CHECK(missing <= KAFKA_SHORT_ERRORS, "left out: %d", missing);
            uint64_t mark = kafka_marks_mark(m), wanted = expected_mark(all, start, next);
            /* gaps before the next one that is there may lie on either side of the mark */
            CHECK(expected_mark(all, mark, next) == wanted && mark <= wanted, "mark %llu, expected %llu",
                  (unsigned long long)mark, (unsigned long long)wanted);
            for (uint64_t o = 0; o < OFFSETS; o++) {
                bool says = kafka_marks_says_done(mark, text.data, text.len, o);
                if (all[o].exists) EQUAL(all[o].done, says);
                if (all[o].begun) all[o].attempts++;
                all[o].begun = false;
            }
            start = mark;
            kafka_marks_free(m);
        }
        mw_buf_free(&text);
    }
}

/* Too much to remember: the text stays within its limit, attempts are the last to go. */
static void full(void) {
    kafka_marks *m = kafka_marks_new(0);
    for (uint64_t o = 0; o < 6000; o++) {
        kafka_past past;
        kafka_marks_add(m, o, &past);
        if (o % 2) {
            kafka_marks_done(m, o);
        } else if (o % 20 == 0) {
            char error[300];
            memset(error, 'e', sizeof error);
            int n = snprintf(error, sizeof error, "error number %llu", (unsigned long long)o);
            error[n] = ' ';
            mw_text *text = mw_text_new(error, sizeof error);
            kafka_marks_failed(m, o, 3, 1700000060000, text);
            mw_text_unref(text);
        }
    }
    mw_buf text = {0};
    bool crowded;
    kafka_left_out missing = kafka_marks_write(m, 1700000000000, LIMIT, &text, &crowded);
    EQUAL(KAFKA_FEWER_DONE, missing);
    CHECK(crowded, "crowded");
    CHECK(text.len <= LIMIT && text.len > LIMIT / 3, "%zu characters", text.len);
    kafka_marks *other = kafka_marks_new(0);
    CHECK(kafka_marks_read(other, text.data, text.len), "readable");
    for (uint64_t o = 0; o < 6000; o += 20) {
        kafka_past past;
        EQUAL(KAFKA_NEW, kafka_marks_add(other, o, &past));
        EQUAL(3, past.attempts);
    }
    kafka_marks_free(other);
    kafka_marks_free(m);
    mw_buf_free(&text);
}

/* Commits of other programs, and damaged ones of ours. */
static void hostile(void) {
    kafka_marks *m = kafka_marks_new(10);
    kafka_past past;
    for (uint64_t o = 10; o < 60; o++) {
        kafka_marks_add(m, o, &past);
        if (o % 3 == 0) kafka_marks_done(m, o);
        if (o % 5 == 0) kafka_marks_begin(m, o);
    }
    mw_buf text = {0};
    bool crowded;
    kafka_marks_write(m, 1700000000000, LIMIT, &text, &crowded);
    kafka_marks_free(m);
    for (int i = 0; i < 200000; i++) {
        char copy[LIMIT];
        size_t len = rnd(4) ? text.len : rnd(text.len + 1);
        memcpy(copy, text.data, len);
        for (uint64_t k = rnd(4); k && len > 4; k--) copy[4 + rnd(len - 4)] = (char)rnd(256);
        for (uint64_t k = rnd(3); k && len > 4; k--) copy[4 + rnd(len - 4)] = "AZaz09-_"[rnd(8)];
        kafka_marks *other = kafka_marks_new(rnd(2) ? 10 : (1ull << 62) - 3);
        kafka_marks_read(other, copy, len);
        for (uint64_t o = 10; o < 14; o++) kafka_marks_add(other, o, &past);
        kafka_marks_free(other);
        kafka_marks_says_done(10, copy, len, 12);
    }
    kafka_marks *none = kafka_marks_new(5);
    CHECK(!kafka_marks_read(none, "written by somebody else", 24), "not ours");
    CHECK(!kafka_marks_read(none, "", 0), "empty");
    EQUAL(KAFKA_NEW, kafka_marks_add(none, 5, &past));
    kafka_marks_free(none);
    mw_buf_free(&text);
}

/* Single offsets marked as removed, in any order. */
static void removal(void) {
    for (int round = 0; round < 500; round++) {
        bool gone[100] = {false};
        kafka_marks *m = kafka_marks_new(0);
        for (int i = 0; i < 150; i++) {
            uint64_t o = rnd(100);
            gone[o] = true;
            kafka_marks_set_done(m, o);
            if (rnd(10)) continue;
            mw_buf text = {0}; /* another process goes on */
            bool crowded;
            kafka_marks_write(m, 0, LIMIT, &text, &crowded);
            kafka_marks *next = kafka_marks_new(kafka_marks_mark(m));
            kafka_marks_read_done(next, text.data, text.len);
            kafka_marks_free(m);
            mw_buf_free(&text);
            m = next;
        }
        for (uint64_t o = 0; o < 100; o++) EQUAL(gone[o], kafka_marks_is_done(m, o));
        kafka_marks_free(m);
    }
}

/* The end of a partition lies behind what was delivered: control records, compaction. */
static void skipping(void) {
    kafka_marks *m = kafka_marks_new(100);
    kafka_past past;
    kafka_marks_add(m, 105, &past);
    kafka_marks_skip(m, 120);
    EQUAL(100, kafka_marks_mark(m));
    kafka_marks_done(m, 105);
    EQUAL(120, kafka_marks_mark(m));
    kafka_marks_skip(m, 110);
    EQUAL(120, kafka_marks_next(m));
    EQUAL(KAFKA_OLD, kafka_marks_add(m, 119, &past));
    kafka_marks_skip(m, 130);
    EQUAL(130, kafka_marks_mark(m));
    kafka_marks_free(m);
}

static const test tests[] = {
    {"takeovers", takeovers}, {"full", full},         {"hostile", hostile},
    {"removal", removal},     {"skipping", skipping}, {NULL, NULL},
};

int main(int argc, char **argv) {
    int code = run_tests(tests, argc, argv);
    mw_text_cache_clear();
    return code;
}
