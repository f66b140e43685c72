/* rebalance.c - partitions come and go. One that comes waits until we know what its group committed for it,
 * then it is assigned from there. One that is to go is not read any more; what no handler has begun is
 * dropped, running handlers may finish for a while, then it is committed and let go. None of this blocks the
 * loop: librdkafka waits for our answer to each event, and the group for it. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "drivers/kafka/kafka.h"

enum { ASK_MS = 10000, ASK_AGAIN_MS = 500, LAST_COMMIT_MS = 2000, LOOK_MS = 200 };

static bool cooperative(const kafka_sub *s) {
    const char *protocol = rd_kafka_rebalance_protocol(s->rk);
    return protocol && strcmp(protocol, "COOPERATIVE") == 0;
}

static void log_partitions(const kafka_sub *s, const char *text,
                           const rd_kafka_topic_partition_list_t *list) {
    mw_buf names = {0};
    for (int i = 0; i < list->cnt; i++) {
        const char *topic = list->elems[i].topic, *comma = names.len ? "," : "";
        if (strcmp(topic, s->topic) == 0)
            mw_buf_printf(&names, "%s%d", comma, list->elems[i].partition);
        else
            mw_buf_printf(&names, "%s%s:%d", comma, topic, list->elems[i].partition);
    }
    mw_log_begin(MW_INFO, text);
    mw_log_text("topic", s->topic);
    mw_log_text("group", s->group);
    mw_log_str("partitions", names.data, names.len);
    mw_log_end();
    mw_buf_free(&names);
}

/* ---- coming ---- */

typedef struct asking {
    kafka_errand errand;
    kafka_sub *sub;
    rd_kafka_t *rk;
    rd_kafka_topic_partition_list_t *list;
    uint16_t *epochs; /* of those in the list: one that went and came back meanwhile is another one */
    uint32_t life, tries;
    bool again, gone;
    rd_kafka_resp_err_t err;
} asking;

static rd_kafka_resp_err_t at_time(asking *a, const rd_kafka_topic_partition_t *p, int64_t *offset) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, p->topic, p->partition)->offset = a->sub->start_at;
    rd_kafka_resp_err_t err = rd_kafka_offsets_for_times(a->rk, list, ASK_MS);
    if (!err) err = list->elems[0].err;
    *offset = list->elems[0].offset; /* negative: nothing is that new */
    rd_kafka_topic_partition_list_destroy(list);
    return err;
}

/* One that was gone: is its commit one of this log? A topic that was deleted and made anew begins at 0, and
 * what the group committed for the other one would leave out its first messages. */
static rd_kafka_resp_err_t check_commit(asking *a, rd_kafka_topic_partition_t *p) {
    int64_t low, high;
    rd_kafka_resp_err_t err =
        rd_kafka_query_watermark_offsets(a->rk, p->topic, p->partition, &low, &high, ASK_MS);
    if (!err && (p->opaque || p->offset > high)) {
        p->offset = low;
        p->metadata_size = 0;
    }
    return err;
}

/* A group without a commit begins at one of the ends, a time or an offset; the number is needed, because the
 * mark is one. Retry channels are always read from the beginning. What is read of the subscription does not
 * change. */
static rd_kafka_resp_err_t find_start(asking *a, rd_kafka_topic_partition_t *p) {
    const kafka_sub *s = a->sub;
    int64_t low, high, at = -1;
    if (p->err) return p->err;
    if (p->offset >= 0) return a->gone ? check_commit(a, p) : RD_KAFKA_RESP_ERR_NO_ERROR;
    rd_kafka_resp_err_t err =
        rd_kafka_query_watermark_offsets(a->rk, p->topic, p->partition, &low, &high, ASK_MS);
    bool tier = strcmp(p->topic, s->topic) != 0;
    if (!err && !tier && s->start_kind == MW_START_TIME) err = at_time(a, p, &at);
    if (err) return err;
    if (tier || a->gone || (s->start_kind == MW_START_NONE && s->from_start))
        p->offset = low;
    else if (s->start_kind == MW_START_OFFSET)
        p->offset = s->start_at < low ? low : s->start_at > high ? high : s->start_at;
    else
        p->offset = at >= 0 ? at : high;
    return err;
}

