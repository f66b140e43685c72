#include "process/child.h"

#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FILES_FD = 3, REPORT_FD = 4, ABOVE = 10, REPORT_MOST = 1 << 20 };
static const rlim_t FILE_MOST = 256 << 20; /* of what it writes, also to us */

extern char **environ;

typedef struct child {
    pid_t pid; /* 0: it is over */
    int code;
    int output, report, files; /* descriptors, or -1 */
    bool group;
} child;

static child *check_child(lua_State *L) { return luaL_checkudata(L, 1, "moonwire.child"); }

/* ---- files that are in memory only ---- */

/* Above those that they become in the child, so that dup2 hits none of them. */
static int memory_file(const char *name) {
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) return -1;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, ABOVE);
    close(fd);
    return high;
}

static int write_all(int fd, const char *text, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = write(fd, text + at, len - at);
        if (n < 0 && errno != EINTR) return -1;
        if (n > 0) at += (size_t)n;
    }
    return 0;
}

static void push_end(lua_State *L, int fd, size_t most) {
    struct stat s;
    if (fd < 0 || fstat(fd, &s)) {
        lua_pushliteral(L, "");
        return;
    }
    size_t size = (size_t)s.st_size, len = size < most ? size : most;
    char *text = malloc(len + 1);
    if (!text) abort();
    ssize_t n = pread(fd, text, len, (off_t)(size - len));
    lua_pushlstring(L, text, n > 0 ? (size_t)n : 0);
    free(text);
}

static int open_files(lua_State *L, child *c) {
    size_t len;
    lua_getfield(L, 2, "files");
    const char *text = lua_tolstring(L, -1, &len);
    c->output = memory_file("output");
    c->report = memory_file("report");
    c->files = memory_file("files");
    if (c->output < 0 || c->report < 0 || c->files < 0) return -1;
    return text ? write_all(c->files, text, len) : 0;
}

static void close_files(child *c) {
    int *all[] = {&c->output, &c->report, &c->files};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (*all[i] >= 0) close(*all[i]);
        *all[i] = -1;
    }
}

/* ---- starting and ending ---- */

static char **words(lua_State *L) { /* the texts live as long as the table */
    size_t n = lua_objlen(L, 1);
    char **argv = calloc(n + 2, sizeof *argv);
    if (!argv) abort();
    argv[0] = "moonwire";
    for (size_t i = 0; i < n; i++) {
        lua_rawgeti(L, 1, (int)i + 1);
        argv[i + 1] = (char *)(uintptr_t)lua_tostring(L, -1);
        lua_pop(L, 1);
    }
    return argv;
}

/* Never a plain fork: a copy of a process with a Lua state, threads and a loop is no process. */
static int start(child *c, char **argv) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, back;
    sigemptyset(&none);
    sigemptyset(&back);
    int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGPIPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaddset(&back, signals[i]);
    posix_spawn_file_actions_init(&files);
    if (c->output >= 0) {
        posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&files, c->output, STDOUT_FILENO);
        posix_spawn_file_actions_adddup2(&files, c->output, STDERR_FILENO);
        posix_spawn_file_actions_adddup2(&files, c->files, FILES_FD);
        posix_spawn_file_actions_adddup2(&files, c->report, REPORT_FD);
    }
#if __GLIBC_PREREQ(2, 34)
    posix_spawn_file_actions_addclosefrom_np(&files, REPORT_FD + 1); /* most close by themselves */
#endif
    posix_spawnattr_init(&attr);
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    posix_spawnattr_setflags(&attr, (short)(c->group ? flags | POSIX_SPAWN_SETPGROUP : flags));
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &back);
    int rc = posix_spawn(&c->pid, "/proc/self/exe", &files, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    if (rc) c->pid = 0;
    return rc;
}

static bool is_over(child *c, int flags) {
    int status;
    while (c->pid) {
        pid_t got = waitpid(c->pid, &status, flags);
        if (got == 0) return false;
        if (got < 0 && errno == EINTR) continue;
        c->pid = 0;
        c->code = got < 0 ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return true;
}

static void end(child *c) {
    if (is_over(c, WNOHANG)) return;
    kill(c->group ? -c->pid : c->pid, SIGKILL);
    is_over(c, 0); /* it was killed: this is short */
}

/* ---- for Lua ---- */

static int l_poll(lua_State *L) {
    child *c = check_child(L);
    if (!is_over(c, WNOHANG)) return 0;
    lua_pushinteger(L, c->code);
    return 1;
}

static int l_output(lua_State *L) {
    push_end(L, check_child(L)->output, (size_t)luaL_checkinteger(L, 2));
    return 1;
}

static int l_report(lua_State *L) {
    push_end(L, check_child(L)->report, REPORT_MOST);
    return 1;
}

static int l_kill(lua_State *L) {
    end(check_child(L));
    return 0;
}

static int l_gc(lua_State *L) {
    child *c = check_child(L);
    end(c);
    close_files(c);
    return 0;
}

int mw_child_new(lua_State *L) {
    static const luaL_Reg methods[] = {{"poll", l_poll}, {"output", l_output}, {"report", l_report},
                                       {"kill", l_kill}, {"__gc", l_gc},       {NULL, NULL}};
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_checktype(L, 2, LUA_TTABLE);
    child *c = lua_newuserdata(L, sizeof *c);
    *c = (child){.output = -1, .report = -1, .files = -1};
    if (luaL_newmetatable(L, "moonwire.child")) {
        luaL_register(L, NULL, methods);
        lua_pushvalue(L, -1);
        lua_setfield(L, -2, "__index");
    }
    lua_setmetatable(L, -2);
    lua_getfield(L, 2, "capture");
    c->group = lua_toboolean(L, -1);
    lua_pop(L, 1);
    char **argv = words(L);
    int rc = c->group && open_files(L, c) ? errno : start(c, argv);
    free(argv);
    if (rc) {
        lua_pushnil(L);
        lua_pushfstring(L, "cannot start a process: %s", strerror(rc));
        return 2;
    }
    lua_settop(L, 3);
    return 1;
}

int mw_child_be(lua_State *L) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit limit = {FILE_MOST, FILE_MOST};
    if (lua_toboolean(L, 1)) setrlimit(RLIMIT_FSIZE, &limit);
    return 0;
}
