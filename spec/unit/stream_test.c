/* stream_test.c - runtime/net against scripted peers: listening sockets of this program, on 127.0.0.1, ::1
 * and Unix paths, that accept, stall, cut and lie. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/loop.h"
#include "check.h"
#include "net/stream.h"

static mw_loop *loop;

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

/* Turns until the condition holds; it is a failure when it does not within 20 s. */
#define UNTIL(condition)                                                                                     \
    do {                                                                                                     \
        bool holds_ = false;                                                                                 \
        for (int64_t until_ = now_ms() + 20000; !(holds_ = (condition)) && now_ms() < until_;)               \
            mw_loop_step(loop, 2);                                                                           \
        CHECK(holds_, "not within 20 s: %s", #condition);                                                    \
    } while (0)

static inline void turns(int ms) {
    for (int64_t until = now_ms() + ms; now_ms() < until;) mw_loop_step(loop, 2);
}

/* ---- names: a resolver of our own, found before libc's ---- */

static atomic_int slow_lookups, lookups_done;
static const char *name_list; /* what "many.test" is: addresses, with spaces between */

static struct addrinfo *one_address(const char *text, struct addrinfo *next) {
    struct addrinfo *a = calloc(1, sizeof *a + sizeof(struct sockaddr_in6));
    struct sockaddr_in *v4 = (struct sockaddr_in *)(a + 1);
    a->ai_family = v4->sin_family = AF_INET;
    a->ai_addr = (struct sockaddr *)v4;
    a->ai_addrlen = sizeof *v4;
    inet_pton(AF_INET, text, &v4->sin_addr);
    a->ai_next = next;
    return a;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    if (node && strcmp(node, "slow.test") == 0) {
        slow_lookups++;
        nap(1500);
        slow_lookups--;
        lookups_done++;
        return EAI_AGAIN;
    }
    if (node && strcmp(node, "many.test") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
        char list[200], *texts[16], *save = NULL;
        int n = 0;
        snprintf(list, sizeof list, "%s", name_list);
        for (char *t = strtok_r(list, " ", &save); t && n < 16; t = strtok_r(NULL, " ", &save))
            texts[n++] = t;
        *out = NULL;
        while (n) *out = one_address(texts[--n], *out);
        return 0;
    }
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(node, service, hints, out);
}

void freeaddrinfo(struct addrinfo *list) {
    if (list && list->ai_addr == (struct sockaddr *)(list + 1) && list->ai_socktype == 0) {
        for (struct addrinfo *next; list; list = next) {
            next = list->ai_next;
            free(list);
        }
        return;
    }
    void (*real)(struct addrinfo *);
    *(void **)&real = dlsym(RTLD_NEXT, "freeaddrinfo");
    real(list);
}

/* ---- the peer ---- */

typedef struct peer {
    int listener, fd, port;
    char hosts[64];
} peer;

static peer listen_on(const char *address, int port, int backlog) {
    peer p = {.fd = -1};
    bool v6 = strchr(address, ':');
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    inet_pton(v6 ? AF_INET6 : AF_INET, address, v6 ? (void *)&six.sin6_addr : (void *)&v4.sin_addr);
    struct sockaddr *at = v6 ? (struct sockaddr *)&six : (struct sockaddr *)&v4;
    socklen_t len = v6 ? sizeof six : sizeof v4;
    p.listener = socket(at->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(p.listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(p.listener, at, len) || listen(p.listener, backlog) || getsockname(p.listener, at, &len)) {
        close(p.listener);
        p.listener = -1;
    }
    p.port = ntohs(v6 ? six.sin6_port : v4.sin_port);
    snprintf(p.hosts, sizeof p.hosts, v6 ? "[%s]:%d" : "%s:%d", address, p.port);
    return p;
}

static bool accepted(peer *p) {
    if (p->fd < 0) p->fd = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return p->fd >= 0;
}

static void hang_up(peer *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
}

static void end_peer(peer *p) {
    hang_up(p);
    if (p->listener >= 0) close(p->listener);
    p->listener = -1;
}

static size_t hear(peer *p, char *out, size_t room) { /* what is there now */
    ssize_t n = recv(p->fd, out, room, 0);
    return n > 0 ? (size_t)n : 0;
}

static void say(peer *p, const char *data, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = send(p->fd, data + at, len - at, MSG_NOSIGNAL);
        if (n > 0) at += (size_t)n;
        if (n < 0 && errno != EAGAIN) return;
        if (n < 0) mw_loop_step(loop, 1);
    }
}

/* ---- the owner: notes what happens ---- */

typedef struct owner {
    mw_stream *s;
    int ups, downs, drains, inputs;
    mw_error why;
    char *got; /* all that was consumed */
    size_t got_len;
    uint64_t sum, total; /* of bytes, where they are too many to keep */
    bool frames;         /* four bytes of length, then so many */
    bool deaf;           /* consumes nothing */
    bool hold_after_one; /* frames: one, then hold */
    bool close_on_up, close_on_input, close_on_down, fail_on_input, content, only_sum;
    const char *greeting;
    size_t least_seen;
} owner;

static void on_up(void *arg) {
    owner *o = arg;
    o->ups++;
    CHECK(mw_stream_is_up(o->s), "up is told when it is");
    if (o->greeting) mw_stream_write(o->s, o->greeting, strlen(o->greeting));
    if (o->content) mw_stream_established(o->s);
    if (o->close_on_up) {
        mw_stream_close(o->s);
        o->s = NULL;
    }
}

static void keep(owner *o, const char *data, size_t len) {
    o->total += len;
    if (o->only_sum) {
        for (size_t i = 0; i < len; i++) o->sum = o->sum * 31 + (unsigned char)data[i];
        return;
    }
    o->got = realloc(o->got, o->got_len + len + 1);
    memcpy(o->got + o->got_len, data, len);
    o->got_len += len;
    o->got[o->got_len] = 0;
}

static size_t on_input(void *arg, const char *data, size_t len, size_t *need) {
    owner *o = arg;
    size_t used = 0;
    o->inputs++;
    if (len < o->least_seen || !o->least_seen) o->least_seen = len;
    EQUAL(0, *need);
    if (o->close_on_input) {
        mw_stream_close(o->s);
        o->s = NULL;
        keep(o, data, len); /* still there */
        return len;
    }
    if (o->fail_on_input) {
        mw_error e;
        mw_fail(&e, MW_EFORMAT, true, "nonsense: \"%.*s\"", (int)(len < 20 ? len : 20), data);
        mw_stream_fail(o->s, &e);
        CHECK(!mw_stream_is_up(o->s), "not up after a failure");
        return 12345678; /* anything */
    }
    if (o->deaf) return 0;
    if (!o->frames) {
        keep(o, data, len);
        return len;
    }
    while (len - used >= 4) {
        uint32_t size;
        memcpy(&size, data + used, 4);
        size = ntohl(size);
        if (len - used - 4 < size) {
            *need = 4 + (size_t)size;
            break;
        }
        keep(o, data + used + 4, size);
        used += 4 + size;
        if (o->hold_after_one) {
            mw_stream_hold(o->s, true);
            break;
        }
    }
    return used;
}

static void on_down(void *arg, const mw_error *why) {
    owner *o = arg;
    o->downs++;
    o->why = *why;
    CHECK(!mw_stream_is_up(o->s), "down is told when it is");
    CHECK(why->text[0], "a reason");
    if (o->close_on_down) {
        mw_stream_close(o->s);
        o->s = NULL;
    }
}

static void on_drained(void *arg) { ((owner *)arg)->drains++; }

static const mw_stream_events events = {on_up, on_input, on_down, on_drained};

static void open_with(owner *o, mw_stream_options options) {
    mw_error e = {0};
    if (!options.retry_ms) options.retry_ms = 10;
    if (!options.retry_cap_ms) options.retry_cap_ms = 50;
    o->s = mw_stream_open(loop, &options, &events, o, &e);
    CHECK(o->s, "%s", e.text);
}

static void open_to(owner *o, const char *hosts) { open_with(o, (mw_stream_options){.hosts = hosts}); }

static void end_owner(owner *o) {
    mw_stream_close(o->s);
    free(o->got);
    *o = (owner){0};
}

static bool has(const char *text, const char *part) {
    bool found = strstr(text, part);
    if (!found) fprintf(stderr, "%s: \"%s\" is not in \"%s\"\n", test_name, part, text);
    return found;
}

/* ---- plain streams ---- */

static void test_echo(void) {
    char heard[64];
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.greeting = "hello"};
    open_to(&o, p.hosts);
    UNTIL(accepted(&p) && o.ups);
    size_t n = 0;
    UNTIL((n += hear(&p, heard + n, sizeof heard - n)) == 5);
    CHECK(memcmp(heard, "hello", 5) == 0, "what was written in up arrives");
    say(&p, "welcome", 7);
    UNTIL(o.got_len == 7);
    CHECK(strcmp(o.got, "welcome") == 0, "%s", o.got);
    mw_peer look;
    mw_stream_look(o.s, "it", &look);
    CHECK(strcmp(look.state, "up") == 0 && strcmp(look.address, p.hosts) == 0, "%s %s", look.state,
          look.address);
    EQUAL(1, look.connects);
    EQUAL(7, look.bytes_in);
    EQUAL(5, look.bytes_out);
    CHECK(!look.tls && !look.error[0] && look.since_ms > 0, "%s", look.error);
    end_owner(&o);
    end_peer(&p);
}

