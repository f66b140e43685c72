/* raw_kafka.c - librdkafka by itself, with the settings that our driver gives it: what consuming and
 * producing cost without Moonwire. raw_kafka produce BOOTSTRAP TOPIC COUNT BODY KEYS raw_kafka consume
 * BOOTSTRAP TOPIC COUNT GROUP Prints one JSON object: seconds by the wall clock and of CPU, from the first
 * message to the last. */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void die(const char *what, const char *why) {
    fprintf(stderr, "raw_kafka: %s: %s\n", what, why);
    exit(1);
}

static rd_kafka_t *handle(rd_kafka_type_t type, const char *const *pairs) {
    char text[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    for (; *pairs; pairs += 2)
        if (rd_kafka_conf_set(conf, pairs[0], pairs[1], text, sizeof text)) die(pairs[0], text);
    if (type == RD_KAFKA_PRODUCER) rd_kafka_conf_set_events(conf, RD_KAFKA_EVENT_DR);
    rd_kafka_t *rk = rd_kafka_new(type, conf, text, sizeof text);
    if (!rk) die("rd_kafka_new", text);
    return rk;
}

static long take_reports(rd_kafka_queue_t *q, int wait_ms) {
    long n = 0;
    for (rd_kafka_event_t *ev; (ev = rd_kafka_queue_poll(q, wait_ms)); wait_ms = 0) {
        for (const rd_kafka_message_t *m; (m = rd_kafka_event_message_next(ev)); n++)
            if (m->err) die("delivery", rd_kafka_err2str(m->err));
        rd_kafka_event_destroy(ev);
    }
    return n;
}

static void produce(char **argv) {
    const char *pairs[] = {
        "bootstrap.servers", argv[2], "enable.idempotence", "true", "linger.ms", "1", NULL};
    long count = atol(argv[4]), body = atol(argv[5]), keys = atol(argv[6]), done = 0;
    rd_kafka_t *rk = handle(RD_KAFKA_PRODUCER, pairs);
    rd_kafka_queue_t *q = rd_kafka_queue_get_main(rk);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[3], NULL);
    char *bytes = malloc((size_t)body + 32);
    memset(bytes, 'x', (size_t)body + 32);
    double wall = now(), used = cpu();
    for (long i = 0; i < count;) {
        char key[32];
        int n = snprintf(key, sizeof key, "k%ld", i % keys);
        snprintf(bytes, 16, "%012ld", i);
        bytes[12] = 'x';
        rd_kafka_headers_t *headers = rd_kafka_headers_new(8); /* the id that every message of ours has */
        char id[40];
        int id_len = snprintf(id, sizeof id, "%036ld", i);
        rd_kafka_header_add(headers, "mw-id", 5, id, id_len);
        rd_kafka_resp_err_t err =
            rd_kafka_producev(rk, RD_KAFKA_V_RKT(topic), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                              RD_KAFKA_V_VALUE(bytes, (size_t)body), RD_KAFKA_V_KEY(key, (size_t)n),
                              RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_END);
        if (!err) i++;
        if (err) rd_kafka_headers_destroy(headers);
        if (err && err != RD_KAFKA_RESP_ERR__QUEUE_FULL) die("produce", rd_kafka_err2str(err));
        if (err || i % 1000 == 0) done += take_reports(q, err ? 10 : 0);
    }
    while (done < count) done += take_reports(q, 100);
    printf("{\"wall\":%.6f,\"cpu\":%.6f}\n", now() - wall, cpu() - used);
}

static void consume(char **argv) {
    const char *pairs[] = {"bootstrap.servers",
                           argv[2],
                           "group.id",
                           argv[5],
                           "auto.offset.reset",
                           "earliest",
                           "enable.auto.offset.store",
                           "false",
                           "auto.commit.interval.ms",
                           "1000",
                           "queued.min.messages",
                           "200000",
                           "fetch.wait.max.ms",
                           "100",
                           NULL};
    long count = atol(argv[4]), n = 0;
    rd_kafka_t *rk = handle(RD_KAFKA_CONSUMER, pairs);
    rd_kafka_poll_set_consumer(rk);
    rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, argv[3], RD_KAFKA_PARTITION_UA);
    rd_kafka_subscribe(rk, topics);
    double wall = 0, used = 0;
    while (n < count) {
        rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, 10000);
        if (!m) die("consume", "nothing for 10 s");
        if (!m->err) {
            if (!n++) {
                wall = now();
                used = cpu();
            }
            rd_kafka_offset_store(m->rkt, m->partition, m->offset);
        }
        rd_kafka_message_destroy(m);
    }
    rd_kafka_commit(rk, NULL, 0);
    printf("{\"wall\":%.6f,\"cpu\":%.6f}\n", now() - wall, cpu() - used);
    fflush(stdout);
    _Exit(0);
}

int main(int argc, char **argv) {
    if (argc == 7 && !strcmp(argv[1], "produce"))
        produce(argv);
    else if (argc == 6 && !strcmp(argv[1], "consume"))
        consume(argv);
    else
        die("usage", "produce BOOTSTRAP TOPIC COUNT BODY KEYS | consume BOOTSTRAP TOPIC COUNT GROUP");
    return 0;
}
