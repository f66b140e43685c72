/* count.c - the position of the newest message of a queue: how many there are, by a job on the admin channel,
 * without getting any. The look (look.h) stays browse.c's, which answers it. */
#include <stdlib.h>

#include "drivers/amqp/admin/look.h"

typedef struct counting {
    rmq_job job;
    rmq_look *look;
} counting;

static void count_start(rmq_job *job, rmq_conn *c, mw_buf *out) {
    (void)c;
    rmq_put_queue_declare(out, RMQ_CHAN_ADMIN, mw_container_of(job, counting, job)->look->queue, NULL, true);
}

static bool count_over(rmq_job *job, uint64_t count, const mw_error *e) {
    counting *k = mw_container_of(job, counting, job);
    rmq_look *l = k->look;
    free(k);
    l->counting = false;
    if (e) l->error = *e;
    l->browse.after = (mw_position){.high = count, .low = count ? UINT64_MAX : 0};
    if (!e && !count && rmq_may_be_stream(l->conn, l->queue))
        rmq_look_go(l);
    else
        rmq_look_answer(l);
    return true;
}

static bool count_reply(rmq_job *job, rmq_conn *c, uint32_t method, rmq_reader *r) {
    (void)c, (void)method;
    rmq_short(r);
    return count_over(job, rmq_u32(r), NULL);
}

static bool count_failed(rmq_job *job, rmq_conn *c, int code, const mw_error *why) {
    (void)c;
    if (code < 0) {
        free(mw_container_of(job, counting, job));
        return true;
    }
    return count_over(job, 0, code == 404 ? NULL : why);
}

void rmq_look_count(rmq_look *l) {
    counting *k = calloc(1, sizeof *k);
    if (!k) abort();
    l->counting = true;
    *k = (counting){.job = {.start = count_start, .reply = count_reply, .failed = count_failed}, .look = l};
    rmq_job_add(l->conn, &k->job);
}
