/* producer.c - publishing. One idempotent producer per connection, made with the first publish. A full queue
 * is back-pressure: what does not fit waits here, in order. Delivery reports come back through an eventfd. A
 * fatal error (the idempotence is broken for good) replaces the producer: what it still had fails, and is
 * tried again by whoever published it. A broker that finds a batch too large refuses all of it: what was in
 * it goes out once more, each message alone, through a second producer. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/kafka/kafka.h"

enum { EVENTS_PER_TURN = 256 };

typedef struct handle handle;
struct handle { /* one librdkafka producer; replaced ones stay until their last report is in */
    handle *next;
    kafka_producer *owner;
    rd_kafka_t *rk;
    rd_kafka_queue_t *events;
    mw_map topics; /* hash of the name -> rd_kafka_topic_t */
    uint32_t out;
    bool fatal;
};

struct kafka_producer {
    kafka_conn *conn;
    handle *current, *replaced;
    handle *singly; /* each message is a batch of its own; made when it is needed */
    mw_wake wake;
    mw_deferred serving;
    mw_timer poll;
    mw_buf waiting; /* of mw_publication, while the queue is full or messages go out one by one */
    size_t waiting_at;
    bool one_by_one; /* a batch was refused; until everything that is out is answered */
    mw_buf late;     /* of void *: cookies of what comes from handlers that lost their message */
    kafka_errands *errands;
};

enum { POLL_MS = 500 };

/* ---- handles ---- */

static const char *const one_by_one[] = {"batch.num.messages", "1", NULL};

static handle *new_handle(kafka_producer *p, const char *const *pairs, mw_error *e) {
    static const uint64_t one = 1;
    rd_kafka_t *rk = kafka_conf_handle(p->conn, KAFKA_PRODUCES, pairs, e);
    if (!rk) return NULL;
    handle *h = calloc(1, sizeof *h);
    if (!h) abort();
    h->owner = p;
    h->rk = rk;
    h->events = rd_kafka_queue_get_main(rk);
    rd_kafka_queue_io_event_enable(h->events, p->wake.fd, &one, sizeof one);
    mw_wake_signal(&p->wake); /* a queue that is not empty already would never tell */
    return h;
}

typedef struct farewell {
    kafka_errand errand;
    rd_kafka_t *rk;
} farewell;

static void say_farewell(kafka_errand *e) { rd_kafka_destroy(((farewell *)e)->rk); }
static void free_farewell(kafka_errand *e, bool alive) {
    (void)alive;
    free(e);
}

static void end_handle(handle *h) {
    kafka_token_ends(h->owner->conn, h->rk);
    uint32_t at = 0;
    for (rd_kafka_topic_t *t; (t = mw_map_next(&h->topics, &at, NULL));) rd_kafka_topic_destroy(t);
    mw_map_free(&h->topics);
    rd_kafka_queue_io_event_enable(h->events, -1, NULL, 0);
    rd_kafka_queue_destroy(h->events);
    farewell *f = calloc(1, sizeof *f);
    if (!f) abort();
    *f = (farewell){.errand = {.work = say_farewell, .done = free_farewell}, .rk = h->rk};
    kafka_errands_send(h->owner->errands, &f->errand);
    free(h);
}

