/* marks_text.c - the metadata of a commit: what is known beyond the mark, as a short text. It stands in
 * digits of six bits, because brokers take metadata for UTF-8. Where it does not fit, the least needed is
 * left out; where it is not ours or damaged, nothing is known. The table is marks.c's. */
#include <stdlib.h>
#include <string.h>

#include "drivers/kafka/consume/marks_defs.h"

enum { ERRORS_MAX = 64, ERROR_LONG = 200, ERROR_SHORT = 24 };
static const char signature[] = "mw1.";

/* ---- writing ---- */

static const int64_t TIME_MAX = (int64_t)1 << 45; /* ms: the year 3084 */

typedef struct note {
    uint64_t offset;
    const kafka_past *past; /* NULL: it has none, but was begun */
    bool begun;
} note;

typedef struct picture { /* what is known beyond the mark, in order */
    range *ranges;
    note *notes;
    size_t range_count, note_count;
} picture;

static int by_offset(const void *a, const void *b) {
    uint64_t x = ((const note *)a)->offset, y = ((const note *)b)->offset;
    return x < y ? -1 : x > y;
}

static void picture_done(const kafka_marks *m, picture *p) {
    size_t most = m->count / 2 + 1 + (m->before_count - m->before_at);
    p->ranges = must(malloc(most * sizeof *p->ranges));
    bool open = false;
    for (uint32_t i = 0; i < m->count; i++) {
        uint64_t e = *mark_at(m, i), offset = e & OFFSET;
        if (!(e & DONE)) {
            open = false;
        } else if (open) { /* what lies between does not exist */
            p->ranges[p->range_count - 1].to = offset + 1;
        } else {
            p->ranges[p->range_count++] = (range){offset, offset + 1};
            open = true;
        }
    }
    for (size_t i = m->before_at; i < m->before_count; i++) {
        range r = m->before[i];
        if (r.from < m->next) r.from = m->next;
        if (r.from < r.to) p->ranges[p->range_count++] = r;
    }
}

static void picture_notes(const kafka_marks *m, picture *p) {
    size_t begun = 0;
    for (uint32_t i = 0; i < m->count; i++) begun += *mark_at(m, i) >> 62 == 1;
    p->notes = must(malloc((begun + m->pasts.count + 1) * sizeof *p->notes));
    for (uint32_t i = 0; begun && i < m->count; i++) {
        uint64_t offset = *mark_at(m, i) & OFFSET;
        if (*mark_at(m, i) >> 62 != 1) continue;
        begun--;
        p->notes[p->note_count++] = (note){offset, mw_map_get(&m->pasts, offset + 1), true};
    }
    uint32_t i = 0;
    uint64_t key;
    for (kafka_past *past; (past = mw_map_next(&m->pasts, &i, &key));) {
        const uint64_t *e = kafka_marks_find(m, key - 1);
        if (e ? *e & BEGUN : key - 1 < m->next) continue; /* there already; or it never came */
        p->notes[p->note_count++] = (note){key - 1, past, false};
    }
    qsort(p->notes, p->note_count, sizeof *p->notes, by_offset);
}

static void put(mw_buf *b, uint64_t v) {
    char bytes[10];
    size_t n = 0;
    do bytes[n++] = (char)((v & 127) | (v > 127 ? 128 : 0));
    while (v >>= 7);
    mw_buf_add(b, bytes, n);
}

typedef struct error_list {
    const mw_text *list[ERRORS_MAX];
    size_t count;
} error_list;

static size_t error_index(error_list *l, const mw_text *t) { /* from 1; 0: none */
    if (!t) return 0;
    for (size_t i = 0; i < l->count; i++)
        if (l->list[i] == t || (l->list[i]->len == t->len && !memcmp(l->list[i]->data, t->data, t->len)))
            return i + 1;
    if (l->count == ERRORS_MAX) return 0;
    l->list[l->count++] = t;
    return l->count;
}

