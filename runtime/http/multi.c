/* multi.c - libcurl's multi interface on the loop: its sockets are mw_io, its one timeout is an mw_timer.
 * Inside curl's callbacks nothing is called back into curl; finished transfers are collected after each
 * action. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/internal.h"

enum {
    POOL = 64,              /* idle easy handles kept */
    CONNECTIONS = 1024,     /* open at once; each may hold a resolver thread while its name is looked up */
    HOST_CONNECTIONS = 256, /* of them to one host; more requests wait, their deadlines running */
    IDLE_CONNECTIONS = 256,
};

struct mw_http_socket {
    mw_io io;
    mw_http *http;
    int fd;
};

static void collect(mw_http *h) {
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left));) {
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode result = m->data.result; /* m goes when the handle is removed */
        mw_http_request *r = NULL;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        mw_http_request_over(r, result);
    }
}

static void act(mw_http *h, curl_socket_t fd, int events) {
    int running;
    curl_multi_socket_action(h->multi, fd, events, &running);
    collect(h);
}

static void socket_ready(mw_io *io, int events) {
    mw_http_socket *s = mw_container_of(io, mw_http_socket, io);
    act(s->http, s->fd,
        (events & MW_READ ? CURL_CSELECT_IN : 0) | (events & MW_WRITE ? CURL_CSELECT_OUT : 0));
}

static mw_http_socket *socket_of(mw_http *h, int fd) {
    if (fd >= h->socket_count) {
        int count = h->socket_count ? h->socket_count : 64;
        while (count <= fd) count *= 2;
        h->sockets = realloc(h->sockets, (size_t)count * sizeof *h->sockets);
        if (!h->sockets) abort();
        while (h->socket_count < count) h->sockets[h->socket_count++] = NULL;
    }
    if (!h->sockets[fd]) {
        mw_http_socket *s = calloc(1, sizeof *s);
        if (!s) abort();
        s->http = h;
        s->fd = fd;
        h->sockets[fd] = s;
    }
    return h->sockets[fd];
}

static void stop_socket(mw_http *h, int fd) {
    if (fd < h->socket_count && h->sockets[fd]) mw_io_stop(&h->sockets[fd]->io);
}

static int socket_wanted(CURL *easy, curl_socket_t fd, int what, void *http, void *unused) {
    (void)easy, (void)unused;
    mw_http *h = http;
    int events = (what & CURL_POLL_IN ? MW_READ : 0) | (what & CURL_POLL_OUT ? MW_WRITE : 0);
    if (what == CURL_POLL_REMOVE || !events)
        stop_socket(h, fd);
    else
        mw_io_start(h->loop, &socket_of(h, fd)->io, fd, events, socket_ready);
    return 0;
}

/* CURL_POLL_REMOVE may come after the close, or never (curl #6237): the watcher must be gone before the
 * number is used again. */
int mw_http_close_socket(void *http, curl_socket_t fd) {
    stop_socket(http, fd);
    return close(fd);
}

static void timer_fired(mw_timer *t) { act(mw_container_of(t, mw_http, timer), CURL_SOCKET_TIMEOUT, 0); }
static void run_soon(mw_deferred *d) { act(mw_container_of(d, mw_http, soon), CURL_SOCKET_TIMEOUT, 0); }

static int timer_wanted(CURLM *multi, long ms, void *http) {
    (void)multi;
    mw_http *h = http;
    mw_timer_stop(&h->timer);
    mw_deferred_cancel(h->loop, &h->soon);
    if (ms == 0) {
        mw_defer(h->loop, &h->soon, run_soon);
    } else if (ms > 0) {
        mw_loop_now_update(h->loop); /* handlers may have run for long */
        mw_timer_start_real(h->loop, &h->timer, ms + 1,
                            timer_fired); /* the clock's milliseconds are cut off */
    }
    return 0;
}

/* Whether curl's default CA path holds certificates by hash ("5ed36f99.0"); an image may have the bundle
 * only. */
static bool ca_path_usable(void) {
    const char *path = curl_version_info(CURLVERSION_NOW)->capath;
    DIR *dir = path ? opendir(path) : NULL;
    bool found = false;
    for (struct dirent *d; dir && !found && (d = readdir(dir));)
        found = strspn(d->d_name, "0123456789abcdef") == 8 && strcmp(d->d_name + 8, ".0") == 0;
    if (dir) closedir(dir);
    return found;
}

mw_http *mw_http_new(mw_loop *l) {
    mw_http *h = calloc(1, sizeof *h);
    if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) || !(h->multi = curl_multi_init())) abort();
    h->pool = calloc(POOL, sizeof *h->pool);
    if (!h->pool) abort();
    h->loop = l;
    h->ca_path = ca_path_usable();
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETFUNCTION, socket_wanted);
    curl_multi_setopt(h->multi, CURLMOPT_SOCKETDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERFUNCTION, timer_wanted);
    curl_multi_setopt(h->multi, CURLMOPT_TIMERDATA, h);
    curl_multi_setopt(h->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)CONNECTIONS);
    curl_multi_setopt(h->multi, CURLMOPT_MAX_HOST_CONNECTIONS, (long)HOST_CONNECTIONS);
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS, (long)IDLE_CONNECTIONS);
    return h;
}

void mw_http_free(mw_http *h) {
    if (!h) return;
    while (h->requests) mw_http_request_orphan(h->requests);
    while (h->pool_count) curl_easy_cleanup(h->pool[--h->pool_count]);
    curl_multi_cleanup(h->multi); /* closes the idle connections, so it may still stop sockets */
    mw_timer_stop(&h->timer);
    mw_deferred_cancel(h->loop, &h->soon);
    for (int fd = 0; fd < h->socket_count; fd++) {
        stop_socket(h, fd);
        free(h->sockets[fd]);
    }
    free(h->sockets);
    free(h->pool);
    free(h);
    curl_global_cleanup();
}

CURL *mw_http_easy_take(mw_http *h) {
    CURL *easy = h->pool_count ? h->pool[--h->pool_count] : curl_easy_init();
    if (!easy) abort();
    return easy;
}

void mw_http_easy_give(mw_http *h, CURL *easy) {
    if (h->pool_count == POOL) {
        curl_easy_cleanup(easy);
        return;
    }
    curl_easy_reset(easy); /* no secret of one request is an option of the next */
    h->pool[h->pool_count++] = easy;
}
