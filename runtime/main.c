/* main.c - argv in, exit code out. The commands are Lua: lua/moonwire/cli. */
#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "lua/core.h"
#include "lua/vm.h"

/* A file that is opened gets the lowest free number. Were one of the three closed, the store would get it,
 * and the next log line would be written into the store. */
static void secure_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY) != fd)
            _exit(71); /* nowhere to say why */
    }
}

/* Messages are allocated on a client library's thread and freed on the loop's: there glibc's allocator makes
 * the two wait for each other, a quarter of the time of a Kafka consumer. jemalloc reads this name. Few
 * arenas, and what is free goes back after a second: one loop has most of it, and workers are many. */
extern const char *malloc_conf;
const char *malloc_conf = "narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0";

/* LuaJIT counts the levels of its own stack only. What recurses through C (a callback of gsub that calls
 * gsub) reaches that limit within 60 MB of C stack; the system keeps 128 MB of addresses free for it. */
static void widen_stack(void) {
    struct rlimit limit;
    const rlim_t enough = 100 << 20;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >= enough) return;
    limit.rlim_cur = limit.rlim_max < enough ? limit.rlim_max : enough;
    setrlimit(RLIMIT_STACK, &limit);
}

int main(int argc, char **argv) {
    secure_streams();
    signal(SIGPIPE, SIG_IGN);
    widen_stack();
    mw_site *site = mw_site_new(mw_core_loop(), NULL, NULL);
    mw_vm *vm = mw_site_prepare(site);
    mw_error e;
    int code = 70;
    lua_getglobal(vm->L, "require");
    lua_pushliteral(vm->L, "moonwire.cli.main");
    if (mw_vm_call(vm->L, 1, 1, &e) == 0) {
        lua_newtable(vm->L);
        for (int i = 0; i < argc; i++) {
            lua_pushstring(vm->L, argv[i]);
            lua_rawseti(vm->L, -2, i);
        }
        if (mw_vm_call(vm->L, 1, 1, &e) == 0) {
            code = (int)lua_tointeger(vm->L, -1);
            e.text[0] = 0;
        }
    }
    mw_log_flush();
    if (code == 70 && e.text[0]) fprintf(stderr, "moonwire: internal error: %s\n", e.text);
    mw_site_free(site);
    mw_core_shutdown();
    return code;
}
