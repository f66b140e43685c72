#include "process/door.h"

#include <dirent.h>
#include <errno.h>
#include <lauxlib.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"

static int refused(lua_State *L, const char *what, const char *path) {
    lua_pushnil(L);
    lua_pushfstring(L, "%s %s: %s", what, path, strerror(errno));
    return 2;
}

/* MOONWIRE_RUN, or a folder of the user's own; in /tmp anybody could have made it before us, so it is looked
 * at. */
static int find_folder(char *out, size_t size) {
    const char *given = getenv("MOONWIRE_RUN"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (given && *given)
        snprintf(out, size, "%s", given);
    else if (runtime && *runtime && access(runtime, W_OK) == 0)
        snprintf(out, size, "%s/moonwire", runtime);
    else
        snprintf(out, size, "/tmp/moonwire-%u", (unsigned)geteuid());
    struct stat s;
    if (mkdir(out, 0700) && errno != EEXIST) return -1;
    if (lstat(out, &s)) return -1;
    if (S_ISDIR(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & 022)) return 0;
    errno = EPERM;
    return -1;
}

static void name_of(const char *project, char out[24]) {
    snprintf(out, 24, "%016llx.", (unsigned long long)mw_hash64(project, strlen(project)));
}

int mw_door_path(lua_State *L) {
    char folder[PATH_MAX], name[24];
    if (find_folder(folder, sizeof folder)) return refused(L, "the folder for control sockets", folder);
    name_of(luaL_checkstring(L, 1), name);
    lua_pushfstring(L, "%s/%s%d", folder, name, (int)getpid());
    return 1;
}

int mw_door_sockets(lua_State *L) {
    char folder[PATH_MAX], name[24];
    if (find_folder(folder, sizeof folder)) return refused(L, "the folder for control sockets", folder);
    name_of(luaL_checkstring(L, 1), name);
    DIR *dir = opendir(folder);
    if (!dir) return refused(L, "the folder for control sockets", folder);
    lua_newtable(L);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strncmp(entry->d_name, name, strlen(name)) != 0) continue;
        lua_pushfstring(L, "%s/%s", folder, entry->d_name);
        lua_rawseti(L, -2, ++count);
    }
    closedir(dir);
    return 1;
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int connect_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    int why = errno;
    if (fd >= 0) close(fd);
    if (why == ECONNREFUSED) unlink(path); /* its process is dead; one that is found listens (control.c) */
    errno = why;
    return -1;
}

/* Everything up to the end of the connection. */
static int take_reply(lua_State *L, int fd, int64_t deadline) {
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    for (;;) {
        int64_t left = deadline - now_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = left > 0 ? poll(&p, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR) continue;
        ssize_t n = ready > 0 ? recv(fd, luaL_prepbuffer(&b), LUAL_BUFFERSIZE, 0) : -1;
        if (ready <= 0) errno = ready == 0 ? ETIMEDOUT : errno;
        if (n < 0) return -1;
        if (n == 0) break;
        luaL_addsize(&b, (size_t)n);
    }
    luaL_pushresult(&b);
    return 0;
}

int mw_door_call(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    const char *line = lua_pushfstring(L, "%s\n", luaL_checkstring(L, 2));
    int64_t deadline = now_ms() + (int64_t)(luaL_checknumber(L, 3) * 1000);
    int fd = connect_to(path);
    if (fd < 0) return refused(L, "no answer from", path);
    ssize_t sent = send(fd, line, strlen(line), MSG_NOSIGNAL);
    int rc = sent == (ssize_t)strlen(line) ? take_reply(L, fd, deadline) : -1;
    close(fd);
    return rc ? refused(L, "no answer from", path) : 1;
}
