#include "process/control.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"

enum { LINE_MAX_BYTES = 4096, PATIENCE_MS = 10000, GUESTS_MOST = 64 };

typedef struct guest guest;
struct guest {
    guest *next;
    mw_control *control;
    mw_io io;
    mw_timer patience; /* stopped while it waits for its answer */
    uint64_t number;
    bool asked;
    int fd;
    mw_buf in, out;
    size_t sent;
};

struct mw_control {
    mw_loop *loop;
    mw_io io;
    int fd;
    char *path;
    void (*asked)(void *owner, uint64_t number, const char *line);
    void *owner;
    guest *guests; /* the latest first */
    uint64_t numbers;
    int count;
};

static void dismiss(guest *g) {
    guest **at = &g->control->guests;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    g->control->count--;
    mw_io_stop(&g->io);
    mw_timer_stop(&g->patience);
    close(g->fd);
    mw_buf_free(&g->in);
    mw_buf_free(&g->out);
    free(g);
}

static void too_slow(mw_timer *t) { dismiss(mw_container_of(t, guest, patience)); }

static void writable(mw_io *io, int events) {
    (void)events;
    guest *g = mw_container_of(io, guest, io);
    ssize_t n = send(g->fd, g->out.data + g->sent, g->out.len - g->sent, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) g->sent += (size_t)n;
    if (n <= 0 || g->sent == g->out.len) dismiss(g);
}

void mw_control_answer(mw_control *c, uint64_t number, const char *text) {
    guest *g = c->guests;
    while (g && (g->number != number || !g->asked)) g = g->next;
    if (!g) return;
    mw_buf_puts(&g->out, text);
    mw_buf_puts(&g->out, "\n");
    mw_timer_start(c->loop, &g->patience, PATIENCE_MS, too_slow);
    mw_io_start(c->loop, &g->io, g->fd, MW_WRITE, writable);
    writable(&g->io, MW_WRITE); /* at once: the process may be about to end */
}

/* While it waits for its answer: whoever leaves must not keep others out. What else it says is not heard. */
static void leaves(mw_io *io, int events) {
    (void)events;
    guest *g = mw_container_of(io, guest, io);
    char ignored[4096];
    ssize_t n = recv(g->fd, ignored, sizeof ignored, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) dismiss(g);
}

static void ask(guest *g) {
    g->asked = true;
    mw_timer_stop(&g->patience);
    mw_io_start(g->control->loop, &g->io, g->fd, MW_READ, leaves);
    g->control->asked(g->control->owner, g->number, g->in.data);
}

static void readable(mw_io *io, int events) {
    (void)events;
    guest *g = mw_container_of(io, guest, io);
    ssize_t n = recv(g->fd, mw_buf_reserve(&g->in, LINE_MAX_BYTES), LINE_MAX_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n > 0) g->in.len += (size_t)n;
    char *end = g->in.len ? memchr(g->in.data, '\n', g->in.len) : NULL;
    if (n <= 0 || (!end && g->in.len >= LINE_MAX_BYTES)) {
        dismiss(g);
    } else if (end) {
        *end = 0;
        ask(g);
    }
}

/* Of those that have not asked yet the one that has waited longest: it must not keep others out. */
static bool dismiss_silent(mw_control *c) {
    guest *silent = NULL;
    for (guest *g = c->guests; g; g = g->next)
        if (!g->asked) silent = g;
    if (silent) dismiss(silent);
    return silent != NULL;
}

static void knock(mw_io *io, int events) {
    (void)events;
    mw_control *c = mw_container_of(io, mw_control, io);
    int fd = accept4(c->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    if (c->count == GUESTS_MOST && !dismiss_silent(c)) {
        close(fd);
        return;
    }
    guest *g = calloc(1, sizeof *g);
    if (!g) abort();
    *g = (guest){.next = c->guests, .control = c, .fd = fd, .number = ++c->numbers};
    c->guests = g;
    c->count++;
    mw_timer_start(c->loop, &g->patience, PATIENCE_MS, too_slow);
    mw_io_start(c->loop, &g->io, fd, MW_READ, readable);
}

/* Bound under another name first: one that is found, but does not listen yet, looks like a dead process's, and
 * whoever finds it takes it away (door.c). */
static int open_socket(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t len = sizeof address.sun_path;
    if ((size_t)snprintf(address.sun_path, len, "%.*s.%s", (int)(name - path), path, name) >= len) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    unlink(address.sun_path); /* the name holds our pid: what lies there is a dead process's */
    mode_t old = umask(0177);
    int rc = bind(fd, (struct sockaddr *)&address, sizeof address);
    umask(old);
    if (rc == 0 && listen(fd, GUESTS_MOST) == 0 && rename(address.sun_path, path) == 0) return fd;
    int why = errno;
    if (rc == 0) unlink(address.sun_path);
    close(fd);
    errno = why;
    return -1;
}

mw_control *mw_control_new(mw_loop *loop, const char *path,
                           void (*asked)(void *owner, uint64_t number, const char *line), void *owner,
                           mw_error *e) {
    int fd = open_socket(path);
    if (fd < 0) {
        mw_fail(e, errno, true, "cannot listen on %s: %s", path, strerror(errno));
        return NULL;
    }
    mw_control *c = calloc(1, sizeof *c);
    if (!c || !(c->path = strdup(path))) abort();
    c->loop = loop;
    c->fd = fd;
    c->asked = asked;
    c->owner = owner;
    mw_io_start(loop, &c->io, fd, MW_READ, knock);
    return c;
}

void mw_control_free(mw_control *c) {
    if (!c) return;
    while (c->guests) dismiss(c->guests);
    mw_io_stop(&c->io);
    close(c->fd);
    unlink(c->path);
    free(c->path);
    free(c);
}
