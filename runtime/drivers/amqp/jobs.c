/* jobs.c - what is asked of the broker on the admin channel of the publishing line: declaring, binding,
 * counting. One job at a time, because an error closes the channel, and it must be known whose it was.
 * Whoever adds a job owns it: it is embedded in something, and ends by its own answer (amqp.h: rmq_job). */
#include "drivers/amqp/amqp.h"

static void start_job(rmq_conn *c) {
    if (!c->job && c->jobs) {
        c->job = c->jobs;
        c->jobs = c->job->next;
        if (!c->jobs) c->jobs_end = &c->jobs;
    }
    if (!c->job || c->job_sent || !c->admin.open) return;
    mw_buf *b = rmq_line_out(c->out);
    c->job_sent = true;
    c->job->start(c->job, c, b);
    rmq_line_send(c->out);
}

void rmq_job_add(rmq_conn *c, rmq_job *j) {
    if (!rmq_out(c)) return;
    if (!c->jobs_end) c->jobs_end = &c->jobs;
    j->next = NULL;
    *c->jobs_end = j;
    c->jobs_end = &j->next;
    start_job(c);
}

void rmq_jobs_lost(rmq_conn *c, const mw_error *why) {
    rmq_job *list = c->jobs, *first = c->job_sent ? NULL : c->job;
    c->jobs = NULL;
    c->jobs_end = &c->jobs;
    if (first) {
        c->job = NULL;
        if (!first->failed(first, c, 0, why)) c->job = first;
    }
    for (rmq_job *j = list, *next; j; j = next) {
        next = j->next;
        if (!j->failed(j, c, 0, why)) rmq_job_add(c, j);
    }
}

static void admin_opened(rmq_chan *chan) { start_job(chan->owner); }

static void admin_closed(rmq_chan *chan, int code, const mw_error *why) {
    rmq_conn *c = chan->owner;
    if (!c->job || !c->job_sent) return;
    rmq_job *j = c->job;
    c->job_sent = false;
    c->job = NULL;
    if (!j->failed(j, c, code, why)) c->job = j;
}

static void admin_method(rmq_chan *chan, uint32_t method, rmq_reader *r) {
    rmq_conn *c = chan->owner;
    if (!c->job || !c->job_sent) return;
    rmq_job *j = c->job;
    c->job_sent = false;
    c->job = NULL;
    if (!j->reply(j, c, method, r)) c->job = j;
    start_job(c);
}

static void admin_content(rmq_chan *chan, rmq_content *k) {
    rmq_conn *c = chan->owner;
    if (!c->job || !c->job_sent || !c->job->content) return;
    rmq_job *j = c->job;
    c->job_sent = false;
    c->job = NULL;
    if (!j->content(j, c, k)) c->job = j;
    start_job(c);
}

const rmq_chan_events rmq_admin_events = {
    .opened = admin_opened, .closed = admin_closed, .method = admin_method, .content = admin_content};
