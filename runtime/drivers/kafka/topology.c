/* topology.c - topics: what is wanted against what there is (see mw_driver.topology). Runs on the
 * connection's errand thread, where the administration's calls may block. An item has settings `partitions`
 * and `replication` and a list `config` of topic properties. */
#include <stdlib.h>
#include <string.h>

#include "drivers/kafka/browse.h"
#include "json/json.h"

enum { ASK_MS = 15000, TOPIC_MAX = 249 };

typedef struct request {
    kafka_errand errand;
    kafka_conn *conn;
    void *cookie;
    struct mw_json_doc *doc;
    mw_buf answer;
    bool apply, show, force, failed;
    mw_error error;
} request;

typedef struct item {
    request *request;
    uint32_t node;
    char topic[512]; /* with the prefix */
    char name[TOPIC_MAX + 1];
    int64_t partitions, replication; /* wanted; 0: anything */
    int found_partitions, found_replication;
    const rd_kafka_ConfigEntry_t **entries;
    size_t entry_count;
    mw_buf differences;
    bool more_partitions, other_config;
    char problem[400]; /* why it cannot be made so */
    const char *state;
} item;

/* ---- JSON, out ---- */

static void differs(item *it, const char *field, const char *wanted, size_t wanted_len, const char *found) {
    mw_buf *b = &it->differences;
    mw_buf_puts(b, b->len ? ",{\"field\":" : "{\"field\":");
    mw_buf_json(b, field, strlen(field));
    mw_buf_puts(b, ",\"wanted\":");
    mw_buf_json(b, wanted, wanted_len);
    mw_buf_puts(b, ",\"found\":");
    mw_buf_json(b, found, strlen(found));
    mw_buf_puts(b, "}");
}

static void differs_number(item *it, const char *field, int64_t wanted, int64_t found) {
    char a[24], b[24];
    int n = snprintf(a, sizeof a, "%lld", (long long)wanted);
    snprintf(b, sizeof b, "%lld", (long long)found);
    differs(it, field, a, (size_t)n, b);
}

static void put_item(const item *it) {
    mw_buf *b = &it->request->answer;
    mw_buf_puts(b, b->len > 10 ? "," : "");
    mw_buf_puts(b, "{\"kind\":\"topic\",\"name\":");
    mw_buf_json(b, it->name, strlen(it->name));
    mw_buf_printf(b, ",\"state\":\"%s\",\"differences\":[", it->state);
    mw_buf_add(b, it->differences.data, it->differences.len);
    mw_buf_puts(b, "]");
    if (it->request->show && it->found_partitions)
        mw_buf_printf(b, ",\"settings\":{\"partitions\":%d,\"replication\":%d}", it->found_partitions,
                      it->found_replication);
    if (*it->problem) {
        mw_buf_puts(b, ",\"error\":");
        mw_buf_json(b, it->problem, strlen(it->problem));
    }
    mw_buf_puts(b, "}");
}

/* ---- JSON, in ---- */

static bool find(const item *it, const char *path, struct mw_json_value *v) {
    return mw_json_find_in(it->request->doc, it->node, path, strlen(path), v) != MW_JSON_NONE;
}

static int64_t number(const item *it, const char *path) {
    struct mw_json_value v;
    return find(it, path, &v) && v.type == MW_JSON_NUMBER && v.number >= 1 && v.number <= 1e6
               ? (int64_t)v.number
               : 0;
}

static bool read_item(item *it) {
    struct mw_json_value v;
    if (!find(it, "name", &v) || v.type != MW_JSON_STRING || !v.len || v.len > TOPIC_MAX) return false;
    memcpy(it->name, v.text, v.len);
    snprintf(it->topic, sizeof it->topic, "%s%s", it->request->conn->prefix, it->name);
    it->partitions = number(it, "settings.partitions");
    it->replication = number(it, "settings.replication");
    return true;
}

static bool wanted_config(const item *it, size_t i, struct mw_json_value *name, struct mw_json_value *value) {
    char path[64];
    snprintf(path, sizeof path, "settings.config.%zu.name", i + 1);
    if (!find(it, path, name) || name->type != MW_JSON_STRING) return false;
    snprintf(path, sizeof path, "settings.config.%zu.value", i + 1);
    return find(it, path, value) && value->type == MW_JSON_STRING;
}

