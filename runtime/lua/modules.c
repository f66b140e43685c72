/* modules.c - what a fresh lua_State can require: the Lua library from the binary (or from MOONWIRE_LUA, a
 * source tree, while it is being worked on), and the C modules. */
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "json/vm.h"
#include "lua/core.h"
#include "lua/embedded.h"
#include "lua/vm.h"

static const mw_embedded *embedded(const char *path) {
    for (const mw_embedded *f = mw_embedded_files; f->name; f++)
        if (strcmp(f->name, path) == 0) return f;
    return NULL;
}

/* 0 with the chunk or text on the stack, -1 when there is no such file. */
static int load_from_tree(lua_State *L, const char *path) {
    const char *root = getenv("MOONWIRE_LUA");
    if (!root || !*root) return -1;
    lua_pushfstring(L, "%s/%s", root, path);
    FILE *f = fopen(lua_tostring(L, -1), "rb");
    lua_pop(L, 1);
    if (!f) return -1;
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    for (size_t n; (n = fread(luaL_prepbuffer(&b), 1, LUAL_BUFFERSIZE, f)) > 0;) luaL_addsize(&b, n);
    fclose(f);
    luaL_pushresult(&b);
    return 0;
}

static int push_source(lua_State *L, const char *path) {
    if (load_from_tree(L, path) == 0) return 0;
    const mw_embedded *f = embedded(path);
    if (!f) return -1;
    lua_pushlstring(L, f->data, f->len);
    return 0;
}

/* source(path) -> text | nil: a file of the library, by its path in the source tree */
static int l_source(lua_State *L) {
    if (push_source(L, luaL_checkstring(L, 1))) lua_pushnil(L);
    return 1;
}

/* ---- compiled once a process: every reload makes a fresh state, and compiling is most of what that costs
 * ---- */

typedef struct compiled {
    struct compiled *next;
    const mw_embedded *file;
    mw_buf code;
} compiled;

static compiled *compiled_files;

static int add_code(lua_State *L, const void *data, size_t len, void *buf) {
    (void)L;
    mw_buf_add(buf, data, len);
    return 0;
}

static int load_embedded(lua_State *L, const mw_embedded *f) {
    const char *chunk = lua_pushfstring(L, "=%s", f->name);
    for (compiled *c = compiled_files; c; c = c->next)
        if (c->file == f) return luaL_loadbufferx(L, c->code.data, c->code.len, chunk, "b");
    int status = luaL_loadbufferx(L, f->data, f->len, chunk, "t");
    if (status) return status;
    compiled *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->file = f;
    lua_dump(L, add_code, &c->code);
    c->next = compiled_files;
    compiled_files = c;
    return 0;
}

void mw_modules_forget(void) {
    for (compiled *c = compiled_files, *next; c; c = next) {
        next = c->next;
        mw_buf_free(&c->code);
        free(c);
    }
    compiled_files = NULL;
}

/* 0 with the chunk on the stack, 1 when there is no such file, -1 with the error. */
static int load_module(lua_State *L, const char *path) {
    if (load_from_tree(L, path) == 0) {
        size_t len;
        const char *text = lua_tolstring(L, -1, &len);
        return luaL_loadbufferx(L, text, len, lua_pushfstring(L, "=%s", path), "t") ? -1 : 0;
    }
    const mw_embedded *f = embedded(path);
    if (!f) return 1;
    return load_embedded(L, f) ? -1 : 0;
}

static int search(lua_State *L) {
    const char *name = luaL_gsub(L, luaL_checkstring(L, 1), ".", "/");
    static const char *const shapes[] = {"lua/%s.lua", "lua/%s/init.lua"};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        int rc = load_module(L, lua_pushfstring(L, shapes[i], name));
        if (rc < 0) return lua_error(L);
        if (rc == 0) return 1;
    }
    lua_pushfstring(L, "\n\tno file of the library for " LUA_QS, name);
    return 1;
}

static void preload(lua_State *L, const char *name, lua_CFunction open) {
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "preload");
    lua_pushcfunction(L, open);
    lua_setfield(L, -2, name);
    lua_pop(L, 2);
}

static void add_searcher(lua_State *L) { /* second: after package.preload, before the file system */
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "loaders");
    for (int i = (int)lua_objlen(L, -1); i >= 2; i--) {
        lua_rawgeti(L, -1, i);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushcfunction(L, search);
    lua_rawseti(L, -2, 2);
    lua_pop(L, 2);
}

void mw_modules_open(mw_vm *vm) {
    lua_State *L = vm->L;
    luaL_openlibs(L);
    add_searcher(L);
    preload(L, "moonwire.core", luaopen_moonwire_core);
    preload(L, "moonwire.json.core", luaopen_moonwire_json_core);
    lua_pushlightuserdata(L, vm);
    lua_setfield(L, LUA_REGISTRYINDEX, "moonwire.vm");
    lua_pushliteral(L, "the handler's deadline has passed");
    lua_setfield(L, LUA_REGISTRYINDEX, "moonwire.deadline");
    lua_pushliteral(L, "not enough memory"); /* Lua's own words */
    lua_setfield(L, LUA_REGISTRYINDEX, "moonwire.memory");
    lua_pushcfunction(L, l_source);
    lua_setfield(L, LUA_REGISTRYINDEX, "moonwire.source");
}
