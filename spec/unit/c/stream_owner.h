/* stream_owner.h - what the tests of runtime/net share: a peer (a listening socket of the program) and an
 * owner of a stream, that notes what happens to it and misbehaves when told to. */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "loop/loop.h"
#include "check.h"
#include "net/stream.h"

static mw_loop *loop;

static inline int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline void nap(int ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL); }

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

/* ---- the peer ---- */

typedef struct peer {
    int listener, fd, port;
    char hosts[64];
} peer;

static inline peer listen_on(const char *address, int port, int backlog) {
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

static inline bool accepted(peer *p) {
    if (p->fd < 0) p->fd = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return p->fd >= 0;
}

static inline void hang_up(peer *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
}

static inline void end_peer(peer *p) {
    hang_up(p);
    if (p->listener >= 0) close(p->listener);
    p->listener = -1;
}

static inline size_t hear(peer *p, char *out, size_t room) { /* what is there now */
    ssize_t n = recv(p->fd, out, room, 0);
    return n > 0 ? (size_t)n : 0;
}

static inline void say(peer *p, const char *data, size_t len) {
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
    int rest_ms;         /* not frames: after each input */
    bool close_on_up, close_on_input, close_on_down, fail_on_input, content, only_sum;
    const char *greeting;
    size_t least_seen;
} owner;

static inline void on_up(void *arg) {
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

static inline void keep(owner *o, const char *data, size_t len) {
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

static inline size_t on_input(void *arg, const char *data, size_t len, size_t *need) {
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
        if (o->rest_ms) mw_stream_rest(o->s, o->rest_ms);
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
    }
    return used;
}

static inline void on_down(void *arg, const mw_error *why) {
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

static inline void on_drained(void *arg) { ((owner *)arg)->drains++; }

static const mw_stream_events events = {on_up, on_input, on_down, on_drained};

static inline void open_with(owner *o, mw_stream_options options) {
    mw_error e = {0};
    if (!options.retry_ms) options.retry_ms = 10;
    if (!options.retry_cap_ms) options.retry_cap_ms = 50;
    o->s = mw_stream_open(loop, &options, &events, o, &e);
    CHECK(o->s, "%s", e.text);
}

static inline void open_to(owner *o, const char *hosts) { open_with(o, (mw_stream_options){.hosts = hosts}); }

static inline void end_owner(owner *o) {
    mw_stream_close(o->s);
    free(o->got);
    *o = (owner){0};
}

static inline bool has(const char *text, const char *part) {
    bool found = strstr(text, part);
    if (!found) fprintf(stderr, "%s: \"%s\" is not in \"%s\"\n", test_name, part, text);
    return found;
}
