/* dial.c - getting connected. A round goes over all hosts and all their addresses, each with its own
 * deadline; when none of them takes us, the next round begins after a backoff, with another host first. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/uuid.h"
#include "net/internal.h"
#include "net/socket.h"

static void deadline_fired(mw_timer *t) {
    mw_stream *s = mw_container_of(t, mw_stream, deadline);
    s->deadline_over = true;
    mw_stream_soon(s);
}

static void start_deadline(mw_stream *s, int64_t ms) {
    s->deadline_over = false;
    mw_loop_now_update(s->loop); /* handlers may have run for long */
    mw_timer_start_real(s->loop, &s->deadline, ms + 1, deadline_fired);
}

/* Half of the delay is random: many who lost one server do not come back all at once. */
static int64_t backoff(const mw_stream *s) {
    int64_t delay = s->o.retry_ms;
    for (uint32_t i = 1; i < s->dial.failures && delay < s->o.retry_cap_ms; i++) delay *= 2;
    if (delay > s->o.retry_cap_ms) delay = s->o.retry_cap_ms;
    return delay / 2 + (int64_t)(mw_random64() % (uint64_t)(delay / 2 + 1));
}

void mw_dial_later(mw_stream *s) {
    mw_dial *d = &s->dial;
    if (d->failures < UINT32_MAX) d->failures++;
    d->lost_way = !d->content;
    d->content = false;
    start_deadline(s, backoff(s));
    mw_stream_set_state(s, MW_STREAM_WAITING);
}

/* ---- what went wrong, for all of a round ---- */

static void note(mw_stream *s, const char *where, const mw_error *e) {
    mw_error *all = &s->dial.failed;
    size_t len = strlen(all->text);
    all->code = e->code;
    all->retryable = true;
    snprintf(all->text + len, sizeof all->text - len, "%s%s%s%s", len ? "; " : "", where, *where ? ": " : "",
             e->text);
}

/* ---- one address ---- */

static void try_next(mw_stream *s);

static void give_up_attempt(mw_stream *s, const mw_error *e) {
    note(s, s->address, e);
    mw_stream_drop(s);
    try_next(s);
}

static const char *host_name(const mw_stream *s) { return s->dial.hosts.list[s->dial.host].name; }

/* Watches what the handshake waits for. */
static void shake_hands(mw_stream *s) {
    mw_error e;
    int done = mw_tls_handshake(s->tls, &e);
    mw_fifo *wire = mw_tls_wire(s->tls);
    ssize_t n = 0;
    if (mw_fifo_size(wire))
        n = mw_socket_write(s->fd, wire->data + wire->at, mw_fifo_size(wire), done < 0 ? NULL : &e);
    if (n > 0) mw_fifo_taken(wire, (size_t)n);
    if (n < 0 && done >= 0) (void)mw_tls_handshake(s->tls, &e); /* it may have said why it closed */
    if (done < 0 || n < 0) return give_up_attempt(s, &e);
    if (done) return mw_stream_came_up(s);
    if (!s->read_io.watcher) mw_io_start(s->loop, &s->read_io, s->fd, MW_READ, mw_stream_readable);
    if (mw_fifo_size(wire) && !s->write_io.watcher)
        mw_io_start(s->loop, &s->write_io, s->fd, MW_WRITE, mw_stream_writable);
}

static void connected(mw_stream *s) {
    mw_error e;
    s->dial.connected = true;
    if (mw_socket_connected(s->fd, &e)) return give_up_attempt(s, &e);
    if (!s->tls) return mw_stream_came_up(s);
    const char *host = s->dial.hosts.unix_socket ? "" : host_name(s);
    if (mw_tls_begin(s->tls, s->fd, host, &e)) return give_up_attempt(s, &e);
    shake_hands(s);
}

/* True when the attempt is under way, or even done. */
static bool try_address(mw_stream *s, const mw_address *a) {
    mw_error e;
    bool at_once = false;
    mw_address_text(a, s->address);
    s->fd = mw_socket_connect(a, s->o.write_ms, &at_once, &e);
    if (s->fd < 0) {
        note(s, s->address, &e);
        return false;
    }
    s->dial.connected = false;
    mw_stream_set_state(s, MW_STREAM_CONNECTING);
    start_deadline(s, s->o.connect_ms);
    if (at_once)
        connected(s);
    else
        mw_io_start(s->loop, &s->write_io, s->fd, MW_WRITE, mw_stream_writable);
    return true;
}

static void timed_out(mw_stream *s) {
    mw_error e;
    mw_fail(&e, 0, true,
            s->dial.connected ? "the server does not answer the TLS handshake (%.1f s)"
                              : "no answer in %.1f s",
            (double)s->o.connect_ms / 1000);
    give_up_attempt(s, &e);
}

