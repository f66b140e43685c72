/* ahead.c - how much is fetched ahead. librdkafka's limit is one for each partition, and it is set before the
 * consumer is made; so the brokers are asked how many partitions there are, and all of them together get a
 * budget: the pipeline's buffer.bytes, within bounds. Then the consumer joins its group. A partition whose
 * share was full is fetched from again as soon as a part of it is taken: see kafka_ahead_taken. */
#include <stdlib.h>

#include "drivers/kafka/kafka.h"

enum { ASK_MS = 1000, AGAIN_MS = 300, GUESS = 16 };
enum { PARTS = 4 }; /* of what a partition may hold: when one is taken, its fetcher is woken */
enum { BUDGET_LEAST = 16 << 20, BUDGET_MOST = 64 << 20, SHARE_LEAST = 128 << 10 };

typedef struct asking {
    kafka_errand errand;
    kafka_sub *sub;
    rd_kafka_t *rk;
    uint32_t life, partitions;
    rd_kafka_resp_err_t err;
} asking;

size_t kafka_ahead_share(const kafka_sub *s) {
    size_t budget = s->buffer_bytes < BUDGET_LEAST  ? BUDGET_LEAST
                    : s->buffer_bytes > BUDGET_MOST ? BUDGET_MOST
                                                    : s->buffer_bytes;
    size_t share = budget / (s->partitions ? s->partitions : GUESS);
    return share < SHARE_LEAST ? SHARE_LEAST : share;
}

/* On the thread. A topic that is not there, or not to be seen, has no partitions: what is wrong with it is
 * told when it is subscribed to. */
static void ask(kafka_errand *e) {
    asking *a = (asking *)e;
    for (uint32_t i = 0; i < a->sub->topic_count && !a->err; i++) {
        const struct rd_kafka_metadata *answer;
        rd_kafka_topic_t *topic = rd_kafka_topic_new(a->rk, a->sub->topics[i], NULL);
        if (!topic) continue;
        a->err = rd_kafka_metadata(a->rk, 0, topic, &answer, ASK_MS);
        if (!a->err && answer->topic_cnt) a->partitions += (uint32_t)answer->topics[0].partition_cnt;
        if (!a->err) rd_kafka_metadata_destroy(answer);
        rd_kafka_topic_destroy(topic);
    }
}

static void again(mw_timer *t) { kafka_ahead_ask(mw_container_of(t, kafka_sub, rise_timer)); }

static void asked(kafka_errand *e, bool alive) {
    asking *a = (asking *)e;
    kafka_sub *s = a->sub;
    if (alive && a->life == s->life && s->state == KAFKA_OPEN && !s->fatal) {
        size_t before = kafka_ahead_share(s);
        if (a->err) {
            mw_timer_start(s->conn->loop, &s->rise_timer, AGAIN_MS, again);
        } else {
            s->partitions = a->partitions ? a->partitions : GUESS;
            if (kafka_ahead_share(s) == before && !kafka_conf_given(s->conn, "partition.assignment.strategy"))
                kafka_sub_join(s);
            else
                kafka_sub_renew(s);
        }
    }
    free(a);
}

void kafka_ahead_ask(kafka_sub *s) {
    asking *a = calloc(1, sizeof *a);
    if (!a) abort();
    *a = (asking){.errand = {.work = ask, .done = asked}, .sub = s, .rk = s->rk, .life = s->life};
    kafka_errands_send(s->errands, &a->errand);
}

/* ---- room again ---- */

/* false: longer than `size`; "" when there is none */
static bool setting(kafka_sub *s, const char *name, char *out, size_t size) {
    size_t need = size;
    if (rd_kafka_conf_get(rd_kafka_conf(s->rk), name, out, &need) != RD_KAFKA_CONF_OK) *out = '\0', need = 1;
    return need <= size;
}

/* Before 2.2 a broker's thread that found the shares full sleeps on, up to a second, however soon there is
 * room. Nothing in the API is made to wake it; new SASL credentials do, and the ones it has change nothing. */
static void wake_fetchers(kafka_sub *s) {
    char user[1024], password[4096];
    if (!setting(s, "sasl.username", user, sizeof user)) return;
    if (!setting(s, "sasl.password", password, sizeof password)) return;
    rd_kafka_error_t *err = rd_kafka_sasl_set_credentials(s->rk, user, password);
    if (err) rd_kafka_error_destroy(err);
}

static size_t number(kafka_sub *s, const char *name) {
    char text[32];
    return setting(s, name, text, sizeof text) ? (size_t)strtoull(text, NULL, 10) : 0;
}

/* A partition is full when it has so many messages, or so many bytes: ours or the user's. While it is emptied
 * its fetcher is woken several times, so that at least one of them finds room. */
void kafka_ahead_made(kafka_sub *s) {
    s->wake_bytes = number(s, "queued.max.messages.kbytes") * 1024 / PARTS;
    s->wake_count = number(s, "queued.min.messages") / PARTS;
    s->taken_bytes = s->taken_count = 0;
}

void kafka_ahead_taken(kafka_sub *s) {
    if (s->taken_bytes <= s->wake_bytes && s->taken_count <= s->wake_count) return;
    s->taken_bytes = s->taken_count = 0;
    if (rd_kafka_version() < 0x020200ff) wake_fetchers(s); /* later ones have fetch.queue.backoff.ms */
}
