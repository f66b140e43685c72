#include "drivers/kafka/errands.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

enum { PATIENCE_S = 5 };

struct kafka_errands {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    kafka_errand *todo, **todo_tail, *done, **done_tail;
    bool ending;
    bool deserted; /* nobody waits for it any more: the thread frees it */
    mw_wake wake;
};

static void destroy(kafka_errands *q) {
    for (kafka_errand *e = q->todo, *next; e; e = next) {
        next = e->next;
        e->done(e, false);
    }
    for (kafka_errand *e = q->done, *next; e; e = next) {
        next = e->next;
        e->done(e, false);
    }
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    free(q);
}

static void push(kafka_errand ***tail, kafka_errand *e) {
    e->next = NULL;
    **tail = e;
    *tail = &e->next;
}

static kafka_errand *next_errand(kafka_errands *q) { /* locked */
    while (!q->todo && !q->ending) pthread_cond_wait(&q->work, &q->lock);
    kafka_errand *e = q->todo;
    if (e && !(q->todo = e->next)) q->todo_tail = &q->todo;
    return e;
}

static void *run(void *given) {
    kafka_errands *q = given;
    pthread_mutex_lock(&q->lock);
    for (kafka_errand *e; (e = next_errand(q));) {
        pthread_mutex_unlock(&q->lock);
        e->work(e);
        pthread_mutex_lock(&q->lock);
        push(&q->done_tail, e);
        if (!q->ending) mw_wake_signal(&q->wake);
    }
    bool deserted = q->deserted;
    pthread_mutex_unlock(&q->lock);
    if (deserted) destroy(q);
    return NULL;
}

static void woken(mw_wake *w) {
    kafka_errands *q = mw_container_of(w, kafka_errands, wake);
    pthread_mutex_lock(&q->lock);
    kafka_errand *e = q->done;
    q->done = NULL;
    q->done_tail = &q->done;
    pthread_mutex_unlock(&q->lock);
    for (kafka_errand *next; e; e = next) { /* the last one may free the queue itself */
        next = e->next;
        e->done(e, true);
    }
}

kafka_errands *kafka_errands_new(mw_loop *loop) {
    kafka_errands *q = calloc(1, sizeof *q);
    if (!q) abort();
    q->todo_tail = &q->todo;
    q->done_tail = &q->done;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    if (mw_wake_start(loop, &q->wake, woken)) abort();
    sigset_t all, before; /* signals belong to the loop's thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&q->thread, NULL, run, q)) abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return q;
}

void kafka_errands_send(kafka_errands *q, kafka_errand *e) {
    pthread_mutex_lock(&q->lock);
    push(&q->todo_tail, e);
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

bool kafka_errands_free(kafka_errands *q) {
    if (!q) return true;
    pthread_mutex_lock(&q->lock);
    q->ending = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    bool ended = pthread_timedjoin_np(q->thread, NULL, &until) == 0;
    mw_wake_stop(&q->wake);
    if (!ended) {
        pthread_mutex_lock(&q->lock);
        q->deserted = true;
        pthread_mutex_unlock(&q->lock);
        ended = pthread_tryjoin_np(q->thread, NULL) == 0; /* it may have ended without seeing the flag */
        if (!ended) pthread_detach(q->thread);
    }
    if (ended) destroy(q);
    return ended;
}
