/* scan.c - one pass over the text that checks everything and writes the tape. The only parser there is:
 * what the tape holds is known to be valid, so find and push check nothing again.
 * No recursion: the open containers are a small stack in the doc. The text was copied before a row of zeros,
 * and a zero is wrong everywhere in JSON, so the scan stops by itself and never looks for the end. */
#include <string.h>

#include "json/tape.h"

/* The zeros behind the text are control characters as well, so this is also how a missing quote shows. */
static const char CONTROL[] = "control character in a string";

static char *scan_string(char *p, struct mw_json_cell *cell, const char **what);
static char *unescape(char *p, char *start, struct mw_json_cell *cell, const char **what);

static inline char *skip_space(char *p) {
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t') p++;
    return p;
}

static const char *expected_value(const char *p, const char *end) {
    if (p >= end) return "unexpected end of text, expected a value";
    if (*p == ']' || *p == '}' || *p == ',') return "expected a value (is there a comma too many?)";
    return "expected a value";
}

/* Returns where the scan stopped, with *what set when that is an error. */
static char *scan(struct mw_json_doc *d, char *p, const char *end, const char **what) {
    struct mw_json_cell *cell;
    uint32_t n = 0, depth = 0, deepest = 0;
    bool in_object = false;
    const char *at;

value:
    p = skip_space(p);
value_here:
    if (n + 2 > d->cell_capacity && mw_json_grow_cells(d) != 0) return *what = "out of memory", p;
    cell = &d->cells[n++];
    switch (*p) {
    case '"':
        p = scan_string(p + 1, cell, what);
        if (*what) return p;
        break;
    case '{':
    case '[':
        if (depth == MW_JSON_DEPTH) return *what = "nested too deeply (limit 512)", p;
        in_object = *p == '{';
        d->stack[depth++] = n - 1;
        if (depth > deepest) deepest = depth;
        cell->type = in_object ? MW_JSON_OBJECT : MW_JSON_ARRAY;
        cell->size = 0;
        p = skip_space(p + 1);
        if (*p == (in_object ? '}' : ']')) goto close;
        cell->size = 1;
        if (in_object) goto key;
        goto value_here;
    case 't':
        if (memcmp(p, "true", 4) != 0) return *what = expected_value(p, end), p;
        cell->type = MW_JSON_TRUE;
        p += 4;
        break;
    case 'f':
        if (memcmp(p, "false", 5) != 0) return *what = expected_value(p, end), p;
        cell->type = MW_JSON_FALSE;
        p += 5;
        break;
    case 'n':
        if (memcmp(p, "null", 4) != 0) return *what = expected_value(p, end), p;
        cell->type = MW_JSON_NULL;
        p += 4;
        break;
    case '-':
    case '0' ... '9': {
        const char *next = mw_json_number_scan(p, cell, &at, what);
        p += (next ? next : at) - p;
        if (!next) return p;
        break;
    }
    default: return *what = expected_value(p, end), p;
    }

after_value:
    if (*p != ',') p = skip_space(p);
    if (depth == 0) {
        if (p != end) *what = "unexpected text behind the document";
        d->cell_count = n;
        d->depth = deepest;
        return p;
    }
    if (*p == ',') {
        d->cells[d->stack[depth - 1]].size++;
        p++;
        if (!in_object) goto value;
        p = skip_space(p);
        goto key;
    }
    if (*p != (in_object ? '}' : ']')) {
        *what = p >= end    ? "unexpected end of text inside an array or object"
                : in_object ? "expected ',' or '}'"
                            : "expected ',' or ']'";
        return p;
    }
close:
    cell = &d->cells[d->stack[--depth]];
    if (cell->size > MW_JSON_ELEMENTS_MAX) return *what = "too many elements in an array or object", p;
    cell->next = n;
    p++;
    in_object = depth && d->cells[d->stack[depth - 1]].type == MW_JSON_OBJECT;
    goto after_value;

key:
    if (*p != '"') {
        *what = p >= end    ? "unexpected end of text, expected a key"
                : *p == '}' ? "expected a key (is there a comma too many?)"
                            : "expected a key in double quotes";
        return p;
    }
    if (n + 2 > d->cell_capacity && mw_json_grow_cells(d) != 0) return *what = "out of memory", p;
    p = scan_string(p + 1, &d->cells[n++], what);
    if (*what) return p;
    if (*p != ':') {
        p = skip_space(p);
        if (*p != ':') return *what = "expected ':' after the key", p;
    }
    p++;
    goto value;
}