/* The same as strings, whatever their length; both are the caller's. */
static bool wanted_pair(const item *it, size_t i, char **field, char **wanted) {
    struct mw_json_value name, value;
    if (!wanted_config(it, i, &name, &value)) return false;
    *field = strndup(name.text, name.len);
    *wanted = strndup(value.text, value.len);
    if (!*field || !*wanted) abort();
    return true;
}

/* ---- asking the broker ---- */

static void problem(item *it, const char *what, const char *why) {
    snprintf(it->problem, sizeof it->problem, "%s: %s", what, why);
}

static rd_kafka_event_t *answered(item *it, const char *what, rd_kafka_queue_t *q) {
    rd_kafka_event_t *ev = rd_kafka_queue_poll(q, ASK_MS);
    if (!ev) {
        problem(it, what, "no answer");
    } else if (rd_kafka_event_error(ev)) {
        problem(it, what, rd_kafka_event_error_string(ev));
        rd_kafka_event_destroy(ev);
        ev = NULL;
    }
    return ev;
}

/* 1: it is there, 0: it is not, -1: see problem */
static int look(item *it, rd_kafka_t *rk) {
    const struct rd_kafka_metadata *found;
    rd_kafka_topic_t *t = rd_kafka_topic_new(rk, it->topic, NULL);
    if (!t) {
        problem(it, "topic", rd_kafka_err2str(rd_kafka_last_error()));
        return -1;
    }
    rd_kafka_resp_err_t err = kafka_look_metadata(it->request->conn, rk, t, &found);
    rd_kafka_topic_destroy(t);
    if (err) {
        problem(it, "metadata", kafka_look_why(it->request->conn, err));
        return -1;
    }
    const struct rd_kafka_metadata_topic *m = found->topic_cnt == 1 ? &found->topics[0] : NULL;
    err = m ? m->err : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    if (!err && m->partition_cnt) {
        it->found_partitions = m->partition_cnt;
        it->found_replication = m->partitions[0].replica_cnt;
    }
    rd_kafka_metadata_destroy(found);
    if (!err) return 1;
    if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART) return 0;
    problem(it, "topic", rd_kafka_err2str(err));
    return -1;
}

static rd_kafka_event_t *describe(item *it, rd_kafka_t *rk, rd_kafka_queue_t *q) {
    rd_kafka_ConfigResource_t *r = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, it->topic);
    rd_kafka_DescribeConfigs(rk, &r, 1, NULL, q);
    rd_kafka_event_t *ev = answered(it, "configuration", q);
    rd_kafka_ConfigResource_destroy(r);
    if (!ev) return NULL;
    size_t n;
    const rd_kafka_ConfigResource_t **list =
        rd_kafka_DescribeConfigs_result_resources(rd_kafka_event_DescribeConfigs_result(ev), &n);
    if (n == 1 && !rd_kafka_ConfigResource_error(list[0])) {
        it->entries = rd_kafka_ConfigResource_configs(list[0], &it->entry_count);
        return ev;
    }
    problem(it, "configuration", n == 1 ? rd_kafka_ConfigResource_error_string(list[0]) : "no answer");
    rd_kafka_event_destroy(ev);
    return NULL;
}

/* ---- comparing ---- */

static const char *found_value(const item *it, const char *name) {
    for (size_t i = 0; i < it->entry_count; i++) {
        if (strcmp(rd_kafka_ConfigEntry_name(it->entries[i]), name) == 0) {
            const char *value = rd_kafka_ConfigEntry_value(it->entries[i]);
            return value ? value : "";
        }
    }
    return NULL;
}

/* A shorter retention or another clean-up deletes what is there. */
static bool loses_messages(const char *field, const char *wanted, const char *found) {
    if (strcmp(field, "cleanup.policy") == 0) return true; /* both ways: by key, or by age */
    if (strncmp(field, "retention.", 10) != 0) return false;
    long long w = strtoll(wanted, NULL, 10), f = strtoll(found, NULL, 10);
    return w >= 0 && (f < 0 || w < f);
}

static void compare_one(item *it, const char *field, const char *wanted) {
    const char *found = found_value(it, field);
    if (found && strcmp(found, wanted) == 0) return;
    differs(it, field, wanted, strlen(wanted), found ? found : "unknown");
    it->other_config = true;
    if (!found)
        problem(it, field, "the broker knows no such property of a topic");
    else if (!it->request->force && loses_messages(field, wanted, found))
        problem(it, field, "this change makes the broker delete messages: say --force");
}

