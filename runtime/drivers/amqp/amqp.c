/* amqp.c - the driver for RabbitMQ: AMQP 0-9-1 on our own stream. See amqp.h for its files,
 * docs/brokers/rabbitmq.md for what it promises. */
#include "drivers/amqp/amqp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/nearest.h"

/* ---- queues ---- */

static void put_text(mw_buf *b, const char *name, const char *value) {
    if (value) rmq_put_text(b, name, value);
}

static void put_positive(mw_buf *b, const char *name, int64_t value) {
    if (value > 0) rmq_put_number(b, name, value);
}

enum { UNLIMITED = -2 }; /* a delivery limit */

void rmq_put_queue_declare(mw_buf *b, uint16_t channel, const char *queue, const rmq_queue_options *o,
                           bool passive) {
    size_t f = rmq_method(b, channel, RMQ_QUEUE_DECLARE);
    rmq_put_u16(b, 0);
    rmq_put_string(b, queue);
    rmq_put_u8(b, passive ? 1 : (o->transient ? 0 : 2) | (o->exclusive ? 4 : 0) | (o->auto_delete ? 8 : 0));
    size_t table = rmq_open(b);
    if (!passive) {
        put_text(b, "x-queue-type", o->type);
        put_text(b, "x-overflow", o->overflow);
        put_text(b, "x-dead-letter-exchange", o->dead_exchange);
        put_text(b, "x-dead-letter-routing-key", o->dead_key);
        put_text(b, "x-dead-letter-strategy", o->dead_strategy);
        put_positive(b, "x-max-priority", o->max_priority);
        put_positive(b, "x-message-ttl", o->ttl_ms);
        put_positive(b, "x-expires", o->expires_ms);
        put_positive(b, "x-max-length", o->max_length);
        put_positive(b, "x-max-length-bytes", o->max_bytes);
        if (o->delivery_limit >= 0) rmq_put_number(b, "x-delivery-limit", o->delivery_limit);
        if (o->delivery_limit == UNLIMITED) rmq_put_number(b, "x-delivery-limit", -1);
        if (o->single_active) rmq_put_bool(b, "x-single-active-consumer", true);
        if (o->lazy) rmq_put_text(b, "x-queue-mode", "lazy");
    }
    rmq_close(b, table);
    rmq_frame_end(b, f);
}

static bool named_stream(const rmq_conn *c, const char *queue) {
    size_t len = strlen(queue);
    for (const char *at = c->streams; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, queue, len) == 0 && (at[len] == ',' || !at[len])) return true;
    }
    return false;
}

const rmq_queue_options *rmq_options_of(rmq_conn *c, const char *queue) {
    const rmq_queue_options *o = mw_map_get(&c->declared, mw_hash64(queue, strlen(queue)));
    return o ? o : named_stream(c, queue) ? &c->stream : &c->defaults;
}

bool rmq_is_stream(rmq_conn *c, const char *queue) {
    const char *type = rmq_options_of(c, queue)->type;
    return type && strcmp(type, "stream") == 0;
}

void rmq_put_declare(mw_buf *b, rmq_conn *c, uint16_t channel, const char *queue, bool passive) {
    rmq_put_queue_declare(b, channel, queue, rmq_options_of(c, queue), passive);
}

bool rmq_is_quorum(const rmq_queue_options *o) { return o->type && strcmp(o->type, "quorum") == 0; }

/* RabbitMQ 4 gives a message of a quorum queue up at its 21st delivery, to the dead-letter exchange, or
 * without one for good: after so many restarts of its readers it would be lost. Who wants that says so. */
void rmq_unlimit(const rmq_conn *c, rmq_queue_options *o) {
    if (rmq_is_quorum(o) && c->server >= 4 && o->delivery_limit < 0) o->delivery_limit = UNLIMITED;
}

static void put_own_queue(mw_buf *b, rmq_conn *c, uint16_t channel, const char *queue) {
    rmq_queue_options o = *rmq_options_of(c, queue);
    if (!o.dead_exchange) rmq_unlimit(c, &o);
    rmq_put_queue_declare(b, channel, queue, &o, false);
}

uint32_t rmq_make_steps(rmq_conn *c, const char *queue) {
    const rmq_recipe *r = rmq_options_of(c, queue)->recipe;
    return r ? rmq_recipe_count(r) : 1;
}

