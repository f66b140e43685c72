/* client.c - the life of a connection: commands in a pipeline, their deadlines and replies, the stream below.
 * Greeting the server is greeting.c's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis/client_defs.h"

enum {
    CHECK_MS = 500,
    MORE_THAN_BODY = 4 << 20,
    BACKLOG_MAX = 256 << 20,
    RETRY_CAP_MS = 2000,
    GREETING_MOST = 1 << 20
};

/* ---- errors ---- */

static const struct {
    const char *prefix;
    bool retryable;
} ERRORS[] = {
    {"LOADING", true},   {"READONLY", true},    {"MOVED", true},      {"ASK", true},
    {"TRYAGAIN", true},  {"CLUSTERDOWN", true}, {"MASTERDOWN", true}, {"OOM", true},
    {"BUSY", true},      {"NOSCRIPT", true},    {"NOREPLICAS", true}, {"MISCONF", true},
    {"UNBLOCKED", true}, {"NOPERM", true},      {"NOAUTH", true},     {"NOGROUP", true},
    {"WRONGPASS", true}, {"UNKILLABLE", true},  {"CROSSSLOT", true},
};

void mwr_error_of(const char *text, size_t len, mw_error *e) {
    bool retryable = false;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++) {
        size_t n = strlen(ERRORS[i].prefix);
        if (len >= n && memcmp(text, ERRORS[i].prefix, n) == 0) retryable = ERRORS[i].retryable;
    }
    if (len >= 10 && memcmp(text, "ERR Server", 10) == 0) retryable = true; /* shutting down */
    mw_fail(e, retryable ? MW_ECLOSED : MW_EUSAGE, retryable, "redis: %.*s", (int)(len < 300 ? len : 300),
            text);
}

/* ---- the ring ---- */

static pending *at(mwr_client *c, uint32_t i) { return &c->ring[(c->first + i) & (c->capacity - 1)]; }

static pending *push(mwr_client *c) {
    if (c->count == c->capacity) {
        uint32_t capacity = c->capacity ? c->capacity * 2 : 64;
        pending *ring = malloc(capacity * sizeof *ring);
        if (!ring) abort();
        for (uint32_t i = 0; i < c->count; i++) ring[i] = *at(c, i);
        free(c->ring);
        c->ring = ring;
        c->first = 0;
        c->capacity = capacity;
    }
    return at(c, c->count++);
}

static pending pop(mwr_client *c) {
    pending p = *at(c, 0);
    c->first = (c->first + 1) & (c->capacity - 1);
    c->count--;
    if (c->sent) c->sent--;
    return p;
}

static void fail_first(mwr_client *c, const mw_error *why) {
    pending p = pop(c);
    if (p.reply) p.reply(c->owner, p.cookie, NULL, false, why);
}

/* ---- commands ---- */

static void end_begun(mwr_client *c) { /* notes what the last command took; twice is once */
    if (c->count > c->sent && c->out.len > c->begun)
        at(c, c->count - 1)->bytes = (uint32_t)(c->out.len - c->begun);
}

mw_buf *mwr_command_within(mwr_client *c, size_t arguments, mwr_on_reply *reply, void *cookie, int depth,
                           int64_t timeout_ms) {
    end_begun(c);
    c->begun = c->out.len;
    *push(c) = (pending){.reply = reply,
                         .cookie = cookie,
                         .depth = (int8_t)depth,
                         .deadline = mw_loop_real_ms(c->loop) + (uint64_t)timeout_ms};
    mwr_write_array(&c->out, arguments);
    return &c->out;
}

mw_buf *mwr_command(mwr_client *c, size_t arguments, mwr_on_reply *reply, void *cookie, int depth) {
    return mwr_command_within(c, arguments, reply, cookie, depth, c->o.target->timeout_ms);
}

static void tell_full(mwr_client *c, bool full) {
    if (c->full == full || !c->events.full) return;
    c->full = full;
    c->events.full(c->owner, full);
}