static void compare_config(item *it) {
    char *field, *wanted;
    for (size_t i = 0; wanted_pair(it, i, &field, &wanted); i++) {
        compare_one(it, field, wanted);
        free(field);
        free(wanted);
    }
}

static void compare(item *it) {
    if (it->partitions && it->partitions != it->found_partitions) {
        differs_number(it, "partitions", it->partitions, it->found_partitions);
        it->more_partitions = it->partitions > it->found_partitions;
        if (!it->more_partitions) problem(it, "partitions", "Kafka cannot make them fewer");
    }
    if (it->replication && it->replication != it->found_replication) {
        differs_number(it, "replication", it->replication, it->found_replication);
        problem(it, "replication", "is changed with Kafka's own tools (kafka-reassign-partitions)");
    }
    compare_config(it);
}

/* ---- changing ---- */

static void check_topics(item *it, const rd_kafka_topic_result_t **list, size_t n, const char *what) {
    if (n == 1 && !rd_kafka_topic_result_error(list[0])) return;
    const char *why = n == 1 ? rd_kafka_topic_result_error_string(list[0]) : NULL;
    problem(it, what,
            why      ? why
            : n == 1 ? rd_kafka_err2str(rd_kafka_topic_result_error(list[0]))
                     : "no answer");
}

static void create(item *it, rd_kafka_t *rk, rd_kafka_queue_t *q) {
    char text[256];
    rd_kafka_NewTopic_t *t =
        rd_kafka_NewTopic_new(it->topic, it->partitions ? (int)it->partitions : 1,
                              it->replication ? (int)it->replication : -1, text, sizeof text);
    if (!t) {
        problem(it, "create", text);
        return;
    }
    char *field, *wanted;
    for (size_t i = 0; wanted_pair(it, i, &field, &wanted); i++) {
        rd_kafka_NewTopic_set_config(t, field, wanted);
        free(field);
        free(wanted);
    }
    rd_kafka_CreateTopics(rk, &t, 1, NULL, q);
    rd_kafka_event_t *ev = answered(it, "create", q);
    rd_kafka_NewTopic_destroy(t);
    if (!ev) return;
    size_t n;
    const rd_kafka_topic_result_t **list =
        rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(ev), &n);
    check_topics(it, list, n, "create");
    rd_kafka_event_destroy(ev);
}

static void add_partitions(item *it, rd_kafka_t *rk, rd_kafka_queue_t *q) {
    char text[256];
    rd_kafka_NewPartitions_t *p =
        rd_kafka_NewPartitions_new(it->topic, (size_t)it->partitions, text, sizeof text);
    if (!p) {
        problem(it, "partitions", text);
        return;
    }
    rd_kafka_CreatePartitions(rk, &p, 1, NULL, q);
    rd_kafka_event_t *ev = answered(it, "partitions", q);
    rd_kafka_NewPartitions_destroy(p);
    if (!ev) return;
    size_t n;
    const rd_kafka_topic_result_t **list =
        rd_kafka_CreatePartitions_result_topics(rd_kafka_event_CreatePartitions_result(ev), &n);
    check_topics(it, list, n, "partitions");
    rd_kafka_event_destroy(ev);
}

static bool is_wanted(const item *it, const char *field) {
    struct mw_json_value name, value;
    for (size_t i = 0; wanted_config(it, i, &name, &value); i++)
        if (strlen(field) == name.len && memcmp(field, name.text, name.len) == 0) return true;
    return false;
}

/* This call replaces all of a topic's own properties, so those that stay are sent along. */
static void change_config(item *it, rd_kafka_t *rk, rd_kafka_queue_t *q) {
    rd_kafka_ConfigResource_t *r = rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, it->topic);
    for (size_t i = 0; i < it->entry_count; i++)
        if (rd_kafka_ConfigEntry_source(it->entries[i]) == RD_KAFKA_CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG &&
            rd_kafka_ConfigEntry_value(it->entries[i]) &&
            !is_wanted(it, rd_kafka_ConfigEntry_name(it->entries[i])))
            rd_kafka_ConfigResource_set_config(r, rd_kafka_ConfigEntry_name(it->entries[i]),
                                               rd_kafka_ConfigEntry_value(it->entries[i]));
    char *field, *wanted;
    for (size_t i = 0; wanted_pair(it, i, &field, &wanted); i++) {
        rd_kafka_ConfigResource_set_config(r, field, wanted);
        free(field);
        free(wanted);
    }
    rd_kafka_AlterConfigs(rk, &r, 1, NULL, q);
    rd_kafka_event_t *ev = answered(it, "configuration", q);
    rd_kafka_ConfigResource_destroy(r);
    if (!ev) return;
    size_t n;
    const rd_kafka_ConfigResource_t **list =
        rd_kafka_AlterConfigs_result_resources(rd_kafka_event_AlterConfigs_result(ev), &n);
    if (n != 1 || rd_kafka_ConfigResource_error(list[0]))
        problem(it, "configuration", n == 1 ? rd_kafka_ConfigResource_error_string(list[0]) : "no answer");
    rd_kafka_event_destroy(ev);
}

