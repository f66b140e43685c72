#include "drivers/amqp/protocol/line.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum { LEAVE_MS = 3000, PROVEN_MS = 2000, OPEN_MS = 30000, BODY_FIRST = 1 << 20 };

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

static void nonsense(rmq_line *l, const char *what) {
    fail(l, "the broker sent nonsense: %.*s", (rmq_str){what, strlen(what)}, 0);
}

/* ---- heartbeats ---- */

/* The stream notices a silent broker (idle_ms); here we only make sure that we are not silent ourselves. */
static void beat(mw_timer *t) {
    rmq_line *l = mw_container_of(t, rmq_line, beat);
    if (mw_loop_real_ms(l->loop) - l->last_out >= (uint64_t)l->heartbeat_ms / 3) {
        mw_buf *b = rmq_line_out(l);
        rmq_frame_end(b, rmq_frame(b, RMQ_HEARTBEAT, 0));
        rmq_line_send(l);
    }
    mw_timer_start_real(l->loop, &l->beat, l->heartbeat_ms / 4 + 1, beat);
}

/* ---- the handshake ---- */

static void put_capabilities(mw_buf *b) {
    static const char *const names[] = {"consumer_cancel_notify", "connection.blocked", "basic.nack",
                                        "publisher_confirms", "authentication_failure_close"};
    rmq_put_field(b, "capabilities", 'F');
    size_t mark = rmq_open(b);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) rmq_put_bool(b, names[i], true);
    rmq_close(b, mark);
}

static bool has_word(rmq_str list, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= list.len; i++)
        if (memcmp(list.data + i, word, n) == 0 && (i == 0 || list.data[i - 1] == ' ') &&
            (i + n == list.len || list.data[i + n] == ' '))
            return true;
    return false;
}

static void start_ok(rmq_line *l) {
    const rmq_settings *s = l->settings;
    mw_buf *b = rmq_line_out(l);
    size_t frame = rmq_method(b, 0, RMQ_START_OK), table = rmq_open(b);
    rmq_put_text(b, "product", "Moonwire");
    rmq_put_text(b, "version", MW_VERSION);
    rmq_put_text(b, "platform", "C");
    rmq_put_text(b, "connection_name", s->name);
    put_capabilities(b);
    rmq_close(b, table);
    rmq_put_string(b, s->external ? "EXTERNAL" : "PLAIN");
    size_t response = rmq_open(b);
    if (!s->external) {
        mw_buf_add(b, "", 1);
        mw_buf_add(b, s->user, strlen(s->user) + 1);
        mw_buf_add(b, s->password, strlen(s->password));
    }
    rmq_close(b, response);
    rmq_put_string(b, "en_US");
    rmq_frame_end(b, frame);
    rmq_line_send(l);
}

static int major_version(rmq_reader properties) {
    rmq_value v;
    if (!rmq_table_find(properties, "version", &v) || v.type != 'S') return 0;
    int n = 0;
    for (size_t i = 0; i < v.text.len && i < 4 && v.text.data[i] >= '0' && v.text.data[i] <= '9'; i++)
        n = n * 10 + v.text.data[i] - '0';
    return n;
}

static void started(rmq_line *l, rmq_reader *r) {
    rmq_u16(r); /* version: a broker that does not speak 0-9-1 sends its own greeting and closes */
    l->server = major_version(rmq_table(r));
    rmq_str mechanisms = rmq_long(r);
    const char *wanted = l->settings->external ? "EXTERNAL" : "PLAIN";
    if (r->bad) {
        nonsense(l, "a greeting that is cut short");
    } else if (!has_word(mechanisms, wanted)) {
        mw_error e;
        mw_fail(&e, MW_EUSAGE, true, "the broker offers no login by %s, only %.*s", wanted,
                (int)(mechanisms.len < 200 ? mechanisms.len : 200), mechanisms.data);
        l->refused = l->broken = true;
        mw_stream_fail(l->stream, &e);
    } else {
        l->state = RMQ_TUNING;
        start_ok(l);
    }
}

static int64_t smaller(int64_t a, int64_t b) { return a && b ? (a < b ? a : b) : a + b; }

