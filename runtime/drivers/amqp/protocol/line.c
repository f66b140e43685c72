#include "drivers/amqp/protocol/line.h"

#include <stdlib.h>
#include <string.h>

enum { LEAVE_MS = 3000, PROVEN_MS = 2000, OPEN_MS = 30000 };

static const mw_stream_events line_events;

rmq_line *rmq_line_new(mw_loop *loop, const rmq_settings *s, const rmq_line_events *events, void *owner,
                       mw_error *e) {
    rmq_line *l = calloc(1, sizeof *l);
    if (!l) abort();
    l->loop = loop;
    l->settings = s;
    l->events = events;
    l->owner = owner;
    l->frame_max = RMQ_FRAME_MAX;
    l->stream = mw_stream_open(loop, &s->stream, &line_events, l, e);
    if (l->stream) return l;
    free(l);
    return NULL;
}

static void release(rmq_line *l) {
    mw_buf_free(&l->out);
    free(l);
}

static void say_goodbye(rmq_line *l) {
    mw_buf *b = rmq_line_out(l);
    size_t f = rmq_method(b, 0, RMQ_CLOSE);
    rmq_put_u16(b, 200);
    rmq_put_string(b, "goodbye");
    rmq_put_u32(b, 0);
    rmq_frame_end(b, f);
    rmq_line_send(l);
}

void rmq_line_free(rmq_line *l) {
    if (!l || l->dead) return;
    if (l->state == RMQ_READY) { /* else the broker's log would tell of a client that was lost */
        say_goodbye(l);
        mw_stream_farewell(l->stream);
    }
    mw_timer_stop(&l->beat);
    mw_timer_stop(&l->proven);
    mw_timer_stop(&l->leave);
    mw_stream_close(l->stream);
    l->stream = NULL;
    for (int i = 1; i <= RMQ_CHANNELS; i++)
        if (l->chans[i]) rmq_chan_remove(l->chans[i]);
    l->dead = true;
    if (!l->busy) release(l);
}

/* ---- writing ---- */

mw_buf *rmq_line_out(rmq_line *l) {
    l->out.len = 0;
    return &l->out;
}

void rmq_line_send(rmq_line *l) {
    if (!l->stream || l->state == RMQ_AWAY) return;
    mw_stream_write(l->stream, l->out.data, l->out.len);
    l->last_out = mw_loop_real_ms(l->loop);
}

static void simple(rmq_line *l, uint16_t channel, uint32_t method) {
    mw_buf *b = rmq_line_out(l);
    rmq_frame_end(b, rmq_method(b, channel, method));
    rmq_line_send(l);
}

static void fail(rmq_line *l, const char *format, rmq_str text, unsigned number) {
    mw_error e;
    mw_fail(&e, MW_EFORMAT, true, format, (int)(text.len < 300 ? text.len : 300), text.data ? text.data : "",
            number);
    l->broken = true;
    if (l->stream) mw_stream_fail(l->stream, &e);
}

void rmq_line_nonsense(rmq_line *l, const char *what) {
    fail(l, "the broker sent nonsense: %.*s", (rmq_str){what, strlen(what)}, 0);
}

/* ---- opening ---- */

static void too_slow(mw_timer *t) {
    rmq_line_nonsense(mw_container_of(t, rmq_chan, slow)->line, "no answer to the opening of a channel");
}

static void open_channel(rmq_chan *c) {
    c->opening = true;
    mw_timer_start_real(c->line->loop, &c->slow, OPEN_MS, too_slow);
    mw_buf *b = rmq_line_out(c->line);
    size_t f = rmq_method(b, c->id, RMQ_CHANNEL_OPEN);
    rmq_put_string(b, "");
    rmq_frame_end(b, f);
    rmq_line_send(c->line);
}

static void is_proven(mw_timer *t) {
    rmq_line *l = mw_container_of(t, rmq_line, proven);
    if (l->stream) mw_stream_established(l->stream);
}

/* A login is no success yet: a broker that cuts us off right behind it is asked more and more seldom. */
static void ready(rmq_line *l) {
    l->state = RMQ_READY;
    l->refused = false;
    mw_timer_start_real(l->loop, &l->proven, PROVEN_MS, is_proven);
    l->events->up(l->owner);
    for (int i = 1; i <= RMQ_CHANNELS && !l->dead; i++)
        if (l->chans[i]) open_channel(l->chans[i]);
}

/* ---- endings ---- */

/* What cannot get better by trying: a wrong password, vhost or permission. It is tried all the same, slowly.
 */
static bool hopeless(unsigned code) { return code == 403 || code == 530 || code == 402; }

static void closed_by_broker(rmq_line *l, rmq_reader *r) {
    unsigned code = rmq_u16(r);
    rmq_str text = rmq_short(r);
    simple(l, 0, RMQ_CLOSE_OK);
    if (l->state != RMQ_READY && hopeless(code)) l->refused = true;
    l->closed_with = code;
    fail(l, "the broker closed the connection: %.*s (%u)", text, code);
}

