/* consumer.c - a subscription: one librdkafka consumer, made, served and ended. librdkafka writes to `wake`
 * when one of its queues stops being empty; the pump then empties them as far as there is room. A timer polls
 * as well, since nobody else does when nothing comes, and a group throws out members that do not poll. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/shared/shared.h"
#include "core/tier.h"
#include "drivers/kafka/kafka.h"

enum { LEAVE_MS = 5000, TICK_MS = 100, EVENTS_PER_TURN = 256 };
enum { ONE_PARTITION = 1 << 20 }; /* bytes of it in an answer, librdkafka's own default */
#define ONE_ANSWER                                                                                           \
    "16000000"                /* bytes, of all partitions that a broker leads; a larger message comes alone  \
                               */
enum { METADATA_MAX = 4096 }; /* a broker's offset.metadata.max.bytes, unless changed */

/* ---- the pump ---- */

static void log_error(kafka_sub *s, rd_kafka_resp_err_t code, const char *text) {
    mw_log_begin(MW_WARN, "kafka");
    mw_log_text("topic", s->topic);
    mw_log_text("group", s->group);
    mw_log_text("code", rd_kafka_err2name(code));
    mw_log_text("error", text);
    mw_log_end();
}

/* Such as another process with the same group.instance.id. The event may have the cause for its code. */
static bool is_fatal(kafka_sub *s) {
    char text[MW_ERROR_TEXT];
    if (s->fatal || !rd_kafka_fatal_error(s->rk, text, sizeof text)) return s->fatal;
    snprintf(s->why, sizeof s->why, "%s", text);
    return s->fatal = true;
}

static void failed(kafka_sub *s, rd_kafka_event_t *ev) {
    rd_kafka_resp_err_t code = rd_kafka_event_error(ev);
    const char *text = rd_kafka_event_error_string(ev);
    if (is_fatal(s)) return;
    switch (code) {
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN: kafka_down(s->conn, text); break;
    case RD_KAFKA_RESP_ERR__AUTHENTICATION:
        log_error(s, code, text);
        kafka_refused(s->conn, text);
        break;
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
        mw_log_begin(MW_WARN, "kafka: waiting for a topic that is not there");
        mw_log_text("group", s->group);
        mw_log_text("error", text);
        mw_log_text("advice", "create it, for example with `moonwire topology apply`");
        mw_log_end();
        kafka_note(s->conn, text);
        break;
    case RD_KAFKA_RESP_ERR__TRANSPORT: /* one connection of several; librdkafka makes a new one */
    case RD_KAFKA_RESP_ERR__RESOLVE: kafka_note(s->conn, text); break;
    default: log_error(s, code, text); kafka_note(s->conn, text);
    }
}

static void serve(kafka_sub *s, rd_kafka_event_t *ev) {
    switch (rd_kafka_event_type(ev)) {
    case RD_KAFKA_EVENT_REBALANCE:
        if (s->state == KAFKA_FALLEN)
            rd_kafka_assign(s->rk, NULL);
        else
            kafka_rebalance(s, ev);
        break;
    case RD_KAFKA_EVENT_OFFSET_COMMIT: kafka_committed(s, ev); break;
    case RD_KAFKA_EVENT_LOG: kafka_log(s->conn, ev); break;
    case RD_KAFKA_EVENT_ERROR: failed(s, ev); break;
    default: break;
    }
    rd_kafka_event_destroy(ev);
}

/* true: there may be more */
static bool serve_queue(kafka_sub *s, rd_kafka_queue_t *q) {
    for (int i = 0; i < EVENTS_PER_TURN; i++) {
        rd_kafka_event_t *ev = q ? rd_kafka_queue_poll(q, 0) : NULL;
        if (!ev) return false;
        serve(s, ev);
    }
    return true;
}

static void left(kafka_sub *s);

static void pump(mw_deferred *d) {
    kafka_sub *s = mw_container_of(d, kafka_sub, pump);
    bool more = serve_queue(s, s->events);
    more = serve_queue(s, s->commits) || more;
    if (s->fatal && s->state != KAFKA_FALLEN && s->state != KAFKA_LEAVES) kafka_fall(s);
    if (s->state == KAFKA_OPEN) {
        more = kafka_parts_deliver(s) > 0 || more;
    } else if (s->state == KAFKA_LEAVES && (!s->rk || s->fatal || rd_kafka_consumer_closed(s->rk))) {
        left(s);
        return;
    }
    if (more) mw_defer(s->conn->loop, &s->pump, pump);
}

