/* journal.c - what a crash must not forget of a queue. A failed message that is read in order stays where it
 * is (its lane must not move), and so does one that kills its process; AMQP has no place to write on a
 * message that stays. So what is known about such messages stands in a queue beside it, "mw.journal.QUEUE",
 * that keeps one message: the newest state of all of them. One consumer of the queue writes it, and only when
 * there is something to remember:
 *
 *   failures, due time, first error: of a message that waits here for its next attempt
 *   begun: a handler has it for more than a turn of the loop; dead with us, it counts
 *   met: it came a second time although nothing was known of it; a third time it is a suspect, and runs alone
 *   (deliver.c)
 *   who: the process that noted it begun or met. One that lives has not died of it: it lost its connection
 *
 * A handler that ends within its turn, which is the rule, costs nothing here.
 *
 * It is read over the consumer's line (journal_read.c), and written over the one that publishes. A broker
 * with an alarm does not read the latter: messages go on all the same, and what is to be noted of them stands
 * when the alarm is over.
 *
 * With order = "none" several processes read the queue. One of them has the journal (tune.c: lock) and
 * counts; for the others it is mute, as if there were none.
 *
 * Where nothing may be declared (declare=passive) and the queue is not there it is mute: kept in memory only,
 * for retries that wait here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/uuid.h"
#include "drivers/amqp/journal.h"

enum { BEGUN = 1, MET = 2, SUSPECT = 4 }; /* flags of a note */
enum { TIDY_MS = 500, AGAIN_MS = 300, AGAIN_MOST_MS = 10000, QUIET_MS = 3000 };

typedef struct waiter { /* a settlement that is answered when it is written */
    uint64_t version;
    void *cookie;
    uint64_t again; /* the tag of a delivery that the core has forgotten, and gets once more; 0: none */
} waiter;

static bool is_passive(const rmq_sub *s) { return s->conn->declare == RMQ_DECLARE_PASSIVE; }

rmq_journal *rmq_journal_new(rmq_sub *s) {
    rmq_journal *j = calloc(1, sizeof *j);
    if (!j) abort();
    j->sub = s;
    if (s->place)
        snprintf(j->name, sizeof j->name, "mw.place.%s@%s", s->group, s->queue);
    else
        snprintf(j->name, sizeof j->name, "mw.journal.%s", s->queue);
    j->mute =
        is_passive(s) && s->order == MW_ORDER_NONE; /* several read side by side: it would need a lock */
    return j;
}

bool rmq_journal_mute(const rmq_journal *j) { return j->mute; }

void rmq_journal_silence(rmq_journal *j, bool mute) { j->mute = mute; }

/* ---- notes ---- */

static uint64_t this_process(void) {
    static uint64_t who;
    static pid_t pid;
    if (pid != getpid()) who = mw_random64();
    pid = getpid();
    return who;
}

static void mark(note *n, uint8_t flags) {
    n->flags = flags;
    n->who = this_process();
}

static uint64_t identity_of(const rmq_journal *j, const rmq_entry *e) {
    mw_parts p;
    if (j->sub->place) return mw_hash64(&e->offset, sizeof e->offset);
    mw_message_parts(e->msg, &p);
    return rmq_identity(&p, e->has_id);
}

note *rmq_journal_note(rmq_journal *j, uint64_t identity) {
    note *n = mw_map_get(&j->notes, identity);
    if (n) return n;
    n = calloc(1, sizeof *n);
    if (!n) abort();
    mw_map_put(&j->notes, identity, n);
    return n;
}

static void free_note(note *n) {
    if (!n) return;
    mw_text_unref(n->error);
    free(n);
}

static void forget_notes(rmq_journal *j) {
    uint32_t at = 0;
    for (note *n; (n = mw_map_next(&j->notes, &at, NULL));) free_note(n);
    mw_map_free(&j->notes);
    j->notes = (mw_map){0};
}

/* ---- writing: one state under way at a time; what changes meanwhile goes with the next ---- */

static void turn_end(mw_deferred *d);

