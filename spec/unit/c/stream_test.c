/* stream_test.c - runtime/net against scripted peers: listening sockets of this program, on 127.0.0.1, ::1
 * and Unix paths, that accept, stall, cut, flood and lie. SIGPIPE is left as it is: it would end the program.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/un.h>

#include "lua/report.h"
#include "net/fifo.h"
#include "net/socket.h"
#include "../../fuzz/frames.h"
#include "stream_owner.h"

#include <lauxlib.h>
#include <lualib.h>

/* ---- system calls of the stream, counted ---- */

static atomic_int sends, recvs;

ssize_t send(int fd, const void *data, size_t len, int flags) {
    sends++;
    return sendto(fd, data, len, flags, NULL, 0);
}

ssize_t recv(int fd, void *to, size_t room, int flags) {
    recvs++;
    return recvfrom(fd, to, room, flags, NULL, NULL);
}

static size_t memory_in_use(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

/* ---- names: a resolver of our own, found before libc's ---- */

static atomic_int slow_lookups, lookups_done;
static atomic_bool answer_lookups; /* "slow.test" is looked up until then */
static const char *name_list;      /* what "many.test" is: addresses, with spaces between */

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
    if (node && strcmp(node, "slow.test") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
        slow_lookups++;
        while (!answer_lookups) nap(5);
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

/* ---- addresses ---- */

static void test_host_syntax(void) {
    static const struct {
        const char *hosts, *said;
    } bad[] = {
        {"", "empty host name"},
        {"a,,b", "empty host name"},
        {"a b", "\" \""},
        {"h:0", "port"},
        {"h:65536", "port"},
        {"h:", "port"},
        {"h:12x", "port"},
        {"::1", "brackets"},
        {"::1:6379", "brackets"},
        {"[::1", "] after"},
        {"[zz]:1", "no IPv6 address"},
        {"[::1]x", ":PORT"},
        {"[::1]:-1", "port"},
        {"a/b", "\"/\""},
        {"h\n:1", "no host name"},
        {"user@h", "\"@\""},
        {"/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         "at most 107"},
    };
    owner o = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mw_error e = {0};
        mw_stream *s = mw_stream_open(loop, &(mw_stream_options){.hosts = bad[i].hosts, .default_port = 1},
                                      &events, &o, &e);
        CHECK(!s && has(e.text, bad[i].said), "\"%s\": %s", bad[i].hosts, e.text);
        EQUAL(MW_EUSAGE, e.code);
        mw_stream_close(s);
    }
    char many[400] = "a";
    for (int i = 0; i < 64; i++) strcat(many, ",b");
    mw_error e = {0};
    CHECK(!mw_stream_open(loop, &(mw_stream_options){.hosts = many, .default_port = 1}, &events, &o, &e),
          "65 hosts");
    CHECK(has(e.text, "more than 64"), "%s", e.text);
}

static int dead_port(void) {
    peer p = listen_on("127.0.0.1", 0, 1);
    end_peer(&p);
    return p.port;
}

static void test_several_hosts(void) {
    char hosts[200];
    peer a = listen_on("127.0.0.1", 0, 8), b = listen_on("127.0.0.1", 0, 8);
    owner o = {.content = true};
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d,%s,%s", dead_port(), a.hosts, b.hosts);
    open_to(&o, hosts);
    UNTIL(accepted(&a) && o.ups == 1);
    EQUAL(0, o.downs); /* the dead one is only the first of the round */
    hang_up(&a);
    UNTIL(accepted(&b) && o.ups == 2); /* the next round begins behind the one that was lost */
    hang_up(&b);
    UNTIL(accepted(&a) && o.ups == 3);
    end_peer(&b);
    end_peer(&a);
    UNTIL(o.downs >= 5); /* everything that a round ran into is told */
    CHECK(has(o.why.text, a.hosts) && has(o.why.text, b.hosts), "%s", o.why.text);
    end_owner(&o);
}

static void test_several_addresses(void) {
    char hosts[64];
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {0};
    name_list = "127.0.0.2 127.0.0.3 127.0.0.1";
    snprintf(hosts, sizeof hosts, "many.test:%d", p.port);
    open_to(&o, hosts);
    UNTIL(accepted(&p) && o.ups == 1);
    EQUAL(0, o.downs);
    end_owner(&o);
    end_peer(&p);
}

/* A listener whose queue is full does not answer at all. */
static peer silent_listener(int *stuffing) {
    peer p = listen_on("127.0.0.1", 0, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p.port)};
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    for (int i = 0; i < 3; i++) {
        stuffing[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)!connect(stuffing[i], (struct sockaddr *)&at, sizeof at);
    }
    nap(20);
    return p;
}

static void test_connect_deadline(void) {
    char hosts[200];
    int stuffing[3];
    peer silent = silent_listener(stuffing), p = listen_on("127.0.0.1", 0, 8);
    owner o = {0}, only = {0};
    snprintf(hosts, sizeof hosts, "%s,%s", silent.hosts, p.hosts);
    int64_t began = now_ms();
    open_with(&o, (mw_stream_options){.hosts = hosts, .connect_ms = 600});
    open_with(&only, (mw_stream_options){.hosts = silent.hosts, .connect_ms = 600});
    mw_peer look;
    UNTIL((mw_stream_look(o.s, "it", &look), strcmp(look.state, "connecting") == 0));
    CHECK(strcmp(look.address, silent.hosts) == 0, "%s", look.address);
    UNTIL(accepted(&p) && o.ups == 1);
    CHECK(now_ms() - began >= 600, "the silent one had its time");
    UNTIL(only.downs == 1);
    EQUAL(0, only.ups);
    CHECK(has(only.why.text, "no answer in 0.6 s") && has(only.why.text, silent.hosts), "%s", only.why.text);
    end_owner(&o);
    end_owner(&only);
    end_peer(&silent);
    end_peer(&p);
    for (int i = 0; i < 3; i++) close(stuffing[i]);
}

/* The loop goes on, a closed stream does not wait, and the thread frees what is left. */
static void test_slow_names(void) {
    owner o = {0}, patient = {0}, gone = {0};
    mw_stream_options options = {.hosts = "slow.test:1", .retry_ms = 60000, .retry_cap_ms = 60000};
    answer_lookups = false;
    options.connect_ms = 150;
    open_with(&o, options);
    options.connect_ms = 60000;
    open_with(&patient, options);
    open_with(&gone, options);
    UNTIL(slow_lookups == 3);
    mw_peer look;
    mw_stream_look(patient.s, "it", &look);
    CHECK(strcmp(look.state, "resolving") == 0 && strcmp(look.address, "slow.test:1") == 0, "%s", look.state);
    UNTIL(o.downs == 1);
    CHECK(has(o.why.text, "cannot look up slow.test: no answer in"), "%s", o.why.text);
    end_owner(&gone); /* while its lookup runs */
    end_owner(&o);
    EQUAL(0, lookups_done + patient.downs); /* nothing of all this waited for a lookup */
    answer_lookups = true;
    UNTIL(patient.downs == 1 && lookups_done == 3);
    CHECK(has(patient.why.text, "cannot look up slow.test: ") && !strstr(patient.why.text, "no answer"), "%s",
          patient.why.text);
    end_owner(&patient);
    nap(50); /* for the threads to be gone when leaks are looked for */
}

static void test_lookups_are_bounded(void) {
    enum { COUNT = 80 };
    static owner o[COUNT];
    int failed = 0;
    answer_lookups = false;
    for (int i = 0; i < COUNT; i++)
        open_with(&o[i],
                  (mw_stream_options){
                      .hosts = "slow.test:1", .connect_ms = 60000, .retry_ms = 60000, .retry_cap_ms = 60000});
    UNTIL(slow_lookups == 64);
    turns(20);
    EQUAL(64, slow_lookups);
    for (int i = 0; i < COUNT; i++) failed += o[i].downs && has(o[i].why.text, "lookups wait");
    EQUAL(COUNT - 64, failed);
    for (int i = 0; i < COUNT; i++) end_owner(&o[i]);
    answer_lookups = true;
    UNTIL(slow_lookups == 0);
    nap(50);
}

static void test_redirect(void) {
    peer a = listen_on("127.0.0.1", 0, 8), b = listen_on("127.0.0.1", 0, 8);
    mw_error e;
    owner o = {.content = true};
    open_to(&o, a.hosts);
    UNTIL(accepted(&a) && o.ups == 1);
    CHECK(mw_stream_redirect(o.s, "/etc/x", true, &e) && has(e.text, "Unix"), "%s", e.text);
    CHECK(mw_stream_redirect(o.s, "no port:", true, &e), "syntax");
    EQUAL(0, mw_stream_redirect(o.s, b.hosts, true, &e));
    turns(20);
    EQUAL(1, o.ups); /* only from the next attempt on */
    mw_fail(&e, 0, true, "moved");
    mw_stream_fail(o.s, &e);
    mw_stream_fail(o.s, &e);
    UNTIL(accepted(&b) && o.ups == 2);
    EQUAL(1, o.downs);
    CHECK(strcmp(o.why.text, "moved") == 0, "%s", o.why.text);
    end_owner(&o);
    end_peer(&a);
    end_peer(&b);
}

/* Where it was led to nobody is any more: it asks again where it asked first, unless that is out of date. */
static void test_redirect_to_nobody(void) {
    for (int for_good = 0; for_good < 2; for_good++) {
        peer a = listen_on("127.0.0.1", 0, 8), b = listen_on("127.0.0.1", 0, 8);
        mw_error e;
        owner o = {.content = true};
        open_to(&o, a.hosts);
        UNTIL(accepted(&a) && o.ups == 1);
        EQUAL(0, mw_stream_redirect(o.s, b.hosts, for_good, &e));
        mw_fail(&e, 0, true, "moved");
        mw_stream_fail(o.s, &e);
        UNTIL(accepted(&b) && o.ups == 2);
        hang_up(&a);
        end_peer(&b);
        UNTIL(o.downs >= 3); /* lost, and nobody there */
        if (for_good) {
            UNTIL(o.downs >= 5);
            EQUAL(2, o.ups);
        } else {
            UNTIL(accepted(&a) && o.ups == 3);
        }
        end_owner(&o);
        end_peer(&a);
    }
}

/* ---- peers that misbehave ---- */

static void put_length(char *out, uint32_t size) {
    size = htonl(size);
    memcpy(out, &size, 4);
}

static void test_one_byte_at_a_time(void) {
    char frame[104];
    put_length(frame, 100);
    for (int i = 0; i < 100; i++) frame[4 + i] = (char)i;
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.frames = true};
    open_to(&o, p.hosts);
    UNTIL(accepted(&p) && o.ups);
    setsockopt(p.fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    mw_peer look = {0};
    for (uint64_t i = 0; i < 3 * sizeof frame; i++) {
        say(&p, frame + i % sizeof frame, 1);
        UNTIL((mw_stream_look(o.s, "it", &look), look.bytes_in) == i + 1);
    }
    EQUAL(300, o.got_len);
    CHECK(memcmp(o.got + 100, frame + 4, 100) == 0, "the second frame");
    EQUAL(3 * 5, o.inputs); /* four looks for the length, one for the whole */
    end_owner(&o);
    end_peer(&p);
}

static void test_silence(void) {
    peer p = listen_on("127.0.0.1", 0, 8), q = listen_on("127.0.0.1", 0, 8);
    owner o = {0}, half = {.frames = true};
    open_with(&o, (mw_stream_options){.hosts = p.hosts, .idle_ms = 200});
    open_with(&half, (mw_stream_options){.hosts = q.hosts, .idle_ms = 200});
    UNTIL(accepted(&p) && accepted(&q) && o.ups && half.ups);
    say(&q, "\0\0\0\11abc", 7); /* and no more of it */
    UNTIL(o.downs && half.downs);
    CHECK(has(o.why.text, "nothing came from the server for 0.2 s"), "%s", o.why.text);
    EQUAL(0, half.got_len);
    UNTIL(o.ups >= 2 && half.ups >= 2);
    end_owner(&o);
    end_owner(&half);
    end_peer(&p);
    end_peer(&q);
}

/* What waits in the socket while the loop is busy has come in time. */
static void test_busy_loop_is_not_silence(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {0};
    open_with(&o, (mw_stream_options){.hosts = p.hosts, .idle_ms = 300});
    UNTIL(accepted(&p) && o.ups);
    for (int i = 1; i <= 3; i++) {
        say(&p, "x", 1);
        nap(600);
        UNTIL(o.got_len == (size_t)i);
    }
    EQUAL(0, o.downs);
    end_owner(&o);
    end_peer(&p);
}

static void test_garbage(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.fail_on_input = true};
    open_to(&o, p.hosts);
    for (int i = 1; i <= 3; i++) {
        UNTIL(accepted(&p) && o.ups == i);
        say(&p, "GET / HTTP/1.1\r\n", 16);
        UNTIL(o.downs == i);
        CHECK(has(o.why.text, "nonsense: \"GET /"), "%s", o.why.text);
        EQUAL(i, o.inputs);
        hang_up(&p);
    }
    end_owner(&o);
    end_peer(&p);
}