void kafka_sub_pump(kafka_sub *s) { mw_defer(s->conn->loop, &s->pump, pump); }
static void woken(mw_wake *w) { kafka_sub_pump(mw_container_of(w, kafka_sub, wake)); }
void kafka_resume(mw_sub *sub) { kafka_sub_pump((kafka_sub *)sub); }
void kafka_pause(mw_sub *sub) { ((kafka_sub *)sub)->paused = true; }

/* A process that was stopped for longer than its session was thrown out of the group, and somebody else has
 * its partitions. librdkafka will learn that from the broker; handlers must not publish before that. */
bool kafka_sub_stood_still(kafka_sub *s) {
    uint64_t now = mw_loop_mono_ms(s->conn->loop);
    bool still = (int64_t)(now - s->ticked) > s->session_ms - s->session_ms / 4 && s->state == KAFKA_OPEN;
    s->ticked = now;
    if (still) kafka_lost(s, "this process stood still for longer than its session");
    return still;
}

/* Often, so that it comes before what a handler does when the process goes on. */
static void tick(mw_timer *t) {
    kafka_sub *s = mw_container_of(t, kafka_sub, tick);
    kafka_sub_stood_still(s);
    kafka_unread_read(s->unread, mw_loop_mono_ms(s->conn->loop));
    if (s->rk) is_fatal(s);
    kafka_sub_pump(s);
    mw_timer_start(s->conn->loop, &s->tick, TICK_MS, tick);
}

void kafka_begin(mw_sub *sub, uint64_t tag, uint32_t unit) {
    kafka_sub *s = (kafka_sub *)sub;
    kafka_part *p = kafka_part_of(s, tag, unit);
    if (!p) return;
    kafka_marks_begin(p->marks, kafka_tag_offset(tag));
    p->dirty = true;
    kafka_commit_begun(s);
}

/* ---- beginning ---- */

/* The name of a static member: the user's, with the worker's slot, so that each worker has its own. */
static void instance_name(const kafka_conn *c, char *out, size_t size) {
    size_t len = size - 16;
    *out = 0;
    if (!kafka_conf_given(c, "group.instance.id")) return;
    if (rd_kafka_conf_get(c->conf, "group.instance.id", out, &len) != RD_KAFKA_CONF_OK) *out = 0;
    if (*out && mw_shared_place() >= 0) snprintf(out + strlen(out), 16, "-%d", mw_shared_place());
}

static rd_kafka_t *new_consumer(kafka_sub *s, mw_error *e) {
    char session[24], heartbeat[24], poll[24], ahead[24], part[24];
    int64_t beat = s->session_ms / 5 > 0 ? s->session_ms / 5 : 1;
    snprintf(session, sizeof session, "%" PRId64, s->session_ms);
    snprintf(heartbeat, sizeof heartbeat, "%" PRId64, beat < 3000 ? beat : 3000);
    snprintf(poll, sizeof poll, "%" PRId64, s->session_ms > 300000 ? s->session_ms : 300000);
    size_t share = kafka_ahead_share(s);
    snprintf(ahead, sizeof ahead, "%zu", share / 1024);
    snprintf(part, sizeof part, "%zu", share < ONE_PARTITION ? share : ONE_PARTITION);
    const char *pairs[32];
    size_t n = 0;
#define PAIR(name, value) (pairs[n++] = (name), pairs[n++] = (value))
    PAIR("group.id", s->group);
    PAIR("enable.auto.commit", "false");
    PAIR("enable.auto.offset.store", "false");
    PAIR("enable.partition.eof", "true");
    PAIR("auto.offset.reset", "earliest");
    PAIR("session.timeout.ms", session);
    if (!kafka_conf_given(s->conn, "heartbeat.interval.ms")) PAIR("heartbeat.interval.ms", heartbeat);
    if (!kafka_conf_given(s->conn, "max.poll.interval.ms")) PAIR("max.poll.interval.ms", poll);
    if (!kafka_conf_given(s->conn, "queued.max.messages.kbytes")) PAIR("queued.max.messages.kbytes", ahead);
    if (!kafka_conf_given(s->conn, "fetch.message.max.bytes") &&
        !kafka_conf_given(s->conn, "max.partition.fetch.bytes"))
        PAIR("fetch.message.max.bytes", part);
    if (!kafka_conf_given(s->conn, "fetch.max.bytes")) {
        PAIR("fetch.max.bytes", ONE_ANSWER);
        PAIR("message.max.bytes", ONE_ANSWER); /* a producer's; librdkafka would raise the other one to it */
    }
    if (!s->partitions) PAIR("partition.assignment.strategy", "range"); /* see fails_to_end */
    if (rd_kafka_version() >= 0x020200ff && !kafka_conf_given(s->conn, "fetch.queue.backoff.ms"))
        PAIR("fetch.queue.backoff.ms", "10");
    if (*s->instance) PAIR("group.instance.id", s->instance);
#undef PAIR
    pairs[n] = NULL;
    return kafka_conf_handle(s->conn, KAFKA_CONSUMES, pairs, e);
}