static void left_now(rmq_line *l) {
    void (*left)(void *) = l->left;
    l->left = NULL;
    mw_timer_stop(&l->leave);
    if (left) left(l->owner);
}

static void leave_late(mw_timer *t) { left_now(mw_container_of(t, rmq_line, leave)); }

void rmq_line_leave(rmq_line *l, void (*left)(void *owner)) {
    l->left = left;
    if (l->state != RMQ_READY) {
        mw_timer_start_real(l->loop, &l->leave, 0, leave_late);
        return;
    }
    l->state = RMQ_LEAVING;
    say_goodbye(l);
    mw_timer_start_real(l->loop, &l->leave, LEAVE_MS, leave_late);
}

/* ---- channels ---- */

void rmq_chan_add(rmq_line *l, rmq_chan *c, uint16_t id, const rmq_chan_events *events, void *owner) {
    *c = (rmq_chan){.line = l, .events = events, .owner = owner, .id = id};
    l->chans[id] = c;
    if (l->state == RMQ_READY) open_channel(c);
}

void rmq_chan_remove(rmq_chan *c) {
    rmq_chan_reset(c);
    mw_buf_free(&c->header);
    mw_timer_stop(&c->slow);
    if (c->line) c->line->chans[c->id] = NULL;
    c->line = NULL;
    c->open = c->opening = false;
}

void rmq_chan_restart(rmq_chan *c) {
    rmq_chan_reset(c);
    if (!c->open || c->closing) return;
    c->open = false;
    c->closing = true;
    mw_buf *b = rmq_line_out(c->line);
    size_t f = rmq_method(b, c->id, RMQ_CHANNEL_CLOSE);
    rmq_put_u16(b, 200);
    rmq_put_string(b, "");
    rmq_put_u32(b, 0);
    rmq_frame_end(b, f);
    rmq_line_send(c->line);
}

static void lose_channel(rmq_chan *c, int code, const mw_error *why) {
    rmq_chan_reset(c);
    mw_timer_stop(&c->slow);
    c->open = c->closing = c->opening = false;
    c->events->closed(c, code, why);
}

static void channel_closed(rmq_chan *c, rmq_reader *r) {
    rmq_line *l = c->line;
    unsigned code = rmq_u16(r);
    rmq_str text = rmq_short(r);
    mw_error e;
    mw_fail(&e, MW_EUSAGE, true, "%.*s (%u)", (int)(text.len < 300 ? text.len : 300), text.data, code);
    simple(l, c->id, RMQ_CHANNEL_CLOSE_OK);
    uint16_t id = c->id;
    lose_channel(c, (int)code, &e);
    if (!l->dead && l->chans[id] && l->state == RMQ_READY) open_channel(l->chans[id]);
}

/* ---- frames ---- */

static void connection_method(rmq_line *l, uint32_t method, rmq_reader *r) {
    if (method == RMQ_CLOSE) {
        closed_by_broker(l, r);
    } else if (method == RMQ_CLOSE_OK && l->state == RMQ_LEAVING) {
        left_now(l);
    } else if (method == RMQ_START && l->state == RMQ_GREETED) {
        rmq_line_started(l, r);
    } else if (method == RMQ_TUNE && l->state == RMQ_TUNING) {
        rmq_line_tune(l, r);
    } else if (method == RMQ_OPEN_OK && l->state == RMQ_OPENING) {
        ready(l);
    } else if ((method == RMQ_BLOCKED || method == RMQ_UNBLOCKED) && l->state == RMQ_READY) {
        l->blocked = method == RMQ_BLOCKED;
        rmq_str why = l->blocked ? rmq_short(r) : (rmq_str){"", 0};
        if (l->events->blocked) l->events->blocked(l->owner, l->blocked, why);
    } else if (l->state != RMQ_LEAVING) {
        rmq_line_nonsense(l, "a method at the wrong time");
    }
}

static void channel_method(rmq_chan *c, uint32_t method, rmq_reader *r) {
    if (c->closing) {
        if (method == RMQ_CHANNEL_CLOSE) simple(c->line, c->id, RMQ_CHANNEL_CLOSE_OK);
        if (method != RMQ_CHANNEL_CLOSE_OK) return; /* what was on its way */
        c->closing = false;
        open_channel(c);
    } else if (method == RMQ_CHANNEL_OPEN_OK) {
        if (c->open) {
            rmq_line_nonsense(c->line, "an open channel opened again");
            return;
        }
        mw_timer_stop(&c->slow);
        c->opening = false;
        c->open = true;
        c->events->opened(c);
    } else if (method == RMQ_CHANNEL_CLOSE && c->opening) {
        return; /* the same once more, from before our answer to it: RabbitMQ may close a channel twice */
    } else if (method == RMQ_CHANNEL_CLOSE) {
        channel_closed(c, r);
    } else if (!c->open) {
        rmq_line_nonsense(c->line, "a method on a closed channel");
    } else if (method == RMQ_DELIVER || method == RMQ_GET_OK || method == RMQ_RETURN) {
        rmq_content_begins(c, method, r);
    } else if (c->stage != RMQ_IDLE) {
        rmq_line_nonsense(c->line, "a method inside of a message");
    } else {
        c->events->method(c, method, r);
    }
}

