#include "redis/calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis/client.h"

void mw_vm_complete(struct mw_vm *vm, double waiter); /* runtime/lua/vm.c */

struct mw_redis {
    mw_loop *loop;
    char *text;
    mw_url url;
    mwr_target target;
    mwr_sentinel *sentinel;
    mwr_client *client; /* NULL before the first call */
    mw_redis *next;
    mw_error broken; /* it could not be opened */
};

typedef struct value {
    mwr_type type;
    uint32_t count;
    size_t at, len;
    int64_t integer;
} value;

struct mw_redis_call {
    mw_redis *redis;
    struct mw_vm *vm;
    double waiter;
    size_t left; /* replies to come */
    bool abandoned, failed, over;
    mw_error error;
    mw_buf values, bytes; /* of value; the texts they point into */
    mw_timer late;
    /* of a faked one */
    bool faked;
    mw_redis_call *fake_next, **fake_back;
    mw_buf arguments, lens, counts;
};

/* ---- connections ---- */

mw_redis *mw_redis_new(mw_loop *loop, const char *url, mw_error *e) {
    mw_redis *r = calloc(1, sizeof *r);
    if (!r) abort();
    r->loop = loop;
    if (mw_url_parse(&r->url, url, e)) goto fail;
    if (strncmp(r->url.scheme, "redis", 5) != 0) {
        mw_fail(e, MW_EUSAGE, false, "\"%s:\" is not Redis: redis://, rediss:// or redis+unix:// is",
                r->url.scheme);
        goto fail;
    }
    if (mwr_target_from_url(&r->target, &r->url, e)) goto fail;
    r->text = strdup(url);
    return r;
fail:
    mw_url_free(&r->url);
    free(r);
    return NULL;
}

void mw_redis_free(mw_redis *r) {
    if (!r) return;
    mwr_client_close(r->client);
    mwr_sentinel_free(r->sentinel);
    mwr_target_free(&r->target);
    mw_url_free(&r->url);
    free(r->text);
    free(r);
}

mw_redis *mw_redis_next(const mw_redis *r, mw_redis *set) {
    if (set) ((mw_redis *)(uintptr_t)r)->next = set;
    return r->next;
}

const char *mw_redis_url(const mw_redis *r) { return r->text; }

size_t mw_redis_peers(const mw_redis *r, mw_peer *out) {
    return r->client && mwr_client_look(r->client, "handlers", out);
}

static void ignore_ready(void *owner) { (void)owner; }
static void ignore_lost(void *owner, const mw_error *why) { (void)owner, (void)why; }

static bool connect_once(mw_redis *r) {
    static const mwr_client_events EVENTS = {ignore_ready, ignore_lost};
    if (r->client) return true;
    if (*r->target.sentinel && !r->sentinel &&
        !(r->sentinel = mwr_sentinel_new(r->loop, &r->target, &r->broken)))
        return false;
    mwr_client_options o = {.target = &r->target, .sentinel = r->sentinel, .name = "moonwire-handlers"};
    return (r->client = mwr_client_open(r->loop, &o, &EVENTS, r, &r->broken)) != NULL;
}

/* ---- calls ---- */

static void destroy(mw_redis_call *c) {
    mw_timer_stop(&c->late);
    mw_buf_free(&c->values);
    mw_buf_free(&c->bytes);
    mw_buf_free(&c->arguments);
    mw_buf_free(&c->lens);
    mw_buf_free(&c->counts);
    free(c);
}

static void unlist(mw_redis_call *c);

static void end(mw_redis_call *c) {
    if (c->over) return;
    c->over = true;
    unlist(c);
    if (!c->faked) mw_loop_outside(c->redis->loop, -1);
    if (!c->abandoned) mw_vm_complete(c->vm, c->waiter);
}

/* A Lua number holds it without rounding. */
static bool is_exact(int64_t integer) { return integer >= -(1LL << 53) && integer <= 1LL << 53; }

static void keep(mw_redis_call *c, const mwr_unit *u) {
    for (uint32_t i = 0; i < u->node->span; i++) {
        const mwr_node *n = &u->node[i];
        value v = {.type = n->type, .count = n->count, .integer = n->integer, .at = c->bytes.len};
        const char *text = mwr_text(u, n, &v.len);
        if (n->type == MWR_INTEGER && !is_exact(n->integer)) {
            v.type = MWR_BULK;
            v.len = n->len;
            text = u->base + n->at;
        }
        mw_buf_add(&c->bytes, text, v.len);
        mw_buf_add(&c->values, &v, sizeof v);
    }
}

static void replied(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner, (void)more;
    mw_redis_call *c = cookie;
    if (u && !c->abandoned) keep(c, u);
    if (e && !u) {
        c->failed = true;
        c->error = *e;
    }
    if (--c->left) return;
    bool abandoned = c->abandoned;
    end(c);
    if (abandoned) destroy(c);
}

static void not_connected(mw_timer *t) { end(mw_container_of(t, mw_redis_call, late)); }

