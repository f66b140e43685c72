/* bind.c - the Lua module "moonwire.json.core". lua/moonwire/json.lua is its face; see there for the
 * contract. One codec per lua_State holds the arena and the output text between calls. A finalizer may run
 * Lua code in the middle of a decode (the collector steps when strings are made) and may decode something
 * itself: then the codec is taken, and that inner call works on one of its own. A Lua error (out of memory)
 * may fly past the place that gives the codec back; so the holder is known by its C stack frame, and a nested
 * call is always further down than that. */
#include <lauxlib.h>
#include <stdint.h>

#include "json/json.h"
#include "json/vm.h"

#define CODEC "moonwire.json.codec"

enum { UP_CODEC = 1, UP_ARRAYS, UP_OBJECTS, UPVALUES = UP_OBJECTS };

struct codec {
    struct mw_json_doc *doc;
    struct mw_json_text text;
    const char *holder; /* the frame of the call that works with it; NULL: free */
};

static struct codec *new_codec(lua_State *L) {
    struct codec *c = lua_newuserdata(L, sizeof *c);
    *c = (struct codec){0};
    luaL_getmetatable(L, CODEC);
    lua_setmetatable(L, -2);
    c->doc = mw_json_new();
    if (!c->doc) luaL_error(L, "out of memory");
    return c;
}

static int codec_gc(lua_State *L) {
    struct codec *c = lua_touserdata(L, 1);
    mw_json_free(c->doc);
    mw_json_text_free(&c->text);
    /* Taken for ever: when the state closes, finalizers may still come after this one. */
    *c = (struct codec){.holder = (const char *)UINTPTR_MAX};
    return 0;
}

static inline struct codec *take_codec(lua_State *L) {
    struct codec *c = lua_touserdata(L, lua_upvalueindex(UP_CODEC));
    const char *frame = __builtin_frame_address(0);
    if (frame < c->holder) c = new_codec(L); /* left on the Lua stack, where it lives long enough */
    c->holder = frame;
    return c;
}

static int push_failure(lua_State *L, const char *text) {
    lua_pushnil(L);
    lua_pushstring(L, text);
    return 2;
}

static int decode(lua_State *L, const char *text, size_t len) {
    struct codec *c = take_codec(L);
    int results = 1;
    if (mw_json_parse(c->doc, text, len) != 0)
        results = push_failure(L, mw_json_error(c->doc));
    else if (!mw_json_push(L, c->doc, 0, lua_upvalueindex(UP_ARRAYS)))
        results = push_failure(L, "no room on the Lua stack");
    c->holder = NULL;
    return results;
}

static int l_decode(lua_State *L) {
    size_t len;
    luaL_checktype(L, 1, LUA_TSTRING);
    const char *text = lua_tolstring(L, 1, &len);
    return decode(L, text, len);
}

/* Addresses come as Lua numbers: user space has 47 bits, a double holds 53. */
static void *check_address(lua_State *L, int arg) {
    return (void *)(uintptr_t)(uint64_t)luaL_checknumber(L, arg);
}

static int l_decode_at(lua_State *L) {
    const char *text = check_address(L, 1);
    lua_Number len = luaL_checknumber(L, 2);
    luaL_argcheck(L, len >= 0 && len <= (lua_Number)SIZE_MAX / 2, 2, "not a length");
    luaL_argcheck(L, text || len == 0, 1, "a null address");
    return decode(L, text, (size_t)len);
}

/* push_doc(address[, node]): the doc is the caller's and must not be parsed into by anybody meanwhile. */
static int l_push_doc(lua_State *L) {
    const struct mw_json_doc *doc = check_address(L, 1);
    luaL_argcheck(L, doc, 1, "a null address");
    lua_Number node = luaL_optnumber(L, 2, 0);
    luaL_argcheck(L, node >= 0 && node < (lua_Number)UINT32_MAX, 2, "not a node");
    if (mw_json_push(L, doc, (uint32_t)node, lua_upvalueindex(UP_ARRAYS))) return 1;
    return push_failure(L, "the document holds no such value");
}

static bool option(lua_State *L, const char *name) {
    if (!lua_istable(L, 2)) return false;
    lua_getfield(L, 2, name);
    bool set = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return set;
}

static int l_encode(lua_State *L) {
    luaL_checkany(L, 1);
    luaL_argcheck(L, lua_isnoneornil(L, 2) || lua_istable(L, 2), 2, "expected a table of options");
    struct mw_json_encoding how;
    how.sort = option(L, "sort");
    how.pretty = option(L, "pretty");
    how.arrays = lua_upvalueindex(UP_ARRAYS);
    how.objects = lua_upvalueindex(UP_OBJECTS);
    struct codec *c = take_codec(L);
    int results = 1;
    if (mw_json_encode(L, 1, &how, &c->text) != 0)
        results = push_failure(L, how.error);
    else
        lua_pushlstring(L, c->text.data, c->text.len);
    c->holder = NULL;
    return results;
}

/* integers(make, digits): the face hands over what only Lua can do. See vm.h. */
static int l_integers(lua_State *L) {
    luaL_checktype(L, 1, LUA_TFUNCTION);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    lua_settop(L, 2);
    lua_pushlightuserdata(L, (void *)&mw_json_digits_key);
    lua_insert(L, 2);
    lua_rawset(L, LUA_REGISTRYINDEX);
    lua_pushlightuserdata(L, (void *)&mw_json_make_key);
    lua_insert(L, 1);
    lua_rawset(L, LUA_REGISTRYINDEX);
    return 0;
}

static const luaL_Reg FUNCTIONS[] = {
    {"decode", l_decode}, {"decode_at", l_decode_at}, {"push_doc", l_push_doc},
    {"encode", l_encode}, {"integers", l_integers},   {NULL, NULL},
};

int luaopen_moonwire_json_core(lua_State *L) {
    lua_newtable(L);
    int module = lua_gettop(L);
    if (luaL_newmetatable(L, CODEC)) {
        lua_pushcfunction(L, codec_gc);
        lua_setfield(L, -2, "__gc");
    }
    lua_pop(L, 1);
    new_codec(L);
    lua_newtable(L);
    lua_newtable(L);
    lua_pushvalue(L, module + UP_ARRAYS);
    lua_setfield(L, module, "array_mark");
    lua_pushvalue(L, module + UP_OBJECTS);
    lua_setfield(L, module, "object_mark");
    lua_pushlightuserdata(L, NULL);
    lua_setfield(L, module, "null");
    for (const luaL_Reg *f = FUNCTIONS; f->name; f++) {
        for (int i = 1; i <= UPVALUES; i++) lua_pushvalue(L, module + i);
        lua_pushcclosure(L, f->func, UPVALUES);
        lua_setfield(L, module, f->name);
    }
    lua_settop(L, module);
    return 1;
}
