#include "supervisor/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "core/backoff.h"

enum { LIVED_WELL_MS = 60000, FDS_FROM = 10, WORDS_AFTER_SLOT = 2 };
static const mw_backoff RESTART = {.kind = MW_BACKOFF_EXPONENTIAL, .base = 0.1, .cap = 30};

extern char **environ;

struct mw_crew {
    mw_loop *loop;
    uint32_t count;
    char *const *argv;
    mw_ledger *ledger;
    mw_crew_events events;
    mw_signal child;
    mw_io hear;
    int memory, tell_fd, hear_fd; /* above what they become in the worker, so that dup2 hits none of them */
    bool no_more;
    mw_hand hands[];
};

/* ---- starting ---- */

static char **environment(char *own) { /* the list is the caller's to free, not the texts */
    size_t n = 0;
    while (environ[n]) n++;
    char **list = malloc((n + 2) * sizeof *list);
    if (!list) abort();
    memcpy(list, environ, n * sizeof *list);
    list[n] = own;
    list[n + 1] = NULL;
    return list;
}

static char **words(char *const *given, char *slot) {
    size_t n = 0, at = 0;
    while (given[n]) n++;
    char **list = malloc((n + 3) * sizeof *list);
    if (!list) abort();
    list[at++] = "moonwire";
    for (size_t i = 0; i < n; i++) {
        if (i + WORDS_AFTER_SLOT == n) list[at++] = slot;
        list[at++] = given[i];
    }
    list[at] = NULL;
    return list;
}

/* The signals wait until the worker takes them; a group of its own keeps a terminal's Ctrl-C for us. */
static int run_program(mw_crew *c, char **argv, char **env, pid_t *pid) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t held, back;
    sigemptyset(&held);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGHUP);
    back = held;
    sigaddset(&back, SIGCHLD);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, c->memory, MW_WORKER_LEDGER_FD);
    posix_spawn_file_actions_adddup2(&files, c->tell_fd, MW_WORKER_PIPE_FD);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&attr, &held);
    posix_spawnattr_setsigdefault(&attr, &back);
    posix_spawnattr_setpgroup(&attr, 0);
    int rc = posix_spawn(pid, "/proc/self/exe", &files, &attr, argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return rc;
}

static int start(mw_hand *h) {
    mw_crew *c = h->crew;
    char slot[24], parent[48];
    snprintf(slot, sizeof slot, "--slot=%u", h->slot + 1);
    snprintf(parent, sizeof parent, MW_WORKER_ENV "=%ld", (long)getpid());
    char **argv = words(c->argv, slot), **env = environment(parent);
    int rc = run_program(c, argv, env, &h->pid);
    free(argv);
    free(env);
    if (rc) {
        h->pid = 0;
        return rc;
    }
    h->up = h->leaving = h->done = false;
    h->since = mw_loop_mono_ms(c->loop);
    mw_log_begin(MW_INFO, "worker begins");
    mw_log_int("worker", h->slot + 1);
    mw_log_int("pid", h->pid);
    mw_log_end();
    return 0;
}

static void start_again(mw_timer *t);

static int64_t plan_restart(mw_hand *h) {
    h->failures++;
    int64_t wait = mw_backoff_delay(&RESTART, h->failures, 0.5);
    mw_timer_start(h->crew->loop, &h->again, wait, start_again);
    return wait;
}

static void start_again(mw_timer *t) {
    mw_hand *h = mw_container_of(t, mw_hand, again);
    int rc = start(h);
    if (!rc) return;
    mw_log_begin(MW_ERROR, "a worker cannot be started");
    mw_log_int("worker", h->slot + 1);
    mw_log_text("error", strerror(rc));
    mw_log_num("next_in", (double)plan_restart(h) / 1000);
    mw_log_end();
}

int mw_crew_start(mw_crew *c, mw_error *e) {
    for (uint32_t i = 0; i < c->count; i++) {
        int rc = start(&c->hands[i]);
        if (rc) return mw_fail(e, rc, true, "cannot start a worker: %s", strerror(rc));
    }
    return 0;
}

/* ---- ending ---- */

