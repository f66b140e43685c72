/* group.c - being a member of a consumer group: the tick. In every tick a subscription renews its membership,
 * leads or tries to, moves delayed messages that are due, and learns how the group stands. From the answer it
 * sees what it may do; see redis.h for who may. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/uuid.h"
#include "core/shared/shared.h"
#include "drivers/redis/redis.h"

enum { TICK_MS = 500, TICK_LEAST_MS = 50, TAKEN_MAX = 1000 };

/* ---- who we are ---- */

/* A process is known by machine, number and start: one of this machine that is gone need not be waited for.
 */
static uint64_t machine(void) {
    static uint64_t id;
    if (id) return id;
    char text[128] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = f ? fread(text, 1, 64, f) : 0;
    if (f) fclose(f);
    struct stat st;
    if (stat("/proc/self/ns/pid", &st) == 0)
        n += (size_t)snprintf(text + n, 32, ":%lu", (unsigned long)st.st_ino);
    if (!n) n = (size_t)snprintf(text, sizeof text, "%016llx", (unsigned long long)mw_random64());
    return id = mw_hash64(text, n);
}

static unsigned long long started(int pid) { /* 0: it is gone */
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *at =
        strrchr(text, ')'); /* behind the name, which may hold anything: state is field 3, the start 22 */
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X') return 0;
    for (int field = 3; field < 22 && at; field++) at = strchr(at + 2, ' ') ? strchr(at + 2, ' ') - 1 : NULL;
    return at ? strtoull(at + 2, NULL, 10) : 0;
}

static bool is_dead(const char *token) {
    unsigned long long where, when;
    int pid;
    if (sscanf(token, "%llx:%d:%llu:", &where, &pid, &when) != 3 || where != machine()) return false;
    return started(pid) != when;
}

static void set_names(mw_sub *s) {
    char host[128] = "moonwire";
    const char *given = s->conn->target.consumer;
    gethostname(host, sizeof host - 1);
    int slot = mw_shared_place();
    int n =
        snprintf(s->consumer, sizeof s->consumer, "%.120s-%d", *given ? given : host, slot < 0 ? 0 : slot);
    if (s->name_tries) snprintf(s->consumer + n, sizeof s->consumer - (size_t)n, ".%u", s->name_tries + 1);
    if (s->ordered)
        snprintf(s->row, sizeof s->row, "lead");
    else
        snprintf(s->row, sizeof s->row, "m:%s", s->consumer);
}

static void set_token(mw_sub *s) {
    int pid = getpid();
    snprintf(s->token, sizeof s->token, "%016llx:%d:%llu:%016llx", (unsigned long long)machine(), pid,
             started(pid), (unsigned long long)mw_random64());
}

/* ---- scripts of a group ---- */

mw_buf *mwr_group_script(mw_sub *s, mwr_script script, size_t more, mwr_on_reply *reply, void *cookie,
                         int depth) {
    mw_buf *b = mwr_command(s->conn->client, 12 + more, reply, cookie, depth);
    mwr_write_text(b, "EVALSHA");
    mwr_write(b, mwr_script_sha(script), 40);
    mwr_write_text(b, "5");
    mwr_write_text(b, s->channel->name);
    mwr_write_text(b, s->key_record);
    mwr_write_text(b, s->key_tries);
    mwr_write_text(b, s->key_retries);
    mwr_write_text(b, s->key_delayed);
    mwr_write_text(b, s->group);
    mwr_write_text(b, s->row);
    mwr_write_text(b, s->token);
    mwr_write_text(b, s->consumer);
    return b;
}

static const char *words(mwr_trouble what) {
    switch (what) {
    case MWR_NO_PLACE: return "cannot keep a place in the group";
    case MWR_NO_GROUP: return "cannot make the group";
    case MWR_NO_READ: return "cannot read";
    case MWR_NO_TAKE: return "cannot take what is pending";
    }
    return "";
}

void mwr_works(mw_sub *s, mwr_trouble what) { s->refused &= ~(unsigned)what; }

void mwr_complain(mw_sub *s, mwr_trouble what, const mw_error *e) {
    if (s->refused & what) return;
    s->refused |= what;
    mw_log_begin(MW_ERROR, words(what));
    mw_log_text("channel", s->channel->name);
    mw_log_text("group", s->group);
    mw_log_text("error", e->text);
    mw_log_end();
}

