/* tape.h - how a parsed text lies in memory; shared by the files of this folder only.
 * The tape is one array of 16-byte cells in the order of the text. An object is its own cell, then key cell,
 * value, key cell, value...; `next` of a container is the index behind its last descendant, so that a lookup
 * steps over what it does not want. Strings point into the doc's copy of the text, where they were unescaped
 * in place (an escape is never shorter than what it stands for). */
#pragma once
#include <stdbool.h>

#include "json/json.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

struct mw_json_cell {
    uint32_t type;
    uint32_t size; /* string: bytes; container: elements or members */
    union {
        const char *text;
        double number;
        int64_t integer;
        uint32_t next;
    };
};

struct mw_json_doc {
    char *text; /* the copy; zeros behind it stop every scan, so the parser needs no bounds checks */
    size_t text_capacity;
    struct mw_json_cell *cells;
    uint32_t cell_count, cell_capacity;
    uint32_t depth;                /* deepest nesting of the parsed text: what push needs on the Lua stack */
    uint32_t modest;               /* parses in a row that needed far less than the arena holds */
    uint32_t stack[MW_JSON_DEPTH]; /* the open containers while parsing */
    char error[MW_JSON_ERROR_TEXT];
};

/* Zeros behind a text: one vector load that starts at its last byte, and "false" read at its end. */
enum { MW_JSON_PADDING = 32 };

/* arena.c */
int mw_json_reserve_text(struct mw_json_doc *d, size_t len);
int mw_json_grow_cells(struct mw_json_doc *d);
int mw_json_fail(struct mw_json_doc *d, const char *text, size_t len, size_t at, const char *what);

/* number.c: p is at '-' or a digit of NUL-terminated text. Fills the cell and returns the first byte behind
 * the number, or NULL with *what (and *at, where). */
const char *mw_json_number_scan(const char *p, struct mw_json_cell *cell, const char **at, const char **what);
enum { MW_JSON_NUMBER_TEXT = 32 };
/* The shortest text that reads back as the same finite double. Returns its length; no NUL. */
int mw_json_number_print(double x, char out[MW_JSON_NUMBER_TEXT]);
int mw_json_unsigned_print(uint64_t x, char out[MW_JSON_NUMBER_TEXT]);

/* Bit i is set when byte i of the 16 at p needs a closer look: quote, backslash, control or non-ASCII. */
static inline unsigned mw_json_special16(const char *p) {
#if defined(__SSE2__)
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    __m128i quote = _mm_cmpeq_epi8(v, _mm_set1_epi8('"'));
    __m128i slash = _mm_cmpeq_epi8(v, _mm_set1_epi8('\\'));
    __m128i low = _mm_cmplt_epi8(v, _mm_set1_epi8(0x20)); /* signed: bytes from 0x80 are low as well */
    return (unsigned)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quote, slash), low));
#else
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) {
        unsigned char c = (unsigned char)p[i];
        mask |= (unsigned)(c == '"' || c == '\\' || c < 0x20 || c >= 0x80) << i;
    }
    return mask;
#endif
}

/* Bytes of the UTF-8 sequence at p (whose first byte is not ASCII), or 0 when it is overlong, a surrogate,
 * beyond U+10FFFF or cut short. Reads on only while the bytes are right: a NUL behind the text is enough. */
static inline int mw_json_utf8(const unsigned char *p) {
    unsigned char c = p[0];
    if (c < 0xC2 || c > 0xF4) return 0;
    if (c < 0xE0) return (p[1] & 0xC0) == 0x80 ? 2 : 0;
    unsigned char low = 0x80, high = 0xBF; /* what the second byte may be */
    if (c == 0xE0) low = 0xA0;
    if (c == 0xED) high = 0x9F;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
    if (p[1] < low || p[1] > high || (p[2] & 0xC0) != 0x80) return 0;
    if (c < 0xF0) return 3;
    return (p[3] & 0xC0) == 0x80 ? 4 : 0;
}