/* ---- one item ---- */

static void settle_existing(item *it, rd_kafka_t *rk, rd_kafka_queue_t *q) {
    rd_kafka_event_t *described = describe(it, rk, q);
    if (!described) {
        it->state = "failed";
        return;
    }
    compare(it);
    if (it->request->show) {
        it->state = "present";
    } else if (!it->differences.len) {
        it->state = "same";
    } else if (!it->request->apply) {
        it->state = "different";
    } else {
        if (!*it->problem && it->more_partitions) add_partitions(it, rk, q);
        if (!*it->problem && it->other_config) change_config(it, rk, q);
        it->state = *it->problem ? "failed" : "changed";
    }
    rd_kafka_event_destroy(described);
}

static void settle_item(item *it, rd_kafka_t *rk, rd_kafka_queue_t *q) {
    int there = look(it, rk);
    if (there > 0) {
        settle_existing(it, rk, q);
    } else if (there < 0) {
        it->state = "failed";
    } else if (!it->request->apply) {
        it->state = "missing";
    } else {
        create(it, rk, q);
        it->state = *it->problem ? "failed" : "created";
    }
}

/* ---- the errand ---- */

static bool is_true(const request *r, const char *path) {
    struct mw_json_value v;
    return mw_json_find(r->doc, path, strlen(path), &v) == MW_JSON_TRUE;
}

static void work(kafka_errand *e) {
    request *r = (request *)e;
    struct mw_json_value op, items = {0};
    rd_kafka_t *rk = kafka_admin_handle(r->conn, &r->error);
    if (!rk || mw_json_find(r->doc, "op", 2, &op) != MW_JSON_STRING ||
        mw_json_find(r->doc, "items", 5, &items) != MW_JSON_ARRAY) {
        r->failed = true;
        if (rk) mw_fail(&r->error, MW_EUSAGE, false, "topology: the request has no op or no items");
        return;
    }
    r->apply = op.len == 5 && memcmp(op.text, "apply", 5) == 0;
    r->show = op.len == 4 && memcmp(op.text, "show", 4) == 0;
    r->force = is_true(r, "force");
    rd_kafka_queue_t *q = rd_kafka_queue_new(rk);
    mw_buf_puts(&r->answer, "{\"items\":[");
    for (uint32_t i = 0; i < items.count; i++) {
        char path[32];
        struct mw_json_value node;
        snprintf(path, sizeof path, "items.%u", i + 1);
        item it = {.request = r, .state = "failed"};
        mw_json_find(r->doc, path, strlen(path), &node);
        it.node = node.node;
        if (read_item(&it)) settle_item(&it, rk, q);
        put_item(&it);
        mw_buf_free(&it.differences);
    }
    mw_buf_puts(&r->answer, "]}");
    rd_kafka_queue_destroy(q);
}

static void done(kafka_errand *e, bool alive) {
    request *r = (request *)e;
    kafka_conn *c = r->conn;
    if (alive)
        c->host->topology(c->link, r->cookie, r->answer.data, r->answer.len, r->failed ? &r->error : NULL);
    mw_json_free(r->doc);
    mw_buf_free(&r->answer);
    free(r);
}

void kafka_topology(mw_conn *conn, const char *text, size_t len, void *cookie) {
    request *r = calloc(1, sizeof *r);
    if (!r || !(r->doc = mw_json_new())) abort();
    r->errand = (kafka_errand){.work = work, .done = done};
    r->conn = (kafka_conn *)conn;
    r->cookie = cookie;
    mw_json_parse(r->doc, text, len); /* a bad one has no items */
    kafka_conn_errand(r->conn, &r->errand);
}