static void encode(const kafka_marks *m, const picture *p, int64_t now_ms, kafka_left_out left_out,
                   size_t ranges, size_t notes, mw_buf *out) {
    error_list errors = {.count = 0};
    out->len = 0;
    put(out, (uint64_t)now_ms);
    put(out, ranges);
    uint64_t last = m->mark;
    for (size_t i = 0; i < ranges; i++) {
        put(out, p->ranges[i].from - last);
        put(out, p->ranges[i].to - p->ranges[i].from);
        last = p->ranges[i].to;
    }
    put(out, notes);
    last = m->mark;
    for (size_t i = 0; i < notes; i++) {
        const note *n = &p->notes[i];
        int64_t wait = n->past ? n->past->due_ms - now_ms : 0;
        if (wait > TIME_MAX) wait = TIME_MAX; /* another clock wrote it */
        put(out, n->offset - last);
        put(out, (n->past ? n->past->attempts : 0) + n->begun);
        put(out, wait > 0 && left_out < KAFKA_NO_TIMES ? (uint64_t)wait : 0);
        put(out, left_out < KAFKA_NO_ERRORS ? error_index(&errors, n->past ? n->past->error : NULL) : 0);
        last = n->offset;
    }
    size_t most = left_out < KAFKA_SHORT_ERRORS ? ERROR_LONG : ERROR_SHORT;
    put(out, errors.count);
    for (size_t i = 0; i < errors.count; i++) {
        size_t len = errors.list[i]->len < most ? errors.list[i]->len : most;
        put(out, len);
        mw_buf_add(out, errors.list[i]->data, len);
    }
}

/* The broker takes metadata for a text in UTF-8, so it is one. */
static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

static size_t text_len(size_t bytes) { return sizeof signature - 1 + (bytes * 8 + 5) / 6; }

static void to_text(const mw_buf *bytes, mw_buf *out) {
    const unsigned char *p = (const unsigned char *)bytes->data;
    mw_buf_puts(out, signature);
    uint32_t bits = 0, have = 0;
    for (size_t i = 0; i < bytes->len; i++) {
        bits = bits << 8 | p[i];
        for (have += 8; have >= 6; have -= 6) mw_buf_add(out, &digits[bits >> (have - 6) & 63], 1);
    }
    if (have) mw_buf_add(out, &digits[bits << (6 - have) & 63], 1);
}

kafka_left_out kafka_marks_write(const kafka_marks *m, int64_t now_ms, size_t limit, mw_buf *out,
                                 bool *crowded) {
    picture p = {0};
    mw_buf bytes = {0};
    *crowded = false;
    if (!m->count && !m->pasts.count && m->before_at == m->before_count) return KAFKA_WHOLE;
    picture_done(m, &p);
    picture_notes(m, &p);
    size_t ranges = p.range_count, notes = p.note_count;
    kafka_left_out left_out = KAFKA_WHOLE;
    for (;; left_out++) {
        encode(m, &p, now_ms, left_out, ranges, notes, &bytes);
        if (text_len(bytes.len) <= limit || left_out == KAFKA_NO_TIMES) break;
    }
    while (text_len(bytes.len) > limit && ranges) {
        left_out = KAFKA_FEWER_DONE;
        ranges /= 2;
        encode(m, &p, now_ms, left_out, ranges, notes, &bytes);
    }
    while (text_len(bytes.len) > limit && notes) {
        left_out = KAFKA_FEWER_ATTEMPTS;
        notes /= 2;
        encode(m, &p, now_ms, left_out, ranges, notes, &bytes);
    }
    if (ranges || notes) to_text(&bytes, out);
    if (text_len(bytes.len) > limit / 4 * 3) {
        encode(m, &p, now_ms, KAFKA_SHORT_ERRORS, p.range_count, p.note_count, &bytes);
        *crowded = text_len(bytes.len) > limit / 4 * 3;
    }
    mw_buf_free(&bytes);
    free(p.ranges);
    free(p.notes);
    return left_out;
}

/* ---- reading: what stands in a commit may have been written by anybody ---- */

typedef struct reader {
    const unsigned char *at, *end;
    bool bad;
} reader;

static uint64_t get(reader *r) {
    uint64_t v = 0;
    for (int shift = 0; shift < 63; shift += 7) {
        if (r->at == r->end) break;
        v |= (uint64_t)(*r->at & 127) << shift;
        if (!(*r->at++ & 128)) return v;
    }
    r->bad = true;
    return 0;
}

static size_t get_count(reader *r, size_t each) { /* no more than can follow */
    uint64_t n = get(r);
    if (n > (uint64_t)(r->end - r->at) / each) r->bad = true;
    return r->bad ? 0 : (size_t)n;
}

