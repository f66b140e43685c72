/* link.h - one open connection, as the core sees it: the driver behind it, and what is gathered for it during
 * a turn of the loop. Publications and dedupe records are handed to the driver in batches, in the order they
 * were given. */
#pragma once
#include "core/driver.h"

typedef struct mw_confirm mw_confirm;
struct mw_confirm { /* embed it; called once the broker has the message, or refused it */
    void (*done)(mw_confirm *c, const mw_error *e);
};

typedef struct mw_claimant mw_claimant;
struct mw_claimant {
    void (*answer)(mw_claimant *c, mw_claim claim, const mw_error *e);
};

typedef struct mw_browser mw_browser;
struct mw_browser {
    void (*browsed)(mw_browser *b, const mw_entry *entries, size_t count, mw_position last,
                    const mw_error *e);
    void (*removed)(mw_browser *b, size_t count, const mw_error *e);
    void (*grouped)(mw_browser *b, const mw_group_info *groups, size_t count, const mw_error *e);
};

typedef struct mw_planner mw_planner;
struct mw_planner {
    void (*answered)(mw_planner *p, const char *answer, size_t len, const mw_error *e);
};

typedef struct mw_asker mw_asker;
struct mw_asker { /* m: the reference passes to it */
    void (*replied)(mw_asker *a, mw_message *m, const mw_error *e);
};

/* Checks the address and finds its driver, without touching the broker. */
mw_link *mw_link_new(mw_loop *loop, const char *url, mw_error *e);
int mw_link_check(const mw_link *l, const mw_subscription *s, mw_error *e); /* likewise */
int mw_link_open(mw_link *l, mw_error *e);                                  /* twice is once */
void mw_link_close(mw_link *l); /* no pipeline uses it any more; NULL is fine */

const mw_driver *mw_link_driver(const mw_link *l);
/* In specs a memory broker stands for the project's own. What the own one cannot do must be refused there, too:
 * `face` is the driver whose capabilities count when settings and publishes are checked. */
void mw_link_stand_for(mw_link *l, const mw_driver *other);
const mw_driver *mw_link_face(const mw_link *l);
mw_conn *mw_link_conn(const mw_link *l);
const char *mw_link_key(const mw_link *l); /* the address as given */
const char *mw_link_url(const mw_link *l); /* without a password */
/* Why the broker could not be reached; NULL: it was, at some time, or nobody knows yet. */
const char *mw_link_absent(const mw_link *l);
bool mw_link_hopeless(const mw_link *l); /* absent, and that does not heal by itself */
mw_loop *mw_link_loop(const mw_link *l);

/* p->cookie is ignored: the answer goes to `confirm`. The message and channel live until then. */
void mw_link_publish(mw_link *l, const mw_publication *p, mw_confirm *confirm);
void mw_link_claim(mw_link *l, const char *key, size_t len, int64_t lease_ms, mw_claimant *c);
void mw_link_done(mw_link *l, const char *key, size_t len, int64_t ttl_ms);
void mw_link_release(mw_link *l, const char *key, size_t len);
void mw_link_flush(mw_link *l); /* now instead of at the end of the turn */

void mw_link_browse(mw_link *l, mw_browse b, mw_browser *who);
void mw_link_remove(mw_link *l, mw_removal r, mw_browser *who);
void mw_link_groups(mw_link *l, const char *channel, mw_browser *who);
void mw_link_remove_group(mw_link *l, const char *channel, const char *group, bool force, mw_browser *who);
void mw_link_topology(mw_link *l, const char *request, size_t len, mw_planner *who); /* the driver has it */
void mw_link_request(mw_link *l, const mw_publication *p, int64_t timeout_ms,
                     mw_asker *who); /* the driver has it */

extern const mw_host mw_core_host; /* pipeline.c: what every driver calls */
