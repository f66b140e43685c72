/* token.c - SASL OAUTHBEARER. The token comes from a function of the project
 * (lua/moonwire/internal/token.lua), which also sees to it that a new one comes before the old one ends. All
 * handles of a connection share it: those that are there when it comes, and each that is made later. A handle
 * without a token does not connect, it waits. Handles are made and ended on several threads, so the list has
 * a lock. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "drivers/kafka/kafka.h"

struct kafka_tokens {
    pthread_mutex_t lock;
    mw_buf handles; /* of rd_kafka_t * */
    char *token, *principal;
    char **extensions; /* name, value, … */
    size_t extension_count;
    int64_t expires_ms; /* wall time */
    bool refused;       /* by a broker, since it came; loop thread */
};

/* ---- what the URL says ---- */

static bool is_true(const char *text) { return text && (!strcasecmp(text, "true") || !strcmp(text, "1")); }

static bool chosen(const mw_url *url) {
    const char *mechanism = mw_url_option(url, "sasl.mechanisms");
    if (!mechanism) mechanism = mw_url_option(url, "sasl.mechanism");
    return mechanism && strcmp(mechanism, "OAUTHBEARER") == 0;
}

/* librdkafka gets the token by itself */
static bool by_librdkafka(const mw_url *url) {
    const char *method = mw_url_option(url, "sasl.oauthbearer.method");
    return (method && strcasecmp(method, "oidc") == 0) ||
           is_true(mw_url_option(url, "enable.sasl.oauthbearer.unsecure.jwt"));
}

int kafka_token_check(const mw_url *url, mw_error *e) {
    const char *given = mw_url_option(url, "token"), *protocol = mw_url_option(url, "security.protocol");
    if (given && strcmp(given, "function") != 0)
        return mw_fail(e, MW_EUSAGE, false,
                       "option token: it must be a function, in the table of mw.connect, that returns "
                       "{ token = text, expires = seconds since 1970 }");
    if (given && !chosen(url))
        return mw_fail(e, MW_EUSAGE, false,
                       "option token: only [\"sasl.mechanisms\"] = \"OAUTHBEARER\" takes a token");
    if (!chosen(url)) return 0;
    if (!given && !by_librdkafka(url))
        return mw_fail(e, MW_EUSAGE, false,
                       "sasl.mechanisms=OAUTHBEARER needs a token: give mw.connect's table a function, "
                       "token = function() return { token = text, expires = seconds since 1970 } end");
    if (given && by_librdkafka(url))
        return mw_fail(e, MW_EUSAGE, false,
                       "option token: sasl.oauthbearer.method=oidc and enable.sasl.oauthbearer.unsecure.jwt "
                       "make librdkafka get one by itself; leave one of the two out");
    if (!protocol || strncasecmp(protocol, "sasl", 4) != 0)
        return mw_fail(e, MW_EUSAGE, false,
                       "sasl.mechanisms=OAUTHBEARER has no effect without security.protocol=sasl_ssl (or "
                       "sasl_plaintext)");
    return 0;
}

void kafka_token_read(kafka_conn *c, const mw_url *url) {
    c->background = chosen(url) && by_librdkafka(url);
    if (!mw_url_option(url, "token")) return;
    if (!(c->tokens = calloc(1, sizeof *c->tokens))) abort();
    pthread_mutex_init(&c->tokens->lock, NULL);
}

static void forget(kafka_tokens *t) {
    for (size_t i = 0; i < t->extension_count; i++) free(t->extensions[i]);
    free(t->extensions);
    free(t->token);
    free(t->principal);
}

void kafka_token_free(kafka_tokens *t) {
    if (!t) return;
    forget(t);
    mw_buf_free(&t->handles);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- handles; any thread ---- */

/* librdkafka asks by this one, handle by handle; we hand tokens over when we have them. */
static void ask(rd_kafka_t *rk, const char *config, void *opaque) {
    (void)rk;
    (void)config;
    (void)opaque;
}

void kafka_token_prepare(const kafka_conn *c, rd_kafka_conf_t *conf) {
    if (c->tokens) rd_kafka_conf_set_oauthbearer_token_refresh_cb(conf, ask);
    if (c->background) rd_kafka_conf_enable_sasl_queue(conf, 1);
}

static int hand_over(const kafka_tokens *t, rd_kafka_t *rk, mw_error *e) {
    char text[256] = "";
    rd_kafka_resp_err_t err = rd_kafka_oauthbearer_set_token(rk, t->token, t->expires_ms, t->principal,
                                                             (const char **)(void *)t->extensions,
                                                             t->extension_count, text, sizeof text);
    return err ? mw_fail(e, MW_EUSAGE, true, "%s", *text ? text : rd_kafka_err2str(err)) : 0;
}

void kafka_token_made(kafka_conn *c, rd_kafka_t *rk) {
    kafka_tokens *t = c->tokens;
    mw_error e;          /* such as a token that ended a moment ago: the next one is on its way */
    if (c->background) { /* not every handle is polled */
        rd_kafka_error_t *error = rd_kafka_sasl_background_callbacks_enable(rk);
        if (error) rd_kafka_error_destroy(error);
    }
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    mw_buf_add(&t->handles, &rk, sizeof rk);
    if (t->token) hand_over(t, rk, &e);
    pthread_mutex_unlock(&t->lock);
}

void kafka_token_ends(kafka_conn *c, rd_kafka_t *rk) {
    kafka_tokens *t = c->tokens;
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    rd_kafka_t **list = (rd_kafka_t **)(void *)t->handles.data;
    size_t count = t->handles.len / sizeof *list;
    for (size_t i = 0; i < count; i++) {
        if (list[i] != rk) continue;
        list[i] = list[count - 1];
        t->handles.len -= sizeof *list;
        break;
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- from the project ---- */

static char *copy(const char *text) {
    char *made = strdup(text);
    if (!made) abort();
    return made;
}

int kafka_token_take(mw_conn *conn, const mw_token *given, mw_error *e) {
    kafka_conn *c = (kafka_conn *)conn;
    kafka_tokens *t = c->tokens;
    if (!t) return mw_fail(e, MW_EUSAGE, false, "this connection takes no token");
    if (given->failure) {
        snprintf(c->error, sizeof c->error, "%s", given->failure); /* connections that stand go on */
        return 0;
    }
    int failed = 0;
    pthread_mutex_lock(&t->lock);
    forget(t);
    t->token = copy(given->token);
    t->principal = copy(given->principal);
    t->expires_ms = given->expires_ms;
    t->extension_count = given->extension_count;
    if (!(t->extensions = calloc(given->extension_count + 1, sizeof *t->extensions))) abort();
    for (size_t i = 0; i < given->extension_count; i++) t->extensions[i] = copy(given->extensions[i]);
    for (size_t i = 0; i < t->handles.len / sizeof(rd_kafka_t *) && !failed; i++)
        failed = hand_over(t, ((rd_kafka_t **)(void *)t->handles.data)[i], e);
    pthread_mutex_unlock(&t->lock);
    t->refused = false;
    return failed;
}

void kafka_refused(kafka_conn *c, const char *why) {
    if (c->tokens) c->tokens->refused = true;
    kafka_down(c, why);
}

bool kafka_token_refused(mw_conn *conn) {
    const kafka_conn *c = (const kafka_conn *)conn;
    return c->tokens && c->tokens->refused;
}
