/* http_test.c - runtime/http against a peer of its own: a small HTTP server in threads of this program, on
 * 127.0.0.1 and a free port, that answers well, badly, slowly or not at all, by path. TLS is `openssl
 * s_server`. Build: gcc <flags of CMakeLists.txt> -Iruntime spec/unit/c/http_test.c runtime/http/[a-z]*.c
 * runtime/base/[a-z]*.c -lcurl -lev -lm -ldl -lpthread */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "loop/loop.h"
#include "http/http.h"

static int failures, checks;
static double slow = 1; /* MW_TEST_SLOW: by how much all takes longer, as under valgrind */
static const char *test_name, *test_detail = "";
#define CHECK(ok, ...)                                                                                       \
    do {                                                                                                     \
        checks++;                                                                                            \
        if (!(ok)) {                                                                                         \
            failures++;                                                                                      \
            fprintf(stderr, "%s:%d: %s %s: %s: ", __FILE__, __LINE__, test_name, test_detail, #ok);          \
            fprintf(stderr, " " __VA_ARGS__);                                                                \
            fputc('\n', stderr);                                                                             \
        }                                                                                                    \
    } while (0)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* ---- a resolver that takes its time: found before libc's by libcurl's threads ---- */

static atomic_int slow_lookups;
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    if (node && strcmp(node, "slow.invalid") == 0) {
        slow_lookups++;
        nap(1500);
        slow_lookups--;
        return EAI_NONAME;
    }
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(node, service, hints, out);
}

/* ---- the peer ---- */

static int server_fd, server_port;
static atomic_int connections, open_connections;

static int put(int fd, const char *data, size_t len) {
    while (len) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}
static int say(int fd, const char *text) { return put(fd, text, strlen(text)); }

static int reply(int fd, const char *status, const char *more, const char *body, size_t len) {
    char head[600];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n%s\r\n", status, len, more);
    return put(fd, head, (size_t)n) || put(fd, body, len);
}

static int redirect(int fd, const char *status, const char *where) {
    char more[300];
    snprintf(more, sizeof more, "Location: %s\r\n", where);
    return reply(fd, status, more, "moved", 5);
}

static void until_closed(int fd) {
    char byte;
    while (recv(fd, &byte, 1, 0) > 0) {
    }
}

static int endless(int fd, const char *piece, int every_ms) {
    for (int i = 0; i < 200000; i++) {
        if (say(fd, piece)) return -1;
        if (every_ms) nap(every_ms);
    }
    return -1;
}

