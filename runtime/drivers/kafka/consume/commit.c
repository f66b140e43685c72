/* commit.c - settling. An ack moves the partition's mark, or is remembered beyond it; a failed attempt is
 * remembered as such. Both are answered when a commit that says so has been taken by the broker. One commit
 * is under way at a time; what comes meanwhile goes with the next one. What is handled and not committed, and
 * so what a crash can repeat, is at most handled_buffers (kafka.c) of the pipeline's buffer and what is in
 * it; and only while commits are taken in time. When one is not, nothing more is delivered until one is. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/kafka/kafka.h"

enum { PACE_MS = 3, BEGUN_MS = 40, LATE_MS = 20, AGAIN_MS = 100, AGAIN_CAP_MS = 2000 };

/* ---- answers that need no commit: from a deferred call, as the contract asks ---- */

static void answer_list(kafka_sub *s, mw_buf *list, const mw_error *e) {
    mw_buf batch = *list;
    *list = (mw_buf){0};
    for (size_t i = 0; i < batch.len / sizeof(void *); i++)
        s->conn->host->settled(s->source, ((void **)(void *)batch.data)[i], e);
    mw_buf_free(&batch);
}

static void answer(mw_deferred *d) {
    kafka_sub *s = mw_container_of(d, kafka_sub, answering);
    mw_error e;
    mw_fail(&e, MW_EFENCED, false, "the partition belongs to another consumer now");
    answer_list(s, &s->refused, &e);
    answer_list(s, &s->released, NULL);
}

static void answer_later(kafka_sub *s, mw_buf *list, void *cookie) {
    mw_buf_add(list, &cookie, sizeof cookie);
    mw_defer(s->conn->loop, &s->answering, answer);
}

static void forget_in(kafka_sub *s, mw_buf *list, const kafka_part *p) {
    kafka_wait *w = (kafka_wait *)(void *)list->data;
    size_t kept = 0;
    for (size_t i = 0; i < list->len / sizeof *w; i++) {
        if (w[i].unit == p->unit && w[i].epoch == p->epoch)
            answer_later(s, &s->refused, w[i].cookie);
        else
            w[kept++] = w[i];
    }
    list->len = kept * sizeof *w;
}

void kafka_commit_forget(kafka_sub *s, const kafka_part *p) {
    forget_in(s, &s->gathering, p);
    if (!s->txn || !s->commit_under_way) forget_in(s, &s->committing, p); /* else a thread is at it */
    forget_in(s, &s->aside, p);
}

kafka_part *kafka_commit_part(kafka_sub *s, const kafka_wait *w) {
    kafka_part *p = kafka_part_of(s, (uint64_t)w->epoch << KAFKA_EPOCH_SHIFT, w->unit);
    return p && p->state != KAFKA_PART_LOST ? p : NULL;
}

void kafka_commit_undo(kafka_sub *s, const kafka_wait *w) {
    kafka_part *p = kafka_commit_part(s, w);
    if (!p) return;
    kafka_marks_undone(p->marks, w->offset);
    p->out++;
    p->dirty = true;
}

void kafka_commit_redo(kafka_sub *s, const kafka_wait *w) {
    kafka_part *p = kafka_commit_part(s, w);
    if (!p) return;
    kafka_marks_done(p->marks, w->offset);
    if (p->out) p->out--;
    p->dirty = true;
}

/* ---- settling ---- */

static void settle(kafka_sub *s, const mw_settlement *x) {
    kafka_part *p = kafka_part_of(s, x->tag, x->unit);
    if (!p || p->state == KAFKA_PART_LOST) {
        answer_later(s, &s->refused, x->cookie);
        return;
    }
    uint64_t offset = kafka_tag_offset(x->tag);
    if (p->out) p->out--;
    p->dirty = true;
    switch (x->op) {
    case MW_SETTLE_ACK: kafka_marks_done(p->marks, offset); break;
    case MW_SETTLE_RETRY:
        kafka_marks_failed(p->marks, offset, x->attempt, mw_loop_wall_ms(s->conn->loop) + x->delay_ms,
                           x->error);
        if (x->hold && p->state == KAFKA_PART_FLOWS) p->out++; /* the core keeps it */
        break;
    default:
        kafka_marks_release(p->marks, offset);
        answer_later(s, &s->released, x->cookie);
        return;
    }
    kafka_wait *w = (kafka_wait *)(void *)mw_buf_reserve(&s->gathering, sizeof *w);
    *w = (kafka_wait){.cookie = x->cookie,
                      .publish = x->publish,
                      .publish_count = x->publish_count,
                      .offset = offset,
                      .unit = p->unit,
                      .epoch = p->epoch};
    s->gathering.len += sizeof *w;
}

