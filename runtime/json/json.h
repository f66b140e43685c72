/* json.h - RFC 8259 text parsed to a tape, and lookups on it. Plain C, no Lua: LuaJIT's FFI calls it
 * directly. A doc keeps its own copy of the text, so the caller's bytes may go away after mw_json_parse. It
 * is an arena: parse into the same doc again and again and nothing is allocated once it is large enough;
 * after a huge text it shrinks again. One doc belongs to one thread. Whatever find returned is valid until
 * the next parse. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum {
    MW_JSON_DEPTH = 512,            /* nested arrays and objects, in both directions */
    MW_JSON_ELEMENTS_MAX = 1 << 25, /* of one array or object: what every Lua table can hold */
    MW_JSON_ERROR_TEXT = 240,
};
#define MW_JSON_TEXT_MAX ((size_t)1 << 30)

/* 0 is "no such value", so that the result of a find can be tested as a truth value. */
enum mw_json_type {
    MW_JSON_NONE,
    MW_JSON_NULL,
    MW_JSON_FALSE,
    MW_JSON_TRUE,
    MW_JSON_NUMBER, /* a double; every integer from -2^53 to 2^53 is here */
    MW_JSON_INT64,  /* an integer beyond 2^53 that fits */
    MW_JSON_UINT64, /* an integer beyond 2^63 that fits */
    MW_JSON_STRING,
    MW_JSON_ARRAY,
    MW_JSON_OBJECT,
};

struct mw_json_doc;

struct mw_json_value {
    int32_t type;
    uint32_t count;   /* array: elements; object: members as written */
    uint32_t node;    /* where it stands on the tape, for mw_json_find_in and push_doc */
    uint32_t len;     /* string: bytes */
    const char *text; /* string: unescaped UTF-8, no NUL behind it */
    double number;    /* NUMBER, INT64, UINT64 (rounded for the last two) */
    int64_t integer;  /* INT64; UINT64 as the same 64 bits */
};

struct mw_json_doc *mw_json_new(void);      /* NULL: no memory */
void mw_json_free(struct mw_json_doc *doc); /* NULL is fine */

/* 0, or -1: then mw_json_error tells what and where, and the doc holds no value. */
int mw_json_parse(struct mw_json_doc *doc, const char *text, size_t len);
const char *mw_json_error(const struct mw_json_doc *doc); /* "" after success */

/* Looks up "customer.address.city" or "items.1.sku": arrays count from 1, `\.` and `\\` stand for a dot and a
 * backslash in a key, the empty path is the whole document. Of duplicate keys the last wins.
 * Returns the type and fills out, or 0 (out->type too) when there is no such value. */
int mw_json_find(const struct mw_json_doc *doc, const char *path, size_t path_len, struct mw_json_value *out);
/* The same, starting at a node that an earlier find on this parse returned. */
int mw_json_find_in(const struct mw_json_doc *doc, uint32_t node, const char *path, size_t path_len,
                    struct mw_json_value *out);
size_t mw_json_memory(const struct mw_json_doc *doc); /* bytes the arena holds now */
