/* stream_echo.c - what a stream costs: messages to an echo server on 127.0.0.1 and back, through runtime/net
 * and through blocking send and recv. The server is another process. Prints messages per second and this
 * process's CPU time.
 *
 * stream_echo [seconds per line, default 2] */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "loop/loop.h"
#include "net/stream.h"

enum { LARGEST = 1 << 20 };

static int port;
static double seconds = 2;
static char block[LARGEST];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* ---- the server: gives back whole messages, with one write for all that came at once ---- */

static void serve(int listener) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        for (ssize_t n; (n = recv(fd, block, sizeof block, 0)) > 0;)
            for (ssize_t at = 0, m; at < n; at += m)
                if ((m = send(fd, block + at, (size_t)(n - at), MSG_NOSIGNAL)) < 0) break;
        close(fd);
    }
}

static pid_t start_server(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 8)) die("listen");
    getsockname(listener, (struct sockaddr *)&at, &len);
    port = ntohs(at.sin_port);
    pid_t pid = fork();
    if (pid == 0) serve(listener);
    close(listener);
    return pid;
}

static void tell(const char *how, int size, int depth, double count, double took, double used) {
    printf("%-9s %5d B x %-4d %10.0f messages/s %8.2f us CPU each\n", how, size, depth, count / took,
           used / count * 1e6);
    fflush(stdout);
}

/* ---- blocking ---- */

static void run_blocking(int size, int depth) {
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    size_t total = (size_t)size * (size_t)depth;
    double began = now(), used = cpu(), count = 0;
    for (; now() - began < seconds; count += depth) {
        if (send(fd, block, total, MSG_NOSIGNAL) != (ssize_t)total) die("send");
        for (size_t got = 0; got < total;) {
            ssize_t n = recv(fd, block, total - got, 0);
            if (n <= 0) die("recv");
            got += (size_t)n;
        }
    }
    tell("blocking", size, depth, count, now() - began, cpu() - used);
    close(fd);
}

/* ---- a stream ---- */

static struct {
    mw_stream *s;
    size_t size;
    int depth, back;
    double count;
} echo;

static void ask(void) {
    for (int i = 0; i < echo.depth; i++) mw_stream_write(echo.s, block, echo.size);
}

static void on_up(void *unused) {
    (void)unused;
    ask();
}

static size_t on_input(void *unused, const char *data, size_t len, size_t *need) {
    (void)unused, (void)data;
    int whole = (int)(len / echo.size);
    *need = echo.size;
    echo.back += whole;
    echo.count += whole;
    if (echo.back == echo.depth) {
        echo.back = 0;
        ask();
    }
    return (size_t)whole * echo.size;
}

static void on_down(void *unused, const mw_error *why) {
    (void)unused;
    fprintf(stderr, "%s\n", why->text);
    exit(1);
}

static void run_stream(int size, int depth) {
    static const mw_stream_events events = {.up = on_up, .input = on_input, .down = on_down};
    char hosts[32];
    mw_error e;
    mw_loop *loop = mw_loop_new();
    snprintf(hosts, sizeof hosts, "127.0.0.1:%d", port);
    echo.size = (size_t)size;
    echo.depth = depth;
    echo.back = 0;
    echo.count = 0;
    double began = now(), used = cpu();
    echo.s = mw_stream_open(loop, &(mw_stream_options){.hosts = hosts}, &events, NULL, &e);
    if (!echo.s) die(e.text);
    for (int turn = 0; turn % 64 || now() - began < seconds; turn++) mw_loop_step(loop, 100);
    tell("stream", size, depth, echo.count, now() - began, cpu() - used);
    mw_stream_close(echo.s);
    mw_loop_free(loop);
}

int main(int argc, char **argv) {
    static const struct { int size, depth; } cases[] = {{100, 1}, {100, 64}, {1024, 100}, {65536, 4}};
    if (argc > 1) seconds = atof(argv[1]);
    pid_t server = start_server();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_blocking(cases[i].size, cases[i].depth);
        run_stream(cases[i].size, cases[i].depth);
    }
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return 0;
}
