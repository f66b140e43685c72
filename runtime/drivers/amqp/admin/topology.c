/* topology.c - exchanges, queues and bindings: what is wanted against what there is (mw_driver.topology).
 * AMQP cannot tell the arguments of what exists, but it refuses a declaration that differs and says in what
 * (406): so what exists is declared once more as wanted, which changes nothing. Bindings cannot be asked for
 * at all; making one twice is once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/amqp/amqp.h"
#include "json/json.h"

typedef struct item { /* one thing, as config/rabbitmq.lua writes it */
    const struct mw_json_doc *doc;
    uint32_t node;
} item;

typedef struct plan {
    rmq_job job;
    void *cookie;
    struct mw_json_doc *doc;
    mw_buf answer;
    uint32_t count, at; /* items */
    item it;
    bool apply, show;
    enum { LOOK, COMPARE, MAKE, BIND } step;
    uint32_t messages, consumers;
    mw_buf missing; /* names of what is not there, each with its kind in front and a zero behind */
    mw_deferred late;
    rmq_conn *conn;
} plan;

/* ---- the request ---- */

static bool find(const item *p, const char *path, struct mw_json_value *v) {
    return mw_json_find_in(p->doc, p->node, path, strlen(path), v) != MW_JSON_NONE;
}

static rmq_str text(const item *p, const char *path) {
    struct mw_json_value v;
    return find(p, path, &v) && v.type == MW_JSON_STRING ? (rmq_str){v.text, v.len} : (rmq_str){"", 0};
}

static bool truth(const item *p, const char *path) {
    struct mw_json_value v;
    return find(p, path, &v) && v.type == MW_JSON_TRUE;
}

static bool is(rmq_str s, const char *word) {
    return s.len == strlen(word) && memcmp(s.data, word, s.len) == 0;
}

static item item_at(const struct mw_json_doc *doc, uint32_t at) { /* from 1 */
    char path[32];
    struct mw_json_value v;
    snprintf(path, sizeof path, "items.%u", at);
    mw_json_find(doc, path, strlen(path), &v);
    return (item){doc, v.node};
}

static bool next_item(plan *p) {
    if (p->at >= p->count) return false;
    p->it = item_at(p->doc, ++p->at);
    p->step = is(text(&p->it, "kind"), "binding") ? BIND : LOOK;
    return true;
}

/* ---- methods ---- */

static void put_argument(mw_buf *b, rmq_str name, char type, rmq_str value) {
    char number[64];
    size_t n = value.len < sizeof number - 1 ? value.len : sizeof number - 1;
    memcpy(number, value.data, n);
    number[n] = '\0';
    rmq_put_short(b, name.data, name.len);
    if (type == 'l') {
        rmq_put_u8(b, 'l');
        rmq_put_u64(b, (uint64_t)strtoll(number, NULL, 10));
    } else if (type == 'd') {
        double real = strtod(number, NULL);
        uint64_t bits;
        memcpy(&bits, &real, sizeof bits);
        rmq_put_u8(b, 'd');
        rmq_put_u64(b, bits);
    } else if (type == 't') {
        rmq_put_u8(b, 't');
        rmq_put_u8(b, is(value, "true"));
    } else {
        rmq_put_u8(b, 'S');
        rmq_put_long(b, value.data, value.len);
    }
}

static void put_arguments(const item *p, mw_buf *b) {
    size_t table = rmq_open(b);
    for (int i = 1;; i++) {
        char name[64], type[64], value[64];
        snprintf(name, sizeof name, "settings.arguments.%d.name", i);
        snprintf(type, sizeof type, "settings.arguments.%d.type", i);
        snprintf(value, sizeof value, "settings.arguments.%d.value", i);
        rmq_str n = text(p, name), t = text(p, type);
        if (!n.len) break;
        put_argument(b, n, t.len ? t.data[0] : 'S', text(p, value));
    }
    rmq_close(b, table);
}

