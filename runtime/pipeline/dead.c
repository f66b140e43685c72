/* dead.c - the dead letter: the message as it was, and headers that tell what happened to it. Also the log
 * lines about a delivery. */
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "core/tier.h"
#include "pipeline/defs.h"

static const char PREFIX[] = "mw-dead-";

static void add(mw_headers *h, const char *name, const char *value, size_t len) {
    mw_headers_add(h, name, strlen(name), value, len);
}

static void add_text(mw_headers *h, const char *name,
                     const mw_text *t) { /* one from a broker may have any length */
    if (t) add(h, name, t->data, mw_text_clip(t->data, t->len, MW_REASON_MAX));
}

static void add_time(mw_headers *h, const char *name, int64_t ms) {
    time_t seconds = (time_t)(ms / 1000);
    struct tm tm;
    char text[40];
    gmtime_r(&seconds, &tm);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    mw_headers_addf(h, name, "%.*s.%03dZ", (int)n, text, (int)(ms % 1000));
}

static bool begins_with(const mw_header *x, const char *text) {
    size_t n = strlen(text);
    return x->name_len >= n && memcmp(x->name, text, n) == 0;
}

/* What an earlier death or a retry channel added is replaced, the rest stays byte for byte. */
static void copy_headers(mw_headers *h, const mw_parts *parts) {
    size_t at = 0;
    for (mw_header x; mw_headers_next(parts->headers, parts->headers_len, &at, &x);)
        if (!begins_with(&x, PREFIX) && !begins_with(&x, MW_TIER_ORIGIN))
            mw_headers_add(h, x.name, x.name_len, x.value, x.value_len);
}

static uint32_t generation_of(const mw_delivery *d) {
    const mw_pipeline *p = d->pipeline;
    bool on_trial = d->taker && d->taker == p->trial.events.owner;
    return on_trial ? p->trial.generation : p->main.generation;
}

mw_message *mw_dead_letter(const mw_delivery *d, const char *class_name, const char *reason,
                           size_t reason_len) {
    const mw_pipeline *p = d->pipeline;
    mw_parts parts;
    mw_message_parts(d->msg, &parts);
    mw_headers h = {0};
    copy_headers(&h, &parts);
    add(&h, "mw-dead-reason", reason, reason_len);
    add(&h, "mw-dead-class", class_name, strlen(class_name));
    mw_headers_addf(&h, "mw-dead-attempts", "%u", d->attempt);
    add(&h, "mw-dead-channel", p->spec.channel, strlen(p->spec.channel));
    const char *broker = mw_link_url(p->spec.from);
    add(&h, "mw-dead-broker", broker, strlen(broker));
    add(&h, "mw-dead-pipeline", p->spec.name, strlen(p->spec.name));
    add(&h, "mw-dead-group", p->spec.group, strlen(p->spec.group));
    add_text(&h, "mw-dead-first-error", d->first_error);
    add_text(&h, "mw-dead-last-error", d->error ? d->error : d->first_error);
    add_time(&h, "mw-dead-published", parts.time_ms);
    add_time(&h, "mw-dead-time", mw_loop_wall_ms(p->loop));
    mw_headers_addf(&h, "mw-dead-generation", "%u", generation_of(d));
    if (p->driver->origin && p->sub) {
        mw_origin o = {
            .tag = d->tag, .unit = d->unit, .msg = d->msg, .reason = reason, .reason_len = reason_len};
        p->driver->origin(p->sub, &o, &h);
    }
    if (p->spec.on_dead != MW_DEAD_CONTINUE && d->lane_key)
        mw_headers_addf(&h, "mw-dead-lane", "%016llx", (unsigned long long)d->lane_key);
    parts.headers = h.data;
    parts.headers_len = h.len;
    parts.time_ms = mw_loop_wall_ms(p->loop);
    mw_message *letter = mw_message_new(&parts);
    mw_headers_free(&h);
    return letter;
}

/* For a retry channel: the message as it is, and what the next attempt has to know. */
mw_message *mw_tier_copy(const mw_delivery *d, int64_t delay_ms) {
    mw_parts parts;
    mw_message_parts(d->msg, &parts);
    int64_t now = mw_loop_wall_ms(d->pipeline->loop);
    mw_headers h = {0};
    mw_header x;
    for (size_t at = 0; mw_headers_next(parts.headers, parts.headers_len, &at, &x);)
        mw_headers_add(&h, x.name, x.name_len, x.value, x.value_len);
    add(&h, MW_TIER_GROUP, d->pipeline->spec.group, strlen(d->pipeline->spec.group));
    mw_headers_addf(&h, MW_TIER_ATTEMPTS, "%u", d->attempt);
    mw_headers_addf(&h, MW_TIER_DUE, "%lld", (long long)(now + delay_ms));
    mw_headers_addf(&h, MW_TIER_PUBLISHED, "%lld", (long long)parts.time_ms);
    add_text(&h, MW_TIER_ERROR, d->first_error);
    const mw_pipeline *p = d->pipeline;
    if (p->driver->locate && p->sub &&
        !mw_headers_find(parts.headers, parts.headers_len, MW_TIER_ORIGIN, &x)) {
        char name[MW_NAME_SPACE];
        size_t len = p->driver->locate(p->sub, d->tag, d->unit, name, sizeof name);
        add(&h, MW_TIER_ORIGIN, name, len);
    }
    parts.headers = h.data;
    parts.headers_len = h.len;
    parts.time_ms = now;
    mw_message *copy = mw_message_new(&parts);
    mw_headers_free(&h);
    return copy;
}

void mw_delivery_log(int level, const char *text, const mw_delivery *d) {
    mw_parts parts = {0};
    char space[MW_NAME_SPACE];
    if (d->msg)
        mw_message_parts(d->msg, &parts);
    else
        parts.id = mw_delivery_name(d, space, &parts.id_len);
    mw_log_begin((mw_level)level, text);
    mw_log_text("pipeline", d->pipeline->spec.name);
    mw_log_str("id", parts.id, parts.id_len);
    if (parts.has_key) mw_log_str("key", parts.key, parts.key_len);
    mw_log_int("attempt", d->attempt);
}