static bool fakes_on;
static void enlist(mw_redis_call *c, const char *const *args, const size_t *lens, const size_t *counts,
                   size_t commands);

mw_redis_call *mw_redis_start_for(struct mw_vm *vm, mw_redis *r, const char *const *args, const size_t *lens,
                                  const size_t *counts, size_t commands, double waiter) {
    mw_redis_call *c = calloc(1, sizeof *c);
    if (!c) abort();
    *c = (mw_redis_call){.redis = r, .vm = vm, .waiter = waiter, .left = commands, .faked = fakes_on};
    if (c->faked) {
        enlist(c, args, lens, counts, commands);
        return c;
    }
    mw_loop_outside(r->loop, 1);
    if (!connect_once(r)) {
        c->failed = true;
        c->error = r->broken;
        c->left = 0;
        mw_timer_start_real(r->loop, &c->late, 0, not_connected);
        return c;
    }
    for (size_t i = 0, at = 0; i < commands; i++) {
        mw_buf *b = mwr_command(r->client, counts[i], replied, c, 0);
        for (size_t k = 0; k < counts[i]; k++, at++) mwr_write(b, args[at], lens[at]);
    }
    mwr_flush(r->client);
    return c;
}

void mw_redis_call_free(mw_redis_call *c) {
    if (!c) return;
    c->abandoned = true;
    if (!c->over && c->left && !c->faked) return; /* its replies are still to come */
    end(c);
    destroy(c);
}

const char *mw_redis_call_error(const mw_redis_call *c) { return c->failed ? c->error.text : NULL; }

char mw_redis_call_value(const mw_redis_call *c, size_t i, const char **text, size_t *len, double *number) {
    const value *v = &((const value *)(const void *)c->values.data)[i];
    *text = c->bytes.data ? c->bytes.data + v->at : "";
    *len = v->len;
    *number = (double)(v->type == MWR_ARRAY ? v->count : v->integer);
    static const char KINDS[] = {[MWR_STATUS] = 's', [MWR_ERROR] = 'e', [MWR_INTEGER] = 'i',
                                 [MWR_BULK] = 's',   [MWR_NIL] = 'n',   [MWR_ARRAY] = 'a'};
    return KINDS[v->type];
}

/* ---- fakes ---- */

static mw_redis_call *first, **tail = &first;

void mw_redis_fake(bool on) { fakes_on = on; }
bool mw_redis_fake_pending(void) { return first != NULL; }

static void enlist(mw_redis_call *c, const char *const *args, const size_t *lens, const size_t *counts,
                   size_t commands) {
    size_t all = 0;
    for (size_t i = 0; i < commands; i++) all += counts[i];
    for (size_t i = 0; i < all; i++) mw_buf_add(&c->arguments, args[i], lens[i]);
    mw_buf_add(&c->lens, lens, all * sizeof *lens);
    mw_buf_add(&c->counts, counts, commands * sizeof *counts);
    c->fake_back = tail;
    *tail = c;
    tail = &c->fake_next;
}

static void unlist(mw_redis_call *c) {
    if (!c->fake_back) return;
    *c->fake_back = c->fake_next;
    if (c->fake_next)
        c->fake_next->fake_back = c->fake_back;
    else
        tail = c->fake_back;
    c->fake_next = NULL;
    c->fake_back = NULL;
}

mw_redis_call *mw_redis_fake_next(void) {
    mw_redis_call *c = first;
    if (c) unlist(c);
    return c;
}

size_t mw_redis_fake_commands(const mw_redis_call *c) { return c->counts.len / sizeof(size_t); }

const char *mw_redis_fake_argument(const mw_redis_call *c, size_t command, size_t i, size_t *len) {
    const size_t *counts = (const size_t *)(const void *)c->counts.data;
    const size_t *lens = (const size_t *)(const void *)c->lens.data;
    if (i >= counts[command]) return NULL;
    size_t at = 0, from = 0;
    for (size_t k = 0; k < command; k++) at += counts[k];
    at += i;
    for (size_t k = 0; k < at; k++) from += lens[k];
    *len = lens[at];
    return c->arguments.data ? c->arguments.data + from : "";
}

static void faked_unit(void *owner, const mwr_unit *u, bool more) {
    (void)more;
    keep(owner, u);
}

static void answered(mw_timer *t) { end(mw_container_of(t, mw_redis_call, late)); }

void mw_redis_fake_answer(mw_redis_call *c, const char *replies, size_t len, double delay_ms) {
    mwr_parser p = {.unit = faked_unit, .owner = c};
    size_t need = 0;
    mwr_parser_reset(&p);
    int64_t n = mwr_parse(&p, replies, len, &need, &c->error);
    c->failed = n < 0 || (size_t)n != len;
    mwr_parser_free(&p);
    if (delay_ms > 0)
        mw_timer_start(c->redis->loop, &c->late, (int64_t)delay_ms, answered);
    else
        end(c);
}

void mw_redis_fake_fail(mw_redis_call *c, const char *text) {
    c->failed = true;
    mw_fail(&c->error, MW_ECLOSED, true, "%s", text);
    end(c);
}