static void test_huge_length(void) {
    char head[64] = {0};
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.frames = true};
    open_to(&o, p.hosts);
    UNTIL(accepted(&p) && o.ups == 1);
    size_t before = memory_in_use();
    put_length(head, 60 << 20); /* within the limit: believed, but not paid for in advance */
    say(&p, head, sizeof head);
    UNTIL(o.inputs == 1);
    turns(20);
    CHECK(memory_in_use() < before + (1 << 20), "%zu more", memory_in_use() - before);
    EQUAL(0, o.downs);
    hang_up(&p);
    UNTIL(accepted(&p) && o.ups == 2);
    put_length(head, 1 << 30);
    say(&p, head, sizeof head);
    UNTIL(o.downs == 2);
    CHECK(has(o.why.text, "announces 1073741828 bytes in one piece; at most 67108864"), "%s", o.why.text);
    CHECK(memory_in_use() < before + (1 << 20), "%zu more", memory_in_use() - before);
    end_owner(&o);
    end_peer(&p);
}

static void test_no_end(void) {
    static char block[50000];
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.deaf = true};
    open_with(&o, (mw_stream_options){.hosts = p.hosts, .max_input = 100000});
    UNTIL(accepted(&p) && o.ups);
    for (int i = 0; i < 3 && !o.downs; i++) say(&p, block, sizeof block);
    UNTIL(o.downs == 1);
    CHECK(has(o.why.text, "100000 bytes that have no end"), "%s", o.why.text);
    end_owner(&o);
    end_peer(&p);
}

