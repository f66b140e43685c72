#include "supervisor/worker.h"

#include <fcntl.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "core/shared/shared.h"
#include "lua/core.h"
#include "supervisor/wire.h"

enum { BEAT_MS = 500 };

static struct {
    mw_wire *wire;
    mw_loop *loop;
    mw_timer beat;
    char *(*answer)(void *owner, const char *line);
    void *owner;
} self;

static void heard(void *owner, uint32_t kind, uint32_t number, char *text, size_t len) {
    (void)owner, (void)len;
    if (kind != MW_SAY_COMMAND) return;
    char *reply = self.answer ? self.answer(self.owner, text) : strdup("{\"ok\":false}");
    if (!mw_wire_say(self.wire, MW_SAY_ANSWER, number, reply, strlen(reply)))
        mw_wire_say(self.wire, MW_SAY_ANSWER, number, "", 0);
    free(reply);
}

static void closed(void *owner) { (void)owner; } /* the supervisor died: so do we, by PR_SET_PDEATHSIG */

int mw_worker_attach(lua_State *L) {
    mw_error e;
    lua_Integer number = luaL_checkinteger(L, 1);
    const char *parent = getenv(MW_WORKER_ENV);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* then the look at the parent: it may have died before */
    int rc = 0;
    if (!parent || atol(parent) != (long)getppid() || number < 1 || number > MW_SHARED_SLOTS)
        rc = mw_fail(&e, MW_EUSAGE, false, "--slot is for the supervisor's use; say --workers N");
    if (rc || mw_shared_attach(MW_WORKER_MEMORY_FD, (uint32_t)number - 1, &e)) {
        lua_pushnil(L);
        lua_pushstring(L, e.text);
        return 2;
    }
    close(MW_WORKER_MEMORY_FD); /* the mapping stays */
    fcntl(MW_WORKER_WIRE_FD, F_SETFD, FD_CLOEXEC);
    fcntl(MW_WORKER_SOURCES_FD, F_SETFD, FD_CLOEXEC);
    mw_log_worker((int)number);
    mw_log_keep_in(&mw_shared_mine()->log);
    static const char *const names[] = {MW_WORKER_ENV, "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]); /* the supervisor's affair */
    lua_pushboolean(L, 1);
    return 1;
}

static void push_file(lua_State *L, int fd) {
    struct stat file;
    size_t size = fstat(fd, &file) ? 0 : (size_t)file.st_size;
    char *text = malloc(size + 1);
    if (!text) abort();
    ssize_t n = pread(fd, text, size, 0);
    if (n > 0)
        lua_pushlstring(L, text, (size_t)n);
    else
        lua_pushnil(L);
    free(text);
}

int mw_worker_sources(lua_State *L) {
    static const char *const gates[] = {NULL, "project", "spec", "none"};
    size_t len, at = 0;
    if (mw_shared_place() < 0) return 0;
    if (!lua_isstring(L, 1)) {
        push_file(L, MW_WORKER_SOURCES_FD);
        lua_pushstring(L, gates[mw_shared_mine()->anew % 4]);
        return 2;
    }
    const char *text = lua_tolstring(L, 1, &len);
    if (ftruncate(MW_WORKER_SOURCES_FD, 0)) return 0;
    while (at < len) {
        ssize_t n = pwrite(MW_WORKER_SOURCES_FD, text + at, len - at, (off_t)at);
        if (n <= 0) break;
        at += (size_t)n;
    }
    if (at < len && ftruncate(MW_WORKER_SOURCES_FD, 0)) return 0; /* all of it or nothing */
    return 0;
}

/* Before the loop runs: written at once, by itself. */
int mw_worker_settings(lua_State *L) {
    char text[96];
    int n = snprintf(text, sizeof text, "%u %.3f %u", (unsigned)luaL_checkinteger(L, 1),
                     luaL_checknumber(L, 2), (unsigned)luaL_checkinteger(L, 3));
    if (mw_shared_place() < 0) return 0;
    if (!self.wire) {
        self.loop = mw_core_loop();
        self.wire =
            mw_wire_new(self.loop, MW_WORKER_WIRE_FD, (mw_wire_events){.heard = heard, .closed = closed});
    }
    mw_wire_say(self.wire, MW_SAY_SETTINGS, 0, text, (size_t)n);
    return 0;
}

static void beat(mw_timer *t) {
    mw_pulse_mine->turn++;
    mw_timer_start(self.loop, t, BEAT_MS, beat);
}

void mw_worker_serve(mw_loop *loop, char *(*answer)(void *owner, const char *line), void *owner) {
    if (!self.wire) return;
    self.answer = answer;
    self.owner = owner;
    mw_wire_say(self.wire, MW_SAY_STARTED, 0, "", 0);
    mw_timer_start(loop, &self.beat, BEAT_MS, beat);
}

void mw_worker_end(void) {
    if (!self.wire) return;
    mw_timer_stop(&self.beat);
    mw_wire_push(self.wire);
    mw_wire_free(self.wire);
    self.wire = NULL;
}

bool mw_worker_wants_reload(void) {
    return mw_shared_place() >= 0 && self.wire && mw_wire_say(self.wire, MW_SAY_RELOAD, 0, "", 0);
}
