/* target.c - the URL of a Redis server: redis://[user[:password]@]host[:port][,host:port...][/db][?options],
 * rediss:// for TLS, redis+unix:///path/of.sock?db=N. */
#include <stdlib.h>
#include <string.h>

#include "redis/client.h"

static const char *const OPTIONS[] = {"db",       "timeout",       "max_message",       "consumer",
                                      "sentinel", "sentinel_user", "sentinel_password", MW_TLS_OPTION_NAMES,
                                      NULL};

static char *copy(const char *text) {
    char *s = strdup(text);
    if (!s) abort();
    return s;
}

static const char *option(const mw_url *u, const char *name) {
    const char *value = mw_url_option(u, name);
    return value ? value : "";
}

static int database(mwr_target *t, const mw_url *u, mw_error *e) {
    char *end;
    if (mw_url_number(u, "db", 0, 1 << 20, &t->db, e)) return -1;
    if (!*u->path) return 0;
    long long db = strtoll(u->path, &end, 10);
    if (strchr(u->path, '@'))
        return mw_fail(e, MW_EUSAGE, false,
                       "after the host stands the number of the database, such as /0; in a password a / is "
                       "written %%2F");
    if (*end || db < 0 || db > 1 << 20)
        return mw_fail(e, MW_EUSAGE, false,
                       "\"/%s\": after the host stands the number of the database, such as /0", u->path);
    if (mw_url_option(u, "db") && t->db != db)
        return mw_fail(e, MW_EUSAGE, false, "two databases: /%s and db=%s", u->path, mw_url_option(u, "db"));
    t->db = db;
    return 0;
}

static int check_consumer(const char *name, mw_error *e) {
    for (const char *c = name; *c; c++)
        if (*c <= ' ') return mw_fail(e, MW_EUSAGE, false, "option consumer: no white space, please");
    return 0;
}

int mwr_target_from_url(mwr_target *t, const mw_url *u, mw_error *e) {
    *t = (mwr_target){.user = u->user, .password = u->password, .timeout_ms = 10000};
    if (mw_url_only(u, OPTIONS, e)) return -1;
    bool local = strcmp(u->scheme, "redis+unix") == 0;
    t->tls.on = strcmp(u->scheme, "rediss") == 0;
    if (mw_tls_from_url(u, &t->tls, e)) return -1;
    if (mw_url_number(u, "timeout", 1, 3600, &t->timeout_ms, e)) return -1;
    if (mw_url_option(u, "timeout")) t->timeout_ms *= 1000;
    int64_t most = 64;
    if (mw_url_number(u, "max_message", 1, 512, &most, e)) return -1;
    t->max_message = (size_t)most << 20;
    if (*t->user && !*t->password) { /* redis://secret@host: what people write for a server without users */
        t->password = t->user;
        t->user = "";
    }
    t->consumer = option(u, "consumer");
    t->sentinel = option(u, "sentinel");
    t->sentinel_user = option(u, "sentinel_user");
    t->sentinel_password = option(u, "sentinel_password");
    if (check_consumer(t->consumer, e)) return -1;
    if (!local) {
        if (database(t, u, e)) return -1;
        t->hosts = copy(*u->hosts ? u->hosts : "127.0.0.1");
        return 0;
    }
    if (*u->hosts || !*u->path)
        return mw_fail(e, MW_EUSAGE, false,
                       "redis+unix needs the path of a socket: redis+unix:///run/redis.sock");
    if (*t->sentinel) return mw_fail(e, MW_EUSAGE, false, "sentinels are not reached by a Unix socket");
    if (mw_url_number(u, "db", 0, 1 << 20, &t->db, e)) return -1;
    t->hosts = malloc(strlen(u->path) + 2);
    if (!t->hosts) abort();
    t->hosts[0] = '/';
    strcpy(t->hosts + 1, u->path);
    return 0;
}

void mwr_target_free(mwr_target *t) {
    free(t->hosts);
    t->hosts = NULL;
}
