/* errands.h - a thread that makes the calls of librdkafka that block (metadata, committed offsets,
 * administration, the end of a handle), one after the other, and hands the results back to the loop. */
#pragma once
#include <stdbool.h>

#include "loop/loop.h"

typedef struct kafka_errands kafka_errands;
typedef struct kafka_errand kafka_errand;
struct kafka_errand { /* embed it first */
    kafka_errand *next;
    void (*work)(kafka_errand *e);             /* on the thread */
    void (*done)(kafka_errand *e, bool alive); /* on the loop, frees it; not alive: only that */
};

kafka_errands *kafka_errands_new(mw_loop *loop);
void kafka_errands_send(kafka_errands *q, kafka_errand *e);
/* Ends the thread when what it was given is done, within a few seconds. false: it is left to itself, and so
 * must be everything that its errands use. NULL is fine. */
bool kafka_errands_free(kafka_errands *q);
