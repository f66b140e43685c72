/* conf.c - the URL's options are librdkafka's properties. They are checked when the connection is opened;
 * what the driver's promises rest on is not the user's to set. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/nearest.h"
#include "drivers/kafka/kafka.h"
#include "net/hosts.h"

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
    {"auto.commit.enable", "commits are made when messages are settled"},
    {"offset.store.method", "commits are made when messages are settled"},
    {"group.protocol", "the driver speaks the classic protocol of groups"},
    {"group.protocol.type", "the driver speaks the classic protocol of groups"},
    {"group.remote.assignor", "the driver speaks the classic protocol of groups"},
    {"delivery.report.only.error", "a publish would never be confirmed"},
    {"queuing.strategy", "messages must be sent in order"},
    {"test.mock.num.brokers", "messages would go nowhere"},
};

/* What librdkafka takes but does not list when it refuses a value. */
static const char *const values[][2] = {
    {"compression.type", "none, gzip, snappy, lz4 or zstd"},
    {"compression.codec", "none, gzip, snappy, lz4 or zstd"},
    {"partitioner", "random, consistent, consistent_random, murmur2, murmur2_random, fnv1a or fnv1a_random"},
    {"isolation.level", "read_committed or read_uncommitted"},
    {"security.protocol", "plaintext, ssl, sasl_plaintext or sasl_ssl"},
};

static const char *const options[] = {"revoke.drain.ms", "dead.headers", "token",
                                      NULL}; /* of the driver itself */

/* Other names of properties, which librdkafka does not list. */
static const char *const aliases[] = {"compression.type", "acks",    "linger.ms",     "delivery.timeout.ms",
                                      "sasl.mechanism",   "retries", "max.in.flight", NULL};

static void add_names(const char **names, size_t *count, const char *const *list) {
    for (size_t i = 0; list[i]; i++) names[(*count)++] = list[i];
}

static int unknown(const char *name, mw_error *e) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_topic_conf_t *topic = rd_kafka_topic_conf_new();
    size_t a, b, count = 0;
    const char **of_conf = rd_kafka_conf_dump(conf, &a), **of_topic = rd_kafka_topic_conf_dump(topic, &b);
    const char **names = calloc(a / 2 + b / 2 + 32, sizeof *names);
    if (!names) abort();
    for (size_t i = 0; i < a; i += 2) names[count++] = of_conf[i];
    for (size_t i = 0; i < b; i += 2) names[count++] = of_topic[i];
    add_names(names, &count, aliases);
    add_names(names, &count, options);
    const char *near = mw_nearest(name, names);
    if (near)
        mw_fail(e, MW_EUSAGE, false, "unknown property \"%s\" in the URL; did you mean \"%s\"?", name, near);
    else
        mw_fail(e, MW_EUSAGE, false,
                "unknown property \"%s\" in the URL: it must be one of librdkafka %s's, such as "
                "security.protocol",
                name, rd_kafka_version_str());
    free(names);
    rd_kafka_conf_dump_free(of_conf, a);
    rd_kafka_conf_dump_free(of_topic, b);
    rd_kafka_topic_conf_destroy(topic);
    rd_kafka_conf_destroy(conf);
    return -1;
}

