/* read.c - new entries: XREADGROUP on a connection of its own, which waits at the server for a bounded time.
 * One at a time, or two while there is much to read, so that the server works on the next while we work on
 * the last. Entries become messages where they were received, with one copy. Also the flights, that is what
 * the core has of us. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/redis/redis.h"

enum { COUNT_MOST = 100, BLOCK_MS = 2000, HAND_OVER = 128, AGAIN_MS = 500, READS_MOST = 2 };

/* ---- flights ---- */

static void more_flights(mw_sub *s) {
    uint32_t old = s->flight_capacity, capacity = old ? old * 2 : 256;
    s->flights = realloc(s->flights, capacity * sizeof *s->flights);
    if (!s->flights) abort();
    for (uint32_t i = old; i < capacity; i++)
        s->flights[i] = (mwr_flight){.next_free = i + 1 < capacity ? i + 2 : s->free_flight};
    s->free_flight = old + 1;
    s->flight_capacity = capacity;
}

mwr_flight *mwr_flight_new(mw_sub *s, mwr_id id, uint64_t *tag) {
    if (!s->free_flight) more_flights(s);
    uint32_t place = s->free_flight - 1;
    mwr_flight *f = &s->flights[place];
    s->free_flight = f->next_free;
    *f = (mwr_flight){.id = id, .round = s->round, .attempt = 1, .since = mw_loop_real_ms(s->conn->loop)};
    s->flight_count++;
    *tag = (uint64_t)s->round << 32 | place;
    return f;
}

mwr_flight *mwr_flight_of(mw_sub *s, uint64_t tag) {
    uint32_t place = (uint32_t)tag;
    if (place >= s->flight_capacity || s->flights[place].round != tag >> 32) return NULL;
    return &s->flights[place];
}

void mwr_flight_end(mw_sub *s, mwr_flight *f) {
    uint32_t place = (uint32_t)(f - s->flights);
    if (f->begun) mwr_crumbs_end(s->crumbs, place);
    f->round = 0;
    f->next_free = s->free_flight;
    s->free_flight = place + 1;
    s->flight_count--;
}

/* ---- handing over ---- */

void mwr_collect(mw_sub *s, const mw_incoming *in) {
    size_t size = mw_message_size(in->msg);
    s->average = s->average ? (s->average * 15 + size) / 16 + 1 : size;
    if (size > s->average * 4) s->average = size; /* be careful at once, trust slowly */
    mw_buf_add(&s->batch, in, sizeof *in);
    if (s->batch.len >= HAND_OVER * sizeof *in) mwr_hand_over(s);
}

void mwr_hand_over(mw_sub *s) {
    size_t count = s->batch.len / sizeof(mw_incoming);
    if (!count) return;
    s->batch.len = 0;
    s->conn->host->deliver(s->source, (const mw_incoming *)(void *)s->batch.data, count);
}

/* ---- the group ---- */

static void say_made(const mw_sub *s, const mwr_unit *u) {
    size_t len;
    const char *from = mwr_text(u, mwr_child(u->node, 1), &len);
    bool is_made = mwr_number(u, mwr_child(u->node, 0)), again = mwr_number(u, mwr_child(u->node, 2));
    if (!is_made || !again) return;
    mw_log_begin(MW_WARN, "the group was gone, and is made again");
    mw_log_text("channel", s->channel->name);
    mw_log_text("group", s->group);
    mw_log_str("behind", from, len);
    mw_log_end();
}

static void made(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner, (void)more;
    mw_sub *s = cookie;
    s->grouping = false;
    if (s->conn->closing || s->state == MWR_LEAVING) return;
    if (e) {
        if (u) mwr_complain(s, MWR_NO_GROUP, e);
        return; /* the next tick tries again */
    }
    mwr_works(s, MWR_NO_GROUP);
    say_made(s, u);
    mwr_tick_soon(s);
}

void mwr_group_make(mw_sub *s) {
    if (s->grouping) return;
    s->grouping = true;
    char last[MWR_ID_TEXT] = "";
    if (s->any) mwr_id_print(s->last, last);
    mw_buf *b = mwr_command(s->conn->client, 14, made, s, 0);
    mwr_write_text(b, "EVALSHA");
    mwr_write(b, mwr_script_sha(MWR_GROUP), 40);
    mwr_write_text(b, "2");
    mwr_write_text(b, s->channel->name);
    mwr_write_text(b, s->key_record);
    mwr_write_text(b, s->group);
    mwr_write_text(b, s->from_start ? "1" : "0");
    mwr_write_text(b, last);
    mwr_write_text(b, s->whole ? "1" : "0");
    mwr_write_text(b, s->consumer);
    mwr_write_text(b, s->token);
    mwr_write_number(b, s->lease_ms);
    mwr_write_number(b, s->reader_known);
    mwr_write_text(b, !s->whole ? "" : s->ordered ? "lead" : "member");
    mwr_flush(s->conn->client);
}

/* ---- reading ---- */

static void read_again(mw_timer *t) { mwr_read(mw_container_of(t, mw_sub, reread)); }