static void ask(kafka_errand *e) {
    asking *a = (asking *)e;
    if (a->tries) nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_MS * 1000000L}, NULL);
    a->err = a->list->cnt ? rd_kafka_committed(a->rk, a->list, ASK_MS) : RD_KAFKA_RESP_ERR_NO_ERROR;
    for (int i = 0; i < a->list->cnt && !a->err; i++) a->err = find_start(a, &a->list->elems[i]);
}

static void free_asking(asking *a) {
    rd_kafka_topic_partition_list_destroy(a->list);
    free(a->epochs);
    free(a);
}

static void log_rd_error(const kafka_sub *s, const char *text, rd_kafka_error_t *error) {
    if (!error) return;
    mw_log_begin(MW_WARN, text);
    mw_log_text("topic", s->topic);
    mw_log_text("error", rd_kafka_error_string(error));
    mw_log_end();
    rd_kafka_error_destroy(error);
}

static void give_to_librdkafka(kafka_sub *s, const asking *a) {
    if (cooperative(s)) {
        if (a->again) log_rd_error(s, "kafka: unassign", rd_kafka_incremental_unassign(s->rk, a->list));
        log_rd_error(s, "kafka: assign", rd_kafka_incremental_assign(s->rk, a->list));
    } else {
        rd_kafka_assign(s->rk, a->list);
    }
}

static void start_parts(kafka_sub *s, asking *a) {
    for (int i = 0; i < a->list->cnt; i++) {
        rd_kafka_topic_partition_t *t = &a->list->elems[i];
        kafka_part *p = kafka_part_find(s, t->topic, t->partition);
        p->marks = kafka_marks_new((uint64_t)t->offset);
        if (t->metadata_size) kafka_marks_read(p->marks, t->metadata, t->metadata_size);
        p->dirty = true; /* where the group begins stands from now on, whatever happens next */
        kafka_part_open(p);
    }
    give_to_librdkafka(s, a);
    kafka_commit_soon(s);
    kafka_sub_pump(s);
}

static void asked(kafka_errand *e, bool alive);

static void send_asking(kafka_sub *s, asking *a) {
    a->errand.work = ask;
    a->errand.done = asked;
    kafka_errands_send(s->errands, &a->errand);
}

/* Takes out of the list what has gone while we asked. true: nothing is left of it. */
static bool all_gone(asking *a) {
    int before = a->list->cnt;
    for (int i = before; i-- > 0;) {
        const rd_kafka_topic_partition_t *t = &a->list->elems[i];
        const kafka_part *p = kafka_part_find(a->sub, t->topic, t->partition);
        if (p && p->state == KAFKA_PART_WAITS && p->epoch == a->epochs[i]) continue;
        memmove(&a->epochs[i], &a->epochs[i + 1], (size_t)(a->list->cnt - i - 1) * sizeof *a->epochs);
        rd_kafka_topic_partition_list_del_by_idx(a->list, i);
    }
    return before && !a->list->cnt;
}

static void ask_again(kafka_sub *s, asking *a) {
    if ((a->tries & (a->tries + 1)) == 0) { /* not every time */
        mw_log_begin(MW_WARN, "kafka: cannot read where the group stands, trying again");
        mw_log_text("topic", s->topic);
        mw_log_text("group", s->group);
        mw_log_text("error", rd_kafka_err2str(a->err));
        mw_log_end();
    }
    a->tries++;
    kafka_note(s->conn, rd_kafka_err2str(a->err));
    for (int i = 0; i < a->list->cnt; i++) {
        a->list->elems[i].offset = RD_KAFKA_OFFSET_INVALID;
        a->list->elems[i].err = RD_KAFKA_RESP_ERR_NO_ERROR;
    }
    send_asking(s, a);
}

static void look_in(kafka_sub *s, int64_t ms);

/* librdkafka waits for an answer to an event: it would take what is said about other partitions for it. */
static bool owes_answer(const kafka_sub *s) { return s->revoked || s->coming; }

static void look_later(kafka_sub *s, const asking *a) {
    for (int i = 0; i < a->list->cnt; i++)
        kafka_part_find(s, a->list->elems[i].topic, a->list->elems[i].partition)->state = KAFKA_PART_LOST;
    look_in(s, LOOK_MS);
}

static void found(kafka_sub *s, asking *a) {
    if (!s->assigned_once) kafka_stranded_look(s);
    s->assigned_once = true;
    s->was_gone = false;
    start_parts(s, a);
}

