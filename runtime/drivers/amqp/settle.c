/* settle.c - what becomes of deliveries at the broker. Acks gather for a millisecond: the unbroken run
 * at the low end of the window goes as one "multiple" ack, the others one by one, all of it in one write. A
 * retry is a copy in a delay tier that the broker has confirmed, then an ack; a held retry stays where it is,
 * and the journal remembers it. */
#include <stdlib.h>
#include <string.h>

#include "drivers/amqp/amqp.h"

enum { DELAYED_SPARE_MS = 2000, ACK_MS = 1, ACK_MOST = 100 };

typedef struct rmq_answer {
    void *cookie;
    int code;   /* 0: all is well */
    char *text; /* what is not */
} rmq_answer;

static void answer_all(mw_deferred *d) {
    rmq_sub *s = mw_container_of(d, rmq_sub, answering);
    mw_buf batch = s->answers;
    s->answers = (mw_buf){0};
    const rmq_answer *a = (const rmq_answer *)(void *)batch.data;
    for (size_t i = 0; i < batch.len / sizeof *a; i++) {
        mw_error e;
        if (a[i].code) mw_fail(&e, a[i].code, a[i].code != MW_EFENCED, "%s", a[i].text);
        free(a[i].text);
        if (!s->closing) s->host->settled(s->source, a[i].cookie, a[i].code ? &e : NULL);
    }
    if (s->answers.data) {
        mw_buf_free(&batch);
    } else {
        batch.len = 0;
        s->answers = batch;
    }
    if (s->careful || s->place || s->keeps)
        rmq_sub_pump(s); /* the one that ran alone may be done; retries wait */
}

void rmq_answer_later(rmq_sub *s, void *cookie, int code, const char *text) {
    rmq_answer a = {.cookie = cookie, .code = code, .text = code ? strdup(text) : NULL};
    mw_buf_add(&s->answers, &a, sizeof a);
    mw_defer(s->conn->loop, &s->answering, answer_all);
}

void rmq_answers_free(rmq_sub *s) {
    const rmq_answer *a = (const rmq_answer *)(void *)s->answers.data;
    for (size_t i = 0; i < s->answers.len / sizeof *a; i++) free(a[i].text);
    mw_buf_free(&s->answers);
}

/* ---- acks ---- */

static void forget(rmq_sub *s, rmq_entry *e, rmq_entry_state state) {
    if (s->journal) rmq_journal_gone(s->journal, e);
    mw_message_unref(e->msg);
    mw_text_unref(e->first_error);
    *e = (rmq_entry){.state = (uint8_t)state};
    s->unsettled--;
    s->activity++;
}

void rmq_acked(rmq_sub *s, uint64_t tag) {
    rmq_entry *e = rmq_entry_of(s, tag);
    forget(s, e, RMQ_DONE);
    mw_buf_add(&s->done, &tag, sizeof tag);
}

static void gather_acks(rmq_sub *s);

void rmq_skip(rmq_sub *s, uint64_t tag) {
    *rmq_entry_of(s, tag) = (rmq_entry){.state = RMQ_DONE};
    s->unsettled--;
    mw_buf_add(&s->done, &tag, sizeof tag);
    gather_acks(s);
}

static void put_ack(mw_buf *b, uint64_t tag, bool multiple) {
    size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_ACK);
    rmq_put_u64(b, tag);
    rmq_put_u8(b, multiple);
    rmq_frame_end(b, f);
}

static void ack_late(mw_timer *t) { rmq_write_acks(mw_container_of(t, rmq_sub, ack_soon)); }

/* A broker that gets an ack for each few messages sends them in fews, and both sides spend their time on
 * system calls. One that waits long for an ack has sent all of the prefetch and stands still: acks of 256, or
 * after 3 ms, seemed to cost a tenth of the rate. */
static void gather_acks(rmq_sub *s) {
    size_t n = s->done.len / sizeof(uint64_t);
    if (n >= s->prefetch / 4 || n >= ACK_MOST)
        rmq_write_acks(s);
    else if (n && !mw_timer_running(&s->ack_soon))
        mw_timer_start_real(s->conn->loop, &s->ack_soon, ACK_MS, ack_late);
}

/* One that is set aside has a lower tag: an ack of a run would take it along. */
void rmq_write_acks(rmq_sub *s) {
    size_t n = s->done.len / sizeof(uint64_t), run = 0;
    bool singly = s->aside.count || s->left_behind;
    mw_timer_stop(&s->ack_soon);
    if (!n || !s->line) return;
    const uint64_t *tags = (const uint64_t *)(void *)s->done.data;
    mw_buf *b = rmq_line_out(s->line);
    uint64_t last = singly ? 0 : rmq_window_advance(s, &run);
    if (last) put_ack(b, last, run > 1);
    for (size_t i = 0; run < n && i < n; i++) {
        const rmq_entry *e = rmq_entry_of(s, tags[i]);
        if (!e || e->state != RMQ_DONE) continue;
        rmq_window_settled(s, tags[i]);
        put_ack(b, tags[i], false);
        run++;
    }
    if (singly) rmq_window_advance(s, &run);
    s->done.len = 0;
    rmq_line_send(s->line);
}