void mwr_gap(mw_sub *s) {
    enum { QUIET_MS = 60000 };
    uint64_t now = mw_loop_real_ms(s->conn->loop);
    if (s->gap_said && now - s->gap_said < QUIET_MS) return;
    s->gap_said = now;
    mw_log_begin(MW_WARN, "entries that we have were not pending any more; they are settled all the same "
                          "(XGROUP DESTROY, XGROUP DELCONSUMER, or an XACK of another program?)");
    mw_log_text("channel", s->channel->name);
    mw_log_text("group", s->group);
    mw_log_end();
}

/* ---- losing it ---- */

void mwr_fenced(mw_sub *s) {
    if (s->state == MWR_LEAVING) return;
    mwr_recover_stop(s);
    for (uint32_t i = 0; i < s->flight_capacity; i++)
        if (s->flights[i].round) mwr_flight_end(s, &s->flights[i]);
    s->round++;
    s->whole = false;
    s->state = MWR_JOINING;
    s->reader_known = 0;
    s->conn->host->fence(s->source, MW_UNIT_ALL);
    mwr_tick_soon(s);
}

/* What was being claimed may be ours by now without our knowing: it is looked for again. */
void mwr_sub_lost(mw_sub *s) {
    s->depth.known = false;
    mw_timer_stop(&s->tick);
    mwr_recover_stop(s);
    s->whole = false;
    if (s->state != MWR_LEAVING) s->state = MWR_JOINING;
}

void mwr_sub_connected(mw_sub *s) { mwr_tick_soon(s); }

/* ---- the tick ---- */

static void tick(mw_timer *t);

static void tick_in(mw_sub *s, int64_t ms) {
    if (s->state == MWR_LEAVING) return;
    mw_timer_start_real(s->conn->loop, &s->tick, ms, tick);
}

void mwr_tick_soon(mw_sub *s) {
    if (!s->ticking) tick_in(s, 0);
}

static int64_t tick_every(const mw_sub *s) {
    int64_t ms = s->lease_ms / 4;
    return ms > TICK_MS ? TICK_MS : ms < TICK_LEAST_MS ? TICK_LEAST_MS : ms;
}

/* Tokens on record whose process is gone from this machine. true: there is one that the server was not told
 * of. */
static bool find_dead(mw_sub *s, const mwr_unit *u, const mwr_node *record) {
    bool found = false;
    size_t before = s->dead.len;
    s->dead.len = 0;
    const mwr_node *n = record ? record + 1 : NULL;
    for (uint32_t i = 0; record && record->type == MWR_ARRAY && i + 1 < record->count; i += 2) {
        size_t name_len, len;
        const char *name = mwr_text(u, n, &name_len);
        const mwr_node *value = n + n->span;
        const char *text = mwr_text(u, value, &len);
        n = value + value->span;
        bool member =
            (name_len > 2 && memcmp(name, "m:", 2) == 0) || (name_len == 4 && memcmp(name, "lead", 4) == 0);
        char token[sizeof s->token];
        if (!member || len >= sizeof token) continue;
        memcpy(token, text, len);
        token[len] = 0;
        if (strcmp(token, s->token) == 0 || !is_dead(token)) continue;
        mw_buf_add(&s->dead, token, len + 1);
        found = true;
    }
    return found && !before;
}

static void read_depth(mw_sub *s, const mwr_unit *u, const mwr_node *r) {
    int64_t now = mwr_number(u, mwr_child(r, 1)), retries = mwr_number(u, mwr_child(r, 6));
    int64_t pending = mwr_number(u, mwr_child(r, 9)), ready = mwr_number(u, mwr_child(r, 10));
    int64_t retry_due = mwr_number(u, mwr_child(r, 5)), delayed_due = mwr_number(u, mwr_child(r, 7));
    size_t len;
    mwr_id oldest = {0};
    const char *text = mwr_text(u, mwr_child(r, 11), &len);
    mwr_id_read(text, len, &oldest);
    int64_t next = retry_due && (!delayed_due || retry_due < delayed_due) ? retry_due : delayed_due;
    s->depth = (mw_depth){.ready = ready > 0 ? (uint64_t)ready : 0,
                          .delayed = (uint64_t)(retries + mwr_number(u, mwr_child(r, 8))),
                          .unsettled = (uint64_t)(pending > retries ? pending - retries : 0),
                          .oldest_ms = (int64_t)oldest.ms,
                          .next_due_ms = next,
                          .known = ready >= 0};
    s->depth_at = mw_loop_real_ms(s->conn->loop);
    if (retry_due) mwr_due_at(s, retry_due > now ? retry_due - now : 0);
    if (delayed_due && delayed_due - now < tick_every(s))
        tick_in(s, delayed_due > now ? delayed_due - now : 0);
}