static void tune(rmq_line *l, rmq_reader *r) {
    uint16_t channels = rmq_u16(r);
    uint32_t frame = rmq_u32(r);
    rmq_u16(r); /* its heartbeat: ours decides, it would only offer its default */
    if (r->bad || (frame && frame < RMQ_FRAME_MIN) || (channels && channels < RMQ_CHANNELS)) {
        nonsense(l, "limits that cannot be");
        return;
    }
    const rmq_settings *s = l->settings;
    l->frame_max = (uint32_t)smaller(s->frame_max, frame);
    l->heartbeat_ms = s->heartbeat_s * 1000;
    mw_buf *b = rmq_line_out(l);
    size_t f = rmq_method(b, 0, RMQ_TUNE_OK);
    rmq_put_u16(b, channels ? channels : 2047);
    rmq_put_u32(b, l->frame_max);
    rmq_put_u16(b, (uint16_t)s->heartbeat_s);
    rmq_frame_end(b, f);
    f = rmq_method(b, 0, RMQ_OPEN);
    rmq_put_string(b, s->vhost);
    rmq_put_string(b, "");
    rmq_put_u8(b, 0);
    rmq_frame_end(b, f);
    rmq_line_send(l);
    l->state = RMQ_OPENING;
    if (l->heartbeat_ms) mw_timer_start_real(l->loop, &l->beat, l->heartbeat_ms / 4 + 1, beat);
}

