/* redis_test.c - the parts of the Redis driver that need no server: protocol, ids, fields, URLs, keys. */
#include <stdlib.h>

#include "check.h"
#include "drivers/redis/redis.h"

/* ---- the protocol ---- */

static mw_buf heard;
static int wanted_depth;

static void hear(void *owner, const mwr_unit *u, bool more) {
    (void)owner;
    for (uint32_t i = 0; i < u->node->span; i++) {
        size_t len;
        const char *text = mwr_text(u, &u->node[i], &len);
        switch (u->node[i].type) {
        case MWR_STATUS: mw_buf_puts(&heard, "+"); break;
        case MWR_ERROR: mw_buf_puts(&heard, "-"); break;
        case MWR_INTEGER: mw_buf_printf(&heard, ":%lld", (long long)u->node[i].integer); break;
        case MWR_BULK: mw_buf_puts(&heard, "$"); break;
        case MWR_NIL: mw_buf_puts(&heard, "~"); break;
        case MWR_ARRAY: mw_buf_printf(&heard, "*%u", u->node[i].count); break;
        }
        mw_buf_add(&heard, text, len);
        mw_buf_puts(&heard, " ");
    }
    mw_buf_puts(&heard, more ? "; " : ". ");
}

static int the_depth(void *owner) {
    (void)owner;
    return wanted_depth;
}

/* Feeds it so many bytes at a time; what was heard, or the error's text. */
static const char *parse(const char *bytes, size_t len, size_t step) {
    static char text[4096];
    mwr_parser p = {.unit = hear, .depth = the_depth};
    mw_error e = {0};
    size_t from = 0, need = 0;
    mwr_parser_reset(&p);
    heard.len = 0;
    for (size_t to = 0; to < len;) {
        to = to + step < len ? to + step : len;
        if (to - from < need && to < len) continue;
        need = 0;
        char *copy = malloc(to - from + 1); /* alone on the heap, where a sanitizer sees one byte too many */
        memcpy(copy, bytes + from, to - from);
        int64_t n = mwr_parse(&p, copy, to - from, &need, &e);
        free(copy);
        if (n < 0) break;
        from += (size_t)n;
    }
    mwr_parser_free(&p);
    if (*e.text)
        snprintf(text, sizeof text, "%s", e.text);
    else
        snprintf(text, sizeof text, "%.*s", (int)heard.len, heard.len ? heard.data : "");
    return text;
}

static void expect(const char *bytes, int depth, const char *expected) {
    size_t len = strlen(bytes);
    wanted_depth = depth;
    for (size_t step = 1; step <= len; step++) {
        const char *got = parse(bytes, len, step);
        CHECK(strcmp(got, expected) == 0, "step %zu: %s instead of %s", step, got, expected);
    }
}

static void test_values(void) {
    expect("+OK\r\n-ERR no\r\n:-12\r\n$3\r\na\nb\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n", 0,
           "+OK . -ERR no . :-12 . $a\nb . $ . ~ . ~ . *0 . ");
    expect("*2\r\n*2\r\n:1\r\n*1\r\n$1\r\nx\r\n+y\r\n:5\r\n", 0, "*2 *2 :1 *1 $x +y . :5 . ");
}

static void test_units(void) {
    const char *entries = "*1\r\n*2\r\n$2\r\nin\r\n*3\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n*"
                          "2\r\n$3\r\n1-2\r\n*0\r\n"
                          "*2\r\n$3\r\n1-3\r\n*-1\r\n";
    expect(entries, 3, "*2 $1-1 *2 $a $b ; *2 $1-2 *0 ; *2 $1-3 ~ . ");
    expect("*-1\r\n", 3, "~ . ");                       /* nothing came */
    expect("-NOGROUP gone\r\n", 3, "-NOGROUP gone . "); /* or an error */
    expect("*0\r\n", 1, "*0 . ");                       /* or an empty list */
    expect("*2\r\n:1\r\n:2\r\n", 1, ":1 ; :2 . ");
}

