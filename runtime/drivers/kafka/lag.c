/* lag.c - how far behind a subscription is, from what librdkafka knows anyway: every answer to a fetch tells
 * the partition's end. Nothing is asked for, nothing waits. A consumer knows the partitions it has. */
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
        if (p->early && (!out->next_due_ms || p->early_due < out->next_due_ms))
            out->next_due_ms = p->early_due;
        if (lag && p->newest_ms && (!out->oldest_ms || p->newest_ms < out->oldest_ms))
            out->oldest_ms = p->newest_ms;
        out->unsettled += kafka_marks_pending(p->marks);
    }
    if (s->gathering.len || s->committing.len) out->unsettled++;
    return true;
}

size_t kafka_places(mw_sub *sub, mw_place *out, size_t max) {
    kafka_sub *s = (kafka_sub *)sub;
    size_t n = 0;
    for (uint32_t i = 0; i < s->part_count && n < max; i++) {
        const kafka_part *p = s->parts[i];
        mw_place *place = &out[n];
        uint64_t lag;
        if (!lag_of(p, &lag)) continue;
        int64_t behind = p->newest_ms ? mw_loop_wall_ms(s->conn->loop) - p->newest_ms : -1;
        *place = (mw_place){.lag = lag,
                            .unsettled = kafka_marks_pending(p->marks),
                            .position = kafka_marks_mark(p->marks),
                            .behind_ms = !lag         ? 0
                                         : behind > 0 ? behind
                                         : behind < 0 ? -1
                                                      : 0};
        if (p->topic)
            snprintf(place->name, sizeof place->name, "retry %u:%d", p->topic, p->partition);
        else
            snprintf(place->name, sizeof place->name, "%d", p->partition);
        n++;
    }
    return n;
}