void kafka_settle(mw_sub *sub, const mw_settlement *list, size_t count) {
    kafka_sub *s = (kafka_sub *)sub;
    for (size_t i = 0; i < count; i++) settle(s, &list[i]);
    kafka_commit_soon(s);
}

/* ---- committing ---- */

static void not_taken(kafka_sub *s, rd_kafka_resp_err_t err);

static void commit_paced(mw_timer *t) { kafka_commit_now(mw_container_of(t, kafka_sub, pace)); }
static void commit_deferred(mw_deferred *d) {
    kafka_sub *s = mw_container_of(d, kafka_sub, commit);
    kafka_commit_now(s);
    kafka_rebalance_check(s);
}

static void commit_within(kafka_sub *s, int64_t ms) {
    uint64_t at = mw_loop_mono_ms(s->conn->loop) + (uint64_t)ms;
    if (s->commit_under_way || (mw_timer_running(&s->pace) && s->pace.at <= at)) return;
    mw_timer_stop(&s->pace);
    mw_timer_start(s->conn->loop, &s->pace, ms, commit_paced);
}

void kafka_commit_begun(kafka_sub *s) { commit_within(s, BEGUN_MS); }

void kafka_commit_soon(kafka_sub *s) {
    if (s->commit_failures) return; /* its timer runs */
    int64_t since = (int64_t)(mw_loop_mono_ms(s->conn->loop) - s->committed_at);
    if (since < PACE_MS && !s->revoked)
        commit_within(s, PACE_MS - since);
    else
        mw_defer(s->conn->loop, &s->commit, commit_deferred);
}

static void log_left_out(const kafka_part *p, kafka_left_out what) {
    static const char *const names[] = {[KAFKA_NO_ERRORS] = "first errors",
                                        [KAFKA_NO_TIMES] = "times of retries",
                                        [KAFKA_FEWER_DONE] = "what is done",
                                        [KAFKA_FEWER_ATTEMPTS] = "attempts"};
    if (what < KAFKA_FEWER_DONE) return;
    mw_log_begin(MW_WARN, "kafka: the commit's metadata is full, a crash now would forget");
    mw_log_text("what", names[what]);
    mw_log_text("topic", kafka_part_topic(p));
    mw_log_int("partition", p->partition);
    mw_log_end();
}

static void describe(kafka_part *p, rd_kafka_topic_partition_t *out) {
    kafka_sub *s = p->sub;
    mw_buf text = {0};
    kafka_left_out missing =
        kafka_marks_write(p->marks, mw_loop_wall_ms(s->conn->loop), s->metadata_max, &text, &p->crowded);
    log_left_out(p, missing);
    out->offset = (int64_t)kafka_marks_mark(p->marks);
    out->metadata = text.data; /* the list frees it */
    out->metadata_size = text.len;
    p->dirty = false;
}

static rd_kafka_topic_partition_list_t *what_to_commit(kafka_sub *s) {
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)s->part_count);
    for (uint32_t i = 0; i < s->part_count; i++) {
        kafka_part *p = s->parts[i];
        if (!p->dirty || !p->marks || p->state == KAFKA_PART_LOST) continue;
        describe(p, rd_kafka_topic_partition_list_add(list, kafka_part_topic(p), p->partition));
    }
    return list;
}

/* A transaction takes its time, and what it holds is not repeated to anybody who reads what is committed. */
bool kafka_commit_late(const kafka_sub *s) {
    return s->commit_failures ||
           (s->commit_under_way && !s->txn && mw_loop_mono_ms(s->conn->loop) - s->committed_at > LATE_MS);
}

bool kafka_commit_idle(const kafka_sub *s) {
    if (s->commit_under_way || s->aside.len) return false;
    for (uint32_t i = 0; i < s->part_count; i++)
        if (s->parts[i]->dirty && s->parts[i]->marks && s->parts[i]->state != KAFKA_PART_LOST) return false;
    return true;
}

void kafka_commit_now(kafka_sub *s) {
    if (s->commit_under_way || s->state == KAFKA_LEAVES) return;
    mw_timer_stop(&s->pace);
    if (s->txn) kafka_txn_choose(s->txn);
    rd_kafka_topic_partition_list_t *list = what_to_commit(s);
    if (list->cnt) {
        mw_buf free_one = s->committing;
        s->committing = s->gathering;
        free_one.len = 0;
        s->gathering = free_one;
        s->commit_under_way = true;
        s->committed_at = mw_loop_mono_ms(s->conn->loop);
        if (s->txn) {
            kafka_txn_commit(s->txn, list);
            return;
        }
        rd_kafka_resp_err_t err = rd_kafka_commit_queue(s->rk, list, s->commits, NULL, NULL);
        if (err) { /* it was not even sent: nobody will answer */
            s->commit_under_way = false;
            not_taken(s, err);
        }
    } else {
        s->commit_failures = 0; /* what failed belongs to others now: nobody waits for it */
    }
    rd_kafka_topic_partition_list_destroy(list);
}