void mwr_flush(mwr_client *c) {
    end_begun(c);
    c->begun = c->out.len; /* nothing more is added to it */
    if (c->state != READY || !c->out.len) return;
    mw_stream_write(c->stream, c->out.data, c->out.len);
    c->out.len = c->begun = 0;
    c->sent = c->count;
    if (c->out.capacity > (4 << 20)) mw_buf_free(&c->out);
    if (mw_stream_full(c->stream)) tell_full(c, true);
}

/* ---- time ---- */

/* Those that were never sent and ran out of time; their bytes stand first in `out`. */
static void expire_unsent(mwr_client *c, uint64_t now) {
    mw_error e;
    size_t gone = 0;
    mw_fail(&e, MW_ECLOSED, true, "redis: not connected to %.150s%s%.200s", c->o.target->hosts,
            *c->why ? ": " : "", c->why);
    end_begun(c);
    c->expiring = true;
    while (c->count && !c->closed &&
           (c->o.impatient || at(c, 0)->deadline <= now || c->out.len - gone > BACKLOG_MAX)) {
        gone += at(c, 0)->bytes;
        fail_first(c, &e);
        end_begun(c); /* the answer may have asked for something else */
    }
    c->expiring = false;
    if (c->closed || !gone) return;
    memmove(c->out.data, c->out.data + gone, c->out.len - gone);
    c->out.len -= gone;
    c->begun -= gone;
}

static void check_answers(mwr_client *c, uint64_t now) {
    bool silent = now - c->heard >= (uint64_t)c->o.target->timeout_ms; /* a long queue is no silence */
    if (!c->count || at(c, 0)->deadline > now || !silent) return;
    mw_error e;
    mw_fail(&e, MW_ECLOSED, true, "redis: no answer in time");
    mw_stream_fail(c->stream, &e);
}

static void check(mw_timer *t);

static int odd_greeting(const mwr_client *c, mw_error *e, const char *what, double number) {
    mw_peer peer;
    char text[100];
    mw_stream_look(c->stream, "", &peer);
    snprintf(text, sizeof text, what, number);
    return mw_fail(e, MW_ECLOSED, true, "%s: %s: is it a Redis server?", peer.address, text);
}

/* The socket gets one more turn: what came while the loop was busy has come in time. */
static void check_greeting(mwr_client *c, uint64_t now) {
    if (now < c->greet_until) return;
    if (!c->overdue) {
        c->overdue = true;
        mw_timer_start_real(c->loop, &c->check, 1, check);
        return;
    }
    mw_error e;
    odd_greeting(c, &e, "no answer to the greeting in %.1f s", (double)c->o.target->timeout_ms / 1000);
    mw_stream_fail(c->stream, &e);
}

static void check(mw_timer *t) {
    mwr_client *c = mw_container_of(t, mwr_client, check);
    uint64_t now = mw_loop_real_ms(c->loop);
    mw_timer_start_real(c->loop, t, CHECK_MS, check);
    if (c->state == READY) {
        check_answers(c, now);
        return;
    }
    if (c->state == GREETING) check_greeting(c, now);
    if (c->sent) return;
    bool inside = c->inside;
    c->inside = true;
    expire_unsent(c, now);
    c->inside = inside;
    if (c->closed && !inside) mwr_client_close(c);
}

/* ---- replies ---- */

static void greeted(mwr_client *c) {
    end_begun(c);
    c->state = READY;
    if (!c->o.on_trial) mw_stream_established(c->stream);
    c->events.ready(c->owner);
    if (!c->closed) mwr_flush(c);
}

static int reply_depth(void *owner) {
    mwr_client *c = owner;
    return c->state == READY && c->count ? at(c, 0)->depth : 0;
}

