#include "core/link.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/nearest.h"
#include "core/host.h"

struct mw_link {
    mw_loop *loop;
    const mw_driver *driver;
    const mw_driver *face; /* whom it stands for, or NULL */
    mw_conn *conn;
    char *given, *shown;
    mw_url url;
    mw_buf publications; /* of mw_publication */
    mw_buf records;      /* of mw_dedupe; the keys stand in `keys` until the flush */
    mw_buf keys;
    mw_deferred flush;
    bool been_up;
    mw_error absent; /* why it could not be reached, while it never was */
};

static int unknown_scheme(const char *scheme, mw_error *e) {
    const char *names[32];
    size_t n = 0;
    for (int i = 0; mw_drivers[i]; i++)
        for (int k = 0; mw_drivers[i]->schemes[k] && n < 31; k++) names[n++] = mw_drivers[i]->schemes[k];
    names[n] = NULL;
    const char *near = mw_nearest(scheme, names);
    if (near)
        return mw_fail(e, MW_EUSAGE, false, "unknown broker \"%s:\"; did you mean \"%s:\"?", scheme, near);
    mw_buf list = {0};
    for (size_t i = 0; i < n; i++) mw_buf_printf(&list, "%s%s:", i ? ", " : "", names[i]);
    mw_fail(e, MW_EUSAGE, false, "unknown broker \"%s:\"; this build has %.*s", scheme, (int)list.len,
            list.data);
    mw_buf_free(&list);
    return -1;
}

mw_link *mw_link_new(mw_loop *loop, const char *url, mw_error *e) {
    mw_link *l = calloc(1, sizeof *l);
    if (!l) abort();
    l->loop = loop;
    l->given = strdup(url);
    l->shown = mw_url_shown(url);
    if (mw_url_parse(&l->url, url, e) == 0) {
        l->driver = mw_driver_find(l->url.scheme);
        if (!l->driver)
            unknown_scheme(l->url.scheme, e);
        else if (!l->driver->check || l->driver->check(&l->url, e) == 0)
            return l;
    }
    mw_link_close(l);
    return NULL;
}

int mw_link_check(const mw_link *l, const mw_subscription *s, mw_error *e) {
    return l->driver->check_source ? l->driver->check_source(&l->url, s, e) : 0;
}

int mw_link_open(mw_link *l, mw_error *e) {
    if (!l->conn) l->conn = l->driver->open(l->loop, &l->url, l, &mw_core_host, e);
    return l->conn ? 0 : -1;
}

void mw_link_close(mw_link *l) {
    if (!l) return;
    if (l->conn) {
        mw_link_flush(l);
        l->driver->close(l->conn);
    }
    mw_deferred_cancel(l->loop, &l->flush);
    mw_buf_free(&l->publications);
    mw_buf_free(&l->records);
    mw_buf_free(&l->keys);
    mw_url_free(&l->url);
    free(l->given);
    free(l->shown);
    free(l);
}

const mw_driver *mw_link_driver(const mw_link *l) { return l->driver; }
void mw_link_stand_for(mw_link *l, const mw_driver *other) { l->face = other; }
const mw_driver *mw_link_face(const mw_link *l) { return l->face ? l->face : l->driver; }
mw_conn *mw_link_conn(const mw_link *l) { return l->conn; }
const char *mw_link_key(const mw_link *l) { return l->given; }
const char *mw_link_url(const mw_link *l) { return l->shown; }
mw_loop *mw_link_loop(const mw_link *l) { return l->loop; }

static void flush_later(mw_deferred *d) { mw_link_flush(mw_container_of(d, mw_link, flush)); }

void mw_link_publish(mw_link *l, const mw_publication *p, mw_confirm *confirm) {
    mw_publication copy = *p;
    copy.cookie = confirm;
    mw_buf_add(&l->publications, &copy, sizeof copy);
    mw_defer(l->loop, &l->flush, flush_later);
}

static void record(mw_link *l, mw_dedupe_op op, const char *key, size_t len, int64_t ttl_ms, void *cookie) {
    mw_dedupe r = {
        .op = op, .key = (const char *)l->keys.len, .key_len = len, .ttl_ms = ttl_ms, .cookie = cookie};
    mw_buf_add(&l->keys, key, len); /* the buffer may move: until the flush `key` is an offset into it */
    mw_buf_add(&l->records, &r, sizeof r);
    mw_defer(l->loop, &l->flush, flush_later);
}

