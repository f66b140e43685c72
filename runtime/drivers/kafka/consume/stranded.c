/* stranded.c - retry topics that the configuration does not name any more. A delay that is taken out of
 * `retry.topics` leaves a topic behind in which messages may wait, and they are settled in the channel
 * already: nobody but this group would ever handle them. A group has commits in every retry topic it has
 * read, so those tell which ones are its own; one in which something is left is read along with the others.
 * Looked at when the first partitions are there, and now and then: whoever still has the old configuration
 * may put something there.
 *
 * ListConsumerGroupOffsets would tell all of a group's commits at once. But requests of the admin API to a
 * coordinator end the process when it was away for longer than they waited, and comes back (an assertion,
 * 2.0: `eonce->refcnt > 0`). So the topics come from the metadata, and their commits as a consumer asks. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "drivers/kafka/kafka.h"

enum { ASK_MS = 3000, AGAIN_MS = 10 * 60 * 1000, FAILED_MS = 3000 };

typedef struct left_over {
    char *topic;
    int64_t count;
} left_over;

typedef struct looking {
    kafka_errand errand;
    kafka_sub *sub;
    rd_kafka_t *rk;
    uint32_t life;
    mw_buf found; /* of left_over */
    rd_kafka_resp_err_t err;
} looking;

/* ---- on the thread; of the subscription only what does not change meanwhile is read ---- */

/* "CHANNEL.retry.5s", "CHANNEL.retry.300ms" */
static bool is_retry_topic(const kafka_sub *s, const char *name) {
    static const char middle[] = ".retry.";
    size_t len = strlen(s->topic);
    if (strncmp(name, s->topic, len) != 0 || strncmp(name + len, middle, sizeof middle - 1) != 0)
        return false;
    const char *digits = name + len + sizeof middle - 1, *unit = digits;
    while (isdigit((unsigned char)*unit)) unit++;
    return unit > digits && (strcmp(unit, "s") == 0 || strcmp(unit, "ms") == 0);
}

static bool is_read(const kafka_sub *s, const char *name) {
    for (uint32_t i = 0; i < s->topic_count; i++)
        if (strcmp(s->topics[i], name) == 0) return true;
    return false;
}

static void count(looking *l, const rd_kafka_topic_partition_t *p) {
    int64_t low, high;
    if (p->err || p->offset < 0) return; /* the group has never read it */
    rd_kafka_resp_err_t err =
        rd_kafka_query_watermark_offsets(l->rk, p->topic, p->partition, &low, &high, ASK_MS);
    if (err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART || err == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION ||
        err == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC)
        return; /* deleted */
    if (err) l->err = err;
    int64_t from = p->offset > low ? p->offset : low;
    if (err || high <= from) return;
    left_over *list = (left_over *)(void *)l->found.data;
    size_t n = l->found.len / sizeof *list, i = 0;
    while (i < n && strcmp(list[i].topic, p->topic) != 0) i++;
    if (i < n) {
        list[i].count += high - from;
        return;
    }
    left_over one = {.topic = strdup(p->topic), .count = high - from};
    if (!one.topic) abort();
    mw_buf_add(&l->found, &one, sizeof one);
}

/* NULL, and why: nobody tells which topics there are. */
static rd_kafka_topic_partition_list_t *former_topics(looking *l) {
    const struct rd_kafka_metadata *all;
    if ((l->err = rd_kafka_metadata(l->rk, 1, NULL, &all, ASK_MS))) return NULL;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(0);
    for (int i = 0; i < all->topic_cnt; i++) {
        const struct rd_kafka_metadata_topic *t = &all->topics[i];
        if (t->err || !is_retry_topic(l->sub, t->topic) || is_read(l->sub, t->topic)) continue;
        for (int k = 0; k < t->partition_cnt; k++)
            rd_kafka_topic_partition_list_add(list, t->topic, t->partitions[k].id);
    }
    rd_kafka_metadata_destroy(all);
    return list;
}

static void look(kafka_errand *e) {
    looking *l = (looking *)e;
    rd_kafka_topic_partition_list_t *list = former_topics(l);
    if (!list) return;
    if (list->cnt) l->err = rd_kafka_committed(l->rk, list, ASK_MS);
    for (int i = 0; i < list->cnt && !l->err; i++) count(l, &list->elems[i]);
    rd_kafka_topic_partition_list_destroy(list);
}

/* ---- on the loop ---- */

static void tell(const kafka_sub *s, const left_over *x, bool room) {
    mw_log_begin(MW_WARN, room ? "kafka: a retry topic that no delay of `retry.topics` names any more still "
                                 "has messages; reading them, too"
                               : "kafka: a retry topic that no delay of `retry.topics` names any more still "
                                 "has messages, and there are too many of such topics: restart to read it");
    mw_log_text("topic", x->topic);
    mw_log_text("group", s->group);
    mw_log_int("messages", x->count);
    mw_log_end();
}

static void again(mw_timer *t) { kafka_stranded_look(mw_container_of(t, kafka_sub, stranded_timer)); }

static void looked(kafka_errand *e, bool alive) {
    looking *l = (looking *)e;
    kafka_sub *s = l->sub;
    bool ours = alive && l->life == s->life && s->state == KAFKA_OPEN, more = false;
    left_over *list = (left_over *)(void *)l->found.data;
    for (size_t i = 0; i < l->found.len / sizeof *list; i++) {
        bool room = ours && s->topic_count < KAFKA_TOPICS;
        if (ours) tell(s, &list[i], room);
        if (room)
            s->topics[s->topic_count++] = list[i].topic;
        else
            free(list[i].topic);
        more = more || room;
    }
    mw_buf_free(&l->found);
    if (more) kafka_sub_join(s);
    if (ours) mw_timer_start(s->conn->loop, &s->stranded_timer, l->err ? FAILED_MS : AGAIN_MS, again);
    free(l);
}

void kafka_stranded_look(kafka_sub *s) {
    looking *l = calloc(1, sizeof *l);
    if (!l) abort();
    *l = (looking){.errand = {.work = look, .done = looked}, .sub = s, .rk = s->rk, .life = s->life};
    kafka_errands_send(s->errands, &l->errand);
}