static void frame(rmq_line *l, uint8_t type, uint16_t channel, const unsigned char *data, size_t len,
                  const unsigned char *end) {
    rmq_reader r = {data, data + len, false};
    if (type == RMQ_HEARTBEAT) return;
    if (type == RMQ_METHOD && channel == 0) {
        uint32_t method = rmq_u32(&r);
        if (r.bad)
            rmq_line_nonsense(l, "an empty method");
        else
            connection_method(l, method, &r);
        return;
    }
    if (l->state == RMQ_LEAVING) return;
    rmq_chan *c = channel && channel <= RMQ_CHANNELS ? l->chans[channel] : NULL;
    if (c && c->closing && type != RMQ_METHOD) return;
    if (!c || l->state != RMQ_READY) {
        rmq_line_nonsense(l, "a frame for a channel that is not open");
    } else if (type == RMQ_METHOD) {
        uint32_t method = rmq_u32(&r);
        if (r.bad)
            rmq_line_nonsense(l, "an empty method");
        else
            channel_method(c, method, &r);
    } else if (type == RMQ_HEADER) {
        rmq_content_header(c, r, data + len + 1, end);
    } else if (type == RMQ_BODY) {
        rmq_content_body(c, (const char *)data, len);
    } else {
        rmq_line_nonsense(l, "a frame of an unknown kind");
    }
}

/* Returns how much was consumed. *need: see net/stream.h. */
static size_t parse(rmq_line *l, const unsigned char *data, size_t len, size_t *need) {
    size_t at = 0;
    while (!l->dead && !l->broken) {
        const unsigned char *p = data + at;
        size_t left = len - at;
        if (left < RMQ_FRAME_EXTRA) break;
        if (p[0] == 'A') { /* "AMQP": it speaks another version */
            rmq_line_nonsense(l, "it does not speak AMQP 0-9-1");
            break;
        }
        rmq_reader r = {p + 1, p + 7, false};
        uint16_t channel = rmq_u16(&r);
        size_t size = rmq_u32(&r);
        if (size > l->frame_max - RMQ_FRAME_EXTRA) {
            rmq_line_nonsense(l, "a frame over the limit");
            break;
        }
        if (left < size + RMQ_FRAME_EXTRA) {
            *need = size + RMQ_FRAME_EXTRA;
            break;
        }
        if (p[7 + size] != RMQ_END) {
            rmq_line_nonsense(l, "a frame without its end");
            break;
        }
        frame(l, p[0], channel, p + 7, size, data + len);
        at += size + RMQ_FRAME_EXTRA;
    }
    return at;
}

/* A body that is to be taken from where it stands must be taken in this call: rmq_content_header made sure it
 * is there. */
static size_t line_input(void *owner, const char *data, size_t len, size_t *need) {
    rmq_line *l = owner;
    l->busy++;
    size_t used = parse(l, (const unsigned char *)data, len, need);
    if (!l->dead && l->events->parsed) l->events->parsed(l->owner);
    if (--l->busy == 0 && l->dead) release(l);
    return used;
}

static void line_up(void *owner) {
    rmq_line *l = owner;
    l->state = RMQ_GREETED;
    l->broken = false;
    l->closed_with = 0;
    l->frame_max = RMQ_FRAME_MAX;
    l->blocked = false;
    mw_stream_write(l->stream, "AMQP\0\0\x9\x1", 8);
}

static void line_down(void *owner, const mw_error *why) {
    rmq_line *l = owner;
    bool was_ready = l->state == RMQ_READY, tuning = l->state == RMQ_TUNING;
    mw_timer_stop(&l->beat);
    mw_timer_stop(&l->proven);
    l->state = RMQ_AWAY;
    l->blocked = false;
    l->why = *why;
    if (tuning && why->code != MW_EFORMAT) { /* brokers that say nothing to a wrong password just hang up */
        l->refused = true;
        mw_fail(&l->why, MW_EUSAGE, true, "the broker refused the login (%s)", why->text);
    }
    l->busy++;
    for (int i = 1; i <= RMQ_CHANNELS && !l->dead; i++)
        if (l->chans[i] && was_ready) lose_channel(l->chans[i], 0, &l->why);
    if (!l->dead && l->left) left_now(l);
    if (!l->dead) l->events->down(l->owner, &l->why);
    if (--l->busy == 0 && l->dead) release(l);
}

static void line_drained(void *owner) {
    rmq_line *l = owner;
    l->busy++;
    if (l->events->drained) l->events->drained(l->owner);
    if (--l->busy == 0 && l->dead) release(l);
}

static const mw_stream_events line_events = {
    .up = line_up, .input = line_input, .down = line_down, .drained = line_drained};
