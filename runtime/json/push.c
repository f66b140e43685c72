/* push.c - the tape into Lua tables. Sizes are on the tape, so a table is made once in its final size.
 * The recursion is bounded by the parser's depth limit, and the room on the Lua stack is asked for once, for
 * the depth the parser saw. Keys are interned afresh each time: a cache of recent keys was tried, and saved
 * two in a hundred instructions and no time. */
#include "json/tape.h"
#include "json/vm.h"

const char mw_json_make_key = 0, mw_json_digits_key = 0;

struct pushing {
    lua_State *L;
    int arrays;
};

/* The slow path for integers beyond 2^53: a Lua function makes the cdata. */
static void push_wide(lua_State *L, const struct mw_json_cell *c) {
    uint64_t bits = (uint64_t)c->integer;
    lua_pushlightuserdata(L, (void *)&mw_json_make_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_pushnumber(L, (double)(bits >> 32));
    lua_pushnumber(L, (double)(bits & 0xFFFFFFFF));
    lua_pushboolean(L, c->type == MW_JSON_UINT64);
    lua_call(L, 3, 1);
}

static const struct mw_json_cell *push(const struct pushing *s, const struct mw_json_cell *c) {
    lua_State *L = s->L;
    switch (c->type) {
    case MW_JSON_STRING: lua_pushlstring(L, c->text, c->size); return c + 1;
    case MW_JSON_NUMBER: lua_pushnumber(L, c->number); return c + 1;
    case MW_JSON_TRUE: lua_pushboolean(L, 1); return c + 1;
    case MW_JSON_FALSE: lua_pushboolean(L, 0); return c + 1;
    case MW_JSON_NULL: lua_pushlightuserdata(L, NULL); return c + 1;
    case MW_JSON_OBJECT: {
        uint32_t size = c->size;
        lua_createtable(L, 0, (int)size);
        c++;
        while (size--) {
            lua_pushlstring(L, c->text, c->size);
            c = push(s, c + 1);
            lua_rawset(L, -3);
        }
        return c;
    }
    case MW_JSON_ARRAY: {
        uint32_t size = c->size;
        lua_createtable(L, (int)size, 0);
        c++;
        for (uint32_t i = 1; i <= size; i++) {
            c = push(s, c);
            lua_rawseti(L, -2, (int)i);
        }
        /* Every array, not only the empty ones: it may be emptied before it is encoded again. */
        lua_pushvalue(L, s->arrays);
        lua_setmetatable(L, -2);
        return c;
    }
    default: push_wide(L, c); return c + 1;
    }
}

bool mw_json_push(lua_State *L, const struct mw_json_doc *d, uint32_t node, int arrays) {
    if (node >= d->cell_count) return false;
    if (!lua_checkstack(L, 2 * (int)d->depth + 8)) return false;
    struct pushing s = {L, arrays};
    push(&s, &d->cells[node]);
    return true;
}