static void test_numbers(void) {
    expect(":9223372036854775807\r\n", 0, ":9223372036854775807 . ");
    expect(":-9223372036854775808\r\n", 0, ":-9223372036854775808 . ");
    expect(":1000000000000000000\r\n", 0, ":1000000000000000000 . ");
    expect(":0000000000000000007\r\n", 0, ":7 . ");
}

static void test_nonsense(void) {
    static const char *const BAD[] = {"HTTP/1.1 400\r\n",
                                      ":9223372036854775808\r\n",
                                      ":-9223372036854775809\r\n",
                                      ":9999999999999999999\r\n",
                                      ":18446744073709551616\r\n",
                                      ":-\r\n",
                                      "$1\r\nab\r\n",
                                      "$-2\r\n",
                                      "*-2\r\n",
                                      "$99999999999\r\n",
                                      "*99999999999\r\n",
                                      ":1x\r\n",
                                      "$\r\n",
                                      ":\r\n",
                                      "+a\rb\r\n",
                                      "*1000000000\r\n",
                                      "$999999999999999999999\r\n",
                                      "%1\r\n"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        for (size_t step = 1; step < 6; step++) {
            wanted_depth = 0;
            const char *got = parse(BAD[i], strlen(BAD[i]), step);
            CHECK(strstr(got, "does not speak") != NULL, "%s: %s", BAD[i], got);
        }
    char deep[64] = "";
    for (int i = 0; i < 10; i++) strcat(deep, "*1\r\n");
    CHECK(strstr(parse(deep, strlen(deep), 100), "too deep") != NULL);
    char *line = malloc(80000);
    memset(line, '+', 80000);
    CHECK(strstr(parse(line, 80000, 80000), "without an end") != NULL);
    free(line);
}

static void test_need(void) { /* a long text is not looked at again with every byte */
    mwr_parser p = {.unit = hear};
    mw_error e;
    size_t need = 0;
    mwr_parser_reset(&p);
    EQUAL(0, mwr_parse(&p, "$1000\r\nabc", 10, &need, &e));
    EQUAL(1009, need);
    mwr_parser_free(&p);
}

static void test_writing(void) {
    mw_buf b = {0};
    mwr_write_array(&b, 3);
    mwr_write_text(&b, "SET");
    mwr_write(&b, "a\0b", 3);
    mwr_write_number(&b, INT64_MIN);
    static const char EXPECTED[] = "*3\r\n$3\r\nSET\r\n$3\r\na\0b\r\n$20\r\n-9223372036854775808\r\n";
    CHECK(b.len == sizeof EXPECTED - 1 && memcmp(b.data, EXPECTED, b.len) == 0);
    mw_buf_free(&b);
}

/* ---- ids and keys ---- */

static void test_ids(void) {
    mwr_id id;
    char text[MWR_ID_TEXT];
    CHECK(mwr_id_read("1526919030474-55", 16, &id) && id.ms == 1526919030474 && id.seq == 55);
    CHECK(mwr_id_read("18446744073709551615-18446744073709551615", 41, &id) && id.ms == UINT64_MAX);
    mwr_id_print(id, text);
    CHECK(strcmp(text, "18446744073709551615-18446744073709551615") == 0);
    CHECK(!mwr_id_read("", 0, &id) && !mwr_id_read("12", 2, &id) && !mwr_id_read("1-2-3", 5, &id));
    CHECK(mwr_id_less((mwr_id){1, 9}, (mwr_id){2, 0}) && !mwr_id_less((mwr_id){2, 1}, (mwr_id){2, 1}));
}

static void expect_key(const char *stream, const char *group, const char *expected) {
    char *key = mwr_key_beside(stream, "tries", group);
    CHECK(strcmp(key, expected) == 0, "%s", key);
    free(key);
}

static void test_keys(void) {
    expect_key("orders", "p", "{orders}:mw:tries:p");
    expect_key("orders", "", "{orders}:mw:tries");
    expect_key("{eu}.orders", "p", "{eu}.orders:mw:tries:p"); /* the same slot of a cluster */
    EQUAL(12739, mwr_slot("123456789", 9)); /* as the specification of Redis Cluster has it */
    EQUAL(mwr_slot("user1000", 8), mwr_slot("{user1000}.following", 20));
    EQUAL(mwr_slot("{bar", 4), mwr_slot("foo{{bar}}zap", 13));
    CHECK(mwr_slot("foo{}{bar}", 10) != mwr_slot("bar", 3), "an empty tag is none");
    expect_key("{}orders", "p", "{{}orders}:mw:tries:p");
}

/* ---- messages as fields ---- */

static mwr_channel *channel_with(const char *body_field) {
    mwr_channel *c = calloc(1, sizeof *c + 8);
    if (!c) abort();
    if (body_field) c->body_field = strdup(body_field);
    return c;
}

static void free_channel(mwr_channel *c) {
    free(c->body_field);
    free(c);
}

static mw_message *got;
static const mwr_channel *reading;

static void read_fields(void *owner, const mwr_unit *u, bool more) {
    (void)owner, (void)more;
    got = mwr_entry_message(reading, u, u->node, (mwr_id){1700000000123, 4});
}

static mw_message *read_entry(const mwr_channel *c, const mw_buf *fields, size_t count) {
    mw_buf all = {0};
    mwr_parser p = {.unit = read_fields};
    mw_error e;
    size_t need;
    mwr_write_array(&all, count);
    mw_buf_add(&all, fields->data, fields->len);
    reading = c;
    got = NULL;
    mwr_parser_reset(&p);
    EQUAL(all.len, mwr_parse(&p, all.data, all.len, &need, &e));
    mwr_parser_free(&p);
    mw_buf_free(&all);
    return got;
}

static void test_mapping(void) {
    mw_headers h = {0};
    mw_headers_add(&h, "x", 1, "1", 1);
    mw_headers_add(&h, "\xff\0y", 3, "", 0);
    mw_parts p = {.body = "b\0dy",
                  .body_len = 4,
                  .key = "k",
                  .key_len = 1,
                  .has_key = true,
                  .id = "m1",
                  .id_len = 2,
                  .type = "text/plain",
                  .type_len = 10,
                  .headers = h.data,
                  .headers_len = h.len,
                  .priority = 9,
                  .time_ms = 1700000000000};
    for (int i = 0; i < 2; i++) {
        mwr_channel *c = channel_with(i ? "data" : NULL);
        mw_buf fields = {0};
        mw_parts q;
        mwr_entry_write(&fields, c, &p);
        mw_message *m = read_entry(c, &fields, mwr_entry_count(&p));
        mw_message_parts(m, &q);
        CHECK(q.body_len == 4 && memcmp(q.body, "b\0dy", 4) == 0 && q.has_key && q.key_len == 1);
        CHECK(q.id_len == 2 && q.type_len == 10 && q.priority == 9 && q.time_ms == 1700000000000);
        CHECK(q.headers_len == h.len && memcmp(q.headers, h.data, h.len) == 0);
        mw_message_unref(m);
        mw_buf_free(&fields);
        free_channel(c);
    }
    mw_headers_free(&h);
}

static void test_foreign(void) { /* written by somebody else */
    mwr_channel *c = channel_with("data");
    mw_buf fields = {0};
    mw_parts q;
    mw_header h;
    static const char *const TEXTS[] = {"data",    "{}",       "source", "shop", "",
                                        "no name", "priority", "77",     "time", "soon"};
    for (size_t i = 0; i < 10; i++) mwr_write_text(&fields, TEXTS[i]);
    mw_message *m = read_entry(c, &fields, 10);
    mw_message_parts(m, &q);
    CHECK(q.body_len == 2 && !q.has_key && q.priority == MW_PRIORITY_MAX && q.time_ms == 1700000000123);
    CHECK(q.id_len == 15 && memcmp(q.id, "1700000000123-4", 15) == 0);
    CHECK(mw_headers_find(q.headers, q.headers_len, "source", &h) && h.value_len == 4);
    mw_message_unref(m);
    mw_buf_free(&fields);
    free_channel(c);
}

/* ---- URLs ---- */

static const char *url_error(const char *text) {
    static mw_error e;
    mw_url u;
    mwr_target t = {0};
    e = (mw_error){0};
    if (mw_url_parse(&u, text, &e)) return e.text;
    mwr_target_from_url(&t, &u, &e);
    mwr_target_free(&t);
    mw_url_free(&u);
    return e.text;
}

static void test_urls(void) {
    mw_url u;
    mw_error e = {0};
    mwr_target t;
    CHECK(mw_url_parse(&u, "redis://ann:s%40crt@a:1,b:2/3?timeout=2&consumer=w", &e) == 0);
    CHECK(mwr_target_from_url(&t, &u, &e) == 0, "%s", e.text);
    CHECK(strcmp(t.user, "ann") == 0 && strcmp(t.password, "s@crt") == 0 && strcmp(t.hosts, "a:1,b:2") == 0);
    CHECK(t.db == 3 && t.timeout_ms == 2000 && strcmp(t.consumer, "w") == 0 && !t.tls.on);
    mwr_target_free(&t);
    mw_url_free(&u);
    CHECK(mw_url_parse(&u, "redis+unix:///run/redis.sock?db=2", &e) == 0);
    CHECK(mwr_target_from_url(&t, &u, &e) == 0 && strcmp(t.hosts, "/run/redis.sock") == 0 && t.db == 2);
    mwr_target_free(&t);
    mw_url_free(&u);
    CHECK(*url_error("redis://h") == 0);
    CHECK(*url_error("rediss://h?tls_name=x") == 0, "%s", url_error("rediss://h?tls_name=x"));
    CHECK(strstr(url_error("redis://h?tiemout=2"), "did you mean \"timeout\"") != NULL);
    CHECK(strstr(url_error("redis://h/name"), "the number of the database") != NULL);
    CHECK(strstr(url_error("redis://h/1?db=2"), "two databases") != NULL);
    CHECK(strstr(url_error("redis://h?timeout=0"), "a whole number from 1") != NULL);
    CHECK(strstr(url_error("redis://h?max_message=513"), "a whole number from 1") != NULL);
    CHECK(strstr(url_error("redis://h?ca=/x"), "ca") != NULL);
    CHECK(strstr(url_error("redis+unix://"), "path of a socket") != NULL);
    CHECK(strstr(url_error("redis://h?consumer=a%20b"), "white space") != NULL);
}

static void test_errors(void) {
    static const struct {
        const char *text;
        bool retryable;
    } CASES[] = {
        {"OOM command not allowed", true}, {"READONLY You can't write", true}, {"LOADING Redis is", true},
        {"WRONGTYPE Operation", false},    {"ERR syntax error", false},        {"MOVED 1 h:1", true},
        {"CROSSSLOT Keys in", true},       {"NOPERM this user", true},         {"MISCONF Redis", true}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        mw_error e;
        mwr_error_of(CASES[i].text, strlen(CASES[i].text), &e);
        CHECK(e.retryable == CASES[i].retryable, "%s", CASES[i].text);
        CHECK(strstr(e.text, CASES[i].text) != NULL);
    }
}

int main(int argc, char **argv) {
    static const test TESTS[] = {{"values", test_values},
                                 {"numbers", test_numbers},
                                 {"units", test_units},
                                 {"nonsense", test_nonsense},
                                 {"need", test_need},
                                 {"writing", test_writing},
                                 {"ids", test_ids},
                                 {"keys", test_keys},
                                 {"mapping", test_mapping},
                                 {"foreign", test_foreign},
                                 {"urls", test_urls},
                                 {"errors", test_errors},
                                 {NULL, NULL}};
    int result = run_tests(TESTS, argc, argv);
    mw_buf_free(&heard);
    return result;
}