static void wake_by(kafka_sub *s, rd_kafka_queue_t *q) {
    static const uint64_t one = 1;
    rd_kafka_queue_io_event_enable(q, s->wake.fd, &one, sizeof one);
}

void kafka_sub_join(kafka_sub *s) {
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new((int)s->topic_count);
    for (uint32_t i = 0; i < s->topic_count; i++)
        rd_kafka_topic_partition_list_add(topics, s->topics[i], RD_KAFKA_PARTITION_UA);
    rd_kafka_resp_err_t err = rd_kafka_subscribe(s->rk, topics);
    rd_kafka_topic_partition_list_destroy(topics);
    if (!err) return;
    log_error(s, err, rd_kafka_err2str(err));
    kafka_note(s->conn, rd_kafka_err2str(err));
}

static void free_sub(kafka_sub *s) {
    for (uint32_t i = 0; i < s->topic_count; i++) free(s->topics[i]);
    free(s->group);
    free(s->parts);
    mw_buf_free(&s->gathering);
    mw_buf_free(&s->committing);
    mw_buf_free(&s->aside);
    mw_buf_free(&s->refused);
    mw_buf_free(&s->released);
    mw_buf_free(&s->headers);
    kafka_unread_free(s->unread);
    free(s);
}

static void name_topics(kafka_sub *s, const mw_subscription *spec) {
    s->topic = s->topics[s->topic_count++] = kafka_topic(s->conn, spec->channel);
    for (size_t i = 0; i < spec->tier_count && i < MW_TIERS; i++) {
        char channel[MW_TIER_CHANNEL];
        mw_tier_channel(channel, spec->channel, spec->tiers_ms[i]);
        s->topics[s->topic_count++] = kafka_topic(s->conn, channel);
    }
}

int kafka_sub_raise(kafka_sub *s, mw_error *e) {
    if (!(s->rk = new_consumer(s, e))) return -1;
    s->life++;
    kafka_ahead_made(s);
    s->fatal = s->assigned_once = false;
    s->provisional = !s->partitions;
    s->unread = kafka_unread_new();
    s->ticked = s->raised_at = mw_loop_mono_ms(s->conn->loop);
    rd_kafka_poll_set_consumer(s->rk);
    s->events = rd_kafka_queue_get_consumer(s->rk);
    s->commits = rd_kafka_queue_new(s->rk);
    wake_by(s, s->events);
    wake_by(s, s->commits);
    if (s->partitions)
        kafka_sub_join(s);
    else
        kafka_ahead_ask(s);
    kafka_sub_pump(s); /* a queue that is not empty already would never wake us */
    return 0;
}

void kafka_sub_renew(kafka_sub *s) {
    mw_error e;
    kafka_sub_lower(s);
    if (kafka_sub_raise(s, &e) == 0) return;
    snprintf(s->why, sizeof s->why, "%s", e.text);
    kafka_fall(s);
}

mw_sub *kafka_subscribe(mw_conn *conn, const mw_subscription *spec, mw_error *e) {
    kafka_conn *c = (kafka_conn *)conn;
    kafka_sub *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->conn = c;
    s->source = spec->source;
    name_topics(s, spec);
    s->group = kafka_topic(c, spec->group);
    instance_name(c, s->instance, sizeof s->instance);
    s->from_start = spec->from_start;
    s->start_kind = spec->start_kind;
    s->start_at = spec->start_at;
    s->session_ms = kafka_conf_session(c, spec->lease_ms);
    s->metadata_max = METADATA_MAX;
    s->buffer_bytes = spec->buffer_bytes;
    if (mw_wake_start(c->loop, &s->wake, woken)) abort();
    s->errands = kafka_errands_new(c->loop);
    s->next = c->subs;
    c->subs = s;
    if (kafka_sub_raise(s, e)) {
        kafka_sub_abandon(s);
        return NULL;
    }
    if (spec->exactly_once) s->txn = kafka_txn_new(s);
    mw_timer_start(c->loop, &s->tick, TICK_MS, tick);
    kafka_producer_prepare(c);
    return (mw_sub *)s;
}