/* One answer; non-zero closes the connection. */
static int answer(int fd, const char *path, const char *whole, size_t len) {
    static const unsigned char gzip[] = {31, 139, 8,   0,   0,  0, 0, 0,  2,   3,   203, 72, 205, 201, 201,
                                         87, 72,  175, 202, 44, 0, 0, 25, 106, 210, 223, 10, 0,   0,   0};
    char where[200];
    if (!strcmp(path, "/hello")) return reply(fd, "200 OK", "X-Twice: a\r\nX-Twice:  b \r\n", "hello", 5);
    if (!strcmp(path, "/echo")) return reply(fd, "200 OK", "", whole, len);
    if (!strcmp(path, "/empty")) return reply(fd, "204 No Content", "", "", 0);
    if (!strcmp(path, "/missing")) return reply(fd, "404 Not Found", "", "no", 2);
    if (!strcmp(path, "/gzip"))
        return reply(fd, "200 OK", "Content-Encoding: gzip\r\n", (const char *)gzip, sizeof gzip);
    if (!strcmp(path, "/slow")) return nap(150), reply(fd, "200 OK", "", "slow", 4);
    if (!strcmp(path, "/chunked"))
        return say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: 1\r\n\r\n5\r\nhello\r\n") ||
               (nap(20), say(fd, "6\r\n world\r\n0\r\nTrailer: t\r\n\r\n"));
    if (!strcmp(path, "/interim"))
        return say(fd, "HTTP/1.1 103 Early Hints\r\nEarly: 1\r\n\r\n") ||
               reply(fd, "200 OK", "Late: 1\r\n", "x", 1);
    if (!strcmp(path, "/folded")) return reply(fd, "200 OK", "Long: one\r\n   two\r\n", "x", 1);
    if (!strcmp(path, "/silent")) return until_closed(fd), -1;
    if (!strcmp(path, "/close")) return -1;
    if (!strcmp(path, "/garbage")) return say(fd, "\x7f\x45\x4c\x46 what is this\r\n\r\n\xff\xfe"), -1;
    if (!strcmp(path, "/badstatus")) return say(fd, "HTTP/1.1 banana\r\n\r\n"), -1;
    if (!strcmp(path, "/badchunk"))
        return say(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n"), -1;
    if (!strcmp(path, "/half")) return say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"), -1;
    if (!strcmp(path, "/halfhead")) return say(fd, "HTTP/1.1 200 OK\r\nContent-Le"), -1;
    if (!strcmp(path, "/announced"))
        return say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx"), until_closed(fd), -1;
    if (!strcmp(path, "/flood"))
        return say(fd, "HTTP/1.1 200 OK\r\n\r\n") || endless(fd, "0123456789abcdef0123456789abcdef", 0);
    if (!strcmp(path, "/headers"))
        return say(fd, "HTTP/1.1 200 OK\r\n") || endless(fd, "X: yyyyyyyyyyyyyyyyyyy\r\n", 0);
    if (!strcmp(path, "/oneheader"))
        return say(fd, "HTTP/1.1 200 OK\r\nX: ") || endless(fd, "yyyyyyyyyyyyyyyyyyyyyyyy", 0);
    if (!strcmp(path, "/hints")) return endless(fd, "HTTP/1.1 103 Early Hints\r\nA: 1\r\n\r\n", 0);
    if (!strcmp(path, "/drip")) return say(fd, "HTTP/1.1 200 OK\r\n\r\n") || endless(fd, "x", 5);
    if (!strcmp(path, "/driphead")) return say(fd, "HTTP/1.1 200 OK\r\nX: ") || endless(fd, "y", 5);
    if (!strcmp(path, "/to")) return redirect(fd, "302 Found", "/echo");
    if (!strcmp(path, "/keep")) return redirect(fd, "307 Temporary Redirect", "/echo");
    if (!strcmp(path, "/other")) return redirect(fd, "303 See Other", "/echo");
    if (!strcmp(path, "/loop")) return redirect(fd, "302 Found", "/loop");
    if (!strcmp(path, "/ftp")) return redirect(fd, "302 Found", "ftp://127.0.0.1/x");
    if (!strcmp(path, "/file")) return redirect(fd, "302 Found", "file:///etc/passwd");
    if (!strcmp(path, "/cross")) {
        snprintf(where, sizeof where, "http://localhost:%d/echo", server_port);
        return redirect(fd, "302 Found", where);
    }
    return reply(fd, "500 What", "", path, strlen(path));
}

static void *serve(void *arg) {
    int fd = (int)(intptr_t)arg;
    size_t cap = 1 << 20, len = 0;
    char *data = malloc(cap + 1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    for (;;) {
        data[len] = 0;
        char *end = strstr(data, "\r\n\r\n");
        size_t need = 0;
        if (end) {
            char *length = strcasestr(data, "\r\ncontent-length:");
            need = (size_t)(end + 4 - data) + (length && length < end ? (size_t)atol(length + 17) : 0);
        }
        if (!end || len < need) {
            ssize_t n = recv(fd, data + len, cap - len, 0);
            if (n <= 0) break;
            len += (size_t)n;
            continue;
        }
        char path[200] = "";
        sscanf(data, "%*s %199[^ ?]", path);
        if (answer(fd, path, data, need)) break;
        memmove(data, data + need, len - need);
        len -= need;
    }
    free(data);
    close(fd);
    open_connections--;
    return NULL;
}

static void *accept_all(void *unused) {
    (void)unused;
    for (int fd; (fd = accept(server_fd, NULL, NULL)) >= 0;) {
        pthread_t t;
        connections++;
        open_connections++;
        if (pthread_create(&t, NULL, serve, (void *)(intptr_t)fd)) abort();
        pthread_detach(t);
    }
    return NULL;
}

static int listen_somewhere(int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 512) ||
        getsockname(fd, (struct sockaddr *)&a, &len))
        abort();
    *port = ntohs(a.sin_port);
    return fd;
}

/* ---- running requests ---- */

static mw_loop *loop;
static mw_http *http;
static int calls; /* of done, in all */

/* How long the loop was away: a beat every few milliseconds notes the longest gap between two. */
static mw_timer beat;
static double last_beat, longest_gap;
static void on_beat(mw_timer *t) {
    double t0 = now();
    if (t0 - last_beat > longest_gap) longest_gap = t0 - last_beat;
    last_beat = t0;
    mw_timer_start(loop, t, 2, on_beat);
}
static void beats_begin(void) {
    longest_gap = 0;
    last_beat = now();
    mw_loop_now_update(loop);
    mw_timer_start(loop, &beat, 2, on_beat);
}

