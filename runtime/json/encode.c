/* encode.c - a Lua value to JSON text. Tables are walked raw, so no user code runs in between.
 * The first key decides what a table is, and the walk that checks the guess is the one that writes: a
 * sequence in order costs one pass. Where it stands is kept as a path for the error texts, in the syntax that
 * mw_json_find reads. The recursion is bounded by the depth limit. */
#include <lauxlib.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "json/tape.h"
#include "json/text.h"

enum { TYPE_CDATA = 10, STACK_PER_LEVEL = 8 };

struct step {
    const void *table; /* to notice cycles */
    const char *key;   /* NULL: index counts */
    size_t key_len;
    double index;
};

struct mw_json_key {
    const char *text; /* NULL: the text is in digits */
    size_t len;
    int place; /* in the Lua table that keeps the keys alive */
    char digits[MW_JSON_NUMBER_TEXT];
};

struct encoder {
    lua_State *L;
    struct mw_json_text *out;
    struct mw_json_encoding *how;
    int depth;
    struct step path[MW_JSON_DEPTH];
};

static int encode_value(struct encoder *e);

/* ---- errors ---- */

static size_t describe_step(const struct step *s, char *out, size_t room) {
    char digits[MW_JSON_NUMBER_TEXT];
    size_t n = 0, len = s->key ? s->key_len : (size_t)mw_json_number_print(s->index, digits);
    const char *text = s->key ? s->key : digits;
    for (size_t i = 0; i < len && n + 2 < room; i++) {
        if (s->key && (text[i] == '.' || text[i] == '\\')) out[n++] = '\\';
        out[n++] = text[i] >= 0x20 && text[i] < 0x7F ? text[i] : '?';
    }
    return n;
}

__attribute__((format(printf, 2, 3))) static int fail(struct encoder *e, const char *format, ...) {
    char *out = e->how->error;
    size_t room = sizeof e->how->error - 8, n;
    va_list args;
    va_start(args, format);
    n = (size_t)vsnprintf(out, room / 2, format, args);
    va_end(args);
    if (n >= room / 2) n = room / 2 - 1;
    n += (size_t)snprintf(out + n, room - n, e->depth ? " at " : " at the top");
    for (int i = 0; i < e->depth; i++) {
        if (n + 40 > room) { /* a deep path: its beginning is what helps */
            memcpy(out + n, "...", 3);
            n += 3;
            break;
        }
        if (i) out[n++] = '.';
        n += describe_step(&e->path[i], out + n, room - n);
    }
    out[n] = 0;
    return -1;
}

static int no_memory(struct encoder *e) { return fail(e, "out of memory"); }

/* ---- scalars ---- */

static int put_string(struct encoder *e, const char *s, size_t len) {
    switch (mw_json_text_quote(e->out, s, len)) {
    case MW_JSON_QUOTED: return 0;
    case MW_JSON_NOT_UTF8: return fail(e, "invalid UTF-8 in a string");
    case MW_JSON_NO_MEMORY: break;
    }
    return no_memory(e);
}

static int put_number(struct encoder *e, double x) {
    if (!isfinite(x)) return fail(e, "cannot encode %s", isnan(x) ? "NaN" : "an infinite number");
    if (!mw_json_text_room(e->out, MW_JSON_NUMBER_TEXT)) return no_memory(e);
    e->out->len += (size_t)mw_json_number_print(x, e->out->data + e->out->len);
    return 0;
}

/* A cdata at the top of the stack: the Lua face knows its digits if it is a 64-bit integer. */
static int put_cdata(struct encoder *e) {
    lua_State *L = e->L;
    size_t len;
    lua_pushlightuserdata(L, (void *)&mw_json_digits_key);
    lua_rawget(L, LUA_REGISTRYINDEX);
    lua_pushvalue(L, -2);
    lua_call(L, 1, 1);
    const char *digits = lua_tolstring(L, -1, &len);
    bool added = digits && mw_json_text_add(e->out, digits, len);
    lua_pop(L, 1);
    if (!digits) return fail(e, "cannot encode cdata other than 64-bit integers");
    return added ? 0 : no_memory(e);
}

/* ---- containers ---- */

static bool break_line(struct encoder *e, int level) {
    if (!e->how->pretty) return true;
    if (!mw_json_text_room(e->out, 1 + 2 * (size_t)level)) return false;
    e->out->data[e->out->len++] = '\n';
    memset(e->out->data + e->out->len, ' ', 2 * (size_t)level);
    e->out->len += 2 * (size_t)level;
    return true;
}

/* Comma and line break before an element; the first one has the bracket before it. */
static inline bool separate(struct encoder *e, bool first) {
    if (!first && !mw_json_text_char(e->out, ',')) return false;
    return !e->how->pretty || break_line(e, e->depth);
}

