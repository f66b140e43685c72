#include "base/url.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/nearest.h"

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)tolower((unsigned char)c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* In place; a decoded NUL would cut the string short, so it is refused. `secret`: nothing of it is told. */
static int unescape(char *s, bool secret, mw_error *e) {
    char *out = s;
    for (char *p = s; *p; p++) {
        if (*p != '%') {
            *out++ = *p;
            continue;
        }
        int high = hex(p[1]), low = high < 0 ? -1 : hex(p[2]);
        if ((low < 0 || high * 16 + low == 0) && secret)
            return mw_fail(e, MW_EUSAGE, false,
                           "bad percent escape in a user, password or secret: a %% is written %%25");
        if (low < 0 || high * 16 + low == 0)
            return mw_fail(e, MW_EUSAGE, false, "bad percent escape at \"%.3s\"", p);
        *out++ = (char)(high * 16 + low);
        p += 2;
    }
    *out = 0;
    return 0;
}

/* ---- what must not be seen ---- */

static const char *const SECRET_WORDS[] = {"password",   "passphrase",   "passwd", "secret",
                                           "credential", "token",        "apikey", "api_key",
                                           "key.pem",    "private",      "jaas",   "oauthbearer.config",
                                           "kinit.cmd",  "keystore.pem", NULL};

/* An option that sounds like one. Files are none: their names say nothing. */
static bool is_secret(const char *name) {
    for (int i = 0; SECRET_WORDS[i]; i++)
        if (strcasestr(name, SECRET_WORDS[i])) return true;
    return false;
}

static bool names_secret(const char *name, size_t len) { /* as it stands in a URL, perhaps escaped */
    mw_error ignored;
    char *copy = strndup(name, len);
    if (!copy) abort();
    bool secret = unescape(copy, true, &ignored) || is_secret(copy);
    free(copy);
    return secret;
}

static void show_options(mw_buf *out, const char *query) {
    for (const char *next; *query; query = next) {
        size_t len = strcspn(query, "&"), name = strcspn(query, "=&");
        next = query + len;
        bool hide = name < len ? names_secret(query, name) : memchr(query, '@', len) != NULL;
        mw_buf_add(out, query, !hide ? len : name < len ? name + 1 : 0);
        if (*next) mw_buf_add(out, next++, 1);
    }
}

char *mw_url_shown(const char *url) {
    mw_buf out = {0};
    const char *rest = url, *query = url + strcspn(url, "?"), *user = url + strcspn(url, ":?");
    if (strncmp(user, "://", 3) == 0) {
        user += 3;
        const char *at = memrchr(user, '@', strcspn(user, "/?"));
        const char *colon = at ? memchr(user, ':', (size_t)(at - user)) : NULL;
        bool named = colon && colon > user;
        mw_buf_add(&out, url, (size_t)((named ? colon : user) - url));
        rest = !at ? user : named ? at : at + 1;
    }
    mw_buf_add(&out, rest, (size_t)(query - rest));
    if (*query) mw_buf_add(&out, query, 1);
    if (*query) show_options(&out, query + 1);
    mw_buf_add(&out, "", 1);
    return out.data;
}

/* ---- taking apart ---- */

static int parse_options(mw_url *u, char *query, mw_error *e) {
    for (char *next; query && *query; query = next) {
        next = strchr(query, '&');
        if (next) *next++ = 0;
        if (!*query) continue;
        if (u->option_count == MW_URL_OPTIONS)
            return mw_fail(e, MW_EUSAGE, false, "more than %d options", MW_URL_OPTIONS);
        char *equals = strchr(query, '=');
        if ((!equals || equals == query) && strchr(query, '@')) /* the end of redis://:pass?word@host */
            return mw_fail(e, MW_EUSAGE, false,
                           "what follows the ? is not name=value; in a password a ? is written %%3F");
        if (!equals || equals == query)
            return mw_fail(e, MW_EUSAGE, false, "option \"%s\" is not name=value", query);
        *equals = 0;
        u->options[u->option_count].name = query;
        u->options[u->option_count++].value = equals + 1;
        if (unescape(query, false, e) || unescape(equals + 1, is_secret(query), e)) return -1;
    }
    return 0;
}

/* amqp://user:pass/word@host: what looks like hosts is not. Its port would be told as being none. */
static bool cut_password(const char *hosts) {
    const char *port = strrchr(hosts, ':');
    return port && port[1 + strspn(port + 1, "0123456789")];
}

int mw_url_parse(mw_url *u, const char *text, mw_error *e) {
    *u = (mw_url){0};
    u->space = strdup(text);
    if (!u->space) abort();
    char *end = u->space + strlen(u->space), *rest = strchr(u->space, ':');
    u->user = u->password = u->hosts = u->path = end;
    size_t scheme = strspn(u->space, "abcdefghijklmnopqrstuvwxyz0123456789+-.");
    if (!rest || rest != u->space + scheme || !scheme) {
        const char *shown = strcspn(text, ":") < strcspn(text, "@") ? text : strchr(text, '@') ? "..." : text;
        mw_fail(e, MW_EUSAGE, false,
                "\"%.*s\" is not a broker URL: it must begin with a scheme, such as embedded:data",
                (int)strcspn(shown, ":"), shown); /* what follows, or stands before an @, may be a password */
        goto fail;
    }
    u->scheme = u->space;
    *rest++ = 0;
    char *query = strchr(rest, '?');
    if (query) *query++ = 0;
    if (strncmp(rest, "//", 2) == 0) {
        u->hosts = rest + 2;
        char *slash = strchr(u->hosts, '/');
        if (slash) {
            *slash = 0;
            u->path = slash + 1;
        }
        char *at = strrchr(u->hosts, '@');
        if (at) {
            *at = 0;
            u->user = u->hosts;
            u->hosts = at + 1;
            char *colon = strchr(u->user, ':');
            if (colon) {
                *colon = 0;
                u->password = colon + 1;
            }
        } else if (strchr(u->path, '@') && cut_password(u->hosts)) {
            mw_fail(e, MW_EUSAGE, false, "no host before the path; in a password a / is written %%2F");
            goto fail;
        }
    } else {
        u->path = rest;
    }
    if (unescape(u->user, true, e) || unescape(u->password, true, e) || unescape(u->path, false, e))
        goto fail;
    if (parse_options(u, query, e)) goto fail;
    return 0;
fail:
    mw_url_free(u);
    return -1;
}

void mw_url_free(mw_url *u) {
    free(u->space);
    *u = (mw_url){0};
}

const char *mw_url_option(const mw_url *u, const char *name) {
    for (int i = 0; i < u->option_count; i++)
        if (strcmp(u->options[i].name, name) == 0) return u->options[i].value;
    return NULL;
}

/* In the largest unit that leaves no rest. */
static const char *size_text(uint64_t size, char out[32]) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    int unit = 0;
    for (; unit < 4 && size && size % 1024 == 0; unit++) size /= 1024;
    snprintf(out, 32, "%llu%s", (unsigned long long)size, units[unit]);
    return out;
}

