/* conf.c - the URL's options are librdkafka's properties. They are checked when the connection is opened;
 * what the driver's promises rest on is not the user's to set. */
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "drivers/kafka/kafka.h"

/* Before the user's: what suits us better than librdkafka's own defaults. */
static const char *const defaults[][2] = {
    {"client.id", "moonwire"},
    {"log.queue", "true"},
    {"topic.metadata.refresh.interval.ms", "30000"},
    {"topic.metadata.refresh.fast.interval.ms", "100"},
    {"topic.metadata.propagation.max.ms", "5000"}, /* until a topic that is not there is an error */
    {"reconnect.backoff.ms", "100"},
    {"reconnect.backoff.max.ms", "2000"},
    {"socket.nagle.disable", "true"},
    {"fetch.wait.max.ms", "100"},
    {"fetch.error.backoff.ms", "100"},
    {"queued.min.messages", "200000"}, /* 2.0 stops fetching for a second above it: never low */
    {"partition.assignment.strategy", "range"},
    {"message.max.bytes", "33554432"},
    {"linger.ms", "1"},
    {"enable.idempotence", "true"},
    {"retry.backoff.ms", "50"},
};

/* A user's value would break what the driver does with it. */
static const char *const ours[][2] = {
    {"bootstrap.servers", "the hosts of the URL are these"},
    {"metadata.broker.list", "the hosts of the URL are these"},
    {"group.id", "it is the pipeline's `group`"},
    {"enable.auto.commit", "commits are made when messages are settled"},
    {"enable.auto.offset.store", "commits are made when messages are settled"},
    {"enable.partition.eof", "the driver needs it"},
    {"log.queue", "librdkafka logs through Moonwire"},
    {"transactional.id", "use exactly_once = true in the pipeline"},
    {"auto.offset.reset", "use `start` in the pipeline"},
    {"opaque", "it is no setting"},
    {"plugin.library.paths", "it is not supported"},
};

static const char *const options[] = {"revoke.drain.ms", "dead.headers", "token",
                                      NULL}; /* of the driver itself */

static int unknown(const char *name, mw_error *e) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    size_t count;
    const char **dump = rd_kafka_conf_dump(conf, &count);
    const char **names = calloc(count / 2 + 4, sizeof *names);
    if (!names) abort();
    for (size_t i = 0; i < count / 2; i++) names[i] = dump[2 * i];
    for (size_t i = 0; options[i]; i++) names[count / 2 + i] = options[i];
    const char *near = mw_nearest(name, names);
    if (near)
        mw_fail(e, MW_EUSAGE, false, "unknown property \"%s\" in the URL; did you mean \"%s\"?", name, near);
    else
        mw_fail(e, MW_EUSAGE, false,
                "unknown property \"%s\" in the URL: it must be one of librdkafka %s's, such as "
                "security.protocol",
                name, rd_kafka_version_str());
    free(names);
    rd_kafka_conf_dump_free(dump, count);
    rd_kafka_conf_destroy(conf);
    return -1;
}

static int set(kafka_conn *c, const char *name, const char *value, mw_error *e) {
    char text[256];
    switch (rd_kafka_conf_set(c->conf, name, value, text, sizeof text)) {
    case RD_KAFKA_CONF_OK: return 0;
    case RD_KAFKA_CONF_UNKNOWN: return unknown(name, e);
    default: return mw_fail(e, MW_EUSAGE, false, "property %s in the URL: %s", name, text);
    }
}

bool kafka_conf_given(const kafka_conn *c, const char *name) {
    char **list = (char **)(void *)c->given.data;
    for (size_t i = 0; i < c->given.len / sizeof *list; i++)
        if (strcmp(list[i], name) == 0) return true;
    return false;
}

static int set_given(kafka_conn *c, const char *name, const char *value, mw_error *e) {
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strcmp(ours[i][0], name) == 0)
            return mw_fail(e, MW_EUSAGE, false, "property %s cannot be set in the URL: %s", name, ours[i][1]);
    if (set(c, name, value, e)) return -1;
    char *copy = strdup(name);
    if (!copy) abort();
    mw_buf_add(&c->given, &copy, sizeof copy);
    return 0;
}