void mw_link_claim(mw_link *l, const char *key, size_t len, int64_t lease_ms, mw_claimant *c) {
    record(l, MW_DEDUPE_CLAIM, key, len, lease_ms, c);
}

void mw_link_done(mw_link *l, const char *key, size_t len, int64_t ttl_ms) {
    record(l, MW_DEDUPE_DONE, key, len, ttl_ms, NULL);
}

void mw_link_release(mw_link *l, const char *key, size_t len) {
    record(l, MW_DEDUPE_RELEASE, key, len, 0, NULL);
}

void mw_link_flush(mw_link *l) {
    mw_deferred_cancel(l->loop, &l->flush);
    size_t records = l->records.len / sizeof(mw_dedupe);
    if (records) {
        mw_dedupe *r = (mw_dedupe *)(void *)l->records.data;
        for (size_t i = 0; i < records; i++) r[i].key = l->keys.data + (size_t)r[i].key;
        l->driver->dedupe(l->conn, r, records);
        l->records.len = l->keys.len = 0;
    }
    if (l->publications.len) {
        l->driver->publish(l->conn, (mw_publication *)(void *)l->publications.data,
                           l->publications.len / sizeof(mw_publication));
        l->publications.len = 0;
    }
}

void mw_link_browse(mw_link *l, mw_browse b, mw_browser *who) {
    b.cookie = who;
    l->driver->browse(l->conn, &b);
}

void mw_link_remove(mw_link *l, mw_removal r, mw_browser *who) {
    r.cookie = who;
    l->driver->remove(l->conn, &r);
}

void mw_link_groups(mw_link *l, const char *channel, mw_browser *who) {
    l->driver->groups(l->conn, channel, who);
}

void mw_link_remove_group(mw_link *l, const char *channel, const char *group, bool force, mw_browser *who) {
    l->driver->remove_group(l->conn, channel, group, force, who);
}

void mw_link_topology(mw_link *l, const char *request, size_t len, mw_planner *who) {
    l->driver->topology(l->conn, request, len, who);
}

void mw_link_request(mw_link *l, const mw_publication *p, int64_t timeout_ms, mw_asker *who) {
    mw_publication copy = *p;
    copy.cookie = who;
    l->driver->request(l->conn, &copy, timeout_ms);
}

/* ---- the driver's answers ---- */

void mw_link_published(mw_link *l, void *cookie, const mw_error *e) {
    (void)l;
    mw_confirm *c = cookie;
    if (c) c->done(c, e);
}

void mw_link_claimed(mw_link *l, void *cookie, mw_claim claim, const mw_error *e) {
    (void)l;
    mw_claimant *c = cookie;
    c->answer(c, claim, e);
}

void mw_link_browsed(mw_link *l, void *cookie, const mw_entry *entries, size_t count, mw_position last,
                     const mw_error *e) {
    (void)l;
    mw_browser *b = cookie;
    b->browsed(b, entries, count, last, e);
}

void mw_link_removed(mw_link *l, void *cookie, size_t count, const mw_error *e) {
    (void)l;
    mw_browser *b = cookie;
    b->removed(b, count, e);
}

void mw_link_grouped(mw_link *l, void *cookie, const mw_group_info *groups, size_t count, const mw_error *e) {
    (void)l;
    mw_browser *b = cookie;
    b->grouped(b, groups, count, e);
}

void mw_link_topology_answer(mw_link *l, void *cookie, const char *answer, size_t len, const mw_error *e) {
    (void)l;
    mw_planner *p = cookie;
    p->answered(p, answer, len, e);
}

void mw_link_replied(mw_link *l, void *cookie, mw_message *m, const mw_error *e) {
    (void)l;
    mw_asker *a = cookie;
    a->replied(a, m, e);
}

void mw_link_state(mw_link *l, bool up, const mw_error *why) {
    mw_log_begin(up ? MW_INFO : MW_WARN, up           ? "connected"
                                         : l->been_up ? "connection lost"
                                                      : "cannot connect; trying again");
    mw_log_text("broker", l->shown);
    if (why) mw_log_text("error", why->text);
    mw_log_end();
    l->been_up = l->been_up || up;
    if (!up && why) l->absent = *why;
}

const char *mw_link_absent(const mw_link *l) { return !l->been_up && l->absent.code ? l->absent.text : NULL; }

bool mw_link_hopeless(const mw_link *l) {
    return mw_link_absent(l) && l->absent.code == MW_EUSAGE && !l->absent.retryable;
}
