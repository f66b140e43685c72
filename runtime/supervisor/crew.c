#include "supervisor/crew.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "core/backoff.h"
#include "supervisor/sources.h"

enum { LIVED_WELL_MS = 60000, FDS_FROM = 10, WORDS_AFTER_SLOT = 2 };
static const mw_backoff RESTART = {.kind = MW_BACKOFF_EXPONENTIAL, .base = 0.1, .cap = 30};

extern char **environ;

struct mw_crew {
    mw_loop *loop;
    uint32_t slots, count;
    char *const *argv;
    mw_shared *shared;
    mw_crew_events events;
    mw_signal child;
    int memory;            /* above what it becomes in the worker, so that dup2 does not hit it */
    int kept;              /* what workers run, see sources.h; -1: none of them has read it yet */
    uint32_t generation;   /* of that */
    long oom_kills;        /* of the whole system, as last seen */
    bool no_more, settled; /* settled: the first worker has read the project */
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
static int run_program(const mw_hand *h, int wire, char **argv, char **env, pid_t *pid) {
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
    posix_spawn_file_actions_adddup2(&files, h->crew->memory, MW_WORKER_MEMORY_FD);
    posix_spawn_file_actions_adddup2(&files, wire, MW_WORKER_WIRE_FD);
    posix_spawn_file_actions_adddup2(&files, h->sources, MW_WORKER_SOURCES_FD);
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

static void log_begin(const mw_hand *h) {
    mw_log_begin(MW_INFO, "worker begins");
    mw_log_int("worker", h->slot + 1);
    mw_log_int("pid", h->pid);
    mw_log_end();
}

static int above(int fd) { /* moves it out of the way */
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FDS_FROM);
    close(fd);
    return high;
}

static void said(void *owner, uint32_t kind, uint32_t number, char *text, size_t len) {
    mw_hand *h = owner;
    if (kind == MW_SAY_STARTED) {
        h->up = true;
        h->moved = mw_loop_mono_ms(h->crew->loop);
    }
    h->crew->events.said(h->crew->events.owner, h, kind, number, text, len);
}

static void hung_up(void *owner) { (void)owner; } /* its end will be told by SIGCHLD */

static int give_sources(mw_hand *h) {
    mw_crew *c = h->crew;
    bool same = c->kept >= 0 && h->anew == MW_ANEW_NOT;
    mw_sources_free(&h->sources);
    h->sources = mw_sources_new(same ? c->kept : -1);
    mw_shared_slot *slot = &c->shared->slot[h->slot];
    slot->generation = same ? c->generation : c->shared->generation;
    slot->anew = (uint8_t)h->anew;
    h->anew = MW_ANEW_NOT;
    return h->sources < 0 ? errno : 0;
}

static int start(mw_hand *h) {
    mw_crew *c = h->crew;
    char slot[24], parent[48];
    int ends[2];
    if (give_sources(h)) return errno;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return errno;
    int theirs = above(ends[1]);
    snprintf(slot, sizeof slot, "--slot=%u", h->slot + 1);
    snprintf(parent, sizeof parent, MW_WORKER_ENV "=%ld", (long)getpid());
    char **argv = words(c->argv, slot), **env = environment(parent);
    int rc = run_program(h, theirs, argv, env, &h->pid);
    free(argv);
    free(env);
    close(theirs);
    if (rc) {
        close(ends[0]);
        h->pid = 0;
        return rc;
    }
    h->wire = mw_wire_new(c->loop, ends[0], (mw_wire_events){.heard = said, .closed = hung_up, .owner = h});
    h->up = h->leaving = h->done = h->stuck = false;
    h->since = h->moved = mw_loop_mono_ms(c->loop);
    if (c->settled) log_begin(h);
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
    h->restarts++;
    if (!rc) return;
    mw_log_begin(MW_ERROR, "a worker cannot be started");
    mw_log_int("worker", h->slot + 1);
    mw_log_text("error", strerror(rc));
    mw_log_num("next_in", (double)plan_restart(h) / 1000);
    mw_log_end();
}

int mw_crew_start(mw_crew *c, mw_error *e) {
    for (uint32_t i = 0; i < c->count; i++) {
        mw_hand *h = &c->hands[i];
        if (h->pid || h->done || mw_timer_running(&h->again)) continue;
        int rc = start(h);
        if (rc) return mw_fail(e, rc, true, "cannot start a worker: %s", strerror(rc));
    }
    return 0;
}

int mw_crew_want(mw_crew *c, uint32_t count, mw_error *e) {
    if (count > c->slots) count = c->slots;
    if (!c->settled && c->hands[0].pid) log_begin(&c->hands[0]);
    c->settled = true;
    if (count <= c->count || c->no_more) return 0;
    c->count = c->shared->used = count;
    return mw_crew_start(c, e);
}

void mw_crew_hurry(mw_crew *c) {
    for (uint32_t i = 0; i < c->count; i++) {
        mw_hand *h = &c->hands[i];
        h->failures = 0;
        if (mw_timer_running(&h->again)) mw_timer_start(c->loop, &h->again, 0, start_again);
    }
}

int mw_crew_keep(mw_crew *c, mw_hand *h) {
    int copy = h->sources >= 0 ? mw_sources_new(h->sources) : -1;
    if (copy < 0) return -1;
    mw_sources_free(&c->kept);
    c->kept = copy;
    c->generation = c->shared->generation;
    return 0;
}

bool mw_crew_keeps(const mw_crew *c) { return c->kept >= 0; }

void mw_crew_start_anew(mw_crew *c, mw_hand *h, mw_anew how) {
    if (c->no_more) return;
    h->anew = how;
    if (h->pid)
        kill(h->pid, SIGKILL); /* it has not begun: its end brings the start */
    else
        mw_timer_start(c->loop, &h->again, 0, start_again);
}

int64_t mw_hand_starts_in(const mw_hand *h) {
    uint64_t now = mw_loop_mono_ms(h->crew->loop);
    if (!mw_timer_running(&h->again)) return -1;
    return h->again.at > now ? (int64_t)(h->again.at - now) : 0;
}

/* ---- ending ---- */

/* How often the kernel has killed for lack of memory; -1: it does not say. */
static long oom_kills(void) {
    long count = -1;
    char line[128];
    FILE *f = fopen("/proc/vmstat", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "oom_kill %ld", &count) == 1) break;
    if (f) fclose(f);
    return count;
}