static int set_user(kafka_conn *c, const mw_url *url, mw_error *e) {
    if (!*url->user) return 0;
    if (!mw_url_option(url, "security.protocol") && set(c, "security.protocol", "sasl_plaintext", e))
        return -1;
    if (!mw_url_option(url, "sasl.mechanisms") && !mw_url_option(url, "sasl.mechanism") &&
        set(c, "sasl.mechanisms", "PLAIN", e))
        return -1;
    return set(c, "sasl.username", url->user, e) || set(c, "sasl.password", url->password, e) ? -1 : 0;
}

static int check_prefix(const char *prefix, mw_error *e) {
    size_t good = strspn(prefix, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    if (!prefix[good] && good < 200) return 0;
    return mw_fail(e, MW_EUSAGE, false,
                   "the path of a Kafka URL is put before the names of topics and groups, so it may hold "
                   "letters, digits, '.', '_' and '-' only, not \"%s\"",
                   prefix);
}

int kafka_conf_read(kafka_conn *c, const mw_url *url, mw_error *e) {
    c->conf = rd_kafka_conf_new();
    c->revoke_ms = 5000;
    if (!*url->hosts)
        return mw_fail(e, MW_EUSAGE, false,
                       "no host: write kafka://host:port or kafka://host:port,host:port");
    if (check_prefix(url->path, e) || kafka_token_check(url, e)) return -1;
    kafka_token_read(c, url);
    c->hosts = strdup(url->hosts);
    c->prefix = strdup(url->path);
    if (set(c, "bootstrap.servers", url->hosts, e)) return -1;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (set(c, defaults[i][0], defaults[i][1], e)) return -1;
    if (set_user(c, url, e)) return -1;
    if (mw_url_number(url, "revoke.drain.ms", 0, 60000, &c->revoke_ms, e)) return -1;
    const char *headers = mw_url_option(url, "dead.headers");
    if (headers && strcmp(headers, "spring") != 0)
        return mw_fail(e, MW_EUSAGE, false, "option dead.headers=%s: it can be \"spring\", or be left out",
                       headers);
    c->spring = headers != NULL;
    for (int i = 0; i < url->option_count; i++) {
        const char *name = url->options[i].name;
        if (strcmp(name, options[0]) != 0 && strcmp(name, options[1]) != 0 && strcmp(name, options[2]) != 0 &&
            set_given(c, name, url->options[i].value, e))
            return -1;
    }
    mw_error why; /* some contradictions are only seen when a handle is made */
    rd_kafka_t *trial = kafka_conf_handle(c, RD_KAFKA_PRODUCER, NULL, &why);
    if (!trial) return mw_fail(e, MW_EUSAGE, false, "%s", why.text);
    kafka_token_ends(c, trial);
    rd_kafka_destroy(trial);
    return 0;
}

rd_kafka_t *kafka_conf_handle(kafka_conn *c, rd_kafka_type_t type, const char *const *pairs, mw_error *e) {
    char text[300];
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(c->conf);
    bool transactional =
        pairs && strcmp(pairs[0], "transactional.id") == 0; /* nobody would take its events */
    if (transactional)
        rd_kafka_conf_set_dr_msg_cb(conf, kafka_txn_report);
    else
        rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_REBALANCE | RD_KAFKA_EVENT_OFFSET_COMMIT |
                                           RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_LOG | RD_KAFKA_EVENT_DR);
    rd_kafka_conf_set_opaque(conf, c);
    if (type == RD_KAFKA_CONSUMER) rd_kafka_conf_set_error_cb(conf, kafka_part_error);
    for (; pairs && *pairs; pairs += 2) {
        if (rd_kafka_conf_set(conf, pairs[0], pairs[1], text, sizeof text) == RD_KAFKA_CONF_OK) continue;
        rd_kafka_conf_destroy(conf);
        mw_fail(e, MW_EUSAGE, false, "property %s: %s", pairs[0], text);
        return NULL;
    }
    kafka_token_prepare(c, conf);
    rd_kafka_t *rk = rd_kafka_new(type, conf, text, sizeof text);
    if (rk) {
        rd_kafka_set_log_queue(rk, NULL);
        kafka_token_made(c, rk);
        return rk;
    }
    rd_kafka_conf_destroy(conf);
    mw_fail(e, MW_EUSAGE, false, "Kafka: %s", text);
    return NULL;
}

char *kafka_topic(const kafka_conn *c, const char *channel) {
    size_t a = strlen(c->prefix), b = strlen(channel);
    char *name = malloc(a + b + 1);
    if (!name) abort();
    memcpy(name, c->prefix, a);
    memcpy(name + a, channel, b + 1);
    return name;
}