static void put_queue(const item *p, mw_buf *b, uint16_t channel, bool passive) {
    rmq_str name = text(p, "name");
    size_t f = rmq_method(b, channel, RMQ_QUEUE_DECLARE);
    rmq_put_u16(b, 0);
    rmq_put_short(b, name.data, name.len);
    rmq_put_u8(b, (uint8_t)(passive ? 1
                                    : (truth(p, "settings.durable") ? 2 : 0) |
                                          (truth(p, "settings.exclusive") ? 4 : 0) |
                                          (truth(p, "settings.auto_delete") ? 8 : 0)));
    if (passive)
        rmq_close(b, rmq_open(b));
    else
        put_arguments(p, b);
    rmq_frame_end(b, f);
}

static void put_exchange(const item *p, mw_buf *b, uint16_t channel, bool passive) {
    rmq_str name = text(p, "name"), type = text(p, "settings.type");
    size_t f = rmq_method(b, channel, RMQ_EXCHANGE_DECLARE);
    rmq_put_u16(b, 0);
    rmq_put_short(b, name.data, name.len);
    rmq_put_short(b, type.data, type.len);
    rmq_put_u8(b, (uint8_t)(passive ? 1
                                    : (truth(p, "settings.durable") ? 2 : 0) |
                                          (truth(p, "settings.auto_delete") ? 4 : 0) |
                                          (truth(p, "settings.internal") ? 8 : 0)));
    if (passive)
        rmq_close(b, rmq_open(b));
    else
        put_arguments(p, b);
    rmq_frame_end(b, f);
}

static void put_bind(const item *p, mw_buf *b, uint16_t channel) {
    rmq_str exchange = text(p, "settings.exchange"), to = text(p, "settings.destination"),
            key = text(p, "settings.key");
    bool queue = !truth(p, "settings.to_exchange");
    size_t f = rmq_method(b, channel, queue ? RMQ_QUEUE_BIND : RMQ_ID(40, 30));
    rmq_put_u16(b, 0);
    rmq_put_short(b, to.data, to.len);
    rmq_put_short(b, exchange.data, exchange.len);
    rmq_put_short(b, key.data, key.len);
    rmq_put_u8(b, 0);
    put_arguments(p, b);
    rmq_frame_end(b, f);
}

static void put_item(const item *p, mw_buf *b, uint16_t channel, bool passive) {
    rmq_str kind = text(p, "kind");
    if (is(kind, "binding"))
        put_bind(p, b, channel);
    else if (is(kind, "exchange"))
        put_exchange(p, b, channel, passive);
    else
        put_queue(p, b, channel, passive);
}

static void start(rmq_job *j, rmq_conn *c, mw_buf *out) {
    plan *p = mw_container_of(j, plan, job);
    (void)c;
    put_item(&p->it, out, RMQ_CHAN_ADMIN, p->step == LOOK);
}

/* ---- the answer ---- */

static const char *between(const char *s, const char *before, const char *after, size_t *len) {
    const char *from = s ? strstr(s, before) : NULL;
    if (!from) return NULL;
    from += strlen(before);
    const char *to = strstr(from, after);
    *len = to ? (size_t)(to - from) : strlen(from);
    return from;
}

/* "inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '5' of type 'signedint' but
 * current is the value '9' of type 'long'"; either side may be "none" */
static void put_difference(mw_buf *b, const char *why) {
    size_t field_len, wanted_len, found_len;
    const char *field = between(why, "inequivalent arg '", "'", &field_len);
    if (!field) return;
    const char *received = strstr(why, "received "), *current = strstr(why, "but current is ");
    const char *wanted = received && strncmp(received, "received none", 13) != 0
                             ? between(received, "'", "'", &wanted_len)
                             : NULL;
    const char *found = current && strncmp(current, "but current is none", 19) != 0
                            ? between(current, "'", "'", &found_len)
                            : NULL;
    mw_buf_puts(b, "{\"field\":");
    mw_buf_json(b, field, field_len);
    mw_buf_puts(b, ",\"wanted\":");
    mw_buf_json(b, wanted ? wanted : "none", wanted ? wanted_len : 4);
    mw_buf_puts(b, ",\"found\":");
    mw_buf_json(b, found ? found : "none", found ? found_len : 4);
    mw_buf_puts(b, "}");
}