static void killed(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner, (void)more;
    mw_sub *s = cookie;
    if (s->conn->closing || s->state != MWR_RECOVERING) return;
    if (e && u && strstr(e->text, "No such client") == NULL) {
        mw_log_begin(MW_WARN, "cannot end the reader of the former leader");
        mw_log_text("error", e->text);
        mw_log_end();
    }
    mwr_recover(s);
}

/* What a former leader's reader still asks for must not be handed to it any more, before we look at what is
 * pending: what it got after that nobody would see. */
static void take_lead(mw_sub *s, int64_t former) {
    s->state = MWR_RECOVERING;
    mwr_recover_stop(s);
    if (!former || former == mwr_client_id(s->reader)) {
        mwr_recover(s);
        return;
    }
    mw_buf *b = mwr_command(s->conn->client, 4, killed, s, 0);
    mwr_write_text(b, "CLIENT");
    mwr_write_text(b, "KILL");
    mwr_write_text(b, "ID");
    mwr_write_number(b, former);
    mwr_flush(s->conn->client);
}

static void became(mw_sub *s, const mwr_unit *u, const mwr_node *r, int64_t reader) {
    const mwr_node *state = mwr_child(r, 0);
    bool acting = s->state == MWR_RECOVERING || s->state == MWR_READING;
    bool took = mwr_number(u, mwr_child(r, 2)) == 1, joined = mwr_is(u, state, "joined");
    if (mwr_is(u, state, "standby")) {
        if (acting || s->flight_count) mwr_fenced(s);
        s->state = MWR_STANDBY;
        s->whole = false;
        return;
    }
    if ((took || joined) && s->flight_count) { /* it was somebody else's in between */
        mwr_fenced(s);
        acting = false;
    }
    if (!reader || reader != mwr_client_id(s->reader) || !mwr_client_ready(s->reader)) {
        s->state = MWR_JOINING; /* it comes back when the reader does */
        return;
    }
    int64_t former = took ? mwr_number(u, mwr_child(r, 3)) : s->reader_known;
    bool same = s->reader_known == reader;
    s->reader_known = reader;
    if (!acting || !same || took || joined)
        take_lead(s, former);
    else if (s->state == MWR_READING && mwr_number(u, mwr_child(r, 4)))
        mwr_recover(s); /* there are entries of somebody who is gone */
}

/* Somebody has our name: our predecessor, who is gone, or a process beside us. */
static void other_name(mw_sub *s, const mwr_unit *u, const mwr_node *owner) {
    char token[sizeof s->token];
    size_t len;
    const char *text = mwr_text(u, owner, &len);
    snprintf(token, sizeof token, "%.*s", (int)len, text);
    s->dead.len = 0;
    if (is_dead(token))
        mw_buf_add(&s->dead, token, strlen(token) + 1);
    else if (s->name_tries++ < TAKEN_MAX)
        set_names(s);
}

static void ticked(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner, (void)more;
    mw_sub *s = ((void **)cookie)[0];
    int64_t reader = (int64_t)(intptr_t)((void **)cookie)[1];
    free(cookie);
    s->ticking = false;
    if (s->conn->closing || s->state == MWR_LEAVING) return;
    if (e) {
        if (u) mwr_complain(s, MWR_NO_PLACE, e);
        if (mwr_client_ready(s->conn->client)) tick_in(s, TICK_MS);
        return;
    }
    mwr_works(s, MWR_NO_PLACE);
    tick_in(s, tick_every(s));
    const mwr_node *r = u->node, *state = mwr_child(r, 0);
    if (mwr_is(u, state, "nogroup")) {
        mwr_group_make(s);
    } else if (mwr_is(u, state, "taken")) {
        other_name(s, u, mwr_child(r, 2));
        tick_in(s, 0);
    } else {
        if (!s->crumbs) s->crumbs = mwr_crumbs_open(s);
        read_depth(s, u, r);
        if (find_dead(s, u, mwr_child(r, 12))) tick_in(s, 0);
        became(s, u, r, reader);
        int64_t made = mwr_number(u, mwr_child(r, 15));
        if (made != s->made) mwr_claim_soon(s);
        s->made = made;
        mwr_mark_begun(s);
    }
}