/* What it said before it closed is read, also when we notice by writing. */
static void test_last_words(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.content = true};
    open_to(&o, p.hosts);
    for (size_t i = 1; i <= 20; i++) {
        UNTIL(accepted(&p) && o.ups == (int)i);
        mw_stream_write(o.s, "question", 8);
        mw_loop_step(loop, 1); /* it will have unread bytes: its close is a reset */
        say(&p, "go away!", 8);
        hang_up(&p);
        mw_stream_write(o.s, "more", 4);
        UNTIL(o.downs == (int)i);
        EQUAL(8 * i, o.got_len);
        CHECK(has(o.why.text, "closed"), "%s", o.why.text);
    }
    end_owner(&o);
    end_peer(&p);
}

/* ---- much ---- */

static uint64_t sum_of(const char *data, size_t len, uint64_t sum) {
    for (size_t i = 0; i < len; i++) sum = sum * 31 + (unsigned char)data[i];
    return sum;
}

static void test_large_frames(void) {
    enum { SIZE = 20 << 20 };
    char *frame = malloc(SIZE + 4);
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.frames = true, .only_sum = true};
    put_length(frame, SIZE);
    for (size_t i = 0; i < SIZE; i++) frame[4 + i] = (char)rnd(256);
    open_to(&o, p.hosts);
    UNTIL(accepted(&p) && o.ups);
    size_t before = memory_in_use();
    say(&p, frame, SIZE + 4);
    UNTIL(o.total == SIZE);
    CHECK(o.sum == sum_of(frame + 4, SIZE, 0), "the same bytes");
    CHECK(o.inputs < 20, "%d looks", o.inputs);
    int64_t began = now_ms();
    UNTIL(memory_in_use() < before + (1 << 20) || now_ms() - began > 10000);
    CHECK(memory_in_use() < before + (1 << 20), "%zu more are kept", memory_in_use() - before);
    free(frame);
    end_owner(&o);
    end_peer(&p);
}

