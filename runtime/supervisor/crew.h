/* crew.h - the table of worker processes: starts them by running this very program again, sees them end, and
 * starts them anew after a pause that grows with every failure. Never a plain fork: a copy of a process that
 * has a Lua state and a loop is no process. It decides nothing about the end; its owner does. */
#pragma once
#include <sys/types.h>

#include "base/loop.h"
#include "core/ledger.h"
#include "supervisor/worker.h"

typedef struct mw_crew mw_crew;

typedef struct mw_hand {
    mw_crew *crew;
    uint32_t slot; /* from 0; people see it from 1 */
    pid_t pid;     /* 0: not running */
    bool up;       /* it has said that it started */
    bool leaving;  /* it drains, asked by command or by us */
    bool done;     /* it ended and is not wanted again */
    uint32_t failures;
    uint64_t since;
    mw_timer again;
} mw_hand;

typedef struct mw_crew_events {
    void (*said)(void *owner, mw_hand *h, mw_worker_event event);
    bool (*ended)(void *owner, mw_hand *h, int status); /* as waitpid tells it. true: start it again */
    void *owner;
} mw_crew_events;

/* argv: words of the command line without the program, NULL at the end; `--slot=K` is put before the last
 * two, "--" and the folder. It and the ledger must outlive the crew. */
mw_crew *mw_crew_new(mw_loop *loop, uint32_t count, char *const *argv, mw_ledger *ledger,
                     mw_crew_events events, mw_error *e);
void mw_crew_free(mw_crew *c); /* kills and reaps what still runs; NULL is fine */
int mw_crew_start(mw_crew *c, mw_error *e);
void mw_crew_no_more(mw_crew *c); /* nobody is started again */
uint32_t mw_crew_running(const mw_crew *c);
uint32_t mw_crew_up(const mw_crew *c);
mw_hand *mw_crew_hand(mw_crew *c, uint32_t i); /* NULL after the last */