static void count_done(mw_http_request *r, void *arg) {
    (void)r;
    calls++;
    if (arg) ++*(int *)arg;
}

static void run_until(int *count, int want, double seconds) {
    double end = now() + seconds * slow;
    while (*count < want && now() < end) mw_loop_step(loop, 20);
    CHECK(*count >= want, "%d of %d within %g s", *count, want, seconds);
}
static void run_for(double seconds) {
    double end = now() + seconds;
    while (now() < end) mw_loop_step(loop, 5);
}

static char url_space[8][200];
static const char *url(const char *path) {
    static unsigned next;
    char *s = url_space[next++ % 8];
    snprintf(s, sizeof url_space[0], "http://127.0.0.1:%d%s", server_port, path);
    return s;
}

/* One request from start to end; the caller frees it. */
static mw_http_request *fetch(const mw_http_spec *spec) {
    int count = 0, before = calls;
    mw_http_request *r = mw_http_start(http, spec, count_done, &count);
    CHECK(count == 0, "done inside mw_http_start");
    run_until(&count, 1, 10);
    run_for(0.003);
    CHECK(count == 1 && calls == before + 1, "done came %d times", count);
    return r;
}
static mw_http_request *get(const char *path) {
    return fetch(&(mw_http_spec){.url = url(path), .timeout_ms = 3000});
}

static bool body_is(mw_http_request *r, const char *text) {
    size_t len;
    const char *body = mw_http_body(r, &len);
    return len == strlen(text) && memcmp(body, text, len) == 0;
}
static bool body_has(mw_http_request *r, const char *text) {
    size_t len;
    return strcasestr(mw_http_body(r, &len), text) != NULL;
}
static const char *header(mw_http_request *r, const char *want, int nth) {
    static char space[300];
    const char *name, *value;
    size_t nlen, vlen;
    for (size_t i = 0; mw_http_header_at(r, i, &name, &nlen, &value, &vlen); i++)
        if (nlen == strlen(want) && !strncasecmp(name, want, nlen) && nth-- == 0) {
            snprintf(space, sizeof space, "%.*s", (int)vlen, value);
            return space;
        }
    return "";
}

static void expect_failure(mw_http_request *r, const char *kind, const char *text) {
    const char *got = mw_http_error(r), *k = mw_http_error_kind(r), *name, *value;
    size_t len, n, v;
    CHECK(got && k && !strcmp(k, kind), "got %s: %s", k ? k : "success", got ? got : "");
    CHECK(got && strstr(got, text), "got %s", got ? got : "success");
    CHECK(mw_http_status(r) == 0);
    mw_http_body(r, &len);
    CHECK(len == 0 && !mw_http_header_at(r, 0, &name, &n, &value, &v));
    mw_http_request_free(r);
}
static void expect_kind(const char *path, const char *kind, const char *text) {
    test_detail = path;
    expect_failure(
        fetch(&(mw_http_spec){.url = url(path), .timeout_ms = 2000, .follow = true, .max_bytes = 1 << 20}),
        kind, text);
    test_detail = "";
}

/* ---- the tests ---- */

