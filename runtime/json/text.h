/* text.h - the growing text that the encoder writes. Inline because every byte of output goes through it. */
#pragma once
#include <stdlib.h>
#include <string.h>

#include "json/vm.h"

enum { MW_JSON_TEXT_FIRST = 4096, MW_JSON_TEXT_KEEP = 256 * 1024, MW_JSON_TEXT_MODEST = 64 };

bool mw_json_text_grow(struct mw_json_text *t, size_t more);

/* Room for that many more bytes, or false: no memory. */
static inline bool mw_json_text_room(struct mw_json_text *t, size_t more) {
    return t->capacity - t->len >= more || mw_json_text_grow(t, more);
}

static inline bool mw_json_text_add(struct mw_json_text *t, const char *s, size_t len) {
    if (!mw_json_text_room(t, len)) return false;
    memcpy(t->data + t->len, s, len);
    t->len += len;
    return true;
}

static inline bool mw_json_text_char(struct mw_json_text *t, char c) {
    if (!mw_json_text_room(t, 1)) return false;
    t->data[t->len++] = c;
    return true;
}

enum mw_json_quoted { MW_JSON_QUOTED, MW_JSON_NO_MEMORY, MW_JSON_NOT_UTF8 };
/* A string in quotes, escaped. s has a NUL behind its len bytes, as Lua's strings do. */
enum mw_json_quoted mw_json_text_quote(struct mw_json_text *t, const char *s, size_t len);
void mw_json_text_start(struct mw_json_text *t); /* empties it, and gives memory back after a huge text */