/* What comes during a rest is one read; a stream at rest notices that its peer is gone. */
static void test_rest(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {.rest_ms = 300};
    open_to(&o, p.hosts);
    UNTIL(accepted(&p) && o.ups);
    setsockopt(p.fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    say(&p, "a", 1);
    UNTIL(o.got_len == 1);
    recvs = 0;
    for (int64_t until = now_ms() + 20; now_ms() < until; mw_loop_step(loop, 1)) say(&p, "b", 1);
    EQUAL(1, o.got_len);
    EQUAL(0, recvs);
    say(&p, "c", 1);
    UNTIL(o.got[o.got_len - 1] == 'c');
    EQUAL(2, o.inputs);
    UNTIL(recvs >= 2); /* the rest after that one brought nothing: it is watched again */
    recvs = 0;
    turns(120);
    EQUAL(0, recvs);
    say(&p, "d", 1);
    UNTIL(o.got[o.got_len - 1] == 'd');

    hang_up(&p);
    UNTIL(o.downs == 1 && accepted(&p) && o.ups == 2);
    say(&p, "f", 1);
    UNTIL(o.got[o.got_len - 1] == 'f');
    end_owner(&o); /* at rest */
    end_peer(&p);
}

/* A turn reads a bounded amount of one stream, so that others have their turn. */
static void test_fairness(void) {
    static char block[4 << 20];
    peer p = listen_on("127.0.0.1", 0, 8);
    setsockopt(p.listener, SOL_SOCKET, SO_SNDBUF, &(int){8 << 20}, sizeof(int));
    owner o = {.only_sum = true};
    mw_peer look;
    open_to(&o, p.hosts);
    UNTIL(accepted(&p) && o.ups);
    uint64_t most = 0, sent = 0, before = 0;
    while (sent < 64 << 20) {
        ssize_t n = sendto(p.fd, block, sizeof block, MSG_NOSIGNAL, NULL, 0);
        if (n > 0) sent += (uint64_t)n;
        mw_loop_step(loop, 1);
        mw_stream_look(o.s, "it", &look);
        if (look.bytes_in - before > most) most = look.bytes_in - before;
        before = look.bytes_in;
    }
    CHECK(most <= 1 << 20, "%llu bytes in one turn", (unsigned long long)most);
    CHECK(most >= 64 << 10, "only %llu bytes in one turn", (unsigned long long)most);
    UNTIL(o.total == sent);
    end_owner(&o);
    end_peer(&p);
}

static void test_peer_stops_reading(void) {
    static char block[1 << 16];
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {0};
    open_with(&o, (mw_stream_options){.hosts = p.hosts, .write_ms = 300, .retry_ms = 60000});
    UNTIL(accepted(&p) && o.ups);
    int64_t began = now_ms();
    while (!mw_stream_full(o.s) && now_ms() - began < 20000) {
        mw_stream_write(o.s, block, sizeof block);
        mw_loop_step(loop, 0);
    }
    CHECK(mw_stream_full(o.s) && mw_stream_pending(o.s) >= 1 << 20, "%zu wait", mw_stream_pending(o.s));
    EQUAL(0, o.drains);
    UNTIL(o.downs == 1);
    CHECK(has(o.why.text, "took nothing for 0.3 s") || has(o.why.text, "does not answer"), "%s", o.why.text);
    EQUAL(0, mw_stream_pending(o.s));
    CHECK(!mw_stream_full(o.s), "nothing waits any more");
    end_owner(&o);
    end_peer(&p);
}

static void test_slow_reader(void) {
    enum { SIZE = 12 << 20 };
    static char heard[1 << 16];
    char *data = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) data[i] = (char)rnd(256);
    peer p = listen_on("127.0.0.1", 0, 8);
    setsockopt(p.listener, SOL_SOCKET, SO_RCVBUF, &(int){128 << 10},
               sizeof(int)); /* it takes little at a time */
    owner o = {0};
    open_with(&o, (mw_stream_options){.hosts = p.hosts, .write_ms = 1200, .retry_ms = 60000});
    UNTIL(accepted(&p) && o.ups);
    mw_stream_write(o.s, data, SIZE / 2);
    memcpy(mw_stream_reserve(o.s, SIZE), data + SIZE / 2, SIZE / 2);
    mw_stream_commit(o.s, SIZE / 2);
    CHECK(mw_stream_full(o.s), "far above the mark");
    size_t got = 0;
    uint64_t sum = 0;
    for (int64_t began = now_ms(); now_ms() - began < 2500;) { /* longer than write_ms, but something moves */
        size_t n = hear(&p, heard, sizeof heard);
        sum = sum_of(heard, n, sum);
        got += n;
        turns(50);
    }
    EQUAL(0, o.downs);
    int64_t began = now_ms();
    while (got < SIZE && now_ms() - began < 20000) {
        size_t n = hear(&p, heard, sizeof heard);
        sum = sum_of(heard, n, sum);
        got += n;
        mw_loop_step(loop, 0);
    }
    EQUAL(SIZE, got);
    CHECK(sum == sum_of(data, SIZE, 0), "the same bytes");
    UNTIL(o.drains == 1);
    CHECK(!mw_stream_full(o.s) && !mw_stream_pending(o.s), "all gone");
    EQUAL(0, o.downs);
    free(data);
    end_owner(&o);
    end_peer(&p);
}

