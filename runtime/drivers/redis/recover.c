/* recover.c - entries that were handed out before and not acked. When a subscription begins to read, and when
 * its connection broke, it takes what is pending under its own name and under names whose process is gone:
 * first a list of ids, page by page, without those in flight, then the entries themselves, as far as there is
 * room. While it reads, what others left behind is taken in the same way. Retries that are due are claimed by
 * whoever looks. */
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/redis.h"

enum { PAGE = 500, TAKE_MOST = 100, TAKE_FIRST = 16, DUE_POLL_MS = 1000 };

static void go_on(mw_sub *s);

static uint64_t hash_of(mwr_id id) { return mw_hash64(&id, sizeof id); }

void mwr_recover_stop(mw_sub *s) {
    s->recovering = s->due_asked = false;
    s->recovery++;
    s->todo.len = s->todo_at = 0;
    s->list_after[0] = 0;
}

/* ---- entries ---- */

static bool was_begun(const mw_sub *s, mwr_id id) {
    const mwr_id *ids = (const mwr_id *)(const void *)s->begun.data;
    for (size_t i = 0; i < s->begun.len / sizeof *ids; i++)
        if (ids[i].ms == id.ms && ids[i].seq == id.seq) return true;
    return false;
}

/* [id, fields, tries, wait, error, deliveries] */
static void taken_one(mw_sub *s, const mwr_unit *u) {
    const mwr_node *n = u->node;
    size_t len;
    mwr_id id;
    const char *text = mwr_text(u, mwr_child(n, 0), &len);
    if (n->count < 6 || !mwr_id_read(text, len, &id)) return;
    uint64_t tag;
    mwr_flight *f = mwr_flight_new(s, id, &tag);
    int64_t tries = mwr_number(u, mwr_child(n, 2)), wait = mwr_number(u, mwr_child(n, 3));
    const char *error = mwr_text(u, mwr_child(n, 4), &len);
    f->tries = (uint32_t)tries;
    f->attempt = f->tries + 1;
    f->noted = mwr_child(n, 4)->type != MWR_NIL;
    mw_incoming in = {.msg = mwr_entry_message(s->channel, u, mwr_child(n, 1), id),
                      .tag = tag,
                      .attempt = f->attempt,
                      .not_before = wait > 0 ? mw_loop_wall_ms(s->conn->loop) + wait : 0,
                      .first_error = len ? mw_text_new(error, len) : NULL};
    mwr_collect(s, &in);
}

typedef struct asked {
    mw_sub *s;
    unsigned recovery;
    mw_buf begun; /* of mwr_id: for these the attempt was counted */
} asked;

static asked *ask(mw_sub *s) {
    asked *a = mwr_alloc(sizeof *a);
    *a = (asked){.s = s, .recovery = s->recovery};
    return a;
}

/* An answer for nobody: the recovery it belongs to was given up. What it claimed stays pending, and is found.
 */
static bool stale(const asked *a) {
    return a->s->conn->closing || a->s->state == MWR_LEAVING || a->recovery != a->s->recovery;
}

static bool refused(mw_sub *s, const mwr_unit *u, const mw_error *e) {
    if (e) { /* the next tick begins again */
        if (u) mwr_complain(s, MWR_NO_TAKE, e);
        s->recovering = false;
        s->state = MWR_JOINING;
        return true;
    }
    mwr_works(s, MWR_NO_TAKE);
    if (u->node->type != MWR_INTEGER || u->node->integer != -1) return false;
    mwr_fenced(s);
    return true;
}

static void taken(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner;
    asked *a = cookie;
    mw_sub *s = a->s;
    bool useless = stale(a);
    if (!useless && !e && u->node->type == MWR_ARRAY && u->node->count) taken_one(s, u);
    if (more) return;
    const mwr_id *begun = (const mwr_id *)(const void *)a->begun.data;
    for (size_t i = 0; !e && !s->conn->closing && i < a->begun.len / sizeof *begun; i++)
        mwr_crumbs_forget(s, begun[i]);
    mw_buf_free(&a->begun);
    free(a);
    if (useless) return;
    s->recovering = false;
    if (refused(s, u, e)) return;
    mwr_hand_over(s);
    go_on(s);
}

static void take(mw_sub *s, size_t count) {
    const mwr_id *ids = (const mwr_id *)(const void *)s->todo.data;
    asked *a = ask(s);
    mw_buf *b = mwr_group_script(s, MWR_TAKE, 2 * count, taken, a, 1);
    for (size_t i = 0; i < count; i++) {
        mwr_id id = ids[s->todo_at++];
        bool begun = was_begun(s, id);
        if (begun) mw_buf_add(&a->begun, &id, sizeof id);
        mwr_write_id(b, id);
        mwr_write_text(b, begun ? "1" : "0");
    }
    s->recovering = true;
    mwr_flush(s->conn->client);
}