/* ---- ending ---- */

typedef struct farewell {
    kafka_errand errand;
    rd_kafka_t *rk;
} farewell;

static void say_farewell(kafka_errand *e) {
    rd_kafka_destroy_flags(((farewell *)e)->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
}

static void free_farewell(kafka_errand *e, bool alive) {
    (void)alive;
    free(e);
}

/* Before 2.3 librdkafka aborts the process when a consumer with the sticky assignor ends before its first
 * assignment (its issue 4381). Such a handle is left to the end of the process. */
static bool fails_to_end(const kafka_sub *s) {
    char strategy[128] = "";
    size_t len = sizeof strategy;
    rd_kafka_conf_get(s->conn->conf, "partition.assignment.strategy", strategy, &len);
    return rd_kafka_version() < 0x020300ff && !s->assigned_once && !s->provisional &&
           strstr(strategy, "sticky");
}

/* It blocks: that is an errand. */
static void end_handle(kafka_sub *s) {
    kafka_token_ends(s->conn, s->rk);
    if (fails_to_end(s)) return;
    farewell *f = calloc(1, sizeof *f);
    if (!f) abort();
    *f = (farewell){.errand = {.work = say_farewell, .done = free_farewell}, .rk = s->rk};
    kafka_errands_send(s->errands, &f->errand);
}

void kafka_sub_lower(kafka_sub *s) {
    if (!s->rk) return;
    while (s->part_count) kafka_part_free(s->parts[0]);
    kafka_unread_free(s->unread); /* librdkafka would wait for them for ever */
    s->unread = NULL;
    rd_kafka_queue_io_event_enable(s->events, -1, NULL, 0);
    rd_kafka_queue_io_event_enable(s->commits, -1, NULL, 0);
    rd_kafka_queue_destroy(s->events);
    rd_kafka_queue_destroy(s->commits);
    s->events = s->commits = NULL;
    end_handle(s);
    s->rk = NULL;
}

/* Takes everything down that is on the loop. */
static void dismantle(kafka_sub *s) {
    kafka_sub **at = &s->conn->subs;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    mw_timer_stop(&s->tick);
    mw_timer_stop(&s->pace);
    mw_timer_stop(&s->stranded_timer);
    mw_timer_stop(&s->revoke_timer);
    mw_timer_stop(&s->look_timer);
    mw_timer_stop(&s->rise_timer);
    mw_deferred_cancel(s->conn->loop, &s->pump);
    mw_deferred_cancel(s->conn->loop, &s->answering);
    mw_deferred_cancel(s->conn->loop, &s->commit);
    if (s->revoked) rd_kafka_topic_partition_list_destroy(s->revoked);
    kafka_sub_lower(s);
}

void kafka_sub_abandon(kafka_sub *s) {
    kafka_txn_free(s->txn);
    dismantle(s);
    bool ended = kafka_errands_free(s->errands);
    mw_wake_stop(&s->wake);
    if (!ended) return;
    free_sub(s);
}

static void left(kafka_sub *s) {
    mw_source *source = s->source;
    const mw_host *host = s->conn->host;
    kafka_sub_abandon(s);
    host->closed(source);
}

static void gives_up(mw_timer *t) { left(mw_container_of(t, kafka_sub, tick)); }

/* The last commit is made, or hopeless: leaves the group, so that the others need not wait for our session.
 */
void kafka_sub_committed_last(kafka_sub *s) {
    if (s->state != KAFKA_COMMITS_LAST) return;
    s->state = KAFKA_LEAVES;
    rd_kafka_error_t *error = s->rk && !s->fatal ? rd_kafka_consumer_close_queue(s->rk, s->events) : NULL;
    if (error) rd_kafka_error_destroy(error);
    mw_timer_start(s->conn->loop, &s->tick, LEAVE_MS, gives_up);
    kafka_sub_pump(s);
}

static void leaves_anyway(mw_timer *t) { kafka_sub_committed_last(mw_container_of(t, kafka_sub, tick)); }

void kafka_unsubscribe(mw_sub *sub) {
    kafka_sub *s = (kafka_sub *)sub;
    mw_timer_stop(&s->rise_timer);
    s->state = KAFKA_COMMITS_LAST;
    mw_timer_start(s->conn->loop, &s->tick, LEAVE_MS, leaves_anyway);
    kafka_commit_now(s);
    if (kafka_commit_idle(s)) kafka_sub_committed_last(s);
}
