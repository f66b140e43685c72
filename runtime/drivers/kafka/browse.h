/* browse.h - what looking into topics and taking messages out of them share. All of it runs on the
 * connection's errand thread, except what says otherwise. */
#pragma once
#include <stdio.h>

#include "drivers/kafka/kafka.h"

void kafka_position_split(mw_position position, int32_t *partition, int64_t *offset);

int kafka_partition_count(kafka_conn *c, rd_kafka_t *rk, const char *topic,
                          rd_kafka_resp_err_t *err); /* -1: see err */
rd_kafka_resp_err_t kafka_look_metadata(kafka_conn *c, rd_kafka_t *rk, rd_kafka_topic_t *t,
                                        const struct rd_kafka_metadata **found);
const char *kafka_look_why(const kafka_conn *c, rd_kafka_resp_err_t err); /* valid until the next one */

/* remove.c: also for administration */
rd_kafka_t *kafka_admin_handle(kafka_conn *c, mw_error *e);

/* remove.c: Kafka cannot take out single messages. Which ones were replayed or purged stands in the commits
 * of a group that nobody consumes with, and browsing leaves them out. */
typedef struct kafka_removed kafka_removed;
kafka_removed *kafka_removed_read(kafka_conn *c, const char *topic, int partitions, rd_kafka_resp_err_t *err);
bool kafka_removed_has(const kafka_removed *r, int32_t partition, uint64_t offset);
void kafka_removed_free(kafka_removed *r); /* NULL is fine */
