#include "drivers/kafka/consume/marks.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* An entry of the ring is an offset with two bits above it. */
static const uint64_t DONE = 1ull << 63, BEGUN = 1ull << 62, OFFSET = (1ull << 62) - 1;

enum { ERRORS_MAX = 64, ERROR_LONG = 200, ERROR_SHORT = 24 };
static const char signature[] = "mw1.";

typedef struct range { /* [from, to) */
    uint64_t from, to;
} range;

struct kafka_marks {
    uint64_t *ring; /* rising; the first is never done */
    uint32_t capacity, head, count, pending;
    uint64_t mark, next;
    mw_map pasts;  /* offset + 1 -> kafka_past, for what has one */
    range *before; /* done by whoever had the partition before us; not yet added */
    size_t before_count, before_at;
};

static void *must(void *p) {
    if (!p) abort();
    return p;
}

kafka_marks *kafka_marks_new(uint64_t start) {
    kafka_marks *m = must(calloc(1, sizeof *m));
    m->mark = m->next = start;
    return m;
}

static void forget(kafka_marks *m, uint64_t offset) {
    if (!m->pasts.count) return;
    kafka_past *p = mw_map_remove(&m->pasts, offset + 1);
    if (p) mw_text_unref(p->error);
    free(p);
}

void kafka_marks_free(kafka_marks *m) {
    if (!m) return;
    uint32_t at = 0;
    for (kafka_past *p; (p = mw_map_next(&m->pasts, &at, NULL));) {
        mw_text_unref(p->error);
        free(p);
    }
    mw_map_free(&m->pasts);
    free(m->before);
    free(m->ring);
    free(m);
}

/* ---- the ring ---- */

static uint64_t *at(const kafka_marks *m, uint32_t i) { return &m->ring[(m->head + i) & (m->capacity - 1)]; }

static void grow(kafka_marks *m) {
    uint32_t capacity = m->capacity ? m->capacity * 2 : 256;
    uint64_t *ring = must(malloc(capacity * sizeof *ring));
    for (uint32_t i = 0; i < m->count; i++) ring[i] = *at(m, i);
    free(m->ring);
    m->ring = ring;
    m->capacity = capacity;
    m->head = 0;
}