static void replace(kafka_producer *p, handle *h) {
    char text[256];
    rd_kafka_fatal_error(h->rk, text, sizeof text);
    mw_log_begin(MW_ERROR, "kafka: the producer failed for good and is replaced");
    mw_log_text("error", text);
    mw_log_int("unconfirmed", h->out);
    mw_log_end();
    h->fatal = true;
    rd_kafka_purge(h->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
    h->next = p->replaced;
    p->replaced = h;
    if (h == p->current)
        p->current = NULL;
    else
        p->singly = NULL;
}

/* ---- errors ---- */

static bool hopeless(rd_kafka_resp_err_t err) { /* the same message will not be taken later either */
    return err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE || err == RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION ||
           err == RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE || err == RD_KAFKA_RESP_ERR_INVALID_RECORD ||
           err == RD_KAFKA_RESP_ERR__INVALID_ARG;
}

/* What the driver publishes for itself has the lowest bit of its cookie set. */
static void tell(kafka_conn *c, void *cookie, const mw_error *e) {
    kafka_confirm *own = (kafka_confirm *)((uintptr_t)cookie & ~(uintptr_t)1);
    if ((uintptr_t)cookie & 1)
        own->done(own, e);
    else
        c->host->published(c->link, cookie, e);
}

static const char *advice(rd_kafka_resp_err_t err) {
    switch (err) {
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
        return ": create it, for example with `moonwire topology apply`";
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
        return ": see max.message.bytes of the topic and message.max.bytes of the broker";
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED: return ": the user may not write to it";
    default: return "";
    }
}

static void explain(mw_error *e, int code, const char *topic, rd_kafka_resp_err_t err) {
    mw_fail(e, code, !hopeless(err), "Kafka: topic %s: %s%s", topic, rd_kafka_err2str(err), advice(err));
}

bool kafka_refusal(rd_kafka_resp_err_t err, const char *topic, mw_error *e) {
    if (!hopeless(err) && !*advice(err)) return false;
    explain(e, MW_EREFUSED, topic, err);
    return true;
}

static void refuse(kafka_conn *c, void *cookie, const char *topic, rd_kafka_resp_err_t err) {
    mw_error e;
    explain(&e, MW_ECLOSED, topic, err);
    if (err == RD_KAFKA_RESP_ERR__MSG_TIMED_OUT && c->down && *c->error)
        mw_fail(&e, MW_ECLOSED, true, "Kafka: topic %s: %s: %s", topic, rd_kafka_err2str(err), c->error);
    tell(c, cookie, &e);
}

/* ---- publishing ---- */

static rd_kafka_topic_t *topic_of(handle *h, const char *channel) {
    uint64_t hash = mw_hash64(channel, strlen(channel));
    rd_kafka_topic_t *t = mw_map_get(&h->topics, hash);
    if (t) return t;
    char *name = kafka_topic(h->owner->conn, channel);
    t = rd_kafka_topic_new(h->rk, name, NULL);
    free(name);
    if (t) mw_map_put(&h->topics, hash, t);
    return t;
}

static rd_kafka_resp_err_t produce(handle *h, const mw_publication *m) {
    rd_kafka_topic_t *topic = topic_of(h, m->channel);
    if (!topic) return rd_kafka_last_error() ? rd_kafka_last_error() : RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION;
    mw_parts p;
    mw_message_parts(m->msg, &p);
    rd_kafka_headers_t *headers = kafka_record_headers(&p);
    bool tombstone = kafka_record_is_tombstone(&p);
    /* The body is not copied: whoever publishes keeps the message until it is told. */
    rd_kafka_resp_err_t err = rd_kafka_producev(
        h->rk, RD_KAFKA_V_RKT(topic), RD_KAFKA_V_PARTITION(RD_KAFKA_PARTITION_UA), RD_KAFKA_V_MSGFLAGS(0),
        RD_KAFKA_V_VALUE(tombstone ? NULL : (void *)(uintptr_t)(p.body_len ? p.body : ""), p.body_len),
        RD_KAFKA_V_KEY(p.has_key ? (p.key_len ? p.key : "") : NULL, p.key_len),
        RD_KAFKA_V_TIMESTAMP(p.time_ms), RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_OPAQUE(m->cookie),
        RD_KAFKA_V_END);
    if (err) rd_kafka_headers_destroy(headers);
    return err;
}

/* 1: taken, 0: no room now, -1: refused */
static int try_publish(kafka_producer *p, const mw_publication *m) {
    mw_error e;
    if (!p->current && !(p->current = new_handle(p, NULL, &e))) {
        tell(p->conn, m->cookie, &e);
        return -1;
    }
    rd_kafka_resp_err_t err = produce(p->current, m);
    if (err == RD_KAFKA_RESP_ERR__FATAL) {
        replace(p, p->current);
        return try_publish(p, m);
    }
    if (err == RD_KAFKA_RESP_ERR__QUEUE_FULL) return 0;
    if (err) {
        char *topic = kafka_topic(p->conn, m->channel);
        refuse(p->conn, m->cookie, topic, err);
        free(topic);
        return -1;
    }
    p->current->out++;
    return 1;
}

/* There may always be some that wait: those in front must not stay for ever. */
static void forget_published(kafka_producer *p) {
    size_t gone = p->waiting_at * sizeof(mw_publication);
    if (gone < p->waiting.len / 2) return;
    memmove(p->waiting.data, p->waiting.data + gone, p->waiting.len - gone);
    p->waiting.len -= gone;
    p->waiting_at = 0;
}

static void publish_waiting(kafka_producer *p) {
    size_t count = p->waiting.len / sizeof(mw_publication);
    while (p->waiting_at < count) {
        mw_publication m = ((mw_publication *)(void *)p->waiting.data)[p->waiting_at];
        if (try_publish(p, &m) == 0) {
            forget_published(p);
            return;
        }
        p->waiting_at++;
        count = p->waiting.len / sizeof(mw_publication); /* a refusal may have caused another publish */
    }
    p->waiting.len = p->waiting_at = 0;
}

/* ---- reports ---- */

/* What stands behind a refused batch must not overtake it: it comes back and goes the same way. */
static void begin_one_by_one(kafka_producer *p) {
    p->one_by_one = true;
    rd_kafka_purge(p->current->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING);
}

static void maybe_end_one_by_one(kafka_producer *p) {
    if (p->one_by_one && !(p->current && p->current->out) && !(p->singly && p->singly->out))
        p->one_by_one = false;
}

/* Its body is still there, see produce; everything else is copied. false: that cannot be done now. */
static bool send_singly(kafka_producer *p, rd_kafka_message_t *m) {
    if (!p->singly) {
        p->singly = new_handle(p, one_by_one, NULL);
        mw_log_begin(MW_WARN,
                     "kafka: the broker refused a batch as too large, its messages go out one by one");
        mw_log_text("topic", rd_kafka_topic_name(m->rkt));
        mw_log_text("advice", "a batch.size below the topic's max.message.bytes is faster");
        mw_log_end();
    }
    rd_kafka_headers_t *headers = NULL;
    rd_kafka_timestamp_type_t kind;
    if (!p->singly || rd_kafka_message_detach_headers(m, &headers)) return false;
    m->err = 0; /* of one that failed it tells no time, although it is there */
    rd_kafka_resp_err_t err = rd_kafka_producev(
        p->singly->rk, RD_KAFKA_V_TOPIC(rd_kafka_topic_name(m->rkt)), RD_KAFKA_V_MSGFLAGS(0),
        RD_KAFKA_V_VALUE(m->payload, m->len), RD_KAFKA_V_KEY(m->key, m->key_len),
        RD_KAFKA_V_TIMESTAMP(rd_kafka_message_timestamp(m, &kind)), RD_KAFKA_V_HEADERS(headers),
        RD_KAFKA_V_OPAQUE(m->_private), RD_KAFKA_V_END);
    if (err) rd_kafka_headers_destroy(headers);
    p->singly->out += !err;
    return !err;
}

static bool goes_singly(const handle *h, rd_kafka_resp_err_t err, bool company) {
    const kafka_producer *p = h->owner;
    if (h != p->current) return false;
    return (err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE && company) ||
           (err == RD_KAFKA_RESP_ERR__PURGE_QUEUE && p->one_by_one);
}

static void reported(handle *h, rd_kafka_event_t *ev) {
    kafka_conn *c = h->owner->conn;
    bool company = rd_kafka_event_message_count(ev) > 1 || h->out > 1;
    for (const rd_kafka_message_t *m; (m = rd_kafka_event_message_next(ev));) {
        h->out--;
        rd_kafka_resp_err_t err = m->err;
        if (goes_singly(h, err, company)) {
            if (!h->owner->one_by_one) begin_one_by_one(h->owner);
            if (send_singly(h->owner, (rd_kafka_message_t *)(uintptr_t)m)) continue;
        }
        if (err) {
            refuse(c, m->_private, rd_kafka_topic_name(m->rkt), err);
        } else {
            kafka_up(c);
            tell(c, m->_private, NULL);
        }
    }
}

/* true: there may be more */
static bool serve(handle *h) {
    for (int i = 0; i < EVENTS_PER_TURN; i++) {
        rd_kafka_event_t *ev = rd_kafka_queue_poll(h->events, 0);
        if (!ev) return false;
        rd_kafka_event_type_t type = rd_kafka_event_type(ev);
        if (type == RD_KAFKA_EVENT_DR)
            reported(h, ev);
        else if (type == RD_KAFKA_EVENT_LOG)
            kafka_log(h->owner->conn, ev);
        else if (type == RD_KAFKA_EVENT_ERROR &&
                 rd_kafka_event_error(ev) == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN)
            kafka_down(h->owner->conn, rd_kafka_event_error_string(ev));
        else if (type == RD_KAFKA_EVENT_ERROR &&
                 rd_kafka_event_error(ev) == RD_KAFKA_RESP_ERR__AUTHENTICATION)
            kafka_refused(h->owner->conn, rd_kafka_event_error_string(ev));
        else if (type == RD_KAFKA_EVENT_ERROR && rd_kafka_event_error(ev) == RD_KAFKA_RESP_ERR__FATAL &&
                 !h->fatal)
            replace(h->owner, h);
        else if (type == RD_KAFKA_EVENT_ERROR)
            kafka_note(h->owner->conn, rd_kafka_event_error_string(ev));
        rd_kafka_event_destroy(ev);
    }
    return true;
}

static void refuse_late(kafka_producer *p) {
    mw_buf batch = p->late;
    mw_error e;
    p->late = (mw_buf){0};
    mw_fail(&e, MW_ECLOSED, true,
            "Kafka: this process stood still and may have lost its messages to another");
    for (size_t i = 0; i < batch.len / sizeof(void *); i++)
        tell(p->conn, ((void **)(void *)batch.data)[i], &e);
    mw_buf_free(&batch);
}

static void serve_all(mw_deferred *d) {
    kafka_producer *p = mw_container_of(d, kafka_producer, serving);
    if (p->late.len) refuse_late(p);
    bool more = p->current && serve(p->current);
    more = (p->singly && serve(p->singly)) || more;
    for (handle **at = &p->replaced; *at;) {
        handle *h = *at;
        more = serve(h) || more;
        if (h->out) {
            at = &h->next;
        } else {
            *at = h->next;
            end_handle(h);
        }
    }
    maybe_end_one_by_one(p);
    if (p->waiting.len && !p->one_by_one) publish_waiting(p);
    if (more) mw_defer(p->conn->loop, &p->serving, serve_all);
}

static void woken(mw_wake *w) {
    kafka_producer *p = mw_container_of(w, kafka_producer, wake);
    mw_defer(p->conn->loop, &p->serving, serve_all);
}

static void poll_anyway(mw_timer *t) {
    kafka_producer *p = mw_container_of(t, kafka_producer, poll);
    mw_defer(p->conn->loop, &p->serving, serve_all);
    mw_timer_start_real(p->conn->loop, &p->poll, POLL_MS, poll_anyway);
}

/* ---- from the core ---- */

static kafka_producer *producer_of(kafka_conn *c) {
    if (c->producer) return c->producer;
    kafka_producer *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->conn = c;
    if (mw_wake_start(c->loop, &p->wake, woken)) abort();
    p->errands = kafka_errands_new(c->loop);
    mw_timer_start_real(c->loop, &p->poll, POLL_MS, poll_anyway);
    return c->producer = p;
}

/* It connects and gets its id from the broker, so that the first message need not wait for that. */
void kafka_producer_prepare(kafka_conn *c) {
    kafka_producer *p = producer_of(c);
    if (!p->current) p->current = new_handle(p, NULL, NULL);
}

static bool stood_still(kafka_conn *c) {
    bool still = false;
    for (kafka_sub *s = c->subs; s; s = s->next) still = kafka_sub_stood_still(s) || still;
    return still;
}

/* How many librdkafka took at once, while they are still in the cache. */
static size_t publish_now(kafka_producer *p, const mw_publication *list, size_t count) {
    size_t n = 0;
    if (!p->current || p->waiting.len || p->one_by_one) return 0;
    while (n < count && !produce(p->current, &list[n])) n++;
    p->current->out += (uint32_t)n;
    return n;
}

/* Refusals must not come from inside this call: what is not taken goes through the lists. */
void kafka_publish(mw_conn *conn, const mw_publication *list, size_t count) {
    kafka_producer *p = producer_of((kafka_conn *)conn);
    if (stood_still(p->conn)) {
        for (size_t i = 0; i < count; i++) mw_buf_add(&p->late, &list[i].cookie, sizeof list[i].cookie);
    } else {
        size_t taken = publish_now(p, list, count);
        mw_buf_add(&p->waiting, list + taken, (count - taken) * sizeof *list);
    }
    mw_defer(p->conn->loop, &p->serving, serve_all);
}

void kafka_publish_own(kafka_conn *c, const mw_publication *m, kafka_confirm *confirm) {
    mw_publication own = *m;
    own.cookie = (void *)((uintptr_t)confirm | 1);
    kafka_publish((mw_conn *)c, &own, 1);
}

void kafka_producer_free(kafka_producer *p) {
    if (!p) return;
    handle *ours[] = {p->current, p->singly};
    for (int i = 0; i < 2; i++) {
        if (!ours[i]) continue;
        rd_kafka_purge(ours[i]->rk,
                       RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING);
        end_handle(ours[i]);
    }
    for (handle *h; (h = p->replaced);) {
        p->replaced = h->next;
        end_handle(h);
    }
    mw_timer_stop(&p->poll);
    mw_deferred_cancel(p->conn->loop, &p->serving);
    kafka_errands_free(p->errands);
    mw_wake_stop(&p->wake);
    mw_buf_free(&p->waiting);
    mw_buf_free(&p->late);
    free(p);
}