void rmq_put_make(mw_buf *b, rmq_conn *c, uint16_t channel, const char *queue, uint32_t step) {
    const rmq_recipe *r = rmq_options_of(c, queue)->recipe;
    if (r && step < rmq_recipe_count(r))
        rmq_recipe_put(r, step, channel, b);
    else
        put_own_queue(b, c, channel, queue);
}

bool rmq_make_without(rmq_conn *c, const char *queue, uint32_t step, const mw_error *why) {
    const rmq_recipe *r = rmq_options_of(c, queue)->recipe;
    char name[600];
    if (!r || step >= rmq_recipe_count(r) || !rmq_recipe_name(r, step, name, sizeof name)) return false;
    mw_log_begin(MW_ERROR, "a part of the topology cannot be made; `moonwire topology plan` compares");
    mw_log_text("queue", queue);
    mw_log_text("part", name);
    mw_log_text("error", why->text);
    mw_log_end();
    return true;
}

static void free_options(rmq_queue_options *o) {
    free(o->type);
    free(o->overflow);
    free(o->dead_exchange);
    free(o->dead_key);
    rmq_recipe_free(o->recipe);
    free(o);
}

static char *copy(const char *text) {
    char *c = text ? strdup(text) : NULL;
    if (text && !c) abort();
    return c;
}

