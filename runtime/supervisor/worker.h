/* worker.h - a worker process's side of supervision. The supervisor starts it with `--slot K`, its pid in the
 * environment, the ledger and a pipe for events as open files. */
#pragma once
#include <lua.h>

enum { MW_WORKER_LEDGER_FD = 3, MW_WORKER_PIPE_FD = 4 };
#define MW_WORKER_ENV "MOONWIRE_SUPERVISOR"

typedef enum { MW_WORKER_STARTED = 1, MW_WORKER_RELOADED, MW_WORKER_DRAINS } mw_worker_event;

typedef struct mw_worker_note { /* what goes through the pipe, in one write */
    unsigned short slot, event;
} mw_worker_note;

/* core.attach_worker(K) -> true | nil, text: from now on this process is worker K and dies with its
 * supervisor. */
int mw_worker_attach(lua_State *L);
void mw_worker_tell(mw_worker_event event); /* nothing when nobody supervises */