static mw_message *state_of(rmq_journal *j) {
    mw_buf b = {0};
    rmq_put_u32(&b, j->sub->place ? STREAM_MAGIC : MAGIC);
    if (j->sub->place) rmq_place_put(j->sub->place, j->clean, &b);
    uint32_t at = 0;
    uint64_t identity;
    for (note *n; (n = mw_map_next(&j->notes, &at, &identity));) {
        rmq_put_u64(&b, identity);
        rmq_put_u32(&b, n->failures);
        rmq_put_u8(&b, n->flags);
        rmq_put_u64(&b, n->who);
        rmq_put_u64(&b, (uint64_t)n->due_ms);
        size_t len = !n->error ? 0 : n->error->len < ERROR_MAX ? n->error->len : ERROR_MAX;
        rmq_put_long(&b, n->error ? n->error->data : "", len);
    }
    mw_parts p = {.body = b.data,
                  .body_len = b.len,
                  .type = "application/x-moonwire-journal",
                  .type_len = strlen("application/x-moonwire-journal"),
                  .id = j->name,
                  .id_len = strlen(j->name) < 255 ? strlen(j->name) : 255};
    mw_message *m = mw_message_new(&p);
    mw_buf_free(&b);
    return m;
}

typedef struct writing {
    rmq_pub pub;
    rmq_journal *journal; /* NULL: of deliveries that are gone */
    uint64_t version;
} writing;

static void write_done(rmq_pub *p, const mw_error *e);

static void written(rmq_journal *j, uint64_t version);

static void write_state(rmq_journal *j) {
    rmq_conn *c = j->sub->conn;
    if (j->writing || j->version == j->written) return;
    if (j->mute) {
        written(j, j->version);
        return;
    }
    if (!rmq_journal_loaded(j)) return; /* what stands there would be lost; it is written when that is read */
    mw_timer_stop(&j->tidy);
    writing *w = calloc(1, sizeof *w);
    if (!w) abort();
    mw_message *m = state_of(j);
    *w = (writing){.pub = {.msg = m, .done = write_done}, .journal = j, .version = j->version};
    j->writing = w;
    rmq_send_to(c, &w->pub, rmq_target_journal(c, j->name));
    mw_message_unref(m);
    rmq_pump(c);
}

/* What is under way, if it is not sent yet, must not replace what another consumer writes. */
static void drop_writing(rmq_journal *j) {
    if (!j->writing) return;
    j->writing->journal = NULL;
    j->writing->pub.dropped = true;
    j->writing = NULL;
}

void rmq_journal_write_later(rmq_journal *j) { mw_defer_last(j->sub->conn->loop, &j->turn, turn_end); }

static void changed(rmq_journal *j) {
    j->version++;
    rmq_journal_write_later(j);
}

static void tidy(mw_timer *t) { rmq_journal_write_later(mw_container_of(t, rmq_journal, tidy)); }

/* A copy would be one for every reader of the stream: it stays here, and waits in the core. */
static void give_again(rmq_journal *j, uint64_t tag) {
    rmq_sub *s = j->sub;
    rmq_entry *e = rmq_entry_of(s, tag);
    const note *n = e && e->state == RMQ_OURS ? mw_map_get(&j->notes, identity_of(j, e)) : NULL;
    if (!n) return;
    mw_incoming in = {.msg = mw_message_ref(e->msg),
                      .tag = tag,
                      .unit = s->unit,
                      .attempt = n->failures + 1,
                      .not_before = n->due_ms,
                      .first_error = mw_text_ref(n->error)};
    mw_buf_add(&s->waiting, &in, sizeof in);
    s->waiting_bytes += mw_message_size(e->msg);
}

static void answer_waiters(rmq_journal *j) {
    const waiter *w = (const waiter *)(void *)j->waiters.data;
    size_t n = j->waiters.len / sizeof *w, done = 0;
    for (; done < n && w[done].version <= j->written; done++) {
        rmq_answer_later(j->sub, w[done].cookie, 0, NULL);
        if (w[done].again) give_again(j, w[done].again);
    }
    if (!done) return;
    memmove(j->waiters.data, j->waiters.data + done * sizeof *w, (n - done) * sizeof *w);
    j->waiters.len = (n - done) * sizeof *w;
}

static void check_quiet(rmq_journal *j) {
    if (!j->quiet || j->writing || j->version != j->written) return;
    void (*quiet)(rmq_sub *) = j->quiet;
    j->quiet = NULL;
    mw_timer_stop(&j->quiet_limit);
    quiet(j->sub);
}

