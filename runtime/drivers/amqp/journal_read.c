/* journal_read.c - how a consumer learns what the one before it has noted: it gets the one message of the
 * journal's queue, over its own line, and gives it back. The notes belong to journal.c; what it knows already
 * is newer than what is read. */
#include "base/log.h"
#include "drivers/amqp/journal.h"

enum { LOOKS = 15, LOOK_MS = 200, ANSWER_MS = 10000 };

/* A quorum queue that was just being made when its broker died has no leader, ever, and a get waits for one.
 * The messages must not wait for it, too. A stream cannot be read without its place. */
static void no_answer(mw_timer *t) {
    rmq_journal *j = mw_container_of(t, rmq_journal, look);
    if (j->state != READING || j->sub->place) return;
    mw_log_begin(MW_ERROR, "going on without the record of what was begun and failed: its queue does not "
                           "answer; if it has no leader, delete it and start again");
    mw_log_text("queue", j->name);
    mw_log_end();
    rmq_journal_silence(j, true);
    j->state = READ;
    rmq_sub_pump(j->sub);
}

static void look(rmq_journal *j) {
    rmq_put_queue_declare(rmq_line_out(j->sub->line), j->chan.id, j->name, NULL, true);
    rmq_line_send(j->sub->line);
    mw_timer_start_real(j->sub->conn->loop, &j->look, ANSWER_MS, no_answer);
}

static void get(rmq_journal *j) {
    mw_buf *b = rmq_line_out(j->sub->line);
    size_t f = rmq_method(b, j->chan.id, RMQ_GET);
    rmq_put_u16(b, 0);
    rmq_put_string(b, j->name);
    rmq_put_u8(b, 0);
    rmq_frame_end(b, f);
    rmq_line_send(j->sub->line);
}

static void read_over(rmq_journal *j) {
    j->state = READ;
    mw_timer_stop(&j->look);
    if (j->version != j->written) rmq_journal_write_later(j);
    rmq_sub_pump(j->sub);
}

/* It is there and empty: somebody looks at it just now (`tail`), or it was made and never written. To take
 * the first for the second would be to read the whole stream again. */
static void look_now(mw_timer *t) {
    rmq_journal *j = mw_container_of(t, rmq_journal, look);
    j->state = UNREAD;
    rmq_sub_pump(j->sub);
}

static void nothing_there(rmq_journal *j) {
    if (j->sub->place && ++j->looks <= LOOKS)
        mw_timer_start_real(j->sub->conn->loop, &j->look, LOOK_MS, look_now);
    else
        read_over(j);
}

static void read_state(rmq_journal *j, const char *body, size_t len) {
    const unsigned char *p = (const unsigned char *)body;
    rmq_reader r = {p, p + len, false};
    if (rmq_u32(&r) != (j->sub->place ? STREAM_MAGIC : MAGIC)) return;
    if (j->sub->place && !rmq_place_read(j->sub->place, &r)) return;
    while (!r.bad && r.at != r.end) {
        uint64_t identity = rmq_u64(&r);
        note read = {.failures = rmq_u32(&r), .flags = rmq_u8(&r), .who = rmq_u64(&r)};
        read.due_ms = (int64_t)rmq_u64(&r);
        rmq_str error = rmq_long(&r);
        if (r.bad || !identity) break;
        if (mw_map_get(&j->notes, identity)) continue; /* what we know is newer */
        note *n = rmq_journal_note(j, identity);
        *n = read;
        if (error.len) n->error = mw_text_new(error.data, error.len < ERROR_MAX ? error.len : ERROR_MAX);
    }
}

static void read_opened(rmq_chan *chan) {
    rmq_journal *j = chan->owner;
    if (j->state == READING) look(j);
}

/* With its line: the consumer's channel is lost, too, and it is read anew. 404: there is none. */
static void read_closed(rmq_chan *chan, int code, const mw_error *why) {
    rmq_journal *j = chan->owner;
    (void)why;
    if (code && j->state == READING) read_over(j);
}

static void read_method(rmq_chan *chan, uint32_t method, rmq_reader *r) {
    rmq_journal *j = chan->owner;
    (void)r;
    if (j->state != READING) return;
    if (method == RMQ_QUEUE_DECLARE_OK)
        get(j);
    else
        nothing_there(j);
}

/* It stays in the queue: the next state takes its place. */
static void read_content(rmq_chan *chan, rmq_content *k) {
    rmq_journal *j = chan->owner;
    mw_buf *b = rmq_line_out(chan->line);
    size_t f = rmq_method(b, chan->id, RMQ_NACK);
    rmq_put_u64(b, k->tag);
    rmq_put_u8(b, 2);
    rmq_frame_end(b, f);
    rmq_line_send(chan->line);
    if (j->state != READING) return;
    read_state(j, k->body, k->body_len);
    read_over(j);
}

static const rmq_chan_events reading = {
    .opened = read_opened, .closed = read_closed, .method = read_method, .content = read_content};

bool rmq_journal_loaded(rmq_journal *j) {
    if (j->mute) return true;
    if (j->state != UNREAD) return j->state == READ;
    j->state = READING;
    rmq_out(j->sub->conn); /* it connects meanwhile: what is read is written next */
    if (!j->chan.line)
        rmq_chan_add(j->sub->line, &j->chan, RMQ_CHAN_JOURNAL, &reading, j);
    else if (j->chan.open)
        look(j);
    return false;
}