/* ---- retries without hold ---- */

typedef struct again {
    rmq_pub pub;
    rmq_sub *sub;
    rmq_conn *conn;
    uint64_t tag;
    uint32_t unit;
    int64_t delay_ms;
    void *cookie;
} again;

/* The subscription, unless it is gone or going. */
static rmq_sub *alive(const again *a) {
    for (rmq_sub *s = a->conn->subs; s; s = s->next)
        if (s == a->sub) return s->closing ? NULL : s;
    return NULL;
}

static void copied(rmq_sub *s, const again *a, const mw_error *e) {
    if (e) {
        rmq_answer_later(s, a->cookie, MW_ECLOSED, e->text);
    } else if (s->unit != a->unit ||
               !rmq_entry_of(s, a->tag)) { /* the copy stands, the original comes again */
        rmq_answer_later(s, a->cookie, MW_EFENCED, "the channel was lost before the ack");
    } else {
        uint64_t due = mw_loop_real_ms(s->conn->loop) + (uint64_t)a->delay_ms + DELAYED_SPARE_MS;
        if (due > s->delayed_until) s->delayed_until = due;
        s->delayed++;
        rmq_acked(s, a->tag);
        gather_acks(s);
        rmq_answer_later(s, a->cookie, 0, NULL);
    }
}

static void again_done(rmq_pub *p, const mw_error *e) {
    again *a = mw_container_of(p, again, pub);
    rmq_sub *s = alive(a);
    if (s) copied(s, a, e);
    mw_text_unref(a->pub.stamp.first_error);
    free(a);
}

static void retry(rmq_sub *s, const mw_settlement *x, rmq_entry *e) {
    again *a = calloc(1, sizeof *a);
    if (!a) abort();
    a->sub = s;
    a->conn = s->conn;
    a->tag = x->tag;
    a->unit = x->unit;
    a->delay_ms = x->delay_ms;
    a->cookie = x->cookie;
    a->pub.msg = e->msg;
    a->pub.stamp.failures = x->attempt;
    a->pub.stamp.first_error = mw_text_ref(e->first_error ? e->first_error : x->error);
    a->pub.done = again_done;
    rmq_send(s->conn, &a->pub, s->queue, x->delay_ms, true);
}

/* ---- giving back ---- */

static void release(rmq_sub *s, uint64_t tag, rmq_entry *e) {
    if (!s->place) { /* a stream has it still, and does not know the method */
        mw_buf *b = rmq_line_out(s->line);
        size_t f = rmq_method(b, RMQ_CHAN_CONSUME, RMQ_NACK);
        rmq_put_u64(b, tag);
        rmq_put_u8(b, 2); /* requeue, this one only */
        rmq_frame_end(b, f);
        rmq_line_send(s->line);
    }
    mw_message_unref(e->msg);
    mw_text_unref(e->first_error);
    rmq_window_settled(s, tag);
    s->unsettled--;
    s->activity++;
}

static void settle_one(rmq_sub *s, const mw_settlement *x) {
    rmq_entry *e = x->unit == s->unit ? rmq_entry_of(s, x->tag) : NULL;
    if (!e || e->state != RMQ_OURS) {
        rmq_answer_later(s, x->cookie, MW_EFENCED, "the message was taken back with its connection");
        return;
    }
    switch (x->op) {
    case MW_SETTLE_ACK:
        if (s->place) {
            rmq_place_done(s->place, e->offset);
            rmq_acked(s, x->tag);
            rmq_journal_settled(s->journal, x->cookie);
            break;
        }
        rmq_acked(s, x->tag);
        rmq_answer_later(s, x->cookie, 0, NULL);
        break;
    case MW_SETTLE_RETRY:
        if (s->journal && (x->hold || s->place || s->keeps))
            rmq_journal_failed(s->journal, x);
        else
            retry(s, x, e);
        break;
    case MW_SETTLE_PARK: /* not among what we can */
    case MW_SETTLE_RELEASE:
        if (s->journal) rmq_journal_release(s->journal, e);
        release(s, x->tag, e);
        rmq_answer_later(s, x->cookie, 0, NULL);
        break;
    }
}

void rmq_settle(mw_sub *sub, const mw_settlement *list, size_t count) {
    rmq_sub *s = (rmq_sub *)sub;
    for (size_t i = 0; i < count; i++) settle_one(s, &list[i]);
    gather_acks(s);
    rmq_pump(s->conn);
}