/* ---- what it costs ---- */

static void test_system_calls(void) {
    char heard[16384];
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {0};
    open_to(&o, p.hosts);
    UNTIL(accepted(&p) && o.ups);
    sends = recvs = 0;
    for (int i = 0; i < 1000; i++) mw_stream_write(o.s, "0123456789", 10);
    mw_loop_step(loop, 0);
    EQUAL(1, sends); /* a turn's output is one write */
    size_t got = 0;
    UNTIL((got += (size_t)(recvfrom(p.fd, heard, sizeof heard, MSG_DONTWAIT, NULL, NULL) + 1)) >= 10000);
    sends = recvs = 0;
    for (size_t i = 1; i <= 100; i++) {
        mw_stream_write(o.s, "question", 8);
        mw_loop_step(loop, 0);
        sendto(p.fd, "answer", 6, MSG_NOSIGNAL, NULL, 0);
        UNTIL(o.got_len == 6 * i);
    }
    EQUAL(100, sends);
    EQUAL(100, recvs);
    end_owner(&o);
    end_peer(&p);
}

/* ---- its life ---- */

static void test_close_inside_events(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    owner up = {.close_on_up = true}, in = {.close_on_input = true}, down = {.close_on_down = true};
    open_to(&up, p.hosts);
    UNTIL(up.ups == 1);
    UNTIL(accepted(&p));
    hang_up(&p);
    open_to(&in, p.hosts);
    UNTIL(accepted(&p) && in.ups);
    say(&p, "abc", 3);
    UNTIL(in.inputs);
    hang_up(&p);
    open_to(&down, p.hosts);
    UNTIL(accepted(&p) && down.ups);
    hang_up(&p);
    UNTIL(down.downs == 1);
    turns(100);
    CHECK(!up.s && !in.s && !down.s, "closed");
    EQUAL(1, up.ups + up.downs);
    EQUAL(1, in.inputs);
    EQUAL(0, in.downs);
    CHECK(strcmp(in.got, "abc") == 0, "the input outlives the close");
    EQUAL(1, down.downs);
    end_owner(&in);
    end_peer(&p);
}

