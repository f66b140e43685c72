/* arena.c - the memory of a doc and the text of its error.
 * The arena only grows while a text is parsed. Between parses it is given back when it is large and a whole
 * row of texts had no use for it: one huge message must not hold its memory for ever, and a mix of large and
 * small ones must not allocate on every turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json/tape.h"

enum {
    KEEP_BYTES = 256 * 1024, /* an arena of this size is never given back */
    MODEST_PARSES = 64,      /* that many small texts in a row end the wait for another large one */
    FIRST_CELLS = 256,
    EXCERPT_BEFORE = 12,
    EXCERPT_AFTER = 16,
};

struct mw_json_doc *mw_json_new(void) {
    return calloc(1, sizeof(struct mw_json_doc));
}

void mw_json_free(struct mw_json_doc *d) {
    if (!d) return;
    free(d->text);
    free(d->cells);
    free(d);
}

const char *mw_json_error(const struct mw_json_doc *d) { return d->error; }

size_t mw_json_memory(const struct mw_json_doc *d) {
    return d->text_capacity + (size_t)d->cell_capacity * sizeof *d->cells;
}

static void release(struct mw_json_doc *d) {
    free(d->text);
    free(d->cells);
    d->text = NULL;
    d->cells = NULL;
    d->text_capacity = d->cell_capacity = d->modest = 0;
}

/* Room for a copy of len bytes and its padding, and for the first cells. Called once per parse. */
int mw_json_reserve_text(struct mw_json_doc *d, size_t len) {
    size_t held = mw_json_memory(d);
    if (held > KEEP_BYTES && len < held / 64) { /* a text seldom needs more than 9 bytes of arena per byte */
        if (++d->modest >= MODEST_PARSES) release(d);
    } else {
        d->modest = 0;
    }
    if (len + MW_JSON_PADDING > d->text_capacity) {
        size_t capacity = (len + MW_JSON_PADDING + 4095) & ~(size_t)4095;
        char *text = malloc(capacity); /* not realloc: nothing in it is worth copying */
        if (!text) return -1;
        free(d->text);
        d->text = text;
        d->text_capacity = capacity;
    }
    return d->cells ? 0 : mw_json_grow_cells(d);
}

int mw_json_grow_cells(struct mw_json_doc *d) {
    size_t capacity = d->cell_capacity ? (size_t)d->cell_capacity * 2 : FIRST_CELLS;
    struct mw_json_cell *cells = realloc(d->cells, capacity * sizeof *cells);
    if (!cells) return -1;
    d->cells = cells;
    d->cell_capacity = (uint32_t)capacity;
    return 0;
}

/* A piece of the text around `at`, on one line and in ASCII whatever the bytes are. */
static void excerpt(char *out, size_t room, const char *text, size_t len, size_t at) {
    size_t from = at > EXCERPT_BEFORE ? at - EXCERPT_BEFORE : 0;
    size_t to = len - at > EXCERPT_AFTER ? at + EXCERPT_AFTER : len;
    size_t n = 0;
    for (size_t i = from; i < to && n + 5 < room; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c < 0x7F)
            out[n++] = (char)c;
        else
            n += (size_t)snprintf(out + n, room - n, "\\x%02X", c);
    }
    out[n] = 0;
}

/* Columns count characters, not bytes, as editors do. */
int mw_json_fail(struct mw_json_doc *d, const char *text, size_t len, size_t at, const char *what) {
    char near[5 * (EXCERPT_BEFORE + EXCERPT_AFTER)];
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            line++;
            column = 1;
        } else if (((unsigned char)text[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    d->cell_count = 0;
    if (len == 0) {
        snprintf(d->error, sizeof d->error, "%s", what);
        return -1;
    }
    excerpt(near, sizeof near, text, len, at);
    snprintf(d->error, sizeof d->error, "%s at line %zu, column %zu, near '%s'", what, line, column, near);
    return -1;
}
