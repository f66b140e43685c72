/* stream.c - the life of a stream, and its events. The poll only notes what happened; everything is done in a
 * turn of its own (a deferred call), from whose flat stack the owner is called. */
#include "net/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "net/internal.h"
#include "net/socket.h"

enum { TRIM_EVERY_MS = 1000 };

static void take_turn(mw_deferred *d);

void mw_stream_soon(mw_stream *s) {
    if (!s->closed) mw_defer(s->loop, &s->turn, take_turn);
}

void mw_stream_readable(mw_io *io, int events) {
    (void)events;
    mw_stream *s = mw_container_of(io, mw_stream, read_io);
    s->readable = true;
    mw_stream_soon(s);
}

void mw_stream_writable(mw_io *io, int events) {
    (void)events;
    mw_stream *s = mw_container_of(io, mw_stream, write_io);
    s->writable = true;
    mw_stream_soon(s);
}

/* In specs time must not run ahead of a server that is about to answer; one that is away may be waited for.
 */
void mw_stream_count_outside(mw_stream *s) {
    bool waits = s->state == MW_STREAM_RESOLVING || s->state == MW_STREAM_CONNECTING ||
                 (s->state == MW_STREAM_UP && mw_stream_pending(s));
    if (s->closed) waits = false;
    if (waits == s->told_outside) return;
    s->told_outside = waits;
    mw_loop_outside(s->loop, waits ? 1 : -1);
}

void mw_stream_set_state(mw_stream *s, mw_stream_state state) {
    if (s->state != state) s->since_ms = mw_loop_wall_ms(s->loop);
    s->state = state;
    mw_stream_count_outside(s);
}

static void trim_fired(mw_timer *t) {
    mw_stream *s = mw_container_of(t, mw_stream, trim);
    mw_fifo_trim(&s->in);
    mw_fifo_trim(&s->out);
    if (s->tls) mw_fifo_trim(mw_tls_wire(s->tls));
    if (s->in.capacity < s->chunk) s->chunk = s->in.capacity > MW_FIFO_LEAST ? s->in.capacity : MW_FIFO_LEAST;
    mw_stream_trim_later(s);
}

void mw_stream_trim_later(mw_stream *s) {
    size_t capacity = s->in.capacity + s->out.capacity + (s->tls ? mw_tls_wire(s->tls)->capacity : 0);
    if (capacity <= 3 * MW_FIFO_LEAST || mw_timer_running(&s->trim)) return;
    mw_timer_start_real(s->loop, &s->trim, TRIM_EVERY_MS, trim_fired);
}

/* ---- up and down ---- */

static void idle_fired(mw_timer *t) {
    mw_stream *s = mw_container_of(t, mw_stream, idle);
    s->idle_over = true;
    mw_stream_soon(s);
}

void mw_stream_came_up(mw_stream *s) {
    mw_timer_stop(&s->deadline);
    s->deadline_over = false;
    s->connects++;
    s->heard = mw_loop_real_ms(s->loop);
    mw_stream_set_state(s, MW_STREAM_UP);
    mw_input_watch(s);
    if (s->o.idle_ms) mw_timer_start_real(s->loop, &s->idle, s->o.idle_ms, idle_fired);
    if (s->tls) { /* it may have read past the handshake, and its last words may not be written */
        s->readable = true;
        mw_stream_soon(s);
        mw_defer_last(s->loop, &s->flush, mw_output_flush);
    }
    s->events.up(s->owner);
}

void mw_stream_drop(mw_stream *s) {
    mw_io_stop(&s->read_io);
    mw_io_stop(&s->write_io);
    mw_timer_stop(&s->deadline);
    mw_timer_stop(&s->idle);
    mw_timer_stop(&s->stuck);
    mw_timer_stop(&s->rest);
    mw_deferred_cancel(s->loop, &s->flush);
    mw_lookup_end(s->dial.lookup);
    s->dial.lookup = NULL;
    if (s->tls) mw_tls_end(s->tls);
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    s->readable = s->writable = s->deadline_over = s->idle_over = s->stuck_over = false;
    s->full = s->is_below = s->write_failed = false;
    mw_fifo_taken(&s->in, mw_fifo_size(&s->in));
    mw_fifo_taken(&s->out, mw_fifo_size(&s->out));
    s->need = 0;
}