/* MOVED slot host:port, for a key that the owner does not want to follow */
static bool stays(mwr_client *c, const mwr_unit *u, mw_error *e) {
    if (!mwr_error_begins(u, "MOVED ") || !c->o.follow) return false;
    if (c->o.follow(c->owner, (unsigned)strtoul(u->base + u->node->at + 6, NULL, 10))) return false;
    mw_fail(e, MW_ECLOSED, true,
            "redis: %.*s: that key lies on another node of the cluster; give its channel a mw.connect of its "
            "own, or "
            "the {tag} of the channels that are here",
            (int)(u->node->len < 150 ? u->node->len : 150), u->base + u->node->at);
    return true;
}

/* Some errors concern the connection, not the command. */
static void look_at_error(mwr_client *c, const mwr_unit *u, const mw_error *e) {
    if (mwr_error_begins(u, "CROSSSLOT")) {
        c->clustered = true; /* it did not say so before: HELLO is not allowed to us */
    } else if (mwr_error_begins(u, "MOVED ")) {
        char hosts[256];
        const char *text = u->base + u->node->at, *end = text + u->node->len;
        const char *space = memchr(text + 6, ' ', u->node->len - 6);
        if (space && (size_t)(end - space) < sizeof hosts) {
            memcpy(hosts, space + 1, (size_t)(end - space - 1));
            hosts[end - space - 1] = 0;
            mwr_client_redirect(c, hosts);
        }
        mw_stream_fail(c->stream, e);
    } else if (mwr_error_begins(u, "READONLY") || mwr_error_begins(u, "MASTERDOWN") ||
               mwr_error_begins(u, "NOAUTH") || (mwr_error_begins(u, "NOSCRIPT") && c->o.scripts)) {
        mw_stream_fail(c->stream, e); /* a new connection finds the master, logs in, loads the scripts */
    }
}

static void unit(void *owner, const mwr_unit *u, bool more) {
    mwr_client *c = owner;
    if (c->closed) return;
    if (c->state == GREETING) {
        if (c->step_at < c->step_count && mwr_greeting_reply(c, u)) greeted(c);
        return;
    }
    if (!c->sent) {
        mw_error e;
        mw_fail(&e, MW_EFORMAT, true, "redis: an answer that nobody asked for");
        mw_stream_fail(c->stream, &e);
        return;
    }
    c->heard = mw_loop_real_ms(c->loop);
    pending p = more ? *at(c, 0) : pop(c);
    mw_error e;
    bool failed = u->node->type == MWR_ERROR && !more;
    if (failed) mwr_error_of(u->base + u->node->at, u->node->len, &e);
    bool concerns_us = failed && !stays(c, u, &e);
    if (p.reply) p.reply(c->owner, p.cookie, u, more, failed ? &e : NULL);
    if (concerns_us && !c->closed) look_at_error(c, u, &e);
}

static size_t input(void *owner, const char *data, size_t len, size_t *need) {
    mwr_client *c = owner;
    mw_error e;
    c->inside = true;
    int64_t n = mwr_parse(&c->parser, data, len, need, &e);
    c->inside = false;
    if (c->closed) {
        mwr_client_close(c);
        return len;
    }
    if (n >= 0 && c->state == GREETING && *need > GREETING_MOST)
        n = odd_greeting(c, &e, "it announces %.0f bytes in the greeting", (double)*need);
    if (n < 0) {
        mw_stream_fail(c->stream, &e);
        return len;
    }
    return (size_t)n;
}

/* ---- the stream ---- */

static void up(void *owner) {
    mwr_client *c = owner;
    c->state = GREETING;
    c->greet_until = mw_loop_real_ms(c->loop) + (uint64_t)c->o.target->timeout_ms;
    c->overdue = false;
    mwr_parser_reset(&c->parser);
    mwr_greeting_write(c);
}

/* false: it was closed meanwhile, and is gone */
static bool tell_lost(mwr_client *c, const mw_error *why) {
    end_begun(c);
    snprintf(c->why, sizeof c->why, "%s", why->text);
    c->inside = true;
    for (uint32_t n = c->sent; n && c->sent && !c->closed; n--) fail_first(c, why);
    if (!c->closed) c->events.lost(c->owner, why);
    if (!c->closed) tell_full(c, false);
    if (!c->closed && c->o.impatient) expire_unsent(c, mw_loop_real_ms(c->loop));
    c->inside = false;
    if (!c->closed) return true;
    mwr_client_close(c);
    return false;
}

