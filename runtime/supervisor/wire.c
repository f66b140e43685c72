#include "supervisor/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"

enum { READ_AT_ONCE = 65536, WAITING_MOST = MW_WIRE_TEXT_MOST, PUSH_MS = 200 };

typedef struct head {
    uint32_t kind, number, len;
} head;

struct mw_wire {
    mw_loop *loop;
    mw_io in, out;
    int fd;
    mw_wire_events events;
    mw_buf got, waiting;
    size_t sent;
    bool closed;
};

static void shut(mw_wire *w) {
    if (w->closed) return;
    w->closed = true;
    mw_io_stop(&w->in);
    mw_io_stop(&w->out);
    w->events.closed(w->events.owner);
}

/* ---- hearing ---- */

/* Gives on what is whole, keeps the rest. */
static void take_frames(mw_wire *w) {
    size_t at = 0;
    while (!w->closed && w->got.len - at >= sizeof(head)) {
        head h;
        memcpy(&h, w->got.data + at, sizeof h);
        if (h.len > MW_WIRE_TEXT_MOST) {
            shut(w);
            return;
        }
        if (w->got.len - at - sizeof h < h.len) {
            mw_buf_reserve(&w->got, h.len + sizeof h);
            break;
        }
        char *text = malloc(h.len + 1);
        if (!text) abort();
        if (h.len) memcpy(text, w->got.data + at + sizeof h, h.len);
        text[h.len] = 0;
        at += sizeof h + h.len;
        w->events.heard(w->events.owner, h.kind, h.number, text, h.len);
        free(text);
    }
    w->got.len -= at;
    if (at && w->got.len) memmove(w->got.data, w->got.data + at, w->got.len);
}

void mw_wire_hear(mw_wire *w) {
    while (!w->closed) {
        ssize_t n = recv(w->fd, mw_buf_reserve(&w->got, READ_AT_ONCE), READ_AT_ONCE, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            shut(w);
            return;
        }
        w->got.len += (size_t)n;
        take_frames(w);
    }
}

static void readable(mw_io *io, int events) {
    (void)events;
    mw_wire_hear(mw_container_of(io, mw_wire, in));
}

/* ---- saying ---- */

static void writable(mw_io *io, int events);

/* false: it would block, and goes on when it does not. */
static bool write_some(mw_wire *w) {
    while (w->sent < w->waiting.len) {
        ssize_t n =
            send(w->fd, w->waiting.data + w->sent, w->waiting.len - w->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) {
            w->waiting.len = w->sent = 0; /* the reading side will notice */
            break;
        }
        if (n < 0) return false;
        w->sent += (size_t)n;
    }
    w->waiting.len = w->sent = 0;
    mw_io_stop(&w->out);
    return true;
}

static void writable(mw_io *io, int events) {
    (void)events;
    write_some(mw_container_of(io, mw_wire, out));
}

bool mw_wire_say(mw_wire *w, uint32_t kind, uint32_t number, const char *text, size_t len) {
    if (w->closed || len > MW_WIRE_TEXT_MOST || w->waiting.len - w->sent + len > WAITING_MOST) return false;
    head h = {kind, number, (uint32_t)len};
    bool idle = !w->waiting.len;
    mw_buf_add(&w->waiting, &h, sizeof h);
    mw_buf_add(&w->waiting, text, len);
    if (idle && !write_some(w)) mw_io_start(w->loop, &w->out, w->fd, MW_WRITE, writable);
    return true;
}

void mw_wire_push(mw_wire *w) {
    struct pollfd p = {.fd = w->fd, .events = POLLOUT};
    while (!w->closed && !write_some(w))
        if (poll(&p, 1, PUSH_MS) <= 0) return;
}

/* ---- life ---- */

mw_wire *mw_wire_new(mw_loop *loop, int fd, mw_wire_events events) {
    mw_wire *w = calloc(1, sizeof *w);
    if (!w) abort();
    w->loop = loop;
    w->fd = fd;
    w->events = events;
    mw_io_start(loop, &w->in, fd, MW_READ, readable);
    return w;
}

void mw_wire_free(mw_wire *w) {
    if (!w) return;
    mw_io_stop(&w->in);
    mw_io_stop(&w->out);
    close(w->fd);
    mw_buf_free(&w->got);
    mw_buf_free(&w->waiting);
    free(w);
}
