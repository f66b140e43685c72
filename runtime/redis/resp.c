#include "redis/resp.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

void mwr_parser_reset(mwr_parser *p) {
    p->at = 0;
    p->unit_depth = -1;
    p->above = 0;
    p->count = 0;
    p->open_count = 0;
    p->gave = p->stop = false;
}

void mwr_parser_free(mwr_parser *p) {
    free(p->nodes);
    p->nodes = NULL;
    p->capacity = 0;
}

static mwr_node *add_node(mwr_parser *p) {
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? p->capacity * 2 : 64;
        p->nodes = realloc(p->nodes, p->capacity * sizeof *p->nodes);
        if (!p->nodes) abort();
    }
    mwr_node *n = &p->nodes[p->count++];
    *n = (mwr_node){.span = 1};
    return n;
}

static int nonsense(mw_error *e, const char *what) {
    return mw_fail(e, MW_EFORMAT, true, "the server does not speak Redis' protocol: %s", what);
}

/* A whole number in a line, any of 64 bits; false for anything else. */
static bool read_number(const char *s, const char *end, int64_t *out) {
    bool negative = s < end && *s == '-';
    if (negative) s++;
    if (s == end || end - s > 19) return false;
    uint64_t n = 0; /* 19 digits fit */
    for (; s < end; s++) {
        if (*s < '0' || *s > '9') return false;
        n = n * 10 + (uint64_t)(*s - '0');
    }
    if (n > (uint64_t)INT64_MAX + negative) return false;
    *out = negative ? (int64_t)(0 - n) : (int64_t)n;
    return true;
}

/* The elements that this value completes, upwards. */
static void close_arrays(mwr_parser *p) {
    while (p->open_count) {
        int top = p->open_count - 1;
        if (p->open_left[top] && --p->open_left[top]) return;
        p->nodes[p->open[top]].span = p->count - p->open[top];
        p->open_count--;
    }
}

/* What of a value stands in the line that opens it. 1: the value is complete or an array has begun; 0: more
 * bytes are needed; -1: nonsense. */
static int parse_value(mwr_parser *p, const char *data, size_t len, size_t *need, mw_error *e) {
    const char *line = data + p->at;
    size_t left = len - p->at;
    const char *cr = left ? memchr(line, '\r', left < MWR_LINE_MAX ? left : MWR_LINE_MAX) : NULL;
    if (!cr || cr + 1 == data + len) {
        *need = len + 1;
        return !cr && left >= MWR_LINE_MAX ? nonsense(e, "a line without an end") : 0;
    }
    if (cr[1] != '\n') return nonsense(e, "a carriage return inside of a line");
    size_t after = (size_t)(cr + 2 - data);
    int64_t number = 0;
    if (*line != '+' && *line != '-' && !read_number(line + 1, cr, &number))
        return nonsense(e, "a length or number that is none");
    switch (*line) {
    case '+':
    case '-':
    case ':': {
        mwr_node *n = add_node(p);
        n->type = *line == '+' ? MWR_STATUS : *line == '-' ? MWR_ERROR : MWR_INTEGER;
        n->at = (size_t)(line + 1 - data);
        n->len = (size_t)(cr - line - 1);
        n->integer = number;
        break;
    }
    case '$': {
        if (number < -1 || number > MWR_BULK_MAX) return nonsense(e, "a text of an impossible length");
        if (number >= 0 && len - after < (size_t)number + 2) {
            *need = after + (size_t)number + 2;
            return 0;
        }
        mwr_node *n = add_node(p);
        n->type = number < 0 ? MWR_NIL : MWR_BULK;
        if (number >= 0) {
            n->at = after;
            n->len = (size_t)number;
            after += (size_t)number + 2;
            if (data[after - 2] != '\r' || data[after - 1] != '\n')
                return nonsense(e, "a text longer than its length");
        }
        break;
    }
    case '*': {
        if (number < -1 || number > MWR_ELEMENTS_MAX) return nonsense(e, "a list of an impossible length");
        mwr_node *n = add_node(p);
        n->type = number < 0 ? MWR_NIL : MWR_ARRAY;
        if (number <= 0) break;
        n->count = (uint32_t)number;
        if (p->above + p->open_count == MWR_DEPTH) return nonsense(e, "lists too deep");
        p->open[p->open_count] = p->count - 1;
        p->open_left[p->open_count++] = n->count;
        p->at = after;
        return 1;
    }
    default: return nonsense(e, "an unknown kind of value");
    }
    if (p->count > MWR_NODES_MAX) return nonsense(e, "too many values in one reply");
    p->at = after;
    close_arrays(p);
    return 1;
}