static void told(plan *p, const char *state, const char *difference, const char *error, const char *note) {
    mw_buf *b = &p->answer;
    rmq_str kind = text(&p->it, "kind"), name = text(&p->it, "name");
    mw_buf_puts(b, p->at > 1 ? ",{\"kind\":" : "{\"kind\":");
    mw_buf_json(b, kind.data, kind.len);
    mw_buf_puts(b, ",\"name\":");
    mw_buf_json(b, name.data, name.len);
    mw_buf_printf(b, ",\"state\":\"%s\",\"differences\":[", state);
    if (difference) put_difference(b, difference);
    mw_buf_puts(b, "]");
    if (p->show && strcmp(state, "present") == 0 && is(kind, "queue"))
        mw_buf_printf(b, ",\"settings\":{\"messages\":%u,\"consumers\":%u}", p->messages, p->consumers);
    if (error) {
        mw_buf_puts(b, ",\"error\":");
        mw_buf_json(b, error, strlen(error));
    }
    if (note) {
        mw_buf_puts(b, ",\"note\":");
        mw_buf_json(b, note, strlen(note));
    }
    mw_buf_puts(b, "}");
}

static void free_plan(plan *p) {
    mw_json_free(p->doc);
    mw_buf_free(&p->answer);
    mw_buf_free(&p->missing);
    free(p);
}

static void answer(plan *p, const mw_error *e) {
    rmq_conn *c = p->conn;
    mw_buf_puts(&p->answer, "]}");
    c->host->topology(c->link, p->cookie, e ? NULL : p->answer.data, e ? 0 : p->answer.len, e);
    free_plan(p);
}

static void note_missing(plan *p) {
    rmq_str name = text(&p->it, "name");
    mw_buf_puts(&p->missing, is(text(&p->it, "kind"), "exchange") ? "e" : "q");
    mw_buf_add(&p->missing, name.data, name.len);
    mw_buf_add(&p->missing, "", 1);
}

static bool is_missing(const plan *p, char kind, rmq_str name) {
    if (!p->missing.len) return false;
    for (const char *at = p->missing.data, *end = at + p->missing.len; at < end; at += strlen(at) + 1)
        if (*at == kind && is(name, at + 1)) return true;
    return false;
}

/* Nobody tells whether a binding is there; without one of its ends it is not. */
static void tell_binding(plan *p) {
    bool missing = is_missing(p, 'e', text(&p->it, "settings.exchange")) ||
                   is_missing(p, truth(&p->it, "settings.to_exchange") ? 'e' : 'q',
                              text(&p->it, "settings.destination"));
    if (missing)
        told(p, "missing", NULL, NULL, NULL);
    else
        told(p, "unchecked", NULL, NULL,
             "AMQP cannot tell whether it is there; apply makes it, which changes nothing if it is");
}

/* The next item that needs the broker; true when there is none any more. */
static bool go_on(plan *p) {
    while (next_item(p)) {
        if (p->step != BIND || p->apply) return false;
        tell_binding(p);
    }
    answer(p, NULL);
    return true;
}

static bool reply(rmq_job *j, rmq_conn *c, uint32_t method, rmq_reader *r) {
    plan *p = mw_container_of(j, plan, job);
    if (method == RMQ_QUEUE_DECLARE_OK) {
        rmq_short(r);
        p->messages = rmq_u32(r);
        p->consumers = rmq_u32(r);
    }
    switch (p->step) {
    case LOOK:
        if (!p->show && c->declare == RMQ_DECLARE_AUTO) {
            p->step = COMPARE;
            return false;
        }
        told(p, "present", NULL, NULL, p->show ? NULL : "not compared: the URL says declare=passive");
        break;
    case COMPARE: told(p, "same", NULL, NULL, NULL); break;
    case MAKE: told(p, "created", NULL, NULL, NULL); break;
    case BIND: told(p, "present", NULL, NULL, NULL); break;
    }
    return go_on(p);
}