static void tick(mw_timer *t) {
    mw_sub *s = mw_container_of(t, mw_sub, tick);
    mw_conn *c = s->conn;
    if (s->ticking || !mwr_client_ready(c->client)) return;
    s->ticking = true;
    int64_t reader = mwr_client_ready(s->reader) ? mwr_client_id(s->reader) : 0;
    void **cookie = mwr_alloc(2 * sizeof *cookie);
    cookie[0] = s;
    cookie[1] = (void *)(intptr_t)reader;
    size_t dead = 0;
    for (size_t i = 0; i < s->dead.len; i += strlen(s->dead.data + i) + 1) dead++;
    mw_buf *b = mwr_group_script(s, MWR_TICK, 5 + dead, ticked, cookie, 0);
    mwr_write_text(b, s->ordered ? "1" : "0");
    mwr_write_number(b, s->lease_ms);
    mwr_write_number(b, reader);
    mwr_write_text(b, s->channel->trim_acked || s->channel->delete_acked ? "1" : "0");
    mwr_write_number(b, (int64_t)s->channel->trim_count);
    for (size_t i = 0; i < s->dead.len; i += strlen(s->dead.data + i) + 1)
        mwr_write_text(b, s->dead.data + i);
    mwr_flush(c->client);
}

bool mwr_depth(mw_sub *s, mw_depth *out) {
    *out = s->depth;
    if (mw_loop_real_ms(s->conn->loop) - s->depth_at > TICK_LEAST_MS) mwr_tick_soon(s);
    return true;
}

/* ---- begin and end ---- */

mw_sub *mwr_subscribe(mw_conn *c, const mw_subscription *want, mw_error *e) {
    mw_sub *s = mwr_alloc(sizeof *s);
    s->conn = c;
    s->source = want->source;
    s->channel = mwr_channel_of(c, want->channel);
    s->ordered = want->order != MW_ORDER_NONE;
    s->from_start = want->from_start;
    s->lease_ms = want->lease_ms;
    s->round = 1;
    s->group = strdup(want->group);
    s->key_record = mwr_key_beside(want->channel, "group", want->group);
    s->key_tries = mwr_key_beside(want->channel, "tries", want->group);
    s->key_retries = mwr_key_beside(want->channel, "retries", want->group);
    s->key_delayed = mwr_key_beside(want->channel, "delayed", "");
    if (!s->group) abort();
    set_names(s);
    set_token(s);
    s->next = c->subs;
    c->subs = s;
    if (mwr_reader_open(s, e)) {
        mwr_sub_free(s);
        return NULL;
    }
    return s;
}

void mwr_sub_free(mw_sub *s) {
    for (mw_sub **at = &s->conn->subs; *at; at = &(*at)->next) {
        if (*at != s) continue;
        *at = s->next;
        break;
    }
    mw_timer_stop(&s->tick);
    mw_timer_stop(&s->due);
    mw_timer_stop(&s->reread);
    mwr_client_close(s->reader);
    mwr_crumbs_close(s->crumbs);
    mw_incoming *in = (mw_incoming *)(void *)s->batch.data;
    for (size_t i = 0; i < s->batch.len / sizeof *in; i++) mw_message_unref(in[i].msg);
    mw_buf_free(&s->batch);
    mw_buf_free(&s->dead);
    mw_buf_free(&s->todo);
    mw_buf_free(&s->begun);
    free(s->flights);
    free(s->group);
    free(s->key_record);
    free(s->key_tries);
    free(s->key_retries);
    free(s->key_delayed);
    free(s);
}

static void left(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)owner, (void)u, (void)more, (void)e;
    mw_sub *s = cookie;
    mw_conn *c = s->conn;
    mw_source *source = s->source;
    if (c->closing) return;
    mwr_sub_free(s);
    c->host->closed(source);
}

/* Whoever comes next need not wait for the lease. It is no matter when the server does not hear of it.
 * Replies come in order: when this one does, nobody uses s any more. */
void mwr_unsubscribe(mw_sub *s) {
    s->state = MWR_LEAVING;
    mw_timer_stop(&s->tick);
    mw_timer_stop(&s->due);
    mw_timer_stop(&s->reread);
    mwr_client_close(s->reader);
    s->reader = NULL;
    if (!mwr_client_ready(s->conn->client) && !mwr_client_waiting(s->conn->client)) {
        left(NULL, s, NULL, false, NULL);
        return;
    }
    mwr_group_script(s, MWR_LEAVE, 0, left, s, 0);
    mwr_flush(s->conn->client);
}
