/* sentinel.c - asks the sentinels who the master is, when a client has none or lost it, and tells all clients
 * of the connection. Whether it really is the master is checked by each client when it logs in (ROLE). When
 * no sentinel helps, the clients are told why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "redis/client.h"

enum { AGAIN_MS = 250 };

struct mwr_sentinel {
    mw_loop *loop;
    const mwr_target *target;
    mwr_target login; /* of the sentinels themselves */
    mwr_client *client;
    mw_buf watching;  /* of mwr_client * */
    char master[256]; /* host:port, as last told */
    bool asking;
    mw_timer again;
};

static size_t count_of(const mwr_sentinel *s) { return s->watching.len / sizeof(mwr_client *); }
static mwr_client *at(const mwr_sentinel *s, size_t i) {
    return ((mwr_client **)(void *)s->watching.data)[i];
}

static void ask(mwr_sentinel *s);

static void ask_again(mw_timer *t) { ask(mw_container_of(t, mwr_sentinel, again)); }

static bool all_well(const mwr_sentinel *s) {
    for (size_t i = 0; i < count_of(s); i++)
        if (!mwr_client_ready(at(s, i))) return false;
    return true;
}

/* This one is of no help: its connection is given up for that reason, and another one is asked. */
static void give_up(mwr_sentinel *s, const char *because, const char *what) {
    mw_error why;
    mw_peer peer = {0};
    mwr_client_look(s->client, "", &peer);
    mw_fail(&why, MW_EUSAGE, true, "sentinel %s %s%.300s", peer.address, because, what);
    mwr_client_drop(s->client, &why);
}

/* ---- a name that it does not know ---- */

static void add_name(mw_buf *names, const mwr_unit *u, const mwr_node *master) {
    const mwr_node *n = master->type == MWR_ARRAY ? master + 1 : NULL;
    for (uint32_t i = 0; n && i + 1 < master->count; i += 2) {
        const mwr_node *value = n + n->span;
        size_t len;
        if (mwr_is(u, n, "name")) {
            const char *text = mwr_text(u, value, &len);
            mw_buf_printf(names, "%s%.*s", names->len ? ", " : "", (int)(len < 60 ? len : 60), text);
        }
        n = value + value->span;
    }
}

static void named(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    mwr_sentinel *s = owner;
    mw_buf names = {0}, text = {0};
    (void)cookie, (void)more;
    s->asking = false;
    if (e && !u) return; /* lost: that is told */
    const mwr_node *n = u->node + 1;
    for (uint32_t i = 0; !e && u->node->type == MWR_ARRAY && i < u->node->count; i++, n += n->span)
        if (names.len < 200) add_name(&names, u, n);
    mw_buf_printf(&text, "%.60s; it knows: %.*s", s->target->sentinel, names.len ? (int)names.len : 4,
                  names.len ? names.data : "none");
    mw_buf_add(&text, "", 1);
    give_up(s, "does not know a master named ", text.data);
    mw_buf_free(&names);
    mw_buf_free(&text);
}

static void ask_names(mwr_sentinel *s) {
    s->asking = true;
    mw_buf *b = mwr_command(s->client, 2, named, NULL, 0);
    mwr_write_text(b, "SENTINEL");
    mwr_write_text(b, "MASTERS");
    mwr_flush(s->client);
}

/* ---- where the master is ---- */

static void go_there(mwr_sentinel *s, const mwr_unit *u, const mwr_node *host, const mwr_node *port) {
    size_t host_len, port_len;
    const char *h = mwr_text(u, host, &host_len), *p = mwr_text(u, port, &port_len);
    bool v6 = memchr(h, ':', host_len) != NULL;
    snprintf(s->master, sizeof s->master, "%s%.*s%s:%.*s", v6 ? "[" : "", (int)host_len, h, v6 ? "]" : "",
             (int)port_len, p);
    mwr_client_established(s->client);
    for (size_t i = 0; i < count_of(s); i++)
        if (!mwr_client_ready(at(s, i))) mwr_client_redirect(at(s, i), s->master);
}

static void told(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    mwr_sentinel *s = owner;
    (void)cookie, (void)more;
    s->asking = false;
    if (e && !u) return; /* lost: that is told */
    const mwr_node *host = e ? NULL : mwr_child(u->node, 0), *port = host ? mwr_child(u->node, 1) : NULL;
    if (host && port)
        go_there(s, u, host, port);
    else if (e)
        give_up(s, "does not say where the master is: ", e->text);
    else
        ask_names(s);
    if (!all_well(s)) mw_timer_start_real(s->loop, &s->again, AGAIN_MS, ask_again);
}

static void ask(mwr_sentinel *s) {
    if (s->asking || !mwr_client_ready(s->client)) return;
    s->asking = true;
    mw_buf *b = mwr_command(s->client, 3, told, NULL, 0);
    mwr_write_text(b, "SENTINEL");
    mwr_write_text(b, "get-master-addr-by-name");
    mwr_write_text(b, s->target->sentinel);
    mwr_flush(s->client);
}

void mwr_sentinel_ask(mwr_sentinel *s) {
    if (!mw_timer_running(&s->again)) mw_timer_start_real(s->loop, &s->again, 1, ask_again);
}

/* ---- its connection ---- */

static void ready(void *owner) { mwr_sentinel_ask(owner); }

/* Clients that stand where the master was look for it there as long as no sentinel tells another place: they
 * have troubles of their own to tell. */
static void lost(void *owner, const mw_error *why) {
    mwr_sentinel *s = owner;
    s->asking = false;
    for (size_t i = count_of(s); i-- > 0 && !*s->master;) /* one that is told may go */
        if (i < count_of(s) && !mwr_client_ready(at(s, i))) mwr_client_lead_nowhere(at(s, i), why);
}

mwr_sentinel *mwr_sentinel_new(mw_loop *loop, const mwr_target *t, mw_error *e) {
    static const mwr_client_events EVENTS = {ready, lost};
    mwr_sentinel *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->loop = loop;
    s->target = t;
    s->login = *t;
    s->login.user = t->sentinel_user;
    s->login.password = t->sentinel_password;
    s->login.db = -1;
    mwr_client_options o = {
        .target = &s->login, .name = "moonwire-sentinel", .port = 26379, .any_role = true, .on_trial = true};
    s->client = mwr_client_open(loop, &o, &EVENTS, s, e);
    if (s->client) return s;
    free(s);
    return NULL;
}

void mwr_sentinel_free(mwr_sentinel *s) {
    if (!s) return;
    mw_timer_stop(&s->again);
    mwr_client_close(s->client);
    mw_buf_free(&s->watching);
    free(s);
}

void mwr_sentinel_watch(mwr_sentinel *s, mwr_client *c) {
    mw_buf_add(&s->watching, &c, sizeof c);
    if (*s->master) mwr_client_redirect(c, s->master);
    mwr_sentinel_ask(s);
}

void mwr_sentinel_forget(mwr_sentinel *s, mwr_client *c) {
    mwr_client **list = (mwr_client **)(void *)s->watching.data;
    for (size_t i = 0; i < count_of(s); i++) {
        if (list[i] != c) continue;
        list[i] = list[count_of(s) - 1];
        s->watching.len -= sizeof c;
        return;
    }
}

bool mwr_sentinel_look(const mwr_sentinel *s, mw_peer *out) {
    return s && mwr_client_look(s->client, "sentinel", out);
}