/* At every moment of its life, closing leaves nothing behind (ASan looks) and no event comes. */
static void test_close_at_any_time(void) {
    peer p = listen_on("127.0.0.1", 0, 64);
    for (int i = 0; i < 60; i++) {
        owner o = {.greeting = "hello"};
        open_to(&o, i % 3 == 0 ? p.hosts : i % 3 == 1 ? "127.0.0.1:1" : "localhost:1");
        for (int k = 0; k < i / 3; k++) mw_loop_step(loop, 0);
        end_owner(&o);
        mw_loop_step(loop, 0);
        EQUAL(0, o.ups + o.downs);
        if (accepted(&p)) hang_up(&p);
    }
    mw_stream_close(NULL);
    end_peer(&p);
    nap(100); /* lookups of localhost end */
}

static void test_not_up(void) {
    mw_error e;
    owner o = {0};
    open_to(&o, "127.0.0.1:1");
    mw_fail(&e, 0, true, "no reason");
    mw_stream_fail(o.s, &e);
    mw_stream_write(o.s, "abc", 3);
    memcpy(mw_stream_reserve(o.s, 100), "abc", 3);
    mw_stream_commit(o.s, 3);
    EQUAL(0, mw_stream_pending(o.s));
    UNTIL(o.downs == 1);
    CHECK(has(o.why.text, "refused"), "%s", o.why.text);
    mw_stream_fail(o.s, &e);
    UNTIL(o.downs == 2);
    CHECK(has(o.why.text, "refused"), "%s", o.why.text);
    end_owner(&o);
}

/* Specs' time does not pass it by while it connects or writes; a server that is away does not stop the clock.
 */
static void test_virtual_clock(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    owner o = {0}, away = {0};
    mw_loop_virtual(loop, true);
    open_with(&o, (mw_stream_options){.hosts = p.hosts, .idle_ms = 1500});
    CHECK(mw_loop_pending(loop), "it is about to connect");
    mw_loop_step(loop, 0);
    UNTIL(o.ups && accepted(&p));
    for (int i = 0; i < 5; i++) mw_loop_step(loop, 0);
    CHECK(!mw_loop_pending(loop), "it is up and has nothing to do");
    mw_loop_advance(loop, 3600000);
    turns(20);
    EQUAL(0, o.downs); /* an hour of specs is no silence */
    mw_stream_write(o.s, "x", 1);
    CHECK(mw_loop_pending(loop), "output waits");
    UNTIL(o.downs == 1); /* real silence is */
    end_owner(&o);
    open_with(&away, (mw_stream_options){.hosts = "127.0.0.1:1", .retry_ms = 60000, .retry_cap_ms = 60000});
    UNTIL(away.downs == 1);
    CHECK(!mw_loop_pending(loop), "it waits for the next round");
    end_owner(&away);
    CHECK(!mw_loop_pending(loop), "nothing is left");
    mw_loop_virtual(loop, false);
    end_peer(&p);
}

/* ---- all of it at once ---- */

/* Streams and peers that do everything at random. What must hold: after each `up` the frames come whole and
 * in order from the first one, and nothing comes while it is down. */
typedef struct wild {
    owner o; /* first: on_down and on_up are its */
    peer p;
    uint32_t sent, seen; /* frames of this connection */
    char frame[5000];
    size_t frame_len, frame_at;
    bool up;
    uint64_t frames;
} wild;

static void wild_up(void *arg) {
    wild *w = arg;
    CHECK(!w->up, "up twice");
    w->up = true;
    w->seen = 0;
    if (rnd(2)) mw_stream_established(w->o.s);
    if (rnd(3) == 0) mw_stream_write(w->o.s, w->frame, 100);
}

static size_t wild_input(void *arg, const char *data, size_t len, size_t *need) {
    wild *w = arg;
    size_t used = 0;
    uint32_t size, number;
    CHECK(w->up, "input while it is down");
    while (len - used >= 8) {
        memcpy(&size, data + used, 4);
        memcpy(&number, data + used + 4, 4);
        if (len - used < 8 + size) {
            *need = 8 + size;
            break;
        }
        CHECK(number == ++w->seen, "frame %u instead of %u", number, w->seen);
        for (uint32_t i = 0; i < size; i++)
            if ((uint8_t)data[used + 8 + i] != (uint8_t)(number + i))
                CHECK(false, "byte %u of frame %u", i, number);
        used += 8 + size;
        w->frames++;
        if (rnd(20) == 0) mw_stream_rest(w->o.s, (int64_t)rnd(3));
        if (rnd(200) == 0) {
            mw_error e;
            mw_fail(&e, 0, true, "a whim");
            mw_stream_fail(w->o.s, &e);
            break;
        }
    }
    return used;
}