static void entry(mw_sub *s, const mwr_unit *u) {
    size_t len;
    const mwr_node *n = u->node, *fields = mwr_child(n, 1);
    const char *text = mwr_text(u, mwr_child(n, 0), &len);
    mwr_id id;
    if (!fields || !mwr_id_read(text, len, &id)) return;
    uint64_t tag;
    s->came++;
    if (s->any && !mwr_id_less(s->last, id)) s->replayed = true;
    if (s->replayed) { /* it may be in flight, or wait for a retry: recovery knows */
        if (mwr_id_less(s->last, id)) s->last = id;
        return;
    }
    mwr_flight_new(s, id, &tag);
    s->last = id;
    s->any = true;
    mw_incoming in = {.msg = mwr_entry_message(s->channel, u, fields, id), .tag = tag, .attempt = 1};
    mwr_collect(s, &in);
}

static void refused(mw_sub *s, const mw_error *e) {
    if (strstr(e->text, "NOGROUP") || strstr(e->text, "UNBLOCKED")) { /* deleted under us: it is made anew */
        s->state = MWR_JOINING;
        mwr_claim_soon(s);
        mwr_tick_soon(s);
        return;
    }
    mwr_complain(s, MWR_NO_READ, e);
    mw_timer_start_real(s->conn->loop, &s->reread, AGAIN_MS, read_again);
}

static void read_reply(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    mw_sub *s = owner;
    size_t asked = (size_t)(uintptr_t)cookie;
    if (!more) {
        s->reading--;
        s->asked -= asked;
    }
    if (s->conn->closing || s->state == MWR_LEAVING || (e && !u)) return; /* without a server: `lost` comes */
    if (!e && u->node->type == MWR_ARRAY) entry(s, u);
    if (more) return;
    s->busy = s->came >= asked;
    s->came = 0;
    if (!e) mwr_works(s, MWR_NO_READ);
    mwr_hand_over(s);
    if (s->replayed && s->state == MWR_READING) {
        mwr_recover_stop(s);
        s->state = MWR_RECOVERING;
    }
    s->replayed = s->replayed && s->reading;
    if (e)
        refused(s, e);
    else if (s->state == MWR_RECOVERING)
        mwr_recover(s);
    else
        mwr_read(s);
}

static bool may_read(const mw_sub *s) {
    return s->state == MWR_READING && !s->paused && mwr_client_ready(s->reader) &&
           mwr_client_id(s->reader) == s->reader_known && !mw_timer_running(&s->reread);
}

/* How many entries another read may bring. */
static size_t room(mw_sub *s) {
    size_t bytes, n = s->conn->host->room(s->source, &bytes);
    size_t fit = s->average ? bytes / s->average + 1 : COUNT_MOST;
    if (n > fit) n = fit;
    n = n > s->asked ? n - s->asked : 0;
    return n > COUNT_MOST ? COUNT_MOST : n;
}

static void ask(mw_sub *s, size_t n) {
    s->reading++;
    s->asked += n;
    mw_buf *b = mwr_command_within(s->reader, 11, read_reply, (void *)(uintptr_t)n, 3,
                                   READS_MOST * BLOCK_MS + s->conn->target.timeout_ms);
    mwr_write_text(b, "XREADGROUP");
    mwr_write_text(b, "GROUP");
    mwr_write_text(b, s->group);
    mwr_write_text(b, s->consumer);
    mwr_write_text(b, "COUNT");
    mwr_write_number(b, (int64_t)n);
    mwr_write_text(b, "BLOCK");
    mwr_write_number(b, BLOCK_MS);
    mwr_write_text(b, "STREAMS");
    mwr_write_text(b, s->channel->name);
    mwr_write_text(b, ">");
}

void mwr_read(mw_sub *s) {
    if (s->state == MWR_RECOVERING || s->todo.len / sizeof(mwr_id) > s->todo_at) mwr_recover_resume(s);
    while (may_read(s) && s->reading < (s->busy ? READS_MOST : 1)) {
        size_t n = room(s);
        if (!n || (s->reading && n < COUNT_MOST / 2)) break; /* resume comes, or the read under way ends */
        ask(s, n);
    }
    if (s->reader) mwr_flush(s->reader);
}

/* ---- its connection ---- */

static void ready(void *owner) { mwr_tick_soon(owner); }

static void lost(void *owner, const mw_error *why) {
    mw_sub *s = owner;
    if (why->code == MW_EFORMAT) mwr_complain(s, MWR_NO_READ, why); /* too large a piece, or nonsense */
    mw_incoming *in = (mw_incoming *)(void *)s->batch.data;
    for (size_t i = 0; i < s->batch.len / sizeof *in;
         i++) { /* half a reply; it is pending, and comes again */
        mwr_flight *f = mwr_flight_of(s, in[i].tag);
        if (f) mwr_flight_end(s, f);
        mw_message_unref(in[i].msg);
    }
    s->batch.len = 0;
    s->reading = 0;
    s->asked = s->came = 0;
    s->whole = s->replayed = false;
    mwr_recover_stop(s);
    if (s->state != MWR_LEAVING) s->state = MWR_JOINING;
}

int mwr_reader_open(mw_sub *s, mw_error *e) {
    static const mwr_client_events EVENTS = {ready, lost};
    mw_conn *c = s->conn;
    mwr_client_options o = {.target = &c->target, .sentinel = c->sentinel, .name = "moonwire-reader"};
    s->reader = mwr_client_open(c->loop, &o, &EVENTS, s, e);
    return s->reader ? 0 : -1;
}
