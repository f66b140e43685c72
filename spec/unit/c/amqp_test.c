/* amqp_test.c - the RabbitMQ driver without a broker: tables, envelopes, tiers, places, the window. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "drivers/amqp/amqp.h"

static rmq_reader over(const mw_buf *b) {
    return (rmq_reader){(unsigned char *)b->data, (unsigned char *)b->data + b->len, false};
}

static void test_reader_ends(void) {
    static const unsigned char bytes[] = {5, 'a', 'b'};
    rmq_reader r = {bytes, bytes + sizeof bytes, false};
    rmq_str s = rmq_short(&r);
    CHECK(r.bad && s.len == 0);
    CHECK(rmq_u64(&r) == 0 && rmq_u8(&r) == 0); /* zeros from then on */
}

static void nest(mw_buf *b, int depth) {
    size_t mark = rmq_open(b);
    if (depth) {
        rmq_put_field(b, "t", 'F');
        nest(b, depth - 1);
    }
    rmq_close(b, mark);
}

static void test_depth(void) {
    for (int depth = RMQ_TABLE_DEPTH - 1; depth < RMQ_TABLE_DEPTH + 3; depth++) {
        mw_buf b = {0};
        nest(&b, depth);
        rmq_reader r = over(&b);
        CHECK(rmq_table_valid(rmq_table(&r)) == (depth <= RMQ_TABLE_DEPTH));
        mw_buf_free(&b);
    }
    mw_buf b = {0}; /* a length that points behind the end */
    rmq_put_field(&b, "t", 'F');
    rmq_put_u32(&b, 1000);
    CHECK(!rmq_table_valid(over(&b)));
    mw_buf_free(&b);
}

static void check_text(char type, uint64_t bits, int width, const char *expected) {
    mw_buf b = {0}, text = {0};
    rmq_value v;
    rmq_put_u8(&b, (uint8_t)type);
    if (type == 'D') rmq_put_u8(&b, 2);
    for (int i = width - 1; i >= 0; i--) rmq_put_u8(&b, (uint8_t)(bits >> (8 * i)));
    rmq_reader r = over(&b);
    CHECK(rmq_value_read(&r, &v));
    rmq_value_text(&v, &text);
    CHECK(text.len == strlen(expected) && memcmp(text.data ? text.data : "", expected, text.len) == 0);
    mw_buf_free(&b);
    mw_buf_free(&text);
}

static void test_values(void) {
    check_text('t', 1, 1, "true");
    check_text('b', 0xff, 1, "-1");
    check_text('B', 0xff, 1, "255");
    check_text('s', 0xfffe, 2, "-2");
    check_text('I', 0xffffffff, 4, "-1");
    check_text('i', 0xffffffff, 4, "4294967295");
    check_text('l', 1, 8, "1");
    check_text('d', 0x3ff8000000000000, 8, "1.5");
    check_text('T', 0, 8, "1970-01-01T00:00:00Z");
    check_text('T', UINT64_MAX, 8, "-1");
    check_text('D', 314, 4, "3.14");
    check_text('D', (uint32_t)-5, 4, "-0.05");
    check_text('V', 0, 0, "");
}

