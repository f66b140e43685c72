/* output.c - what the owner writes during a turn leaves in one write at its end. What the kernel does not
 * take waits for the socket to be writable, under a deadline. */
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "net/internal.h"
#include "net/socket.h"

enum { WIRE_AT_ONCE = 256 << 10 }; /* encrypted ahead of the kernel */
enum { FAREWELL_MS = 200, SILENT_MS = 20 };

size_t mw_stream_pending(const mw_stream *s) {
    return mw_fifo_size(&s->out) + (s->tls ? mw_fifo_size(mw_tls_wire(s->tls)) : 0);
}

bool mw_stream_full(const mw_stream *s) { return s->full; }

char *mw_stream_reserve(mw_stream *s, size_t len) { return mw_fifo_reserve(&s->out, len); }

void mw_stream_commit(mw_stream *s, size_t len) {
    if (!mw_stream_is_up(s) || !len) return;
    mw_fifo_filled(&s->out, len);
    if (mw_fifo_size(&s->out) > s->o.high) s->full = true;
    if (!s->write_io.watcher) mw_defer_last(s->loop, &s->flush, mw_output_flush);
}

void mw_stream_write(mw_stream *s, const void *data, size_t len) {
    if (!mw_stream_is_up(s) || !len) return;
    memcpy(mw_fifo_reserve(&s->out, len), data, len);
    mw_stream_commit(s, len);
}

static void stuck_fired(mw_timer *t) {
    mw_stream *s = mw_container_of(t, mw_stream, stuck);
    s->stuck_over = true;
    mw_stream_soon(s);
}

static void wait_for_room(mw_stream *s) {
    mw_io_start(s->loop, &s->write_io, s->fd, MW_WRITE, mw_stream_writable);
    s->queued = mw_socket_queued(s->fd);
    if (mw_timer_running(&s->stuck)) return;
    s->moved = mw_loop_real_ms(s->loop);
    mw_timer_start_real(s->loop, &s->stuck, s->o.write_ms, stuck_fired);
}

/* What goes to the socket next: the owner's bytes, or what TLS made of them. */
static mw_fifo *next_piece(mw_stream *s, mw_error *e) {
    if (!s->tls) return &s->out;
    mw_fifo *wire = mw_tls_wire(s->tls);
    size_t size = mw_fifo_size(&s->out);
    if (!size || mw_fifo_size(wire) >= WIRE_AT_ONCE) return wire;
    if (size > WIRE_AT_ONCE) size = WIRE_AT_ONCE;
    if (mw_tls_write(s->tls, s->out.data + s->out.at, size, e)) return NULL;
    mw_fifo_taken(&s->out, size);
    return wire;
}

/* 1: all of it is gone, 0: the kernel takes no more now, -1 */
static int write_all(mw_stream *s, mw_error *e) {
    while (mw_stream_pending(s)) {
        mw_fifo *piece = next_piece(s, e);
        if (!piece) return -1;
        size_t size = mw_fifo_size(piece);
        ssize_t n = mw_socket_write(s->fd, piece->data + piece->at, size, e);
        if (n < 0) return -1;
        if (n > 0) s->moved = mw_loop_real_ms(s->loop);
        s->bytes_out += (uint64_t)n;
        mw_fifo_taken(piece, (size_t)n);
        if ((size_t)n < size) return 0;
    }
    return 1;
}

static void check_marks(mw_stream *s) {
    if (!s->full || mw_fifo_size(&s->out) > s->o.low) return;
    s->full = false;
    s->is_below = true;
    mw_stream_soon(s);
}

void mw_output_run(mw_stream *s) {
    mw_error e;
    if (s->fd < 0 || s->write_failed || s->write_io.watcher) return;
    switch (write_all(s, &e)) {
    case 0: wait_for_room(s); break;
    case 1: mw_timer_stop(&s->stuck); break;
    default: /* before it closed, the server may have said why: that is read first */
        s->why = e;
        s->write_failed = true;
        mw_stream_soon(s);
        return;
    }
    check_marks(s);
    mw_stream_count_outside(s);
    mw_stream_trim_later(s);
}

void mw_stream_farewell(mw_stream *s) {
    char passed_over[4096];
    if (!mw_stream_is_up(s)) return;
    mw_output_run(s);
    int wait_ms = FAREWELL_MS;
    for (int i = 0; i < FAREWELL_MS / SILENT_MS; i++) {
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        if (s->fd < 0 || poll(&p, 1, wait_ms) <= 0 || read(s->fd, passed_over, sizeof passed_over) <= 0)
            return;
        wait_ms = SILENT_MS;
    }
}

void mw_output_flush(mw_deferred *d) { mw_output_run(mw_container_of(d, mw_stream, flush)); }
