/* fallen.c - a consumer that has failed for good, in librdkafka's words: with a fatal error. What it had is
 * fenced, and another one is made in its place. The usual cause is a second process with the same
 * group.instance.id: the broker takes the newer one for the member. To join again would throw that one out,
 * and it us; so we ask who is in the group, and come back when the name is free. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/kafka/kafka.h"

enum { ASK_MS = 5000, FIRST_MS = 500, MOST_DOUBLINGS = 4, WELL_MS = 60000 };

typedef struct looking {
    kafka_errand errand;
    kafka_sub *sub;
    rd_kafka_t *rk;
    uint32_t life;
    bool taken; /* the name is */
} looking;

/* ---- on the thread ---- */

static bool is_member(const rd_kafka_ConsumerGroupDescription_t *group, const char *instance) {
    for (size_t i = 0; i < rd_kafka_ConsumerGroupDescription_member_count(group); i++) {
        const char *name =
            rd_kafka_MemberDescription_group_instance_id(rd_kafka_ConsumerGroupDescription_member(group, i));
        if (name && strcmp(name, instance) == 0) return true;
    }
    return false;
}

static bool says_taken(rd_kafka_event_t *ev, const char *instance) {
    rd_kafka_resp_err_t err = rd_kafka_event_error(ev);
    if (err) return err != RD_KAFKA_RESP_ERR__UNSUPPORTED_FEATURE; /* nobody knows: ask again */
    size_t n = 0;
    const rd_kafka_ConsumerGroupDescription_t **groups =
        rd_kafka_DescribeConsumerGroups_result_groups(rd_kafka_event_DescribeConsumerGroups_result(ev), &n);
    return n && (rd_kafka_ConsumerGroupDescription_error(groups[0]) || is_member(groups[0], instance));
}

static void look(kafka_errand *e) {
    looking *l = (looking *)e;
    char text[256];
    const char *group = l->sub->group;
    rd_kafka_queue_t *answers = rd_kafka_queue_new(l->rk);
    rd_kafka_AdminOptions_t *options =
        rd_kafka_AdminOptions_new(l->rk, RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS);
    rd_kafka_AdminOptions_set_request_timeout(options, ASK_MS, text, sizeof text);
    rd_kafka_DescribeConsumerGroups(l->rk, &group, 1, options, answers);
    rd_kafka_event_t *ev = rd_kafka_queue_poll(answers, ASK_MS + 1000);
    l->taken = !ev || says_taken(ev, l->sub->instance);
    if (ev) rd_kafka_event_destroy(ev);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(answers);
}

/* ---- on the loop ---- */

static void rise(kafka_sub *s);
static void rise_later(kafka_sub *s, int64_t ms);

static void looked(kafka_errand *e, bool alive) {
    looking *l = (looking *)e;
    kafka_sub *s = l->sub;
    bool ours = alive && l->life == s->life && s->state == KAFKA_FALLEN;
    if (ours && l->taken)
        rise_later(s, FIRST_MS * 2);
    else if (ours)
        rise(s);
    free(l);
}

static void try_to_rise(mw_timer *t) {
    kafka_sub *s = mw_container_of(t, kafka_sub, rise_timer);
    if (!*s->instance || !s->rk) {
        rise(s);
        return;
    }
    looking *l = calloc(1, sizeof *l);
    if (!l) abort();
    *l = (looking){.errand = {.work = look, .done = looked}, .sub = s, .rk = s->rk, .life = s->life};
    kafka_errands_send(s->errands, &l->errand);
}

static void rise_later(kafka_sub *s, int64_t ms) {
    mw_timer_start(s->conn->loop, &s->rise_timer, ms, try_to_rise);
}

static int64_t patience(kafka_sub *s) {
    uint32_t n = s->falls < MOST_DOUBLINGS ? s->falls : MOST_DOUBLINGS;
    s->falls++;
    return (int64_t)FIRST_MS << n;
}

static void rise(kafka_sub *s) {
    mw_error e;
    kafka_sub_lower(s);
    bool risen = kafka_sub_raise(s, &e) == 0;
    mw_log_begin(risen ? MW_INFO : MW_WARN, risen ? "kafka: a new consumer takes the place of the failed one"
                                                  : "kafka: cannot make a new consumer, trying again");
    mw_log_text("topic", s->topic);
    mw_log_text("group", s->group);
    if (!risen) mw_log_text("error", e.text);
    mw_log_end();
    if (risen)
        s->state = KAFKA_OPEN;
    else
        rise_later(s, patience(s));
}

void kafka_fall(kafka_sub *s) {
    mw_log_begin(MW_ERROR, *s->instance ? "kafka: this consumer has failed for good; another one will take "
                                          "its place when its group.instance.id is free"
                                        : "kafka: this consumer has failed for good; another one will take "
                                          "its place");
    mw_log_text("topic", s->topic);
    mw_log_text("group", s->group);
    if (*s->instance) mw_log_text("instance", s->instance);
    mw_log_text("error", s->why);
    mw_log_end();
    kafka_note(s->conn, s->why);
    if (mw_loop_mono_ms(s->conn->loop) - s->raised_at > WELL_MS) s->falls = 0;
    kafka_rebalance_forget(s);
    mw_timer_stop(&s->pace);
    mw_timer_stop(&s->stranded_timer);
    s->commit_failures = 0;
    if (!s->txn) s->commit_under_way = false; /* nobody will answer; a transaction's thread does */
    if (s->state == KAFKA_COMMITS_LAST) {
        kafka_sub_committed_last(s);
        return;
    }
    s->state = KAFKA_FALLEN;
    rise_later(s, patience(s));
}
