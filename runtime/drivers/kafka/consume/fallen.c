/* fallen.c - a consumer that has failed for good, in librdkafka's words: with a fatal error. What it had is
 * fenced, and another one is made in its place. The usual cause is a second process with the same
 * group.instance.id: the broker takes the newer one for the member. To join again would throw that one out,
 * and it us; so we ask who is in the group, and come back when the name is free. (Not by the admin API: see
 * stranded.c.) */
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

/* Brokers name a static member after its instance: "INSTANCE-UUID". */
static bool is_named(const char *member, const char *instance) {
    enum { UUID = 36 };
    size_t len = strlen(instance);
    return member && strlen(member) == len + 1 + UUID && strncmp(member, instance, len) == 0 &&
           member[len] == '-';
}

static bool has_member(const struct rd_kafka_group_list *list, const char *instance) {
    for (int i = 0; i < list->group_cnt; i++)
        for (int k = 0; k < list->groups[i].member_cnt; k++)
            if (is_named(list->groups[i].members[k].member_id, instance)) return true;
    return false;
}

static void look(kafka_errand *e) {
    looking *l = (looking *)e;
    const struct rd_kafka_group_list *list;
    if (rd_kafka_list_groups(l->rk, l->sub->group, &list, ASK_MS)) {
        l->taken = true; /* nobody knows: ask again */
        return;
    }
    l->taken = has_member(list, l->sub->instance);
    rd_kafka_group_list_destroy(list);
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
