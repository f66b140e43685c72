/* resp_fuzz.c - libFuzzer target for the RESP parser. The first bytes of an input choose the depth of the
 * units and how the rest is split; the rest is what the server sends. Whatever it is: the parser only looks
 * at the bytes it was given (each piece stands alone on the heap, where ASan sees one too many); what it
 * hands out lies inside of them; split in any way, it says the same as in one piece; what it accepts and is
 *   written again parses to the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis/resp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct heard { /* everything that was handed out, as one text */
    mw_buf text;
    int depth;
    bool failed;
} heard;

static void die(const char *what) {
    fprintf(stderr, "resp_fuzz: %s\n", what);
    abort();
}

static void unit(void *owner, const mwr_unit *u, bool more) {
    heard *h = owner;
    if (u->node->span == 0) die("a unit of nothing");
    for (uint32_t i = 0; i < u->node->span; i++) {
        const mwr_node *n = &u->node[i];
        size_t len;
        const char *text = mwr_text(u, n, &len);
        if (n->span == 0 || i + n->span > u->node->span) die("a value that reaches beyond its unit");
        mw_buf_printf(&h->text, "%d,%u,%u,%lld:", (int)n->type, n->count, n->span,
                      (long long)mwr_number(u, n));
        mw_buf_add(&h->text, text, len);
        for (uint32_t k = 0; n->type == MWR_ARRAY && k < n->count && k < 4; k++)
            if (!mwr_child(n, k)) die("a child that is not there");
        if (mwr_child(n, n->count)) die("a child too many");
    }
    mw_buf_puts(&h->text, more ? ";" : "!\n");
}

static int depth(void *owner) { return ((heard *)owner)->depth; }

/* Feeds the bytes in pieces, as a stream does: what was not consumed is shown again with more behind it. */
static void feed(heard *h, const uint8_t *data, size_t size, uint32_t seed) {
    mwr_parser p = {.unit = unit, .depth = depth, .owner = h};
    mwr_parser_reset(&p);
    size_t from = 0, to = 0, need = 0;
    while (to < size && !h->failed) {
        seed = seed * 1103515245 + 12345;
        size_t step = seed ? 1 + (seed >> 16) % 9 : size;
        to = to + step < size ? to + step : size;
        if (to - from < need && to < size) continue;
        char *piece = malloc(to - from ? to - from : 1);
        memcpy(piece, data + from, to - from);
        mw_error e = {0};
        need = 0;
        int64_t n = mwr_parse(&p, piece, to - from, &need, &e);
        free(piece);
        if (n < 0) {
            if (!*e.text) die("no error text");
            h->failed = true;
        } else {
            if ((size_t)n > to - from) die("consumed more than there was");
            from += (size_t)n;
        }
    }
    mwr_parser_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    heard whole = {.depth = data[0] % 5}, split = {.depth = data[0] % 5};
    feed(&whole, data + 3, size - 3, 0);
    feed(&split, data + 3, size - 3, 1 + data[1] + 256u * data[2]);
    bool longer = whole.text.len >= split.text.len;
    heard *a = longer ? &whole : &split, *b = longer ? &split : &whole;
    if (whole.failed == split.failed && a->text.len != b->text.len) die("split, it says something else");
    if (b->text.len && memcmp(a->text.data, b->text.data, b->text.len) != 0)
        die("split, it says it differently");
    mw_buf_free(&whole.text);
    mw_buf_free(&split.text);
    return 0;
}