int mw_url_size(const mw_url *u, const char *name, uint64_t min, uint64_t max, uint64_t *out, mw_error *e) {
    const char *text = mw_url_option(u, name);
    if (!text) return 0;
    static const struct {
        const char *suffix;
        int shift;
    } units[] = {{"", 0}, {"B", 0}, {"KB", 10}, {"MB", 20}, {"GB", 30}, {"TB", 40}};
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    for (size_t i = 0; isdigit((unsigned char)*text) && i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(end, units[i].suffix) != 0) continue;
        uint64_t value = number << units[i].shift;
        if (value >> units[i].shift != number || value < min || value > max) break;
        *out = value;
        return 0;
    }
    char least[32], most[32];
    return mw_fail(e, MW_EUSAGE, false, "option %s=%s: expected a size from %s to %s, such as 512MB", name,
                   text, size_text(min, least), size_text(max, most));
}

int mw_url_number(const mw_url *u, const char *name, int64_t min, int64_t max, int64_t *out, mw_error *e) {
    const char *text = mw_url_option(u, name);
    if (!text) return 0;
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < min || value > max)
        return mw_fail(e, MW_EUSAGE, false, "option %s=%s: expected a whole number from %lld to %lld", name,
                       text, (long long)min, (long long)max);
    *out = value;
    return 0;
}

int mw_url_only(const mw_url *u, const char *const *known, mw_error *e) {
    for (int i = 0; i < u->option_count; i++) {
        const char *name = u->options[i].name;
        size_t k = 0;
        while (known[k] && strcmp(known[k], name) != 0) k++;
        for (int before = 0; known[k] && before < i; before++)
            if (strcmp(u->options[before].name, name) == 0)
                return mw_fail(e, MW_EUSAGE, false, "option \"%s\" stands twice in the URL", name);
        if (known[k]) continue;
        const char *nearest = mw_nearest(name, known);
        if (nearest)
            return mw_fail(e, MW_EUSAGE, false, "unknown option \"%s\" in the URL; did you mean \"%s\"?",
                           name, nearest);
        if (!known[0])
            return mw_fail(e, MW_EUSAGE, false, "unknown option \"%s\" in the URL: this driver takes none",
                           name);
        char list[200] = "";
        for (size_t n = 0, at = 0; known[n] && at < sizeof list; n++)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", n ? ", " : "", known[n]);
        return mw_fail(e, MW_EUSAGE, false, "unknown option \"%s\" in the URL; known are %s", name, list);
    }
    return 0;
}