static void test_envelope(void) {
    mw_headers h = {0}, scratch = {0};
    mw_headers_add(&h, "correlation-id", 14, "c1", 2);
    mw_headers_add(&h, "reply-to", 8, "answers", 7);
    mw_headers_add(&h, "expiration", 10, "not a number", 12);
    mw_headers_add(&h, "x", 1, "a\0b", 3);
    mw_parts p = {.body = "body",
                  .body_len = 4,
                  .key = "k\0",
                  .key_len = 2,
                  .has_key = true,
                  .id = "id",
                  .id_len = 2,
                  .type = "text/plain",
                  .type_len = 10,
                  .headers = h.data,
                  .headers_len = h.len,
                  .priority = 7,
                  .time_ms = 1700000000123};
    rmq_stamp stamp = {.failures = 3, .first_error = mw_text_new("boom", 4)};
    mw_buf b = {0};
    rmq_envelope_write(&b, &p, &stamp);
    rmq_envelope e;
    uint64_t size;
    rmq_route route = {.exchange = {"ex", 2}, .key = {"key", 3}, .queue = "in"};
    CHECK(rmq_envelope_read(over(&b), &route, &scratch, &e, &size));
    CHECK(size == 4 && e.failures == 3 && e.first_error.len == 4 && e.has_id);
    CHECK(e.parts.has_key && e.parts.key_len == 2 && e.parts.time_ms == 1700000000123 &&
          e.parts.priority == 7);
    CHECK(e.reply_to.len == 7 && e.correlation.len == 2);
    mw_header found;
    CHECK(mw_headers_find(e.parts.headers, e.parts.headers_len, "x", &found) && found.value_len == 3);
    CHECK(mw_headers_find(e.parts.headers, e.parts.headers_len, "expiration", &found) &&
          found.value_len == 12);
    CHECK(mw_headers_find(e.parts.headers, e.parts.headers_len, "amqp-routing-key", &found));
    CHECK(!mw_headers_find(e.parts.headers, e.parts.headers_len, "mw-attempts", &found));
    for (size_t cut = 0; cut < b.len; cut++) { /* no prefix of it is read beyond its end */
        char *copy = malloc(cut ? cut : 1);
        memcpy(copy, b.data, cut);
        rmq_reader r = {(unsigned char *)copy, (unsigned char *)copy + cut, false};
        CHECK(!rmq_envelope_read(r, &route, &scratch, &e, &size) && e.invalid);
        mw_error why;
        CHECK(mw_message_check(&e.parts, &why) == 0); /* what is kept of it is a message */
        free(copy);
    }
    mw_buf_free(&b);
    mw_headers_free(&h);
    mw_headers_free(&scratch);
    mw_text_unref(stamp.first_error);
}

static void test_tiers(void) {
    static const int64_t usual[] = {100,  200,  300,   500,   1000,   2000,  3000,
                                    5000, 6000, 30000, 60000, 300000, 600000};
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) CHECK(rmq_tier(usual[i], true) == usual[i]);
    int tiers = 0;
    for (int64_t ms = 1, last = 0; ms < 1000000; ms++) {
        int64_t tier = rmq_tier(ms, true);
        CHECK(tier >= ms && (tier <= ms + ms / 3 + 10));
        tiers += tier != last;
        last = tier;
        tier = rmq_tier(ms, false);
        CHECK(tier >= ms && tier <= ms + ms / 100 + 10);
    }
    CHECK(tiers < 60); /* a queue each, at most */
    char name[300];
    rmq_tier_name(name, sizeof name, 500, -1, "2026-01-02.in");
    CHECK(strcmp(name, "mw.delay.500.2026-01-02.in") == 0);
    rmq_tier_name(name, sizeof name, 500, 1767398399999, "in"); /* the last moment of a day */
    CHECK(strcmp(name, "mw.delay.2026-01-02.500.in") == 0);
    rmq_tier_name(name, sizeof name, 500, 1767398400000, "in");
    CHECK(strcmp(name, "mw.delay.2026-01-03.500.in") == 0);
}

/* What is written is read again: the mark, what is done beyond it, and that it is not handed out twice. */
static void test_place(void) {
    rmq_place *p = rmq_place_new(), *q = rmq_place_new();
    uint64_t mark;
    mw_buf b = {0};
    CHECK(!rmq_place_known(p, &mark));
    for (uint64_t i = 100; i < 120; i++) CHECK(rmq_place_add(p, i));
    CHECK(!rmq_place_add(p, 119)); /* not above the last one */
    for (uint64_t i = 100; i < 105; i++) rmq_place_done(p, i);
    rmq_place_done(p, 107), rmq_place_done(p, 108), rmq_place_done(p, 119);
    rmq_place_put(p, true, &b);
    for (size_t cut = 0; cut < 13; cut++) {
        rmq_reader part = {(unsigned char *)b.data, (unsigned char *)b.data + cut, false};
        CHECK(!rmq_place_read(q, &part));
    }
    for (int round = 0; round < 2; round++) { /* once more before anything of it was delivered again */
        rmq_reader r = over(&b);
        CHECK(rmq_place_read(q, &r) && r.at == r.end);
        CHECK(rmq_place_known(q, &mark) && mark == 105 && rmq_place_clean(q) == !round);
        b.len = 0;
        rmq_place_put(q, false, &b);
    }
    for (uint64_t i = 105; i < 125; i++) CHECK(rmq_place_add(q, i) == !(i == 107 || i == 108 || i == 119));
    rmq_place_done(q, 105), rmq_place_done(q, 106);
    CHECK(rmq_place_known(q, &mark) && mark == 109);
    rmq_place_free(p);
    rmq_place_free(q);
    mw_buf_free(&b);
}

