/* client.h - one connection to a Redis server: logs in, sends commands in a pipeline, and gives each reply to
 * who asked. It stays, and connects again by itself: what was sent and not answered when the connection broke
 * is answered with an error, what was not sent yet waits for the next one, up to its time. Loop's thread. */
#pragma once
#include "loop/loop.h"
#include "base/url.h"
#include "redis/resp.h"
#include "net/stream.h"

typedef struct mwr_client mwr_client;
typedef struct mwr_sentinel mwr_sentinel;

typedef struct mwr_target { /* where to, and as whom; made from a URL, whose texts it uses */
    char *hosts;            /* as mw_stream_options.hosts */
    const char *user, *password;
    const char *sentinel; /* the name of the master, when the hosts are sentinels */
    const char *sentinel_user, *sentinel_password;
    const char *consumer;   /* instead of the host's name */
    int64_t db, timeout_ms; /* timeout: of a command */
    size_t max_message;     /* bytes: of a body; about what one piece of an answer may take */
    mw_tls_options tls;
} mwr_target;

int mwr_target_from_url(mwr_target *t, const mw_url *u, mw_error *e);
void mwr_target_free(mwr_target *t);

/* The reply to a command. e: it failed; then u is the server's error, or NULL when there was none. A reply
 * that was asked for in units comes in several calls, all but the last with `more`. */
typedef void mwr_on_reply(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e);

typedef struct mwr_client_events {
    void (*ready)(void *owner);                     /* logged in: commands reach the server */
    void (*lost)(void *owner, const mw_error *why); /* not ready any more, or still not */
    void (*full)(void *owner, bool full);           /* optional: the server does not read; it does again */
} mwr_client_events;

enum { MWR_SCRIPTS_MOST = 24 };

typedef struct mwr_client_options {
    const mwr_target *target; /* outlives the client */
    mwr_sentinel *sentinel;   /* NULL: the target's hosts are the servers */
    const char *name;         /* CLIENT SETNAME; static */
    int port;                 /* where the URL names none */
    const char *const *
        scripts; /* NULL, or up to MWR_SCRIPTS_MOST: loads them, and asks whether it is a node of a cluster */
    /* Optional: whether to go where a key of this slot lies. Otherwise the command fails, and that is all. */
    bool (*follow)(void *owner, unsigned slot);
    bool any_role;  /* a replica will do */
    bool on_trial;  /* the backoff begins anew only with mwr_client_established */
    bool impatient; /* answers commands at once while it is not ready, instead of keeping them */
} mwr_client_options;

mwr_client *mwr_client_open(mw_loop *loop, const mwr_client_options *o, const mwr_client_events *events,
                            void *owner, mw_error *e);
void mwr_client_close(mwr_client *c); /* what was not answered fails; NULL is fine */

/* Begins a command of so many arguments, which the caller writes into what it returns. `depth`: how deep the
 * units of its reply lie. */
mw_buf *mwr_command(mwr_client *c, size_t arguments, mwr_on_reply *reply, void *cookie, int depth);
mw_buf *mwr_command_within(mwr_client *c, size_t arguments, mwr_on_reply *reply, void *cookie, int depth,
                           int64_t timeout_ms);
void mwr_flush(mwr_client *c); /* what was written since: it leaves at the end of the turn */

bool mwr_client_ready(const mwr_client *c);
int64_t mwr_client_id(const mwr_client *c); /* the server's number for this connection */
bool mwr_client_clustered(const mwr_client *c);
bool mwr_client_unsent(const mwr_client *c);    /* in a failing reply: the server never got this command */
size_t mwr_client_waiting(const mwr_client *c); /* commands not answered */
void mwr_client_drop(mwr_client *c, const mw_error *why); /* as if the connection were lost */
void mwr_client_redirect(mwr_client *c, const char *hosts);
void mwr_client_established(mwr_client *c);
void mwr_client_lead_nowhere(mwr_client *c,
                             const mw_error *why); /* nobody says where to connect to: `lost` */
/* false: there is nothing to see, for a sentinel has not said where to */
bool mwr_client_look(const mwr_client *c, const char *name, mw_peer *out);

/* What an error reply means: its text, and whether the same may succeed later. */
void mwr_error_of(const char *text, size_t len, mw_error *e);

/* ---- sentinel.c: who is the master ---- */
mwr_sentinel *mwr_sentinel_new(mw_loop *loop, const mwr_target *t, mw_error *e);
void mwr_sentinel_free(mwr_sentinel *s); /* NULL is fine */
void mwr_sentinel_watch(mwr_sentinel *s, mwr_client *c);
void mwr_sentinel_forget(mwr_sentinel *s, mwr_client *c);
void mwr_sentinel_ask(mwr_sentinel *s);                      /* a client lost its server */
bool mwr_sentinel_look(const mwr_sentinel *s, mw_peer *out); /* its connection; NULL is fine */