static int close_container(struct encoder *e, char bracket, bool empty) {
    if (!empty && !break_line(e, e->depth - 1)) return no_memory(e);
    return mw_json_text_char(e->out, bracket) ? 0 : no_memory(e);
}

static inline bool is_index(double x) { return x >= 1 && x == floor(x) && x <= 2147483647.0; }

/* The table at the top, whose keys do not come in order: are they 1..n all the same? Returns n or -1. */
static int check_sequence(struct encoder *e) {
    lua_State *L = e->L;
    double largest = 0, count = 0;
    bool others = false;
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        if (lua_type(L, -2) == LUA_TNUMBER && is_index(lua_tonumber(L, -2))) {
            count++;
            if (lua_tonumber(L, -2) > largest) largest = lua_tonumber(L, -2);
        } else {
            others = true;
        }
    }
    e->depth--; /* the table is at fault, not one of its elements */
    if (others && count)
        fail(e, "a table with both array elements and other keys");
    else if (others)
        fail(e, "a table marked as an array has keys that are not array indices");
    else if (count != largest)
        fail(e, "a sparse array (%.0f elements, the last at %.0f)", count, largest);
    else
        return e->depth++, (int)largest;
    return -1;
}

/* Elements 1..n one by one, when they do not lie in order. */
static int encode_scattered(struct encoder *e, struct step *s) {
    int n = check_sequence(e);
    for (int i = 1; i <= n; i++) {
        s->index = i;
        lua_rawgeti(e->L, -1, i);
        if (!separate(e, i == 1)) return no_memory(e);
        if (encode_value(e) != 0) return -1;
        lua_pop(e->L, 1);
    }
    return n < 0 ? -1 : close_container(e, ']', n == 0);
}

static int encode_array(struct encoder *e, struct step *s) {
    lua_State *L = e->L;
    size_t start = e->out->len;
    int n = 0;
    s->key = NULL;
    if (!mw_json_text_char(e->out, '[')) return no_memory(e);
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        s->index = ++n;
        if (lua_type(L, -2) != LUA_TNUMBER || lua_tonumber(L, -2) != n) {
            e->out->len = start + 1;
            lua_pop(L, 2);
            return encode_scattered(e, s);
        }
        if (!separate(e, n == 1)) return no_memory(e);
        if (encode_value(e) != 0) return -1;
    }
    return close_container(e, ']', n == 0);
}

/* Writes the key at stack index -2 with its colon. */
static int put_key(struct encoder *e, struct step *s, bool marked) {
    lua_State *L = e->L;
    if (lua_type(L, -2) == LUA_TSTRING) {
        s->key = lua_tolstring(L, -2, &s->key_len);
        if (put_string(e, s->key, s->key_len) != 0) return -1;
    } else if (lua_type(L, -2) == LUA_TNUMBER) {
        s->key = NULL;
        s->index = lua_tonumber(L, -2);
        if (!marked && is_index(s->index)) {
            e->depth--;
            return fail(e, "a table with both array elements and other keys");
        }
        if (!mw_json_text_char(e->out, '"')) return no_memory(e);
        if (put_number(e, s->index) != 0) return -1;
        if (!mw_json_text_char(e->out, '"')) return no_memory(e);
    } else {
        e->depth--;
        return fail(e, "a table with a %s as key", luaL_typename(L, -2));
    }
    return mw_json_text_add(e->out, ": ", e->how->pretty ? 2 : 1) ? 0 : no_memory(e);
}

static int encode_object(struct encoder *e, struct step *s, bool marked) {
    lua_State *L = e->L;
    bool first = true;
    if (!mw_json_text_char(e->out, '{')) return no_memory(e);
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        if (!separate(e, first)) return no_memory(e);
        if (put_key(e, s, marked) != 0 || encode_value(e) != 0) return -1;
        first = false;
    }
    return close_container(e, '}', first);
}