static bool from_text(const char *text, size_t len, mw_buf *out) {
    if (len < sizeof signature - 1 || memcmp(text, signature, sizeof signature - 1) != 0) return false;
    uint32_t bits = 0, have = 0;
    for (size_t i = sizeof signature - 1; i < len; i++) {
        const char *d = text[i] ? strchr(digits, text[i]) : NULL;
        if (!d) return false;
        bits = bits << 6 | (uint32_t)(d - digits);
        if ((have += 6) < 8) continue;
        have -= 8;
        mw_buf_add(out, &(char){(char)(bits >> have)}, 1);
    }
    return true;
}

static void read_ranges(kafka_marks *m, reader *r) {
    m->before_count = get_count(r, 2);
    m->before = must(calloc(m->before_count + 1, sizeof *m->before));
    uint64_t last = m->mark;
    for (size_t i = 0; i < m->before_count && !r->bad; i++) {
        uint64_t from = last + get(r), to = from + get(r);
        if (from < last || to <= from || to > OFFSET) r->bad = true;
        m->before[i] = (range){from, to};
        last = to;
    }
}

static void read_notes(kafka_marks *m, reader *r, int64_t base, mw_buf *wanted) {
    uint64_t last = m->mark;
    for (size_t n = get_count(r, 4); n && !r->bad; n--) {
        uint64_t offset = last + get(r), attempts = get(r), wait = get(r), error = get(r);
        if (offset < last || offset > OFFSET || attempts > UINT32_MAX / 2 || wait > (uint64_t)TIME_MAX)
            r->bad = true;
        if (r->bad || mw_map_get(&m->pasts, offset + 1)) break;
        kafka_past *p = must(calloc(1, sizeof *p));
        *p = (kafka_past){.attempts = (uint32_t)attempts, .due_ms = wait ? base + (int64_t)wait : 0};
        mw_map_put(&m->pasts, offset + 1, p);
        if (error) {
            mw_buf_add(wanted, &p, sizeof p);
            mw_buf_add(wanted, &error, sizeof error);
        }
        last = offset;
    }
}

static void read_errors(reader *r, const mw_buf *wanted) {
    size_t each = sizeof(kafka_past *) + sizeof(uint64_t);
    for (uint64_t i = 1, n = get_count(r, 1); i <= n && !r->bad; i++) {
        size_t len = get_count(r, 1);
        mw_text *text = mw_text_new((const char *)r->at, len);
        r->at += len;
        for (size_t k = 0; k < wanted->len; k += each) {
            kafka_past *p;
            uint64_t index;
            memcpy(&p, wanted->data + k, sizeof p);
            memcpy(&index, wanted->data + k + sizeof p, sizeof index);
            if (index == i && !p->error) p->error = mw_text_ref(text);
        }
        mw_text_unref(text);
    }
}

bool kafka_marks_read(kafka_marks *m, const char *text, size_t len) {
    mw_buf bytes = {0}, wanted = {0};
    reader r = {.bad = !from_text(text, len, &bytes)};
    r.at = (const unsigned char *)bytes.data;
    r.end = bytes.len ? r.at + bytes.len : r.at;
    if (!r.bad) {
        int64_t base = (int64_t)get(&r);
        if (base > TIME_MAX) r.bad = true;
        read_ranges(m, &r);
        read_notes(m, &r, base, &wanted);
        read_errors(&r, &wanted);
    }
    mw_buf_free(&bytes);
    mw_buf_free(&wanted);
    if (!r.bad) return true;
    m->before_count = 0;
    uint32_t i = 0;
    uint64_t key;
    while (m->pasts.count && mw_map_next(&m->pasts, &i, &key)) {
        kafka_marks_forget(m, key - 1);
        i = 0;
    }
    return false;
}

bool kafka_marks_read_done(kafka_marks *m, const char *text, size_t len) {
    mw_buf bytes = {0};
    reader r = {.bad = !from_text(text, len, &bytes)};
    r.at = (const unsigned char *)bytes.data;
    r.end = bytes.len ? r.at + bytes.len : r.at;
    if (!r.bad) {
        get(&r);
        read_ranges(m, &r);
    }
    mw_buf_free(&bytes);
    if (r.bad) m->before_count = 0;
    return !r.bad;
}

bool kafka_marks_says_done(uint64_t mark, const char *text, size_t len, uint64_t offset) {
    kafka_marks *m = kafka_marks_new(mark);
    kafka_marks_read_done(m, text, len);
    bool done = kafka_marks_is_done(m, offset);
    kafka_marks_free(m);
    return done;
}