void mw_stream_doom(mw_stream *s, const mw_error *why) {
    if (!mw_stream_alive(s)) return;
    if (why != &s->why) s->why = *why;
    s->doomed = true;
    if (!s->in_turn) mw_stream_soon(s); /* a turn looks at its end */
}

/* The input stays where it is until now: the parser that failed may still look at it. */
static void lose(mw_stream *s) {
    mw_error why = s->why;
    if (s->dial.content && mw_loop_wall_ms(s->loop) - s->since_ms > s->o.retry_cap_ms)
        s->dial.astray = s->dial.failures = 0; /* it lasted */
    mw_stream_drop(s);
    s->doomed = false;
    memcpy(s->error, why.text, sizeof s->error);
    mw_dial_later(s);
    s->events.down(s->owner, &why);
}

/* ---- turns ---- */

static void lose_after_reading(mw_stream *s) {
    mw_error why;
    mw_fail(&why, s->why.code, true, "%s: %s", s->address, s->why.text);
    mw_input_run(s);
    mw_stream_doom(s, &why);
}

/* Deadlines are looked at after the socket: what came while the loop was busy has come in time. */
static void check_idle(mw_stream *s) {
    uint64_t limit = (uint64_t)s->o.idle_ms, now = mw_loop_real_ms(s->loop);
    s->idle_over = false;
    if (now - s->heard < limit) {
        mw_timer_start_real(s->loop, &s->idle, (int64_t)(limit - (now - s->heard)), idle_fired);
        return;
    }
    mw_error e;
    mw_fail(&e, 0, true, "%s: nothing came from the server for %.1f s", s->address,
            (double)s->o.idle_ms / 1000);
    mw_stream_doom(s, &e);
}

static void check_stuck(mw_stream *s) {
    uint64_t limit = (uint64_t)s->o.write_ms, now = mw_loop_real_ms(s->loop);
    s->stuck_over = false;
    if (!mw_stream_pending(s)) return;
    int queued = mw_socket_queued(s->fd); /* a slow peer empties megabytes there before we may write again */
    if (queued < s->queued) s->moved = now;
    s->queued = queued;
    if (now - s->moved < limit) {
        mw_timer_start_real(s->loop, &s->stuck, (int64_t)(limit - (now - s->moved)), s->stuck.fire);
        return;
    }
    mw_error e;
    mw_fail(&e, 0, true, "%s: the server took nothing for %.1f s; %zu bytes wait", s->address,
            (double)s->o.write_ms / 1000, mw_stream_pending(s));
    mw_stream_doom(s, &e);
}

static void move_bytes(mw_stream *s) {
    if (s->write_failed) return lose_after_reading(s);
    if (s->writable) {
        s->writable = false;
        mw_io_stop(&s->write_io);
        mw_output_run(s);
    }
    if (s->readable && mw_stream_alive(s)) {
        mw_input_run(s);
        if (mw_stream_alive(s)) mw_input_watch(s);
    }
    if (s->is_below && mw_stream_alive(s)) {
        s->is_below = false;
        if (s->events.drained) s->events.drained(s->owner);
    }
    if (s->idle_over && mw_stream_alive(s)) check_idle(s);
    if (s->stuck_over && mw_stream_alive(s)) check_stuck(s);
}

static void free_stream(mw_stream *s) {
    mw_hosts_free(&s->dial.hosts);
    mw_hosts_free(&s->dial.redirect);
    mw_hosts_free(&s->dial.given);
    mw_tls_free(s->tls);
    mw_fifo_free(&s->in);
    mw_fifo_free(&s->out);
    free((char *)s->o.tls.ca);
    free((char *)s->o.tls.cert);
    free((char *)s->o.tls.key);
    free((char *)s->o.tls.name);
    free(s);
}

static void take_turn(mw_deferred *d) {
    mw_stream *s = mw_container_of(d, mw_stream, turn);
    s->in_turn = true;
    if (!s->doomed) {
        if (s->state == MW_STREAM_UP)
            move_bytes(s);
        else
            mw_dial_go_on(s);
    }
    if (s->doomed && !s->closed) lose(s);
    s->in_turn = false;
    if (s->closed) free_stream(s);
}

/* ---- what the owner calls ---- */

static char *copy(const char *text) {
    if (!text || !*text) return NULL;
    char *made = strdup(text);
    if (!made) abort();
    return made;
}