static void down(void *owner, const mw_error *why) {
    mwr_client *c = owner;
    c->state = LOGGED_OUT;
    if (tell_lost(c, why) && c->o.sentinel) mwr_sentinel_ask(c->o.sentinel);
}

void mwr_client_lead_nowhere(mwr_client *c, const mw_error *why) {
    if (c->state == LOGGED_OUT) tell_lost(c, why);
}

static void drained(void *owner) { tell_full(owner, false); }

static const mw_stream_events STREAM = {.up = up, .input = input, .down = down, .drained = drained};

static int open_stream(mwr_client *c, const char *hosts, mw_error *e) {
    mw_stream_options o = {.hosts = hosts,
                           .default_port = c->o.port ? c->o.port : 6379,
                           .tls = c->o.target->tls,
                           .retry_cap_ms = RETRY_CAP_MS,
                           .max_input = c->o.target->max_message + MORE_THAN_BODY};
    c->stream = mw_stream_open(c->loop, &o, &STREAM, c, e);
    return c->stream ? 0 : -1;
}

mwr_client *mwr_client_open(mw_loop *loop, const mwr_client_options *o, const mwr_client_events *events,
                            void *owner, mw_error *e) {
    mwr_client *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->loop = loop;
    c->o = *o;
    c->events = *events;
    c->owner = owner;
    c->parser.unit = unit;
    c->parser.depth = reply_depth;
    c->parser.owner = c;
    mwr_parser_reset(&c->parser);
    if (!o->sentinel && open_stream(c, o->target->hosts, e)) {
        free(c);
        return NULL;
    }
    mw_timer_start_real(loop, &c->check, CHECK_MS, check);
    if (o->sentinel) mwr_sentinel_watch(o->sentinel, c);
    return c;
}

void mwr_client_close(mwr_client *c) {
    if (!c) return;
    if (!c->closed) {
        if (c->o.sentinel) mwr_sentinel_forget(c->o.sentinel, c);
        mw_stream_close(c->stream);
        mw_timer_stop(&c->check);
        c->stream = NULL;
        c->closed = c->parser.stop = true;
        c->state = LOGGED_OUT;
        mw_error e;
        mw_fail(&e, MW_ECLOSED, true, "redis: the connection is being closed");
        bool inside = c->inside;
        c->inside = true;
        for (uint32_t n = c->count; n; n--) fail_first(c, &e);
        c->inside = inside;
    }
    if (c->inside) return;
    mwr_parser_free(&c->parser);
    mw_buf_free(&c->out);
    free(c->ring);
    free(c);
}

void mwr_client_redirect(mwr_client *c, const char *hosts) {
    mw_error e;
    if (!c->stream)
        open_stream(c, hosts, &e);
    else
        mw_stream_redirect(c->stream, hosts, c->o.sentinel != NULL, &e);
}

void mwr_client_drop(mwr_client *c, const mw_error *why) {
    if (c->stream) mw_stream_fail(c->stream, why);
}

void mwr_client_established(mwr_client *c) {
    if (c->stream) mw_stream_established(c->stream);
}

/* A connection that has not been greeted is not up for anybody. */
bool mwr_client_look(const mwr_client *c, const char *name, mw_peer *out) {
    if (!c || !c->stream) return false;
    mw_stream_look(c->stream, name, out);
    if (c->state == GREETING && mw_stream_is_up(c->stream)) out->state = "greeting";
    return true;
}

bool mwr_client_ready(const mwr_client *c) { return c->state == READY; }
bool mwr_client_clustered(const mwr_client *c) { return c->clustered; }
bool mwr_client_unsent(const mwr_client *c) { return c->expiring; }
int64_t mwr_client_id(const mwr_client *c) { return c->id; }
size_t mwr_client_waiting(const mwr_client *c) { return c->count; }