static void set_option(rmq_queue_options *o, const char *name, const char *value) {
    bool durable = !o->transient;
    struct {
        const char *name;
        char **text;
        int64_t *number;
        bool *flag;
        int64_t scale;
    } known[] = {
        {"type", &o->type, NULL, NULL, 0},
        {"overflow", &o->overflow, NULL, NULL, 0},
        {"dead_exchange", &o->dead_exchange, NULL, NULL, 0},
        {"dead_key", &o->dead_key, NULL, NULL, 0},
        {"max_priority", NULL, &o->max_priority, NULL, 1},
        {"ttl", NULL, &o->ttl_ms, NULL, 1000},
        {"expires", NULL, &o->expires_ms, NULL, 1000},
        {"max_length", NULL, &o->max_length, NULL, 1},
        {"max_bytes", NULL, &o->max_bytes, NULL, 1},
        {"delivery_limit", NULL, &o->delivery_limit, NULL, 1},
        {"single_active", NULL, NULL, &o->single_active, 0},
        {"lazy", NULL, NULL, &o->lazy, 0},
        {"durable", NULL, NULL, &durable, 0},
        {"exclusive", NULL, NULL, &o->exclusive, 0},
        {"auto_delete", NULL, NULL, &o->auto_delete, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        if (known[i].text) {
            free(*known[i].text);
            *known[i].text = copy(value);
        } else if (known[i].number) {
            *known[i].number = (int64_t)(strtod(value, NULL) * (double)known[i].scale + 0.5);
        } else {
            *known[i].flag = strcmp(value, "true") == 0;
        }
    }
    o->transient = !durable;
}

static const char *setting(const mw_channel_options *o, const char *name) {
    for (size_t i = 0; i < o->setting_count; i++)
        if (strcmp(o->settings[i].name, name) == 0) return o->settings[i].value;
    return NULL;
}

/* The defaults of the URL are for queues: a stream has none of them, nor has a quorum queue priorities. */
static void fit_defaults(rmq_queue_options *q, const mw_channel_options *o) {
    bool stream = q->type && strcmp(q->type, "stream") == 0,
         quorum = q->type && strcmp(q->type, "quorum") == 0;
    if ((stream || quorum) && !setting(o, "max_priority")) q->max_priority = 0;
    if (stream && !setting(o, "single_active")) q->single_active = false;
}

/* What options begin with: of a queue of the topology nothing but what stands there, as `topology apply`
 * makes it; then its channel may say more. Else the URL's defaults. */
static rmq_queue_options *begin_options(rmq_conn *c, const char *channel, const char *topology,
                                        rmq_queue_options *old) {
    rmq_queue_options *q = calloc(1, sizeof *q);
    if (!q) abort();
    if (topology) {
        q->delivery_limit = -1;
        q->recipe = rmq_recipe_read(topology);
    } else if (old && old->recipe) {
        *q = *old;
        q->type = copy(old->type);
        q->overflow = copy(old->overflow);
        q->dead_exchange = copy(old->dead_exchange);
        q->dead_key = copy(old->dead_key);
        old->recipe = NULL; /* it is the new one's */
    } else {
        *q = c->defaults;
        q->type = copy(named_stream(c, channel) ? "stream" : c->defaults.type);
    }
    return q;
}

/* The options of a channel, or of a queue of the topology, count when the queue is declared. */
static int amqp_declare(mw_conn *conn, const char *channel, const mw_channel_options *o, mw_error *e) {
    rmq_conn *c = (rmq_conn *)conn;
    (void)e;
    uint64_t hash = mw_hash64(channel, strlen(channel));
    rmq_queue_options *old = mw_map_get(&c->declared, hash);
    rmq_queue_options *q = begin_options(c, channel, setting(o, "topology"), old);
    for (size_t i = 0; i < o->setting_count; i++) set_option(q, o->settings[i].name, o->settings[i].value);
    if (!q->recipe) fit_defaults(q, o);
    if (old) free_options(old);
    mw_map_put(&c->declared, hash, q);
    return 0;
}

void rmq_note_stream(rmq_conn *c, const char *queue) {
    mw_setting type = {.name = "type", .value = "stream"};
    mw_error e;
    amqp_declare((mw_conn *)c, queue, &(mw_channel_options){.settings = &type, .setting_count = 1}, &e);
}

/* ---- opening ---- */

static int choice(const mw_url *u, const char *name, const char *const *of, int *out, mw_error *e) {
    const char *given = mw_url_option(u, name);
    if (!given) return 0;
    for (int i = 0; of[i]; i++)
        if (strcmp(of[i], given) == 0) {
            *out = i;
            return 0;
        }
    const char *near = mw_nearest(given, of);
    return mw_fail(e, MW_EUSAGE, false, "%s=%s: it is one of %s, %s%s%s%s", name, given, of[0], of[1],
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static int read_url(rmq_conn *c, const mw_url *u, mw_error *e) {
    static const char *const options[] = {
        "heartbeat",       "frame_max",         "max_message", "name",          "queue_type",
        "max_priority",    "declare",           "auth",        "single_active", "streams",
        "blocked_timeout", MW_TLS_OPTION_NAMES, NULL};
    static const char *const types[] = {"classic", "quorum", NULL},
                             *const modes[] = {"auto", "passive", NULL},
                             *const auths[] = {"plain", "external", NULL},
                             *const truths[] = {"false", "true", NULL};
    rmq_settings *s = &c->settings;
    int type = 0, mode = RMQ_DECLARE_AUTO, auth = 0, single = 0;
    int64_t max_message = 512 << 20, blocked_s = 0;
    if (mw_url_only(u, options, e)) return -1;
    if (!*u->hosts)
        return mw_fail(e, MW_EUSAGE, false, "name the broker: amqp://user:password@host:port/vhost");
    s->stream.tls.on = strcmp(u->scheme, "amqps") == 0;
    s->heartbeat_s = 60;
    s->frame_max = RMQ_FRAME_MAX;
    if (mw_tls_from_url(u, &s->stream.tls, e) || mw_url_number(u, "heartbeat", 0, 3600, &s->heartbeat_s, e) ||
        mw_url_number(u, "frame_max", RMQ_FRAME_MIN, 16 << 20, &s->frame_max, e) ||
        mw_url_number(u, "max_message", 1024, (int64_t)1 << 30, &max_message, e) ||
        mw_url_number(u, "blocked_timeout", 0, 86400, &blocked_s, e) ||
        mw_url_number(u, "max_priority", 1, 255, &c->defaults.max_priority, e) ||
        choice(u, "queue_type", types, &type, e) || choice(u, "declare", modes, &mode, e) ||
        choice(u, "auth", auths, &auth, e) || choice(u, "single_active", truths, &single, e))
        return -1;
    if (auth && !(s->stream.tls.on && s->stream.tls.cert))
        return mw_fail(e, MW_EUSAGE, false,
                       "auth=external is a login by certificate: use amqps:// with cert=FILE");
    if (type && mw_url_option(u, "max_priority"))
        return mw_fail(e, MW_EUSAGE, false,
                       "max_priority does not go with queue_type=quorum: a quorum queue has none");
    if (strlen(u->path) > 255) return mw_fail(e, MW_EUSAGE, false, "the vhost's name is over 255 bytes");
    c->defaults.type = mw_url_option(u, "queue_type") ? copy(types[type]) : NULL;
    c->defaults.delivery_limit = -1;
    c->defaults.single_active = single;
    c->streams = copy(mw_url_option(u, "streams"));
    c->stream = (rmq_queue_options){.type = (char *)(uintptr_t) "stream", .delivery_limit = -1};
    c->declare = (rmq_declare_mode)mode;
    c->blocked_ms = blocked_s * 1000;
    s->external = auth;
    s->max_message = max_message;
    s->stream.hosts = u->hosts;
    s->stream.default_port = s->stream.tls.on ? 5671 : 5672;
    s->stream.idle_ms = s->heartbeat_s * 2000;
    s->stream.write_ms =
        s->heartbeat_s ? s->heartbeat_s * 3000 : 60000; /* a broker with an alarm does not read */
    s->user = *u->user || *u->password ? u->user : "guest";
    s->password = *u->user || *u->password ? u->password : "guest";
    s->vhost = *u->path ? u->path : "/";
    return 0;
}

static int amqp_check(const mw_url *url, mw_error *e) {
    rmq_conn c = {0};
    int wrong = read_url(&c, url, e);
    free(c.defaults.type);
    free(c.streams);
    return wrong;
}

static mw_conn *amqp_open(mw_loop *loop, const mw_url *url, mw_link *link, const mw_host *host, mw_error *e) {
    rmq_conn *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->loop = loop;
    c->link = link;
    c->host = host;
    c->first_seq = c->next_seq = 1;
    if (read_url(c, url, e)) {
        free(c->defaults.type);
        free(c->streams);
        free(c);
        return NULL;
    }
    const char *name = mw_url_option(url, "name");
    snprintf(c->name, sizeof c->name, "%s (pid %ld)", name ? name : "moonwire", (long)getpid());
    c->settings.name = c->name;
    return (mw_conn *)c;
}

static void amqp_close(mw_conn *conn) {
    rmq_conn *c = (rmq_conn *)conn;
    while (c->subs) rmq_sub_free(c->subs);
    rmq_looks_free(c);
    rmq_requests_free(c);
    rmq_replier_close(c);
    rmq_out_close(c);
    rmq_targets_free(c);
    uint32_t at = 0;
    for (rmq_queue_options *o; (o = mw_map_next(&c->declared, &at, NULL));) free_options(o);
    mw_map_free(&c->declared);
    mw_headers_free(&c->scratch);
    free(c->defaults.type);
    free(c->streams);
    free(c);
}

static size_t amqp_peers(mw_conn *conn, mw_peer *out, size_t max) {
    rmq_conn *c = (rmq_conn *)conn;
    size_t n = 0;
    if (c->out && n < max) mw_stream_look(c->out->stream, "publisher", &out[n++]);
    if (c->replier && c->replier->out && n < max)
        mw_stream_look(c->replier->out->stream, "replies", &out[n++]);
    for (rmq_sub *s = c->subs; s && n < max; s = s->next)
        if (s->line) {
            mw_stream_look(s->line->stream, "consumer", &out[n]);
            if (*s->trouble)
                snprintf(out[n].error, sizeof out[n].error, "%.*s", MW_ERROR_TEXT - 1, s->trouble);
            n++;
        }
    return n;
}

static const char *const amqp_schemes[] = {"amqp", "amqps", NULL};

const mw_driver mw_driver_amqp = {
    .name = "rabbitmq",
    .schemes = amqp_schemes,
    .check = amqp_check,
    .can = MW_CAN_DELAY | MW_CAN_PRIORITY | MW_CAN_BROWSE | MW_CAN_REMOVE | MW_CAN_RETRY,
    .open = amqp_open,
    .close = amqp_close,
    .declare = amqp_declare,
    .subscribe = rmq_subscribe,
    .resume = rmq_resume,
    .begin = rmq_begin,
    .settle = rmq_settle,
    .depth = rmq_depth,
    .pause = rmq_pause,
    .unsubscribe = rmq_unsubscribe,
    .publish = rmq_publish,
    .browse = rmq_browse,
    .remove = rmq_remove,
    .peers = amqp_peers,
    .topology = rmq_topology,
    .request = rmq_request_send,
};