static uint64_t *find(const kafka_marks *m, uint64_t offset) {
    uint32_t low = 0, high = m->count;
    if (high && offset >= (*at(m, 0) & OFFSET)) { /* without gaps it stands right there */
        uint64_t guess = offset - (*at(m, 0) & OFFSET);
        if (guess < high && (*at(m, (uint32_t)guess) & OFFSET) == offset) return at(m, (uint32_t)guess);
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t there = *at(m, middle) & OFFSET;
        if (there == offset) return at(m, middle);
        if (there < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void move_mark(kafka_marks *m) {
    while (m->count && *at(m, 0) & DONE) {
        m->mark = (*at(m, 0) & OFFSET) + 1;
        m->head = (m->head + 1) & (m->capacity - 1);
        m->count--;
    }
    if (!m->count) m->mark = m->next;
}

static bool done_before(kafka_marks *m, uint64_t offset) {
    while (m->before_at < m->before_count && m->before[m->before_at].to <= offset) m->before_at++;
    return m->before_at < m->before_count && m->before[m->before_at].from <= offset;
}

kafka_added kafka_marks_add(kafka_marks *m, uint64_t offset, kafka_past *past) {
    if (offset < m->next || offset > OFFSET) return KAFKA_OLD;
    bool was_done = done_before(m, offset);
    m->next = offset + 1;
    if (m->count == m->capacity) grow(m);
    m->count++;
    *at(m, m->count - 1) = was_done ? offset | DONE : offset;
    if (was_done) {
        forget(m, offset);
        move_mark(m);
        return KAFKA_DONE_BEFORE;
    }
    m->pending++;
    const kafka_past *known = m->pasts.count ? mw_map_get(&m->pasts, offset + 1) : NULL;
    *past = known ? *known : (kafka_past){0};
    return KAFKA_NEW;
}

void kafka_marks_begin(kafka_marks *m, uint64_t offset) {
    uint64_t *e = find(m, offset);
    if (e) *e |= BEGUN;
}

void kafka_marks_release(kafka_marks *m, uint64_t offset) {
    uint64_t *e = find(m, offset);
    if (e) *e &= ~BEGUN;
}

void kafka_marks_done(kafka_marks *m, uint64_t offset) {
    uint64_t *e = find(m, offset);
    if (!e || *e & DONE) return;
    *e = offset | DONE;
    m->pending--;
    forget(m, offset);
    move_mark(m);
}

static uint32_t insert(kafka_marks *m, uint64_t entry) { /* in its place; it is not there. Returns where */
    if (m->count == m->capacity) grow(m);
    uint32_t i = m->count++;
    for (; i && (*at(m, i - 1) & OFFSET) > (entry & OFFSET); i--) *at(m, i) = *at(m, i - 1);
    *at(m, i) = entry;
    return i;
}

/* Two done entries stand for all that lies between them, so their neighbours of this one stand up for it. */
void kafka_marks_undone(kafka_marks *m, uint64_t offset) {
    uint64_t *e = find(m, offset);
    if (e && !(*e & DONE)) return;
    if (!e && offset < m->mark) { /* what is done left the ring when the mark passed it */
        if (offset + 1 < m->mark) insert(m, (m->mark - 1) | DONE);
        m->mark = offset;
    }
    m->pending++;
    uint32_t i = e ? (uint32_t)(e - m->ring + m->capacity - m->head) & (m->capacity - 1) : insert(m, offset);
    *at(m, i) = offset;
    if (i + 1 < m->count && *at(m, i + 1) & DONE && (*at(m, i + 1) & OFFSET) > offset + 1)
        insert(m, (offset + 1) | DONE);
    if (i && *at(m, i - 1) & DONE && (*at(m, i - 1) & OFFSET) + 1 < offset) insert(m, (offset - 1) | DONE);
}

void kafka_marks_failed(kafka_marks *m, uint64_t offset, uint32_t attempts, int64_t due_ms, mw_text *error) {
    uint64_t *e = find(m, offset);
    if (!e || *e & DONE) return;
    *e &= ~BEGUN;
    kafka_past *p = mw_map_get(&m->pasts, offset + 1);
    if (!p) mw_map_put(&m->pasts, offset + 1, p = must(calloc(1, sizeof *p)));
    p->attempts = attempts;
    p->due_ms = due_ms;
    if (!p->error) p->error = mw_text_ref(error);
}

void kafka_marks_skip(kafka_marks *m, uint64_t to) {
    if (to <= m->next || to > OFFSET) return;
    m->next = to;
    if (!m->count) m->mark = to;
}

uint64_t kafka_marks_mark(const kafka_marks *m) { return m->mark; }
uint32_t kafka_marks_pending(const kafka_marks *m) { return m->pending; }
uint32_t kafka_marks_span(const kafka_marks *m) { return m->count; }
uint64_t kafka_marks_next(const kafka_marks *m) { return m->next; }

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
        uint64_t e = *at(m, i), offset = e & OFFSET;
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
    for (uint32_t i = 0; i < m->count; i++) begun += *at(m, i) >> 62 == 1;
    p->notes = must(malloc((begun + m->pasts.count + 1) * sizeof *p->notes));
    for (uint32_t i = 0; begun && i < m->count; i++) {
        uint64_t offset = *at(m, i) & OFFSET;
        if (*at(m, i) >> 62 != 1) continue;
        begun--;
        p->notes[p->note_count++] = (note){offset, mw_map_get(&m->pasts, offset + 1), true};
    }
    uint32_t i = 0;
    uint64_t key;
    for (kafka_past *past; (past = mw_map_next(&m->pasts, &i, &key));) {
        const uint64_t *e = find(m, key - 1);
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
        forget(m, key - 1);
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

bool kafka_marks_is_done(const kafka_marks *m, uint64_t offset) {
    if (offset < m->mark) return true;
    size_t i = 0;
    while (i < m->before_count && m->before[i].to <= offset) i++;
    return i < m->before_count && m->before[i].from <= offset;
}

void kafka_marks_set_done(kafka_marks *m, uint64_t offset) {
    if (kafka_marks_is_done(m, offset)) return;
    size_t i = 0;
    m->before = must(realloc(m->before, (m->before_count + 2) * sizeof *m->before));
    while (i < m->before_count && m->before[i].to < offset) i++;
    if (i < m->before_count && m->before[i].to == offset) {
        m->before[i].to++;
    } else if (i < m->before_count && m->before[i].from == offset + 1) {
        m->before[i].from--;
    } else {
        memmove(&m->before[i + 1], &m->before[i], (m->before_count - i) * sizeof *m->before);
        m->before[i] = (range){offset, offset + 1};
        m->before_count++;
    }
    if (i + 1 < m->before_count && m->before[i].to == m->before[i + 1].from) { /* they meet */
        m->before[i].to = m->before[i + 1].to;
        m->before_count--;
        memmove(&m->before[i + 1], &m->before[i + 2], (m->before_count - i - 1) * sizeof *m->before);
    }
    if (m->before[0].from > m->mark) return;
    m->mark = m->next = m->before[0].to;
    m->before_count--;
    memmove(&m->before[0], &m->before[1], m->before_count * sizeof *m->before);
}

bool kafka_marks_says_done(uint64_t mark, const char *text, size_t len, uint64_t offset) {
    kafka_marks *m = kafka_marks_new(mark);
    kafka_marks_read_done(m, text, len);
    bool done = kafka_marks_is_done(m, offset);
    kafka_marks_free(m);
    return done;
}