/* ---- the list ---- */

/* Those in flight are ours already. */
static void add_todo(mw_sub *s, const mwr_unit *u) {
    mw_map flying = {0};
    for (uint32_t i = 0; i < s->flight_capacity; i++)
        if (s->flights[i].round) mw_map_put(&flying, hash_of(s->flights[i].id), s);
    s->todo.len = s->todo_at = 0;
    const mwr_node *n = u->node + 1;
    for (uint32_t i = 0; i < u->node->count; i++, n += n->span) {
        size_t len;
        mwr_id id;
        const char *text = mwr_text(u, n, &len);
        if (i && mwr_id_read(text, len, &id) && !mw_map_get(&flying, hash_of(id)))
            mw_buf_add(&s->todo, &id, sizeof id);
    }
    mw_map_free(&flying);
}

static void listed(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner, (void)more;
    asked *a = cookie;
    mw_sub *s = a->s;
    bool useless = stale(a);
    free(a);
    if (useless) return;
    s->recovering = false;
    if (refused(s, u, e)) return;
    size_t len;
    const char *after = mwr_text(u, mwr_child(u->node, 0), &len);
    if (len >= sizeof s->list_after) len = 0;
    memcpy(s->list_after, after, len);
    s->list_after[len] = 0;
    add_todo(s, u);
    if (s->todo.len) mwr_crumbs_found(s, &s->begun);
    go_on(s);
}

static void list(mw_sub *s) {
    mw_buf *b = mwr_group_script(s, MWR_LIST, 5, listed, ask(s), 0);
    mwr_write_number(b, s->lease_ms);
    mwr_write_text(b, s->list_after);
    mwr_write_number(b, PAGE);
    mwr_write_text(b, s->ordered ? "1" : "0");
    /* While it reads, what comes under its own name is on its way on the other connection. */
    mwr_write_text(b, s->state == MWR_READING ? "1" : "0");
    s->recovering = true;
    mwr_flush(s->conn->client);
}

static size_t room(mw_sub *s) {
    size_t bytes, n = s->paused ? 0 : s->conn->host->room(s->source, &bytes);
    if (!n) return 0;
    size_t fit = s->average ? bytes / s->average + 1 : TAKE_FIRST;
    if (n > fit) n = fit;
    return n < TAKE_MOST ? n : TAKE_MOST;
}

static void go_on(mw_sub *s) {
    if (s->recovering || s->paused || (s->state != MWR_RECOVERING && s->state != MWR_READING)) return;
    size_t left = s->todo.len / sizeof(mwr_id) - s->todo_at;
    if (left) {
        size_t n = room(s);
        if (n) take(s, n < left ? n : left); /* else resume comes */
    } else if (s->list_after[0]) {
        list(s);
    } else if (s->state == MWR_RECOVERING) {
        s->begun.len = 0;
        s->state = MWR_READING;
        s->whole = true;
        mwr_read(s);
    }
}

/* Not while a read is under way: what it brings is pending too, and would be taken twice. */
void mwr_recover(mw_sub *s) {
    if (s->recovering || (s->state == MWR_RECOVERING && s->reading)) return;
    bool idle = s->todo.len / sizeof(mwr_id) == s->todo_at && !s->list_after[0];
    if (idle) memcpy(s->list_after, "-", 2);
    go_on(s);
}

void mwr_recover_resume(mw_sub *s) { go_on(s); }

/* ---- retries ---- */

static void due_taken(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner;
    asked *a = cookie;
    mw_sub *s = a->s;
    bool useless = stale(a);
    if (!more) free(a);
    if (useless) return;
    if (!e && u->node->type == MWR_ARRAY && u->node->count) taken_one(s, u);
    if (more) return;
    s->due_asked = false;
    if (refused(s, u, e)) return;
    if (u->node->type == MWR_INTEGER && u->node->integer >= 0) mwr_due_at(s, u->node->integer);
    mwr_hand_over(s);
}

static void look_due(mw_timer *t) {
    mw_sub *s = mw_container_of(t, mw_sub, due);
    if (s->state != MWR_READING || s->due_asked || s->paused) return; /* the next tick tells again */
    size_t n = room(s);
    if (!n) {
        mwr_due_at(s, DUE_POLL_MS);
        return;
    }
    s->due_asked = true;
    mw_buf *b = mwr_group_script(s, MWR_DUE, 1, due_taken, ask(s), 1);
    mwr_write_number(b, (int64_t)n);
    mwr_flush(s->conn->client);
}

void mwr_due_at(mw_sub *s, int64_t in_ms) {
    uint64_t at = mw_loop_real_ms(s->conn->loop) + (uint64_t)in_ms;
    if (s->state == MWR_LEAVING || (mw_timer_running(&s->due) && s->due.at <= at)) return;
    mw_timer_start_real(s->conn->loop, &s->due, in_ms, look_due);
}