static void too_slow(mw_timer *t) {
    nonsense(mw_container_of(t, rmq_chan, slow)->line, "no answer to the opening of a channel");
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

void rmq_chan_reset(rmq_chan *c) {
    free(c->body);
    c->body = NULL;
    c->stage = RMQ_IDLE;
    c->body_have = c->body_room = 0;
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

/* ---- contents ---- */

static void carrier(rmq_chan *c, uint32_t method, rmq_reader *r) {
    rmq_content *k = &c->content;
    if (c->stage != RMQ_IDLE) {
        nonsense(c->line, "a message inside of another");
        return;
    }
    *k = (rmq_content){.method = method};
    if (method == RMQ_RETURN) {
        k->code = rmq_u16(r);
        k->text = rmq_short(r);
    } else {
        if (method == RMQ_DELIVER) rmq_short(r); /* the consumer: there is one */
        k->tag = rmq_u64(r);
        k->redelivered = rmq_u8(r) & 1;
    }
    rmq_str exchange = rmq_short(r), key = rmq_short(r);
    if (method == RMQ_GET_OK) k->left = rmq_u32(r);
    if (r->bad) {
        nonsense(c->line, "a delivery that is cut short");
        return;
    }
    memcpy(c->exchange, exchange.data, exchange.len); /* they outlive the frame */
    memcpy(c->key, key.data, key.len);
    k->exchange = (rmq_str){c->exchange, exchange.len};
    k->key = (rmq_str){c->key, key.len};
    k->text = (rmq_str){"", 0};
    c->stage = RMQ_WANT_HEADER;
}

static void complete(rmq_chan *c, rmq_reader header, const char *body) {
    c->content.header = header;
    c->content.body = body;
    c->content.body_len = (size_t)c->body_size;
    c->content.owned = c->body;
    c->stage = RMQ_IDLE;
    c->body = NULL;
    c->body_have = c->body_room = 0;
    rmq_content k = c->content;
    c->events->content(c, &k);
    free(k.owned);
}

static void keep_header(rmq_chan *c, rmq_reader payload) {
    c->header.len = 0;
    mw_buf_add(&c->header, payload.at, (size_t)(payload.end - payload.at));
}

static rmq_reader kept_header(const rmq_chan *c) {
    const unsigned char *h = (const unsigned char *)c->header.data;
    return (rmq_reader){h, h + c->header.len, false};
}

static void header_came(rmq_chan *c, rmq_reader payload, const unsigned char *next,
                        const unsigned char *end) {
    rmq_reader r = payload;
    if (c->stage != RMQ_WANT_HEADER) {
        nonsense(c->line, "a header without a message");
        return;
    }
    rmq_u32(&r);
    c->body_size = rmq_u64(&r);
    if (r.bad) {
        nonsense(c->line, "a header that is cut short");
        return;
    }
    if (c->body_size > (uint64_t)c->line->settings->max_message) {
        c->content.too_large = c->body_size;
        c->stage = RMQ_PASSING_OVER;
        keep_header(c, payload);
        return;
    }
    /* The usual case: the whole body stands right behind, and is taken from where it is. */
    size_t size = (size_t)c->body_size;
    if (!size) {
        complete(c, payload, "");
        return;
    }
    c->stage = RMQ_WANT_BODY;
    if ((size_t)(end - next) >= size + RMQ_FRAME_EXTRA && next[0] == RMQ_BODY) {
        rmq_reader f = {next + 1, end, false};
        if (rmq_u16(&f) == c->id && rmq_u32(&f) == size) {
            c->header.len = 0;
            c->content.header = payload;
            return; /* body_came finds header.len 0 */
        }
    }
    keep_header(c, payload);
    c->body_room = size < BODY_FIRST ? size : BODY_FIRST; /* it grows with what really comes */
    c->body = malloc(c->body_room);
    if (!c->body) abort();
}

static void pass_over(rmq_chan *c, size_t len) {
    if (len > c->body_size) {
        nonsense(c->line, "a body without a message");
        return;
    }
    c->body_size -= len;
    if (!c->body_size) complete(c, kept_header(c), "");
}

static void body_came(rmq_chan *c, const char *data, size_t len) {
    if (c->stage == RMQ_PASSING_OVER) {
        pass_over(c, len);
        return;
    }
    if (c->stage != RMQ_WANT_BODY || len > c->body_size - c->body_have) {
        nonsense(c->line, "a body without a message");
        return;
    }
    if (!c->body) { /* all of it, in one frame */
        complete(c, c->content.header, data);
        return;
    }
    if (c->body_room - c->body_have < len) {
        c->body_room = (c->body_have + len) * 2;
        if (c->body_room > c->body_size) c->body_room = (size_t)c->body_size;
        c->body = realloc(c->body, c->body_room);
        if (!c->body) abort();
    }
    memcpy(c->body + c->body_have, data, len);
    c->body_have += len;
    if (c->body_have < c->body_size) return;
    complete(c, kept_header(c), c->body);
}

/* ---- frames ---- */

static void connection_method(rmq_line *l, uint32_t method, rmq_reader *r) {
    if (method == RMQ_CLOSE) {
        closed_by_broker(l, r);
    } else if (method == RMQ_CLOSE_OK && l->state == RMQ_LEAVING) {
        left_now(l);
    } else if (method == RMQ_START && l->state == RMQ_GREETED) {
        started(l, r);
    } else if (method == RMQ_TUNE && l->state == RMQ_TUNING) {
        tune(l, r);
    } else if (method == RMQ_OPEN_OK && l->state == RMQ_OPENING) {
        ready(l);
    } else if ((method == RMQ_BLOCKED || method == RMQ_UNBLOCKED) && l->state == RMQ_READY) {
        l->blocked = method == RMQ_BLOCKED;
        rmq_str why = l->blocked ? rmq_short(r) : (rmq_str){"", 0};
        if (l->events->blocked) l->events->blocked(l->owner, l->blocked, why);
    } else if (l->state != RMQ_LEAVING) {
        nonsense(l, "a method at the wrong time");
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
            nonsense(c->line, "an open channel opened again");
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
        nonsense(c->line, "a method on a closed channel");
    } else if (method == RMQ_DELIVER || method == RMQ_GET_OK || method == RMQ_RETURN) {
        carrier(c, method, r);
    } else if (c->stage != RMQ_IDLE) {
        nonsense(c->line, "a method inside of a message");
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
            nonsense(l, "an empty method");
        else
            connection_method(l, method, &r);
        return;
    }
    if (l->state == RMQ_LEAVING) return;
    rmq_chan *c = channel && channel <= RMQ_CHANNELS ? l->chans[channel] : NULL;
    if (c && c->closing && type != RMQ_METHOD) return;
    if (!c || l->state != RMQ_READY) {
        nonsense(l, "a frame for a channel that is not open");
    } else if (type == RMQ_METHOD) {
        uint32_t method = rmq_u32(&r);
        if (r.bad)
            nonsense(l, "an empty method");
        else
            channel_method(c, method, &r);
    } else if (type == RMQ_HEADER) {
        header_came(c, r, data + len + 1, end);
    } else if (type == RMQ_BODY) {
        body_came(c, (const char *)data, len);
    } else {
        nonsense(l, "a frame of an unknown kind");
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
            nonsense(l, "it does not speak AMQP 0-9-1");
            break;
        }
        rmq_reader r = {p + 1, p + 7, false};
        uint16_t channel = rmq_u16(&r);
        size_t size = rmq_u32(&r);
        if (size > l->frame_max - RMQ_FRAME_EXTRA) {
            nonsense(l, "a frame over the limit");
            break;
        }
        if (left < size + RMQ_FRAME_EXTRA) {
            *need = size + RMQ_FRAME_EXTRA;
            break;
        }
        if (p[7 + size] != RMQ_END) {
            nonsense(l, "a frame without its end");
            break;
        }
        frame(l, p[0], channel, p + 7, size, data + len);
        at += size + RMQ_FRAME_EXTRA;
    }
    return at;
}

/* A body that is to be taken from where it stands must be taken in this call: header_came made sure it is
 * there. */
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