static void go_on_connecting(mw_stream *s) {
    if (s->writable || s->readable) {
        s->writable = s->readable = false;
        mw_io_stop(&s->write_io);
        if (s->dial.connected)
            shake_hands(s);
        else
            connected(s);
    }
    if (s->deadline_over && s->state == MW_STREAM_CONNECTING)
        timed_out(s); /* not when it went on to the next */
}

/* ---- one host ---- */

static void lookup_done(void *owner) { mw_stream_soon(owner); }

/* True when its addresses are there or will come. */
static bool find_addresses(mw_stream *s, const mw_host_name *h) {
    mw_dial *d = &s->dial;
    mw_error e;
    d->address_count = d->tried = 0;
    if (d->hosts.unix_socket)
        mw_address_path(h->name, &d->addresses[d->address_count++]);
    else if (mw_address_literal(h->name, h->port, &d->addresses[0]))
        d->address_count = 1;
    if (d->address_count) return true;
    snprintf(s->address, sizeof s->address, "%.100s:%d", h->name, h->port);
    d->lookup = mw_lookup_start(s->loop, h->name, h->port, lookup_done, s, &e);
    if (!d->lookup) {
        note(s, "", &e);
        return false;
    }
    mw_stream_set_state(s, MW_STREAM_RESOLVING);
    start_deadline(s, s->o.connect_ms);
    return true;
}

static void go_on_resolving(mw_stream *s) {
    mw_dial *d = &s->dial;
    mw_error e;
    bool done = mw_lookup_is_done(d->lookup);
    if (!done && !s->deadline_over) return;
    int n = done ? mw_lookup_take(d->lookup, d->addresses, &e)
                 : mw_fail(&e, 0, true, "cannot look up %s: no answer in %.1f s", host_name(s),
                           (double)s->o.connect_ms / 1000);
    if (n < 0) note(s, "", &e);
    d->address_count = n < 0 ? 0 : (unsigned)n;
    d->first = d->address_count ? (d->rounds - 1) % d->address_count : 0;
    mw_stream_drop(s);
    try_next(s);
}

/* ---- a round ---- */

static void try_next(mw_stream *s) {
    mw_dial *d = &s->dial;
    for (;;) {
        while (d->tried < d->address_count) {
            unsigned i = (d->first + d->tried++) % d->address_count;
            if (try_address(s, &d->addresses[i])) return;
        }
        if (!d->hosts_left) break;
        d->hosts_left--;
        d->host = (d->host + 1) % d->hosts.count;
        d->first = 0;
        if (find_addresses(s, &d->hosts.list[d->host]) && d->lookup) return;
    }
    d->host = (d->host + 1) % d->hosts.count; /* the next round begins with another one */
    mw_stream_doom(s, &d->failed);
}

static void use_hosts(mw_dial *d, mw_hosts *from) {
    d->hosts = *from;
    *from = (mw_hosts){0};
    d->host = d->hosts.count - 1;
}

/* Whoever led us there may know better by now: when nobody is there, the hosts that were given are tried
 * again. */
static void follow_redirect(mw_dial *d) {
    bool lost_way = d->lost_way && d->given.count;
    d->lost_way = false;
    if (d->redirect.count) {
        if (d->for_good || d->given.count)
            mw_hosts_free(&d->hosts);
        else
            d->given = d->hosts;
        if (d->for_good) mw_hosts_free(&d->given);
        use_hosts(d, &d->redirect);
    } else if (lost_way) {
        d->astray++;
        mw_hosts_free(&d->hosts);
        use_hosts(d, &d->given);
    }
}

/* Certificates are renewed while we run. */
static void refresh_certificates(mw_stream *s) {
    mw_error e;
    if (!s->tls || mw_tls_refresh(s->tls, &e) == 0) return;
    mw_log_begin(MW_WARN, "certificates changed and cannot be read: the old ones stay in use");
    mw_log_text("error", e.text);
    mw_log_end();
}

void mw_dial_begin(mw_stream *s) {
    mw_dial *d = &s->dial;
    refresh_certificates(s);
    follow_redirect(d);
    if (!d->rounds++) d->host = d->hosts.count - 1; /* the first round begins with the first host */
    d->hosts_left = d->hosts.count;
    d->address_count = d->tried = 0;
    d->failed = (mw_error){0};
    try_next(s);
}

void mw_dial_go_on(mw_stream *s) {
    switch (s->state) {
    case MW_STREAM_WAITING:
        if (!s->deadline_over) break;
        s->deadline_over = false;
        mw_dial_begin(s);
        break;
    case MW_STREAM_RESOLVING: go_on_resolving(s); break;
    case MW_STREAM_CONNECTING: go_on_connecting(s); break;
    case MW_STREAM_UP: break;
    }
}