static void test_unix_socket(void) {
    char path[64], heard[8];
    snprintf(path, sizeof path, "/tmp/mw-stream-%d.sock", (int)getpid());
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, path);
    owner o = {.greeting = "hi"};
    open_to(&o, path);
    UNTIL(o.downs >= 2);
    CHECK(has(o.why.text, path) && has(o.why.text, "No such file"), "%s", o.why.text);
    peer p = {.fd = -1, .listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0)};
    CHECK(bind(p.listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(p.listener, 4) == 0, "bind");
    UNTIL(accepted(&p) && o.ups);
    UNTIL(hear(&p, heard, sizeof heard) == 2);
    mw_peer look;
    mw_stream_look(o.s, "it", &look);
    CHECK(strcmp(look.address, path) == 0, "%s", look.address);
    end_owner(&o);
    end_peer(&p);
    unlink(path);
}

static void test_ipv6(void) {
    peer p = listen_on("::1", 0, 8);
    if (p.listener < 0) {
        fprintf(stderr, "SKIPPED: no IPv6 on this machine\n");
        return;
    }
    owner o = {0};
    open_to(&o, p.hosts);
    UNTIL(accepted(&p) && o.ups);
    mw_peer look;
    mw_stream_look(o.s, "it", &look);
    CHECK(strcmp(look.address, p.hosts) == 0, "%s", look.address);
    end_owner(&o);
    end_peer(&p);
}