static void written(rmq_journal *j, uint64_t version) {
    j->written = version;
    j->again_ms = 0;
    answer_waiters(j);
    if (j->version != j->written) rmq_journal_write_later(j);
    if (j->pump_after && j->written >= j->met_version) {
        j->pump_after = false;
        rmq_sub_pump(j->sub);
    }
    check_quiet(j);
}

static void write_failed(rmq_journal *j, const mw_error *e) {
    j->mute = is_passive(j->sub) && e->code == MW_EUSAGE; /* there is no such queue */
    j->again_ms = j->mute ? 0 : j->again_ms ? j->again_ms * 2 : AGAIN_MS;
    if (j->again_ms > AGAIN_MOST_MS) j->again_ms = AGAIN_MOST_MS;
    mw_log_begin(
        MW_WARN,
        j->mute ? "retries are not remembered through a crash: there is no queue for it, and the URL says "
                  "declare=passive"
                : "cannot note what failed; trying again");
    mw_log_text("queue", j->name);
    mw_log_text("error", e->text);
    mw_log_end();
    mw_timer_start_real(j->sub->conn->loop, &j->tidy, j->again_ms, tidy);
}

static void write_done(rmq_pub *p, const mw_error *e) {
    writing *w = mw_container_of(p, writing, pub);
    rmq_journal *j = w->journal;
    uint64_t version = w->version;
    free(w);
    if (!j) return;
    j->writing = NULL;
    if (e)
        write_failed(j, e);
    else
        written(j, version);
}

/* What cannot be written now is written later: a backlog that caused the alarm must be able to drain. Whoever
 * dies before that was not noted, which costs an attempt that is not counted. */
bool rmq_journal_stands(rmq_journal *j) {
    const rmq_line *out = j->sub->conn->out;
    j->pump_after = j->written < j->met_version;
    return !j->pump_after || (out && out->blocked);
}

static void quiet_late(mw_timer *t) {
    rmq_journal *j = mw_container_of(t, rmq_journal, quiet_limit);
    j->written = j->version;
    drop_writing(j);
    check_quiet(j);
}

bool rmq_journal_quiet(rmq_journal *j, void (*quiet)(rmq_sub *s)) {
    if (!j->writing && j->version == j->written) return true;
    j->quiet = quiet;
    rmq_journal_write_later(j);
    mw_timer_start_real(j->sub->conn->loop, &j->quiet_limit, QUIET_MS, quiet_late);
    return false;
}

/* ---- what is told to it ---- */

/* A tag of the turn before that is still ours has a handler that waits. */
static void turn_end(mw_deferred *d) {
    rmq_journal *j = mw_container_of(d, rmq_journal, turn);
    const uint64_t *tags = (const uint64_t *)(void *)j->begun_before.data;
    for (size_t i = 0; i < j->begun_before.len / sizeof *tags; i++) {
        rmq_entry *e = rmq_entry_of(j->sub, tags[i]);
        if (!e || e->state != RMQ_OURS || !e->begun) continue;
        note *n = rmq_journal_note(j, identity_of(j, e));
        mark(n, BEGUN | (n->flags & SUSPECT));
        n->due_ms = 0;
        if (e->failures > n->failures) n->failures = e->failures;
        j->version++;
    }
    mw_buf swap = j->begun_before;
    j->begun_before = j->begun;
    j->begun = swap;
    j->begun.len = 0;
    if (j->begun_before.len) rmq_journal_write_later(j);
    write_state(j);
}

void rmq_journal_begin(rmq_journal *j, uint64_t tag) {
    mw_buf_add(&j->begun, &tag, sizeof tag);
    rmq_journal_write_later(j);
}

void rmq_journal_failed(rmq_journal *j, const mw_settlement *x) {
    rmq_entry *e = rmq_entry_of(j->sub, x->tag);
    note *n = rmq_journal_note(j, identity_of(j, e));
    if (!e->first_error) e->first_error = mw_text_ref(x->error);
    if (!n->error) n->error = mw_text_ref(e->first_error);
    e->failures = n->failures = x->attempt;
    e->begun = e->suspect = false;
    n->flags = 0;
    n->due_ms = mw_loop_wall_ms(j->sub->conn->loop) + x->delay_ms;
    changed(j);
    waiter w = {.version = j->version, .cookie = x->cookie, .again = x->hold ? 0 : x->tag};
    mw_buf_add(&j->waiters, &w, sizeof w);
}

