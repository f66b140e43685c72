/* sentinel.c - asks the sentinels who the master is, when a client has none or lost it, and tells all clients
 * of the connection. Whether it really is the master is checked by each client when it logs in (ROLE). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/client.h"

enum { AGAIN_MS = 250, CLIENTS_MAX = 256 };

struct mwr_sentinel {
    mw_loop *loop;
    const mwr_target *target;
    mwr_target login; /* of the sentinels themselves */
    mwr_client *client;
    mwr_client *watching[CLIENTS_MAX];
    int count;
    char master[256]; /* host:port, as last told */
    bool asking;
    mw_timer again;
};

static void ask(mwr_sentinel *s);

static void ask_again(mw_timer *t) { ask(mw_container_of(t, mwr_sentinel, again)); }

static bool all_well(const mwr_sentinel *s) {
    for (int i = 0; i < s->count; i++)
        if (!mwr_client_ready(s->watching[i])) return false;
    return true;
}

static void told(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    mwr_sentinel *s = owner;
    (void)cookie, (void)more;
    s->asking = false;
    const mwr_node *host = !e && u ? mwr_child(u->node, 0) : NULL,
                   *port = host ? mwr_child(u->node, 1) : NULL;
    if (host && port) {
        size_t host_len, port_len;
        const char *h = mwr_text(u, host, &host_len), *p = mwr_text(u, port, &port_len);
        bool v6 = memchr(h, ':', host_len) != NULL;
        snprintf(s->master, sizeof s->master, "%s%.*s%s:%.*s", v6 ? "[" : "", (int)host_len, h, v6 ? "]" : "",
                 (int)port_len, p);
        for (int i = 0; i < s->count; i++)
            if (!mwr_client_ready(s->watching[i])) mwr_client_redirect(s->watching[i], s->master);
    } else if (!e) { /* this sentinel knows no such master: ask another */
        mw_error why;
        mw_fail(&why, MW_EUSAGE, true, "the sentinel does not know a master named %s", s->target->sentinel);
        mwr_client_drop(s->client, &why);
    }
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

static void ready(void *owner) { mwr_sentinel_ask(owner); }

static void lost(void *owner, const mw_error *why) {
    mwr_sentinel *s = owner;
    (void)why;
    s->asking = false;
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
        .target = &s->login, .name = "moonwire-sentinel", .port = 26379, .any_role = true};
    s->client = mwr_client_open(loop, &o, &EVENTS, s, e);
    if (s->client) return s;
    free(s);
    return NULL;
}

void mwr_sentinel_free(mwr_sentinel *s) {
    if (!s) return;
    mw_timer_stop(&s->again);
    mwr_client_close(s->client);
    free(s);
}

void mwr_sentinel_watch(mwr_sentinel *s, mwr_client *c) {
    if (s->count < CLIENTS_MAX) s->watching[s->count++] = c;
    if (*s->master) mwr_client_redirect(c, s->master);
    mwr_sentinel_ask(s);
}

void mwr_sentinel_forget(mwr_sentinel *s, mwr_client *c) {
    for (int i = 0; i < s->count; i++)
        if (s->watching[i] == c) s->watching[i--] = s->watching[--s->count];
}
