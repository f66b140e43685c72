/* module.c - the C module "moonwire.core": what needs the Lua C API instead of FFI, because it runs the loop
 * or enters another state. Like main.c it sees everything; nothing includes it. */
#include <dirent.h>
#include <lauxlib.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "app/app.h"
#include "base/hash.h"
#include "lua/core.h"
#include "lua/deadline.h"
#include "lua/vm.h"
#include "process/child.h"
#include "process/door.h"
#include "process/watch.h"
#include "supervisor/supervisor.h"
#include "supervisor/worker.h"

/* set_tick(function): what the loop calls when something is ready for this state */
static int l_set_tick(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.vm");
    mw_vm *vm = lua_touserdata(L, -1);
    lua_pop(L, 1);
    luaL_unref(L, LUA_REGISTRYINDEX, vm->tick);
    lua_settop(L, 1);
    vm->tick = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

/* step(max_wait_ms): one turn of the loop; the tick of this and of other states may run inside */
static int l_step(lua_State *L) {
    mw_loop_step(mw_core_loop(), (int64_t)luaL_checknumber(L, 1));
    return 0;
}

/* terminal(fd) -> columns | false */
static int l_terminal(lua_State *L) {
    int fd = (int)luaL_checkinteger(L, 1);
    struct winsize size;
    if (!isatty(fd))
        lua_pushboolean(L, 0);
    else
        lua_pushinteger(L, ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80);
    return 1;
}

/* hash(text) -> 16 hexadecimal digits: the same text, the same hash, in every process */
static int l_hash(lua_State *L) {
    size_t len;
    char digits[20];
    const char *text = luaL_checklstring(L, 1, &len);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)mw_hash64(text, len));
    lua_pushstring(L, digits);
    return 1;
}

static int l_memory(lua_State *L) { /* bytes this state holds */
    lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.vm");
    lua_pushnumber(L, (double)((mw_vm *)lua_touserdata(L, -1))->alloc.bytes);
    return 1;
}

/* files(folder) -> the names in it, in no order; none when it cannot be read */
static int l_files(lua_State *L) {
    DIR *dir = opendir(luaL_checkstring(L, 1));
    lua_newtable(L);
    int count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        lua_pushstring(L, entry->d_name);
        lua_rawseti(L, -2, ++count);
    }
    if (dir) closedir(dir);
    return 1;
}

/* read(function, …) -> as pcall: the function reads a project, within the limits of that */
static int l_read(lua_State *L) {
    lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.vm");
    mw_vm *vm = lua_touserdata(L, -1);
    lua_pop(L, 1);
    mw_alloc before = vm->alloc;
    mw_reading reading = mw_deadline_read(vm);
    int status = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
    mw_deadline_read_end(vm, reading, true);
    vm->alloc.limit = before.limit;
    vm->alloc.cap = before.cap;
    lua_pushboolean(L, status == 0);
    lua_insert(L, 1);
    return lua_gettop(L);
}

int luaopen_moonwire_core(lua_State *L) {
    static const luaL_Reg functions[] = {{"set_tick", l_set_tick},
                                         {"step", l_step},
                                         {"terminal", l_terminal},
                                         {"memory", l_memory},
                                         {"read", l_read},
                                         {"files", l_files},
                                         {"hash", l_hash},
                                         {"app", mw_app_new},
                                         {"watch", mw_watch_lua},
                                         {"child", mw_child_new},
                                         {"be_child", mw_child_be},
                                         {"supervise", mw_supervise},
                                         {"attach_worker", mw_worker_attach},
                                         {"worker_settings", mw_worker_settings},
                                         {"worker_sources", mw_worker_sources},
                                         {"control_path", mw_door_path},
                                         {"control_sockets", mw_door_sockets},
                                         {"control_call", mw_door_call},
                                         {NULL, NULL}};
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.vm");
    lua_setfield(L, -2, "vm");
    lua_getfield(L, LUA_REGISTRYINDEX, "moonwire.source");
    lua_setfield(L, -2, "source");
    lua_pushliteral(L, MW_VERSION);
    lua_setfield(L, -2, "version");
    return 1;
}
