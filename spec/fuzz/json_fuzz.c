/* json_fuzz.c - libFuzzer target for the JSON codec. For every input:
 *   the parser only looks at the bytes it was given (they stand alone on the heap, where ASan sees one too
 * many); what it accepts becomes Lua values, encodes, parses again, and encodes to the same text; an error
 * has a text; lookups, with paths taken from the input, stay inside the doc. A second doc is used in turns
 * with the first, so that stale arena contents would show. (run it in the root: it loads
 * lua/moonwire/json.lua) */
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/json.h"
#include "json/vm.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static lua_State *L;
static struct mw_json_doc *docs[2];

static void die(const char *what, const char *detail) {
    fprintf(stderr, "json_fuzz: %s: %s\n", what, detail ? detail : "");
    abort();
}

/* Lua's heap is not where LeakSanitizer looks, so what hangs on it must be gone before it does. */
static void close_lua(void) {
    lua_close(L);
    mw_json_free(docs[0]);
    mw_json_free(docs[1]);
}

static void open_lua(void) {
    L = luaL_newstate();
    luaL_openlibs(L);
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "preload");
    lua_pushcfunction(L, luaopen_moonwire_json_core);
    lua_setfield(L, -2, "moonwire.json.core");
    lua_settop(L, 0);
    const char *chunk = "package.path = 'lua/?.lua;' .. package.path\n"
                        "local json, sorted = require 'moonwire.json', { sort = true }\n"
                        "local core = require 'moonwire.json.core'\n"
                        "local function decode(text)\n"
                        "  local value, err = json.decode(text)\n"
                        "  if value == nil then error(err .. ' in ' .. text) end\n"
                        "  return value\n"
                        "end\n"
                        "return function(doc)\n"
                        "  local first = assert(json.encode(core.push_doc(doc), sorted))\n"
                        "  local value = decode(first)\n"
                        "  local second = assert(json.encode(value, sorted))\n"
                        "  if first ~= second then error(first .. ' became ' .. second) end\n"
                        "  local third = assert(json.encode(value, { pretty = true, sort = true }))\n"
                        "  local fourth = assert(json.encode(decode(third), sorted))\n"
                        "  if first ~= fourth then error(first .. ' became, indented, ' .. fourth) end\n"
                        "  decode(assert(json.encode(value)))\n"
                        "end";
    if (luaL_dostring(L, chunk)) die("cannot load the codec", lua_tostring(L, -1));
    docs[0] = mw_json_new();
    docs[1] = mw_json_new();
    atexit(close_lua);
}

/* Touches every byte a find hands out. */
static void check_found(const struct mw_json_value *v) {
    volatile char sink = 0;
    if (v->type == MW_JSON_STRING)
        for (uint32_t i = 0; i < v->len; i++) sink ^= v->text[i];
    (void)sink;
}

static void check_finds(const struct mw_json_doc *doc, const char *text, size_t size) {
    struct mw_json_value root, inner, same;
    static const char *const PATHS[] = {"a", "a.b", "1", "1.1", "a.1.b", "2.a", "a\\.b", ".", "", "\\"};
    for (size_t i = 0; i < sizeof PATHS / sizeof *PATHS; i++) {
        if (mw_json_find(doc, PATHS[i], strlen(PATHS[i]), &inner)) check_found(&inner);
    }
    for (size_t from = 0; from < size && from < 24; from++) {
        size_t len = (unsigned char)text[from] % 12;
        if (len > size - from) len = size - from;
        if (!mw_json_find(doc, text + from, len, &root)) continue;
        check_found(&root);
        if (mw_json_find_in(doc, root.node, "", 0, &same) != root.type) die("a node is not itself", text);
        mw_json_find_in(doc, root.node, "1", 1, &inner);
        check_found(&inner);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned turn;
    if (!L) open_lua();
    struct mw_json_doc *doc = docs[turn++ & 1];
    char *text = malloc(size ? size : 1);
    memcpy(text, data, size);
    if (mw_json_parse(doc, text, size) != 0) {
        if (!mw_json_error(doc)[0]) die("no error text", NULL);
        struct mw_json_value none;
        if (mw_json_find(doc, "", 0, &none)) die("a value after an error", NULL);
    } else {
        check_finds(doc, text, size);
        lua_pushvalue(L, -1);
        lua_pushnumber(L, (lua_Number)(uintptr_t)doc);
        if (lua_pcall(L, 1, 0, 0)) die("round trip", lua_tostring(L, -1));
    }
    free(text);
    return 0;
}