static void asked(kafka_errand *e, bool alive) {
    asking *a = (asking *)e;
    kafka_sub *s = a->sub;
    bool ours = alive && a->life == s->life, gone = !ours || all_gone(a);
    if (!gone && a->err && s->state != KAFKA_LEAVES) {
        ask_again(s, a);
        return;
    }
    if (ours && !a->again) s->coming = false;
    if (!gone && s->state == KAFKA_LEAVES) {
        if (!a->again) rd_kafka_assign(s->rk, NULL); /* librdkafka waits for an answer before it leaves */
    } else if (!gone && a->again && owes_answer(s)) {
        look_later(s, a);
    } else if (!gone) {
        found(s, a);
    }
    free_asking(a);
}

/* What was delivered of it is nobody's any more. */
static void forget(kafka_part *p) {
    kafka_sub *s = p->sub;
    s->conn->host->fence(s->source, p->unit);
    kafka_commit_forget(s, p);
    kafka_part_free(p);
}

void kafka_rebalance_forget(kafka_sub *s) {
    mw_timer_stop(&s->revoke_timer);
    mw_timer_stop(&s->look_timer);
    while (s->part_count) forget(s->parts[0]);
    if (s->revoked) rd_kafka_topic_partition_list_destroy(s->revoked);
    s->revoked = NULL;
    s->revoke_late = s->coming = s->gone = s->was_gone = false;
}

static void take(kafka_sub *s, const rd_kafka_topic_partition_list_t *list, bool again) {
    asking *a = calloc(1, sizeof *a);
    if (!a || !(a->epochs = calloc((size_t)list->cnt + 1, sizeof *a->epochs))) abort();
    a->sub = s;
    a->rk = s->rk;
    a->list = rd_kafka_topic_partition_list_copy(list);
    a->life = s->life;
    a->again = again;
    a->gone = s->was_gone;
    s->coming = s->coming || !again;
    for (int i = 0; i < list->cnt; i++) {
        kafka_part *old = kafka_part_find(s, list->elems[i].topic, list->elems[i].partition);
        if (old) forget(old);
        a->epochs[i] = kafka_part_new(s, list->elems[i].topic, list->elems[i].partition)->epoch;
    }
    send_asking(s, a);
}

/* ---- going ---- */

static void let_go(kafka_sub *s) {
    rd_kafka_topic_partition_list_t *list = s->revoked;
    s->revoked = NULL;
    s->revoke_late = false;
    mw_timer_stop(&s->revoke_timer);
    for (int i = 0; i < list->cnt; i++) {
        kafka_part *p = kafka_part_find(s, list->elems[i].topic, list->elems[i].partition);
        if (p) forget(p);
    }
    log_partitions(s, "partitions given back", list);
    if (cooperative(s))
        log_rd_error(s, "kafka: unassign", rd_kafka_incremental_unassign(s->rk, list));
    else
        rd_kafka_assign(s->rk, NULL);
    rd_kafka_topic_partition_list_destroy(list);
    kafka_sub_pump(s);
}

static bool in_revoked(const kafka_sub *s, bool (*is)(const kafka_part *p)) {
    for (uint32_t i = 0; i < s->part_count; i++)
        if (s->parts[i]->state == KAFKA_PART_REVOKED && is(s->parts[i])) return true;
    return false;
}

static bool is_running(const kafka_part *p) { return p->out > 0; }
static bool is_dirty(const kafka_part *p) { return p->dirty && p->marks; }

void kafka_rebalance_check(kafka_sub *s) {
    if (!s->revoked) return;
    if (in_revoked(s, is_running) && !s->revoke_late) return;
    if (s->commit_under_way) return;
    if (s->state != KAFKA_LEAVES && in_revoked(s, is_dirty)) {
        if (!s->commit_failures) kafka_commit_now(s); /* else its timer runs */
        return;
    }
    let_go(s);
}

static void commit_takes_too_long(mw_timer *t) { let_go(mw_container_of(t, kafka_sub, revoke_timer)); }

static void handlers_take_too_long(mw_timer *t) {
    kafka_sub *s = mw_container_of(t, kafka_sub, revoke_timer);
    s->revoke_late = true;
    mw_timer_start(s->conn->loop, &s->revoke_timer, LAST_COMMIT_MS, commit_takes_too_long);
    kafka_rebalance_check(s);
}