/* The kernel kills with the signal that everybody else uses, too: only its count tells. */
static bool was_hungry(mw_crew *c, int status) {
    long before = c->oom_kills;
    c->oom_kills = oom_kills();
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && c->oom_kills > before;
}

static void log_end(const mw_hand *h, int status, bool hungry, uint32_t suspects, int64_t wait) {
    if (!h->crew->settled && WIFEXITED(status)) return; /* it has told why it cannot begin */
    mw_log_begin(status ? MW_WARN : MW_INFO, "worker ended");
    mw_log_int("worker", h->slot + 1);
    mw_log_int("pid", h->pid);
    if (WIFSIGNALED(status))
        mw_log_int("signal", WTERMSIG(status));
    else
        mw_log_int("code", WEXITSTATUS(status));
    if (h->stuck || hungry) mw_log_text("because", h->stuck ? "stuck" : "out of memory");
    if (suspects) mw_log_int("suspects", suspects);
    if (wait >= 0) mw_log_num("restart_in", (double)wait / 1000);
    mw_log_end();
}

static void ended(mw_hand *h, int status) {
    mw_crew *c = h->crew;
    mw_wire_hear(h->wire); /* its last words come before its end */
    mw_log_left(&c->shared->slot[h->slot].log);
    bool hungry = was_hungry(c, status);
    uint32_t suspects = mw_ledger_bury(c->shared, h->slot, mw_death_of(status, c->no_more, h->stuck, hungry),
                                       (int64_t)mw_loop_mono_ms(c->loop));
    mw_hand was = *h;
    if (mw_loop_mono_ms(c->loop) - h->since >= LIVED_WELL_MS) h->failures = 0;
    h->pid = 0;
    mw_wire_free(h->wire);
    h->wire = NULL;
    bool again = c->events.ended(c->events.owner, h, status) && !c->no_more;
    h->up = false;
    h->done = !again;
    log_end(&was, status, hungry, suspects, again ? plan_restart(h) : -1);
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

/* ---- life ---- */

mw_crew *mw_crew_new(mw_loop *loop, uint32_t slots, uint32_t count, char *const *argv, mw_shared *shared,
                     int shared_fd, mw_crew_events events, mw_error *e) {
    int memory = fcntl(shared_fd, F_DUPFD_CLOEXEC, FDS_FROM);
    if (memory < 0) {
        mw_fail(e, errno, true, "shared memory: %s", strerror(errno));
        return NULL;
    }
    mw_crew *c = calloc(1, sizeof *c + slots * sizeof *c->hands);
    if (!c) abort();
    c->loop = loop;
    c->slots = slots;
    c->count = shared->used = count;
    c->argv = argv;
    c->shared = shared;
    c->events = events;
    c->memory = memory;
    c->kept = -1;
    c->oom_kills = oom_kills();
    for (uint32_t i = 0; i < slots; i++) {
        c->hands[i].crew = c;
        c->hands[i].sources = -1;
        c->hands[i].slot = i;
    }
    mw_signal_start(loop, &c->child, SIGCHLD, child_ended);
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
        mw_wire_free(c->hands[i].wire);
    }
    for (uint32_t i = 0; i < c->slots; i++) mw_sources_free(&c->hands[i].sources);
    mw_sources_free(&c->kept);
    mw_signal_stop(&c->child);
    close(c->memory);
    free(c);
}

uint32_t mw_crew_count(const mw_crew *c) { return c->count; }

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