/* Counts an element in the arrays above; true when the reply has ended with it. */
static bool step_out(mwr_parser *p) {
    while (p->above) {
        if (--p->left[p->above - 1]) return false;
        p->above--;
    }
    return true;
}

static void hand_out(mwr_parser *p, const char *data, bool more) {
    mwr_unit u = {.node = p->nodes, .base = data};
    p->gave = true;
    p->unit(p->owner, &u, more);
}

/* What lies above the units and is no array is no unit either, except when the reply is nothing else. */
static void unit_ended(mwr_parser *p, const char *data) {
    bool deep = p->above == p->unit_depth;
    bool ended = step_out(p);
    if (deep || (ended && !p->gave)) hand_out(p, data, !ended);
    p->count = 0;
    if (!ended) return;
    p->unit_depth = -1;
    p->gave = false;
}

int64_t mwr_parse(mwr_parser *p, const char *data, size_t len, size_t *need, mw_error *e) {
    size_t consumed = 0;
    const char *from = data;
    while (p->at < len - consumed && !p->stop) {
        if (p->unit_depth < 0) p->unit_depth = p->depth ? p->depth(p->owner) : 0;
        if (p->unit_depth > MWR_DEPTH / 2) p->unit_depth = MWR_DEPTH / 2;
        size_t want = 0;
        int rc = parse_value(p, from, len - consumed, &want, e);
        if (rc < 0) return -1;
        if (rc == 0) {
            *need = want;
            break;
        }
        if (p->open_count == 1 && p->count == 1 && p->above < p->unit_depth) { /* a list above the units */
            p->left[p->above++] = p->nodes[0].count;
            p->open_count = 0;
            p->count = 0;
        } else if (p->open_count == 0) {
            unit_ended(p, from);
        } else {
            continue;
        }
        consumed += p->at;
        from += p->at;
        p->at = 0;
    }
    return (int64_t)consumed;
}

/* ---- looking ---- */

const mwr_node *mwr_child(const mwr_node *array, uint32_t i) {
    if (array->type != MWR_ARRAY || i >= array->count) return NULL;
    const mwr_node *n = array + 1;
    while (i--) n += n->span;
    return n;
}

const char *mwr_text(const mwr_unit *u, const mwr_node *n, size_t *len) {
    *len = 0;
    if (!n || (n->type != MWR_BULK && n->type != MWR_STATUS && n->type != MWR_ERROR)) return "";
    *len = n->len;
    return u->base + n->at;
}

int64_t mwr_number(const mwr_unit *u, const mwr_node *n) {
    if (!n) return 0;
    if (n->type == MWR_INTEGER) return n->integer;
    size_t len;
    int64_t number;
    const char *text = mwr_text(u, n, &len);
    return read_number(text, text + len, &number) ? number : 0;
}

bool mwr_is(const mwr_unit *u, const mwr_node *n, const char *text) {
    size_t len;
    const char *have = mwr_text(u, n, &len);
    return strlen(text) == len && memcmp(have, text, len) == 0;
}

/* ---- writing ---- */

size_t mwr_print_number(char *out, uint64_t number) {
    char digits[20];
    size_t n = 0;
    do digits[n++] = (char)('0' + number % 10);
    while (number /= 10);
    for (size_t i = 0; i < n; i++) out[i] = digits[n - 1 - i];
    return n;
}

static void head(mw_buf *out, char kind, size_t number, size_t room) {
    char *at = mw_buf_reserve(out, 24 + room);
    at[0] = kind;
    size_t n = 1 + mwr_print_number(at + 1, number);
    at[n] = '\r';
    at[n + 1] = '\n';
    out->len += n + 2;
}

void mwr_write_array(mw_buf *out, size_t count) { head(out, '*', count, 0); }

void mwr_write(mw_buf *out, const void *data, size_t len) {
    head(out, '$', len, len + 2);
    char *at = out->data + out->len;
    if (len) memcpy(at, data, len);
    at[len] = '\r';
    at[len + 1] = '\n';
    out->len += len + 2;
}

void mwr_write_text(mw_buf *out, const char *text) { mwr_write(out, text, strlen(text)); }

void mwr_write_number(mw_buf *out, int64_t number) {
    char text[24];
    size_t n = 0;
    if (number < 0) text[n++] = '-';
    n += mwr_print_number(text + n, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
    mwr_write(out, text, n);
}
