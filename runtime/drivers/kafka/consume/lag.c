/* lag.c - how far behind a subscription is, from what librdkafka knows anyway: every answer to a fetch tells
 * the partition's end. Nothing is asked for, nothing waits. A consumer knows the partitions it has. How old
 * the next message of a partition is, is known when it has been fetched; it is taken out of the queue for
 * that, and delivered as if it were still there. */
#include <stdio.h>

#include "drivers/kafka/kafka.h"

/* false: not known yet */
static bool lag_of(const kafka_part *p, uint64_t *lag) {
    int64_t low, high;
    if (!p->marks ||
        rd_kafka_get_watermark_offsets(p->sub->rk, kafka_part_topic(p), p->partition, &low, &high) ||
        high < 0)
        return false;
    uint64_t next = kafka_marks_next(p->marks);
    *lag = (uint64_t)high > next ? (uint64_t)high - next : 0;
    return true;
}

bool kafka_depth(mw_sub *sub, mw_depth *out) {
    kafka_sub *s = (kafka_sub *)sub;
    *out =
        (mw_depth){.known = s->assigned_once && !s->revoked && s->state != KAFKA_FALLEN, .own_share = true};
    for (uint32_t i = 0; i < s->part_count; i++) {
        kafka_part *p = s->parts[i];
        uint64_t lag;
        if (!lag_of(p, &lag)) {
            out->known = false;
            continue;
        }
        if (p->topic)
            out->delayed += lag;
        else
            out->ready += lag;
        int64_t next = lag ? kafka_part_next_ms(p) : 0;
        if (next && (!out->oldest_ms || next < out->oldest_ms)) out->oldest_ms = next;
        if (p->topic && p->early && (!out->next_due_ms || p->early_due < out->next_due_ms))
            out->next_due_ms = p->early_due;
        out->unsettled += kafka_marks_pending(p->marks);
    }
    if (s->gathering.len || s->committing.len) out->unsettled++;
    return true;
}

size_t kafka_places(mw_sub *sub, mw_place *out, size_t max) {
    kafka_sub *s = (kafka_sub *)sub;
    size_t n = 0;
    for (uint32_t i = 0; i < s->part_count && n < max; i++) {
        kafka_part *p = s->parts[i];
        mw_place *place = &out[n];
        uint64_t lag;
        if (!lag_of(p, &lag)) continue;
        int64_t next = lag ? kafka_part_next_ms(p) : 0;
        int64_t age = next ? mw_loop_wall_ms(s->conn->loop) - next : -1;
        *place = (mw_place){.lag = lag,
                            .unsettled = kafka_marks_pending(p->marks),
                            .position = kafka_marks_mark(p->marks),
                            .next = kafka_marks_next(p->marks),
                            .behind_ms = !lag || (next && age < 0) ? 0 : age};
        if (p->topic)
            snprintf(place->name, sizeof place->name, "retry %u:%d", p->topic, p->partition);
        else
            snprintf(place->name, sizeof place->name, "%d", p->partition);
        n++;
    }
    return n;
}