static void test_round_trip(void) {
    mw_http_request *r = get("/hello");
    CHECK(mw_http_status(r) == 200 && body_is(r, "hello") && !mw_http_error(r) && !mw_http_error_kind(r));
    CHECK(!strcmp(header(r, "x-twice", 0), "a"));
    CHECK(!strcmp(header(r, "x-twice", 1), "b"));
    CHECK(mw_http_elapsed(r) > 0 && mw_http_elapsed(r) < 2);
    mw_http_request_free(r);

    const char *lines[] = {"X-One: 1", "X-Empty:", "Content-Type: text/plain"};
    r = fetch(&(mw_http_spec){.method = "POST",
                              .url = url("/echo"),
                              .body = "a\0b",
                              .body_len = 3,
                              .headers = lines,
                              .header_count = 3,
                              .user = "me",
                              .password = "pw"});
    size_t len;
    const char *body = mw_http_body(r, &len);
    CHECK(len > 3 && !memcmp(body + len - 3, "a\0b", 3));
    CHECK(!strncmp(body, "POST /echo HTTP/1.1\r\n", 21));
    CHECK(body_has(r, "\r\nx-one: 1\r\n") && body_has(r, "\r\nx-empty:\r\n") &&
          body_has(r, "content-type: text/plain"));
    CHECK(body_has(r, "user-agent: moonwire/" MW_VERSION) && body_has(r, "accept-encoding:") &&
          !body_has(r, "expect:"));
    CHECK(body_has(r, "authorization: Basic bWU6cHc="));
    mw_http_request_free(r);

    size_t big = 300000; /* several writes; curl would ask for a 100 first */
    char *data = malloc(big);
    memset(data, 'z', big);
    double t0 = now();
    r = fetch(&(mw_http_spec){.method = "PUT", .url = url("/echo"), .body = data, .body_len = big});
    body = mw_http_body(r, &len);
    CHECK(len > big && !memcmp(body + len - big, data, big) && !strncmp(body, "PUT ", 4) && now() - t0 < 0.9);
    CHECK(!body_has(r, "content-type:"), "a body without a type was given one");
    CHECK(!body_has(r, "authorization:"), "a pooled handle kept its credentials");
    mw_http_request_free(r);
    free(data);

    static const char *const methods[] = {"GET", "DELETE", "PATCH", "OPTIONS"};
    for (int i = 0; i < 4; i++) {
        r = fetch(&(mw_http_spec){.method = methods[i], .url = url("/echo")});
        CHECK(mw_http_status(r) == 200 && !strncmp(mw_http_body(r, &len), methods[i], strlen(methods[i])));
        mw_http_request_free(r);
    }
    r = fetch(&(mw_http_spec){.method = "HEAD", .url = url("/empty")});
    CHECK(mw_http_status(r) == 204 && body_is(r, ""));
    mw_http_request_free(r);
    r = get("/missing");
    CHECK(mw_http_status(r) == 404 && body_is(r, "no") && !mw_http_error(r));
    mw_http_request_free(r);
}

static void test_encodings(void) {
    mw_http_request *r = get("/chunked");
    CHECK(body_is(r, "hello world") && !strcmp(header(r, "a", 0), "1") &&
          !strcmp(header(r, "trailer", 0), ""));
    mw_http_request_free(r);
    r = get("/gzip");
    CHECK(body_is(r, "hello gzip"), "%s", mw_http_error(r) ? mw_http_error(r) : "");
    mw_http_request_free(r);
    r = get("/interim");
    CHECK(mw_http_status(r) == 200 && !strcmp(header(r, "early", 0), "") &&
          !strcmp(header(r, "late", 0), "1"));
    mw_http_request_free(r);
    r = get("/folded");
    CHECK(!strcmp(header(r, "long", 0), "one two"), "%s", header(r, "long", 0));
    mw_http_request_free(r);
}

static void test_parallel(void) {
    enum { N = 100 };
    mw_http_request *all[N];
    int count = 0, good = 0;
    double t0 = now();
    for (int i = 0; i < N; i++)
        all[i] = mw_http_start(http, &(mw_http_spec){.url = url("/slow")}, count_done, &count);
    run_until(&count, N, 10);
    CHECK(now() - t0 < 3 * slow, "100 answers of 0.15 s took %g s", now() - t0);
    for (int i = 0; i < N; i++) {
        good += mw_http_status(all[i]) == 200 && body_is(all[i], "slow");
        mw_http_request_free(all[i]);
    }
    CHECK(good == N, "%d", good);
}

static void test_queue(void) { /* more than a host may have connections: some wait for a free one */
    enum { N = 300 };
    mw_http_request *all[N];
    int count = 0, good = 0, timeouts = 0;
    for (int i = 0; i < N; i++)
        all[i] = mw_http_start(http, &(mw_http_spec){.url = url("/silent"), .timeout_ms = 400}, count_done,
                               &count);
    double t0 = now();
    run_until(&count, N, 5);
    CHECK(now() - t0 < 2 * slow, "%g s", now() - t0);
    for (int i = 0; i < N; i++) {
        timeouts += mw_http_error_kind(all[i]) && !strcmp(mw_http_error_kind(all[i]), "timeout");
        mw_http_request_free(all[i]);
    }
    CHECK(timeouts == N, "%d", timeouts);
    count = 0;
    for (int i = 0; i < N; i++)
        all[i] = mw_http_start(http, &(mw_http_spec){.url = url("/hello")}, count_done, &count);
    run_until(&count, N, 10);
    for (int i = 0; i < N; i++) {
        good += mw_http_status(all[i]) == 200;
        mw_http_request_free(all[i]);
    }
    CHECK(good == N, "%d", good);
}