static int compare_keys(const void *left, const void *right) {
    const struct mw_json_key *a = left, *b = right;
    int order = memcmp(a->text ? a->text : a->digits, b->text ? b->text : b->digits,
                       a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* Pushes an array of the keys of the table at the top and, above it, a userdata with the same keys in sorted
 * order. Both belong to Lua, so that an error leaves nothing behind. Keys that are no strings or numbers get
 * an empty text; put_key reports them. */
static struct mw_json_key *push_sorted_keys(lua_State *L, int *count) {
    int n = 0;
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) n++;
    lua_createtable(L, n, 0);
    struct mw_json_key *keys = lua_newuserdata(L, (size_t)n * sizeof *keys + 1);
    *count = 0;
    for (lua_pushnil(L); *count < n && lua_next(L, -4); lua_pop(L, 1)) {
        struct mw_json_key *k = &keys[*count];
        k->text = NULL;
        k->len = 0;
        if (lua_type(L, -2) == LUA_TSTRING)
            k->text = lua_tolstring(L, -2, &k->len);
        else if (lua_type(L, -2) == LUA_TNUMBER && isfinite(lua_tonumber(L, -2)))
            k->len = (size_t)mw_json_number_print(lua_tonumber(L, -2), k->digits);
        k->place = ++*count;
        lua_pushvalue(L, -2);
        lua_rawseti(L, -5, k->place);
    }
    qsort(keys, (size_t)*count, sizeof *keys, compare_keys);
    return keys;
}

static int encode_sorted(struct encoder *e, struct step *s, bool marked) {
    lua_State *L = e->L;
    int count, table = lua_gettop(L);
    if (!mw_json_text_char(e->out, '{')) return no_memory(e);
    struct mw_json_key *keys = push_sorted_keys(L, &count);
    for (int i = 0; i < count; i++) {
        lua_rawgeti(L, table + 1, keys[i].place);
        lua_pushvalue(L, -1);
        lua_rawget(L, table);
        if (!separate(e, i == 0)) return no_memory(e);
        if (put_key(e, s, marked) != 0 || encode_value(e) != 0) return -1;
        lua_pop(L, 2);
    }
    lua_settop(L, table);
    return close_container(e, '}', count == 0);
}

/* What the table's metatable says: -1 object, 1 array, 0 nothing. */
static int marking(struct encoder *e) {
    lua_State *L = e->L;
    if (!lua_getmetatable(L, -1)) return 0;
    int mark = lua_rawequal(L, -1, e->how->arrays) - lua_rawequal(L, -1, e->how->objects);
    lua_pop(L, 1);
    return mark;
}

static int encode_table(struct encoder *e) {
    lua_State *L = e->L;
    const void *self = lua_topointer(L, -1);
    for (int i = 0; i < e->depth; i++)
        if (e->path[i].table == self) return fail(e, "a table that contains itself");
    if (e->depth == MW_JSON_DEPTH) return fail(e, "nested too deeply (limit %d)", MW_JSON_DEPTH);
    if (!lua_checkstack(L, STACK_PER_LEVEL)) return fail(e, "no room on the Lua stack");
    int mark = marking(e);
    if (mark == 0) {
        lua_pushnil(L);
        if (lua_next(L, -2)) {
            if (lua_type(L, -2) == LUA_TNUMBER && is_index(lua_tonumber(L, -2))) mark = 1;
            lua_pop(L, 2);
        }
    }
    struct step *s = &e->path[e->depth++];
    s->table = self;
    int status = mark > 0       ? encode_array(e, s)
                 : e->how->sort ? encode_sorted(e, s, mark < 0)
                                : encode_object(e, s, mark < 0);
    if (status == 0) e->depth--;
    return status;
}

/* Writes the value at the top of the stack and leaves it there. After a failure the stack is not balanced:
 * mw_json_encode cuts it back. */
static int encode_value(struct encoder *e) {
    lua_State *L = e->L;
    const char *s;
    size_t len;
    switch (lua_type(L, -1)) {
    case LUA_TSTRING: s = lua_tolstring(L, -1, &len); return put_string(e, s, len);
    case LUA_TNUMBER: return put_number(e, lua_tonumber(L, -1));
    case LUA_TTABLE: return encode_table(e);
    case LUA_TBOOLEAN:
        s = lua_toboolean(L, -1) ? "true" : "false";
        return mw_json_text_add(e->out, s, strlen(s)) ? 0 : no_memory(e);
    case LUA_TLIGHTUSERDATA:
        if (lua_touserdata(L, -1)) return fail(e, "cannot encode a userdata");
        return mw_json_text_add(e->out, "null", 4) ? 0 : no_memory(e);
    case LUA_TNIL: return fail(e, "cannot encode nil (json.null stands for null)");
    case TYPE_CDATA: return put_cdata(e);
    default: return fail(e, "cannot encode a %s", luaL_typename(L, -1));
    }
}

int mw_json_encode(lua_State *L, int value, struct mw_json_encoding *how, struct mw_json_text *out) {
    struct encoder e; /* not initialised as a whole: the path is large and filled as it is needed */
    int top = lua_gettop(L);
    e.L = L;
    e.out = out;
    e.how = how;
    e.depth = 0;
    mw_json_text_start(out);
    lua_pushvalue(L, value);
    int status = encode_value(&e);
    lua_settop(L, top);
    return status;
}
