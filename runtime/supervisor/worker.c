#include "supervisor/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "core/ledger.h"

int mw_worker_attach(lua_State *L) {
    mw_error e;
    lua_Integer number = luaL_checkinteger(L, 1);
    const char *parent = getenv(MW_WORKER_ENV);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* then the look at the parent: it may have died before */
    int rc = 0;
    if (!parent || atol(parent) != (long)getppid() || number < 1 || number > MW_LEDGER_SLOTS)
        rc = mw_fail(&e, MW_EUSAGE, false, "--slot is for the supervisor's use; say --workers N");
    if (rc || mw_ledger_attach(MW_WORKER_LEDGER_FD, (uint32_t)number - 1, &e)) {
        lua_pushnil(L);
        lua_pushstring(L, e.text);
        return 2;
    }
    close(MW_WORKER_LEDGER_FD); /* the mapping stays */
    fcntl(MW_WORKER_PIPE_FD, F_SETFD, FD_CLOEXEC);
    mw_log_worker((int)number);
    static const char *const names[] = {MW_WORKER_ENV, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]); /* the supervisor's affair */
    lua_pushboolean(L, 1);
    return 1;
}

void mw_worker_tell(mw_worker_event event) {
    if (!mw_ledger_on()) return;
    mw_worker_note note = {(unsigned short)mw_ledger_slot(), (unsigned short)event};
    while (write(MW_WORKER_PIPE_FD, &note, sizeof note) < 0 && errno == EINTR) {
    }
}
