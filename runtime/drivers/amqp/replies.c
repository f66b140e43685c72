/* replies.c - replies by direct reply-to go out on a line of their own. The address comes with the request,
 * from anybody, and RabbitMQ closes the whole connection over one that it cannot read, or whose node is gone:
 * on the publishing line that would cost all that is under way there, again at each attempt.
 *
 * Which one it was the broker does not say. So those that were under way go again, one at a time; the one that
 * was alone is the one, and fails for good. Whoever asked recognises a reply that comes twice.
 *
 * The line belongs to a connection that has nothing else (rmq_conn.replier): out.c serves it like any other. */
#include <stdlib.h>
#include <string.h>

#include "drivers/amqp/amqp.h"

static void say_nothing(mw_link *link, bool up, const mw_error *why) { (void)link, (void)up, (void)why; }

static const mw_host nobody = {.state = say_nothing};

bool rmq_is_direct_reply(const rmq_target *to, const char *key) {
    static const char prefix[] = "amq.rabbitmq.reply-to.";
    return to->kind == RMQ_TO_EXCHANGE && !*to->exchange && key &&
           strncmp(key, prefix, sizeof prefix - 1) == 0;
}

rmq_conn *rmq_replier(rmq_conn *c) {
    if (c->replier) return c->replier;
    rmq_conn *r = c->replier = calloc(1, sizeof *r);
    if (!r) abort();
    r->loop = c->loop;
    r->link = c->link;
    r->host = &nobody;
    r->settings = c->settings;
    r->blocked_ms = c->blocked_ms;
    r->defaults.delivery_limit = -1;
    r->first_seq = r->next_seq = 1;
    r->replies = true;
    return r;
}

void rmq_replier_close(rmq_conn *c) {
    rmq_conn *r = c->replier;
    if (!r) return;
    rmq_out_close(r);
    rmq_targets_free(r);
    mw_headers_free(&r->scratch);
    free(r);
    c->replier = NULL;
}

void rmq_replies_lost(rmq_conn *c, rmq_fifo *sent) {
    bool one = sent->first && !sent->first->next, culprit = c->out->closed_with == RMQ_INTERNAL_ERROR;
    if (!c->replies || !sent->first) return;
    if (c->alone) c->alone--;
    if (!culprit) return;
    if (one) {
        rmq_pub *p = rmq_fifo_pop(sent);
        mw_error e;
        mw_fail(&e, MW_EUSAGE, false,
                "the broker cannot reply to \"%s\": the header reply-to of the message is no address of its, "
                "or of a node that is gone",
                p->key);
        rmq_target_over(c, p, false);
        rmq_finish(p, &e);
        return;
    }
    rmq_fifo later = c->ready;
    c->ready = *sent;
    for (rmq_pub *p = sent->first; p; p = p->next) c->alone++;
    for (rmq_pub *p; (p = rmq_fifo_pop(&later));) rmq_fifo_push(&c->ready, p);
    *sent = (rmq_fifo){0};
}
