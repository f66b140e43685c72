/* handshake.c - how a line logs in: who we are, by which mechanism, and the limits that both sides agree on;
 * and the heartbeat, which is one of them. The line (line.c) owns all state and says when each step is due.
 */
#include <string.h>

#include "drivers/amqp/protocol/line.h"

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

/* ---- the greeting ---- */

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

static int number(rmq_str text, size_t *at) {
    int n = 0;
    for (size_t end = *at + 4; *at < text.len && *at < end; ++*at) {
        if (text.data[*at] < '0' || text.data[*at] > '9') break;
        n = n * 10 + text.data[*at] - '0';
    }
    return n;
}

static void read_version(rmq_line *l, rmq_reader properties) {
    rmq_value v;
    size_t at = 0;
    l->server = l->server_minor = 0;
    if (!rmq_table_find(properties, "version", &v) || v.type != 'S') return;
    l->server = number(v.text, &at);
    if (at++ < v.text.len) l->server_minor = number(v.text, &at);
}

void rmq_line_started(rmq_line *l, rmq_reader *r) {
    rmq_u16(r); /* version: a broker that does not speak 0-9-1 sends its own greeting and closes */
    read_version(l, rmq_table(r));
    rmq_str mechanisms = rmq_long(r);
    const char *wanted = l->settings->external ? "EXTERNAL" : "PLAIN";
    if (r->bad) {
        rmq_line_nonsense(l, "a greeting that is cut short");
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

/* ---- limits ---- */

static int64_t smaller(int64_t a, int64_t b) { return a && b ? (a < b ? a : b) : a + b; }

void rmq_line_tune(rmq_line *l, rmq_reader *r) {
    uint16_t channels = rmq_u16(r);
    uint32_t frame = rmq_u32(r);
    rmq_u16(r); /* its heartbeat: ours decides, it would only offer its default */
    if (r->bad || (frame && frame < RMQ_FRAME_MIN) || (channels && channels < RMQ_CHANNELS)) {
        rmq_line_nonsense(l, "limits that cannot be");
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