/* What the broker makes of the acks that were written: those it still waits for are marked in `unacked`. */
static void take_acks(rmq_sub *s, bool *unacked, uint64_t *lowest) {
    mw_buf *out = &s->line->out;
    rmq_reader r = over(out);
    while (r.at != r.end) {
        rmq_u8(&r), rmq_u16(&r), rmq_u32(&r);
        CHECK(rmq_u32(&r) == RMQ_ACK);
        uint64_t tag = rmq_u64(&r);
        bool multiple = rmq_u8(&r);
        CHECK(rmq_u8(&r) == RMQ_END && unacked[tag]);
        for (uint64_t i = multiple ? *lowest : tag; i <= tag; i++) {
            const rmq_entry *e = rmq_entry_of(s, i);
            CHECK(!e || e->state != RMQ_OURS);
            unacked[i] = false;
        }
        while (!unacked[*lowest] && *lowest < s->top) ++*lowest;
    }
    out->len = 0;
}

/* Deliveries that stay while many pass: the room does not grow with those, and no ack takes them along. */
static void test_window(void) {
    enum { COUNT = 400000, PREFETCH = 100, STAY = 7, EVERY = 50000 };
    rmq_line line = {0};
    rmq_sub s = {.prefetch = PREFETCH, .line = &line};
    bool *unacked = calloc(COUNT + 2, 1);
    uint64_t lowest = 1, random = 1, live[PREFETCH] = {0};
    for (uint64_t tag = 1; tag <= COUNT; tag++) {
        random = mw_hash64(&random, sizeof random);
        uint64_t *slot = &live[STAY + random % (PREFETCH - STAY)];
        if (*slot) rmq_acked(&s, *slot);
        if (random % 3 == 0) rmq_write_acks(&s);
        take_acks(&s, unacked, &lowest);
        *rmq_window_add(&s, tag) = (rmq_entry){.state = RMQ_OURS, .failures = (uint32_t)tag};
        take_acks(&s, unacked, &lowest);
        unacked[tag] = true;
        *slot = tag;
        if (tag % EVERY || tag / EVERY > STAY) continue;
        live[tag / EVERY - 1] = tag; /* it stays until the end */
        *slot = 0;
    }
    CHECK(s.window_room <= 4 * 2 * PREFETCH && s.aside.capacity <= 1024);
    for (int i = 0; i < PREFETCH; i++) {
        if (!live[i]) continue;
        CHECK(rmq_entry_of(&s, live[i]) && rmq_entry_of(&s, live[i])->failures == live[i]);
        rmq_acked(&s, live[i]);
    }
    rmq_write_acks(&s);
    take_acks(&s, unacked, &lowest);
    CHECK(lowest == COUNT + 1 && s.base == s.top && s.unsettled == 0 && s.aside.count == 0);
    *rmq_window_add(&s, COUNT + 1) = (rmq_entry){.state = RMQ_OURS};
    rmq_window_clear(&s);
    CHECK(!rmq_entry_of(&s, COUNT + 1));
    free(s.window);
    mw_buf_free(&s.done);
    mw_buf_free(&line.out);
    free(unacked);
}

int main(int argc, char **argv) {
    static const test TESTS[] = {{"reader", test_reader_ends}, {"depth", test_depth}, {"values", test_values},
                                 {"envelope", test_envelope},  {"tiers", test_tiers}, {"place", test_place},
                                 {"window", test_window},      {NULL, NULL}};
    int result = run_tests(TESTS, argc, argv);
    mw_text_cache_clear();
    return result;
}