static void differs(plan *p, const char *why) {
    told(p, p->apply ? "failed" : "different", why,
         p->apply ? "RabbitMQ cannot change what exists: declare it as it is, or delete it (when it is "
                    "empty) and apply again"
                  : NULL,
         NULL);
}

static bool failed(rmq_job *j, rmq_conn *c, int code, const mw_error *why) {
    plan *p = mw_container_of(j, plan, job);
    (void)c;
    if (code < 0) {
        free_plan(p);
        return true;
    }
    if (code == 0) { /* a person waits */
        answer(p, why);
        return true;
    }
    if (code == 404 && p->step == LOOK) {
        if (p->apply) {
            p->step = MAKE;
            return false;
        }
        note_missing(p);
        told(p, "missing", NULL, NULL, NULL);
    } else if (code == 406 && p->step == COMPARE) {
        differs(p, why->text);
    } else {
        told(p, "failed", NULL, why->text,
             code == 403 && p->step == COMPARE
                 ? "to compare needs the permission to declare: declare=passive "
                   "in the URL looks only whether it is there"
                 : NULL);
    }
    return go_on(p);
}

static void refuse(mw_deferred *d) {
    plan *p = mw_container_of(d, plan, late);
    mw_error e;
    mw_fail(&e, MW_EUSAGE, false, "the URL says declare=passive: this connection declares nothing");
    answer(p, &e);
}

static void answer_late(mw_deferred *d) { go_on(mw_container_of(d, plan, late)); }

void rmq_topology(mw_conn *conn, const char *request, size_t len, void *cookie) {
    rmq_conn *c = (rmq_conn *)conn;
    plan *p = calloc(1, sizeof *p);
    struct mw_json_value v;
    if (!p || !(p->doc = mw_json_new())) abort();
    p->job = (rmq_job){.start = start, .reply = reply, .failed = failed};
    p->cookie = cookie;
    p->conn = c;
    if (mw_json_parse(p->doc, request, len) == 0 && mw_json_find(p->doc, "op", 2, &v)) {
        p->apply = v.len == 5 && memcmp(v.text, "apply", 5) == 0;
        p->show = v.len == 4 && memcmp(v.text, "show", 4) == 0;
        if (mw_json_find(p->doc, "items", 5, &v)) p->count = v.count;
    }
    mw_buf_puts(&p->answer, "{\"items\":[");
    if (p->apply && c->declare == RMQ_DECLARE_PASSIVE) {
        mw_defer(c->loop, &p->late, refuse);
        return;
    }
    bool any = false; /* the first that needs the broker; the ones before are answered here */
    while (!any && next_item(p)) {
        any = p->step != BIND || p->apply;
        if (!any) tell_binding(p);
    }
    if (any)
        rmq_job_add(c, &p->job);
    else
        mw_defer(c->loop, &p->late, answer_late);
}

/* ---- what a queue needs, when it is made ---- */

struct rmq_recipe {
    struct mw_json_doc *doc;
    uint32_t count;
};

rmq_recipe *rmq_recipe_read(const char *json) {
    rmq_recipe *r = calloc(1, sizeof *r);
    struct mw_json_value v;
    if (!r || !(r->doc = mw_json_new())) abort();
    if (mw_json_parse(r->doc, json, strlen(json)) == 0 && mw_json_find(r->doc, "items", 5, &v))
        r->count = v.count;
    return r;
}

void rmq_recipe_free(rmq_recipe *r) {
    if (!r) return;
    mw_json_free(r->doc);
    free(r);
}

uint32_t rmq_recipe_count(const rmq_recipe *r) { return r->count; }

void rmq_recipe_put(const rmq_recipe *r, uint32_t at, uint16_t channel, mw_buf *b) {
    item it = item_at(r->doc, at + 1);
    put_item(&it, b, channel, false);
}

bool rmq_recipe_name(const rmq_recipe *r, uint32_t at, char *out, size_t size) {
    item it = item_at(r->doc, at + 1);
    rmq_str kind = text(&it, "kind"), name = text(&it, "name");
    snprintf(out, size, "%.*s %.*s", (int)kind.len, kind.data, (int)name.len, name.data);
    return !is(kind, "queue");
}