void rmq_journal_settled(rmq_journal *j, void *cookie) {
    changed(j);
    waiter w = {.version = j->version, .cookie = cookie};
    mw_buf_add(&j->waiters, &w, sizeof w);
}

bool rmq_journal_knows(rmq_journal *j, uint64_t offset) {
    return j->notes.count && mw_map_get(&j->notes, mw_hash64(&offset, sizeof offset));
}

void rmq_journal_touch(rmq_journal *j, bool clean) {
    j->clean = clean;
    changed(j);
}

void rmq_journal_gone(rmq_journal *j, const rmq_entry *e) {
    if (!j->notes.count) return;
    note *n = mw_map_remove(&j->notes, identity_of(j, e));
    if (!n) return;
    free_note(n);
    j->version++; /* not worth a write of its own */
    if (!mw_timer_running(&j->tidy)) mw_timer_start_real(j->sub->conn->loop, &j->tidy, TIDY_MS, tidy);
}

/* Given back on purpose: that it comes again says nothing about it. */
void rmq_journal_release(rmq_journal *j, const rmq_entry *e) {
    if (!j->notes.count) return;
    note *n = mw_map_get(&j->notes, identity_of(j, e));
    if (!n || !n->flags) return;
    n->flags = 0;
    changed(j);
}

/* A death that left it begun counts. One that left it met may have been its doing, unless its time had not
 * come: then it cannot have begun since. */
void rmq_journal_meet(rmq_journal *j, mw_incoming *in) {
    rmq_entry *e = rmq_entry_of(j->sub, in->tag);
    note *n = rmq_journal_note(j, identity_of(j, e));
    bool died = n->flags && n->who != this_process();
    e->suspect = n->flags & SUSPECT;
    if (n->failures < e->failures) n->failures = e->failures;
    if (died && n->flags & BEGUN) {
        e->suspect = false;
        n->failures++;
        n->due_ms = 0;
    } else if (died && n->due_ms <= mw_loop_wall_ms(j->sub->conn->loop)) {
        e->suspect = true;
    }
    j->sub->careful |= e->suspect;
    mark(n, MET | (e->suspect ? SUSPECT : 0));
    in->attempt = n->failures + 1;
    in->not_before = n->due_ms;
    if (n->error && !in->first_error) {
        in->first_error = mw_text_ref(n->error);
        e->first_error = mw_text_ref(n->error);
    }
    changed(j);
    j->met_version = j->version;
}

void rmq_journal_suspect(rmq_journal *j, uint64_t tag) {
    rmq_entry *e = rmq_entry_of(j->sub, tag);
    mark(rmq_journal_note(j, identity_of(j, e)), BEGUN | SUSPECT);
    changed(j);
    j->met_version = j->version;
}

void rmq_journal_reset(rmq_journal *j) {
    const waiter *w = (const waiter *)(void *)j->waiters.data;
    for (size_t i = 0; i < j->waiters.len / sizeof *w; i++)
        rmq_answer_later(j->sub, w[i].cookie, MW_EFENCED, "the channel was lost");
    j->waiters.len = j->begun.len = j->begun_before.len = 0;
    forget_notes(j);
    drop_writing(j);
    j->written = j->version;
    if (j->state == READING && j->chan.open) rmq_chan_restart(&j->chan); /* an answer may be on its way */
    j->state = UNREAD;
    j->pump_after = j->clean = false;
    if (j->sub->place) rmq_place_reset(j->sub->place);
    mw_timer_stop(&j->tidy);
    mw_timer_stop(&j->look);
    j->looks = 0;
    check_quiet(j);
}

void rmq_journal_free(rmq_journal *j) {
    if (!j) return;
    mw_timer_stop(&j->tidy);
    mw_timer_stop(&j->look);
    mw_timer_stop(&j->quiet_limit);
    mw_deferred_cancel(j->sub->conn->loop, &j->turn);
    forget_notes(j);
    mw_buf_free(&j->waiters);
    mw_buf_free(&j->begun);
    mw_buf_free(&j->begun_before);
    drop_writing(j);
    free(j);
}
