/* kafka.c - the driver's face, and its connections. A connection opens nothing by itself: the producer comes
 * with the first publish, a consumer with each subscription. */
#include "drivers/kafka/kafka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static void free_conn(kafka_conn *c) {
    kafka_conf_free(c);
    free(c);
}

static mw_conn *kafka_open(mw_loop *loop, const mw_url *url, mw_link *link, const mw_host *host,
                           mw_error *e) {
    kafka_conn *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->loop = loop;
    c->link = link;
    c->host = host;
    c->since_ms = mw_loop_wall_ms(loop);
    if (kafka_conf_read(c, url, e) == 0) return (mw_conn *)c;
    free_conn(c);
    return NULL;
}

static void kafka_close(mw_conn *conn) {
    kafka_conn *c = (kafka_conn *)conn;
    while (c->subs) kafka_sub_abandon(c->subs);
    kafka_producer_free(c->producer);
    if (!kafka_errands_free(c->errands)) return;
    kafka_browser_free(c->browser);
    if (c->admin) rd_kafka_destroy_flags(c->admin, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    free_conn(c);
}

/* ---- what librdkafka has to say ---- */

void kafka_log(kafka_conn *c, rd_kafka_event_t *ev) {
    const char *facility, *text;
    int level;
    (void)c;
    if (rd_kafka_event_log(ev, &facility, &text, &level)) return;
    mw_log_begin(level <= 3 ? MW_WARN : MW_DEBUG, "librdkafka");
    mw_log_text("facility", facility);
    mw_log_text("text", text);
    mw_log_end();
}

void kafka_note(kafka_conn *c, const char *error) { snprintf(c->error, sizeof c->error, "%s", error); }

/* "All brokers are down" says less than what was noted a moment before. */
void kafka_down(kafka_conn *c, const char *why) {
    if (!strstr(why, "brokers are down") || !*c->error) kafka_note(c, why);
    if (c->down) return;
    c->down = true;
    c->since_ms = mw_loop_wall_ms(c->loop);
    mw_error e;
    mw_fail(&e, MW_ECLOSED, true, "%s", c->error);
    c->host->state(c->link, false, &e);
}

void kafka_up(kafka_conn *c) {
    if (!c->down && c->was_up) return;
    bool was_down = c->down;
    c->down = false;
    c->was_up = true;
    c->connects++;
    c->since_ms = mw_loop_wall_ms(c->loop);
    if (was_down) c->host->state(c->link, true, NULL);
}

/* librdkafka's connections are its own; this is how they stand together. */
static size_t kafka_peers(mw_conn *conn, mw_peer *out, size_t max) {
    const kafka_conn *c = (const kafka_conn *)conn;
    const kafka_sub *fallen = c->subs;
    if (!max) return 0;
    while (fallen && fallen->state != KAFKA_FALLEN) fallen = fallen->next;
    *out = (mw_peer){.name = "brokers",
                     .state = c->down || fallen ? "waiting"
                              : c->was_up       ? "up"
                                                : "connecting",
                     .since_ms = c->since_ms,
                     .connects = c->connects};
    snprintf(out->address, sizeof out->address, "%s", c->hosts);
    snprintf(out->error, sizeof out->error, "%s", fallen ? fallen->why : c->error);
    return 1;
}

static const char *const schemes[] = {"kafka", NULL};

const mw_driver mw_driver_kafka = {
    .name = "kafka",
    .schemes = schemes,
    .can = MW_CAN_BROWSE | MW_CAN_REMOVE | MW_CAN_SEEK | MW_CAN_TIERS | MW_CAN_EXACTLY,
    .handled_buffers = 32,
    .check = kafka_conf_check,
    .check_source = kafka_check_source,
    .open = kafka_open,
    .close = kafka_close,
    .subscribe = kafka_subscribe,
    .resume = kafka_resume,
    .begin = kafka_begin,
    .settle = kafka_settle,
    .locate = kafka_locate,
    .origin = kafka_origin,
    .depth = kafka_depth,
    .places = kafka_places,
    .pause = kafka_pause,
    .unsubscribe = kafka_unsubscribe,
    .publish = kafka_publish,
    .browse = kafka_browse,
    .remove = kafka_remove,
    .topology = kafka_topology,
    .peers = kafka_peers,
    .take_token = kafka_token_take,
    .token_refused = kafka_token_refused,
};