static int set(kafka_conn *c, const char *name, const char *value, mw_error *e) {
    char text[256];
    switch (rd_kafka_conf_set(c->conf, name, value, text, sizeof text)) {
    case RD_KAFKA_CONF_OK: return 0;
    case RD_KAFKA_CONF_UNKNOWN: return unknown(name, e);
    default: break;
    }
    text[strcspn(text, "\n")] = 0;
    if (strstr(text, "must be set through dedicated"))
        return mw_fail(e, MW_EUSAGE, false, "property %s cannot be set in the URL: it is no setting", name);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (strcmp(values[i][0], name) == 0)
            return mw_fail(e, MW_EUSAGE, false, "property %s in the URL: it can be %s, not \"%s\"", name,
                           values[i][1], value);
    return mw_fail(e, MW_EUSAGE, false, "property %s in the URL: %s", name, text);
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
    if ((strcmp(name, "acks") == 0 || strcmp(name, "request.required.acks") == 0) && strcmp(value, "0") == 0)
        return mw_fail(e, MW_EUSAGE, false,
                       "property %s cannot be 0: a publish would count as confirmed before any broker has it",
                       name);
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

/* librdkafka would dial port 0 for a name, and the rest of a number that is too large. */
static int check_hosts(const char *text, mw_error *e) {
    mw_hosts hosts = {0};
    if (!*text)
        return mw_fail(e, MW_EUSAGE, false,
                       "no host: write kafka://host:port or kafka://host:port,host:port");
    if (mw_hosts_parse(&hosts, text, 9092, e)) return -1;
    bool path = hosts.unix_socket;
    mw_hosts_free(&hosts);
    return path ? mw_fail(e, MW_EUSAGE, false, "Kafka has no Unix sockets: write kafka://host:port") : 0;
}

static int check_prefix(const char *prefix, mw_error *e) {
    size_t good = strspn(prefix, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    if (!prefix[good] && good < 200) return 0;
    return mw_fail(e, MW_EUSAGE, false,
                   "the path of a Kafka URL is put before the names of topics and groups, so it may hold "
                   "letters, digits, '.', '_' and '-' only, not \"%s\"",
                   prefix);
}

/* librdkafka would leave them aside in silence, and talk in the clear to anybody. */
static int check_protocol(const mw_url *url, mw_error *e) {
    const char *protocol = mw_url_option(url, "security.protocol");
    if (!protocol) protocol = *url->user ? "sasl_plaintext" : "plaintext";
    bool sasl = strncasecmp(protocol, "sasl", 4) == 0, tls = strcasestr(protocol, "ssl") != NULL;
    for (int i = 0; i < url->option_count; i++) {
        const char *name = url->options[i].name;
        bool needs_sasl = strncmp(name, "sasl.", 5) == 0, needs_tls = strncmp(name, "ssl.", 4) == 0;
        if ((needs_sasl && !sasl) || (needs_tls && !tls))
            return mw_fail(e, MW_EUSAGE, false,
                           "property %s has no effect with security.protocol=%s: set that to %s", name,
                           protocol,
                           needs_tls ? sasl ? "sasl_ssl" : "ssl"
                           : tls     ? "sasl_ssl"
                                     : "sasl_plaintext or sasl_ssl");
    }
    return 0;
}

static int try_handle(kafka_conn *c, kafka_role role, const char *const *pairs, mw_error *e) {
    mw_error why;
    rd_kafka_t *trial = kafka_conf_handle(c, role, pairs, &why);
    if (!trial) return mw_fail(e, MW_EUSAGE, false, "%s", why.text);
    kafka_token_ends(c, trial);
    rd_kafka_destroy(trial);
    return 0;
}

/* Some contradictions are only seen when a handle is made. Without brokers it connects to nobody. */
static int check_together(kafka_conn *c, mw_error *e) {
    /* before 2.3 librdkafka aborts the process when a consumer with the sticky assignor ends at once */
    const char *consumer[8] = {"group.id", "check", "partition.assignment.strategy", "range"};
    if (!kafka_conf_given(c, "session.timeout.ms")) { /* a pipeline says it, by its lease */
        consumer[4] = "session.timeout.ms";
        consumer[5] = "1000";
    }
    return try_handle(c, KAFKA_PRODUCES, NULL, e) || try_handle(c, KAFKA_LOOKS, consumer, e) ? -1 : 0;
}

static bool is_option(const char *name) {
    for (size_t i = 0; options[i]; i++)
        if (strcmp(options[i], name) == 0) return true;
    return false;
}

/* Everything but whom to connect to. */
static int read_properties(kafka_conn *c, const mw_url *url, mw_error *e) {
    c->conf = rd_kafka_conf_new();
    c->revoke_ms = 5000;
    if (check_hosts(url->hosts, e) || check_prefix(url->path, e) || kafka_token_check(url, e)) return -1;
    kafka_token_read(c, url);
    c->hosts = strdup(url->hosts);
    c->prefix = strdup(url->path);
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (set(c, defaults[i][0], defaults[i][1], e)) return -1;
    if (set_user(c, url, e)) return -1;
    if (mw_url_number(url, "revoke.drain.ms", 0, 60000, &c->revoke_ms, e)) return -1;
    const char *headers = mw_url_option(url, "dead.headers");
    if (headers && strcmp(headers, "spring") != 0)
        return mw_fail(e, MW_EUSAGE, false, "option dead.headers=%s: it can be \"spring\", or be left out",
                       headers);
    c->spring = headers != NULL;
    for (int i = 0; i < url->option_count; i++)
        if (!is_option(url->options[i].name) && set_given(c, url->options[i].name, url->options[i].value, e))
            return -1;
    return check_protocol(url, e);
}

int kafka_conf_read(kafka_conn *c, const mw_url *url, mw_error *e) {
    if (read_properties(c, url, e) || check_together(c, e)) return -1;
    return set(c, "bootstrap.servers", url->hosts, e);
}

void kafka_conf_free(kafka_conn *c) {
    char **names = (char **)(void *)c->given.data;
    for (size_t i = 0; i < c->given.len / sizeof *names; i++) free(names[i]);
    mw_buf_free(&c->given);
    if (c->conf) rd_kafka_conf_destroy(c->conf);
    free(c->prefix);
    free(c->hosts);
    kafka_token_free(c->tokens);
}

int kafka_conf_check(const mw_url *url, mw_error *e) {
    kafka_conn c = {0};
    int failed = kafka_conf_read(&c, url, e);
    kafka_conf_free(&c);
    return failed;
}

/* ---- what a pipeline asks for ---- */

static int64_t number(const kafka_conn *c, const char *name) {
    char text[32] = "";
    size_t len = sizeof text;
    rd_kafka_conf_get(c->conf, name, text, &len);
    return strtoll(text, NULL, 10);
}

int64_t kafka_conf_session(const kafka_conn *c, int64_t lease_ms) {
    return kafka_conf_given(c, "session.timeout.ms") ? number(c, "session.timeout.ms") : lease_ms;
}

static int check_times(const kafka_conn *c, const mw_subscription *s, mw_error *e) {
    int64_t session = kafka_conf_session(c, s->lease_ms);
    const char *which =
        kafka_conf_given(c, "session.timeout.ms") ? "session.timeout.ms" : "the pipeline's lease";
    int64_t beat = number(c, "heartbeat.interval.ms"), poll = number(c, "max.poll.interval.ms");
    if (kafka_conf_given(c, "heartbeat.interval.ms") && beat >= session)
        return mw_fail(e, MW_EUSAGE, false,
                       "heartbeat.interval.ms=%" PRId64 " must be less than %s (%" PRId64
                       " ms), a third of it or less",
                       beat, which, session);
    if (kafka_conf_given(c, "max.poll.interval.ms") && poll < session)
        return mw_fail(e, MW_EUSAGE, false,
                       "max.poll.interval.ms=%" PRId64 " must not be less than %s (%" PRId64 " ms)", poll,
                       which, session);
    return 0;
}

/* As txn.c makes it: librdkafka knows which of the properties do not go with transactions. */
static int check_exactly(kafka_conn *c, mw_error *e) {
    char level[32] = "";
    size_t len = sizeof level;
    mw_error why;
    const char *pairs[] = {"transactional.id", "check", "transaction.timeout.ms", "10000", NULL};
    if (kafka_conf_given(c, "transaction.timeout.ms")) pairs[2] = NULL;
    rd_kafka_conf_get(c->conf, "isolation.level", level, &len);
    if (strcmp(level, "read_committed") != 0)
        return mw_fail(
            e, MW_EUSAGE, false,
            "exactly_once needs isolation.level=read_committed, its default: with %s handlers would "
            "get what other transactions take back",
            level);
    if (try_handle(c, KAFKA_TRANSACTS, pairs, &why))
        return mw_fail(e, MW_EUSAGE, false, "exactly_once: %s", why.text);
    return 0;
}

int kafka_check_source(const mw_url *url, const mw_subscription *s, mw_error *e) {
    kafka_conn c = {0};
    int failed =
        read_properties(&c, url, e) || check_times(&c, s, e) || (s->exactly_once && check_exactly(&c, e));
    kafka_conf_free(&c);
    return failed ? -1 : 0;
}

/* ---- handles ---- */

rd_kafka_t *kafka_conf_handle(kafka_conn *c, kafka_role role, const char *const *pairs, mw_error *e) {
    char text[300];
    rd_kafka_conf_t *conf = rd_kafka_conf_dup(c->conf);
    if (role == KAFKA_TRANSACTS) /* nobody would take its events */
        rd_kafka_conf_set_dr_msg_cb(conf, kafka_txn_report);
    else
        rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_REBALANCE | RD_KAFKA_EVENT_OFFSET_COMMIT |
                                           RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_LOG | RD_KAFKA_EVENT_DR);
    rd_kafka_conf_set_opaque(conf, c);
    if (role == KAFKA_CONSUMES) rd_kafka_conf_set_error_cb(conf, kafka_part_error);
    if (role == KAFKA_LOOKS) rd_kafka_conf_set_error_cb(conf, kafka_look_error);
    for (; pairs && *pairs; pairs += 2) {
        if (rd_kafka_conf_set(conf, pairs[0], pairs[1], text, sizeof text) == RD_KAFKA_CONF_OK) continue;
        rd_kafka_conf_destroy(conf);
        mw_fail(e, MW_EUSAGE, false, "property %s: %s", pairs[0], text);
        return NULL;
    }
    kafka_token_prepare(c, conf);
    bool consumer = role == KAFKA_CONSUMES || role == KAFKA_LOOKS;
    rd_kafka_t *rk = rd_kafka_new(consumer ? RD_KAFKA_CONSUMER : RD_KAFKA_PRODUCER, conf, text, sizeof text);
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