int mw_json_parse(struct mw_json_doc *d, const char *text, size_t len) {
    const char *what = NULL;
    d->error[0] = 0;
    d->cell_count = 0;
    if (len > MW_JSON_TEXT_MAX) return mw_json_fail(d, text, 0, 0, "the text is larger than 1 GiB");
    if (mw_json_reserve_text(d, len) != 0) return mw_json_fail(d, text, 0, 0, "out of memory");
    if (len == 0) return mw_json_fail(d, text, 0, 0, "the text is empty");
    memcpy(d->text, text, len);
    memset(d->text + len, 0, MW_JSON_PADDING);
    char *stop = scan(d, d->text, d->text + len, &what);
    if (what == CONTROL && stop == d->text + len) what = "unexpected end of text inside a string";
    if (what) return mw_json_fail(d, text, len, (size_t)(stop - d->text), what);
    return 0;
}

/* p is behind the opening quote. Returns the byte behind the closing one. */
static inline char *scan_string(char *p, struct mw_json_cell *cell, const char **what) {
    char *start = p;
    for (;;) {
        unsigned mask = mw_json_special16(p);
        if (!mask) {
            p += 16;
            continue;
        }
        p += __builtin_ctz(mask);
        if (*p == '"') {
            cell->type = MW_JSON_STRING;
            cell->size = (uint32_t)(p - start);
            cell->text = start;
            return p + 1;
        }
        if ((signed char)*p >= 0) return unescape(p, start, cell, what);
        do {
            int n = mw_json_utf8((const unsigned char *)p);
            if (!n) return *what = "invalid UTF-8 in a string", p;
            p += n;
        } while ((signed char)*p < 0);
    }
}

static int hex4(const char *p) {
    int code = 0;
    for (int i = 0; i < 4; i++) { /* one by one: the text may end before the fourth */
        int c = p[i] | 0x20;
        int digit = p[i] >= '0' && p[i] <= '9' ? p[i] - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

static char *write_utf8(char *out, int code) {
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xC0 | code >> 6);
        *out++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *out++ = (char)(0xE0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 0x3F));
        *out++ = (char)(0x80 | (code & 0x3F));
    } else {
        *out++ = (char)(0xF0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 0x3F));
        *out++ = (char)(0x80 | (code >> 6 & 0x3F));
        *out++ = (char)(0x80 | (code & 0x3F));
    }
    return out;
}

/* p is at the 'u' of an escape. Writes the character and returns the byte behind the escape, or NULL. */
static char *unescape_unicode(char *p, char **out, const char **what) {
    int code = hex4(p + 1);
    if (code < 0) return *what = "expected four hex digits after \\u", NULL;
    p += 5;
    if (code >= 0xDC00 && code <= 0xDFFF) return *what = "lone low surrogate in a string", NULL;
    if (code >= 0xD800 && code <= 0xDBFF) {
        int low = p[0] == '\\' && p[1] == 'u' ? hex4(p + 2) : -1;
        if (low < 0xDC00 || low > 0xDFFF) return *what = "lone high surrogate in a string", NULL;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        p += 6;
    }
    *out = write_utf8(*out, code);
    return p;
}

/* What a backslash and this character stand for; 0: no such escape. */
static const char SIMPLE_ESCAPE[128] = {['"'] = '"',  ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
                                        ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t'};

/* The slow half of scan_string, entered at the first backslash or control character: copies the rest of the
 * string down over its escapes. out never passes p. */
static char *unescape(char *p, char *start, struct mw_json_cell *cell, const char **what) {
    char *out = p;
    for (;;) {
        if (mw_json_special16(p) == 0) {
            memmove(out, p, 16); /* one load, one store: they may overlap */
            out += 16;
            p += 16;
            continue;
        }
        unsigned char c = (unsigned char)*p;
        if (c == '"') break;
        if (c >= 0x80) {
            int n = mw_json_utf8((const unsigned char *)p);
            if (!n) return *what = "invalid UTF-8 in a string", p;
            while (n--) *out++ = *p++;
        } else if (c != '\\') {
            if (c < 0x20) return *what = CONTROL, p;
            *out++ = *p++;
        } else if (p[1] == 'u') {
            char *next = unescape_unicode(p + 1, &out, what);
            if (!next) return p;
            p = next;
        } else {
            char plain = (signed char)p[1] < 0 ? 0 : SIMPLE_ESCAPE[(int)p[1]];
            if (!plain) return *what = "unknown escape in a string", p;
            *out++ = plain;
            p += 2;
        }
    }
    cell->type = MW_JSON_STRING;
    cell->size = (uint32_t)(out - start);
    cell->text = start;
    return p + 1;
}
