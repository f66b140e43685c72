/* text.c - growth of the encoder's text, and strings in quotes. */
#include "json/text.h"

#include "json/tape.h"

void mw_json_text_free(struct mw_json_text *t) {
    free(t->data);
    *t = (struct mw_json_text){0};
}

/* The same patience as the parser's arena has: see arena.c. */
void mw_json_text_start(struct mw_json_text *t) {
    if (t->capacity <= MW_JSON_TEXT_KEEP || t->len > t->capacity / 16)
        t->modest = 0;
    else if (++t->modest >= MW_JSON_TEXT_MODEST)
        mw_json_text_free(t);
    t->len = 0;
}

bool mw_json_text_grow(struct mw_json_text *t, size_t more) {
    size_t capacity = t->capacity ? t->capacity * 2 : MW_JSON_TEXT_FIRST;
    if (capacity < t->len + more) capacity = t->len + more;
    char *data = realloc(t->data, capacity);
    if (!data) return false;
    t->data = data;
    t->capacity = capacity;
    return true;
}

/* What follows the backslash; 0: not one of the short escapes. */
static const char SHORT_ESCAPE[128] = {
    ['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't', ['"'] = '"', ['\\'] = '\\'};

static enum mw_json_quoted quote_slowly(struct mw_json_text *t, const char *s, size_t len) {
    static const char HEX[] = "0123456789abcdef";
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)s[i];
        if (!mw_json_text_room(t, 8)) return MW_JSON_NO_MEMORY;
        char *out = t->data + t->len;
        int n = 1;
        if (c >= 0x80) {
            n = mw_json_utf8((const unsigned char *)s + i);
            if (!n) return MW_JSON_NOT_UTF8;
            memcpy(out, s + i, (size_t)n);
            t->len += (size_t)n;
        } else if (SHORT_ESCAPE[c]) {
            out[0] = '\\';
            out[1] = SHORT_ESCAPE[c];
            t->len += 2;
        } else if (c >= 0x20) {
            out[0] = (char)c;
            t->len++;
        } else {
            memcpy(out, "\\u00", 4);
            out[4] = HEX[c >> 4];
            out[5] = HEX[c & 15];
            t->len += 6;
        }
        i += (size_t)n;
    }
    return mw_json_text_char(t, '"') ? MW_JSON_QUOTED : MW_JSON_NO_MEMORY;
}

/* Copies first and looks afterwards, in our own memory: there the vector loads may pass the string's end. */
enum mw_json_quoted mw_json_text_quote(struct mw_json_text *t, const char *s, size_t len) {
    if (!mw_json_text_room(t, len + 2 + MW_JSON_PADDING)) return MW_JSON_NO_MEMORY;
    char *copy = t->data + t->len + 1;
    copy[-1] = '"';
    memcpy(copy, s, len);
    memset(copy + len, 0, 16); /* stops the scan */
    for (size_t i = 0;;) {
        unsigned mask = mw_json_special16(copy + i);
        if (!mask) {
            i += 16;
            continue;
        }
        i += (size_t)__builtin_ctz(mask);
        if (i >= len) break;
        int n = (signed char)s[i] < 0 ? mw_json_utf8((const unsigned char *)s + i) : 0;
        if (!n) {
            t->len += 1 + i;
            return quote_slowly(t, s + i, len - i);
        }
        i += (size_t)n;
    }
    copy[len] = '"';
    t->len += len + 2;
    return MW_JSON_QUOTED;
}
