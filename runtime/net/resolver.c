#include "net/resolver.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MOST_LOOKUPS: threads at once. A resolver that never answers must not gather them for ever. */
enum { MOST_LOOKUPS = 64, STACK = 1 << 20 };

static atomic_int lookups;

struct mw_lookup {
    pthread_mutex_t lock;
    bool finished, unwanted; /* the thread's last word, and the loop's; who speaks second frees */
    mw_wake wake;
    void (*done)(void *owner);
    void *owner;
    bool told; /* on the loop: the wake-up came */
    char *host;
    int port;
    int code, error; /* of getaddrinfo, and its errno */
    struct addrinfo *found;
};

static void free_lookup(mw_lookup *l) {
    if (l->found) freeaddrinfo(l->found);
    pthread_mutex_destroy(&l->lock);
    free(l->host);
    free(l);
}

static void *look_up(void *arg) {
    mw_lookup *l = arg;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int code = getaddrinfo(l->host, NULL, &hints, &found), error = errno;
    atomic_fetch_sub(&lookups, 1);
    pthread_mutex_lock(&l->lock);
    l->code = code;
    l->error = error;
    l->found = code ? NULL : found;
    l->finished = true;
    bool unwanted = l->unwanted;
    if (!unwanted) mw_wake_signal(&l->wake); /* under the lock: the descriptor is closed by mw_lookup_end */
    pthread_mutex_unlock(&l->lock);
    if (unwanted) free_lookup(l);
    return NULL;
}

/* Signals are the loop's. */
static int start_thread(mw_lookup *l) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&thread, &attributes, look_up, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return code;
}

static void woken(mw_wake *w) {
    mw_lookup *l = mw_container_of(w, mw_lookup, wake);
    if (l->told) return;
    l->told = true;
    l->done(l->owner);
}

mw_lookup *mw_lookup_start(mw_loop *loop, const char *host, int port, void (*done)(void *owner), void *owner,
                           mw_error *e) {
    if (atomic_fetch_add(&lookups, 1) >= MOST_LOOKUPS) {
        atomic_fetch_sub(&lookups, 1);
        mw_fail(e, EAGAIN, true, "cannot look up %s: %d lookups wait for the name server already", host,
                MOST_LOOKUPS);
        return NULL;
    }
    mw_lookup *l = calloc(1, sizeof *l);
    if (!l || !(l->host = strdup(host))) abort();
    l->port = port;
    l->done = done;
    l->owner = owner;
    pthread_mutex_init(&l->lock, NULL);
    int code = mw_wake_start(loop, &l->wake, woken) ? errno : start_thread(l);
    if (code == 0) return l;
    atomic_fetch_sub(&lookups, 1);
    mw_wake_stop(&l->wake);
    free_lookup(l);
    mw_fail(e, code, true, "cannot look up %s: %s", host, strerror(code));
    return NULL;
}

bool mw_lookup_is_done(const mw_lookup *l) { return l->told; }

static bool add_address(const struct sockaddr *from, socklen_t len, int port, mw_address *out) {
    if ((from->sa_family != AF_INET && from->sa_family != AF_INET6) || len > sizeof out->at) return false;
    memcpy(&out->at, from, len);
    out->len = len;
    if (from->sa_family == AF_INET)
        ((struct sockaddr_in *)&out->at)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)&out->at)->sin6_port = htons((uint16_t)port);
    return true;
}

int mw_lookup_take(mw_lookup *l, mw_address out[MW_ADDRESSES], mw_error *e) {
    if (l->code)
        return mw_fail(e, l->code == EAI_SYSTEM ? l->error : ENOENT, true, "cannot look up %s: %s", l->host,
                       l->code == EAI_SYSTEM ? strerror(l->error) : gai_strerror(l->code));
    int n = 0;
    for (struct addrinfo *a = l->found; a && n < MW_ADDRESSES; a = a->ai_next)
        n += add_address(a->ai_addr, a->ai_addrlen, l->port, &out[n]);
    if (n == 0) return mw_fail(e, ENOENT, true, "cannot look up %s: it has no IP address", l->host);
    return n;
}

void mw_lookup_end(mw_lookup *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->unwanted = true;
    bool finished = l->finished;
    mw_wake_stop(&l->wake);
    pthread_mutex_unlock(&l->lock);
    if (finished) free_lookup(l);
}

bool mw_address_literal(const char *host, int port, mw_address *out) {
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, NULL, &hints, &found)) return false; /* never asks anybody with this flag */
    bool good = add_address(found->ai_addr, found->ai_addrlen, port, out);
    freeaddrinfo(found);
    return good;
}
