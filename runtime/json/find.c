/* find.c - one value out of a parsed text by its path, building nothing. A lookup reads key cells and steps
 * over the values between them; it allocates nothing and never fails, it only finds or does not. */
#include <string.h>

#include "json/tape.h"

/* One step of a path, still in the path's bytes. */
struct segment {
    const char *text;
    size_t len; /* as written, backslashes included */
    bool escaped;
};

static bool next_segment(const char **path, const char *end, struct segment *s) {
    const char *p = *path;
    s->text = p;
    s->escaped = false;
    while (p < end && *p != '.') {
        if (*p == '\\' && p + 1 < end) {
            s->escaped = true;
            p++;
        }
        p++;
    }
    s->len = (size_t)(p - s->text);
    *path = p + 1;
    return p < end; /* a dot follows, so another segment does, be it empty */
}

static bool same_key(const struct segment *s, const struct mw_json_cell *key) {
    if (!s->escaped) return s->len == key->size && memcmp(s->text, key->text, s->len) == 0;
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++, n++) {
        if (s->text[i] == '\\' && i + 1 < s->len) i++;
        if (n == key->size || key->text[n] != s->text[i]) return false;
    }
    return n == key->size;
}

static inline uint32_t behind(const struct mw_json_cell *cells, uint32_t at) {
    return cells[at].type >= MW_JSON_ARRAY ? cells[at].next : at + 1;
}

/* The node of the member, 0 when there is none (node 0 is the root, which is nobody's member). It goes on to
 * the object's end because of duplicate keys the last one wins. */
static uint32_t member(const struct mw_json_cell *cells, uint32_t object, const struct segment *s) {
    uint32_t found = 0;
    for (uint32_t at = object + 1; at < cells[object].next; at = behind(cells, at + 1))
        if (same_key(s, &cells[at])) found = at + 1;
    return found;
}

static uint32_t element(const struct mw_json_cell *cells, uint32_t array, const struct segment *s) {
    uint64_t index = 0;
    if (s->len == 0 || s->len > 10 || s->text[0] == '0') return 0;
    for (size_t i = 0; i < s->len; i++) {
        if (s->text[i] < '0' || s->text[i] > '9') return 0;
        index = index * 10 + (uint64_t)(s->text[i] - '0');
    }
    if (index > cells[array].size) return 0;
    uint32_t at = array + 1;
    while (--index) at = behind(cells, at);
    return at;
}

static int describe(const struct mw_json_cell *cells, uint32_t node, struct mw_json_value *out) {
    const struct mw_json_cell *c = &cells[node];
    *out = (struct mw_json_value){.type = (int32_t)c->type, .node = node};
    switch (c->type) {
    case MW_JSON_NUMBER: out->number = c->number; break;
    case MW_JSON_INT64:
        out->integer = c->integer;
        out->number = (double)c->integer;
        break;
    case MW_JSON_UINT64:
        out->integer = c->integer;
        out->number = (double)(uint64_t)c->integer;
        break;
    case MW_JSON_STRING:
        out->text = c->text;
        out->len = c->size;
        break;
    case MW_JSON_ARRAY:
    case MW_JSON_OBJECT: out->count = c->size; break;
    default: break;
    }
    return out->type;
}

int mw_json_find_in(const struct mw_json_doc *d, uint32_t node, const char *path, size_t path_len,
                    struct mw_json_value *out) {
    const char *end = path + path_len;
    struct segment s;
    bool more = path_len > 0;
    *out = (struct mw_json_value){.type = MW_JSON_NONE};
    if (node >= d->cell_count) return MW_JSON_NONE; /* nothing parsed, or a node of an earlier text */
    while (more) {
        more = next_segment(&path, end, &s);
        uint32_t type = d->cells[node].type;
        node = type == MW_JSON_OBJECT  ? member(d->cells, node, &s)
               : type == MW_JSON_ARRAY ? element(d->cells, node, &s)
                                       : 0;
        if (!node) return MW_JSON_NONE;
    }
    return describe(d->cells, node, out);
}

int mw_json_find(const struct mw_json_doc *d, const char *path, size_t path_len, struct mw_json_value *out) {
    return mw_json_find_in(d, 0, path, path_len, out);
}
