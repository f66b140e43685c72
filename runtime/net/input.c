/* input.c - reads into the place where the parser looks, a bounded amount per turn. The buffer grows with
 * what has arrived, never with what a peer announces. */
#include <errno.h>

#include "net/internal.h"
#include "net/socket.h"

enum { PER_TURN = 512 << 10, LEAST_CHUNK = MW_FIFO_LEAST, MOST_CHUNK = 256 << 10 };

static void too_large(mw_stream *s, size_t size) {
    mw_error e;
    mw_fail(&e, MW_EFORMAT, true, "%s: the server announces %zu bytes in one piece; at most %zu are taken",
            s->address, size, s->o.max_input);
    mw_stream_doom(s, &e);
}

static void endless(mw_stream *s) {
    mw_error e;
    mw_fail(&e, MW_EFORMAT, true, "%s: the server sent %zu bytes that have no end; no more are taken",
            s->address, mw_fifo_size(&s->in));
    mw_stream_doom(s, &e);
}

static void show_input(mw_stream *s) {
    size_t size = mw_fifo_size(&s->in), need = 0;
    if (!size || size < s->need || !mw_stream_alive(s)) return;
    size_t used = s->events.input(s->owner, s->in.data + s->in.at, size, &need);
    if (!mw_stream_alive(s)) return;
    mw_fifo_taken(&s->in, used);
    s->need = need;
    if (need > s->o.max_input) too_large(s, need);
}

static size_t room_to_read(const mw_stream *s) {
    size_t left = s->o.max_input - mw_fifo_size(&s->in);
    return s->chunk < left ? s->chunk : left;
}

static ssize_t read_some(mw_stream *s, size_t room, bool *more, mw_error *e) {
    char *to = mw_fifo_reserve(&s->in, room);
    if (s->tls) return mw_tls_read(s->tls, to, room, more, e);
    ssize_t n = mw_socket_read(s->fd, to, room, e);
    *more = n == (ssize_t)room;
    return n;
}

static void lost(mw_stream *s, const mw_error *cause) {
    mw_error e;
    /* After a write that failed, the end of the input tells more only when all that is known is that it
     * closed. */
    if (s->write_failed && s->why.code != EPIPE && s->why.code != ECONNRESET) return;
    mw_fail(&e, cause->code, true, "%s: %s", s->address, cause->text);
    mw_stream_doom(s, &e);
}

void mw_input_run(mw_stream *s) {
    mw_error e;
    bool more = true;
    size_t budget = PER_TURN;
    s->readable = false;
    while (more && budget && mw_stream_alive(s)) {
        size_t room = room_to_read(s);
        if (!room) return endless(s);
        ssize_t n = read_some(s, room, &more, &e);
        if (n < 0) return lost(s, &e);
        if (n == 0) break;
        mw_fifo_filled(&s->in, (size_t)n);
        s->bytes_in += (uint64_t)n;
        s->heard = mw_loop_real_ms(s->loop);
        if ((size_t)n == s->chunk && s->chunk < MOST_CHUNK) s->chunk *= 2;
        budget -= (size_t)n < budget ? (size_t)n : budget;
        show_input(s);
    }
    if (!mw_stream_alive(s)) return;
    if (more && s->tls) { /* decrypted already: the poll would not tell */
        s->readable = true;
        mw_stream_soon(s);
    }
    if (s->tls && mw_fifo_size(mw_tls_wire(s->tls))) mw_defer_last(s->loop, &s->flush, mw_output_flush);
    mw_stream_trim_later(s);
}

/* ---- reading later ---- */

/* A socket that is looked at after each rest is not given to the poll and taken away again in between. */
void mw_input_watch(mw_stream *s) {
    if (s->read_io.watcher || mw_timer_running(&s->rest)) return;
    mw_io_start(s->loop, &s->read_io, s->fd, MW_READ, mw_stream_readable);
}

static void rested(mw_timer *t) {
    mw_stream *s = mw_container_of(t, mw_stream, rest);
    s->readable = true;
    mw_stream_soon(s);
}

void mw_stream_rest(mw_stream *s, int64_t ms) {
    if (!mw_stream_is_up(s) || mw_timer_running(&s->rest)) return;
    mw_io_stop(&s->read_io);
    mw_timer_start_real(s->loop, &s->rest, ms, rested);
}