static void test_keep_alive(void) {
    mw_http_request_free(get("/hello"));
    int before = connections;
    for (int i = 0; i < 20; i++) mw_http_request_free(get("/hello"));
    CHECK(connections == before, "%d connections for 20 requests", connections - before);
}

static void test_timeouts(void) {
    double t0 = now();
    expect_failure(fetch(&(mw_http_spec){.url = url("/silent"), .timeout_ms = 200}), "timeout", "127.0.0.1");
    CHECK(now() - t0 > 0.19 && now() - t0 < 0.6, "%g", now() - t0);
    t0 = now();
    expect_failure(fetch(&(mw_http_spec){.url = url("/drip"), .timeout_ms = 300}), "timeout",
                   "middle of the response");
    expect_failure(fetch(&(mw_http_spec){.url = url("/driphead"), .timeout_ms = 300}), "timeout",
                   "timed out");
    CHECK(now() - t0 < 1.5, "%g", now() - t0);
}

static void test_connect(void) {
    int port;
    close(listen_somewhere(&port));
    char u[100], host[80];
    snprintf(u, sizeof u, "http://user:secret@127.0.0.1:%d/", port);
    snprintf(host, sizeof host, "127.0.0.1:%d: cannot connect: Connection refused", port);
    mw_http_request *r = fetch(&(mw_http_spec){.url = u});
    CHECK(!strstr(mw_http_error(r), "secret"));
    expect_failure(r, "connect", host);
    int full, fd = listen_somewhere(&full); /* a backlog that is full: the handshake never ends */
    listen(fd, 0);
    int socks[4];
    for (int i = 0; i < 4; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)full)};
        socks[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(socks[i], (struct sockaddr *)&a, sizeof a) == 0) continue;
    }
    nap(20);
    snprintf(u, sizeof u, "http://127.0.0.1:%d/", full);
    double t0 = now();
    expect_failure(fetch(&(mw_http_spec){.url = u, .connect_timeout_ms = 300, .timeout_ms = 5000}), "timeout",
                   "timed out connecting");
    CHECK(now() - t0 < 1, "%g", now() - t0);
    for (int i = 0; i < 4; i++) close(socks[i]);
    close(fd);
}

static void test_dns(void) {
    beats_begin();
    expect_failure(fetch(&(mw_http_spec){.url = "http://nowhere.invalid/", .timeout_ms = 9000}), "dns",
                   "nowhere.invalid");
    int count = 0; /* a name server that does not answer: give up, cancel, and keep turning */
    expect_failure(fetch(&(mw_http_spec){.url = "http://slow.invalid/", .timeout_ms = 200}), "timeout",
                   "name");
    expect_failure(fetch(&(mw_http_spec){.url = "http://slow.invalid/", .connect_timeout_ms = 200}),
                   "timeout", "name");
    mw_http_request *r =
        mw_http_start(http, &(mw_http_spec){.url = "http://slow.invalid/"}, count_done, &count);
    run_for(0.1);
    CHECK(slow_lookups > 0);
    mw_http_request_free(r);
    mw_http *other = mw_http_new(loop);
    r = mw_http_start(other, &(mw_http_spec){.url = "http://slow.invalid/"}, count_done, &count);
    run_for(0.1);
    mw_http_free(other);
    expect_failure(r, "cancelled", "slow.invalid");
    run_for(0.1);
    CHECK(longest_gap < 0.05 * slow, "the loop stood still for %.0f ms", longest_gap * 1000);
    mw_timer_stop(&beat);
    CHECK(count == 0);
    printf("  longest turn with names that do not resolve: %.1f ms\n", longest_gap * 1000);
    while (slow_lookups > 0) nap(20); /* their threads free what they hold */
    nap(50);
}

