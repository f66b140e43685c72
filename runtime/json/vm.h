/* vm.h - the codec's side towards Lua: tape to values, values to text, and the module that offers both.
 * Everything here runs on the thread of its lua_State and may raise Lua's out-of-memory error, nothing else;
 * expected failures are return values. No metamethod is ever called. */
#pragma once
#include <lua.h>
#include <stdbool.h>

#include "json/json.h"

/* Pushes the value at a node (0: the whole document). False, with nothing pushed: no such node, or no room on
 * the Lua stack. `arrays` is the stack index of the metatable that marks arrays. */
bool mw_json_push(lua_State *L, const struct mw_json_doc *doc, uint32_t node, int arrays);

struct mw_json_text { /* zero-initialised is empty; reused between calls */
    char *data;
    size_t len, capacity;
    uint32_t modest;
};
void mw_json_text_free(struct mw_json_text *t);

struct mw_json_encoding {
    bool sort, pretty;
    int arrays, objects; /* absolute stack indices of the metatables that mark tables */
    char error[2 * MW_JSON_ERROR_TEXT];
};

/* The text of the value at absolute stack index `value`. 0, or -1 with how->error naming what and where. */
int mw_json_encode(lua_State *L, int value, struct mw_json_encoding *how, struct mw_json_text *out);

/* Keys in the registry: functions that the Lua face gave us for 64-bit integers, which the C API cannot make
 * or read. make(high, low, unsigned) -> cdata; digits(cdata) -> text or nil. */
extern const char mw_json_make_key, mw_json_digits_key;

int luaopen_moonwire_json_core(lua_State *L);
