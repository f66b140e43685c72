/* lag.c - how far behind a subscription is, from what librdkafka knows anyway: every answer to a fetch tells
 * the partition's end. Nothing is asked for, nothing waits. */
#include "drivers/kafka/kafka.h"

bool kafka_depth(mw_sub *sub, mw_depth *out) {
    kafka_sub *s = (kafka_sub *)sub;
    *out = (mw_depth){.known = s->assigned_once && !s->revoked};
    for (uint32_t i = 0; i < s->part_count; i++) {
        kafka_part *p = s->parts[i];
        int64_t low, high;
        if (!p->marks || rd_kafka_get_watermark_offsets(s->rk, s->topic, p->partition, &low, &high) ||
            high < 0) {
            out->known = false;
            continue;
        }
        uint64_t next = kafka_marks_next(p->marks);
        if ((uint64_t)high > next) out->ready += (uint64_t)high - next;
        out->unsettled += kafka_marks_pending(p->marks);
    }
    if (s->gathering.len || s->committing.len) out->unsettled++;
    return true;
}