static void wild_down(void *arg, const mw_error *why) {
    wild *w = arg;
    CHECK(why->text[0], "a reason");
    w->up = false;
    w->o.downs++;
}

static void next_frame(wild *w) {
    uint32_t size = (uint32_t)rnd(rnd(8) ? 50 : sizeof w->frame - 8), number = ++w->sent;
    memcpy(w->frame, &size, 4);
    memcpy(w->frame + 4, &number, 4);
    for (uint32_t i = 0; i < size; i++) w->frame[8 + i] = (char)(number + i);
    w->frame_len = 8 + size;
    w->frame_at = 0;
}

static void peer_acts(wild *w) {
    if (w->p.fd < 0) {
        if (!accepted(&w->p)) return;
        w->sent = 0;
        next_frame(w);
    }
    if (rnd(300) == 0) return hang_up(&w->p);
    if (rnd(4) == 0) (void)hear(&w->p, (char[4096]){0}, 4096);
    for (uint64_t pieces = rnd(20); pieces; pieces--) {
        size_t n = 1 + rnd(w->frame_len - w->frame_at);
        ssize_t sent = sendto(w->p.fd, w->frame + w->frame_at, n, MSG_NOSIGNAL, NULL, 0);
        if (sent < 0 && errno != EAGAIN) return hang_up(&w->p);
        if (sent > 0) w->frame_at += (size_t)sent;
        if (w->frame_at == w->frame_len) next_frame(w);
    }
}

static void owner_acts(wild *w) {
    static char much[100000];
    if (rnd(5) == 0 && !mw_stream_full(w->o.s))
        mw_stream_write(w->o.s, much, rnd(rnd(10) ? 100 : sizeof much));
}

static void test_everything_at_random(void) {
    enum { COUNT = 8 };
    static const mw_stream_events wild_events = {wild_up, wild_input, wild_down, NULL};
    static wild all[COUNT];
    uint64_t frames = 0, downs = 0;
    mw_error e;
    for (wild *w = all; w < all + COUNT; w++) {
        w->p = listen_on("127.0.0.1", 0, 8);
        mw_stream_options o = {.hosts = w->p.hosts, .retry_ms = 1, .retry_cap_ms = 4, .idle_ms = 5000};
        w->o.s = mw_stream_open(loop, &o, &wild_events, w, &e);
    }
    for (int i = 0; i < 6000; i++) {
        for (wild *w = all; w < all + COUNT; w++) {
            peer_acts(w);
            owner_acts(w);
        }
        mw_loop_step(loop, rnd(10) ? 0 : 1);
    }
    for (wild *w = all; w < all + COUNT; w++) {
        frames += w->frames;
        downs += (uint64_t)w->o.downs;
        end_owner(&w->o);
        end_peer(&w->p);
    }
    CHECK(frames > 10000 && downs > 100, "%d frames, %d times down", (int)frames, (int)downs);
}

/* ---- parts ---- */

static void test_socket_options(void) {
    peer p = listen_on("127.0.0.1", 0, 8);
    mw_address a;
    mw_error e;
    bool at_once;
    CHECK(mw_address_literal("127.0.0.1", p.port, &a), "an address");
    CHECK(!mw_address_literal("localhost", p.port, &a), "a name");
    mw_address_literal("127.0.0.1", p.port, &a);
    int fd = mw_socket_connect(&a, 12345, &at_once, &e), value = 0;
    CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK && fcntl(fd, F_GETFD) & FD_CLOEXEC, "flags");
    static const struct {
        int level, option, expected;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, 30},
                   {IPPROTO_TCP, TCP_USER_TIMEOUT, 12345}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        socklen_t len = sizeof value;
        getsockopt(fd, options[i].level, options[i].option, &value, &len);
        EQUAL(options[i].expected, value);
    }
    close(fd);
    end_peer(&p);
}

static void test_self_connect(void) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    mw_error e;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
    CHECK(bind(fd, (struct sockaddr *)&at, len) == 0 && getsockname(fd, (struct sockaddr *)&at, &len) == 0 &&
              connect(fd, (struct sockaddr *)&at, len) == 0,
          "Linux lets a socket connect to itself");
    CHECK(mw_socket_connected(fd, &e) && has(e.text, "refused"), "%s", e.text);
    close(fd);
}