static void log_end(const mw_hand *h, int status, uint32_t suspects, int64_t wait) {
    mw_log_begin(status ? MW_WARN : MW_INFO, "worker ended");
    mw_log_int("worker", h->slot + 1);
    mw_log_int("pid", h->pid);
    if (WIFSIGNALED(status))
        mw_log_int("signal", WTERMSIG(status));
    else
        mw_log_int("code", WEXITSTATUS(status));
    if (suspects) mw_log_int("suspects", suspects);
    if (wait >= 0) mw_log_num("restart_in", (double)wait / 1000);
    mw_log_end();
}

static void hear_all(mw_crew *c);

static void ended(mw_hand *h, int status) {
    mw_crew *c = h->crew;
    hear_all(c); /* its last words come before its end */
    uint32_t suspects =
        mw_ledger_bury(c->ledger, h->slot, status && !c->no_more, (int64_t)mw_loop_mono_ms(c->loop));
    mw_hand was = *h;
    if (mw_loop_mono_ms(c->loop) - h->since >= LIVED_WELL_MS) h->failures = 0;
    h->pid = 0;
    bool again = c->events.ended(c->events.owner, h, status) && !c->no_more;
    h->up = false;
    h->done = !again;
    log_end(&was, status, suspects, again ? plan_restart(h) : -1);
}

static void child_ended(mw_signal *s, int n) {
    (void)n;
    mw_crew *c = mw_container_of(s, mw_crew, child);
    for (uint32_t i = 0; i < c->count; i++) {
        mw_hand *h = &c->hands[i];
        int status;
        if (h->pid && waitpid(h->pid, &status, WNOHANG) == h->pid) ended(h, status);
    }
}

void mw_crew_no_more(mw_crew *c) {
    c->no_more = true;
    for (uint32_t i = 0; i < c->count; i++) mw_timer_stop(&c->hands[i].again);
}

/* ---- what workers say ---- */

static void hear_all(mw_crew *c) {
    mw_worker_note note;
    while (read(c->hear_fd, &note, sizeof note) == (ssize_t)sizeof note) {
        if (note.slot >= c->count) continue;
        mw_hand *h = &c->hands[note.slot];
        if (note.event == MW_WORKER_STARTED) h->up = true;
        if (note.event == MW_WORKER_DRAINS) h->leaving = true;
        c->events.said(c->events.owner, h, (mw_worker_event)note.event);
    }
}

static void heard(mw_io *io, int events) {
    (void)events;
    hear_all(mw_container_of(io, mw_crew, hear));
}

/* ---- life ---- */

static int above(int fd) { /* moves it out of the way */
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FDS_FROM);
    close(fd);
    return high;
}

mw_crew *mw_crew_new(mw_loop *loop, uint32_t count, char *const *argv, mw_ledger *ledger,
                     mw_crew_events events, mw_error *e) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK)) {
        mw_fail(e, errno, true, "pipe: %s", strerror(errno));
        return NULL;
    }
    mw_crew *c = calloc(1, sizeof *c + count * sizeof *c->hands);
    if (!c) abort();
    c->loop = loop;
    c->count = count;
    c->argv = argv;
    c->ledger = ledger;
    c->events = events;
    c->hear_fd = above(ends[0]);
    c->tell_fd = above(ends[1]);
    c->memory = fcntl(mw_ledger_fd(ledger), F_DUPFD_CLOEXEC, FDS_FROM);
    for (uint32_t i = 0; i < count; i++) {
        c->hands[i].crew = c;
        c->hands[i].slot = i;
    }
    mw_signal_start(loop, &c->child, SIGCHLD, child_ended);
    mw_io_start(loop, &c->hear, c->hear_fd, MW_READ, heard);
    return c;
}

void mw_crew_free(mw_crew *c) {
    if (!c) return;
    mw_crew_no_more(c);
    for (uint32_t i = 0; i < c->count; i++) {
        pid_t pid = c->hands[i].pid;
        if (!pid) continue;
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    mw_signal_stop(&c->child);
    mw_io_stop(&c->hear);
    close(c->hear_fd);
    close(c->tell_fd);
    close(c->memory);
    free(c);
}

uint32_t mw_crew_running(const mw_crew *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->count; i++) n += c->hands[i].pid != 0;
    return n;
}

uint32_t mw_crew_up(const mw_crew *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->count; i++) n += c->hands[i].pid && c->hands[i].up;
    return n;
}

mw_hand *mw_crew_hand(mw_crew *c, uint32_t i) { return i < c->count ? &c->hands[i] : NULL; }