static void test_hostile(void) {
    expect_kind("/garbage", "other", "not HTTP");
    expect_kind("/badstatus", "other", "127.0.0.1");
    expect_kind("/badchunk", "other", "127.0.0.1");
    expect_kind("/half", "other", "in the middle");
    mw_http *fresh = mw_http_new(loop), *shared = http; /* on a used connection curl would try again */
    http = fresh;
    expect_kind("/close", "other", "without an answer");
    http = shared;
    mw_http_free(fresh);
    expect_kind("/close", "other", "127.0.0.1");
    expect_kind("/flood", "too_large", "larger than");
    expect_kind("/announced", "too_large", "larger than");
    expect_kind("/headers", "too_large", "headers");
    expect_kind("/hints", "too_large", "headers");
    mw_http_request *r = get("/oneheader");
    CHECK(mw_http_error(r) && mw_http_elapsed(r) < 2, "%s", mw_http_error(r) ? mw_http_error(r) : "success");
    mw_http_request_free(r);
    r = get("/halfhead"); /* curl takes what came; nothing may crash, nothing may hang */
    CHECK(mw_http_elapsed(r) < 2);
    mw_http_request_free(r);
    expect_failure(fetch(&(mw_http_spec){.url = url("/hello"), .max_bytes = 4}), "too_large",
                   "larger than 4 bytes");
    r = fetch(&(mw_http_spec){.url = url("/hello"), .max_bytes = 5});
    CHECK(body_is(r, "hello"));
    mw_http_request_free(r);
}

static void test_redirects(void) {
    size_t len;
    mw_http_request *r = get("/to");
    CHECK(mw_http_status(r) == 302 && !strcmp(header(r, "location", 0), "/echo") && body_is(r, "moved"));
    mw_http_request_free(r);
    r = fetch(&(mw_http_spec){.url = url("/to"), .follow = true});
    CHECK(mw_http_status(r) == 200 && !strncmp(mw_http_body(r, &len), "GET /echo", 9) &&
          !strcmp(header(r, "location", 0), ""));
    mw_http_request_free(r);
    static const struct {
        const char *method, *path, *then;
        bool body;
    } hops[] = {
        {"POST", "/to", "GET /echo", false},       {"POST", "/keep", "POST /echo", true},
        {"POST", "/other", "GET /echo", false},    {"PUT", "/to", "PUT /echo", true},
        {"PUT", "/other", "GET /echo", false},     {"DELETE", "/other", "GET /echo", false},
        {"DELETE", "/keep", "DELETE /echo", true},
    };
    for (size_t i = 0; i < sizeof hops / sizeof *hops; i++) {
        r = fetch(&(mw_http_spec){.method = hops[i].method,
                                  .url = url(hops[i].path),
                                  .body = "cargo",
                                  .body_len = 5,
                                  .follow = true});
        const char *body = mw_http_body(r, &len);
        CHECK(!strncmp(body, hops[i].then, strlen(hops[i].then)), "%s %s: %.40s", hops[i].method,
              hops[i].path, body);
        CHECK(body_has(r, "cargo") == hops[i].body, "%s %s", hops[i].method, hops[i].path);
        mw_http_request_free(r);
    }
    const char *secret[] = {"Authorization: Bearer secret"};
    r = fetch(&(mw_http_spec){.url = url("/cross"), .follow = true, .headers = secret, .header_count = 1});
    CHECK(mw_http_status(r) == 200 && !body_has(r, "secret"), "%s",
          mw_http_error(r) ? mw_http_error(r) : "leaked");
    mw_http_request_free(r);
    expect_kind("/loop", "other", "too many redirects");
    expect_kind("/ftp", "other", "not allowed");
    expect_kind("/file", "other", "not allowed");
}

