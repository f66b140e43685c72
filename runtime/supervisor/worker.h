/* worker.h - a worker process's side of supervision. The supervisor starts it with `--slot K`, its pid in the
 * environment, the shared memory and one end of a wire as open files. */
#pragma once
#include <lua.h>

#include "loop/loop.h"

enum { MW_WORKER_MEMORY_FD = 3, MW_WORKER_WIRE_FD = 4, MW_WORKER_SOURCES_FD = 5 };
#define MW_WORKER_ENV "MOONWIRE_SUPERVISOR"

typedef enum {                      /* what goes over the wire; texts in brackets */
               MW_SAY_SETTINGS = 1, /* worker: it has read the project [workers drain crash_attempts] */
               MW_SAY_STARTED,      /* worker: it serves */
               MW_SAY_RELOAD,       /* worker: somebody sent it a HUP, which is the supervisor's affair */
               MW_SAY_ANSWER,       /* worker: to the command of that number [JSON] */
               MW_SAY_COMMAND,      /* supervisor [a line as it comes through the control socket] */
} mw_say;

/* core.attach_worker(K) -> true | nil, text: from now on this process is worker K and dies with its
 * supervisor. core.worker_settings(workers, drain, crash_attempts) tells what the project wants.
 * core.worker_sources() -> text | nil, "project" | "spec" | "none" | nil: what it is to run; nil: the folder.
 * After a reload that nobody could test before, also the gate that it has to pass first.
 * core.worker_sources(text) tells what it has read. */
int mw_worker_sources(lua_State *L);
int mw_worker_attach(lua_State *L);
int mw_worker_settings(lua_State *L);

/* Commands come in from now on; `answer` is as in control.h. Nothing when nobody supervises. */
void mw_worker_serve(mw_loop *loop, char *(*answer)(void *owner, const char *line), void *owner);
void mw_worker_end(void);
bool mw_worker_wants_reload(void); /* passes a HUP on; false: nobody supervises */