static void test_fifo(void) {
    mw_fifo f = {0};
    uint8_t next_in = 0, next_out = 0;
    size_t size = 0, wrong = 0;
    for (int i = 0; i < 20000; i++) {
        size_t put = rnd(rnd(10) ? 300 : 40000), take = rnd(rnd(10) ? 300 : 60000);
        char *to = mw_fifo_reserve(&f, put + rnd(100));
        for (size_t k = 0; k < put; k++) to[k] = (char)next_in++;
        mw_fifo_filled(&f, put);
        size += put;
        if (take > size) take = size;
        for (size_t k = 0; k < take; k++) wrong += (uint8_t)f.data[f.at + k] != next_out++;
        mw_fifo_taken(&f, take);
        size -= take;
        wrong += mw_fifo_size(&f) != size;
        if (!rnd(50)) mw_fifo_trim(&f);
    }
    EQUAL(0, wrong);
    mw_fifo_taken(&f, size);
    mw_fifo_trim(&f);
    mw_fifo_trim(&f);
    EQUAL(MW_FIFO_LEAST, f.capacity);
    mw_fifo_free(&f);
}

/* The helper for parsers' tests, on its own example. */
static void test_feed(void) {
    static const char sample[] = "\0\0\0\5hello\0\0\0\0\0\0\0\1x\0\0\0\11wonderful";
    feed_mutated(&frames_parser, sample, sizeof sample - 1, 20000, 7);
    uint64_t whole, cut;
    CHECK(feed_once(&frames_parser, (const uint8_t *)sample, sizeof sample - 1, 0, &whole), "good");
    CHECK(feed_once(&frames_parser, (const uint8_t *)sample, sizeof sample - 2, 3, &cut) && cut != whole,
          "less");
    CHECK(!feed_once(&frames_parser, (const uint8_t *)"\377\377\377\377", 4, 3, &cut), "nonsense");
}

static void test_report(void) {
    mw_peer peers[2] = {{.name = "reader",
                         .state = "up",
                         .address = "[::1]:6379",
                         .since_ms = 1000,
                         .connects = 2,
                         .bytes_in = 10,
                         .bytes_out = 20,
                         .tls = "TLSv1.3"},
                        {.name = "commands", .state = "waiting", .error = "refused", .since_ms = 99000}};
    lua_State *L = luaL_newstate();
    luaL_openlibs(L);
    lua_newtable(L);
    mw_report_peers(L, "redis://h", peers, 2, 61000);
    lua_setglobal(L, "list");
    int bad = luaL_dostring(
        L, "local a, b = list[1], list[2]\n"
           "assert(#list == 2 and a.broker == 'redis://h' and a.name == 'reader')\n"
           "assert(a.state == 'up' and a.address == '[::1]:6379' and a.tls == 'TLSv1.3')\n"
           "assert(a.since == 60 and a.connects == 2 and a.bytes_in == 10 and a.bytes_out == 20)\n"
           "assert(a.error == nil and b.error == 'refused' and b.address == nil and b.since == 0)");
    CHECK(!bad, "%s", lua_tostring(L, -1));
    lua_close(L);
}

static const test tests[] = {{"echo", test_echo},
                             {"unix_socket", test_unix_socket},
                             {"ipv6", test_ipv6},
                             {"reconnect", test_reconnect},
                             {"backoff", test_backoff},
                             {"host_syntax", test_host_syntax},
                             {"several_hosts", test_several_hosts},
                             {"several_addresses", test_several_addresses},
                             {"connect_deadline", test_connect_deadline},
                             {"slow_names", test_slow_names},
                             {"lookups_are_bounded", test_lookups_are_bounded},
                             {"redirect", test_redirect},
                             {"redirect_to_nobody", test_redirect_to_nobody},
                             {"one_byte_at_a_time", test_one_byte_at_a_time},
                             {"silence", test_silence},
                             {"busy_loop_is_not_silence", test_busy_loop_is_not_silence},
                             {"garbage", test_garbage},
                             {"huge_length", test_huge_length},
                             {"no_end", test_no_end},
                             {"last_words", test_last_words},
                             {"large_frames", test_large_frames},
                             {"rest", test_rest},
                             {"fairness", test_fairness},
                             {"peer_stops_reading", test_peer_stops_reading},
                             {"slow_reader", test_slow_reader},
                             {"system_calls", test_system_calls},
                             {"close_inside_events", test_close_inside_events},
                             {"close_at_any_time", test_close_at_any_time},
                             {"not_up", test_not_up},
                             {"virtual_clock", test_virtual_clock},
                             {"socket_options", test_socket_options},
                             {"self_connect", test_self_connect},
                             {"fifo", test_fifo},
                             {"everything_at_random", test_everything_at_random},
                             {"feed", test_feed},
                             {"report", test_report},
                             {0}};

int main(int argc, char **argv) {
    alarm(220);
    loop = mw_loop_new();
    int code = run_tests(tests, argc, argv);
    mw_loop_free(loop);
    return code;
}