static void test_invalid(void) {
    int before = connections;
    static const char *const urls[] = {"",
                                       "ftp://127.0.0.1/",
                                       "file:///etc/passwd",
                                       "127.0.0.1/",
                                       "http://",
                                       "http://a b/",
                                       "http://127.0.0.1/\r\nX: y",
                                       "http://127.0.0.1:99999/",
                                       "http://[::1/",
                                       "http:///x"};
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
        expect_failure(fetch(&(mw_http_spec){.url = urls[i]}), "invalid", "URL");
    expect_failure(fetch(&(mw_http_spec){.url = NULL}), "invalid", "URL");
    static const char *const lines[] = {"X: a\r\nEvil: 1",
                                        "X: a\nEvil: 1",
                                        "X\r\nEvil: 1",
                                        "X : 1",
                                        ": 1",
                                        "",
                                        "no colon",
                                        "X: \x01",
                                        "Content-Length: 5",
                                        "transfer-encoding: chunked"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        expect_failure(fetch(&(mw_http_spec){.url = url("/echo"), .headers = &lines[i], .header_count = 1}),
                       "invalid", "header");
    static const char *const methods[] = {"", "GET /x HTTP/1.1\r\nEvil: 1\r\n\r\n", "G T", "CONNECT"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        expect_failure(fetch(&(mw_http_spec){.url = url("/echo"), .method = methods[i]}), "invalid",
                       "method");
    mw_http_request *r = mw_http_start(http, &(mw_http_spec){.url = "no"}, count_done, NULL);
    CHECK(mw_http_error(r) && strchr(mw_http_error(r), '\n') == NULL);
    mw_http_request_free(r); /* before its report */
    CHECK(connections == before, "something was sent");
}

static void free_self(mw_http_request *r, void *arg) {
    mw_http_request_free(r);
    ++*(int *)arg;
}
static void free_http(mw_http_request *r, void *arg) {
    mw_http_request_free(r);
    mw_http_free(arg);
    calls++;
}

static void test_cancel(void) {
    int before = calls, count = 0;
    mw_http_request *r = mw_http_start(http, &(mw_http_spec){.url = url("/silent")}, count_done, &count);
    mw_http_request_free(r); /* at once */
    r = mw_http_start(http, &(mw_http_spec){.url = url("/silent")}, count_done, &count);
    run_for(0.05);
    mw_http_request_free(r); /* in flight */
    r = mw_http_start(http, &(mw_http_spec){.url = url("/drip")}, count_done, &count);
    run_for(0.05);
    mw_http_request_free(r); /* in the middle of the body */
    mw_http_request_free(NULL);
    run_for(0.1);
    CHECK(count == 0 && calls == before);
    for (int i = 0; i < 10; i++)
        mw_http_start(http, &(mw_http_spec){.url = url("/hello")}, free_self, &count);
    run_until(&count, 10, 5);
    mw_http_request_free(get("/hello")); /* and all still works */
}

static void test_free(void) {
    enum { N = 30 };
    static const char *const paths[] = {"/silent", "/drip", "/hello", "/close", "/flood"};
    for (int wait = 0; wait < 4; wait++) {
        mw_http *h = mw_http_new(loop);
        mw_http_request *all[N];
        int count = 0;
        for (int i = 0; i < N; i++)
            all[i] = mw_http_start(h, &(mw_http_spec){.url = url(paths[i % 5])}, count_done, &count);
        run_for(wait * 0.02);
        mw_http_free(h);
        int reported = count;
        run_for(0.03);
        CHECK(count == reported, "done after mw_http_free");
        for (int i = 0; i < N; i++) {
            const char *kind = mw_http_error_kind(all[i]);
            CHECK(mw_http_status(all[i]) == 200 || kind);
            mw_http_request_free(all[i]);
        }
    }
    mw_http_free(NULL);
    mw_http *h = mw_http_new(loop);
    int before = calls;
    mw_http_start(h, &(mw_http_spec){.url = url("/hello")}, free_http, h);
    run_until(&calls, before + 1, 5);
    run_for(0.02);
}

static void test_proxy(void) { /* nobody listens there: it is used only when asked for */
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    mw_http_request *r = get("/hello");
    CHECK(mw_http_status(r) == 200);
    mw_http_request_free(r);
    expect_failure(fetch(&(mw_http_spec){.url = url("/hello"), .env_proxy = true}), "connect",
                   "cannot connect");
    unsetenv("http_proxy");
}

static pid_t spawn(char *const argv[]) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    if (!freopen("/dev/null", "r", stdin) || !freopen("/dev/null", "w", stdout) ||
        !freopen("/dev/null", "w", stderr))
        _exit(126);
    execvp(argv[0], argv);
    _exit(127);
}

static bool reachable(int port) {
    for (int i = 0; i < 100; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)port)};
        int fd = socket(AF_INET, SOCK_STREAM, 0), no = connect(fd, (struct sockaddr *)&a, sizeof a);
        close(fd);
        if (!no) return true;
        nap(50);
    }
    return false;
}

