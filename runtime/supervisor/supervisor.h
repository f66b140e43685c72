/* supervisor.h - `moonwire run`: keeps workers running, passes signals and commands on, tells systemd. It
 * opens no connection, reads no project and runs no handler, so none of them can take it down. A Lua function
 * of moonwire.core: supervise { workers = N | nil, argv = { word... }, drain = seconds | nil, once = boolean,
 *                 watch = folder | nil, control = path | nil, command = function(s, line) -> text }
 *       -> exit code | nil, text
 * Without `workers` and `drain` they are what the project says: the first worker reads it and tells.
 * `command` answers a line that came through the control socket, or "reload" for a HUP and a change of the
 * files; it runs as a coroutine. `s` has what it needs, see desk.h. */
#pragma once
#include <lua.h>

#include "process/control.h"
#include "process/watch.h"
#include "supervisor/crew.h"
#include "supervisor/vigil.h"

typedef struct mw_desk mw_desk;

typedef struct mw_supervisor {
    mw_loop *loop;
    lua_State *L; /* of the CLI; its table of options stands at index 1 */
    mw_shared *shared;
    mw_crew *crew;
    mw_vigil *vigil;
    mw_desk *desk;
    mw_watch *watch;
    mw_control *control;
    mw_signal term, interrupt, hangup;
    mw_timer limit;
    double drain;
    int code;
    uint32_t workers;          /* as given; 0: as the project says */
    bool drain_given, settled; /* settled: a worker has told what the project wants */
    bool once, ready, served;  /* served: a worker has been up */
    bool ending, told;         /* told: to end, by a signal or by command */
} mw_supervisor;

int mw_supervise(lua_State *L);
void mw_supervisor_end(mw_supervisor *s);          /* drains all workers, as TERM does */
void mw_supervisor_status(const mw_supervisor *s); /* tells systemd */