static void test_reconnect(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.content = true};
    open_to(&o, p.hosts);
    for (int i = 1; i <= 5; i++) {
        UNTIL(accepted(&p) && o.ups == i);
        say(&p, "x", 1);
        hang_up(&p);
        UNTIL(o.downs == i);
        EQUAL(i, o.got_len);
        CHECK(has(o.why.text, "closed") && has(o.why.text, p.hosts), "%s", o.why.text);
        mw_stream_write(o.s, "lost", 4); /* ignored */
        EQUAL(0, mw_stream_pending(o.s));
    }
    end_owner(&o);
    end_peer(&p);
}

/* Nobody there: rounds come slower and slower up to the cap; a content owner starts again from the beginning.
 */
static void test_backoff(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    close(p.listener);
    owner o = {.content = true};
    int64_t began = now_ms();
    open_with(&o, (mw_stream_options){.hosts = p.hosts, .retry_ms = 20, .retry_cap_ms = 160});
    UNTIL(o.downs == 6); /* 20 40 80 160 160: at least half of it */
    CHECK(now_ms() - began >= 230, "%d ms", (int)(now_ms() - began));
    CHECK(has(o.why.text, "refused"), "%s", o.why.text);
    mw_peer look;
    mw_stream_look(o.s, "it", &look);
    CHECK(strcmp(look.state, "waiting") == 0 && has(look.error, "refused"), "%s %s", look.state, look.error);
    EQUAL(0, look.connects);
    end_owner(&o);
}

static const test tests[] = {{"echo", test_echo},       {"unix_socket", test_unix_socket},
                             {"ipv6", test_ipv6},       {"reconnect", test_reconnect},
                             {"backoff", test_backoff}, {0}};

int main(int argc, char **argv) {
    signal(SIGALRM, SIG_DFL);
    alarm(200);
    loop = mw_loop_new();
    int code = run_tests(tests, argc, argv);
    mw_loop_free(loop);
    return code;
}
