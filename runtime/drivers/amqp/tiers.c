/* tiers.c - where publications wait for a delay: in a queue whose messages expire after it and fall back into
 * their own ("tier"). One per queue and delay, made when it is needed and removed by the broker later. Never a
 * TTL per message: that waits behind longer ones.
 *
 * A classic one counts as used whenever it is declared, so that is done again and again while it is. Of a
 * quorum queue it is a quorum queue too: who wants messages on several nodes wants that for those that wait.
 * It keeps a message until its queue has confirmed it. But neither publishing nor declaring counts as use
 * there: it is removed so long after it was made, with all that is in it. So it has a date in its name: it is
 * written to on that day, and stays for two days more than the delay. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "drivers/amqp/amqp.h"

enum { FRESH_MS = 30000, SPARE_MS = 120000, DAY_MS = 86400000 };
#define EXPIRES_MAX ((int64_t)UINT32_MAX)

/* Ten steps for each power of ten: few queues for delays with jitter, and the usual numbers exactly. */
int64_t rmq_tier(int64_t delay_ms, bool retry) {
    static const int64_t steps[] = {100, 125, 160, 200, 250, 300, 400, 500, 600, 800, 1000};
    if (delay_ms < 10) return 10;
    int64_t scale = 1;
    while (delay_ms > 1000 * scale) scale *= 10;
    if (!retry) { /* a wish for a delay is kept to 1 % */
        int64_t step = scale < 10 ? 1 : scale;
        return (delay_ms + step - 1) / step * step;
    }
    if (delay_ms < 100) return (delay_ms + 9) / 10 * 10;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (steps[i] * scale >= delay_ms) return steps[i] * scale;
    return delay_ms;
}

void rmq_tier_name(char *out, size_t size, int64_t ttl_ms, int64_t wall_ms, const char *home) {
    char day[40] = "";
    time_t s = (time_t)(wall_ms / 1000);
    struct tm t;
    if (wall_ms >= 0 && gmtime_r(&s, &t)) strftime(day, sizeof day, "%Y-%m-%d.", &t);
    snprintf(out, size, "mw.delay.%s%" PRId64 ".%s", day, ttl_ms, home);
}

static int check(rmq_conn *c, const char *channel, int64_t delay_ms, mw_error *e) {
    bool quorum = rmq_is_quorum(rmq_options_of(c, channel));
    int64_t most = EXPIRES_MAX - (quorum ? 2 * (int64_t)DAY_MS : SPARE_MS);
    if (delay_ms > most)
        return mw_fail(e, MW_EUSAGE, false,
                       "a delay of %" PRId64 " s is more than RabbitMQ can keep (%d days%s)", delay_ms / 1000,
                       (int)(most / DAY_MS), quorum ? ", for a quorum queue" : "");
    if (rmq_is_exchange(channel) || rmq_routing_key(channel)) /* the broker's own are no queues, either */
        return mw_fail(
            e, MW_EUSAGE, false,
            "a delay needs a queue to come back to: publish to the queue, not to an exchange or reply "
            "address");
    if (c->declare == RMQ_DECLARE_PASSIVE)
        return mw_fail(e, MW_EUSAGE, false,
                       "a delay needs a queue for it to be declared, and the URL says declare=passive");
    return 0;
}

rmq_target *rmq_target_tier(rmq_conn *c, const char *channel, int64_t delay_ms, bool retry, mw_error *e) {
    if (check(c, channel, delay_ms, e)) return NULL;
    int64_t ttl = rmq_tier(delay_ms, retry);
    char name[400];
    rmq_tier_name(name, sizeof name, ttl, rmq_is_quorum(rmq_options_of(c, channel)) ? 0 : -1, channel);
    if (strlen(name) > 255) {
        mw_fail(e, MW_EUSAGE, false, "the name of queue \"%s\" is too long for one to delay its messages",
                channel);
        return NULL;
    }
    rmq_tier_name(name, sizeof name, ttl, -1, channel);
    rmq_target *t = rmq_target_find(c, name);
    if (t) return t;
    t = rmq_target_insert(c, name);
    t->kind = RMQ_TO_TIER;
    t->tier.ttl_ms = ttl;
    t->tier.home = t->name + strlen(t->name) - strlen(channel);
    return t;
}

/* Before 3.10 quorum queues have no TTL. */
static bool is_too_old(rmq_conn *c) {
    if (!c->server || c->server > 3 || (c->server == 3 && c->server_minor >= 10)) return false;
    if (!c->told_old) {
        mw_log_begin(MW_WARN, "delayed messages and retries of quorum queues wait in classic queues, on one "
                              "node: the broker is older than RabbitMQ 3.10");
        mw_log_end();
    }
    c->told_old = true;
    return true;
}

/* The type is always given: as the vhost's default it could be quorum, with what is meant for a classic one. */
void rmq_put_tier(mw_buf *b, rmq_conn *c, rmq_target *t) {
    int64_t ttl = t->tier.ttl_ms, expires = 2 * ttl + SPARE_MS;
    rmq_queue_options o = {.type = (char *)(uintptr_t) "classic",
                           .ttl_ms = ttl,
                           .expires_ms = expires < EXPIRES_MAX ? expires : EXPIRES_MAX,
                           .dead_exchange = (char *)(uintptr_t) "",
                           .dead_key = (char *)(uintptr_t)t->tier.home,
                           .delivery_limit = -1};
    char name[400];
    t->tier.quorum = rmq_is_quorum(rmq_options_of(c, t->tier.home)) && !is_too_old(c);
    if (t->tier.quorum) {
        o.type = (char *)(uintptr_t) "quorum";
        o.expires_ms = ttl + 2 * (int64_t)DAY_MS;
        o.overflow = (char *)(uintptr_t) "reject-publish"; /* at-least-once needs it */
        o.dead_strategy = (char *)(uintptr_t) "at-least-once";
        rmq_unlimit(c, &o); /* who looks into it must not make a message come early */
    }
    rmq_tier_name(name, sizeof name, ttl, t->tier.quorum ? mw_loop_wall_ms(c->loop) : -1, t->tier.home);
    free(t->tier.queue);
    if (!(t->tier.queue = strdup(name))) abort();
    t->key = t->tier.queue;
    rmq_put_queue_declare(b, RMQ_CHAN_ADMIN, name, &o, false);
}

bool rmq_tier_is_stale(const rmq_conn *c, const rmq_target *t) {
    return t->kind == RMQ_TO_TIER && mw_loop_real_ms(c->loop) - t->tier.since > FRESH_MS;
}