static void give(kafka_sub *s, const rd_kafka_topic_partition_list_t *list) {
    bool lost = rd_kafka_assignment_lost(s->rk);
    log_partitions(s, lost ? "partitions lost" : "partitions revoked", list);
    if (s->revoked) rd_kafka_topic_partition_list_destroy(s->revoked);
    s->revoked = rd_kafka_topic_partition_list_copy(list);
    for (int i = 0; i < list->cnt; i++) {
        kafka_part *p = kafka_part_find(s, list->elems[i].topic, list->elems[i].partition);
        if (!p) continue;
        if (p->state == KAFKA_PART_LOST || lost) p->dirty = false;
        p->state = KAFKA_PART_REVOKED;
        p->out = s->conn->host->recall(s->source, p->unit);
    }
    if (lost) {
        let_go(s);
        return;
    }
    mw_timer_start(s->conn->loop, &s->revoke_timer, s->conn->revoke_ms, handlers_take_too_long);
    kafka_rebalance_check(s);
}

void kafka_rebalance(kafka_sub *s, rd_kafka_event_t *ev) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_event_topic_partition_list(ev);
    switch (rd_kafka_event_error(ev)) {
    case RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS:
        log_partitions(s, "partitions assigned", list);
        take(s, list, false);
        break;
    case RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS: give(s, list); break;
    default: rd_kafka_assign(s->rk, NULL);
    }
}

/* ---- lost ---- */

/* Nobody revoked them after all: goes on from what is committed. */
static void still_ours(mw_timer *t) {
    kafka_sub *s = mw_container_of(t, kafka_sub, look_timer);
    if (s->state != KAFKA_OPEN) return;
    bool waits = owes_answer(s);
    for (uint32_t i = 0; i < s->part_count && !waits; i++) waits = s->parts[i]->state == KAFKA_PART_WAITS;
    if (waits) {
        look_in(s, LOOK_MS); /* one question at a time */
        return;
    }
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)s->part_count);
    for (uint32_t i = s->part_count; i-- > 0;) {
        if (s->parts[i]->state != KAFKA_PART_LOST) continue;
        rd_kafka_topic_partition_list_add(list, kafka_part_topic(s->parts[i]), s->parts[i]->partition)
            ->opaque = s->parts[i]->anew ? s : NULL;
        kafka_part_free(s->parts[i]);
    }
    if (list->cnt) take(s, list, true);
    rd_kafka_topic_partition_list_destroy(list);
}

/* No earlier than another look that is to come: that one waits for a session to end. */
static void look_in(kafka_sub *s, int64_t ms) {
    uint64_t at = mw_loop_mono_ms(s->conn->loop) + (uint64_t)ms;
    if (mw_timer_running(&s->look_timer) && s->look_timer.at >= at) return;
    mw_timer_stop(&s->look_timer);
    mw_timer_start(s->conn->loop, &s->look_timer, ms, still_ours);
}

static void lose(kafka_sub *s, const char *text, const char *why, int64_t look_again_ms) {
    mw_log_begin(MW_WARN, text);
    mw_log_text("topic", s->topic);
    mw_log_text("group", s->group);
    mw_log_text("why", why);
    mw_log_end();
    for (uint32_t i = 0; i < s->part_count; i++) {
        kafka_part *p = s->parts[i];
        if (p->state == KAFKA_PART_WAITS) continue; /* nothing of it was delivered yet */
        p->state = KAFKA_PART_LOST;
        p->dirty = false;
        s->conn->host->fence(s->source, p->unit);
        kafka_commit_forget(s, p);
    }
    s->commit_failures = 0;
    mw_timer_stop(&s->pace);
    if (s->revoked) let_go(s);
    if (s->state == KAFKA_OPEN) look_in(s, look_again_ms); /* of several, some may have been kept */
}

void kafka_lost(kafka_sub *s, const char *why) {
    if (s->part_count) lose(s, "kafka: not a member of the group any more", why, s->session_ms);
}

/* Where one partition begins anew, all of its topic do: others may have gone on in the new log, at a place
 * that says nothing there. */
void kafka_gone(kafka_sub *s) {
    for (uint32_t i = 0; i < s->part_count; i++)
        for (uint32_t k = 0; k < s->part_count && s->parts[i]->anew; k++)
            if (s->parts[k]->topic == s->parts[i]->topic) s->parts[k]->anew = true;
    s->gone = false;
    s->was_gone = true;
    if (s->part_count)
        lose(s, "kafka: a partition is gone, looking where the group stands", s->conn->error, LOOK_MS);
}