static void copy_options(mw_stream *s, const mw_stream_options *o) {
    s->o = *o;
    s->o.hosts = NULL; /* taken apart in dial.hosts */
    s->o.tls.ca = copy(o->tls.ca);
    s->o.tls.cert = copy(o->tls.cert);
    s->o.tls.key = copy(o->tls.key);
    s->o.tls.name = copy(o->tls.name);
    if (!o->connect_ms) s->o.connect_ms = 5000;
    if (!o->write_ms) s->o.write_ms = 15000;
    if (!o->retry_ms) s->o.retry_ms = 100;
    if (!o->retry_cap_ms) s->o.retry_cap_ms = 10000;
    if (!o->high) s->o.high = 1 << 20;
    if (!o->low) s->o.low = s->o.high / 4;
    if (!o->max_input) s->o.max_input = 64 << 20;
}

static int prepare_tls(mw_stream *s, mw_error *e) {
    if (!s->o.tls.on) return 0;
    if (s->dial.hosts.unix_socket && !s->o.tls.name && !s->o.tls.insecure)
        return mw_fail(e, MW_EUSAGE, false,
                       "TLS over a Unix socket: say which name the certificate must have (tls_name=HOST)");
    s->tls = mw_tls_new(&s->o.tls, e);
    if (!s->tls) return -1;
    if (!s->o.tls.insecure) return 0;
    mw_log_begin(MW_WARN, "the server's certificate is not checked (insecure=true): anybody may pose as it");
    mw_log_text("host", s->dial.hosts.list[0].name);
    mw_log_end();
    return 0;
}

mw_stream *mw_stream_open(mw_loop *loop, const mw_stream_options *o, const mw_stream_events *events,
                          void *owner, mw_error *e) {
    mw_stream *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->loop = loop;
    s->events = *events;
    s->owner = owner;
    s->fd = -1;
    s->chunk = MW_FIFO_LEAST;
    s->state = MW_STREAM_WAITING;
    copy_options(s, o);
    if (mw_hosts_parse(&s->dial.hosts, o->hosts, o->default_port, e) || prepare_tls(s, e)) {
        free_stream(s);
        return NULL;
    }
    s->since_ms = mw_loop_wall_ms(loop);
    s->deadline_over = true; /* waits for the first round no longer than for its turn */
    mw_stream_soon(s);
    return s;
}

void mw_stream_close(mw_stream *s) {
    if (!s || s->closed) return;
    mw_stream_drop(s);
    s->closed = true;
    mw_stream_set_state(s, MW_STREAM_WAITING);
    mw_timer_stop(&s->trim);
    mw_deferred_cancel(s->loop, &s->turn);
    if (!s->in_turn) free_stream(s);
}

bool mw_stream_is_up(const mw_stream *s) { return s->state == MW_STREAM_UP && mw_stream_alive(s); }

/* Who is led astray, comes back and is led astray again does not make haste. */
void mw_stream_established(mw_stream *s) {
    mw_dial *d = &s->dial;
    d->content = true;
    if (d->given.count) d->astray = 0;
    if (!d->astray) d->failures = 0;
}

void mw_stream_fail(mw_stream *s, const mw_error *why) {
    if (mw_stream_is_up(s)) mw_stream_doom(s, why);
}

int mw_stream_redirect(mw_stream *s, const char *hosts, bool for_good, mw_error *e) {
    if (*hosts == '/')
        return mw_fail(e, MW_EUSAGE, false, "a server must not lead to a Unix socket: %s", hosts);
    s->dial.for_good = for_good;
    return mw_hosts_parse(&s->dial.redirect, hosts, s->o.default_port, e);
}

void mw_stream_look(const mw_stream *s, const char *name, mw_peer *out) {
    static const char *const states[] = {"resolving", "connecting", "up", "waiting"};
    *out = (mw_peer){.name = name,
                     .state = states[s->doomed ? MW_STREAM_WAITING : s->state],
                     .since_ms = s->since_ms,
                     .connects = s->connects,
                     .bytes_in = s->bytes_in,
                     .bytes_out = s->bytes_out,
                     .tls = s->tls && s->state == MW_STREAM_UP ? mw_tls_version(s->tls) : NULL};
    memcpy(out->address, s->address, sizeof out->address);
    memcpy(out->error, s->error, sizeof out->error);
}
