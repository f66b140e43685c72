#include "net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

/* A peer whose machine is gone is noticed after a minute of silence, also by those who only listen. */
enum { KEEPALIVE_IDLE_S = 30, KEEPALIVE_EVERY_S = 10, KEEPALIVE_COUNT = 3 };

static void set(int fd, int level, int option, int value) {
    (void)!setsockopt(fd, level, option, &value,
                      sizeof value); /* an option less is no reason not to connect */
}

static void set_options(int fd, int64_t unanswered_ms) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* a turn's output is one write: nothing better follows */
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT);
    if (unanswered_ms > 0 && unanswered_ms < INT32_MAX)
        set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)unanswered_ms);
}

static const char *words_for(int code) {
    switch (code) {
    case ECONNREFUSED: return "connection refused: is the server running there?";
    case EPIPE:
    case ECONNRESET: return "the server closed the connection";
    case ETIMEDOUT: return "the server does not answer any more";
    case EAGAIN: return "the server accepts no connections now"; /* a Unix socket whose queue is full */
    default: return strerror(code);
    }
}

static int fail(mw_error *e, int code) { return mw_fail(e, code, true, "%s", words_for(code)); }

int mw_socket_connect(const mw_address *to, int64_t unanswered_ms, bool *connected, mw_error *e) {
    int fd = socket(to->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return fail(e, errno);
    if (to->at.ss_family != AF_UNIX) set_options(fd, unanswered_ms);
    *connected = connect(fd, (const struct sockaddr *)&to->at, to->len) == 0;
    if (*connected || errno == EINPROGRESS || errno == EINTR) return fd;
    fail(e, errno);
    close(fd);
    return -1;
}

/* On one machine a connect to a port where nobody listens may be given that very port, and then reaches
 * itself. */
static bool is_itself(int fd) {
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_len = sizeof here, there_len = sizeof there;
    return getsockname(fd, (struct sockaddr *)&here, &here_len) == 0 && here.ss_family != AF_UNIX &&
           getpeername(fd, (struct sockaddr *)&there, &there_len) == 0 && here_len == there_len &&
           memcmp(&here, &there, here_len) == 0;
}

int mw_socket_connected(int fd, mw_error *e) {
    int code = 0;
    socklen_t len = sizeof code;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &len)) code = errno;
    if (code == 0 && is_itself(fd)) code = ECONNREFUSED;
    return code ? fail(e, code) : 0;
}

ssize_t mw_socket_read(int fd, void *to, size_t room, mw_error *e) {
    ssize_t n;
    do n = recv(fd, to, room, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) return n;
    if (n == 0) return fail(e, ECONNRESET);
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : fail(e, errno);
}

ssize_t mw_socket_write(int fd, const void *data, size_t len, mw_error *e) {
    ssize_t n;
    do n = send(fd, data, len, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : fail(e, errno);
}

int mw_socket_queued(int fd) {
    int bytes = -1;
    return ioctl(fd, SIOCOUTQ, &bytes) ? -1 : bytes;
}

void mw_address_path(const char *path, mw_address *out) {
    struct sockaddr_un *un = (struct sockaddr_un *)&out->at;
    *un = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(un->sun_path, sizeof un->sun_path, "%s", path);
    out->len = sizeof *un;
}

void mw_address_text(const mw_address *a, char out[MW_ADDRESS_TEXT]) {
    char host[INET6_ADDRSTRLEN] = "?";
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a->at;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a->at;
    switch (a->at.ss_family) {
    case AF_UNIX: snprintf(out, MW_ADDRESS_TEXT, "%s", ((const struct sockaddr_un *)&a->at)->sun_path); break;
    case AF_INET:
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(out, MW_ADDRESS_TEXT, "%s:%d", host, ntohs(v4->sin_port));
        break;
    default:
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(out, MW_ADDRESS_TEXT, "[%s]:%d", host, ntohs(v6->sin6_port));
    }
}
