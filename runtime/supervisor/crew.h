/* crew.h - the table of worker processes: starts them by running this very program again, sees them end,
 * tells why, and starts them anew after a pause that grows with every failure. Never a plain fork: a copy of
 * a process that has a Lua state and a loop is no process. It decides nothing about the end; its owner does.
 */
#pragma once
#include <sys/types.h>

#include "loop/loop.h"
#include "core/shared/ledger.h"
#include "supervisor/wire.h"
#include "supervisor/worker.h"

typedef struct mw_crew mw_crew;

typedef struct mw_hand {
    mw_crew *crew;
    uint32_t slot; /* from 0; people see it from 1 */
    pid_t pid;     /* 0: not running */
    mw_wire *wire; /* while it runs */
    bool up;       /* it has said that it started */
    bool leaving;  /* it drains */
    bool done;     /* it ended and is not wanted again */
    bool stuck;    /* it was killed because it did not move */
    mw_anew anew;  /* its next start reads the folder */
    int sources;   /* what it runs or has read, see sources.h; -1: it never ran */
    uint32_t failures, restarts;
    uint64_t since; /* it was started, monotonic ms */
    mw_timer again;
    uint64_t seen_turn, moved; /* its pulse when it was last seen to move, and when that was */
} mw_hand;

typedef struct mw_crew_events {
    void (*said)(void *owner, mw_hand *h, uint32_t kind, uint32_t number, char *text, size_t len);
    bool (*ended)(void *owner, mw_hand *h, int status); /* as waitpid tells it. true: start it again */
    void *owner;
} mw_crew_events;

/* argv: words of the command line without the program, NULL at the end; `--slot=K` is put before the last
 * two, "--" and the folder. It and the memory must outlive the crew. There is room for `slots`; `count` of
 * them are wanted at first. */
mw_crew *mw_crew_new(mw_loop *loop, uint32_t slots, uint32_t count, char *const *argv, mw_shared *shared,
                     int shared_fd, mw_crew_events events, mw_error *e);
void mw_crew_free(mw_crew *c);                             /* kills and reaps what still runs; NULL is fine */
int mw_crew_start(mw_crew *c, mw_error *e);                /* those that are wanted and not running */
int mw_crew_want(mw_crew *c, uint32_t count, mw_error *e); /* the project can be read: so many */
/* What this one has read last is what every worker runs from now on, and those that start: the generation
 * that is counted now. -1: it cannot be kept, errno. */
int mw_crew_keep(mw_crew *c, mw_hand *h);
bool mw_crew_keeps(const mw_crew *c); /* there is something */
/* What is kept does not start: this one reads the folder, now. */
void mw_crew_start_anew(mw_crew *c, mw_hand *h, mw_anew how);
void mw_crew_no_more(mw_crew *c); /* nobody is started again */
void mw_crew_hurry(mw_crew *c);   /* those that wait for their start get it now, and a clean slate */
uint32_t mw_crew_count(const mw_crew *c);
uint32_t mw_crew_running(const mw_crew *c);
uint32_t mw_crew_up(const mw_crew *c);
mw_hand *mw_crew_hand(mw_crew *c, uint32_t i); /* NULL after the last that is wanted */
int64_t mw_hand_starts_in(const mw_hand *h);   /* ms; -1: nothing is planned */
