/* redis.c - connections of the Redis Streams driver, and its struct. See redis.h. */
#include "drivers/redis/redis.h"
#include "drivers/redis/scripts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/uuid.h"

/* ---- answers that are known at once come later all the same ---- */

static void answer_all(mw_deferred *d) {
    mw_conn *c = mw_container_of(d, mw_conn, answering);
    mw_buf batch = c->later;
    c->later = (mw_buf){0};
    for (size_t i = 0; i < batch.len / sizeof(mwr_answer); i++) {
        mwr_answer *a = &((mwr_answer *)(void *)batch.data)[i];
        if (a->source)
            c->host->settled(a->source, a->cookie, a->failed ? &a->e : NULL);
        else
            c->host->published(c->link, a->cookie, a->failed ? &a->e : NULL);
    }
    mw_buf_free(&batch);
}

void mwr_answer_later(mw_conn *c, mw_source *s, void *cookie, const mw_error *e) {
    mwr_answer a = {.source = s, .cookie = cookie, .failed = e != NULL};
    if (e) a.e = *e;
    mw_buf_add(&c->later, &a, sizeof a);
    mw_defer(c->loop, &c->answering, answer_all);
}

/* ---- channels ---- */

mwr_channel *mwr_channel_of(mw_conn *c, const char *name) {
    mwr_channel **at = &c->channels;
    for (; *at; at = &(*at)->next)
        if (strcmp((*at)->name, name) == 0) return *at;
    size_t n = strlen(name) + 1;
    mwr_channel *made = mwr_alloc(sizeof *made + n);
    memcpy(made->name, name, n);
    return *at = made;
}

static int redis_declare(mw_conn *c, const char *name, const mw_channel_options *o, mw_error *e) {
    (void)e;
    mwr_channel *channel = mwr_channel_of(c, name);
    free(channel->body_field);
    channel->body_field = NULL;
    channel->trim_count = 0;
    channel->trim_acked = channel->delete_acked = false;
    for (size_t i = 0; i < o->setting_count; i++) {
        const mw_setting *s = &o->settings[i];
        if (strcmp(s->name, "body_field") == 0 && strcmp(s->value, "body") != 0)
            channel->body_field = strdup(s->value);
        else if (strcmp(s->name, "trim.count") == 0)
            channel->trim_count = strtoull(s->value, NULL, 10);
        else if (strcmp(s->name, "trim.acked") == 0)
            channel->trim_acked = strcmp(s->value, "true") == 0;
        else if (strcmp(s->name, "delete") == 0)
            channel->delete_acked = strcmp(s->value, "true") == 0;
    }
    return 0;
}

/* ---- connections ---- */

/* true: this reason was told since the connection was lost. With several hosts they take turns. */
static bool was_told(mw_conn *c, const mw_error *why) {
    enum { MOST = sizeof c->told / sizeof *c->told };
    uint64_t hash = mw_hash64(why->text, strlen(why->text));
    for (unsigned i = 0; i < c->told_count && i < MOST; i++)
        if (c->told[i] == hash) return true;
    c->told[c->told_count++ % MOST] = hash;
    return false;
}

/* Said when it changes; while it stays away, again when the reason is another. */
static void tell(mw_conn *c, bool up, const mw_error *why) {
    if (up && c->said && c->up) return;
    if (up || c->up) c->told_count = 0;
    if (!up && was_told(c, why)) return;
    c->said = true;
    c->up = up;
    c->host->state(c->link, up, why);
}

static void ready(void *owner) {
    mw_conn *c = owner;
    tell(c, true, NULL);
    for (mw_sub *s = c->subs, *next; s; s = next) {
        next = s->next;
        mwr_sub_connected(s);
    }
}

static void lost(void *owner, const mw_error *why) {
    mw_conn *c = owner;
    tell(c, false, why);
    for (mw_sub *s = c->subs, *next; s; s = next) {
        next = s->next;
        mwr_sub_lost(s);
    }
}