static void test_tls(void) {
    char dir[] = "/tmp/mw_http_test.XXXXXX", cert[64], key[64], address[40], u[60], wrong[60];
    if (!mkdtemp(dir)) abort();
    snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
    char *make[] = {"openssl",
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:prime256v1",
                    "-nodes",
                    "-days",
                    "2",
                    "-subj",
                    "/CN=moonwire test",
                    "-addext",
                    "subjectAltName=IP:127.0.0.1",
                    "-keyout",
                    key,
                    "-out",
                    cert,
                    NULL};
    int status = -1, port;
    waitpid(spawn(make), &status, 0);
    CHECK(status == 0, "openssl req");
    close(listen_somewhere(&port));
    snprintf(address, sizeof address, "127.0.0.1:%d", port);
    snprintf(u, sizeof u, "https://127.0.0.1:%d/", port);
    snprintf(wrong, sizeof wrong, "https://localhost:%d/", port);
    char *server[] = {"openssl", "s_server", "-quiet", "-www", "-accept", address,
                      "-cert",   cert,       "-key",   key,    NULL};
    pid_t pid = spawn(server);
    CHECK(reachable(port), "openssl s_server");

    expect_failure(fetch(&(mw_http_spec){.url = u}), "tls", "certificate");
    mw_http_request *r = fetch(&(mw_http_spec){.url = u, .ca_file = cert});
    CHECK(mw_http_status(r) == 200 && body_has(r, "s_server"), "%s",
          mw_http_error(r) ? mw_http_error(r) : "");
    mw_http_request_free(r);
    expect_failure(fetch(&(mw_http_spec){.url = wrong, .ca_file = cert}), "tls",
                   "localhost"); /* another name */
    r = fetch(&(mw_http_spec){.url = wrong, .insecure = true});
    CHECK(mw_http_status(r) == 200, "%s", mw_http_error(r) ? mw_http_error(r) : "");
    mw_http_request_free(r);
    expect_failure(fetch(&(mw_http_spec){.url = u}), "tls", "certificate"); /* insecure did not stick */
    expect_failure(fetch(&(mw_http_spec){.url = u, .ca_file = "/nowhere.pem"}), "tls", "/nowhere.pem");
    expect_failure(fetch(&(mw_http_spec){.url = u, .ca_file = cert, .cert_file = "/nowhere.pem"}), "tls",
                   "/nowhere.pem");
    r = fetch(&(mw_http_spec){.url = u, .ca_file = cert, .cert_file = cert, .key_file = key});
    CHECK(mw_http_status(r) == 200, "%s", mw_http_error(r) ? mw_http_error(r) : "");
    mw_http_request_free(r);
    /* the bundle is parsed once, not for each connection */
    beats_begin();
    for (int i = 0; i < 5; i++) mw_http_request_free(fetch(&(mw_http_spec){.url = u}));
    mw_timer_stop(&beat);
    printf("  longest turn of 5 TLS handshakes with the system's bundle: %.1f ms\n", longest_gap * 1000);
    CHECK(longest_gap < 0.05 * slow, "%.0f ms", longest_gap * 1000);
    char plain[60];
    snprintf(plain, sizeof plain, "https://127.0.0.1:%d/hello", server_port); /* no TLS there */
    expect_failure(fetch(&(mw_http_spec){.url = plain, .timeout_ms = 1000}), "timeout", "TLS");

    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    unlink(cert);
    unlink(key);
    rmdir(dir);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"round trip", test_round_trip},
        {"encodings", test_encodings},
        {"parallel", test_parallel},
        {"keep-alive", test_keep_alive},
        {"queue", test_queue},
        {"timeouts", test_timeouts},
        {"connect", test_connect},
        {"dns", test_dns},
        {"hostile", test_hostile},
        {"redirects", test_redirects},
        {"invalid", test_invalid},
        {"cancel", test_cancel},
        {"free", test_free},
        {"proxy", test_proxy},
        {"tls", test_tls},
    };
    signal(SIGPIPE, SIG_IGN);
    if (getenv("MW_TEST_SLOW")) slow = atof(getenv("MW_TEST_SLOW"));
    alarm((unsigned)(120 * slow));
    setenv("no_proxy", "", 1);
    pthread_t acceptor;
    server_fd = listen_somewhere(&server_port);
    if (pthread_create(&acceptor, NULL, accept_all, NULL)) abort();
    if (argc > 1 && !strcmp(argv[1], "serve")) { /* for http_lua_spec.lua, which ends it by its pid */
        printf("%d %d\n", (int)getpid(), server_port);
        fflush(stdout);
        pause();
    }
    loop = mw_loop_new();
    http = mw_http_new(loop);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (argc > 1 && strcmp(argv[1], tests[i].name) != 0) continue;
        double t0 = now();
        int before = failures;
        test_name = tests[i].name;
        tests[i].run();
        printf("%s %s (%.2f s)\n", failures == before ? "ok" : "FAILED", tests[i].name, now() - t0);
    }
    mw_http_free(http);
    shutdown(server_fd, SHUT_RDWR);
    pthread_join(acceptor, NULL);
    close(server_fd);
    test_name = "end";
    for (int i = 0; open_connections && i < 200; i++) nap(10);
    CHECK(open_connections == 0, "%d connections were left open", open_connections);
    mw_loop_free(loop);
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0;
}
