/* marks.c - the table itself: a ring of offsets with what is known of each, and the mark at its low end. What
 * it looks like in a commit is marks_text.c's. */
#include <stdlib.h>
#include <string.h>

#include "drivers/kafka/consume/marks_defs.h"

kafka_marks *kafka_marks_new(uint64_t start) {
    kafka_marks *m = must(calloc(1, sizeof *m));
    m->mark = m->next = start;
    return m;
}

void kafka_marks_forget(kafka_marks *m, uint64_t offset) {
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

static void grow(kafka_marks *m) {
    uint32_t capacity = m->capacity ? m->capacity * 2 : 256;
    uint64_t *ring = must(malloc(capacity * sizeof *ring));
    for (uint32_t i = 0; i < m->count; i++) ring[i] = *mark_at(m, i);
    free(m->ring);
    m->ring = ring;
    m->capacity = capacity;
    m->head = 0;
}

uint64_t *kafka_marks_find(const kafka_marks *m, uint64_t offset) {
    uint32_t low = 0, high = m->count;
    if (high && offset >= (*mark_at(m, 0) & OFFSET)) { /* without gaps it stands right there */
        uint64_t guess = offset - (*mark_at(m, 0) & OFFSET);
        if (guess < high && (*mark_at(m, (uint32_t)guess) & OFFSET) == offset)
            return mark_at(m, (uint32_t)guess);
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint64_t there = *mark_at(m, middle) & OFFSET;
        if (there == offset) return mark_at(m, middle);
        if (there < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void move_mark(kafka_marks *m) {
    while (m->count && *mark_at(m, 0) & DONE) {
        m->mark = (*mark_at(m, 0) & OFFSET) + 1;
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
    *mark_at(m, m->count - 1) = was_done ? offset | DONE : offset;
    if (was_done) {
        kafka_marks_forget(m, offset);
        move_mark(m);
        return KAFKA_DONE_BEFORE;
    }
    m->pending++;
    const kafka_past *known = m->pasts.count ? mw_map_get(&m->pasts, offset + 1) : NULL;
    *past = known ? *known : (kafka_past){0};
    return KAFKA_NEW;
}

void kafka_marks_begin(kafka_marks *m, uint64_t offset) {
    uint64_t *e = kafka_marks_find(m, offset);
    if (e) *e |= BEGUN;
}

void kafka_marks_release(kafka_marks *m, uint64_t offset) {
    uint64_t *e = kafka_marks_find(m, offset);
    if (e) *e &= ~BEGUN;
}

void kafka_marks_done(kafka_marks *m, uint64_t offset) {
    uint64_t *e = kafka_marks_find(m, offset);
    if (!e || *e & DONE) return;
    *e = offset | DONE;
    m->pending--;
    kafka_marks_forget(m, offset);
    move_mark(m);
}

static uint32_t insert(kafka_marks *m, uint64_t entry) { /* in its place; it is not there. Returns where */
    if (m->count == m->capacity) grow(m);
    uint32_t i = m->count++;
    for (; i && (*mark_at(m, i - 1) & OFFSET) > (entry & OFFSET); i--) *mark_at(m, i) = *mark_at(m, i - 1);
    *mark_at(m, i) = entry;
    return i;
}

/* Two done entries stand for all that lies between them, so their neighbours of this one stand up for it. */
void kafka_marks_undone(kafka_marks *m, uint64_t offset) {
    uint64_t *e = kafka_marks_find(m, offset);
    if (e && !(*e & DONE)) return;
    if (!e && offset < m->mark) { /* what is done left the ring when the mark passed it */
        if (offset + 1 < m->mark) insert(m, (m->mark - 1) | DONE);
        m->mark = offset;
    }
    m->pending++;
    uint32_t i = e ? (uint32_t)(e - m->ring + m->capacity - m->head) & (m->capacity - 1) : insert(m, offset);
    *mark_at(m, i) = offset;
    if (i + 1 < m->count && *mark_at(m, i + 1) & DONE && (*mark_at(m, i + 1) & OFFSET) > offset + 1)
        insert(m, (offset + 1) | DONE);
    if (i && *mark_at(m, i - 1) & DONE && (*mark_at(m, i - 1) & OFFSET) + 1 < offset)
        insert(m, (offset - 1) | DONE);
}

void kafka_marks_failed(kafka_marks *m, uint64_t offset, uint32_t attempts, int64_t due_ms, mw_text *error) {
    uint64_t *e = kafka_marks_find(m, offset);
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

/* ---- what was read of a commit ---- */

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