/* Without subscriptions it goes wherever it is sent. */
static bool follow(void *owner, unsigned slot) {
    const mw_conn *c = owner;
    for (const mw_sub *s = c->subs; s; s = s->next)
        if (mwr_slot(s->channel->name, strlen(s->channel->name)) == slot) return true;
    return !c->subs;
}

/* Acks go the same way as publications: what handlers did would have to wait anyway. */
static void full(void *owner, bool on) {
    mw_conn *c = owner;
    for (mw_sub *s = c->subs, *next; s; s = next) {
        next = s->next;
        if (s->source) c->host->full(s->source, on);
    }
}

static mw_conn *redis_open(mw_loop *loop, const mw_url *url, mw_link *link, const mw_host *host,
                           mw_error *e) {
    static const mwr_client_events EVENTS = {ready, lost, full};
    mw_conn *c = mwr_alloc(sizeof *c);
    *c = (mw_conn){.loop = loop, .link = link, .host = host};
    snprintf(c->token, sizeof c->token, "%016llx", (unsigned long long)mw_random64());
    if (mwr_target_from_url(&c->target, url, e)) goto fail;
    if (*c->target.sentinel && !(c->sentinel = mwr_sentinel_new(loop, &c->target, e))) goto fail;
    mwr_client_options o = {.target = &c->target,
                            .sentinel = c->sentinel,
                            .name = "moonwire-commands",
                            .scripts = mwr_script_texts(),
                            .follow = follow};
    c->client = mwr_client_open(loop, &o, &EVENTS, c, e);
    if (c->client) return c;
fail:
    mwr_sentinel_free(c->sentinel);
    mwr_target_free(&c->target);
    free(c);
    return NULL;
}

/* What the client was not answered it fails now, and those answers look at their subscription: it goes first.
 */
static void redis_close(mw_conn *c) {
    c->closing = true;
    mwr_client_close(c->client);
    c->client = NULL;
    while (c->subs) mwr_sub_free(c->subs);
    mwr_sentinel_free(c->sentinel);
    mw_deferred_cancel(c->loop, &c->answering);
    mw_buf_free(&c->later);
    for (mwr_channel *x = c->channels, *next; x; x = next) {
        next = x->next;
        free(x->body_field);
        free(x);
    }
    mwr_target_free(&c->target);
    free(c);
}

static size_t redis_peers(mw_conn *c, mw_peer *out, size_t max) {
    size_t n = 0;
    if (n < max && mwr_sentinel_look(c->sentinel, &out[n])) n++;
    if (n < max && mwr_client_look(c->client, "commands", &out[n])) n++;
    for (mw_sub *s = c->subs; s && n < max; s = s->next)
        if (mwr_client_look(s->reader, "reader", &out[n])) n++;
    return n;
}

static void redis_origin(mw_sub *s, const mw_origin *o, mw_headers *out) {
    static const char NAME[] = "mw-dead-body-field";
    (void)o;
    const char *field = s->channel->body_field;
    if (field) mw_headers_add(out, NAME, sizeof NAME - 1, field, strlen(field));
}

static void redis_pause(mw_sub *s) { s->paused = true; }

static const char *const SCHEMES[] = {"redis", "rediss", "redis+unix", NULL};

const mw_driver mw_driver_redis;
const mw_driver mw_driver_redis = {
    .name = "redis",
    .schemes = SCHEMES,
    .can = MW_CAN_DELAY | MW_CAN_ATOMIC | MW_CAN_DEDUPE | MW_CAN_BROWSE | MW_CAN_REMOVE | MW_CAN_RETRY,
    .open = redis_open,
    .close = redis_close,
    .declare = redis_declare,
    .subscribe = mwr_subscribe,
    .resume = mwr_read,
    .begin = mwr_begin,
    .settle = mwr_settle,
    .depth = mwr_depth,
    .pause = redis_pause,
    .unsubscribe = mwr_unsubscribe,
    .publish = mwr_publish,
    .dedupe = mwr_dedupe,
    .browse = mwr_browse,
    .remove = mwr_remove,
    .peers = redis_peers,
    .origin = redis_origin,
};