/* ---- the broker's answer ---- */

static void all_taken(kafka_sub *s) {
    mw_buf batch = s->committing;
    s->committing = (mw_buf){0};
    s->commit_failures = 0;
    kafka_up(s->conn);
    for (size_t i = 0; i < batch.len / sizeof(kafka_wait); i++)
        s->conn->host->settled(s->source, ((kafka_wait *)(void *)batch.data)[i].cookie, NULL);
    if (s->committing.data) {
        mw_buf_free(&batch);
    } else {
        batch.len = 0;
        s->committing = batch;
    }
}

/* Of partitions that went away while a transaction was under way: kafka_commit_forget left them to us. */
static void refuse_orphans(kafka_sub *s, mw_buf *list) {
    kafka_wait *w = (kafka_wait *)(void *)list->data;
    size_t kept = 0;
    for (size_t i = 0; i < list->len / sizeof *w; i++) {
        if (!kafka_commit_part(s, &w[i]))
            answer_later(s, &s->refused, w[i].cookie);
        else
            w[kept++] = w[i];
    }
    list->len = kept * sizeof *w;
}

/* What was to be answered waits for the next one; every partition says again what it has to say. */
static void not_taken(kafka_sub *s, rd_kafka_resp_err_t err) {
    mw_buf_add(&s->committing, s->gathering.data, s->gathering.len);
    s->gathering.len = 0;
    mw_buf swap = s->gathering;
    s->gathering = s->committing;
    s->committing = swap;
    for (uint32_t i = 0; i < s->part_count; i++) s->parts[i]->dirty = true;
    if (s->txn) refuse_orphans(s, &s->gathering);
    if (err == RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE) s->metadata_max /= 2;
    int64_t wait = (int64_t)AGAIN_MS << (s->commit_failures < 5 ? s->commit_failures : 5);
    s->commit_failures++;
    mw_log_begin(s->commit_failures > 1 ? MW_WARN : MW_DEBUG, "kafka: commit failed, trying again");
    mw_log_text("topic", s->topic);
    mw_log_text("group", s->group);
    mw_log_text("error", rd_kafka_err2str(err));
    mw_log_end();
    mw_timer_stop(&s->pace);
    mw_timer_start(s->conn->loop, &s->pace, wait < AGAIN_CAP_MS ? wait : AGAIN_CAP_MS, commit_paced);
}

/* An old generation is none: with incremental rebalancing a member keeps partitions from one to the next. */
static bool is_fence(rd_kafka_resp_err_t err) {
    return err == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID || err == RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID ||
           err == RD_KAFKA_RESP_ERR__ASSIGNMENT_LOST;
}

static rd_kafka_resp_err_t worst_error(rd_kafka_event_t *ev) {
    rd_kafka_resp_err_t err = rd_kafka_event_error(ev);
    rd_kafka_topic_partition_list_t *list = rd_kafka_event_topic_partition_list(ev);
    for (int i = 0; list && i < list->cnt && !is_fence(err); i++)
        if (list->elems[i].err) err = list->elems[i].err;
    return err == RD_KAFKA_RESP_ERR__NO_OFFSET ? RD_KAFKA_RESP_ERR_NO_ERROR : err;
}

void kafka_committed(kafka_sub *s, rd_kafka_event_t *ev) { kafka_commit_ended(s, worst_error(ev)); }

void kafka_commit_ended(kafka_sub *s, rd_kafka_resp_err_t err) {
    s->commit_under_way = false;
    if (!err) {
        all_taken(s);
    } else if (is_fence(err)) {
        kafka_lost(s, rd_kafka_err2str(err));
        refuse_orphans(s, &s->committing);
    } else {
        not_taken(s, err);
    }
    if (s->state == KAFKA_COMMITS_LAST && (kafka_commit_idle(s) || is_fence(err))) {
        kafka_sub_committed_last(s);
    } else if (!err && !kafka_commit_idle(s)) {
        if (s->gathering.len || s->aside.len || s->state == KAFKA_COMMITS_LAST || s->revoked)
            kafka_commit_soon(s);
        else
            kafka_commit_begun(s);
    }
    kafka_rebalance_check(s);
}
